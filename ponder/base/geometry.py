"""What a model may know of a puzzle's shape: which positions belong together, and which symbols can be exchanged."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Relation:
    """Groups of positions. What is learned about one group holds for all groups of relations of the same name."""

    name: str
    groups: tuple[tuple[int, ...], ...]
    """The positions that each group looks at."""
    tells: tuple[tuple[int, ...], ...]
    """The positions that each group speaks to."""

    @staticmethod
    def units(name: str, groups: Iterable[Iterable[int]]) -> "Relation":
        """Groups that speak to their own members: rows, columns, boxes."""
        made = tuple(tuple(map(int, group)) for group in groups)
        return Relation(name, made, made)

    @staticmethod
    def neighbours(
        name: str, height: int, width: int, steps: Sequence[tuple[int, int]], gap: int = 0, torus: bool = False
    ) -> "Relation":
        """For every cell of a grid those at the given steps (down, right) from it, as far as they are on the grid.
        `gap`: positions between the rows; `torus`: opposite edges touch."""
        cells = [(r, c) for r in range(height) for c in range(width)]
        there = [[(r + down, c + right) for down, right in steps] for r, c in cells]
        if torus:
            there = [[(r % height, c % width) for r, c in each] for each in there]
        groups = tuple(
            tuple(r * (width + gap) + c for r, c in each if 0 <= r < height and 0 <= c < width) for each in there
        )
        return Relation(name, groups, tuple((r * (width + gap) + c,) for r, c in cells))


@dataclass(frozen=True)
class Tree:
    """Puzzles that are expressions in reverse Polish notation, each with a tree of its own."""

    leaves: tuple[int, ...]
    """Tokens that stand for themselves."""
    nodes: tuple[int, ...]
    """Tokens that take the last two things before them."""
    end: int
    """The token after the expression."""
    most: int
    """Nodes of the largest expression."""

    def links(self, puzzle: Iterable[int]) -> npt.NDArray[np.int64]:
        """[5, most] for each node of a puzzle, in their order, the positions of: itself, the first and the second of
        the two that it takes, the node whose first it is, the node whose second; one beyond the last is none."""
        tokens = [*map(int, puzzle)]
        out = np.full((5, self.most), len(tokens))
        stack: list[int] = []
        nodes: dict[int, int] = {}
        for place, token in enumerate(tokens):
            if token == self.end:
                break
            if token in self.leaves:
                stack.append(place)
            elif token in self.nodes:
                second, first = stack.pop(), stack.pop()
                out[:3, len(nodes)] = place, first, second
                for taken, row in ((first, 3), (second, 4)):
                    if taken in nodes:
                        out[row, nodes[taken]] = place
                nodes[place] = len(nodes)
                stack.append(place)
        return out


@dataclass(frozen=True)
class Geometry:
    relations: tuple[Relation, ...] = ()
    """For the mixer over relations; those of one name stand together."""
    symbols: tuple[int, ...] = ()
    """Tokens that a puzzle may rename among each other, and its answer with it."""
    asked: tuple[int, ...] = ()
    """Positions of the digits of a number: the steps that the puzzle asks for, for models that take one at a time."""
    zero: int = 0
    """The token of the digit 0."""
    tree: Tree | None = None
    """What belongs together in one puzzle and not in the next, for the mixer over relations."""

    def told(self, tokens: int) -> "Told":
        """Its relations as sums over the positions of a puzzle."""
        counts: dict[str, int] = {}
        for relation in self.relations:
            counts[relation.name] = counts.get(relation.name, 0) + len(relation.groups)
        groups = sum(counts.values())
        gather, tell = np.zeros((groups, tokens), np.float32), np.zeros((tokens, groups), np.float32)
        i = 0
        for relation in self.relations:
            largest = max(map(len, relation.groups))  # one scale for all: a cell at the edge counts as others do
            for group, told in zip(relation.groups, relation.tells, strict=True):
                gather[i, list(group)] = largest**-0.5
                tell[list(told), i] = 1.0
                i += 1
        return Told(counts, gather, tell)


@dataclass(frozen=True)
class Told:
    counts: dict[str, int]
    """Groups of each name, in the order of the rows of `gather`."""
    gather: npt.NDArray[np.float32]
    """[groups, tokens] what each group hears of its tokens."""
    tell: npt.NDArray[np.float32]
    """[tokens, groups] which groups speak to each token."""

    @property
    def terms(self) -> int:
        """Tokens that groups hear, and groups that tokens hear: what is added up, however that is done."""
        return int(np.count_nonzero(self.gather) + np.count_nonzero(self.tell))


SPARSE = 10
"""The few tokens of a group are added up one after the other, instead of by a product with mostly zeros, where they are
fewer than one in so many: one more of them takes as long as so many terms of a product (docs/performance.md)."""


@dataclass(frozen=True)
class Lists:
    """A matrix that is mostly zeros, as the columns that each row adds up (of a large board the matrix has tens of
    megabytes)."""

    columns: npt.NDArray[np.int64]
    """[terms, rows]; one beyond the last column is none."""
    scale: float

    @staticmethod
    def of(matrix: npt.NDArray[np.float32]) -> "Lists | None":
        """None where a product is no slower, or where the terms are weighed."""
        rows, size = matrix.shape
        values, terms = np.unique(matrix[matrix != 0]), int((matrix != 0).sum(axis=1).max(initial=0))
        if len(values) != 1 or terms * SPARSE >= size:
            return None
        columns = np.full((terms, rows), size)
        for row, members in enumerate(matrix):
            found = np.flatnonzero(members)
            columns[: len(found), row] = found
        return Lists(columns, float(values[0]))


NO_GEOMETRY = Geometry()
