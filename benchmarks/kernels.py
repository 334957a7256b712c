"""What our own kernels gain: `python -m benchmarks.kernels [--save]`.

A whole training update of every preset and model below, with base/kernels.c and without it (`PONDER_NATIVE=0`: torch's
operations, oneDNN's products), in turns in one process of one thread, by CPU time, the least of several rounds.
"""

import argparse
import os
from pathlib import Path
from typing import Any

from benchmarks.model import PROFILED, Updates, prepare, timed
from ponder.base import files, native, runtime

RESULT = Path(__file__).resolve().parents[1] / "results" / "bench_kernels.json"
MORE: tuple[tuple[str, str | None, dict[str, Any]], ...] = (
    ("sudoku-mini", "trm-mini", {}),
    ("sudoku-mini", "urm-mini", {}),
    ("sudoku-mini", "hrm-mini", {}),
    ("sudoku-6x6-mini", "ponder", {}),
)


def compare(preset: str, model: str | None, changes: dict[str, Any], rounds: int) -> dict[str, Any]:
    ours, plain = Updates(preset, model, changes), Updates(preset, model, changes)
    best = {"ours": float("inf"), "plain": float("inf")}
    for turn in range(rounds + 2):
        with_kernels = timed(ours.update)
        with native.without():
            without = timed(plain.update)
        if turn >= 2:  # memory has settled
            best = {"ours": min(best["ours"], with_kernels), "plain": min(best["plain"], without)}
    at_peak = ours.at_peak(5)
    return {
        "preset": preset,
        "model": ours.config.model.name,
        "batch": ours.config.train.batch,
        "ms": {way: round(seconds * 1e3, 2) for way, seconds in best.items()},
        "ratio": round(best["plain"] / best["ours"], 3),
        "of_peak": {way: round(at_peak / seconds, 3) for way, seconds in best.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", default="", help="presets whose name contains this")
    parser.add_argument("--save", action="store_true", help=f"write {RESULT.name}")
    args = parser.parse_args()
    if why := native.missing():
        raise SystemExit(f"there is nothing to compare: {why}")
    prepare(1, wall=False)
    load, rows = os.getloadavg()[0], []
    for preset, model, changes in (*PROFILED, *MORE):
        if args.only in preset:
            rows.append(compare(preset, model, changes, 4 if "paper" in preset else args.rounds))
            print(rows[-1], flush=True)
    if args.save:
        files.write_json(RESULT, {"load": load, "environment": runtime.environment(), "rows": rows})


if __name__ == "__main__":
    main()
