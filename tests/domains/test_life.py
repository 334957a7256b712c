"""Game of Life: the rule against a convolution, the splits against what the paper says of them, text and JSON."""

from collections import defaultdict
from typing import Any
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from ponder.base.errors import UserError
from ponder.domains.contract import Arrays, silent
from ponder.domains.life.boards import Boards, pack, trajectory_lengths
from ponder.domains.life.domain import Life
from ponder.domains.life.generate import LifeParams, choose, draw_patterns, measure

Board = npt.NDArray[np.int64]

SMALL = LifeParams(
    configurations=1200, min_side=2, max_side=7, max_steps=14, max_chars=45, held_out=0.2, val=70, eval_size=90
)
TORUS = SMALL.model_copy(update={"boundary": "torus"})
BEYOND = {"plus_1": 1, "plus_2": 2, "plus_3": 3, "plus_10": 10}
PAPER_TRAINING_EXAMPLES = 367_200 * 8192 / 2000


def convolve_step(board: Board, torus: bool) -> Board:
    """One step by summing shifted copies of the padded board."""
    height, width = board.shape
    padded = np.pad(board, 1, mode="wrap") if torus else np.pad(board, 1)
    around = sum(padded[r : r + height, c : c + width] for r in range(3) for c in range(3)) - board
    after: Board = np.where(board == 1, (around == 2) | (around == 3), around == 3).astype(np.int64)
    return after


def oracle(board: Board, steps: int, torus: bool) -> Board:
    for _ in range(steps):
        board = convolve_step(board, torus)
    return board


def oracle_length(board: Board, torus: bool, max_steps: int) -> int:
    seen = {board.tobytes()}
    for step in range(max_steps + 1):
        if not board.any() or step == max_steps:
            return step
        board = convolve_step(board, torus)
        if board.tobytes() in seen:
            return step + 1
        seen.add(board.tobytes())
    raise AssertionError


def read(domain: Life, tokens: npt.NDArray[np.uint8]) -> tuple[Board, int]:
    """A puzzle's board and steps, read from the symbols alone."""
    board, steps = "".join(domain.vocab[t] for t in tokens).rstrip(" ").split(":")
    return np.array([[cell == "O" for cell in row] for row in board.split("/")], dtype=np.int64), int(steps)


def key(board: Board) -> tuple[tuple[int, ...], bytes]:
    return board.shape, board.tobytes()


def board_of(text: str) -> Board:
    return np.array([[cell == "O" for cell in row] for row in text.split("/")], dtype=np.int64)


