"""Arithmetic, judged by Python's own integers and by trying every operator string."""

import operator
import random as python_random
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from itertools import product
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ponder.base.errors import UserError
from ponder.domains.arithmetic.domain import Arithmetic
from ponder.domains.arithmetic.generate import ArithmeticParams, Homes, draw, encode, search, shapes
from ponder.domains.contract import Arrays, Tokens

DOMAIN = Arithmetic(ArithmeticParams())
SMALL = ArithmeticParams(train=1500, val=200, eval_size=200)
PYTHON = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv}
EVALUATIONS = ("val", "id", "ood")


def oracle(expression: str) -> int | None:
    """The value of a filled-in expression by Python's integers, or None where a division is not exact."""
    stack: list[int] = []
    for symbol in expression.split():
        if symbol.isdigit():
            stack.append(int(symbol))
            continue
        right, left = stack.pop(), stack.pop()
        if symbol == "/" and (right == 0 or left % right):
            return None
        stack.append(PYTHON[symbol](left, right))
    (value,) = stack
    return value


def fill(expression: str, operators: str) -> str:
    remaining = iter(operators)
    return " ".join(next(remaining) if symbol == "?" else symbol for symbol in expression.split())


def fitting(expression: str, value: int) -> Iterator[str]:
    """All operator strings that give the value, in the order + - * /."""
    for operators in product("+-*/", repeat=expression.count("?")):
        if oracle(fill(expression, "".join(operators))) == value:
            yield "".join(operators)


def operators_of(inputs: Tokens, answer: Tokens) -> str:
    return "".join(DOMAIN.answer_to_json(inputs, answer)["operators"])


def puzzles(arrays: Arrays) -> list[tuple[str, int]]:
    return [tuple(DOMAIN.to_json(inputs).values()) for inputs in arrays["inputs"]]


def multisets(arrays: Arrays) -> set[str]:
    return {"".join(sorted(filter(str.isdigit, expression))) for expression, _ in puzzles(arrays)}


@pytest.fixture(scope="module")
def built() -> dict[str, dict[str, Arrays]]:
    return {
        labels: Arithmetic(SMALL.model_copy(update={"labels": labels})).build(seed=7)
        for labels in ("sampled", "canonical", "unique")
    }


@st.composite
def expressions(draw_: st.DrawFn, most: int = 8) -> str:
    shape = draw_(st.sampled_from(shapes(draw_(st.integers(3, most)))))
    return " ".join(str(draw_(st.integers(1, 9))) if symbol == "d" else "?" for symbol in shape)


@st.composite
def answered(draw_: st.DrawFn, most: int = 8) -> tuple[str, int, str]:
    """A puzzle and operators that may or may not solve it."""
    expression = draw_(expressions(most=most))
    operators = draw_(st.text("+-*/", min_size=expression.count("?"), max_size=expression.count("?")))
    value = oracle(fill(expression, operators))
    if value is None or not 0 <= value <= 999 or draw_(st.booleans()):
        value = draw_(st.integers(0, 999))
    return expression, value, operators


@pytest.mark.parametrize("labels", ["sampled", "canonical", "unique"])
def test_every_label_evaluates_to_the_value(built: dict[str, dict[str, Arrays]], labels: str) -> None:
    for split, arrays in built[labels].items():
        assert DOMAIN.check(arrays["inputs"], arrays["labels"]).all()
        for inputs, answer, (_, value) in zip(arrays["inputs"], arrays["labels"], puzzles(arrays), strict=True):
            assert oracle(DOMAIN.format_answer(inputs, answer)) == value, split
        supervised = arrays["labels"] != 0
        assert (supervised == (arrays["inputs"] == 1)).all()
        assert ((arrays["labels"][supervised] >= 2) & (arrays["labels"][supervised] <= 5)).all()


