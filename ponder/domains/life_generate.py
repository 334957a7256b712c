"""The Game of Life on packed rows, and the paper's examples and splits made with it (appendix, "Game of Life").

A row of a board is one uint32, column c in bit c, so that one operation treats a whole row of many boards at once.
Boards of different shapes share an array: unused rows and bits are 0 and stay so.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from ponder.domains.base import PAD, Arrays, Bools, Ints, Params, Progress, Tokens, rng_for, run_chunks
from ponder.errors import UserError

DEAD, ALIVE, ROW_END, BOARD_END, ZERO = 1, 2, 3, 4, 5
BEYOND = (1, 2, 3, 10)
"""How far past its training horizon a pattern is asked for in the extrapolation splits."""
MAX_STEPS = 99
"""k is written with two digits."""

Words = npt.NDArray[np.uint32]

TAG = 0x11FE
DRAW, SPLIT, SAMPLE = range(3)
DRAW_CHUNK = 10_000
PIECE = 1024


class LifeParams(Params):
    """The defaults are the paper's, and, where it is silent, what gives its number of training examples."""

    configurations: int = Field(200_000, ge=1, description="boards drawn, before long, empty and repeated ones go")
    min_side: int = Field(2, ge=2, le=32, description="smallest height and width")
    max_side: int = Field(17, ge=2, le=32, description="largest height and width")
    alive: float = Field(0.4, gt=0, lt=1, description="probability that a cell is alive at the start")
    max_steps: int = Field(50, ge=2, le=MAX_STEPS, description="where a trajectory ends that neither dies nor repeats")
    max_chars: int = Field(250, ge=5, description="longest board, in cells and row separators; longer ones go")
    boundary: Literal["dead", "torus"] = Field("dead", description="what lies beyond the edge: nothing, or the far edge")
    held_out: float = Field(0.15, gt=0, lt=1, description="share of patterns kept for the split `unseen`")
    horizon: float = Field(0.5, gt=0, le=1, description="share of a trajectory, rounded up, whose steps train")
    held_out_steps: float = Field(
        0.15, gt=0, lt=1, description="share of the steps below the horizon kept for `val` and `in_range`"
    )
    val: int = Field(10_000, ge=1, description="examples in `val`")
    eval_size: int = Field(10_000, ge=1, description="examples in each other evaluation split")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.min_side > self.max_side:
            raise ValueError(f"min_side {self.min_side} is above max_side {self.max_side}; lower it")
        smallest = self.min_side * (self.min_side + 1) - 1
        if smallest > self.max_chars:
            raise ValueError(f"max_chars {self.max_chars} leaves no board; the smallest one has {smallest} characters")
        furthest = int(horizons(np.array([self.max_steps]), self.horizon)[0]) + max(BEYOND)
        if furthest > MAX_STEPS:
            raise ValueError(
                f"max_steps {self.max_steps} at horizon {self.horizon} asks for step {furthest}; at most {MAX_STEPS} "
                f"can be written, lower one of them"
            )
        return self

    @property
    def seq_len(self) -> int:
        """The longest board, the separator and two digits."""
        return min(self.max_chars, self.max_side * (self.max_side + 1) - 1) + 3


@dataclass(frozen=True)
class Boards:
    rows: Words
    """[board, row], as many rows as the tallest board may have."""
    heights: Words
    widths: Words

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, index: Ints | Bools | slice) -> "Boards":
        return Boards(self.rows[index], self.heights[index], self.widths[index])

    def trimmed(self) -> "Boards":
        """Without the rows that no board uses."""
        return Boards(self.rows[:, : max(self.heights, default=0)], self.heights, self.widths)

    def chars(self) -> Words:
        return self.heights * (self.widths + 1) - 1

    def shapes(self) -> Iterator[tuple[int, int, Ints]]:
        """(height, width, which boards) for each shape that occurs."""
        order = np.lexsort((self.widths, self.heights))
        code = self.heights[order] * 64 + self.widths[order]
        for index in np.split(order, np.flatnonzero(np.diff(code)) + 1):
            if len(index):
                yield int(self.heights[index[0]]), int(self.widths[index[0]]), index


@dataclass(frozen=True)
class Examples:
    which: Ints
    """Index into the boards."""
    steps: Ints

    def take(self, index: Ints | Bools) -> "Examples":
        return Examples(self.which[index], self.steps[index])


def pack(cells: npt.NDArray[np.bool_]) -> Words:
    """[..., row, column] -> [..., row]."""
    columns = np.zeros((*cells.shape[:-1], 32), dtype=np.bool_)
    columns[..., : cells.shape[-1]] = cells
    return np.packbits(columns, axis=-1, bitorder="little").view("<u4")[..., 0].astype(np.uint32)


