"""Joint: four domains in bits, and each domain back out of them."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as numpy_arrays
from pydantic import ValidationError

from ponder.base.errors import UserError
from ponder.config.resolve import DataConfig
from ponder.data import Dataset, build, verify
from ponder.domains.contract import Arrays, Tokens
from ponder.domains.joint import Joint, JointParams

PARTS: dict[str, Any] = {
    "arithmetic": {"max_operands": 4, "train": 300, "val": 30, "eval_size": 20},
    "sudoku": {"source": "generate", "size": 4, "train": 60, "val": 10, "test": 10},
    "life": {"configurations": 600, "max_side": 5, "max_steps": 12, "val": 20, "eval_size": 15},
    "maze": {"source": "generate", "height": 5, "width": 6, "min_path": 4, "train": 25, "val": 5, "test": 6},
}
NAMES = list(PARTS)
JOINT = Joint(JointParams.model_validate({"parts": PARTS}))
PAPER = Joint(JointParams())
ONE_OF_EACH, _ = JOINT.sample(seed=4, count=4)


@pytest.fixture(scope="module")
def built() -> dict[str, Arrays]:
    return JOINT.build(seed=3)


def examples(domain: Joint, built: dict[str, Arrays], split: str) -> tuple[Tokens, Tokens]:
    source = domain.source(split, built[split], 3)
    batch = source.fetch(np.arange(len(source)), np.zeros(len(source), dtype=np.int64))
    return batch.inputs, batch.labels


def texts(inputs: Tokens) -> list[str]:
    return [JOINT.format(row) for row in inputs]


def bits(text: str) -> list[int]:
    return [int(char) + 1 for char in text if char != " "]


def test_the_bits_of_a_small_example_by_hand() -> None:
    # Tag 0. Symbols ? + - * / = 0 1 ... 9 count from 0: 3 is 9, ? is 0, = is 5, 1 is 7, 7 is 13.
    inputs = JOINT.parse("arithmetic: 3 4 ? 5 ? = 17")
    spelled = bits("00 1001 1010 0000 1011 0000 0101 0111 1101")
    assert inputs.tolist() == spelled + [0] * (JOINT.seq_len - len(spelled))
    answer = JOINT.parse_answer(inputs, "* +")
    assert answer.tolist() == [0] * 10 + bits("0011") + [0] * 4 + bits("0001") + [0] * (JOINT.seq_len - 22)


def test_paper_sizes() -> None:
    assert PAPER.seq_len == 2 + 900 * 3
    assert {name: part.bits for name, part in PAPER.parts.items()} == {
        "arithmetic": 4,
        "sudoku": 4,
        "life": 4,
        "maze": 3,
    }
    assert len(PAPER.vocab) == 3
    assert list(PAPER.splits)[:4] == ["train", "val", "arithmetic.id", "arithmetic.ood"]
    assert {"sudoku.test", "maze.test", "life.in_range", "life.plus_10", "life.unseen"} < set(PAPER.splits)
    assert PAPER.splits["life.unseen"].role == "ood" and PAPER.splits["sudoku.test"].role == "test"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("domain", [JOINT, PAPER], ids=["small", "paper"])
@settings(max_examples=20)
@given(data=st.data())
def test_decode_inverts_encode(domain: Joint, name: str, data: st.DataObject) -> None:
    part = domain.parts[name]
    shape = (2, part.domain.seq_len)
    tokens = data.draw(numpy_arrays(np.uint8, shape, elements=st.integers(0, len(part.domain.vocab) - 1)))
    for tagged in (True, False):
        stream = part.encode(tokens, domain.seq_len, tagged)
        assert stream.shape == (2, domain.seq_len) and stream.max() <= 2
        assert (part.decode(stream) == tokens).all()
    assert domain.part_of(part.encode(tokens, domain.seq_len, tagged=True)[0]).domain.name == name


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_encode_inverts_decode_wherever_bits_spell_symbols(name: str, data: st.DataObject) -> None:
    part = JOINT.parts[name]
    stream = data.draw(numpy_arrays(np.uint8, (1, JOINT.seq_len), elements=st.integers(0, 3)))
    tokens = part.decode(stream)
    assert (tokens < len(part.domain.vocab)).all()
    again = part.encode(tokens, JOINT.seq_len, tagged=False)
    kept = np.repeat(tokens[0] != 0, part.bits)
    assert (again[0, 2 : part.length][kept] == stream[0, 2 : part.length][kept]).all()
    # Every block of proper bits that numbers a symbol is kept.
    for block, token in zip(stream[0, 2 : part.length].reshape(-1, part.bits), tokens[0], strict=True):
        if set(block.tolist()) <= {1, 2}:
            number = int("".join(str(bit - 1) for bit in block), 2)
            assert token == (number + 1 if number + 1 < len(part.domain.vocab) else 0)
        else:
            assert token == 0


@pytest.mark.parametrize("name", NAMES)
def test_each_domain_is_recovered(name: str) -> None:
    part = JOINT.parts[name]
    own_inputs, own_labels = part.domain.sample(seed=1, count=12)
    inputs, labels = JOINT.sample(seed=1, count=48)
    mine = slice(NAMES.index(name), None, 4)
    assert (part.decode(inputs[mine]) == own_inputs).all()
    assert (part.decode(labels[mine]) == own_labels).all()
    assert JOINT.check(inputs, labels).all()
    for bits_in, bits_out, tokens, answer in zip(inputs[mine], labels[mine], own_inputs, own_labels, strict=True):
        assert JOINT.part_of(bits_in).domain.name == name
        assert JOINT.format(bits_in) == f"{name}: {part.domain.format(tokens)}"
        assert (JOINT.parse(JOINT.format(bits_in)) == bits_in).all()
        assert JOINT.to_json(bits_in) == {"domain": name, "puzzle": part.domain.to_json(tokens)}
        assert (JOINT.from_json(JOINT.to_json(bits_in)) == bits_in).all()
        text = JOINT.format_answer(bits_in, bits_out)
        assert text == part.domain.format_answer(tokens, answer)
        assert part.domain.check(tokens[None], part.decode(JOINT.parse_answer(bits_in, text)[None]))[0]
        assert JOINT.answer_to_json(bits_in, bits_out) == part.domain.answer_to_json(tokens, answer)
        assert JOINT.explain(bits_in, bits_out) == ""
        solved = JOINT.solutions(bits_in)
        assert len(solved) >= 1 and JOINT.check(np.stack([bits_in] * len(solved)), np.stack(solved)).all()


@pytest.mark.parametrize("name", NAMES)
def test_wrong_and_undecodable_bits_are_wrong_answers(name: str) -> None:
    inputs, labels = (rows[NAMES.index(name) :: 4] for rows in JOINT.sample(seed=2, count=24))
    part = JOINT.parts[name]
    rng = np.random.default_rng(0)
    for junk in (0, 2, 3, 255):  # all bits 1 is a symbol in arithmetic, but no operator
        for puzzle, label in zip(inputs, labels, strict=True):
            place = int(rng.choice(np.flatnonzero(label)))
            answer = label.copy()
            block = slice(place - (place - 2) % part.bits, place - (place - 2) % part.bits + part.bits)
            answer[block] = junk
            assert not JOINT.check(puzzle[None], answer[None])[0]
            assert JOINT.explain(puzzle, answer)
            assert isinstance(JOINT.format_answer(puzzle, answer), str)
            JOINT.answer_to_json(puzzle, answer)
            JOINT.render(puzzle, answer)
            ElementTree.fromstring(JOINT.svg(puzzle, answer))


@settings(max_examples=40)
@given(numpy_arrays(np.uint8, (4, JOINT.seq_len)))
def test_any_prediction_can_be_judged_and_shown(answers: Tokens) -> None:
    accepted = JOINT.check(ONE_OF_EACH, answers)
    for puzzle, answer, good in zip(ONE_OF_EACH, answers, accepted, strict=True):
        assert (JOINT.explain(puzzle, answer) == "") == good
        JOINT.format_answer(puzzle, answer)
        JOINT.answer_to_json(puzzle, answer)


def test_splits_are_the_domains_own(built: dict[str, Arrays]) -> None:
    assert list(built) == list(JOINT.splits)
    for name, part in JOINT.parts.items():
        own = part.domain.build(seed=3)
        for split, arrays in own.items():
            joint = split if split in ("train", "val") else f"{name}.{split}"
            inputs, labels = examples(JOINT, built, joint)
            mine = JOINT._tags(inputs) == part.tag
            assert sorted(map(bytes, part.decode(inputs[mine]))) == sorted(map(bytes, arrays["inputs"]))
            if split not in ("train", "val"):
                assert mine.all()
            pairs = {bytes(i): bytes(o) for i, o in zip(arrays["inputs"], arrays["labels"], strict=True)}
            for one, other in zip(part.decode(inputs[mine]), part.decode(labels[mine]), strict=True):
                assert pairs[bytes(one)] == bytes(other)


def test_labels_are_accepted_and_splits_are_disjoint(built: dict[str, Arrays]) -> None:
    seen: set[str] = set()
    for split in built:
        inputs, labels = examples(JOINT, built, split)
        assert JOINT.check(inputs, labels).all()
        assert inputs.max() == labels.max() == 2 and (labels[:, :2] == 0).all()
        puzzles = texts(inputs)
        assert len(set(puzzles)) == len(puzzles)
        assert not seen & set(puzzles)
        seen |= set(puzzles)


def test_the_first_examples_are_of_every_domain(built: dict[str, Arrays]) -> None:
    inputs, _ = examples(JOINT, built, "val")
    assert {JOINT.part_of(row).domain.name for row in inputs[: len(inputs) // 2]} == set(NAMES)


def test_equal_mixture_takes_the_domains_in_turn(built: dict[str, Arrays]) -> None:
    equal = Joint(JointParams.model_validate({"parts": PARTS, "mixture": "equal"}))
    source = equal.source("train", built["train"], 3)
    union = JOINT.source("train", built["train"], 3)
    assert len(source) == len(union)
    index = np.random.default_rng(0).permutation(len(source))
    seen: set[bytes] = set()
    for epoch in range(12):
        batch = source.fetch(index, np.full(len(index), epoch))
        counts = np.bincount(JOINT._tags(batch.inputs), minlength=4)
        assert counts.max() - counts.min() <= 1
        assert JOINT.check(batch.inputs, batch.labels).all()
        seen |= set(map(bytes, batch.inputs))
    assert seen == set(map(bytes, examples(JOINT, built, "train")[0]))
    val = equal.source("val", built["val"], 3)
    assert (val.fetch(np.arange(9), np.zeros(9, dtype=np.int64)).inputs == examples(JOINT, built, "val")[0][:9]).all()


def test_fewer_domains_keep_their_tags() -> None:
    some = Joint(JointParams.model_validate({"domains": ["maze", "sudoku"], "parts": PARTS}))
    assert list(some.parts) == ["sudoku", "maze"] and some.parts["maze"].tag == JOINT.parts["maze"].tag
    inputs, labels = some.sample(seed=0, count=6)
    assert some.check(inputs, labels).all()
    puzzle = JOINT.parse("arithmetic: 3 4 ? 5 ? = 17")[: some.seq_len]
    assert not some.check(puzzle[None], puzzle[None])[0]
    with pytest.raises(UserError, match="name none of: sudoku, maze"):
        some.format(puzzle)
    with pytest.raises(UserError, match="unknown domain 'arithmetic'"):
        some.parse("arithmetic: 3 4 ? 5 ? = 17")


def test_same_bytes_for_any_number_of_workers(built: dict[str, Arrays]) -> None:
    two = JOINT.build(seed=3, workers=2)
    for split, arrays in built.items():
        assert {name: array.tobytes() for name, array in arrays.items()} == {
            name: array.tobytes() for name, array in two[split].items()
        }


def test_on_disk_and_back(tmp_path: Path) -> None:
    config = DataConfig.model_validate({"domain": "joint", "seed": 3, "parts": PARTS})
    path = build(config, tmp_path)
    assert set(verify(path, sample=30).checked) == set(JOINT.splits)
    dataset = Dataset.open(path)
    for split, count in dataset.counts.items():
        assert len(dataset.source(split)) == count
    index = np.arange(20)
    assert JOINT.check(*_fetch(dataset, index)).all()
    with pytest.raises(UserError, match=r"unknown key 'data.parts.maze.heigth': did you mean 'height'"):
        DataConfig.model_validate({"domain": "joint", "parts": {"maze": {"heigth": 9}}})


def _fetch(dataset: Dataset, index: np.ndarray[Any, np.dtype[np.int64]]) -> tuple[Tokens, Tokens]:
    batch = dataset.source("train").fetch(index, np.zeros_like(index))
    return batch.inputs, batch.labels


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("3 4 ? 5 ? = 17", "does not say its domain"),
        ("chess: e4", "unknown domain 'chess'"),
        ("sudoko: 1234", "did you mean 'sudoku'"),
        ("arithmetic: 3 4 ? 0 ? = 17", "has '0' at position 4"),
        ("maze: ###", "row"),
    ],
)
def test_bad_puzzles_give_one_clear_line(text: str, complaint: str) -> None:
    with pytest.raises(UserError) as error:
        JOINT.parse(text)
    assert complaint in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "puzzle",
    [None, "sudoku: 1", {}, {"domain": "sudoku"}, {"domain": 3, "puzzle": {}}, {"domain": "life", "puzzle": 5}],
)
def test_bad_json_is_a_user_error(puzzle: object) -> None:
    with pytest.raises(UserError):
        JOINT.from_json(puzzle)


def test_bits_that_name_no_domain_are_a_user_error() -> None:
    nothing = np.zeros(JOINT.seq_len, dtype=np.uint8)
    assert not JOINT.check(nothing[None], nothing[None])[0]
    with pytest.raises(UserError):
        JOINT.format(nothing)


@pytest.mark.parametrize("bad", [{"domains": []}, {"domains": ["maze", "maze"]}, {"domains": ["arc1"]}, {"maze": {}}])
def test_bad_parameters_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        JointParams.model_validate(bad)


def test_pictures_mark_the_symbols_whose_bits_changed() -> None:
    inputs, labels = JOINT.sample(seed=0, count=4)
    for puzzle, answer in zip(inputs, labels, strict=True):
        part = JOINT.part_of(puzzle)
        assert part.domain.name in JOINT.render(puzzle).plain
        changed = np.zeros(JOINT.seq_len, dtype=np.bool_)
        assert JOINT.svg(puzzle, answer, changed) == JOINT.svg(puzzle, answer)
        changed[int(np.flatnonzero(answer)[0])] = True
        own = np.zeros(part.domain.seq_len, dtype=np.bool_)
        own[(int(np.flatnonzero(answer)[0]) - 2) // part.bits] = True
        tokens, symbols = part.decode(puzzle[None])[0], part.decode(answer[None])[0]
        assert JOINT.svg(puzzle, answer, changed) == part.domain.svg(tokens, symbols, own) != JOINT.svg(puzzle, answer)
