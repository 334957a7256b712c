"""ARC: time and disk until training can start, examples per second, and voting over every augmentation.

.venv/bin/python benchmarks/arc.py [--quick] [--conceptarc DIR]
"""

import argparse
import os
import resource
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ponder.domains.arc.domain import Arc1, Arc1Params
from ponder.domains.arc.sources import ArcEvaluation
from ponder.domains.arc.votes import Predictions, score_votes
from ponder.domains.contract import Arrays

HERE = Path(__file__).resolve().parents[1]
NEIGHBOUR = HERE.parent / "shared" / "data" / "conceptarc"
BATCH = 768


@dataclass(frozen=True)
class Spent:
    """Time since the start, on the wall and on the processor: they differ where the machine is shared."""

    wall: float
    cpu: float

    def __str__(self) -> str:
        return f"{self.wall:.2f} s ({self.cpu:.2f} s of CPU)"


def since(start: Spent | None = None) -> Spent:
    wall, cpu = time.perf_counter(), time.process_time()
    return Spent(wall, cpu) if start is None else Spent(wall - start.wall, cpu - start.cpu)


def peak() -> str:
    """Largest resident memory; macOS counts bytes, Linux kilobytes."""
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit:.0f} MiB peak"


def stored(arrays: dict[str, Arrays], folder: Path) -> dict[str, Arrays]:
    """As `ponder data build` leaves them: one file per array, memory-mapped."""
    for split, some in arrays.items():
        for key, array in some.items():
            np.save(folder / f"{split}.{key}.npy", array)
    return {
        split: {key: np.load(folder / f"{split}.{key}.npy", mmap_mode="r") for key in some}
        for split, some in arrays.items()
    }


def predictions(source: ArcEvaluation, count: int) -> Predictions:
    """Right answers with some cells changed: about as many different grids as a middling model gives."""
    rng, index = np.random.default_rng(0), np.arange(count)
    batch = source.fetch(index, index)
    wrong = batch.labels.copy()
    spoiled = rng.random(count) < 0.5
    wrong[spoiled, 0] = rng.integers(2, 12, size=int(spoiled.sum()))
    return Predictions(source.test_names(index), batch.inputs, wrong, rng.random(count))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="100 augmentations, and a tenth of the rest")
    parser.add_argument("--conceptarc", help="ConceptARC's folder; left out where there is none")
    options = parser.parse_args()
    conceptarc = options.conceptarc or (str(NEIGHBOUR) if NEIGHBOUR.is_dir() else "none")
    augmentations = 100 if options.quick else 1000
    print(f"{os.cpu_count()} cores, one used; {augmentations} augmentations; ConceptARC: {conceptarc}")

    start = since()
    domain = Arc1(Arc1Params(augmentations=augmentations, conceptarc=conceptarc))
    built = domain.build(seed=0)
    with tempfile.TemporaryDirectory() as folder:
        arrays = stored(built, Path(folder))
        train = domain.source("train", arrays["train"], 0)
        train.fetch(np.arange(BATCH), np.zeros(BATCH, dtype=np.int64))
        ready = since(start)
        disk = sum(path.stat().st_size for path in Path(folder).iterdir()) / 1e6
        print(f"ready to train in {ready} (goal 5 s), {disk:.1f} MB of disk (goal 50), {peak()}")
        print(f"  {len(domain.tasks)} tasks, {len(train)} pairs, {domain.task_ids - 1} augmented tasks")

        rng = np.random.default_rng(0)
        for size in (100, BATCH):
            rounds = (2000 if options.quick else 20_000) // size
            start = since()
            for epoch in range(rounds):
                train.fetch(rng.integers(len(train), size=size), np.full(size, epoch))
            spent = since(start)
            each = (1e6 / (rounds * size)) * np.array([spent.wall, spent.cpu])
            print(f"fetch, {size} at a time: {each[0]:.1f} us ({each[1]:.1f} us of CPU) an example")

        test = ArcEvaluation(arrays["test"])
        start = since()
        made_up = predictions(test, len(test))
        made = since(start)
        start = since()
        score = score_votes(made_up, test.tasks(), (1, 2))
        voting = since(start)
        print(f"voting over {len(test)} predictions for {len(test.names)} tasks in {voting} (goal 60 s), {peak()}")
        print(f"  beside {made} to make them up; pass@2 {score.all_test_inputs[2]:.3f}, {score.unmatched} unmatched")


if __name__ == "__main__":
    main()
