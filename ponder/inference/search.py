"""Search (beyond the paper): several tries at one puzzle, and a rule that says which answer counts.

The first rule is the checker's: the tries end when it accepts an answer. Checking is cheaper than finding, so that a
model that is right sometimes becomes one that is right nearly always, at a price that is reported: ACT steps, summed
over all tries. They differ by noise in the states, side by side; or, where puzzles have cells to fill in, each supposes
a symbol in one that the model is unsure about, one after the other; or they are the answers that the model finds
likeliest after its own.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from ponder.base import rng
from ponder.base.errors import UserError
from ponder.config.schema import SearchPlan, Vary
from ponder.domains.contract import Domain, Ints, Tokens
from ponder.inference.engine import SLOTS, Checker, Engine, Full, Seen
from ponder.inference.tries import Floats, Found, first_right, likeliest, suppositions
from ponder.model.reasoner import Reasoner

RULES = {
    "checker": "all restarts of a puzzle end at the first step at which the checker accepts an answer",
    "confidence": "all restarts run to the end; the answer is the one with the highest halting logit",
    "first-halt": "all restarts of a puzzle end at the first step at which the halting head stops one, or at the last; "
    "of those that end there, the most confident answers",
    "residual": "all restarts run to the end; the answer is of the one whose state moved least in its last step",
    "energy": "all restarts run to the end; the answer is of the one whose last logits have the lowest energy",
}


SEARCH = 101
"""What these random numbers are for, beside the uses that ponder/rng.py lists."""
SIZE = 0.16
"""Expected relative size of the noise, eta sqrt(width); the best of 0.04 to 0.8 on 4x4 and 6x6 Sudoku."""


def default_noise(model: Reasoner) -> float:
    return SIZE / math.sqrt(model.config.width)


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
    plan: SearchPlan,
    task_ids: Ints | None = None,
    numbers: Ints | None = None,
    slots: int = SLOTS,
    precision: str = "float32",
) -> Found:
    """All restarts of a puzzle side by side, the first without noise; or one supposition, or one answer, after the
    other.

    `numbers` name the puzzles, so that the noise of one does not depend on which others are searched.

    By checker: all restarts of a puzzle end at the step at which one is accepted (several at once: the lowest); without
    any, the last answer of restart 0 stays. The other rules are in RULES and `_scores`; among equals the lowest
    restart and the earliest step count.
    """
    _possible(model, domain, plan)
    count, room = len(inputs), max(1, slots // plan.restarts)
    task_ids = np.zeros(count, dtype=np.int64) if task_ids is None else task_ids
    keys = restart_keys(plan.seed, np.arange(count) if numbers is None else numbers, plan.restarts)
    if plan.vary != "noise":
        engine = partial(Engine, model, domain, slots, Checker(), plan.steps, precision=precision)
        return _one_by_one(engine, inputs, task_ids, keys, plan.vary)
    policy = Checker() if plan.select == "checker" else Full()
    sides = [
        _Side(Engine(model, domain, room * width, policy, plan.steps, noise, precision), first, width)
        for first, width, noise in ((0, 1, 0.0), (1, plan.restarts - 1, plan.noise))
        if width
    ]
    out = Found(
        answers=np.zeros_like(inputs),
        restart=np.zeros(count, dtype=np.int64),
        steps=np.zeros(count, dtype=np.int64),
        confidence=np.full(count, -np.inf, dtype=np.float32),
        accepted=np.zeros(count, dtype=np.bool_),
        compute=np.zeros(count, dtype=np.int64),
    )
    ended, entered, best = np.zeros(count, dtype=np.bool_), 0, np.full(count, -np.inf, dtype=np.float32)
    while not ended.all():
        while entered < count and entered - ended.sum() < room:
            for side in sides:
                side.admit(inputs[entered], int(task_ids[entered]), keys[entered])
            entered += 1
        for side in sides:
            seen, _ = side.engine.advance()
            for restart in range(side.first, side.first + side.width):
                _choose(out, best, seen, side, restart, plan.select)
        inside = np.flatnonzero(~ended[:entered])
        out.compute[inside] += plan.restarts
        found = out.accepted[inside] if plan.select != "first-halt" else out.steps[inside] > 0
        over = inside[found | (out.compute[inside] == plan.restarts * sides[0].engine.budget)]
        for side in sides:
            side.leave(over)
        ended[over] = True
    return out


@dataclass(frozen=True)
class _Side:
    """Restarts `first` to `first + width - 1` of every puzzle. Tickets count admissions, so they tell both apart."""

    engine: Engine
    first: int
    width: int

    def admit(self, puzzle: Tokens, task_id: int, keys: Ints) -> None:
        for restart in range(self.first, self.first + self.width):
            self.engine.admit(puzzle, task_id, int(keys[restart]))

    def leave(self, puzzles: Ints) -> None:
        self.engine.drop((puzzles[:, None] * self.width + np.arange(self.width)).ravel())


def _one_by_one(make: Callable[[], Engine], inputs: Tokens, task_ids: Ints, keys: Ints, vary: Vary) -> Found:
    """The plain run, then, of the puzzles that are still refused, one try after the other. An answer to a puzzle with
    one more cell given is one to the puzzle."""
    tries: dict[int, Tokens] = {}
    engine = make()
    tries_of = suppositions if vary == "suppose" else likeliest

    def watch(seen: Seen) -> None:
        assert seen.accepted is not None
        for row in np.flatnonzero((seen.steps == engine.budget) & ~seen.accepted):
            logits = seen.logits[row].float().cpu().numpy()
            tries[int(seen.tickets[row])] = tries_of(engine.domain, seen.inputs[row], logits, keys.shape[1] - 1)

    plain = engine.run(inputs, task_ids, keys[:, 0], watch)
    assert plain.accepted is not None
    out = Found(
        answers=plain.answers,
        restart=np.zeros_like(plain.steps),
        steps=plain.steps,
        confidence=plain.confidence,
        accepted=plain.accepted,
        compute=plain.steps.copy(),
    )
    if vary == "likely":
        for i, answers in tries.items():
            at = first_right(engine.domain, inputs[i], answers)
            out.compute[i] += len(answers) if at is None else at + 1
            if at is not None:
                out.answers[i], out.restart[i], out.accepted[i] = answers[at], at + 1, True
        return out
    for restart in range(1, keys.shape[1]):
        left = np.array([i for i, some in tries.items() if restart <= len(some) and not out.accepted[i]], np.int64)
        if not len(left):
            break
        supposed = np.stack([tries[i][restart - 1] for i in left.tolist()])
        tried = make().run(supposed, task_ids[left], keys[left, restart])
        assert tried.accepted is not None
        out.compute[left] += tried.steps
        found = left[tried.accepted]
        for name in ("answers", "steps", "confidence", "accepted"):
            getattr(out, name)[found] = getattr(tried, name)[tried.accepted]
        out.restart[found] = restart
    return out


def _possible(model: Reasoner, domain: Domain, plan: SearchPlan) -> None:
    if plan.select == "checker" and (why := domain.unverifiable):
        raise UserError(f"no verified search in {domain.name}: {why}; select by confidence (--select confidence)")
    if plan.select == "first-halt" and not model.config.head:
        raise UserError("select first-halt needs a halting head and this model has none: select by confidence")
    if plan.select == "residual" and model.config.states == 0:
        raise UserError("select residual needs a state and this model has none: select by confidence")
    if plan.vary not in ("noise", domain.vary):
        also = "" if domain.vary == "noise" else f" or {domain.vary}"
        raise UserError(f"the tries at {domain.name} cannot vary by {plan.vary}: give --vary noise{also}")
    if plan.vary != "noise" and plan.select != "checker":
        raise UserError(f"such tries end when the checker accepts one: leave out --select {plan.select}")
    if plan.vary == "noise" and plan.restarts > 1 and plan.noise <= 0 and model.config.init == "fixed":
        raise UserError(f"noise {plan.noise:g} would make all restarts the same: give a positive rate")


def _scores(seen: Seen, budget: int, select: str) -> Floats:
    """How good each answer is by the rule, the higher the better; not a number where the rule does not look at it."""
    last = seen.steps == budget
    score, looked = {
        "confidence": (seen.confidence, np.ones_like(last)),
        "first-halt": (seen.confidence, seen.halts | last),
        "residual": (-seen.residual, last),
        "energy": (-seen.energy, last),
    }[select]
    out: Floats = np.where(looked, np.where(np.isnan(score), -np.inf, score), np.nan).astype(np.float32)
    return out


def _choose(out: Found, best: Floats, seen: Seen, side: _Side, restart: int, select: str) -> None:
    """Let this restart's answers replace, in `out`, those that they beat."""
    rows = np.flatnonzero(seen.tickets % side.width == restart - side.first)
    puzzles = seen.tickets[rows] // side.width
    if select != "checker":
        score = _scores(seen, side.engine.budget, select)[rows]
        better = (score > best[puzzles]) | (~np.isnan(score) & (out.steps[puzzles] == 0))
        best[puzzles[better]] = score[better]
    else:
        assert seen.accepted is not None
        # Restart 0 comes first in each step, and its answer stands until another is accepted.
        better = (seen.accepted[rows] & ~out.accepted[puzzles]) | (restart == 0)
        out.accepted[puzzles] |= seen.accepted[rows]
    rows, puzzles = rows[better], puzzles[better]
    out.answers[puzzles], out.steps[puzzles], out.confidence[puzzles] = (
        seen.answers[rows],
        seen.steps[rows],
        seen.confidence[rows],
    )
    out.restart[puzzles] = restart
