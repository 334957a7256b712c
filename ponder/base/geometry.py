"""What a model may know of a puzzle's shape: which positions belong together, and which symbols can be exchanged."""

from collections.abc import Iterable
from dataclasses import dataclass


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
    def neighbours(name: str, height: int, width: int, steps: Iterable[tuple[int, int]]) -> "Relation":
        """For every cell of a grid those at the given steps (down, right) from it, as far as they are on the grid."""
        steps = list(steps)
        groups = tuple(
            tuple((r + dr) * width + c + dc for dr, dc in steps if 0 <= r + dr < height and 0 <= c + dc < width)
            for r in range(height)
            for c in range(width)
        )
        return Relation(name, groups, tuple((cell,) for cell in range(height * width)))


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


NO_GEOMETRY = Geometry()
