"""Reverse Polish puzzles: their shapes, their values, every operator assignment that fits, and the splits.

While it is being made, a puzzle is one integer, its key (shape, operands, value), and an assignment of its operators is
another, its code: two bits for each operator, the first operator in the highest ones. Codes therefore sort the way
assignments do when they are read from left to right in the order + - * /.
"""

from dataclasses import dataclass
from functools import cache
from itertools import combinations_with_replacement
from typing import Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from ponder.base.errors import UserError
from ponder.domains.contract import PAD, Arrays, Bools, Ints, Params, Progress, Tokens, rng_for, run_chunks

MASK, ADD, EQUALS, ZERO = 1, 2, 6, 7
MAX_OPERANDS = 8
MAX_VALUE = 999

DRAWS = 1 << 17
SEARCHES = 1 << 13
IN_CACHE = 1 << 20
"""Assignments tried at once in `search`."""
VAL_SHARE = 0.05
"""Of the operand multisets left for training, how many go to `val`."""
ROUND = 64
"""At most so many chunks of draws between two looks at what is still missing."""
EXHAUSTED = 0.02
"""Give up on a split when new puzzles for it come at less than this fraction of the first rate."""
SPLITS = ("train", "val", "id", "ood")
_SPLIT, _DRAW = 1, 2

Floats = npt.NDArray[np.float32]


# Shapes and keys ----------------------------------------------------------------------------------------------------


@cache
def shapes(operands: int) -> tuple[str, ...]:
    """All reverse Polish expressions of that many operands, `d` an operand and `?` an operator."""
    if operands == 1:
        return ("d",)
    return tuple(
        left + right + "?"
        for k in range(1, operands)
        for left in shapes(k)
        for right in shapes(operands - k)
    )  # fmt: skip


@dataclass(frozen=True)
class _Shapes:
    """Every shape of 2..8 operands in one table, so that a batch may mix them. Positions run over the expression."""

    text: tuple[str, ...]
    first: Ints
    """Number of operands -> its first shape; the shapes of one number of operands stand together."""
    operands: Ints
    is_operand: Bools
    is_operator: Bools
    slot: Ints
    """Which operand, or which operator, stands at the position."""


@cache
def _table() -> _Shapes:
    text = tuple(s for n in range(2, MAX_OPERANDS + 1) for s in shapes(n))
    first = np.cumsum([0, 0, 0] + [len(shapes(n)) for n in range(2, MAX_OPERANDS + 1)])
    symbols = np.array([list(s.ljust(2 * MAX_OPERANDS - 1)) for s in text])
    is_operand, is_operator = symbols == "d", symbols == "?"
    slot = np.where(is_operand, is_operand.cumsum(1), is_operator.cumsum(1)) - 1
    return _Shapes(text, first, is_operand.sum(1), is_operand, is_operator, slot)


def _pack(shape: Ints, operands: Ints, value: Ints) -> Ints:
    """Operands (1..9, and 1 beyond the shape's own) of [n, 8] into one integer with shape and value."""
    packed = shape.copy()
    for column in operands.T:
        packed = packed * 9 + (column - 1)
    return packed * (MAX_VALUE + 1) + value


def _unpack(keys: Ints) -> tuple[Ints, Ints, Ints]:
    packed, value = np.divmod(keys, MAX_VALUE + 1)
    operands = np.empty((len(keys), MAX_OPERANDS), dtype=np.int64)
    for i in reversed(range(MAX_OPERANDS)):
        packed, digit = np.divmod(packed, 9)
        operands[:, i] = digit + 1
    return packed, operands, value


def _inputs(shape: Ints, operands: Ints, value: Ints, seq_len: int) -> Tokens:
    table = _table()
    expression = np.where(table.is_operator[shape], MASK, 0)
    expression += table.is_operand[shape] * (ZERO + np.take_along_axis(operands, table.slot[shape].clip(0), axis=1))
    inputs = np.zeros((len(shape), 2 * MAX_OPERANDS + len(str(MAX_VALUE))), dtype=np.uint8)
    inputs[:, : expression.shape[1]] = expression
    rows, end = np.arange(len(shape)), 2 * table.operands[shape] - 1
    inputs[rows, end] = EQUALS
    width = 1 + (value >= 10) + (value >= 100)
    for i in range(len(str(MAX_VALUE))):
        here = i < width
        digit = value[here] // 10 ** (width[here] - 1 - i) % 10
        inputs[rows[here], end[here] + 1 + i] = ZERO + digit
    return inputs[:, :seq_len]