def test_sizes_and_value_ranges(built: dict[str, dict[str, Arrays]]) -> None:
    assert DOMAIN.seq_len == 19
    for splits in built.values():
        assert {name: len(arrays["inputs"]) for name, arrays in splits.items()} == {
            "train": 1500, "val": 200, "id": 200, "ood": 200,
        }  # fmt: skip
        for name, arrays in splits.items():
            assert arrays["inputs"].shape[1] == arrays["labels"].shape[1] == 19
            low, high = (102, 201) if name == "ood" else (0, 101)
            values = [value for _, value in puzzles(arrays)]
            assert low <= min(values) and max(values) <= high
    operands = {sum(map(str.isdigit, expression)) for expression, _ in puzzles(built["sampled"]["train"])}
    assert operands == set(range(3, 9))


def test_no_puzzle_twice_and_no_test_multiset_in_training(built: dict[str, dict[str, Arrays]]) -> None:
    for splits in built.values():
        everything = np.concatenate([arrays["inputs"] for arrays in splits.values()])
        assert len(np.unique(everything, axis=0)) == len(everything)
        seen = multisets(splits["train"])
        for name in EVALUATIONS:
            assert not seen & multisets(splits[name])
        assert not multisets(splits["val"]) & (multisets(splits["id"]) | multisets(splits["ood"]))


def test_a_fifth_of_the_multisets_is_held_out() -> None:
    homes = Homes.of(ArithmeticParams(), seed=0)
    operands = np.char.str_len(homes.multiset.astype(str))
    for n in range(3, 9):
        home = homes.home[operands == n]
        assert len(home) == comb(n + 8, n)
        assert np.mean(home == 2) == pytest.approx(0.2, abs=0.5 / len(home))
        assert 0.03 < np.mean(home == 1) < 0.05
    assert (homes.home != Homes.of(ArithmeticParams(), seed=1).home).any()


def test_canonical_labels_are_the_first_that_fit(built: dict[str, dict[str, Arrays]]) -> None:
    arrays = built["canonical"]["train"]
    short = [i for i, (expression, _) in enumerate(puzzles(arrays)) if expression.count("?") <= 4][:150]
    long = [i for i, (expression, _) in enumerate(puzzles(arrays)) if expression.count("?") == 7][:3]
    for i in short + long:
        inputs = arrays["inputs"][i]
        expression, value = DOMAIN.to_json(inputs).values()
        assert operators_of(inputs, arrays["labels"][i]) == next(fitting(expression, value))


def test_unique_labels_are_the_only_ones(built: dict[str, dict[str, Arrays]]) -> None:
    arrays = built["unique"]["id"]
    for i, (expression, value) in enumerate(puzzles(arrays)):
        if expression.count("?") <= 4:
            assert list(fitting(expression, value)) == [operators_of(arrays["inputs"][i], arrays["labels"][i])]


def test_search_finds_what_trying_everything_finds() -> None:
    for operands, most in ((2, 30), (3, 40), (4, 40), (5, 40), (6, 6), (7, 3), (8, 2)):
        params = ArithmeticParams(min_operands=operands, max_operands=operands)
        keys, codes = draw(params, 3, 0, 1000)
        first, count = search(keys)
        arrays = encode(params, keys, first)
        for i, (expression, value) in enumerate(puzzles(arrays)[:most]):
            fits = list(fitting(expression, value))
            assert (operators_of(arrays["inputs"][i], arrays["labels"][i]), count[i]) == (fits[0], len(fits))
        assert (first <= codes).all()


@pytest.mark.parametrize(("operands", "design"), [(3, 0.74), (4, 0.51), (5, 0.26)])
def test_share_of_unique_puzzles_is_what_the_design_measured(operands: int, design: float) -> None:
    params = ArithmeticParams(min_operands=operands, max_operands=operands, ood_high=102)
    keys, _ = draw(params, 1, 0, 20_000)
    _, count = search(keys)
    assert np.mean(count == 1) == pytest.approx(design, abs=0.04)


