"""From the command to the answer: `python -m benchmarks.start [--rounds 5] [--save]`, a minute.

`ponder solve MODEL PUZZLE` in a process of its own for every zoo model, without torch (as it runs) and with it (as a
file of puzzles runs), and torch's own import beside them. The least of the rounds counts, of the wall and of the CPU.

Goal: 1.5 seconds.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ponder.base import files, runtime
from ponder.inference.solver import Solver
from ponder.inference.weights import zoo_names

RESULT = Path(__file__).resolve().parents[1] / "results" / "bench_start.json"
GOAL = 1.5


def timed(words: list[str], rounds: int) -> dict[str, float]:
    best = {"seconds": float("inf"), "cpu": float("inf")}
    for _ in range(rounds):
        began, before = time.perf_counter(), os.times()
        subprocess.run([sys.executable, *words], check=False, stdout=subprocess.DEVNULL)
        after = os.times()
        spent = after.children_user + after.children_system - before.children_user - before.children_system
        best = {"seconds": min(best["seconds"], time.perf_counter() - began), "cpu": min(best["cpu"], spent)}
    return {name: round(value, 3) for name, value in best.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--save", action="store_true", help=f"write {RESULT.name}")
    args = parser.parse_args()
    load, rows = os.getloadavg()[0], list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as folder:
        for name in zoo_names():
            domain = Solver(name).domain
            puzzle = domain.format(domain.sample(0, 1)[0][0])
            file = Path(folder) / f"{name}.txt"
            file.write_text(puzzle + "\n", encoding="utf-8")
            solve = ["-m", "ponder", "solve", name]
            one = timed([*solve, "--", puzzle], args.rounds)
            rows.append({"model": name, "one": one, "file": timed([*solve, "--file", str(file)], args.rounds)})
            print(f"{name:<16} one puzzle {one}, a file of one {rows[-1]['file']}", flush=True)
    torch = timed(["-c", "import torch"], args.rounds)
    print(f"{'import torch':<16} {torch}")
    if args.save:
        about = {"goal": GOAL, "load": load, "rounds": args.rounds, "environment": runtime.environment()}
        files.write_json(RESULT, {**about, "torch": torch, "rows": rows})


if __name__ == "__main__":
    main()
