"""Game of Life boards: many at once, packed; the rule; and boards as tokens.

A row of a board is one uint32, column c in bit c, so that one operation treats a whole row of many boards.
Boards of different shapes share an array: unused rows and bits are 0 and stay so.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ponder.domains.contract import PAD, Bools, Ints, Tokens

DEAD, ALIVE, ROW_END, BOARD_END, ZERO = 1, 2, 3, 4, 5
MAX_SIDE = 32
MAX_STEPS = 99
"""Steps are written with two digits."""

Words = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Boards:
    rows: Words
    """[board, row], as many rows as the tallest board may have."""
    heights: Words
    widths: Words

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def join(cls, parts: Sequence["Boards"]) -> "Boards":
        return cls(
            np.concatenate([part.rows for part in parts]),
            np.concatenate([part.heights for part in parts]),
            np.concatenate([part.widths for part in parts]),
        )

    def take(self, index: Ints | Bools | slice) -> "Boards":
        return Boards(self.rows[index], self.heights[index], self.widths[index])

    def trimmed(self) -> "Boards":
        """Without the rows that no board uses."""
        return Boards(self.rows[:, : self.heights.max(initial=0)], self.heights, self.widths)

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


def pack(cells: Bools) -> Words:
    """[..., row, column] -> [..., row]."""
    columns = np.zeros((*cells.shape[:-1], MAX_SIDE), dtype=np.bool_)
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
        full = np.uint32(0xFFFFFFFF) >> (np.uint32(MAX_SIDE) - boards.widths)
        self.mask: Words = np.where(np.arange(len(self.state))[:, None] <= self.last_row, full, np.uint32(0))

    def keep(self, index: Bools) -> None:
        self.state, self.mask = self.state[:, index], self.mask[:, index]
        self.widths, self.last_row = self.widths[index], self.last_row[index]

    def step(self) -> None:
        """Adds the nine cells around each position in binary, one bit plane per weight."""
        here = self.state
        left, right = here << np.uint32(1), here >> np.uint32(1)
        if self.torus:
            wrap = self.widths - np.uint32(1)
            left |= here >> wrap
            right |= here << wrap
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
    for step in range(examples.steps.max(initial=0) + 1):
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
    possible = (width > 0) & (width <= max_side) & (height > 0) & (height <= max_side) & (end + 3 <= length)
    height, width, end = (np.where(possible, value, 1) for value in (height, width, end))
    digits = np.clip(inputs[np.arange(count)[:, None], end[:, None] + [1, 2]].astype(np.int64) - ZERO, 0, 9)
    boards = Boards(np.zeros((count, max_side), np.uint32), height.astype(np.uint32), width.astype(np.uint32))
    for h, w, index in boards.shapes():
        block = inputs[index, : h * (w + 1)].reshape(len(index), h, w + 1)
        boards.rows[index, :h] = pack(block[:, :, :w] == ALIVE)
    steps = digits @ np.array([10, 1])
    return boards, steps, possible & (encode(boards, steps, length) == inputs).all(axis=1)