@given(answered(most=5))
def test_solutions_are_all_assignments_in_order(puzzle: tuple[str, int, str]) -> None:
    expression, value, _ = puzzle
    inputs = DOMAIN.from_json({"expression": expression, "value": value})
    answers = DOMAIN.solutions(inputs, limit=10_000)
    assert [operators_of(inputs, answer) for answer in answers] == list(fitting(expression, value))
    assert len(DOMAIN.solutions(inputs, limit=1)) == min(1, len(answers))


@given(answered())
def test_check_agrees_with_python_and_explain_says_why(puzzle: tuple[str, int, str]) -> None:
    expression, value, operators = puzzle
    inputs = DOMAIN.parse(f"{expression} = {value}")
    answer = DOMAIN.parse_answer(inputs, operators)
    right = oracle(fill(expression, operators)) == value
    assert DOMAIN.check(inputs[None], answer[None]).tolist() == [right]
    reason = DOMAIN.explain(inputs, answer)
    assert (reason == "") == right
    evaluated = oracle(fill(expression, operators))
    if evaluated is not None and not right:
        assert reason == f"evaluates to {evaluated}, not {value}"


@given(answered(), st.binary(min_size=19, max_size=19))
def test_check_takes_any_prediction_and_reads_only_the_masked_places(puzzle: tuple[str, int, str], junk: bytes) -> None:
    expression, value, operators = puzzle
    inputs = DOMAIN.parse(f"{expression} = {value}")
    predicted = np.frombuffer(junk, dtype=np.uint8)
    masked = inputs == 1
    nonsense = masked & ((predicted < 2) | (predicted > 5))
    if nonsense.any():
        assert not DOMAIN.check(inputs[None], predicted[None])[0]
        assert DOMAIN.explain(inputs, predicted)
    DOMAIN.format_answer(inputs, predicted)
    DOMAIN.answer_to_json(inputs, predicted)
    DOMAIN.render(inputs, predicted)

    answer = DOMAIN.parse_answer(inputs, operators)
    around = np.where(masked, answer, predicted)
    assert DOMAIN.check(inputs[None], around[None]) == DOMAIN.check(inputs[None], answer[None])


def test_explanations_name_the_place() -> None:
    inputs = DOMAIN.parse("7 2 ? 3 3 ? ? = 5")
    for operators, reason in {
        "/--": "divides 7 by 2 inexactly at position 3",
        "+-/": "divides 9 by zero at position 7",
        "+++": "evaluates to 15, not 5",
        "--+": "",
    }.items():
        assert DOMAIN.explain(inputs, DOMAIN.parse_answer(inputs, operators)) == reason
    answer = DOMAIN.parse_answer(inputs, "--+")
    answer[5] = 9
    assert DOMAIN.explain(inputs, answer) == "position 6 holds '2', not an operator"


@given(expressions(), st.integers(0, 999), st.randoms())
def test_puzzles_round_trip(expression: str, value: int, random: python_random.Random) -> None:
    inputs = DOMAIN.parse(f"{expression} = {value}")
    assert inputs.shape == (19,) and inputs.dtype == np.uint8
    assert DOMAIN.format(inputs) == f"{expression} = {value}"
    spaced = "".join(symbol + random.choice(["", " ", "  "]) for symbol in f"{expression.replace(' ', '')}=")
    assert (DOMAIN.parse(spaced + str(value)) == inputs).all()
    assert DOMAIN.to_json(inputs) == {"expression": expression, "value": value}
    assert (DOMAIN.from_json(DOMAIN.to_json(inputs)) == inputs).all()
    tokens = [int(symbol) if symbol.isdigit() else symbol for symbol in expression.split()]
    assert (DOMAIN.from_json({"tokens": tokens, "value": value}) == inputs).all()


