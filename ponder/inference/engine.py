"""Adaptive inference: puzzles take slots, advance together one ACT step at a time, and leave when a policy lets them.

The batch holds the occupied slots and nothing else, so that the work done is the number of steps that puzzles need.
What happens to a puzzle does not depend on its neighbours or on when it came (up to the rounding of a matrix product).
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ponder.base.errors import UserError, at_least
from ponder.base.runtime import Runtime, carry_dtype
from ponder.domains.contract import Bools, Domain, Ints, Tokens
from ponder.inference.tries import Floats
from ponder.model import halting, whole
from ponder.model.reasoner import Carry, Reasoner
from ponder.model.recurrence import States
from ponder.model.sublayers import Form

SLOTS = 128
"""Enough puzzles at a time to keep a CPU's matrix products busy."""
ROOM = 2**23
"""Symbols of answers that are held at a time where all steps are taken at once, 8 bytes each."""


@dataclass(frozen=True)
class Seen:
    """The occupied slots after a step. Row i of every array belongs to the same puzzle."""

    tickets: Ints
    inputs: Tokens
    answers: Tokens
    steps: Ints
    """ACT steps done."""
    unchanged: Ints
    """For how many steps the answer has stayed as it is; 0 after a step that changed it, and after the first."""
    confidence: Floats
    """Halting logit; for a model without a halting head, the mean log-probability of the predicted tokens."""
    halts: Bools
    """Whether the halting head would stop here; nowhere without one."""
    residual: Floats
    """How far the step moved the state, relative to its size; not a number for a model without states."""
    energy: Floats
    """Of the answer's logits: the lower, the more they speak for any symbols at all."""
    accepted: Bools | None
    """The checker's verdict; None unless the policy asks for it."""
    logits: Tensor
    """[puzzles, tokens, symbols], where the model computed them."""


# When a puzzle is finished --------------------------------------------------------------------------------------------


class Policy(Protocol):
    """Says which puzzles are finished before the budget ends. It remembers nothing: what it may know is in `Seen`."""

    @property
    def name(self) -> str: ...

    @property
    def checks(self) -> bool:
        """Whether it needs the domain's checker."""

    def done(self, seen: Seen) -> Bools: ...


@dataclass(frozen=True)
class Full:
    """The main protocol: every puzzle gets the whole budget."""

    checks: ClassVar[bool] = False
    name: ClassVar[str] = "full"

    def done(self, seen: Seen) -> Bools:
        return np.zeros(len(seen.steps), dtype=np.bool_)


@dataclass(frozen=True)
class Halt:
    """The halting head decides: its probability exceeds the threshold or, without one, halting beats going on."""

    threshold: float | None = None
    checks: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.threshold is not None and not 0 < self.threshold < 1:
            raise UserError(f"threshold {self.threshold:g} is not a probability: give a number between 0 and 1")

    @property
    def name(self) -> str:
        return "halt" if self.threshold is None else f"halt > {self.threshold:g}"

    def done(self, seen: Seen) -> Bools:
        return seen.halts if self.threshold is None else seen.confidence > halting.logit(self.threshold)


@dataclass(frozen=True)
class Stable:
    """The answer has not changed for so many steps."""

    steps: int = 1
    checks: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise UserError(f"an answer cannot be unchanged for {self.steps} steps: give 1 or more")

    @property
    def name(self) -> str:
        return f"stable {self.steps}"

    def done(self, seen: Seen) -> Bools:
        return seen.unchanged >= self.steps


@dataclass(frozen=True)
class Settled:
    """The last step moved the state by less than so much of its size: a fixed point, as good as reached."""

    residual: float
    checks: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.residual <= 0:
            raise UserError(f"a residual of {self.residual:g} is never undercut: give a positive number")

    @property
    def name(self) -> str:
        return f"residual < {self.residual:g}"

    def done(self, seen: Seen) -> Bools:
        return seen.residual < self.residual


@dataclass(frozen=True)
class Checker:
    """The domain's checker accepts the answer."""

    checks: ClassVar[bool] = True
    name: ClassVar[str] = "checker"

    def done(self, seen: Seen) -> Bools:
        assert seen.accepted is not None
        return seen.accepted


