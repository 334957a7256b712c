"""Making and rating sudokus: solved boards, minimal puzzles with one solution, and how much guessing they take."""

import atexit
import threading
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from typing import Any
from weakref import WeakSet

import numpy as np

from ponder.base.stats import Floats
from ponder.domains.contract import Arrays, Ints, Tokens, rng_for

EMPTY = 1
FIRST = 2
"""The token of digit 1."""
BOXES = {4: (2, 2), 6: (2, 3), 9: (3, 3)}
"""Side -> rows and columns of a box."""


@dataclass(frozen=True)
class Shape:
    """A board's geometry. Sets of cells are bits of a Python integer, cell 0 the lowest."""

    size: int
    units: Ints
    """[3 * size, size]: the cells of each row, then of each column, then of each box."""
    unit_bits: tuple[int, ...]
    peer_bits: tuple[int, ...]
    full: int


@lru_cache
def shape_of(size: int) -> Shape:
    cells = np.arange(size * size).reshape(size, size)
    rows, columns = BOXES[size]
    boxes = cells.reshape(size // rows, rows, size // columns, columns).swapaxes(1, 2).reshape(size, size)
    units = np.concatenate([cells, cells.T, boxes])
    unit_bits = tuple(sum(1 << int(cell) for cell in unit) for unit in units)
    peer_bits = []
    for cell in range(size * size):
        peers = 0
        for bits in unit_bits:
            peers |= bits if bits >> cell & 1 else 0
        peer_bits.append(peers & ~(1 << cell))
    return Shape(size, units, unit_bits, tuple(peer_bits), (1 << size * size) - 1)


def unit_name(size: int, unit: int) -> str:
    """What to call a unit, counting from 1."""
    kind, i = divmod(unit, size)
    if kind < 2:
        return f"{('row', 'column')[kind]} {i + 1}"
    rows, columns = BOXES[size]
    down, across = i * columns // size * rows, i * columns % size
    return f"the box of rows {down + 1}-{down + rows}, columns {across + 1}-{across + columns}"


# The plain constraint search --------------------------------------------------------------------------------------

Boards = list[int]
"""Three sets of cells for each digit: first, for all digits, where it may still stand; then where it was placed; then
where it might stand when its hidden singles were last looked for, since only a changed set can have new ones."""


def propagate(shape: Shape, boards: Boards) -> bool:
    """Place naked and hidden singles until there are none; False where the board has become impossible."""
    size, full, unit_bits, peer_bits = shape.size, shape.full, shape.unit_bits, shape.peer_bits
    digits = range(size)
    moved = True
    while moved:
        moved = False
        once = twice = 0
        for digit in digits:
            twice |= once & boards[digit]
            once |= boards[digit]
        if once != full:
            return False
        naked = once & ~twice
        for digit in digits:
            where = boards[digit]
            single = where & naked
            if where != boards[2 * size + digit]:
                boards[2 * size + digit] = where
                for bits in unit_bits:
                    here = where & bits
                    if not here & (here - 1):
                        if not here:
                            return False
                        single |= here
            new = single & ~boards[size + digit]
            if new:
                moved = True
                boards[size + digit] |= new
                for other in digits:
                    boards[other] &= ~new
                while new:
                    low = new & -new
                    where &= ~peer_bits[low.bit_length() - 1]
                    new ^= low
                boards[digit] = where
    return True


def search(
    shape: Shape, boards: Boards, rng: np.random.Generator | None = None, scores: Floats | None = None
) -> tuple[Boards, int]:
    """The first solution and the number of guesses: values tried on a cell with the fewest candidates.

    Without `rng` values are tried in ascending order, with it in random order. With `scores`, [cells, digits], the
    best is tried first, and of the cells with the fewest candidates the one whose best is best. No solution: no boards.
    """
    size, guesses = shape.size, -1
    stack = [boards]
    while stack:
        boards = stack.pop()
        guesses += 1
        if not propagate(shape, boards):
            continue
        at_least = [shape.full] + [0] * (size + 1)
        for digit, where in enumerate(boards[:size]):
            for count in range(digit + 1, 0, -1):
                at_least[count] |= at_least[count - 1] & where
        fewest = next((count for count in range(2, size + 1) if at_least[count] & ~at_least[count + 1]), None)
        if fewest is None:
            return boards, guesses
        cells = at_least[fewest] & ~at_least[fewest + 1]
        cell = cells & -cells
        if scores is not None:
            cell = _surest(shape, boards, cells, scores)
        values = [digit for digit in range(size) if boards[digit] & cell]
        if scores is not None:
            values.sort(key=lambda digit: -scores[cell.bit_length() - 1, digit])
        if rng is not None:
            values = rng.permutation(values).tolist()
        for value in reversed(values):
            trial = [where & ~cell for where in boards[:size]] + boards[size:]
            trial[value] = boards[value]
            stack.append(trial)
    return [], guesses


def _surest(shape: Shape, boards: Boards, cells: int, scores: Floats) -> int:
    """The cell, as a bit, whose best candidate has the highest score."""
    each = [cell for cell in range(shape.size**2) if cells >> cell & 1]
    best = [max(scores[cell, digit] for digit in range(shape.size) if boards[digit] >> cell & 1) for cell in each]
    return 1 << each[int(np.argmax(best))]


def boards_of(shape: Shape, inputs: Tokens) -> Boards:
    boards = [shape.full] * shape.size + [0] * (2 * shape.size)
    for cell, token in enumerate(inputs.tolist()):
        if token >= FIRST:
            for digit in range(shape.size):
                if digit != token - FIRST:
                    boards[digit] &= ~(1 << cell)
    return boards


def rate(size: int, inputs: Tokens) -> int:
    """Guesses that naked and hidden singles with branching on the fewest candidates need to solve the puzzle."""
    shape = shape_of(size)
    return search(shape, boards_of(shape, inputs))[1]


def solved_board(size: int, rng: np.random.Generator) -> Tokens:
    """A random solved board; every one can come out."""
    shape = shape_of(size)
    boards: Boards = []
    while not boards:
        # The boxes down the diagonal share no row or column: filling them first saves most of the search.
        start = np.full((size, size), EMPTY, dtype=np.uint8)
        rows, columns = BOXES[size]
        for i in range(min(rows, columns)):
            box = start[i * rows : (i + 1) * rows, i * columns : (i + 1) * columns]
            box[:] = FIRST + rng.permutation(size).reshape(rows, columns)
        boards, _ = search(shape, boards_of(shape, start.ravel()), rng)
    return _tokens(size, boards)


def _tokens(size: int, boards: Boards) -> Tokens:
    """The answer that a solution of `search` is."""
    answer = np.zeros(size * size, dtype=np.uint8)
    for digit in range(size):
        while boards[digit]:
            answer[boards[digit].bit_length() - 1] = FIRST + digit
            boards[digit] ^= 1 << boards[digit].bit_length() - 1
    return answer


def guided(size: int, inputs: Tokens, scores: Floats | None) -> tuple[Tokens | None, int]:
    """A solution by the plain search and its guesses, with scores of all symbols at all cells or without; None where
    there is none. All values of a cell are tried in the end, so that bad scores cost time and nothing else."""
    shape = shape_of(size)
    if scores is not None:
        scores = scores[:, FIRST:] - np.logaddexp.reduce(scores[:, FIRST:], axis=1, keepdims=True)
    found, guesses = search(shape, boards_of(shape, inputs), scores=scores)
    return (_tokens(size, found) if found else None), guesses


# Uniqueness by SAT ------------------------------------------------------------------------------------------------


def variable(size: int, cell: int, token: int) -> int:
    return cell * size + token - FIRST + 1


@lru_cache
def rules(size: int) -> list[list[int]]:
    """The rules of the board as clauses over "cell holds token"."""
    units, tokens = shape_of(size).units.tolist(), range(FIRST, FIRST + size)
    clauses: set[tuple[int, ...]] = set()
    for cell in range(size * size):
        holds = [variable(size, cell, t) for t in tokens]
        clauses.add(tuple(holds))
        clauses |= {(-a, -b) for a in holds for b in holds if a < b}
    for unit in units:
        for t in tokens:
            places = sorted(variable(size, cell, t) for cell in unit)
            clauses.add(tuple(places))
            clauses |= {(-a, -b) for a in places for b in places if a < b}
    return [list(clause) for clause in sorted(clauses)]


def solve(size: int, inputs: Tokens, limit: int) -> list[Tokens]:
    """Up to `limit` solutions, by a SAT solver: the same ones whatever was asked before."""
    from pysat.solvers import Solver  # not for everybody who asks which domains there are

    asked: dict[int, _Knowing] = _asked.__dict__.setdefault("by_size", {})
    if size not in asked or asked[size].times == RENEWED:
        asked[size] = _Knowing(size)
    known = asked[size].two(inputs)
    if len(known) < 2:
        return known[:limit]
    with Solver(name="cadical153", bootstrap_with=rules(size)) as solver:
        return _found(solver, size, inputs, limit, [])


def _found(solver: Any, size: int, inputs: Tokens, limit: int, among: list[int]) -> list[Tokens]:
    """`among`: assumptions under which what was found is ruled out."""
    found: list[Tokens] = []
    clues = [variable(size, cell, int(t)) for cell, t in enumerate(inputs) if t >= FIRST]
    while len(found) < limit and solver.solve(assumptions=[*among, *clues]):
        true = [v for v in solver.get_model()[: size**3] if v > 0]
        found.append(np.array([(v - 1) % size + FIRST for v in true], dtype=np.uint8))
        solver.add_clause([-v for v in (*among, *true)])
    return found


class _Knowing:
    """Knows the rules of one size, which take longer to tell than most puzzles to solve. Which solutions it finds of
    several depends on what it was asked before; that there is one, or none, does not."""

    def __init__(self, size: int) -> None:
        from pysat.solvers import Solver

        self.size, self.times = size, 0
        self.solver = Solver(name="cadical153", bootstrap_with=rules(size))
        _every.add(self)

    def two(self, inputs: Tokens) -> list[Tokens]:
        """Two solutions, if there are as many."""
        self.times += 1
        selector = self.size**3 + self.times
        found = _found(self.solver, self.size, inputs, 2, [selector])
        self.solver.add_clause([-selector])
        return found


_every: "WeakSet[_Knowing]" = WeakSet()


@atexit.register
def _let_go() -> None:
    """Before Python takes away what solvers need to go."""
    for each in list(_every):
        each.solver.delete()


_asked = threading.local()
"""Of each thread, for each size, who knows the rules."""
RENEWED = 1000
"""Puzzles after which another takes over: what was ruled out is never quite forgotten."""


class Reducer:
    """Takes clues away from solved boards for as long as the solution stays the only one."""

    def __init__(self, size: int) -> None:
        from pysat.solvers import Solver

        self.size = size
        self.solver = Solver(name="cadical153", bootstrap_with=rules(size))
        self.selector = size**3

    def minimal(self, answer: Tokens, order: Ints) -> Tokens:
        """The puzzle left when each clue, in the given order, goes if the solution is unique without it.

        "Another solution" is a clause behind a selector, so a clue can go where the solver finds the rest of the
        clues contradicts it. The clues it needed for that (the core) still stand when later clues outside the core
        are looked at: those go without asking again. So the result depends on the order alone, not on the solver.
        """
        self.selector += 1
        clues = [variable(self.size, int(cell), int(answer[cell])) for cell in order]
        self.solver.add_clause([-clue for clue in clues] + [-self.selector])
        kept, core = list(clues), set(clues)
        for clue in clues:
            if clue in core:
                # Last clues first: then the core leaves out those whose turn comes next.
                others = [other for other in reversed(kept) if other != clue]
                if self.solver.solve(assumptions=[self.selector, *others]):
                    continue
                core = set(self.solver.get_core())
            kept.remove(clue)
        self.solver.add_clause([-self.selector])
        cells = [(clue - 1) // self.size for clue in kept]
        inputs = np.full(len(answer), EMPTY, dtype=np.uint8)
        inputs[cells] = answer[cells]
        return inputs


# Puzzles ------------------------------------------------------------------------------------------------------------


def generate_chunk(size: int, minimal: bool, seed: int, use: int, chunk: int, count: int) -> Arrays:
    """Chunk `chunk` of an endless row of puzzles, with solutions and ratings; a function of its arguments.

    The row of minimal 4x4 puzzles does end: it is all there are, in random order.
    """
    if size == 4 and minimal:
        inputs, labels = minimal_4x4()
        order = rng_for(seed, use).permutation(len(inputs))[chunk * count : (chunk + 1) * count]
        inputs, labels = inputs[order], labels[order]
    else:
        rng, reducer = rng_for(seed, use, chunk), Reducer(size)
        labels = np.stack([solved_board(size, rng) for _ in range(count)])
        inputs = np.stack([reducer.minimal(answer, rng.permutation(size * size)) for answer in labels])
        if not minimal:
            for puzzle, answer in zip(inputs, labels, strict=True):
                put_back(puzzle, answer, rng, 0.5)
    rating = np.array([rate(size, puzzle) for puzzle in inputs], dtype=np.int16)
    return {"inputs": inputs, "labels": labels, "rating": rating}


def put_back(puzzle: Tokens, answer: Tokens, rng: np.random.Generator, most: float) -> None:
    """Gives some of the missing digits, at least one and less than the share `most` of them."""
    gone = rng.permutation(np.flatnonzero(puzzle == EMPTY))
    back = gone[: rng.integers(1, int(len(gone) * most))]
    puzzle[back] = answer[back]


@lru_cache(maxsize=1)
def minimal_4x4() -> tuple[Tokens, Tokens]:
    """All 85,632 minimal 4x4 puzzles and their solutions.

    A set of clues leaves one solution exactly where it touches, for every other solved board, a cell in which that
    board differs; so one pass over the 2^16 sets of cells finds all puzzles of a board.
    """
    boards = np.unique(solve(4, np.full(16, EMPTY, dtype=np.uint8), limit=1000), axis=0)
    subsets, bit = np.arange(1 << 16), 1 << np.arange(16)
    inputs, labels = [], []
    for board in boards[(boards[:, :4] == boards[0, :4]).all(axis=1)]:
        unique = np.ones(len(subsets), dtype=bool)
        for difference in np.unique((boards != board) @ bit)[1:]:
            unique &= (subsets & difference) != 0
        needless = [(subsets & b > 0) & unique[subsets & ~b] for b in bit]
        clues = (subsets[unique & ~np.any(needless, axis=0), None] & bit) > 0
        # The other boards are these with the digits renamed.
        for names in permutations(range(FIRST, FIRST + 4)):
            answer = np.array([0] * FIRST + list(names), dtype=np.uint8)[board]
            inputs.append(np.where(clues, answer, np.uint8(EMPTY)))
            labels.append(np.tile(answer, (len(clues), 1)))
    return np.concatenate(inputs), np.concatenate(labels)
