"""Boards that a model was not trained on: `python -m benchmarks.sizes [--examples 200] [--only MODEL]`.

Writes results/bench_sizes.json and the table in docs/boards.md. Fresh puzzles of each size: mazes with a shortest path
of at least 5/3 of a side, as in training; Life boards of any density, asked for up to 40 generations.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from ponder.base.markers import markdown, put_between
from ponder.base.stats import share
from ponder.domains.contract import Tokens
from ponder.domains.life.domain import Life
from ponder.domains.maze.domain import Maze
from ponder.inference.solver import Solver

ROOT = Path(__file__).resolve().parents[1]
STORED, PAGE = ROOT / "results" / "bench_sizes.json", ROOT / "docs" / "boards.md"
BEGIN, END = "<!-- sizes: benchmarks/sizes.py -->", "<!-- end of sizes -->"
SIDES = {
    "maze-7x7": (5, 7, 9, 11, 15, 20),
    "maze-15x15": (5, 7, 9, 11, 15, 20, 25, 30),
    "maze-30x30": (15, 20, 25, 30),
    "life-8x8": (3, 5, 8, 12, 16, 24, 32),
}
SEED = 20261117


def at(solver: Solver, side: int) -> Solver:
    domain: Maze | Life
    if isinstance(solver.domain, Maze):
        if solver.domain.height == side:
            return solver
        changes = {"height": side, "width": side, "min_path": round(5 * side / 3)}
        domain = Maze(solver.domain.params.model_copy(update=changes))
    else:
        assert isinstance(solver.domain, Life)
        if solver.domain.params.max_side == side:
            return solver
        changes = {"min_side": side, "max_side": side, "max_chars": side * (side + 1)}
        domain = Life(solver.domain.params.model_copy(update=changes))
    return solver.at(domain)


def puzzles(solver: Solver, side: int, examples: int) -> list[Tokens]:
    if isinstance(solver.domain, Maze):
        return list(solver.domain.sample(SEED, examples)[0])
    rng = np.random.default_rng(SEED)
    out = []
    for alive in rng.uniform(0.02, 0.8, examples):
        board = (rng.random((side, side)) < alive).astype(int).tolist()
        out.append(solver.read({"board": board, "steps": int(rng.integers(1, 41))}))
    return out


def measure(model: str, side: int, examples: int) -> dict[str, Any]:
    solver = at(Solver(model), side)
    answers = solver.solve_tokens(puzzles(solver, side, examples))
    solved = np.array([answer.verified for answer in answers])
    steps = [answer.steps for answer in answers if answer.verified]
    return {
        "model": model,
        "side": side,
        "trained": not solver.note,
        "within": solver.steps,
        "n": examples,
        "solved": share(float(solved.mean()), examples),
        "median_steps": float(np.median(steps)) if steps else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=200)
    parser.add_argument("--only", choices=SIDES, help="measure this model, and keep what is stored of the others")
    asked = parser.parse_args()
    kept = json.loads(STORED.read_text(encoding="utf-8")) if asked.only else []
    found = [
        each
        for model, sides in SIDES.items()
        for each in (
            [measure(model, side, asked.examples) for side in sides]
            if asked.only in (None, model)
            else [each for each in kept if each["model"] == model]
        )
    ]
    STORED.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    rows = [
        [
            f"`{each['model']}`",
            f"{each['side']}x{each['side']}" + (" (trained on)" if each["trained"] else ""),
            f"{each['solved']['value']:.1%}",
            f"{each['solved']['low']:.1%} to {each['solved']['high']:.1%}",
            "–" if each["median_steps"] is None else f"{each['median_steps']:g} of {each['within']}",
            str(each["n"]),
        ]
        for each in json.loads(STORED.read_text(encoding="utf-8"))
    ]
    table = markdown(["model", "boards", "solved", "95% interval", "ACT steps, median", "n"], rows)
    put_between(PAGE, BEGIN, END, table)
    print(table)


if __name__ == "__main__":
    main()