# The slots ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finished:
    """What each puzzle of an array left with, in its order."""

    answers: Tokens
    steps: Ints
    confidence: Floats
    accepted: Bools | None


@dataclass(frozen=True)
class _Arrivals:
    """Puzzles that came together and wait."""

    tickets: Ints
    inputs: Tokens
    task_ids: Ints
    keys: Ints

    def __len__(self) -> int:
        return len(self.tickets)

    def at(self, rows: slice | Bools) -> "_Arrivals":
        return _Arrivals(self.tickets[rows], self.inputs[rows], self.task_ids[rows], self.keys[rows])


@dataclass(frozen=True)
class _Batch:
    """The occupied slots, packed."""

    carry: Carry
    x: Tensor
    rows: Tensor
    tickets: Ints
    inputs: Tokens
    answers: Tokens
    unchanged: Ints
    accepted: Bools

    def __len__(self) -> int:
        return len(self.tickets)

    def take(self, keep: Ints) -> "_Batch":
        index = torch.from_numpy(keep).to(self.x.device)
        arrays = (getattr(self, name)[keep] for name in ("tickets", "inputs", "answers", "unchanged", "accepted"))
        return _Batch(self.carry.take(index), self.x[index], self.rows[index], *arrays)

    def joined(self, other: "_Batch") -> "_Batch":
        a, b = self.carry, other.carry
        states = States.of(torch.cat(pair) for pair in zip(a.states.held, b.states.held, strict=True))
        carry = Carry(states, torch.cat((a.steps, b.steps)), torch.cat((a.key, b.key)))
        arrays = (
            np.concatenate((getattr(self, name), getattr(other, name)))
            for name in ("tickets", "inputs", "answers", "unchanged", "accepted")
        )
        return _Batch(carry, torch.cat((self.x, other.x)), torch.cat((self.rows, other.rows)), *arrays)