@st.composite
def boards(draw: st.DrawFn, low: int = 2, high: int = 17, max_chars: int = 250) -> Board:
    height = draw(st.integers(low, high))
    width = draw(st.integers(low, min(high, (max_chars + 1) // height - 1)))
    bits = draw(st.integers(0, 2 ** (height * width) - 1))
    return np.array([[bits >> (r * width + c) & 1 for c in range(width)] for r in range(height)], dtype=np.int64)


@pytest.fixture(scope="module", params=[SMALL, TORUS], ids=["dead", "torus"])
def built(request: pytest.FixtureRequest) -> tuple[Life, dict[str, Arrays]]:
    domain = Life(request.param)
    return domain, domain.build(seed=5)


@given(boards(), st.integers(1, 99), st.booleans())
@settings(deadline=None)
def test_solutions_agree_with_a_convolution(board: Board, steps: int, torus: bool) -> None:
    domain = Life(LifeParams(boundary="torus" if torus else "dead"))
    inputs = domain.from_json({"board": board.tolist(), "steps": steps})
    (answer,) = domain.solutions(inputs)
    assert domain.answer_to_json(inputs, answer) == {"board": oracle(board, steps, torus).tolist()}


@pytest.mark.parametrize("boundary", ["dead", "torus"])
def test_the_widest_boards_fill_a_whole_word(boundary: str) -> None:
    params: dict[str, Any] = {"min_side": 30, "max_side": 32, "max_chars": 32 * 33, "boundary": boundary}
    domain = Life(LifeParams(**params))
    inputs, labels = domain.sample(0, 12)
    widths = set()
    for puzzle, label in zip(inputs, labels, strict=True):
        board, steps = read(domain, puzzle)
        widths.add(board.shape[1])
        expected = oracle(board, steps, boundary == "torus")
        assert domain.answer_to_json(puzzle, label)["board"] == expected.tolist()
    assert 32 in widths


@pytest.mark.parametrize(
    ("start", "steps", "end"),
    [
        (".../OOO/...", 1, ".O./.O./.O."),
        (".../OOO/...", 2, ".../OOO/..."),
        ("OO/OO", 7, "OO/OO"),
        ("O./.O", 1, "../.."),
        ("O./.O", 12, "../.."),
        (".O.../..O../OOO../...../.....", 4, "...../..O../...O./.OOO./....."),
        (".OO./O..O/.OO./....", 50, ".OO./O..O/.OO./...."),
    ],
)
def test_known_patterns(start: str, steps: int, end: str) -> None:
    domain = Life(LifeParams())
    inputs = domain.parse(f"{start}:{steps:02d}")
    assert domain.format_answer(inputs, domain.solutions(inputs)[0]) == end
    assert domain.check(inputs[None], domain.parse_answer(inputs, end)[None]).all()


def test_a_glider_returns_on_the_torus_and_not_on_the_plane() -> None:
    start = ".O..../..O.../OOO.../....../....../......"
    for boundary, home in (("torus", True), ("dead", False)):
        domain = Life(LifeParams.model_validate({"boundary": boundary}))
        inputs = domain.parse(f"{start}:24")
        assert (domain.format_answer(inputs, domain.solutions(inputs)[0]) == start) is home


@pytest.mark.parametrize("torus", [False, True])
def test_lengths_are_those_of_brute_force(torus: bool) -> None:
    rng = np.random.default_rng(1)
    cases = [board_of(t) for t in ("../..", "OO/OO", "O./..", ".../OOO/...", "....../.OOO../OOO.../......")]
    for _ in range(250):
        height, width = rng.integers(2, 11, 2)
        cases.append((rng.random((height, width)) < 0.4).astype(np.int64))
    rows = np.zeros((len(cases), 10), dtype=np.uint32)
    for row, board in zip(rows, cases, strict=True):
        row[: len(board)] = pack(board == 1)
    heights, widths = (np.array([b.shape[axis] for b in cases], dtype=np.uint32) for axis in (0, 1))
    found = trajectory_lengths(Boards(rows, heights, widths), torus, 30)
    expected = [oracle_length(board, torus, 30) for board in cases]
    assert found.tolist() == expected
    assert {0, 1, 2, 30} <= set(expected)


def test_every_label_is_the_board_after_its_steps(built: tuple[Life, dict[str, Arrays]]) -> None:
    domain, splits = built
    torus = domain.params.boundary == "torus"
    for arrays in splits.values():
        inputs, labels = arrays["inputs"], arrays["labels"]
        assert inputs.dtype == labels.dtype == np.uint8
        assert inputs.shape == labels.shape == (len(inputs), domain.seq_len)
        assert domain.check(inputs, labels).all()
        for puzzle, label, k in list(zip(inputs, labels, arrays["steps"], strict=True))[:150]:
            board, steps = read(domain, puzzle)
            assert steps == k
            is_cell = (puzzle == 1) | (puzzle == 2)
            assert ((label != 0) == is_cell).all()
            assert (label[is_cell] - 1).tolist() == oracle(board, steps, torus).ravel().tolist()


@pytest.mark.parametrize("count", [1, 3, 40])
@pytest.mark.parametrize("params", [SMALL, TORUS], ids=["dead", "torus"])
def test_a_path_is_a_board_for_each_generation_and_then_the_last_of_them(params: LifeParams, count: int) -> None:
    """Of boards of all shapes, for fewer steps than puzzles ask for and for more."""
    domain = Life(params)
    inputs, labels = domain.sample(6, count)
    ends = [read(domain, puzzle)[1] for puzzle in inputs]
    assert count == 1 or (len({*ends}) > 1 and len({read(domain, puzzle)[0].shape for puzzle in inputs}) > 1)
    for steps in {0, 1, 2, min(ends), max(ends) - 1, max(ends), max(ends) + 9}:
        path = domain.path(inputs, steps)
        assert path.shape == (count, steps, domain.seq_len) and path.dtype == np.uint8
        for puzzle, label, end, boards in zip(inputs, labels, ends, path, strict=True):
            board, _ = read(domain, puzzle)
            for number, tokens in enumerate(boards, start=1):
                board = convolve_step(board, params.boundary == "torus") if number <= end else board
                assert domain.answer_to_json(puzzle, tokens) == {"board": board.tolist()}
                assert ((tokens != 0) == (label != 0)).all(), "beside the cells"
            assert steps < end or (boards[end - 1 :] == label).all()


def test_splits_are_what_the_paper_says(built: tuple[Life, dict[str, Arrays]]) -> None:
    domain, splits = built
    params, torus = domain.params, domain.params.boundary == "torus"
    assert list(splits) == list(domain.splits)
    examples = {name: [read(domain, puzzle) for puzzle in arrays["inputs"]] for name, arrays in splits.items()}

    trained: dict[Any, set[int]] = defaultdict(set)
    boards_by_key: dict[Any, Board] = {}
    for board, steps in examples["train"]:
        assert steps not in trained[key(board)], "an example occurs twice"
        trained[key(board)].add(steps)
        boards_by_key[key(board)] = board
    for pattern, steps_trained in trained.items():
        length = oracle_length(boards_by_key[pattern], torus, params.max_steps)
        assert max(steps_trained) == -(-length // 2), "the training horizon is half the trajectory, rounded up"

    below: set[Any] = set()
    for name in ("val", "in_range"):
        for board, steps in examples[name]:
            assert 1 <= steps < max(trained[key(board)])
            assert steps not in trained[key(board)]
            assert (key(board), steps) not in below, "val and in_range share an example"
            below.add((key(board), steps))
    for name, beyond in BEYOND.items():
        for board, steps in examples[name]:
            assert steps == max(trained[key(board)]) + beyond
    known = {key(board) for name in examples if name != "unseen" for board, _ in examples[name]}
    assert known == set(trained)
    for board, steps in examples["unseen"]:
        assert key(board) not in known
        assert 1 <= steps <= -(-oracle_length(board, torus, params.max_steps) // 2)

    assert len(examples["val"]) == params.val
    assert all(len(examples[name]) == params.eval_size for name in ("in_range", "unseen", *BEYOND))
    for board, _ in examples["train"]:
        assert params.min_side <= min(board.shape) and max(board.shape) <= params.max_side
        assert board.size + len(board) - 1 <= params.max_chars
    assert domain.seq_len == params.max_chars + 3


def test_held_out_shares() -> None:
    params = SMALL.model_copy(update={"configurations": 40_000, "val": 10**6, "eval_size": 10**6})
    patterns = draw_patterns(params, 0)
    splits = choose(measure(patterns, params, 1, silent), params, 0)
    unseen = set(splits["unseen"].which.tolist())
    assert len(unseen) == round(params.held_out * len(patterns))
    held = len(splits["val"].which) + len(splits["in_range"].which)
    last = len(patterns) - len(unseen)
    assert held / (held + len(splits["train"].which) - last) == pytest.approx(params.held_out_steps, rel=0.05)
    assert abs(len(splits["val"].which) - len(splits["in_range"].which)) <= 1


def test_patterns_are_distinct_and_drawn_as_told() -> None:
    params = LifeParams(configurations=4000, max_side=5)
    patterns = draw_patterns(params, 3)
    rows = np.column_stack([patterns.heights, patterns.widths, patterns.rows])
    assert len(np.unique(rows, axis=0)) == len(patterns) < 4000
    big = LifeParams(configurations=4000, min_side=10, max_side=14)
    patterns = draw_patterns(big, 3)
    cells = patterns.heights.astype(int) * patterns.widths
    assert np.bitwise_count(patterns.rows).sum() / cells.sum() == pytest.approx(0.4, abs=0.005)
    sides = np.bincount(patterns.heights)[10:] / len(patterns)
    assert np.allclose(sides, 0.2, atol=0.03)


def test_same_bytes_for_any_number_of_workers() -> None:
    params = SMALL.model_copy(update={"configurations": 2500})
    one, two = Life(params).build(seed=2, workers=1), Life(params).build(seed=2, workers=2)
    assert len(draw_patterns(params, 2)) > 1024, "more than one piece, or two workers would not be used"
    other = Life(params).build(seed=3)
    for name, arrays in one.items():
        for part in ("inputs", "labels", "steps"):
            assert arrays[part].tobytes() == two[name][part].tobytes()
        assert arrays["inputs"].tobytes() != other[name]["inputs"].tobytes()


def test_the_papers_number_of_training_examples() -> None:
    """Extrapolated from a tenth; few small boards repeat there, so it comes out a little high."""
    params = LifeParams(configurations=20_000)
    splits = choose(measure(draw_patterns(params, 0), params, 1, silent), params, 0)
    assert len(splits["train"].which) * 10 == pytest.approx(PAPER_TRAINING_EXAMPLES, rel=0.02)
    assert Life(LifeParams()).seq_len == 253


@pytest.mark.slow
def test_the_papers_number_of_training_examples_at_full_scale() -> None:
    params = LifeParams()
    splits = choose(measure(draw_patterns(params, 0), params, 2, silent), params, 0)
    assert len(splits["train"].which) == pytest.approx(PAPER_TRAINING_EXAMPLES, rel=0.01)
    assert {len(examples.which) for name, examples in splits.items() if name != "train"} == {10_000}


def test_progress_is_told() -> None:
    calls: list[tuple[str, int, int]] = []
    Life(SMALL).build(0, progress=lambda *call: calls.append(call))
    assert {what for what, done, total in calls if done == total} == {"following trajectories", "writing examples"}


def test_too_few_configurations_say_so() -> None:
    with pytest.raises(UserError, match="1 configurations leave the split 'val' empty; raise"):
        Life(LifeParams(configurations=1)).build(0)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"min_side": 6, "max_side": 5}, "min_side 6 is above max_side 5"),
        ({"min_side": 9, "max_chars": 80}, "max_chars 80 leaves no board"),
        ({"max_steps": 90, "horizon": 1.0}, "asks for step 100"),
        ({"boundary": "sphere"}, "'dead' or 'torus'"),
        ({"max_side": 33}, "less than or equal to 32"),
        ({"stps": 3}, "stps"),
    ],
)
def test_impossible_parameters(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        LifeParams(**params)


def test_sample_is_fresh_and_right() -> None:
    for params in (SMALL, TORUS, LifeParams()):
        domain = Life(params)
        inputs, labels = domain.sample(1, 40)
        assert inputs.shape == labels.shape == (40, domain.seq_len)
        assert domain.check(inputs, labels).all()
        assert (inputs != domain.sample(2, 40)[0]).any()
        for puzzle in inputs:
            board, steps = read(domain, puzzle)
            length = oracle_length(board, params.boundary == "torus", params.max_steps)
            assert 1 <= steps <= -(-length // 2)
    assert Life(SMALL).sample(0, 0)[0].shape == (0, Life(SMALL).seq_len)


@given(boards(), st.integers(1, 99), boards())
@settings(deadline=None)
def test_round_trips(board: Board, steps: int, other: Board) -> None:
    domain = Life(LifeParams())
    data = {"board": board.tolist(), "steps": steps}
    inputs = domain.from_json(data)
    assert inputs.shape == (253,) and inputs.dtype == np.uint8
    assert domain.to_json(inputs) == data
    text = "/".join("".join(".O"[cell] for cell in row) for row in board) + f":{steps:02d}"
    assert domain.format(inputs) == text
    assert (domain.parse(text) == inputs).all()
    found, k = read(domain, inputs)
    assert (found == board).all() and k == steps
    end: list[list[int]] = np.resize(other, board.shape).tolist()  # type: ignore[assignment]
    answer_text = "/".join("".join(".O"[cell] for cell in row) for row in end)
    answer = domain.parse_answer(inputs, answer_text)
    assert domain.format_answer(inputs, answer) == answer_text
    assert domain.answer_to_json(inputs, answer) == {"board": end}


@pytest.mark.parametrize(
    "text",
    [
        ".O./OOO/... : 04",
        " .O. / OOO / ... :4 ",
        ".O.\nOOO\n...\n:04\n",
        ". O .\nO O O\n. . . : 4",
        "010/111/000:04",
        ".o. ooo ... :04",
        ".O./\nOOO/\n.../:04".replace("/:", ":"),
    ],
)
def test_tolerant_reading(text: str) -> None:
    domain = Life(LifeParams())
    assert domain.format(domain.parse(text)) == ".O./OOO/...:04"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no ':'"),
        (".O./OOO/...", "has no ':'"),
        (":04", "is empty"),
        ("...:04", "has height 1; allowed: 2 to 17"),
        (".O./OO/...:04", "2 cells in row 2 but 3 in row 1"),
        (".O.//...:04", "0 cells in row 2"),
        (".O./OxO/...:04", "'x' in row 2, column 2"),
        (".O./OOO/...:", "after ':'"),
        (".O./OOO/...:0", "asks for 0 steps; allowed: 1 to 99"),
        (".O./OOO/...:0\x1c", "asks for 0 steps"),  # a space to a regular expression, and not to int
        (".O./OOO/...:100", "'100' after ':'"),
        (".O./OOO/...:-1", "'-1' after ':'"),
        (".O./OOO/...:four", "'four' after ':'"),
        (".O./OOO/...:²", "after ':'"),
        ("/".join(["." * 18] * 2) + ":04", "has width 18; allowed: 2 to 17"),
        ("/".join(["." * 17] * 17) + ":04", "takes 305 characters"),
    ],
)
def test_bad_text(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        Life(LifeParams()).parse(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("puzzle", "message"),
    [
        ([[0, 1], [1, 0]], "should be"),
        ({"board": [[0, 1], [1, 0]]}, "should be"),
        ({"board": [[0, 1], [1, 0]], "steps": "4"}, "steps '4'"),
        ({"board": [[0, 1], [1, 0]], "steps": True}, "steps True"),
        ({"board": [[0, 1], [1, 0]], "steps": 0}, "asks for 0 steps"),
        ({"board": [[0, 1], [1, 0]], "steps": 100}, "asks for 100 steps"),
        ({"board": [[0, 1], [1]], "steps": 4}, "different lengths"),
        ({"board": [[0, 1], [1, 2]], "steps": 4}, "2 in row 2, column 2"),
        ({"board": [[0, 1], [1, "O"]], "steps": 4}, "'O' in row 2, column 2"),
        ({"board": [[0, 1]], "steps": 4}, "height 1"),
        ({"board": [[0] * 17] * 17, "steps": 4}, "305 characters"),
    ],
)
def test_bad_json(puzzle: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Life(LifeParams()).from_json(puzzle)


def test_bad_answers() -> None:
    domain = Life(LifeParams())
    inputs = domain.parse(".O./OOO/...:04")
    with pytest.raises(UserError, match="2 rows of 3 cells, the puzzle has 3 rows of 3"):
        domain.parse_answer(inputs, ".O./OOO")
    with pytest.raises(UserError, match="':' in row 3, column 4"):
        domain.parse_answer(inputs, ".O./OOO/...:04")


@pytest.mark.parametrize("params", [SMALL, TORUS])
def test_check_refuses_each_wrong_cell_and_ignores_the_rest(params: LifeParams) -> None:
    domain = Life(params)
    inputs, labels = domain.sample(4, 25)
    for puzzle, label in zip(inputs, labels, strict=True):
        cells = np.flatnonzero(label)
        wrong = np.repeat(label[None], len(cells), axis=0)
        wrong[np.arange(len(cells)), cells] = 3 - label[cells]
        assert not domain.check(np.repeat(puzzle[None], len(cells), axis=0), wrong).any()
        noise = np.where(label == 0, 9, label).astype(np.uint8)
        assert domain.check(puzzle[None], noise[None]).all()
        assert domain.explain(puzzle, noise) == ""


def test_sequences_that_are_no_puzzle() -> None:
    domain = Life(LifeParams())
    good = domain.parse(".O./OOO/...:04")
    label = domain.solutions(good)[0]
    rng = np.random.default_rng(0)
    bad = [np.zeros(253, np.uint8), np.full(253, 4, np.uint8), np.full(253, 3, np.uint8), np.full(253, 2, np.uint8)]
    for place, token in ((3, 1), (11, 3), (12, 2), (13, 0), (14, 1), (0, 0), (250, 4), (2, 3)):
        bad.append(good.copy())
        bad[-1][place] = token
    bad += list(rng.integers(0, 15, (300, 253), dtype=np.uint8))
    everything = np.stack([good, *bad])
    assert domain.check(everything, np.repeat(label[None], len(everything), axis=0)).tolist() == [True] + [False] * len(
        bad
    )
    for tokens in bad[:20]:
        assert domain.solutions(tokens) == []
        assert "not a board" in domain.explain(tokens, label)
        with pytest.raises(UserError, match="not a life board"):
            domain.format(tokens)


def test_explain_names_the_first_wrong_cell() -> None:
    domain = Life(LifeParams())
    inputs = domain.parse(".../OOO/...:01")
    assert domain.explain(inputs, domain.parse_answer(inputs, ".O./.O./.O.")) == ""
    told = domain.explain(inputs, domain.parse_answer(inputs, ".O./.../..."))
    assert told == "row 2, column 2 should be alive after 1 step"
    inputs = domain.parse(".../OOO/...:04")
    told = domain.explain(inputs, domain.parse_answer(inputs, ".../OOO/..O"))
    assert told == "row 3, column 3 should be dead after 4 steps"


def test_pictures_show_boards_and_steps() -> None:
    domain = Life(LifeParams())
    inputs = domain.parse("..../OOO./....:04")
    odd = domain.solutions(inputs)[0].copy()
    odd[0] = 9
    assert domain.format_answer(inputs, odd) == "?.../OOO./...."
    assert domain.answer_to_json(inputs, odd)["board"][0] == [None, 0, 0, 0]

    alone, both = domain.render(inputs).plain, domain.render(inputs, odd).plain
    assert alone.splitlines()[0] == both.splitlines()[0] == "4 steps"
    assert alone.count("██") == 3 and both.count("██") == 6 and both.count("??") == 1

    changed = odd == 2
    drawn, answered = domain.svg(inputs), domain.svg(inputs, odd)
    for picture in (drawn, answered, domain.svg(inputs, odd, changed)):
        assert ElementTree.fromstring(picture).tag.endswith("svg")
        assert "4 steps" in picture
    assert answered.count("<rect") > drawn.count("<rect")
    assert domain.svg(inputs, odd, changed).count("■") == 3 and answered.count("■") == 0


def test_the_example_and_the_one_in_the_rules() -> None:
    domain = Life(LifeParams())
    assert domain.format(domain.parse(domain.example)) == domain.example
    inputs = domain.parse(".../OOO/...:01")
    assert ".../OOO/...:01 has the answer .O./.O./.O." in domain.rules
    assert domain.format_answer(inputs, domain.solutions(inputs)[0]) == ".O./.O./.O."
    assert len(domain.vocab) == 15 and domain.task_ids == 1
