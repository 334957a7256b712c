"""Sudoku: the generator against brute force, ratings against a slow search."""

from collections import Counter

import numpy as np
import pytest
from pysat.solvers import Solver

from ponder.base.errors import UserError
from ponder.domains.contract import Arrays, Tokens, rng_for
from ponder.domains.sudoku.generate import Reducer, generate_chunk, minimal_4x4, rate, solved_board
from tests.support.sudoku import BOX, count_solutions, digits, made, needless_clues, peers, plainly_right


@pytest.mark.parametrize(("size", "count"), [(4, 40), (6, 12), (9, 1)])
def test_generated_puzzles_have_one_solution_and_no_needless_clue(size: int, count: int) -> None:
    inputs, labels = made(size).sample(seed=3, count=count)
    for puzzle, answer in zip(inputs, labels, strict=True):
        assert count_solutions(size, digits(puzzle)) == 1
        assert plainly_right(size, puzzle, answer)
        assert needless_clues(size, puzzle) == []


def test_another_sat_solver_proves_9x9_puzzles_unique_and_minimal() -> None:
    """A leaner encoding than the generator's (cells differ from their peers) in a solver of another family."""
    var = np.arange(1, 730).reshape(81, 9).tolist()
    differ = [[-var[a][d], -var[b][d]] for a in range(81) for b in peers(9)[a] if a < b for d in range(9)]
    solver = Solver(name="minisat22", bootstrap_with=[*var, *differ])
    inputs, labels = made(9).sample(seed=11, count=50)
    for guard, (puzzle, answer) in enumerate(zip(inputs, labels, strict=True), start=1000):
        solver.add_clause([-guard] + [-var[cell][digit - 1] for cell, digit in enumerate(digits(answer))])
        clues = [var[cell][digit - 1] for cell, digit in enumerate(digits(puzzle)) if digit]
        assert solver.solve(assumptions=clues)
        assert not solver.solve(assumptions=[guard, *clues])
        for clue in clues:
            assert solver.solve(assumptions=[guard, *(other for other in clues if other != clue)])
    solver.delete()


@pytest.mark.parametrize("size", [4, 6])
def test_taking_clues_away_is_plain_greedy_removal_whatever_the_solver_does(size: int) -> None:
    rng, reducer = rng_for(1, size), Reducer(size)
    for _ in range(4):
        answer, order = solved_board(size, rng), rng.permutation(size**2)
        grid = digits(answer)
        for cell in order:
            kept, grid[cell] = grid[cell], 0
            if count_solutions(size, grid) > 1:
                grid[cell] = kept
        assert digits(reducer.minimal(answer, order)) == grid


@pytest.mark.parametrize(("size", "low", "high"), [(6, 9.3, 10.7), (9, 23.5, 25.2)])
def test_puzzles_are_as_sparse_as_greedy_removal_makes_them(size: int, low: float, high: float) -> None:
    inputs, _ = made(size).sample(seed=0, count=50)
    assert low < (inputs > 1).sum(axis=1).mean() < high


def test_all_minimal_4x4_puzzles_are_there() -> None:
    inputs, labels = minimal_4x4()
    assert len({puzzle.tobytes() for puzzle in inputs}) == len(inputs) == 85_632
    assert Counter((inputs > 1).sum(axis=1).tolist()) == {4: 25_728, 5: 58_368, 6: 1_536}
    assert len({answer.tobytes() for answer in labels}) == 288
    assert made(4).check(inputs, labels).all()


def test_clues_put_back_keep_the_solution_and_make_some_needless() -> None:
    for size in (4, 6):
        inputs, _ = made(size, minimal=False).sample(seed=0, count=6)
        assert all(count_solutions(size, digits(puzzle)) == 1 for puzzle in inputs)
        assert all(needless_clues(size, puzzle) for puzzle in inputs)


def test_a_share_of_the_training_puzzles_is_eased_and_nothing_else_changes() -> None:
    plain, eased = (made(4, train=400, val=20, test=20, eased=share).build(seed=3) for share in (0.0, 0.5))
    for split in ("val", "test"):
        assert all(np.array_equal(plain[split][name], eased[split][name]) for name in plain[split])
    before, after = plain["train"]["inputs"], eased["train"]["inputs"]
    assert np.array_equal(plain["train"]["labels"], eased["train"]["labels"])
    assert ((before == after) | (before == 1)).all(), "no clue goes"
    more = (after > 1).sum(axis=1) - (before > 1).sum(axis=1)
    assert 150 < (more > 0).sum() < 250
    assert set(range(1, 10)) <= set(more.tolist()), "any number of them comes back"
    assert (after == 1).any(axis=1).all(), "none is given away whole"
    assert made(4).check(after, eased["train"]["labels"]).all()
    ratings = [rate(4, puzzle) for puzzle in after]
    assert eased["train"]["rating"].tolist() == ratings


def test_solved_boards_are_spread() -> None:
    rng = rng_for(0)
    boards = np.stack([solved_board(9, rng) for _ in range(60)])
    renamed = {tuple(np.argsort(board[:9])[board - 2]) for board in boards}
    assert len(renamed) == 60
    assert made(9).check(np.ones_like(boards), boards).all()
    seen = {solved_board(4, rng).tobytes() for _ in range(4000)}
    assert len(seen) == 288