def unpack(rows: Words, width: int) -> Tokens:
    """[..., row] -> [..., row, column], 0 or 1."""
    octets = np.ascontiguousarray(rows, dtype="<u4")[..., None].view(np.uint8)
    return np.unpackbits(octets, axis=-1, count=width, bitorder="little")


class Automaton:
    """B3/S23 applied to many boards at once; `state` is [row, board], so that neighbouring rows are whole arrays."""

    def __init__(self, boards: Boards, torus: bool) -> None:
        self.state = np.ascontiguousarray(boards.rows.T)
        self.widths, self.torus = boards.widths, torus
        self.last_row = boards.heights.astype(np.int64) - 1
        full = np.uint32(0xFFFFFFFF) >> (np.uint32(32) - boards.widths)
        self.mask = np.where(np.arange(len(self.state))[:, None] <= self.last_row, full, np.uint32(0))

    def keep(self, index: Bools) -> None:
        self.state, self.mask = self.state[:, index], self.mask[:, index]
        self.widths, self.last_row = self.widths[index], self.last_row[index]

    def step(self) -> None:
        """Adds the nine cells around each position in binary, one bit plane per weight."""
        here = self.state
        left, right = here << 1, here >> 1
        if self.torus:
            left |= here >> (self.widths - 1)
            right |= here << (self.widths - 1)
        odd, pair = _add(left, here, right)
        one, carry = _add(self._above(odd), odd, self._below(odd))
        # The sum is `one` plus twice the number of these four that are set.
        a, b, c, d = self._above(pair), pair, self._below(pair), carry
        ab, cd, both_ab, both_cd = a ^ b, c ^ d, a & b, c & d
        single = (ab ^ cd) & ~(both_ab | both_cd)
        double = (ab & cd) | ((both_ab ^ both_cd) & ~(ab | cd))
        # A sum of 3 with the cell itself: a birth, or two neighbours; a sum of 4 and alive: three neighbours.
        self.state = ((one & single) | (here & ~one & double)) & self.mask

    def _above(self, plane: Words) -> Words:
        out = np.empty_like(plane)
        out[1:] = plane[:-1]
        out[0] = plane[self.last_row, np.arange(plane.shape[1])] if self.torus else 0
        return out

    def _below(self, plane: Words) -> Words:
        out = np.empty_like(plane)
        out[:-1] = plane[1:]
        out[-1] = 0
        if self.torus:
            out[self.last_row, np.arange(plane.shape[1])] = plane[0]
        return out


def _add(a: Words, b: Words, c: Words) -> tuple[Words, Words]:
    """Sum and carry of three bit planes."""
    ab = a ^ b
    return ab ^ c, (a & b) | (c & ab)


def trajectory_lengths(boards: Boards, torus: bool, max_steps: int) -> Ints:
    """The first step at which a board is empty or as it was before, at most `max_steps`; 0 for an empty start."""
    boards = boards.trimmed()
    lengths = np.where(boards.rows.any(axis=1), max_steps, 0)
    running = np.flatnonzero(lengths)
    automaton = Automaton(boards.take(running), torus)
    past = automaton.state[None]
    for step in range(1, max_steps):
        automaton.step()
        repeated = (past == automaton.state).all(axis=1).any(axis=0)
        ended = repeated | ~automaton.state.any(axis=0)
        lengths[running[ended]] = step
        running = running[~ended]
        automaton.keep(~ended)
        past = np.concatenate([past[..., ~ended], automaton.state[None]])
    return lengths


def evolve(boards: Boards, examples: Examples, torus: bool) -> Boards:
    """Each example's board after its steps; the rule goes on after death and inside a period."""
    boards = boards.trimmed()
    rows = np.empty((len(examples.which), boards.rows.shape[1]), dtype=np.uint32)
    automaton = Automaton(boards, torus)
    for step in range(int(max(examples.steps, default=0)) + 1):
        if step:
            automaton.step()
        due = np.flatnonzero(examples.steps == step)
        rows[due] = automaton.state.T[examples.which[due]]
    return Boards(rows, boards.heights[examples.which], boards.widths[examples.which])


def encode_cells(boards: Boards, length: int, row_end: int = PAD) -> Tokens:
    """Cells at their places in the sequence, `row_end` between rows, padding after."""
    tokens = np.zeros((len(boards), length), dtype=np.uint8)
    for height, width, index in boards.shapes():
        block = np.full((len(index), height, width + 1), row_end, dtype=np.uint8)
        block[:, :, :width] = unpack(boards.rows[index, :height], width) + DEAD
        tokens[index, : height * (width + 1) - 1] = block.reshape(len(index), -1)[:, :-1]
    return tokens


