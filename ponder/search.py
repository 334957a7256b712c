"""Verified search (beyond the paper): noisy restarts of one puzzle in parallel, until the checker accepts an answer.

Checking an answer is cheaper than finding it, so a model that is right sometimes becomes one that is right nearly always,
at a price that is reported: ACT steps, summed over all restarts.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from ponder import rng
from ponder.domains.base import Bools, Domain, Ints, Tokens
from ponder.engine import SLOTS, Checker, Engine, Floats, Full, Seen
from ponder.errors import UserError
from ponder.model.reasoner import Reasoner

Select = Literal["checker", "confidence"]

SEARCH = 101
"""What these random numbers are for, beside the uses that ponder/rng.py lists."""
NOISE = 0.05
SOLVERS = {
    "life": "its checker computes the answer, so that nothing would be found that was not known",
    "joint": "some of its puzzles are Life, whose checker computes the answer",
}


@dataclass(frozen=True)
class Found:
    """The answer of each puzzle and what it cost."""

    answers: Tokens
    restart: Ints
    """Which restart gave it; 0 is the one without noise."""
    steps: Ints
    """The ACT step of that restart at which it did."""
    confidence: Floats
    """Its halting logit."""
    accepted: Bools
    """The checker's verdict; False everywhere where it was not asked."""
    compute: Ints
    """ACT steps of all restarts together."""


def searchable(domain: Domain, select: Select) -> None:
    """Refuse domains in which a checker that accepts proves nothing, or where there is none."""
    if select == "confidence":
        return
    why = SOLVERS.get(domain.name) or ("" if domain.checkable else "it has no checker")
    if why:
        raise UserError(f"no verified search in {domain.name}: {why}; use --select confidence")


def restart_keys(seed: int, numbers: Ints, restarts: int) -> Ints:
    """[n, restarts] the keys of the noise: a function of (seed, number of the puzzle, restart)."""
    start = torch.full((len(numbers), restarts), seed, dtype=torch.int64)
    keys = rng.fold(start, SEARCH, torch.from_numpy(numbers)[:, None], torch.arange(restarts)[None, :])
    out: Ints = keys.numpy()
    return out


def search(
    model: Reasoner,
    domain: Domain,
    inputs: Tokens,
    restarts: int,
    steps: int,
    noise: float = NOISE,
    seed: int = 0,
    select: Select = "checker",
    numbers: Ints | None = None,
    slots: int = SLOTS,
) -> Found:
    """Run `restarts` trajectories of each puzzle side by side, the first without noise, for at most `steps` steps.

    By checker: all restarts of a puzzle end at the step at which one is accepted (several at once: the lowest); a puzzle
    with none keeps the last answer of restart 0. By confidence: all run to the end, and the answer is the one of which
    the halting head was most confident, over all restarts and steps.
    """
    searchable(domain, select)
    if restarts < 1:
        raise UserError(f"restarts {restarts} is too small: give at least 1")
    if restarts > 1 and noise <= 0:
        raise UserError(f"noise {noise:g} would make all restarts the same: give a positive rate")
    count, room = len(inputs), max(1, slots // restarts)
    keys = restart_keys(seed, np.arange(count) if numbers is None else numbers, restarts)
    policy = Checker() if select == "checker" else Full()
    sides = [_Side(Engine(model, domain, room, policy, steps), 0, 1)]
    if restarts > 1:
        sides.append(_Side(Engine(model, domain, room * (restarts - 1), policy, steps, noise), 1, restarts - 1))
    out = Found(
        answers=np.zeros_like(inputs),
        restart=np.zeros(count, dtype=np.int64),
        steps=np.zeros(count, dtype=np.int64),
        confidence=np.full(count, -np.inf, dtype=np.float32),
        accepted=np.zeros(count, dtype=np.bool_),
        compute=np.zeros(count, dtype=np.int64),
    )
    ended, entered = np.zeros(count, dtype=np.bool_), 0
    while not ended.all():
        while entered < count and entered - ended.sum() < room:
            for side in sides:
                side.admit(inputs[entered], keys[entered])
            entered += 1
        for side in sides:
            seen, _ = side.engine.advance()
            for restart in range(side.first, side.first + side.width):
                _choose(out, seen, side, restart, select)
        out.compute[:entered][~ended[:entered]] += restarts
        ended[:entered] = out.accepted[:entered] | (out.compute[:entered] >= restarts * sides[0].engine.budget)
        for side in sides:
            side.leave(np.flatnonzero(ended[:entered]))
    return out


@dataclass(frozen=True)
class _Side:
    """Restarts `first` to `first + width - 1` of every puzzle. Tickets count admissions, so they tell both apart."""

    engine: Engine
    first: int
    width: int

    def admit(self, puzzle: Tokens, keys: Ints) -> None:
        for restart in range(self.first, self.first + self.width):
            self.engine.admit(puzzle, key=int(keys[restart]))

    def leave(self, puzzles: Ints) -> None:
        self.engine.drop((puzzles[:, None] * self.width + np.arange(self.width)).ravel())


def _choose(out: Found, seen: Seen, side: _Side, restart: int, select: Select) -> None:
    """Let this restart's answers replace, in `out`, those that they beat."""
    rows = np.flatnonzero(seen.tickets % side.width == restart - side.first)
    puzzles = seen.tickets[rows] // side.width
    if select == "confidence":
        better = seen.q_halt[rows] > out.confidence[puzzles]
    else:
        assert seen.accepted is not None
        # Restart 0 comes first in each step, and its answer stands until another is accepted.
        better = (seen.accepted[rows] & ~out.accepted[puzzles]) | (restart == 0)
        out.accepted[puzzles] |= seen.accepted[rows]
    rows, puzzles = rows[better], puzzles[better]
    out.answers[puzzles], out.steps[puzzles], out.confidence[puzzles] = (
        seen.answers[rows],
        seen.steps[rows],
        seen.q_halt[rows],
    )
    out.restart[puzzles] = restart
