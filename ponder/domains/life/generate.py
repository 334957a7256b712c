"""The paper's Game of Life examples and splits (appendix, "Game of Life"), and the rules it leaves open."""

from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator

from ponder.base.errors import UserError
from ponder.domains.contract import Arrays, Ints, Params, Progress, Tokens, rng_for, run_chunks, silent
from ponder.domains.life.boards import (
    MAX_SIDE,
    MAX_STEPS,
    Boards,
    Examples,
    encode,
    encode_cells,
    evolve,
    pack,
    trajectory_lengths,
)

BEYOND = (1, 2, 3, 10)
"""How far past its training horizon a pattern is asked for in the extrapolation splits."""

TAG = 0x11FE
DRAW, SPLIT, SAMPLE = range(3)
DRAW_CHUNK = 10_000
PIECE = 1024


class LifeParams(Params):
    """The defaults are the paper's, and, where it is silent, what gives its number of training examples."""

    configurations: int = Field(
        default=200_000, ge=1, description="boards drawn, before long, empty and repeated ones go"
    )
    min_side: int = Field(default=2, ge=2, le=MAX_SIDE, description="smallest height and width")
    max_side: int = Field(default=17, ge=2, le=MAX_SIDE, description="largest height and width")
    alive: float = Field(default=0.4, gt=0, lt=1, description="probability that a cell is alive at the start")
    max_steps: int = Field(
        default=50, ge=2, le=MAX_STEPS, description="where a trajectory ends that neither dies nor repeats"
    )
    max_chars: int = Field(default=250, ge=5, description="longest board, in cells and row separators; longer ones go")
    boundary: Literal["dead", "torus"] = Field(
        default="dead", description="what lies beyond the edge: nothing, or the far edge"
    )
    held_out: float = Field(default=0.15, gt=0, lt=1, description="share of patterns kept for the split `unseen`")
    horizon: float = Field(default=0.5, gt=0, le=1, description="share of a trajectory, rounded up, whose steps train")
    held_out_steps: float = Field(
        default=0.15, gt=0, lt=1, description="share of the steps below the horizon kept for `val` and `in_range`"
    )
    val: int = Field(default=10_000, ge=1, description="examples in `val`")
    eval_size: int = Field(default=10_000, ge=1, description="examples in each other evaluation split")

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


def make_examples(boards: Boards, examples: Examples, params: LifeParams, progress: Progress) -> tuple[Tokens, Tokens]:
    """(inputs, labels). Filled in place by this process: at the paper's scale they take most of a gigabyte, and to
    send them between processes costs as much as to make them."""
    shape = (len(examples.which), params.seq_len)
    inputs, labels = np.zeros(shape, dtype=np.uint8), np.zeros(shape, dtype=np.uint8)
    pieces = _pieces(boards)
    owner, place = np.empty((2, len(boards)), dtype=np.int64)
    for number, piece in enumerate(pieces):
        owner[piece], place[piece] = number, np.arange(len(piece))
    order = np.argsort(owner[examples.which], kind="stable")
    ends = np.cumsum(np.bincount(owner[examples.which], minlength=len(pieces)))
    for number, (piece, member) in enumerate(zip(pieces, np.split(order, ends)[:-1], strict=True)):
        progress("writing examples", number, len(pieces))
        some, steps = boards.take(piece), examples.steps[member]
        local = Examples(place[examples.which[member]], steps)
        length = int(some.chars().max()) + 3
        inputs[member, :length] = encode(some.take(local.which), steps, length)
        labels[member, :length] = encode_cells(evolve(some, local, params.boundary == "torus"), length)
    progress("writing examples", len(pieces), len(pieces))
    return inputs, labels


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
    boards = Boards.join(drawn)
    keys = np.column_stack([boards.heights, boards.widths, boards.rows])
    _, first = np.unique(keys.view(f"V{keys.shape[1] * 4}").ravel(), return_index=True)
    return boards.take(np.sort(first))


def horizons(lengths: Ints, share: float) -> Ints:
    """The last step that trains, for trajectories of these lengths."""
    last: Ints = np.ceil(lengths * share - 1e-9).astype(np.int64)
    return last


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
    ends = np.cumsum([len(e.which) for e in splits.values()])[:-1]
    parts = zip(*(np.split(each, ends) for each in make_examples(boards, together, params, progress)), strict=True)
    return {
        name: {"inputs": inputs, "labels": labels, "steps": examples.steps.astype(np.uint8)}
        for (name, examples), (inputs, labels) in zip(splits.items(), parts, strict=True)
    }


def sample(params: LifeParams, seed: int, count: int) -> tuple[Tokens, Tokens]:
    """Fresh examples within the training horizon."""
    rng = rng_for(seed, TAG, SAMPLE)
    drawn = [draw(params, rng, count)]
    while sum(map(len, drawn)) < count:
        drawn.append(draw(params, rng, count))
    boards = Boards.join(drawn).take(slice(count))
    steps = rng.integers(1, horizons(measure(boards, params, 1, silent), params.horizon) + 1)
    return make_examples(boards, Examples(np.arange(count), steps), params, silent)
