"""Shortest paths in many mazes at once: distances, counts, one path, all paths.

A maze is flattened with a border of wall around it, so that a neighbour is one addition away and needs no bounds.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ponder.domains.contract import Bools, Ints

WALL, UNSEEN = -2, -1
MANY = 10**9
"""Path counts stop here: they double at every open square and would soon leave any integer."""

Distances = npt.NDArray[np.int32]
Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass(frozen=True)
class Mazes:
    """`free` [n, cells with border]; `start` and `goal` [n] index into a row of it; a row below is `stride` away."""

    free: Bools
    start: Ints
    goal: Ints
    stride: int

    @property
    def around(self) -> tuple[int, int, int, int]:
        """Right, down, left, up: also the order of preference where several shortest paths exist."""
        return 1, self.stride, -1, -self.stride

    def __getitem__(self, which: Ints | Bools) -> "Mazes":
        return Mazes(self.free[which], self.start[which], self.goal[which], self.stride)


def bordered(cells: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
    """[n, height, width] -> [n, cells with a border of zeros]."""
    count, height, width = cells.shape
    return np.pad(cells, ((0, 0), (1, 1), (1, 1))).reshape(count, (height + 2) * (width + 2))


def inside(flat: npt.NDArray[Scalar], stride: int) -> npt.NDArray[Scalar]:
    """The inverse of `bordered`."""
    return flat.reshape(len(flat), flat.shape[1] // stride, stride)[:, 1:-1, 1:-1]


@dataclass(frozen=True)
class Flood:
    """Steps from one cell to every other (WALL, UNSEEN where there is no way), and the cells in order of distance."""

    steps: Distances
    layers: list[Ints]


def flood(mazes: Mazes, origin: Ints) -> Flood:
    """Breadth-first search from `origin` in all mazes together, one layer after the other."""
    count, cells = mazes.free.shape
    steps = np.where(mazes.free, np.int32(UNSEEN), np.int32(WALL)).reshape(-1)
    layer = np.arange(count) * cells + origin
    steps[layer] = 0
    layers: list[Ints] = []
    while len(layer):
        layers.append(layer)
        reached = []
        for shift in mazes.around:
            neighbours = layer + shift
            neighbours = neighbours[steps[neighbours] == UNSEEN]
            steps[neighbours] = len(layers)
            reached.append(neighbours)
        layer = np.concatenate(reached)
    return Flood(steps.reshape(count, cells), layers)


def lengths(mazes: Mazes) -> Ints:
    """Steps of the shortest path from start to goal, UNSEEN where there is none."""
    return at(flood(mazes, mazes.start).steps, mazes.goal).astype(np.int64)


def count_shortest(mazes: Mazes) -> Ints:
    """How many shortest paths lead from start to goal, up to MANY."""
    found = flood(mazes, mazes.start)
    steps = found.steps.reshape(-1)
    ways = np.zeros(steps.shape, dtype=np.int64)
    ways[np.arange(len(mazes.free)) * mazes.free.shape[1] + mazes.start] = 1
    for distance, layer in enumerate(found.layers, start=1):
        for shift in mazes.around:
            neighbours = layer + shift
            onward = steps[neighbours] == distance
            # Distinct cells have distinct neighbours in one direction, so a plain += counts each arrival once.
            ways[neighbours[onward]] += ways[layer[onward]]
        if distance < len(found.layers):
            ways[found.layers[distance]] = np.minimum(ways[found.layers[distance]], MANY)
    return at(ways.reshape(mazes.free.shape), mazes.goal)


def shortest_paths(mazes: Mazes, to_goal: Distances, rng: np.random.Generator | None = None) -> Ints:
    """One shortest path for each maze, [n, longest + 1] cells from start to goal, then -1; every maze must have one.

    Where paths fork the first direction of `around` is taken, or a random one with `rng`.
    """
    count, cells = to_goal.shape
    steps = to_goal.reshape(-1)
    shifts = np.array(mazes.around)
    here = np.arange(count) * cells + mazes.start
    paths = np.full((count, int(steps[here].max(initial=0)) + 1), -1, dtype=np.int64)
    paths[:, 0] = mazes.start
    walking = np.flatnonzero(steps[here] > 0)
    for step in range(1, paths.shape[1]):
        position = here[walking]
        closer = steps[position[:, None] + shifts] == steps[position][:, None] - 1
        choice = closer.argmax(1) if rng is None else (rng.random(closer.shape) * closer).argmax(1)
        position = position + shifts[choice]
        here[walking] = position
        paths[walking, step] = position - walking * cells
        walking = walking[steps[position] > 0]
    return paths


def every_shortest_path(maze: Mazes, to_goal: Distances) -> Iterator[list[int]]:
    """All shortest paths of one maze, in the order of `around`: the first is the one of `shortest_paths`."""
    steps = to_goal[0]
    path = [int(maze.start[0])]
    choices = [iter(maze.around)]
    while choices:
        here = path[-1]
        if steps[here] == 0:
            yield list(path)
        onward = next((here + s for s in choices[-1] if steps[here] > 0 and steps[here + s] == steps[here] - 1), None)
        if onward is None:
            path.pop()
            choices.pop()
        else:
            path.append(onward)
            choices.append(iter(maze.around))


def marked(paths: Ints, cells: int) -> Bools:
    """Paths as masks [n, cells]."""
    mask = np.zeros((len(paths), cells), dtype=np.bool_)
    row, column = np.nonzero(paths >= 0)
    mask[row, paths[row, column]] = True
    return mask


def at(values: npt.NDArray[np.signedinteger], cell: Ints) -> Ints:
    """One value for each maze."""
    return np.take_along_axis(values, cell[:, None], 1)[:, 0]
