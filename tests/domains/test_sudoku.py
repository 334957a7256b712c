"""Sudoku: the generator against brute force, ratings against a slow search, the CSV reader, text and JSON."""

import socket
import threading
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from pysat.solvers import Solver

from ponder.base import hub
from ponder.base.errors import UserError
from ponder.domains import hub as csvs
from ponder.domains.contract import Arrays, Tokens, rng_for
from ponder.domains.sudoku.domain import REVISION, Sudoku, SudokuParams
from ponder.domains.sudoku.generate import Reducer, generate_chunk, minimal_4x4, rate, solved_board

SIZES = (4, 6, 9)
BOX = {4: (2, 2), 6: (2, 3), 9: (3, 3)}


def made(size: int, **changes: Any) -> Sudoku:
    params: dict[str, Any] = {"size": size, "source": "generate", "train": 60, "val": 10, "test": 20}
    return Sudoku(SudokuParams(**params | changes))


@lru_cache
def peers(size: int) -> list[set[int]]:
    """For each cell the others in its row, column and box; written apart from the code under test."""
    h, w = BOX[size]
    cells = [(r, c) for r in range(size) for c in range(size)]
    return [
        {
            r * size + c
            for r, c in cells
            if (r, c) != (a, b) and (r == a or c == b or (r // h == a // h and c // w == b // w))
        }
        for a, b in cells
    ]


def count_solutions(size: int, grid: list[int], limit: int = 2) -> int:
    """Brute force; 0 is an empty cell."""
    near = peers(size)

    def go(left: list[int]) -> int:
        if not left:
            return 1
        options = [(set(range(1, size + 1)) - {grid[p] for p in near[cell]}, cell) for cell in left]
        values, cell = min(options, key=lambda option: len(option[0]))
        total = 0
        for value in values:
            grid[cell] = value
            total += go([other for other in left if other != cell])
            grid[cell] = 0
            if total >= limit:
                break
        return total

    return go([cell for cell, digit in enumerate(grid) if digit == 0])


def digits(tokens: Tokens) -> list[int]:
    return [int(token) - 1 for token in tokens]


def needless_clues(size: int, puzzle: Tokens) -> list[int]:
    grid, found = digits(puzzle), []
    for cell in np.flatnonzero(puzzle > 1):
        kept, grid[cell] = grid[cell], 0
        if count_solutions(size, grid) == 1:
            found.append(int(cell))
        grid[cell] = kept
    return found


def plainly_right(size: int, puzzle: Tokens, answer: Tokens) -> bool:
    near, grid = peers(size), digits(answer)
    return (
        all(1 <= digit <= size for digit in grid)
        and all(grid[p] != grid[cell] for cell in range(size**2) for p in near[cell])
        and all(clue in (0, digit) for clue, digit in zip(digits(puzzle), grid, strict=True))
    )


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


# Rating -----------------------------------------------------------------------------------------------------------


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


# Text, JSON and judging -------------------------------------------------------------------------------------------


def boards(size: int) -> st.SearchStrategy[Tokens]:
    return st.lists(st.integers(1, size + 1), min_size=size**2, max_size=size**2).map(
        lambda tokens: np.array(tokens, dtype=np.uint8)
    )


sized_boards = st.sampled_from(SIZES).flatmap(lambda size: st.tuples(st.just(size), boards(size)))


@given(sized_boards, st.sampled_from(["", "\n", " ", "/", " / "]), st.sampled_from(".0_"))
def test_text_and_json_round_trips(board: tuple[int, Tokens], between: str, blank: str) -> None:
    size, puzzle = board
    domain = made(size)
    text = domain.format(puzzle)
    assert "\n" not in text
    rows = [text[i : i + size].replace(".", blank) for i in range(0, size**2, size)]
    assert (domain.parse(between.join(rows)) == puzzle).all()
    data = domain.to_json(puzzle)
    assert [digit for row in data["grid"] for digit in row] == digits(puzzle)
    for same in (data, data["grid"], text, {"grid": text}, [list(row) for row in rows]):
        assert (domain.from_json(same) == puzzle).all()
    assert (domain.parse_answer(puzzle, domain.format_answer(puzzle, puzzle)) == puzzle).all()


@given(st.data())
@settings(max_examples=60)
def test_check_and_explain_agree_with_the_plain_rules(data: st.DataObject) -> None:
    size = data.draw(st.sampled_from(SIZES))
    domain = made(size)
    rng = rng_for(data.draw(st.integers(0, 99)))
    answer = solved_board(size, rng)
    puzzle = np.where(rng.random(size**2) < 0.4, answer, np.uint8(1)).astype(np.uint8)
    edits = data.draw(st.lists(st.tuples(st.integers(0, size**2 - 1), st.integers(0, size + 3)), max_size=3))
    for cell, token in edits:
        answer[cell] = token
    if data.draw(st.booleans()):
        a, b = data.draw(st.permutations(range(2, size + 2)))[:2]
        answer = np.where(answer == a, b, np.where(answer == b, a, answer)).astype(np.uint8)
    right = plainly_right(size, puzzle, answer)
    assert domain.check(puzzle[None], answer[None]).tolist() == [right]
    assert (domain.explain(puzzle, answer) == "") == right


@pytest.mark.parametrize("size", SIZES)
def test_each_kind_of_unit_counts(size: int) -> None:
    """Boards on which only rows, only columns or only boxes break the rule, and one that keeps it."""
    h, w = BOX[size]
    row, column = np.arange(size)[:, None], np.arange(size)
    keep = 2 + (row % h * w + row // h + column) % size
    rows_break, columns_break, boxes_break = keep.copy(), keep.copy(), 2 + (row + column) % size
    rows_break[[0, 1], 0] = keep[[1, 0], 0]
    columns_break[0, [0, 1]] = keep[0, [1, 0]]
    answers = np.stack([rows_break, columns_break, boxes_break, keep]).reshape(4, -1).astype(np.uint8)
    domain, empty = made(size), np.ones_like(answers)
    assert domain.check(empty, answers).tolist() == [False, False, False, True]
    for answer, place in zip(answers, ("row 1 ", "column 1 ", f"the box of rows 1-{h}", ""), strict=True):
        assert domain.explain(empty[0], answer).startswith(place)


def test_explanations_name_the_place() -> None:
    domain = made(4)
    puzzle = domain.parse("1... .... .... ...2")
    assert domain.explain(puzzle, domain.parse("1234 3412 2143 4321")) == "row 4, column 4: the given 2 became 1"
    assert domain.explain(puzzle, domain.parse("1234 3.12 2143 4322")) == "row 2, column 2 is empty"
    assert domain.explain(puzzle, domain.parse("1233 3412 2143 4322")) == "row 1 holds 3 twice"
    assert domain.explain(puzzle, domain.parse("1234 1234 1234 4132")) == "column 1 holds 1 3 times"
    latin = domain.parse("1234 2143 3412 4321")
    assert domain.explain(np.ones(16, dtype=np.uint8), latin) == "the box of rows 1-2, columns 1-2 holds 1 twice"
    for wild in (np.full(16, 0, dtype=np.uint8), np.full(16, 250, dtype=np.uint8)):
        assert domain.format_answer(puzzle, wild) == "?" * 16
        assert domain.answer_to_json(puzzle, wild) == {"grid": [[0] * 4] * 4}
        assert not domain.check(puzzle[None], wild[None])[0]
    assert made(6).conflicts(made(6).parse("......" * 2 + ".....1....1." + "......" * 2)) == (
        "the box of rows 3-4, columns 4-6 holds 1 twice"
    )


def test_a_contradictory_puzzle_is_read_and_its_conflict_named() -> None:
    domain = made(9)
    puzzle = domain.parse("." * 18 + "5......5." + "." * 54)
    assert domain.conflicts(puzzle) == "row 3 holds 5 twice"
    assert domain.solutions(puzzle) == []
    assert domain.conflicts(domain.parse(Sudoku.example)) == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("." * 80, r"^the 9x9 sudoku has 80 cells, expected 81"),
        ("." * 40 + "x" + "." * 40, r"^the 9x9 sudoku has 'x' in row 5, column 5; allowed: "),
        ("", r"0 cells, expected 81"),
    ],
)
def test_bad_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        made(9).parse(text)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([[1, 2], [3, 4]], "has 2 rows, expected 4 rows of 4"),
        ([[1, 2, 3, 4]] * 3 + [[1]], "different lengths"),
        ([[0] * 4] * 3 + [[0, 5, 0, 0]], "'5' in row 4, column 2"),
        ([[0] * 4] * 3 + [[0, True, 0, 0]], "'True' in row 4, column 2"),
        ([[0] * 4] * 3 + [[0, 1.5, 0, 0]], "'1.5' in row 4, column 2"),
        ({"board": []}, r"got keys \['board'\]"),
        (7, "should be a list of rows"),
        (None, "should be a list of rows"),
    ],
)
def test_bad_json_is_refused(value: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        made(4).from_json(value)


def test_solutions_finds_as_many_as_asked_for() -> None:
    domain = made(4)
    empty = np.ones(16, dtype=np.uint8)
    found = domain.solutions(empty, limit=300)
    assert len({answer.tobytes() for answer in found}) == len(found) == 288
    assert domain.check(np.tile(empty, (288, 1)), np.stack(found)).all()
    assert len(domain.solutions(empty)) == 2
    nine = made(9)
    (answer,) = nine.solutions(nine.parse(Sudoku.example))
    assert plainly_right(9, nine.parse(Sudoku.example), answer)


@pytest.mark.parametrize("size", SIZES)
def test_pictures_show_clues_and_what_was_filled_in(size: int) -> None:
    domain = made(size)
    (puzzle,), (answer,) = domain.sample(seed=0, count=1)
    shown = domain.render(puzzle, answer)
    assert [int(char) for char in shown.plain if char.isdigit()] == digits(answer)
    clues = "".join(shown.plain[span.start : span.end] for span in shown.spans if span.style == "bold")
    assert clues == domain.format(puzzle).replace(".", "")
    assert [char for char in domain.render(puzzle).plain if char in "." + "123456789"] == list(domain.format(puzzle))
    changed = np.zeros(size**2, dtype=bool)
    changed[1] = True
    svg = domain.svg(puzzle, answer, changed)
    cells = [element.text for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("text")]
    assert cells == [str(digit) for digit in digits(answer)]
    assert svg.count("#ffe08a") == 1


def test_impossible_parameters_are_refused() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"size": 4, "source": "hub"}, "9x9 puzzles only"),
        ({"source": "csv"}, "needs folder"),
        ({"source": "generate", "subsample": 5}, "set train"),
        ({"size": 5}, "4, 6 or 9"),
        ({"folders": "x"}, "Extra inputs"),
        ({"val": 0}, "greater than or equal to 1"),
    ]
    for changes, message in cases:
        with pytest.raises(ValidationError, match=message):
            SudokuParams(**changes)