def encode(boards: Boards, steps: Ints, length: int) -> Tokens:
    """Puzzles: the board, the separator, two digits."""
    tokens = encode_cells(boards, length, ROW_END)
    example, end = np.arange(len(boards)), boards.chars().astype(np.int64)
    tokens[example, end] = BOARD_END
    tokens[example, end + 1] = ZERO + steps // 10
    tokens[example, end + 2] = ZERO + steps % 10
    return tokens


def decode(inputs: Tokens, max_side: int) -> tuple[Boards, Ints, Bools]:
    """Boards, steps, and which sequences are puzzles at all (the others give some board that means nothing)."""
    count, length = inputs.shape
    end = (inputs == BOARD_END).argmax(axis=1)
    width = ((inputs == BOARD_END) | (inputs == ROW_END)).argmax(axis=1)
    height = (end + 1) // (width + 1)
    possible = (width > 0) & (width <= max_side) & (height <= max_side) & (end + 3 <= length)
    height, width, end = (np.where(possible, value, 1) for value in (height, width, end))
    digits = np.clip(inputs[np.arange(count)[:, None], end[:, None] + [1, 2]].astype(np.int64) - ZERO, 0, 9)
    boards = Boards(np.zeros((count, max_side), np.uint32), height.astype(np.uint32), width.astype(np.uint32))
    for h, w, index in boards.shapes():
        block = inputs[index, : h * (w + 1)].reshape(len(index), h, w + 1)
        boards.rows[index, :h] = pack(block[:, :, :w] == ALIVE)
    steps = digits @ np.array([10, 1])
    return boards, steps, possible & (encode(boards, steps, length) == inputs).all(axis=1)


def make_examples(
    boards: Boards, examples: Examples, params: LifeParams, workers: int, progress: Progress
) -> tuple[Tokens, Tokens]:
    """(inputs, labels), filled piece by piece: at the paper's scale they take most of a gigabyte."""
    shape = (len(examples.which), params.seq_len)
    inputs, labels = np.zeros(shape, dtype=np.uint8), np.zeros(shape, dtype=np.uint8)
    pieces = _pieces(boards)
    owner, place = np.empty((2, len(boards)), dtype=np.int64)
    for number, piece in enumerate(pieces):
        owner[piece], place[piece] = number, np.arange(len(piece))
    order = np.argsort(owner[examples.which], kind="stable")
    sizes = np.bincount(owner[examples.which], minlength=len(pieces))
    members = np.split(order, np.cumsum(sizes)[:-1]) if pieces else []
    jobs = []
    for piece, member in zip(pieces, members, strict=True):
        local = Examples(place[examples.which[member]], examples.steps[member])
        jobs.append((boards.take(piece), local, params.boundary == "torus"))
    written = run_chunks(_write_piece, jobs, workers, progress, "writing examples")
    for member, (piece_inputs, piece_labels) in zip(members, written, strict=True):
        inputs[member, : piece_inputs.shape[1]] = piece_inputs
        labels[member, : piece_labels.shape[1]] = piece_labels
    return inputs, labels


def _write_piece(boards: Boards, examples: Examples, torus: bool) -> tuple[Tokens, Tokens]:
    length = int(boards.chars().max()) + 3
    inputs = encode(boards.take(examples.which), examples.steps, length)
    return inputs, encode_cells(evolve(boards, examples, torus), length)


def _pieces(boards: Boards) -> list[Ints]:
    """Boards of like shape together, so that a piece has few unused rows and its sequences little padding."""
    order = np.lexsort((boards.widths, boards.heights))
    return [order[start : start + PIECE] for start in range(0, len(order), PIECE)]


def measure(boards: Boards, params: LifeParams, workers: int, progress: Progress) -> Ints:
    """`trajectory_lengths` of all boards, in pieces."""
    pieces = _pieces(boards)
    jobs = [(boards.take(piece), params.boundary == "torus", params.max_steps) for piece in pieces]
    lengths = np.empty(len(boards), dtype=np.int64)
    found = run_chunks(trajectory_lengths, jobs, workers, progress, "following trajectories")
    for piece, result in zip(pieces, found, strict=True):
        lengths[piece] = result
    return lengths


def draw(params: LifeParams, rng: np.random.Generator, count: int) -> Boards:
    """`count` random boards, less those that are too long or empty."""
    side = params.max_side
    heights, widths = rng.integers(params.min_side, side + 1, (2, count), dtype=np.uint32)
    cells = rng.random((count, side, side), dtype=np.float32) < params.alive
    inside = np.arange(side)
    cells &= (inside[:, None] < heights[:, None, None]) & (inside < widths[:, None, None])
    boards = Boards(pack(cells), heights, widths)
    return boards.take((boards.chars() <= params.max_chars) & boards.rows.any(axis=1))