@pytest.mark.parametrize(("size", "counts"), [(4, (900, 200, 300)), (6, (150, 50, 150)), (9, (40, 10, 20))])
def test_the_number_of_workers_changes_nothing_and_no_puzzle_comes_twice(
    size: int, counts: tuple[int, int, int]
) -> None:
    train, val, test = counts
    domain = made(size, train=train, val=val, test=test)
    one, two = domain.build(seed=7), domain.build(seed=7, workers=2)
    assert {split: len(arrays["inputs"]) for split, arrays in one.items()} == {"train": train, "val": val, "test": test}
    for split, arrays in one.items():
        assert list(arrays) == ["inputs", "labels", "rating"]
        for name, array in arrays.items():
            assert array.tobytes() == two[split][name].tobytes()
            assert array.dtype == two[split][name].dtype == (np.int16 if name == "rating" else np.uint8)
        assert domain.check(arrays["inputs"], arrays["labels"]).all()
    puzzles = [puzzle.tobytes() for arrays in one.values() for puzzle in arrays["inputs"]]
    assert len(set(puzzles)) == len(puzzles)


def test_more_training_leaves_val_and_test_as_they_are() -> None:
    small, large = made(6, train=30).build(seed=0), made(6, train=200).build(seed=0)
    for split in ("val", "test"):
        assert (small[split]["inputs"] == large[split]["inputs"]).all()
    assert (small["train"]["inputs"] == large["train"]["inputs"][:30]).all()
    assert (small["train"]["inputs"] != made(6, train=30).build(seed=1)["train"]["inputs"]).any()


def test_asking_for_more_than_there_are_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    last, beyond = generate_chunk(4, True, 0, 0, 171, 500), generate_chunk(4, True, 0, 0, 172, 500)
    assert (len(last["inputs"]), len(beyond["inputs"])) == (132, 0)

    def thrice_the_same(size: int, minimal: bool, seed: int, use: int, chunk: int, count: int) -> Arrays:
        return last if chunk < 3 else beyond

    monkeypatch.setattr("ponder.domains.sudoku.domain.generate_chunk", thrice_the_same)
    with pytest.raises(UserError, match=r"^600 different 4x4 .* 396 were made and only 132 fit; ask for fewer"):
        made(4, train=500, val=50, test=50).build(seed=0)


def slow_guesses(size: int, puzzle: Tokens) -> int:
    """The rating's definition with sets of candidates: naked and hidden singles, then fewest candidates, ascending."""
    near, h, w = peers(size), *BOX[size]
    units = [{cell for cell in range(size**2) if cell // size == i} for i in range(size)]
    units += [{cell for cell in range(size**2) if cell % size == i} for i in range(size)]
    boxes = {(r // h, c // w) for r in range(size) for c in range(size)}
    units += [{r * size + c for r in range(size) for c in range(size) if (r // h, c // w) == box} for box in boxes]
    guesses = 0

    def settle(options: list[set[int]]) -> bool:
        while True:
            before = [set(option) for option in options]
            for cell, option in enumerate(options):
                if len(option) == 1:
                    for p in near[cell]:
                        options[p] -= option
            for unit in units:
                for value in range(1, size + 1):
                    places = [cell for cell in unit if value in options[cell]]
                    if not places:
                        return False
                    if len(places) == 1:
                        options[places[0]] = {value}
            if not all(options):
                return False
            if options == before:
                return True

    def solve(options: list[set[int]]) -> bool:
        nonlocal guesses
        if not settle(options):
            return False
        open_cells = [cell for cell, option in enumerate(options) if len(option) > 1]
        if not open_cells:
            return True
        cell = min(open_cells, key=lambda c: (len(options[c]), c))
        for value in sorted(options[cell]):
            guesses += 1
            trial = [set(option) for option in options]
            trial[cell] = {value}
            if solve(trial):
                return True
        return False

    assert solve([{digit} if digit else set(range(1, size + 1)) for digit in digits(puzzle)])
    return guesses


@pytest.mark.parametrize(("size", "count"), [(4, 20), (6, 150), (9, 25)])
def test_rating_agrees_with_a_slow_search(size: int, count: int) -> None:
    inputs, _ = made(size).sample(seed=5, count=count)
    ratings = [rate(size, puzzle) for puzzle in inputs]
    assert ratings == [slow_guesses(size, puzzle) for puzzle in inputs]
    assert size == 4 or max(ratings) > 0


def test_min_rating_keeps_the_puzzles_rated_high_enough() -> None:
    hard, every = made(6, min_rating=1, train=2, val=1, test=2).build(seed=2), made(6, train=270).build(seed=2)
    ratings = np.concatenate([hard[split]["rating"] for split in ("test", "val", "train")])
    assert ratings.min() >= 1
    stream = {split: np.concatenate([every[s][split] for s in ("test", "val", "train")]) for split in every["train"]}
    expected = stream["inputs"][stream["rating"] >= 1]
    got = np.concatenate([hard[split]["inputs"] for split in ("test", "val", "train")])
    assert len(expected) >= len(got)
    assert (got == expected[: len(got)]).all()
    with pytest.raises(UserError, match="rated 9 or more were asked for"):
        made(4, min_rating=9).build(seed=0)