def _labels(shape: Ints, codes: Ints, seq_len: int) -> Tokens:
    table = _table()
    last = table.operands[shape, None] - 2
    operator = (codes[:, None] >> (2 * (last - table.slot[shape])).clip(0)) & 3
    labels = np.zeros((len(shape), seq_len), dtype=np.uint8)
    expression = np.where(table.is_operator[shape], ADD + operator, PAD)
    width = min(seq_len, expression.shape[1])
    labels[:, :width] = expression[:, :width]
    return labels


# The value of an assignment -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evaluation:
    """What answers come to. Where one cannot be evaluated, `fault` is the position that stops it."""

    value: Ints
    fault: Ints
    """-1 where there is none."""
    left: Ints
    right: Ints
    """The two numbers the faulty (or else the last) operator was applied to."""


def evaluate(inputs: Tokens, answers: Tokens) -> Evaluation:
    """Run the stack machine over examples [n, seq_len], taking each masked operator from the answer."""
    count, width = inputs.shape
    in_expression = np.cumsum(inputs == EQUALS, axis=1) == 0
    is_operand = in_expression & (inputs >= ZERO)
    is_operator = in_expression & (inputs == MASK)
    stack = np.zeros((count, width + 2), dtype=np.int64)
    depth = np.zeros(count, dtype=np.int64)
    fault = np.full(count, -1)
    lefts, rights = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    for position in range(width):
        rows = np.flatnonzero(is_operand[:, position])
        stack[rows, depth[rows]] = inputs[rows, position].astype(np.int64) - ZERO
        depth[rows] += 1

        rows = np.flatnonzero(is_operator[:, position] & (fault < 0))
        depth[rows] -= 1
        left, right = stack[rows, depth[rows] - 1], stack[rows, depth[rows]]
        operator = answers[rows, position].astype(np.int64) - ADD
        divides = operator == 3
        quotient, rest = np.divmod(left, np.where(right == 0, 1, right))
        value = np.where(operator == 0, left + right, left - right)
        value = np.where(operator == 2, left * right, value)
        stack[rows, depth[rows] - 1] = np.where(divides, quotient, value)
        lefts[rows], rights[rows] = left, right
        wrong = (operator < 0) | (operator > 3) | (divides & ((right == 0) | (rest != 0)))
        fault[rows[wrong]] = position
    return Evaluation(stack[:, 0], fault, lefts, rights)


# All assignments at once --------------------------------------------------------------------------------------------


def matches(shape: str, operands: Ints, value: Ints) -> Bools:
    """Which assignments give each puzzle of one shape its value: [n, 4^(operators - 1), 4], in the order of codes.

    Float32 is exact here: fewer than eight operands stay below 9^7 < 2^24, a larger result of the last operator cannot
    round to a value of three digits, and a quotient that is not whole cannot round to a whole one. NaN stands for an
    inexact division and swallows all that is built on it.
    """
    stack: list[Floats] = []
    leaves = iter(operands.T.astype(np.float32))
    for symbol in shape[:-1]:
        if symbol == "d":
            stack.append(next(leaves)[:, None])
        else:
            right = stack.pop()
            stack.append(_combine(stack.pop(), right))
    left, right = stack[0][:, :, None], stack[1][:, None, :]
    target = value.astype(np.float32)[:, None, None]
    found = np.empty((len(value), left.shape[1], right.shape[2], 4), dtype=np.bool_)
    np.equal(left + right, target, out=found[..., 0])
    np.equal(left - right, target, out=found[..., 1])
    np.equal(left * right, target, out=found[..., 2])
    np.logical_and(left == target * right, right != 0, out=found[..., 3])
    return found.reshape(len(value), -1, 4)


def _combine(left: Floats, right: Floats) -> Floats:
    """The values [n, a] and [n, b] of two subtrees under each operator: [n, a * b * 4]."""
    left, right = left[:, :, None], right[:, None, :]
    out = np.empty((len(left), left.shape[1], right.shape[2], 4), dtype=np.float32)
    np.add(left, right, out=out[..., 0])
    np.subtract(left, right, out=out[..., 1])
    np.multiply(left, right, out=out[..., 2])
    with np.errstate(divide="ignore", invalid="ignore"):
        quotient = left / right
        quotient[quotient - np.rint(quotient) != 0] = np.nan
    out[..., 3] = quotient
    return out.reshape(len(left), -1)


