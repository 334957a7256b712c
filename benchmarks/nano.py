"""nano-trm (github.com/olivkoch/nano-trm) on our 4x4 puzzles, by its own shipped recipe, for `benchmarks.peers`.

The puzzles of `sudoku-mini` are written in its format: 20,000 minimal ones to train on, 800 held-out ones to validate.
Its training then runs as its README says (`experiment=trm_sudoku_4x4`), on a CPU, in float32 and one thread, without
its online logger, until 95% of the held-out puzzles are exactly right or the time is up. As shipped it looks at
held-out puzzles for the first time after 6,250 updates, many hours of a CPU; told to `look` after so many updates, it
does that instead, at 64 of them, trains as before, and ends with that look. It runs in an environment of its own, whose
Python is given: it needs lightning, hydra and others that ponder does not.
"""

import csv
import os
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil

from ponder import data
from ponder.base import files
from ponder.config.resolve import resolve
from ponder.data import Dataset

GOAL = 0.95
SIDE, PADDED, HELD_OUT, IGNORED = 4, 6, 800, -100
FIRST_CHECK = 10
"""Epochs before it validates, as shipped."""
BATCH, FEW = 32, 2
"""Its batch, and how many of them it is shown where it is told when to look."""


@dataclass(frozen=True)
class Nano:
    cpu: float
    """CPU seconds since its first update."""
    updates: int
    exact: float | None
    """Of held-out puzzles at its last validation; None before the first."""
    n: int
    """Held-out puzzles."""
    reached: bool
    updates_to_first_check: int


def written(folder: Path, data_dir: Path) -> int:
    """Our puzzles in its format; how many there are to train on."""
    config = resolve("sudoku-mini").data
    dataset = Dataset.open(data.build(config, data_dir))
    vocab = dataset.domain.vocab
    theirs = np.array([2 + int(symbol) if symbol.isdigit() else 2 for symbol in vocab])  # 2: empty, from 3: digits
    counts = {}
    for split, source, limit in (("train", "train", None), ("val", "test", HELD_OUT)):
        arrays = dataset.arrays(source)
        inputs, labels = (
            _padded(theirs[arrays[name][:limit]], blank) for name, blank in (("inputs", 0), ("labels", IGNORED))
        )
        counts[split] = count = len(inputs)
        (folder / split).mkdir(parents=True)
        for name, array in (
            ("inputs", inputs),
            ("labels", labels),
            ("puzzle_identifiers", np.zeros(count, np.int32)),
            ("puzzle_indices", np.arange(count + 1, dtype=np.int32)),
            ("group_indices", np.arange(count + 1, dtype=np.int32)),
        ):
            np.save(folder / split / f"all__{name}.npy", array)
        about = {"num_puzzles": count, "num_groups": count, "grid_size": SIDE, "max_grid_size": PADDED}
        files.write_json(folder / split / "dataset.json", about)
    sizes = {"max_grid_size": PADDED, "vocab_size": 3 + PADDED, "seq_len": PADDED**2}
    files.write_json(folder / "metadata.json", {**sizes, "num_train": counts["train"], "num_val": counts["val"]})
    return counts["train"]


def _padded(boards: npt.NDArray[np.int64], blank: int) -> npt.NDArray[np.int32]:
    """In the corner of a larger board, with an end mark below."""
    out = np.full((len(boards), PADDED, PADDED), blank, dtype=np.int32)
    out[:, :SIDE, :SIDE] = boards.reshape(-1, SIDE, SIDE)
    out[:, SIDE, 0] = 1
    return out.reshape(len(boards), -1)


def run(checkout: Path, python: Path, seconds: float, look: int | None, data_dir: Path) -> Nano:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        puzzles = written(folder / "puzzles", data_dir)
        words = [
            "experiment=trm_sudoku_4x4",
            f"data.data_dir={folder / 'puzzles'}",
            "trainer.accelerator=cpu",
            "trainer.precision=32-true",
            "+trainer.log_every_n_steps=1",
            "+trainer.num_sanity_val_steps=0",
            "logger=csv",
            "+logger.csv.flush_logs_every_n_steps=1",
            "save_dir=null",
            f"paths.log_dir={folder / 'logs'}",
        ]
        if look is not None:
            words += ["trainer.check_val_every_n_epoch=null", f"+trainer.val_check_interval={look}"]
            words += [f"+trainer.limit_val_batches={FEW}"]
        env = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled"}
        said = folder / "said.txt"
        with said.open("w", encoding="utf-8") as out:
            process = subprocess.Popen(
                [str(python), "src/nn/train.py", *words], cwd=checkout, env=env, stdout=out, stderr=subprocess.STDOUT
            )
        try:
            first = look or FIRST_CHECK * (puzzles // BATCH)
            shown = HELD_OUT if look is None else FEW * BATCH
            goal = GOAL if look is None else 0.0
            return _watched(psutil.Process(process.pid), folder / "logs", seconds, first, shown, goal, said)
        finally:
            process.kill()
            process.wait()


def _watched(
    process: psutil.Process, logs: Path, seconds: float, first: int, shown: int, goal: float, said: Path
) -> Nano:
    began: float | None = None
    until, rows = time.monotonic() + seconds, list[dict[str, str]]()
    exact, used, updates = None, 0.0, -1
    while time.monotonic() < until and process.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.5)
        times = process.cpu_times()
        for file in logs.rglob("metrics.csv"):
            with file.open(encoding="utf-8") as lines:
                rows = list(csv.DictReader(lines))
        steps = [int(row["step"]) for row in rows if row.get("step")]
        if steps and max(steps) > updates:  # the time of a look that follows the last update is not training
            began = times.user + times.system if began is None else began
            used, updates = times.user + times.system - began, max(steps)
        found = [float(row["val/exact_accuracy"]) for row in rows if row.get("val/exact_accuracy")]
        exact = found[-1] if found else None
        if exact is not None and exact >= goal:
            break
    if not rows:
        raise SystemExit(f"nano-trm did not get to its first update:\n{said.read_text(encoding='utf-8')[-2000:]}")
    done = max(steps) - min(steps)
    return Nano(round(used, 1), done, exact, shown, exact is not None and exact >= GOAL, first)