class Engine:
    """A model at work on at most `slots` puzzles at a time.

    `admit` queues a puzzle, `advance` runs one ACT step of all puzzles that have a slot, and a puzzle leaves after the
    step at which the policy calls it done or its budget ends. With `noise`, the states are perturbed at each step by
    random numbers that are a function of the puzzle's key and the step.
    """

    def __init__(
        self,
        model: Reasoner,
        domain: Domain,
        slots: int = SLOTS,
        policy: Policy | None = None,
        budget: int | None = None,
        noise: float = 0.0,
        precision: str = "float32",
    ) -> None:
        config = model.config
        self.model, self.domain, self.slots, self.noise, self.precision = model, domain, slots, noise, precision
        self.policy: Policy = policy or Full()
        # A model without states says the same at every step.
        self.budget = 1 if config.states == 0 else config.max_steps if budget is None else budget
        at_least(1, {"slots": slots, "budget": self.budget})
        if self.policy.checks and not domain.checkable:
            raise UserError(f"policy {self.policy.name!r} needs a checker and {domain.name} has none: choose another")
        if isinstance(self.policy, Halt) and not config.head:
            raise UserError(f"policy {self.policy.name!r} needs a halting head and this model has none: choose another")
        if isinstance(self.policy, Settled) and config.states == 0:
            raise UserError(f"policy {self.policy.name!r} needs a state and this model has none: choose another")
        self.queue: deque[_Arrivals] = deque()
        self.batch: _Batch | None = None
        self.admitted = 0
        self.slot_steps = 0
        """ACT steps of single puzzles done so far: the work."""

    @property
    def idle(self) -> bool:
        return not self.queue and self.batch is None

    def admit(self, inputs: Tokens, task_id: int = 0, key: int = 0) -> int:
        """Queue a puzzle; the ticket it is known by from now on. Tickets count from 0."""
        self._queue(inputs[None], np.array([task_id]), np.array([key]))
        return self.admitted - 1

    def drop(self, tickets: npt.ArrayLike) -> None:
        """Forget puzzles that wait or hold a slot: nobody wants their answers any more."""
        kept = (group.at(~np.isin(group.tickets, tickets)) for group in self.queue)
        self.queue = deque(group for group in kept if len(group))
        if self.batch is not None:
            self._keep(~np.isin(self.batch.tickets, tickets))

    def advance(self) -> tuple[Seen, Bools]:
        """One ACT step of every puzzle that has a slot: what it led to, and which of them were finished and left."""
        batch = self._filled()
        with torch.no_grad(), Runtime(self.model.table.device).autocast(self.precision):
            step = self.model(batch.carry, batch.x, batch.rows, noise=self.noise)
        read = halting.read(step)
        answers = read.answers.to(torch.uint8).cpu().numpy()
        steps: Ints = step.carry.steps.cpu().numpy()
        changed = (answers != batch.answers).any(axis=1) | (steps == 1)
        unchanged = np.where(changed, 0, batch.unchanged + 1)
        accepted = batch.accepted
        if self.policy.checks and changed.any():
            accepted = accepted.copy()
            accepted[changed] = self.domain.check(batch.inputs[changed], answers[changed])
        seen = Seen(
            tickets=batch.tickets,
            inputs=batch.inputs,
            answers=answers,
            steps=steps,
            unchanged=unchanged,
            confidence=read.confidence.cpu().numpy(),
            halts=halting.halts(step).cpu().numpy(),
            residual=halting.residual(batch.carry, step.carry).cpu().numpy(),
            energy=read.energy.cpu().numpy(),
            accepted=accepted if self.policy.checks else None,
            logits=step.logits,
        )
        # A puzzle that asks for so many steps gets them, neither more nor fewer, unless all are to run to the budget.
        asked = step.over is not None and not isinstance(self.policy, Full)
        done = (seen.halts if asked else self.policy.done(seen)) | (steps >= self.budget)
        self.slot_steps += len(batch)
        self.batch = _Batch(step.carry, batch.x, batch.rows, batch.tickets, batch.inputs, answers, unchanged, accepted)
        self._keep(~done)
        return seen, done

    def run(
        self,
        inputs: Tokens,
        task_ids: Ints | None = None,
        keys: Ints | None = None,
        watch: Callable[[Seen], None] | None = None,
    ) -> Finished:
        """A whole array of puzzles, slots refilled as they fall free. `watch` sees every step; row i has ticket i."""
        if self.admitted:
            raise RuntimeError("Engine.run wants an engine of its own: its tickets are the rows of the array")
        none = np.zeros(len(inputs), dtype=np.int64)
        self._queue(inputs, none if task_ids is None else task_ids, none if keys is None else keys)
        out = Finished(
            answers=np.zeros_like(inputs),
            steps=none.copy(),
            confidence=np.zeros(len(inputs), dtype=np.float32),
            accepted=np.zeros(len(inputs), dtype=np.bool_) if self.policy.checks else None,
        )
        while not self.idle:
            seen, done = self.advance()
            if watch is not None:
                watch(seen)
            left = seen.tickets[done]
            for name in ("answers", "steps", "confidence", "accepted"):
                into = getattr(out, name)
                if into is not None:
                    into[left] = getattr(seen, name)[done]
        return out

    def _queue(self, inputs: Tokens, task_ids: Ints, keys: Ints) -> None:
        tickets = np.arange(self.admitted, self.admitted + len(inputs))
        if len(inputs):
            self.queue.append(_Arrivals(tickets, inputs, task_ids, keys))
        self.admitted += len(inputs)

    def _filled(self) -> _Batch:
        """The batch with as many of those who wait as there are free slots."""
        free = self.slots - (0 if self.batch is None else len(self.batch))
        groups = []
        while free and self.queue:
            group = self.queue.popleft()
            if len(group) > free:
                self.queue.appendleft(group.at(slice(free, None)))
                group = group.at(slice(free))
            groups.append(group)
            free -= len(group)
        if groups:
            fresh = self._fresh(groups)
            self.batch = fresh if self.batch is None else self.batch.joined(fresh)
        if self.batch is None:
            raise RuntimeError("no puzzle has a slot: admit one before the next step")
        return self.batch

    def _fresh(self, groups: list[_Arrivals]) -> _Batch:
        table = self.model.table
        inputs = np.concatenate([group.inputs for group in groups])
        x, task_ids, keys = (
            torch.from_numpy(each).to(table.device, torch.int64)
            for each in (inputs, *(np.concatenate([getattr(g, n) for g in groups]) for n in ("task_ids", "keys")))
        )
        return _Batch(
            carry=self.model.start(keys, carry_dtype(self.precision)),
            x=x,
            rows=table[task_ids],
            tickets=np.concatenate([group.tickets for group in groups]),
            inputs=inputs,
            answers=np.zeros_like(inputs),
            unchanged=np.zeros(len(inputs), dtype=np.int64),
            accepted=np.zeros(len(inputs), dtype=np.bool_),
        )

    def _keep(self, kept: Bools) -> None:
        assert self.batch is not None
        if not kept.any():
            self.batch = None
        elif not kept.all():
            self.batch = self.batch.take(np.flatnonzero(kept))


