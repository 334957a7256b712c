"""Sudoku: text, JSON, pictures and judging."""

from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from ponder.base.errors import UserError
from ponder.domains.contract import Tokens, rng_for
from ponder.domains.sudoku.domain import Sudoku, SudokuParams
from ponder.domains.sudoku.generate import solved_board
from tests.support.sudoku import BOX, SIZES, digits, made, plainly_right


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
