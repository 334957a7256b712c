"""ARC augmentations: one of the eight symmetries of the square and a permutation of the colours that keeps 0.

They are named as in the published datasets, drawn as a pure function of (seed, task, index), and never repeat a task:
two draws are compared through the task's own symmetries, without making any grid.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from hashlib import sha256
from math import perm

import numpy as np
import numpy.typing as npt

from ponder.base.errors import UserError
from ponder.domains.arc.grids import COLOURS, FIRST, Grid
from ponder.domains.arc.tasks import ArcTask, Pair
from ponder.domains.contract import Ints, Tokens, rng_for

TURNS: tuple[Callable[[Grid], Grid], ...] = (
    lambda grid: grid,
    lambda grid: grid.T[::-1],
    lambda grid: grid[::-1, ::-1],
    lambda grid: grid.T[:, ::-1],
    lambda grid: grid[:, ::-1],
    lambda grid: grid[::-1],
    lambda grid: grid.T,
    lambda grid: grid[::-1, ::-1].T,
)
"""By published number: as it is; 90, 180, 270 degrees counter-clockwise; left-right; up-down; both diagonals."""
UNDO = (0, 3, 2, 1, 4, 5, 6, 7)
SWAPS_SIDES = np.array([False, True, False, True, False, False, True, True])

SEPARATOR = "|||"
BLANK = "<blank>"
"""Row 0 of a published identifiers.json."""
IDENTITY = tuple(range(COLOURS))
AUGMENT, CARVE, SAMPLE = range(3)
"""What random numbers are for."""
CHUNK = 1024


def _after() -> Ints:
    corners = np.arange(4, dtype=np.uint8).reshape(2, 2)
    number = {turn(corners).tobytes(): t for t, turn in enumerate(TURNS)}
    return np.array([[number[late(early(corners)).tobytes()] for early in TURNS] for late in TURNS])


AFTER = _after()
"""AFTER[a, b] is the turn that does b and then a."""


@dataclass(frozen=True)
class Augmentation:
    turn: int = 0
    colours: tuple[int, ...] = IDENTITY
    """Colour c becomes colours[c]."""

    def apply(self, grid: Grid) -> Grid:
        return TURNS[self.turn](np.array(self.colours, dtype=np.uint8)[grid])

    def name(self, task: str) -> str:
        """The published name; the task as it is has no suffix."""
        if self == Augmentation():
            return task
        return f"{task}{SEPARATOR}t{self.turn}{SEPARATOR}{''.join(map(str, self.colours))}"


def augmentation_of(row: npt.NDArray[np.uint8]) -> Augmentation:
    """One row of the array `drawn` gives."""
    turn, *colours = row.tolist()
    return Augmentation(turn, tuple(colours))


def parse_name(name: str) -> tuple[str, Augmentation]:
    """Task and augmentation of a published name: `task|||t3|||0123456789` (TRM, URM), `task_t3_0123456789` (HRM), or
    the task alone."""
    if SEPARATOR in name:
        task, *suffix = name.split(SEPARATOR)
        if len(suffix) == 2 and suffix[0] in _TURN_NAMES and sorted(suffix[1]) == _DIGITS:
            return task, Augmentation(_TURN_NAMES[suffix[0]], tuple(map(int, suffix[1])))
        raise UserError(
            f"{name!r} is not a name of an ARC augmentation; write task{SEPARATOR}t<0-7>{SEPARATOR}<the ten digits>"
        )
    match = _HRM_NAME.fullmatch(name)
    if match and sorted(match[3]) == _DIGITS:
        return match[1], Augmentation(int(match[2]), tuple(map(int, match[3])))
    return name, Augmentation()


_TURN_NAMES = {f"t{turn}": turn for turn in range(len(TURNS))}
_DIGITS = list("0123456789")
_HRM_NAME = re.compile(r"(.+)_t([0-7])_(\d{10})", re.DOTALL)


def rows_from_identifiers(identifiers: Sequence[str]) -> dict[str, int]:
    """A published identifiers.json (names by row of the puzzle table, blank first) as our name -> published row."""
    if not identifiers or identifiers[0] != BLANK:
        got = repr(identifiers[0]) if identifiers else "an empty list"
        raise UserError(f"identifiers.json should be a list that starts with {BLANK!r}, got {got}")
    rows = {BLANK: 0}
    for row, published in enumerate(identifiers[1:], start=1):
        task, augmentation = parse_name(published)
        name = augmentation.name(task)
        if name in rows:
            raise UserError(f"identifiers.json names {name!r} twice, in rows {rows[name]} and {row}")
        rows[name] = row
    return rows


# Which augmentations give the same task -----------------------------------------------------------------------------

_Form = tuple[tuple[tuple[int, ...], ...], bytes]
"""Grids up to colour: their shapes, and their cells with colours 1..9 renumbered as they appear."""


def _form(grids: Sequence[Grid], turn: int) -> tuple[_Form, bytes]:
    """The form of turned grids, and their colours 1..9 as they appear; together they say all about the grids."""
    turned = [TURNS[turn](grid) for grid in grids]
    cells = b"".join([grid.tobytes() for grid in turned])
    first = sorted((cells.find(colour), colour) for colour in range(1, COLOURS))
    order = bytes(colour for place, colour in first if place >= 0)
    renumbered = cells.translate(bytes.maketrans(order, bytes(range(1, len(order) + 1))))
    return (tuple(grid.shape for grid in turned), renumbered), order


def pair_form(pair: Pair, turn: int = 0) -> _Form:
    """An augmentation makes one pair of another exactly when the form of the first is a turned form of the other."""
    return _form((pair.input, pair.output), turn)[0]


@dataclass(frozen=True)
class Symmetry:
    """What leaves a task as it is: its colours 1..9, and the turns with the colours these become."""

    colours: tuple[int, ...]
    group: tuple[tuple[int, tuple[int, ...]], ...]

    @property
    def distinct(self) -> int:
        """How many different tasks the augmentations make, the original included."""
        return len(TURNS) * perm(COLOURS - 1, len(self.colours)) // len(self.group)

    def keys(self, turns: Ints, colours: Ints) -> Ints:
        """[n] turns and [n, 10] permutations -> [n]: equal exactly when the augmented tasks are."""
        digits = COLOURS ** np.arange(len(self.colours), dtype=np.int64)
        return reduce(
            np.minimum,
            [
                AFTER[turns, turn] * COLOURS ** len(self.colours) + colours[:, list(images)] @ digits
                for turn, images in self.group
            ],
        )


def symmetry(task: ArcTask) -> Symmetry:
    """The symmetry of a task as a set of demonstrations and a set of tests, both in any order.

    The held-out outputs of an evaluation task are not looked at: nothing a model trains on depends on them.
    """
    grids = [(0, (pair.input, pair.output)) for pair in task.demos] + [
        (1, (pair.input,) if task.part == "evaluation" else (pair.input, pair.output)) for pair in task.tests
    ]
    fixed = Counter((role, *_form(pair, 0)) for role, pair in grids)
    colours = tuple(sorted({colour for _, _, order in fixed for colour in order}))
    forms = Counter((role, form) for role, form, _ in fixed.elements())
    group = []
    for turn in range(len(TURNS)):
        turned = [(role, *_form(pair, turn)) for role, pair in grids]
        if Counter((role, form) for role, form, _ in turned) == forms:
            for images in _colour_maps(turned, fixed):
                group.append((turn, tuple(images[colour] for colour in colours)))
    return Symmetry(colours, tuple(sorted(set(group))))


_Appearance = tuple[int, _Form, bytes]


def _colour_maps(turned: Sequence[_Appearance], fixed: Counter[_Appearance]) -> list[dict[int, int]]:
    """The one-to-one colour maps that make the pairs in `turned`, in some order, the pairs in `fixed`."""
    found: list[dict[int, int]] = []

    def match(number: int, images: Mapping[int, int]) -> None:
        if number == len(turned):
            found.append(dict(images))
            return
        role, form, order = turned[number]
        for other in [other for other, left in fixed.items() if left and other[:2] == (role, form)]:
            wider = {**images, **dict(zip(order, other[2], strict=True))}
            if all(wider[colour] == image for colour, image in images.items()) and len(set(wider.values())) == len(
                wider
            ):
                fixed[other] -= 1
                match(number + 1, wider)
                fixed[other] += 1

    match(0, {})
    return found


# Drawing them -------------------------------------------------------------------------------------------------------


def drawn(seed: int, task: str, same: Symmetry, count: int) -> npt.NDArray[np.uint8]:
    """[n, 11] turns and permutations: the original, then `count` random augmentations, or all there are; no task twice.

    A longer list begins with the shorter one.
    """
    total = min(count + 1, same.distinct)
    rng = rng_for(seed, AUGMENT, int.from_bytes(sha256(task.encode()).digest()[:8], "big"))
    turns, colours = np.zeros(1, dtype=np.int64), np.arange(COLOURS)[None]
    while True:
        first = np.sort(np.unique(same.keys(turns, colours), return_index=True)[1])[:total]
        turns, colours = turns[first], colours[first]
        if len(first) == total:
            return np.column_stack([turns, colours]).astype(np.uint8)
        shuffled = np.argsort(rng.random((CHUNK, COLOURS - 1)), axis=1) + 1
        turns = np.concatenate([turns, rng.integers(len(TURNS), size=CHUNK)])
        colours = np.concatenate([colours, np.pad(shuffled, ((0, 0), (1, 0)))])


def token_tables(rows: npt.NDArray[np.uint8]) -> Tokens:
    """[n, 11] turns and permutations -> [n, 12]: what becomes of each token."""
    special = np.broadcast_to(np.arange(FIRST, dtype=np.uint8), (len(rows), FIRST))
    return np.concatenate([special, rows[:, 1:] + np.uint8(FIRST)], axis=1)