@given(answered())
def test_answers_round_trip(puzzle: tuple[str, int, str]) -> None:
    expression, value, operators = puzzle
    inputs = DOMAIN.parse(f"{expression} = {value}")
    answer = DOMAIN.parse_answer(inputs, fill(expression, operators))
    assert DOMAIN.format_answer(inputs, answer) == fill(expression, operators)
    assert DOMAIN.answer_to_json(inputs, answer) == {
        "expression": fill(expression, operators), "operators": list(operators),
    }  # fmt: skip
    for other in (
        operators,
        " ".join(operators),
        f"{fill(expression, operators)} = {value}",
        fill(expression, operators).translate(str.maketrans("*/-", "×÷−")),
        fill(expression, operators).replace("*", "x"),
    ):
        assert (DOMAIN.parse_answer(inputs, other) == answer).all()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("3 4 ? 5 ?", "has no value"),
        ("3 4 ? 5 ? =", "has no value"),
        ("", "has no value"),
        ("3 ? 4 5 ? = 1", "position 2 has only 1 number before it"),
        ("3 4 5 ? = 3", "leaves 2 numbers; 3 operands need 2 times ?"),
        ("3 0 ? 5 ? = 1", "has '0' at position 2"),
        ("3 4 + 5 ? = 1", "has '+' at position 3; write ? for every operator"),
        ("3 a ? 5 ? = 1", "has 'a' at position 2"),
        ("1 1 1 1 1 1 1 1 1 ? ? ? ? ? ? ? ? = 9", "has 9 operands; allowed: 3 to 8"),
        ("3 4 ? = 7", "has 2 operands"),
        ("3 4 ? 5 ? = 1000", "value 1000 is out of range; allowed: 0 to 999"),
        ("3 4 ? 5 ? = -1", "allowed: 0 to 999"),
        ("3 4 ? 5 ? = 1.5", "allowed: 0 to 999"),
        ("3 4 ? 5 ? = ٣", "allowed: 0 to 999"),
        ("3 4 ? 5 ? = " + "9" * 5000, "allowed: 0 to 999"),
    ],
)
def test_bad_puzzles_give_one_clear_line(text: str, complaint: str) -> None:
    with pytest.raises(UserError) as error:
        DOMAIN.parse(text)
    assert complaint in str(error.value)
    assert "\n" not in str(error.value) and len(str(error.value)) < 160


@pytest.mark.parametrize(
    "puzzle",
    [
        None, 5, [], {}, {"expression": "3 4 ? 5 ?"}, {"value": 3}, {"expression": 5, "value": 3},
        {"tokens": "3", "value": 3},
        {"expression": "3 4 ? 5 ?", "value": "17"}, {"expression": "3 4 ? 5 ?", "value": True},
        {"expression": "3 4 ? 5 ?", "value": 17, "labels": 3}, {"tokens": [3, 4, None, 5, "?"], "value": 17},
        {"tokens": [3, 4, "?", [5], "?"], "value": 17}, "3 4 ?",
    ],
)  # fmt: skip
def test_bad_json_is_a_user_error(puzzle: object) -> None:
    with pytest.raises(UserError):
        DOMAIN.from_json(puzzle)


@pytest.mark.parametrize("text", ["", "+", "+ + +", "3 4 + 5", "3 5 + 5 *", "3 4 ? 5 *", "3 4 5 + *", "a b", "+ * = 3"])
def test_bad_answers_are_user_errors(text: str) -> None:
    with pytest.raises(UserError):
        DOMAIN.parse_answer(DOMAIN.parse("3 4 ? 5 ? = 17"), text)


def test_same_bytes_for_any_number_of_workers() -> None:
    params = ArithmeticParams(train=9000, val=1200, eval_size=300)
    one, two = (Arithmetic(params).build(seed=1, workers=workers) for workers in (1, 2))
    other = Arithmetic(params).build(seed=2)
    everything = np.concatenate([arrays["inputs"] for arrays in one.values()])
    assert len(np.unique(everything, axis=0)) == len(everything)  # here over several rounds of draws
    for split, arrays in one.items():
        for name, array in arrays.items():
            assert array.tobytes() == two[split][name].tobytes()
            assert array.tobytes() != other[split][name].tobytes()