def search(keys: Ints) -> tuple[Ints, Ints]:
    """For each puzzle, the first code that gives its value, and how many codes do."""
    shape, operands, value = _unpack(keys)
    first, count = np.zeros(len(keys), dtype=np.int64), np.zeros(len(keys), dtype=np.int64)
    for one in np.unique(shape):
        group, text = np.flatnonzero(shape == one), _table().text[one]
        batch = max(1, IN_CACHE >> 2 * text.count("?"))
        for start in range(0, len(group), batch):
            rows = group[start : start + batch]
            found = matches(text, operands[rows], value[rows]).reshape(len(rows), -1)
            first[rows] = found.argmax(axis=1)
            count[rows] = np.count_nonzero(found, axis=1)
    return first, count


# Drawing puzzles and filling the splits -----------------------------------------------------------------------------


class ArithmeticParams(Params):
    min_operands: int = Field(default=3, ge=2, le=MAX_OPERANDS, description="fewest operands of an expression")
    max_operands: int = Field(default=8, ge=2, le=MAX_OPERANDS, description="most operands of an expression")
    train: int = Field(default=900_000, ge=1, description="training examples")
    val: int = Field(
        default=10_000, ge=1, description="examples of `val`, whose operand multisets are in no other split"
    )
    eval_size: int = Field(default=10_000, ge=1, description="examples of each evaluation split")
    labels: Literal["sampled", "canonical", "unique"] = Field(
        default="canonical",
        description="sampled: the operators as drawn; canonical: the first that fit, in the order + - * /; "
        "unique: only puzzles that one assignment fits",
    )
    align: Literal["left", "right"] = Field(
        default="left", description="where padding goes; right puts the value at the same positions in every puzzle"
    )
    low: int = Field(default=0, ge=0, le=MAX_VALUE, description="smallest value of an expression")
    high: int = Field(default=101, ge=0, le=MAX_VALUE, description="largest value in train, val and id")
    ood_high: int = Field(
        default=201, ge=0, le=MAX_VALUE, description="largest value in ood, which starts above `high`"
    )
    held_out: float = Field(default=0.2, gt=0, lt=0.9, description="share of the operand multisets kept for id and ood")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_operands > self.max_operands:
            raise ValueError(f"min_operands {self.min_operands} is above max_operands {self.max_operands}")
        if not self.low <= self.high < self.ood_high:
            raise ValueError(f"want low <= high < ood_high, got {self.low}, {self.high}, {self.ood_high}")
        return self

    @property
    def seq_len(self) -> int:
        return 2 * self.max_operands + len(str(self.ood_high))


def draw(params: ArithmeticParams, seed: int, chunk: int, size: int = DRAWS) -> tuple[Ints, Ints]:
    """Keys and codes of the expressions kept out of `size` draws, in the order drawn.

    Number of operands, shape, operands and operators are uniform; an expression with an inexact division or a value out
    of range is dropped, and for `unique` labels one whose value other operators give too.
    """
    table, rng = _table(), rng_for(seed, _DRAW, chunk)
    count = rng.integers(params.min_operands, params.max_operands + 1, size)
    shape = rng.integers(table.first[count], table.first[count + 1])
    operands = rng.integers(1, 10, (size, MAX_OPERANDS))
    operands[np.arange(MAX_OPERANDS) >= count[:, None]] = 1
    codes = rng.integers(0, 1 << 2 * (count - 1))
    width = 2 * MAX_OPERANDS
    result = evaluate(_inputs(shape, operands, np.zeros_like(shape), width), _labels(shape, codes, width))
    kept = (result.fault < 0) & (result.value >= params.low) & (result.value <= params.ood_high)
    keys, codes = _pack(shape[kept], operands[kept], result.value[kept]), codes[kept]
    if params.labels == "unique":
        keys, codes = _unseen(keys, codes, keys[:0])
        alone = search(keys)[1] == 1
        keys, codes = keys[alone], codes[alone]
    return keys, codes


def encode(params: ArithmeticParams, keys: Ints, codes: Ints) -> Arrays:
    shape, operands, value = _unpack(keys)
    inputs, labels = _inputs(shape, operands, value, params.seq_len), _labels(shape, codes, params.seq_len)
    return {"inputs": aligned(params, inputs, inputs), "labels": aligned(params, labels, inputs)}


def aligned(params: ArithmeticParams, tokens: Tokens, inputs: Tokens) -> Tokens:
    """Tokens [n, seq_len] of the left-aligned puzzles `inputs`, moved to where the parameters want them."""
    if params.align == "left":
        return tokens
    source = np.arange(params.seq_len) - np.count_nonzero(inputs == PAD, axis=1)[:, None]
    moved: Tokens = np.where(source < 0, PAD, np.take_along_axis(tokens, source.clip(0), axis=1)).astype(np.uint8)
    return moved