def draw_patterns(params: LifeParams, seed: int) -> Boards:
    """The distinct boards among `configurations` draws, in the order of their first appearance."""
    drawn = []
    for chunk, start in enumerate(range(0, params.configurations, DRAW_CHUNK)):
        count = min(DRAW_CHUNK, params.configurations - start)
        drawn.append(draw(params, rng_for(seed, TAG, DRAW, chunk), count))
    boards = Boards(
        np.concatenate([b.rows for b in drawn]),
        np.concatenate([b.heights for b in drawn]),
        np.concatenate([b.widths for b in drawn]),
    )
    keys = np.column_stack([boards.heights, boards.widths, boards.rows])
    _, first = np.unique(keys.view(f"V{keys.shape[1] * 4}").ravel(), return_index=True)
    return boards.take(np.sort(first))


def horizons(lengths: Ints, share: float) -> Ints:
    """The last step that trains, for trajectories of these lengths."""
    return np.ceil(lengths * share - 1e-9).astype(np.int64)


def choose(lengths: Ints, params: LifeParams, seed: int) -> dict[str, Examples]:
    """Which (pattern, steps) go into which split, each in random order.

    Held-out steps lie strictly below the horizon, so that the horizon itself is always trained.
    """
    rng = rng_for(seed, TAG, SPLIT)
    horizon = horizons(lengths, params.horizon)
    shuffled = rng.permutation(len(lengths))
    unseen, known = np.split(shuffled, [round(params.held_out * len(lengths))])

    def early(patterns: Ints) -> Examples:
        which = np.repeat(patterns, horizon[patterns])
        before = np.repeat(np.cumsum(horizon[patterns]) - horizon[patterns], horizon[patterns])
        return Examples(which, np.arange(len(which)) - before + 1)

    def some(examples: Examples, size: int) -> Examples:
        return examples.take(rng.permutation(len(examples.which))[:size])

    steps = early(known)
    held = (steps.steps < horizon[steps.which]) & (rng.random(len(steps.which)) < params.held_out_steps)
    pool = rng.permutation(np.flatnonzero(held))
    # Where the pool is too small for both, each gets its part.
    val, in_range = np.split(pool, [len(pool) * params.val // (params.val + params.eval_size)])
    splits = {
        "train": some(steps.take(~held), len(steps.which)),
        "val": steps.take(val[: params.val]),
        "in_range": steps.take(in_range[: params.eval_size]),
    }
    for beyond in BEYOND:
        splits[f"plus_{beyond}"] = some(Examples(known, horizon[known] + beyond), params.eval_size)
    splits["unseen"] = some(early(unseen), params.eval_size)
    return splits


def build(params: LifeParams, seed: int, workers: int, progress: Progress) -> dict[str, Arrays]:
    boards = draw_patterns(params, seed)
    splits = choose(measure(boards, params, workers, progress), params, seed)
    for name, examples in splits.items():
        if not len(examples.which):
            raise UserError(
                f"life: {params.configurations} configurations leave the split {name!r} empty; raise "
                f"`configurations`, `max_steps` or the held-out shares"
            )
    together = Examples(
        np.concatenate([e.which for e in splits.values()]), np.concatenate([e.steps for e in splits.values()])
    )
    inputs, labels = make_examples(boards, together, params, workers, progress)
    arrays: dict[str, Arrays] = {}
    end = 0
    for name, examples in splits.items():
        start, end = end, end + len(examples.which)
        arrays[name] = {
            "inputs": inputs[start:end],
            "labels": labels[start:end],
            "steps": examples.steps.astype(np.uint8),
        }
    return arrays


def sample(params: LifeParams, seed: int, count: int, progress: Progress) -> tuple[Tokens, Tokens]:
    """Fresh examples within the training horizon."""
    rng = rng_for(seed, TAG, SAMPLE)
    kept: list[Boards] = []
    while sum(map(len, kept)) < count:
        kept.append(draw(params, rng, count + 8))
    boards = Boards(
        np.concatenate([b.rows for b in kept])[:count],
        np.concatenate([b.heights for b in kept])[:count],
        np.concatenate([b.widths for b in kept])[:count],
    )
    steps = rng.integers(1, horizons(measure(boards, params, 1, progress), params.horizon) + 1)
    return make_examples(boards, Examples(np.arange(count), steps), params, 1, progress)
