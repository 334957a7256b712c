"""Mazes with a long shortest path, by closing short cuts.

Start and goal are dropped into random obstacles. As long as the way between them is too short, a random cell of it is
walled up, unless that would part them. What was the shortest way a moment ago is now a dead end or a longer way round,
so a maze is full of tempting wrong turns, at any size and any length that fits.
"""

import numpy as np

from ponder.domains.contract import Bools, Ints, rng_for
from ponder.domains.maze.paths import Mazes, at, bordered, count_shortest, flood, marked, shortest_paths

WALL_SHARE = 0.25, 0.4
"""Obstacles before any short cut is closed. Above 0.41 random cells fall apart into islands."""
EXTRA_LENGTH = 0.25
"""Each maze aims at a length between min_path and this much more."""


def generate_chunk(height: int, width: int, min_path: int, unique: bool, tries: int, *key: int) -> Mazes:
    """What becomes of `tries` random mazes: those whose shortest path can be made long enough, and unique if asked.

    A function of its arguments; `key` is the seed and what tells this chunk from others.
    """
    rng = rng_for(*key)
    mazes = _close_short_cuts(_obstacles(height, width, tries, rng), min_path, rng)
    return _break_ties(mazes, rng) if unique else mazes


def _obstacles(height: int, width: int, count: int, rng: np.random.Generator) -> Mazes:
    """Random walls, with a start and a goal that it reaches; fewer than `count` where a start is walled in."""
    share = rng.uniform(*WALL_SHARE, count)[:, None, None]
    free = bordered(rng.random((count, height, width)) >= share)
    start = _any_of(free, rng)
    mazes = Mazes(free, start, start, width + 2)
    reached: Bools = flood(mazes, start).steps > 0
    usable = np.flatnonzero(reached.any(1))
    return Mazes(free, start, _any_of(reached, rng), mazes.stride)[usable]


def _any_of(allowed: Bools, rng: np.random.Generator) -> Ints:
    """A random allowed position in each row."""
    place: Ints = (rng.random(allowed.shape) * allowed).argmax(1)
    return place


def _close_short_cuts(mazes: Mazes, min_path: int, rng: np.random.Generator) -> Mazes:
    """Wall up cells of shortest paths, in place, until these are long enough; mazes where that fails are left out."""
    count, cells = mazes.free.shape
    target = min_path + (EXTRA_LENGTH * min_path) * np.asarray(rng.random(count))
    length = np.zeros(count, dtype=np.int64)
    # Walls are only added, so a cell that could not be closed once, being the only way, never can be.
    needed = marked(np.stack([mazes.start, mazes.goal], 1), cells)
    candidates = np.zeros_like(mazes.free)
    closed = mazes.start.copy()
    working = np.arange(count)
    while len(working):
        now = mazes[working]
        steps = flood(now, now.goal).steps
        distance = at(steps, now.start)
        parted = distance < 0
        undo, done = working[parted], working[~parted]
        mazes.free[undo, closed[undo]] = needed[undo, closed[undo]] = True
        candidates[undo] &= ~needed[undo]
        length[done] = distance[~parted]
        candidates[done] = marked(shortest_paths(now[~parted], steps[~parted], rng), cells) & ~needed[done]
        working = working[(length[working] < target[working]) & candidates[working].any(1)]
        closed[working] = _any_of(candidates[working], rng)
        mazes.free[working, closed[working]] = False
    return mazes[length >= min_path]


def _break_ties(mazes: Mazes, rng: np.random.Generator) -> Mazes:
    """Keep one shortest path of each maze and wall up what the others need.

    Any other shortest path leaves the kept one somewhere and joins it again, so it is enough to close either all cells
    where one leaves or all where one joins; the rest of the detour stays, as a dead end.
    """
    from_start, to_goal = flood(mazes, mazes.start).steps, flood(mazes, mazes.goal).steps
    kept = marked(shortest_paths(mazes, to_goal, rng), mazes.free.shape[1])
    shortest = at(to_goal, mazes.start)[:, None]
    rivals = mazes.free & ~kept & (from_start + to_goal == shortest) & (from_start >= 0)
    leaving = rng.random(len(kept)) < 0.5
    steps = np.where(leaving[:, None], from_start, to_goal)
    turnings = np.zeros_like(rivals)
    for shift in mazes.around:
        turnings |= rivals & np.roll(kept, -shift, 1) & (np.roll(steps, -shift, 1) == steps - 1)
    mazes = Mazes(mazes.free & ~turnings, mazes.start, mazes.goal, mazes.stride)
    assert (count_shortest(mazes) == 1).all()
    return mazes
