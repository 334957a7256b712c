"""The plain command from start to end: `python -m benchmarks.whole [PRESET ...] [--save]`.

`ponder train PRESET`, nothing added, as a user types it, with its data already built: wall seconds of the command and
of the training in it (to the last update; the last evaluation and the figure come after it), seconds until the first
evaluation with 95% of `val` right, and the share of the machine's matrix-product rate over the whole training:
useful FLOPs of updates, and of evaluations too, over its seconds, checkpoints and all. One row is at width 512, for 60
updates: how fast it goes, not what it learns.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.model import Peak, Shape, prepare
from ponder import data
from ponder.base import cores, files, runtime
from ponder.config.resolve import Config, parse_overrides, resolve
from ponder.data import Dataset
from ponder.evaluation.records import chosen_examples
from ponder.model import cost
from ponder.model.reasoner import Asked
from ponder.training.log import read_log
from ponder.training.slots import slot_count

RESULT = Path(__file__).resolve().parents[1] / "results" / "bench_whole.json"
PRESETS = ("sudoku-mini", "sudoku-6x6-mini", "life-mini", "maze-mini")
RIGHT = 0.95
WIDE = ("sudoku-mini", "--model.width", "512", "--train.updates", "60", "--train.warmup", "3")
"""What is trained beside the presets, as it is typed."""


def measure(typed: Sequence[str], data_dir: Path, folder: Path) -> dict[str, Any]:
    preset, *overrides = typed
    config = resolve(preset, None, parse_overrides(overrides))
    dataset = Dataset.open(data.build(config.data, data_dir))
    words = [sys.executable, "-m", "ponder", "train", *typed, "--data-dir", str(data_dir), "--out", str(folder)]
    began = time.perf_counter()
    said = subprocess.run([*words, "--fresh"], check=True, capture_output=True, encoding="utf-8").stdout
    took = time.perf_counter() - began
    rows = read_log(folder / "metrics.jsonl")
    seconds = rows[-1]["seconds"]
    looks = [row for row in rows if row["kind"] == "eval"]
    done, looked = work(config, dataset, rows, looks)
    peak = peak_rate(config)
    return {
        "preset": preset if not overrides else f"{preset} at width {config.model.width}",
        "model": config.model.name,
        "on": said.splitlines()[0].partition(" (")[0].removeprefix("on "),
        "command": round(took, 2),
        "training": round(seconds, 2),
        "updates": round(rows[-1]["update_seconds"], 2),
        "right_after": next((round(row["seconds"], 2) for row in looks if row["ema"]["val"]["valid"] >= RIGHT), None),
        "at_the_end": looks[-1]["ema"]["val"]["valid"],
        "n": looks[-1]["n"]["val"],
        "of_peak": round(done / seconds / peak, 3),
        "with_evaluations": round((done + looked) / seconds / peak, 3),
    }


def work(
    config: Config, dataset: Dataset, rows: list[dict[str, Any]], looks: list[dict[str, Any]]
) -> tuple[float, float]:
    """Useful FLOPs of all updates, and of the evaluations between them."""
    domain = dataset.domain
    each = cost.flops(config.model, len(domain.vocab), domain.seq_len, domain.geometry)
    steps = sum(looked_at(config, dataset, split) for split in looks[0]["n"]) * (len(looks) - 1)
    return each.training * config.train.batch * rows[-1]["update"], each.inference * steps


def looked_at(config: Config, dataset: Dataset, split: str) -> int:
    """The ACT steps of a split's evaluation: the whole budget, or those that its puzzles ask for."""
    index = chosen_examples(dataset.counts[split], config.eval.examples)
    if config.model.halting != "asked":
        return config.model.max_steps * len(index)
    inputs = dataset.source(split).fetch(index, np.zeros_like(index)).inputs
    asked = Asked(dataset.domain.geometry)(torch.from_numpy(inputs).to(torch.int64))
    return int(asked.clamp(1, config.model.max_steps).sum())


def peak_rate(config: Config) -> float:
    """FLOP/s of the model's products on all cores: as many times what one thread has."""
    prepare(1, wall=False)
    domain = config.data.make()
    peak = Peak(Shape("", config.model, domain.seq_len, len(domain.vocab), slot_count(config), 5))
    for _ in range(10):
        peak.measure()
    return cores.usable() * peak.rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("presets", nargs="*", help=f"default: {', '.join(PRESETS)}, and one at width 512")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--runs", type=Path, help="keep the run folders here (benchmarks/mini.py stores their curves)")
    parser.add_argument("--save", action="store_true", help=f"write {RESULT.name}")
    args = parser.parse_args()
    load, rows = os.getloadavg()[0], []
    with tempfile.TemporaryDirectory(prefix="ponder-whole-") as scratch:
        cases: list[Sequence[str]] = [(preset,) for preset in args.presets or PRESETS]
        cases += [] if args.presets else [WIDE]
        for typed in cases:
            folder = (args.runs or Path(scratch)) / "-".join(typed[:3]).replace("--", "")
            rows.append(measure(typed, args.data_dir, folder))
            print(rows[-1], flush=True)
    if args.save:
        files.write_json(RESULT, {"load": load, "environment": runtime.environment(), "rows": rows})


if __name__ == "__main__":
    main()