@dataclass(frozen=True)
class Forced:
    """What puzzles came to at each step, where all take the same number of them."""

    answers: Tokens
    """[steps, puzzles, tokens]"""
    confidence: Floats
    """[steps, puzzles], as in `Seen`, like the next."""
    halts: Bools


@torch.no_grad()
def forced(
    model: Reasoner, domain: Domain, inputs: Tokens, task_ids: Ints, keys: Ints, steps: int, precision: str = "float32"
) -> Forced:
    """All steps of all puzzles, halting off: by one program where there is one, else by an engine."""
    at_least(1, {"steps": steps})
    most = max(SLOTS, ROOM // (steps * inputs.shape[1]))
    if len(inputs) > most:  # all their answers are held until they are read
        groups = [slice(start, start + most) for start in range(0, len(inputs), most)]
        parts = [forced(model, domain, inputs[g], task_ids[g], keys[g], steps, precision) for g in groups]
        answers, confidence, halts = zip(*((p.answers, p.confidence, p.halts) for p in parts), strict=True)
        return Forced(*(np.concatenate(each, axis=1) for each in (answers, confidence, halts)))
    form, device = Form(model.config.h_cycles, 0.0, model.training), model.table.device
    steps = steps if model.config.states else 1  # the same at every step
    x, key = (torch.from_numpy(each).to(device, torch.int64) for each in (inputs, keys))
    lib = whole.library(model, (), key, form)
    watched = model._forward_hooks or model._forward_pre_hooks or "forward" in vars(model)
    if lib is None or watched or precision != "float32":
        seen: list[Seen] = []
        engine = Engine(model, domain, len(inputs), Full(), steps, precision=precision)
        engine.run(inputs, task_ids, keys, watch=seen.append)
        answers, confidence, halts = zip(*((s.answers, s.confidence, s.halts) for s in seen), strict=True)
        return Forced(np.stack(answers), np.stack(confidence), np.stack(halts))
    found = whole.examine(lib, model, key, x, model.table[torch.from_numpy(task_ids)], form, steps)
    done = torch.arange(1, steps + 1)[:, None]
    over = None if model.asked is None else done >= model.asked(x)
    q_halt, q_continue = (None, None) if found.q is None else found.q.unbind(dim=-1)
    q_continue = q_continue if model.config.halting == "halt+continue" else None
    stops = halting.stops(over, q_halt, q_continue, found.sure)
    return Forced(found.answers.to(torch.uint8).numpy(), halting.confident(found.sure).numpy(), stops.numpy())


@torch.no_grad()
def logits_of(model: Reasoner, inputs: Tokens, steps: int) -> Floats:
    """[tokens, symbols] what a model says of one puzzle after so many steps."""
    device = model.table.device
    carry = model.start(torch.zeros(1, dtype=torch.int64, device=device))
    for _ in range(steps):
        step = model(carry, torch.from_numpy(inputs[None]).to(device, torch.int64), model.table[:1], noise=0.0)
        carry = step.carry
    out: Floats = step.logits[0].float().cpu().numpy()
    return out