# CSV files --------------------------------------------------------------------------------------------------------


def write_csv(path: Path, arrays: Arrays, ratings: list[int], end: str = "\n") -> list[str]:
    domain = made(int(arrays["inputs"].shape[1] ** 0.5))
    lines = ["source,question,answer,rating"]
    for i, (puzzle, answer) in enumerate(zip(arrays["inputs"], arrays["labels"], strict=True)):
        question = domain.format(puzzle).replace(".", ".0"[i % 2])
        lines.append(f"puzzles{i},{question},{domain.format(answer)},{ratings[i]}")
    path.write_bytes((end.join(lines) + end).encode())
    return lines


Folder = Callable[..., Sudoku]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A folder of 60 training and 20 test puzzles rated 0, 1, 2, ..., and the domain that reads it."""
    arrays = made(4).build(seed=0)
    for name in ("train", "test"):
        write_csv(tmp_path / f"{name}.csv", arrays[name], list(range(len(arrays[name]["inputs"]))), "\r\n")

    def reader(**changes: Any) -> Sudoku:
        params: dict[str, Any] = {"size": 4, "source": "csv", "folder": str(tmp_path), "val": 7}
        return Sudoku(SudokuParams(**params | changes))

    return reader


@pytest.mark.parametrize("piece", [100, 1 << 24])
def test_csv_round_trip(folder: Folder, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csvs, "CHUNK_BYTES", piece)
    source, read = made(4).build(seed=0), folder().build(seed=0)
    for name, array in source["test"].items():
        expected = np.arange(20) if name == "rating" else array
        assert read["test"][name].dtype == array.dtype
        assert (read["test"][name] == expected).all()
    assert {split: len(arrays["inputs"]) for split, arrays in read.items()} == {"train": 53, "val": 7, "test": 20}
    order = np.concatenate([read["train"]["rating"], read["val"]["rating"]]).astype(int)
    assert sorted(order) == list(range(60))
    for name in ("inputs", "labels"):
        got = np.concatenate([read["train"][name], read["val"][name]])
        assert (got == source["train"][name][order]).all()


def test_subsample_and_val_are_drawn_by_the_seed(folder: Folder) -> None:
    drawn = [folder(subsample=10).build(seed=seed) for seed in (0, 0, 1)]
    rows = [(tuple(d["train"]["rating"].tolist()), tuple(d["val"]["rating"].tolist())) for d in drawn]
    assert rows[0] == rows[1]
    assert rows[0][0] != rows[2][0]
    assert rows[0][1] != rows[2][1]
    assert len(rows[0][0]) == 10
    assert set(rows[0][0]).isdisjoint(rows[0][1])
    full = folder().build(seed=0)
    assert (full["val"]["inputs"] == drawn[0]["val"]["inputs"]).all()
    with pytest.raises(UserError, match="subsample 54 is more than the 53"):
        folder(subsample=54).build(seed=0)
    with pytest.raises(UserError, match=r"60 puzzles .* too few to carve 60"):
        folder(val=60).build(seed=0)


def test_csv_ratings_filter(folder: Folder) -> None:
    built = folder(min_rating=12).build(seed=0)
    assert {split: int(arrays["rating"].min()) for split, arrays in built.items()}["test"] == 12
    assert len(built["test"]["rating"]) == 8
    assert len(built["train"]["rating"]) + len(built["val"]["rating"]) == 48
    with pytest.raises(UserError, match="has no puzzle with rating 20 or more"):
        folder(min_rating=20).build(seed=0)


def test_a_training_puzzle_that_is_tested_on_is_left_out(folder: Folder, tmp_path: Path) -> None:
    train, test = tmp_path / "train.csv", tmp_path / "test.csv"
    leak = test.read_text(encoding="utf-8").splitlines()[3]
    twice = train.read_text(encoding="utf-8").splitlines()[5]
    with train.open("a", encoding="utf-8") as file:
        file.write(f"{leak}\n{twice}\n")
    built = folder().build(seed=0)
    puzzles = [puzzle.tobytes() for arrays in built.values() for puzzle in arrays["inputs"]]
    assert len(set(puzzles)) == len(puzzles) == 80


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda t: t[: t.rindex(",") - 3], r"train.csv, line 61: 3 columns, expected 4 .*cut short"),
        (lambda t: t[: t.rindex(",") - 20], r"train.csv, line 61: 2 columns, expected 4"),
        (lambda t: t[: t.rindex(",") + 1], r"train.csv, line 61: rating is '', expected a whole number"),
        (lambda t: t.replace("puzzles9,", "puzzles9,x", 1), r"line 11: question has 17 characters, expected 16"),
        (lambda t: t.replace("puzzles9,", "puzzles9,,", 1), r"line 11: 5 columns, expected 4"),
        (lambda t: t.replace(",9\r\n", ",nine\r\n"), r"line 11: rating is 'nine', expected a whole number"),
        (lambda t: t.replace(",9\r\n", ",-9\r\n"), r"line 11: rating is '-9'"),
        (lambda t: t.replace("question", "puzzle"), r"line 1: columns are 'source,puzzle,answer,rating', expected"),
        (lambda t: "", r"line 1: columns are ''"),
        (lambda t: t.replace("\r\n", "\r\n\r\n", 5), r"line 2: 1 columns, expected 4"),
        (lambda t: t.replace("puzzles9", '"puzzles9'), r"line 11: unexpected end of data"),
    ],
)
@pytest.mark.parametrize("piece", [150, 1 << 24])
def test_a_damaged_csv_gives_file_line_and_reason(
    folder: Folder,
    tmp_path: Path,
    damage: Callable[[str], str],
    message: str,
    piece: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(csvs, "CHUNK_BYTES", piece)
    path = tmp_path / "train.csv"
    path.write_bytes(damage(path.read_bytes().decode()).encode())
    with pytest.raises(UserError, match=message) as caught:
        folder().build(seed=0)
    assert "\n" not in str(caught.value)


def test_a_garbled_row_gives_line_and_place(folder: Folder, tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    lines = path.read_text(encoding="utf-8").splitlines()
    source, question, answer, rating = lines[30].split(",")
    for fields, message in [
        ((source, "q" + question[1:], answer, rating), "line 31: question has 'q' at character 1, allowed: '.12340_'"),
        ((source, question, answer[:2] + "." + answer[3:], rating), "line 31: answer has '.' at character 3"),
        ((source, question, answer[::-1], rating), "line 31: the answer does not solve the question: row"),
    ]:
        path.write_text("\n".join([*lines[:30], ",".join(fields), *lines[31:]]), encoding="utf-8")
        with pytest.raises(UserError) as caught:
            folder().build(seed=0)
        assert message in str(caught.value)


def test_quotes_a_missing_last_newline_and_a_byte_order_mark_are_fine(folder: Folder, tmp_path: Path) -> None:
    expected = folder().build(seed=0)
    path = tmp_path / "train.csv"
    quoted = [
        "{}".format(",".join(f'"{field}"' for field in line.split(",")))
        for line in path.read_text(encoding="utf-8").split()
    ]
    path.write_text("\ufeff" + "\n".join(quoted), encoding="utf-8")
    built = folder().build(seed=0)
    assert all((built["train"][name] == array).all() for name, array in expected["train"].items())


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"test.csv does not exist"):
        Sudoku(SudokuParams(source="csv", folder=str(tmp_path))).build(seed=0)


# The Hub ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "cache"


@pytest.mark.parametrize("waits", [False, True], ids=["refused", "no-answer"])
def test_offline_the_hub_is_tried_once_and_not_waited_for(
    empty_cache: Path, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Any] = []
    began, over = threading.Event(), threading.Event()

    def connect(address: Any, *args: Any, **kwargs: Any) -> socket.socket:
        tried.append(address)
        began.set()
        if waits:  # as looking up a name does on some networks
            assert over.wait(60), "the answer was waited for"
        raise ConnectionRefusedError

    monkeypatch.setattr(hub, "socket", SimpleNamespace(create_connection=connect))  # not that of the Hub's own client
    monkeypatch.setattr(hub, "PATIENCE", 0.01 if waits else 60)
    with pytest.raises(UserError) as caught:
        Sudoku(SudokuParams()).build(seed=0)
    assert began.wait(60)
    over.set()
    assert tried == [("127.0.0.1", 1)]
    message = str(caught.value)
    assert "\n" not in message
    assert "--data.source csv --data.folder DIR" in message
    assert "--data.source generate" in message


def test_files_in_the_hubs_cache_need_no_network(empty_cache: Path) -> None:
    repo = empty_cache / "datasets--sapientinc--sudoku-extreme"
    snapshot = repo / "snapshots" / REVISION
    snapshot.mkdir(parents=True)
    arrays = made(9, train=20).build(seed=0)
    for name in ("train", "test"):
        write_csv(snapshot / f"{name}.csv", arrays[name], [5] * 20)
    built = Sudoku(SudokuParams(val=4)).build(seed=0)
    assert {split: len(part["inputs"]) for split, part in built.items()} == {"train": 16, "val": 4, "test": 20}
    assert (built["test"]["inputs"] == arrays["test"]["inputs"]).all()
