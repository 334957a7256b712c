"""What a model's logits save an exact Sudoku solver: `python benchmarks/guided.py [MODEL] [--count N] [--steps T]`.

For puzzles whose answer the model gets right and for those it gets wrong: guesses of the plain search (values tried at
branches), and decisions and conflicts of the SAT solver until the first solution, without and with guidance.
"""

import argparse

import numpy as np
from pysat.solvers import Solver as SatSolver

from ponder.domains.contract import Tokens
from ponder.domains.sudoku.domain import Sudoku
from ponder.domains.sudoku.generate import FIRST, rules, variable
from ponder.inference.solver import Solver


def sat_effort(size: int, inputs: Tokens, guess: Tokens | None) -> tuple[int, int]:
    """Decisions and conflicts of the SAT solver until the first solution, by itself or with a guess as its phases."""
    clues = [[variable(size, cell, int(t))] for cell, t in enumerate(inputs) if t >= FIRST]
    with SatSolver(name="cadical153", bootstrap_with=[*rules(size), *clues]) as solver:
        if guess is not None:
            true = {variable(size, cell, int(t)) for cell, t in enumerate(guess) if FIRST <= t < FIRST + size}
            solver.set_phases([v if v in true else -v for v in range(1, size**3 + 1)])
        solver.solve()
        effort = solver.accum_stats()
        return effort["decisions"], effort["conflicts"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="sudoku-6x6")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--steps", type=int, default=1, help="ACT steps that the model thinks")
    parser.add_argument("--seed", type=int, default=0)
    known = parser.parse_args()
    solver = Solver(known.model)
    domain = solver.domain
    assert isinstance(domain, Sudoku)
    rows = []
    for puzzle in domain.sample(known.seed, known.count)[0]:
        logits = solver.logits(puzzle, known.steps)
        answer = logits.argmax(axis=1).astype(np.uint8)
        found = domain.guided(puzzle, logits)
        sat = [count for guess in (None, answer) for count in sat_effort(domain.size, puzzle, guess)]
        rows.append(
            (
                bool(domain.check(puzzle[None], answer[None])[0]),
                domain.guided(puzzle, None).guesses,
                found.guesses,
                *sat,
            )
        )
    table = np.array(rows)
    print(f"{known.model}, {known.count} puzzles of seed {known.seed}, {known.steps} ACT steps; means")
    print("answer        n   guesses: plain  guided   SAT decisions, conflicts: plain        guided")
    for name, where in (("right", table[:, 0] == 1), ("wrong", table[:, 0] == 0), ("all", table[:, 0] >= 0)):
        if where.any():
            a, b, c, d, e, f = table[where, 1:].mean(axis=0)
            print(f"{name:<7} {where.sum():>7}   {a:14.2f} {b:7.2f}   {c:25.2f} {d:5.2f}   {e:5.2f} {f:5.2f}")


if __name__ == "__main__":
    main()