def test_asking_for_more_puzzles_than_there_are() -> None:
    with pytest.raises(UserError, match=r"only about \d+ different puzzles for train .* 50000 are asked for"):
        Arithmetic(ArithmeticParams(max_operands=3, train=50_000, val=10, eval_size=10)).build(seed=0)


@pytest.mark.parametrize(
    "bad",
    [{"max_operands": 9}, {"min_operands": 5, "max_operands": 4}, {"high": 300}, {"low": 102}, {"label": "unique"}],
)
def test_bad_parameters_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ValidationError):
        ArithmeticParams.model_validate(bad)


def test_sample_and_pictures() -> None:
    for labels in ("sampled", "canonical", "unique"):
        domain = Arithmetic(ArithmeticParams(max_operands=4, labels=labels))
        inputs, answers = domain.sample(seed=5, count=50)
        assert inputs.shape == answers.shape == (50, domain.seq_len)
        assert domain.check(inputs, answers).all()
        assert (domain.sample(seed=5, count=50)[0] == inputs).all()
        assert (domain.sample(seed=6, count=50)[0] != inputs).any()
    rare = Arithmetic(ArithmeticParams(min_operands=8, labels="unique"))
    assert rare.check(*rare.sample(seed=0, count=1)).all()
    with pytest.raises(UserError, match="no arithmetic puzzles found"):
        Arithmetic(ArithmeticParams(min_operands=2, max_operands=2, low=90, high=95)).sample(seed=0, count=1)
    inputs, answer = inputs[0], answers[0]
    assert domain.render(inputs).plain == domain.format(inputs)
    assert domain.render(inputs, answer).plain.startswith(domain.format_answer(inputs, answer) + " = ")
    changed = np.arange(domain.seq_len) == int(np.argmax(inputs == 1))
    picture = ElementTree.fromstring(domain.svg(inputs, answer, changed))
    shown = "".join(element.text or "" for element in picture.iter() if element.tag.endswith("text"))
    assert shown == domain.render(inputs, answer).plain.replace(" ", "")
    assert domain.svg(inputs, answer, changed) != domain.svg(inputs, answer)


def test_a_puzzle_without_an_answer_is_said_to_have_none() -> None:
    assert DOMAIN.conflicts(DOMAIN.parse(DOMAIN.example)) == ""
    hopeless = DOMAIN.parse("1 1 ? 1 ? = 9")
    assert DOMAIN.solutions(hopeless) == []
    assert DOMAIN.conflicts(hopeless) == "no operators give 9"


def test_alignment_moves_a_puzzle_and_changes_nothing_else() -> None:
    left, right = (Arithmetic(ArithmeticParams(max_operands=5, align=align)) for align in ("left", "right"))
    for (a, a_label), (b, b_label) in zip(
        zip(*left.sample(seed=1, count=60), strict=True), zip(*right.sample(seed=1, count=60), strict=True), strict=True
    ):
        pads = int(np.count_nonzero(a == 0))
        assert (b == np.roll(a, pads)).all() and (b_label == np.roll(a_label, pads)).all() and b[-1] != 0
        text = left.format(a)
        assert right.format(b) == text and (right.parse(text) == b).all()
        assert right.to_json(b) == left.to_json(a)
        assert right.check(b[None], b_label[None])[0]
        wrong = np.where(b_label > 0, 5 - (b_label - 2), 0).astype(np.uint8)  # + - * / reversed
        assert right.explain(b, wrong) == left.explain(a, np.roll(wrong, -pads))
        assert [right.format_answer(b, s) for s in right.solutions(b, 9)] == [
            left.format_answer(a, s) for s in left.solutions(a, 9)
        ]
        assert right.render(b, b_label).plain == left.render(a, a_label).plain
        assert right.svg(b, b_label, b_label > 0) == left.svg(a, a_label, a_label > 0)
