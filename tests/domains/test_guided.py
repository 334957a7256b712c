"""A model's logits guide the exact search of Sudoku: it stays complete, and what guidance saves is counted."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.guided import sat_effort
from ponder.base.errors import UserError
from ponder.domains.sudoku import generate
from ponder.domains.sudoku.domain import Sudoku, SudokuParams
from ponder.inference.solver import Solver
from tests.conftest import tiny
from tests.support.runs import made_run


@pytest.mark.parametrize("size", [4, 6, 9])
def test_a_guided_search_is_complete_whatever_the_guide(size: int) -> None:
    """Right, wrong and random guides, and none: always the solution. A right one never has to go back."""
    domain = Sudoku(SudokuParams(size=size, source="generate"))
    inputs, labels = domain.sample(3, 12)
    generator = np.random.default_rng(0)
    taken = {"right": 0, "wrong": 0, "none": 0}
    for puzzle, label in zip(inputs, labels, strict=True):
        right = 9 * np.eye(size + 2, dtype=np.float32)[label]
        for name, logits in (("right", right), ("wrong", -right), ("random", generator.normal(size=right.shape))):
            found = domain.guided(puzzle, logits.astype(np.float32))
            assert found.answer is not None and (found.answer == label).all()
            if name in taken:
                taken[name] += found.guesses
        alone = domain.guided(puzzle, None)
        assert alone.answer is not None and (alone.answer == label).all()
        assert alone.guesses == generate.rate(size, puzzle)
        taken["none"] += alone.guesses
        # Every guess of a right guide is the label's: the least that any order of values needs with these cells.
        assert domain.guided(puzzle, right).guesses <= size * size - int((puzzle >= 2).sum())
    assert taken["right"] < taken["none"] < taken["wrong"] or size == 4


def test_a_right_guide_never_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the boards that it looks at is a dead end; with a wrong guide some are."""
    domain = Sudoku(SudokuParams(size=9, source="generate", min_rating=3))
    inputs, labels = domain.sample(1, 5)
    real, ends = generate.propagate, [0]

    def watched(shape: Any, boards: Any) -> bool:
        good = real(shape, boards)
        ends[0] += not good
        return good

    monkeypatch.setattr(generate, "propagate", watched)
    right = 9 * np.eye(11, dtype=np.float32)[labels]
    for sign, dead in ((1, False), (-1, True)):
        ends[0] = 0
        for puzzle, logits in zip(inputs, right, strict=True):
            generate.guided(9, puzzle, sign * logits)
        assert bool(ends[0]) == dead


def test_a_puzzle_without_solution_stays_without() -> None:
    puzzle = np.full(16, 1, dtype=np.uint8)
    puzzle[[0, 1, 2, 7]] = [2, 3, 4, 5]  # the corner needs a 4, which its column has
    assert Sudoku(SudokuParams(size=4, source="generate")).guided(puzzle, np.zeros((16, 6), np.float32)).answer is None


def test_phases_of_the_solution_leave_the_solver_nothing_to_undo() -> None:
    domain = Sudoku(SudokuParams(size=9, source="generate", min_rating=3))
    inputs, labels = domain.sample(2, 8)
    told, untold = (
        [sat_effort(9, p, a if known else None)[1] for p, a in zip(inputs, labels, strict=True)]
        for known in (True, False)
    )
    assert not any(told) and any(untold)


def test_the_solver_guides_with_what_it_says_last(tmp_path: Path) -> None:
    """The answer is right although the model is random, and the note tells both counts."""
    solver = Solver(made_run(tiny(), tmp_path / "run"), steps=3, fallback="guided")
    inputs, labels = solver.domain.sample(3, 6)
    answers = solver.solve_tokens(list(inputs))
    helped = [each for each in zip(inputs, labels, answers, strict=True) if each[2].by == "exact"]
    assert helped and all(answer.verified for answer in answers)
    for puzzle, label, answer in helped:
        logits = solver.logits(puzzle, answer.steps)
        assert (logits.argmax(axis=1) == answer.trace[-1].answer).all()
        wanted = solver.domain.guided(puzzle, logits)
        assert (answer.tokens == label).all()
        assert (
            f"({wanted.guesses} guesses, {solver.domain.guided(puzzle, None).guesses} without guidance)" in answer.note
        )


def test_what_has_no_search_is_not_guided() -> None:
    with pytest.raises(UserError, match="no search to be guided"):
        Solver("life-5x5", fallback="guided")
