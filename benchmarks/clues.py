"""How many clues the 9x9 model bears: `python -m benchmarks.clues [--steps 32]`.

Writes results/bench_clues.json and the table in docs/boards.md.

Its card has puzzles without a clue to spare; these are held-out ones with clues put back (sudoku-9x9-easy-mini).
"""

import argparse
import json
from pathlib import Path

import numpy as np

from ponder.base.markers import markdown, put_between
from ponder.base.stats import share
from ponder.config.resolve import resolve
from ponder.data import Dataset, build
from ponder.inference.solver import Solver

ROOT = Path(__file__).resolve().parents[1]
STORED, PAGE = ROOT / "results" / "bench_clues.json", ROOT / "docs" / "boards.md"
BEGIN, END = "<!-- clues: benchmarks/clues.py -->", "<!-- end of clues -->"
BANDS = ((20, 27), (28, 30), (31, 34), (35, 40), (41, 60), (28, 60))
"""The last one is all that a newspaper would print."""
GIVEN = 2
"""The token of the digit 1, from which on cells are given."""


def measure(model: str, steps: int, data_dir: Path) -> dict[str, object]:
    dataset = Dataset.open(build(resolve("sudoku-9x9-easy-mini").data, data_dir))
    every = np.arange(dataset.counts["test"])
    inputs = dataset.source("test").fetch(every, np.zeros_like(every)).inputs
    clues = (inputs >= GIVEN).sum(axis=1)
    solved = np.array([answer.verified for answer in Solver(model, steps=steps).solve_tokens(list(inputs))])
    bands = []
    for low, high in BANDS:
        inside = (clues >= low) & (clues <= high)
        bands.append(
            {"clues": [low, high], "n": int(inside.sum()), "solved": share(solved[inside].mean(), inside.sum())}
        )
    return {"model": model, "steps": steps, "data_hash": dataset.hash, "bands": bands}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="sudoku-9x9")
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    asked = parser.parse_args()
    found = measure(asked.model, asked.steps, asked.data_dir)
    STORED.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    rows = [
        [
            f"{low} to {high}",
            f"{band['solved']['value']:.1%}",
            f"{band['solved']['low']:.1%} to {band['solved']['high']:.1%}",
            str(band["n"]),
        ]
        for band in json.loads(STORED.read_text(encoding="utf-8"))["bands"]
        for low, high in [band["clues"]]
    ]
    table = markdown(["clues", f"solved within {asked.steps} steps", "95% interval", "n"], rows)
    put_between(PAGE, BEGIN, END, table)
    print(table)


if __name__ == "__main__":
    main()