def _multiset(shape: Ints, operands: Ints) -> Ints:
    """The operands in ascending order, as one decimal number."""
    digits = np.where(np.arange(MAX_OPERANDS) < _table().operands[shape, None], operands, 0).astype(np.uint8)
    digits.sort(axis=1)
    return digits @ 10 ** np.arange(MAX_OPERANDS)[::-1]


@dataclass(frozen=True)
class Homes:
    """Where each operand multiset belongs (0 train, 1 val, 2 tests), in the same shares for any number of operands."""

    multiset: Ints
    home: Ints

    @staticmethod
    def of(params: ArithmeticParams, seed: int) -> "Homes":
        multiset, home = [], []
        for n in range(params.min_operands, params.max_operands + 1):
            every = [int("".join(map(str, m))) for m in combinations_with_replacement(range(1, 10), n)]
            test = max(1, round(params.held_out * len(every)))
            val = max(1, round(VAL_SHARE * (len(every) - test)))
            multiset.append(rng_for(seed, _SPLIT, n).permutation(every))
            home.append(np.repeat([2, 1, 0], [test, val, len(every) - test - val]))
        order = np.argsort(flat := np.concatenate(multiset))
        return Homes(flat[order], np.concatenate(home)[order])

    def split(self, params: ArithmeticParams, keys: Ints) -> Ints:
        """0 train, 1 val, 2 id, 3 ood, -1 none: a training multiset with a value beyond the training range."""
        shape, operands, value = _unpack(keys)
        home = self.home[np.searchsorted(self.multiset, _multiset(shape, operands))]
        beyond = value > params.high
        return np.where(beyond, np.where(home == 2, 3, -1), home)


def build(params: ArithmeticParams, seed: int, workers: int, progress: Progress) -> dict[str, Arrays]:
    """Draw in rounds until every split is full: no puzzle twice, no operand multiset of a test in training."""
    wanted = np.array([params.train, params.val, params.eval_size, params.eval_size])
    homes = Homes.of(params, seed)
    seen = keys = codes = splits = np.empty(0, dtype=np.int64)
    done, chunks, first_rate = 0, 1, np.zeros(len(SPLITS))
    while (missing := wanted - np.bincount(splits, minlength=len(SPLITS))).any():
        jobs = [(params, seed, chunk) for chunk in range(done, done + chunks)]
        drawn = list(run_chunks(draw, jobs, workers, progress, "drawing expressions"))
        key, code = _unseen(np.concatenate([k for k, _ in drawn]), np.concatenate([c for _, c in drawn]), seen)
        seen = np.union1d(seen, key)
        split = homes.split(params, key)
        rate = np.bincount(split[split >= 0], minlength=len(SPLITS)) / chunks
        first_rate = rate if done == 0 else first_rate
        done += chunks

        rows = _quota(split, missing)
        keys, codes, splits = np.append(keys, key[rows]), np.append(codes, code[rows]), np.append(splits, split[rows])
        missing = wanted - np.bincount(splits, minlength=len(SPLITS))
        for s in np.flatnonzero((missing > 0) & (rate <= EXHAUSTED * first_rate)):
            raise UserError(
                f"arithmetic has only about {wanted[s] - missing[s]} different puzzles for {SPLITS[s]} at these "
                f"parameters, {wanted[s]} are asked for; ask for fewer or raise max_operands"
            )
        # Short expressions run out first, so the rate falls: ask for more than it promises.
        needed = np.ceil(1.3 * missing / np.maximum(rate, 1)).max()
        chunks = int(min(max(needed, 1), 8 * done, ROUND))
    if params.labels == "canonical":
        order = np.argsort(keys)
        sorted_keys = [(keys[rows],) for rows in np.split(order, range(SEARCHES, len(keys), SEARCHES))]
        found = list(run_chunks(search, sorted_keys, workers, progress, "searching operators"))
        codes[order] = np.concatenate([first for first, _ in found])
    return {name: encode(params, keys[splits == s], codes[splits == s]) for s, name in enumerate(SPLITS)}


def _unseen(keys: Ints, codes: Ints, seen: Ints) -> tuple[Ints, Ints]:
    """The first of each key that is not in `seen` (sorted), in the order given."""
    unique, index = np.unique(keys, return_index=True)
    index = np.sort(index[~np.isin(unique, seen, assume_unique=True)])
    return keys[index], codes[index]


def _quota(split: Ints, quota: Ints) -> Ints:
    """The rows of the first `quota[s]` puzzles of each split s, in the order given."""
    return np.sort(np.concatenate([np.flatnonzero(split == s)[:most] for s, most in enumerate(quota)]))
