"""Adaptive inference: puzzles take slots, advance together one ACT step at a time, and leave when a policy lets them.

The batch holds the occupied slots and nothing else, so that the work done is the number of steps that puzzles need.
What happens to a puzzle does not depend on its neighbours or on when it came (up to the rounding of a matrix product).
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ponder.base.errors import UserError
from ponder.base.runtime import Runtime
from ponder.domains.contract import Bools, Domain, Ints, Tokens
from ponder.model.reasoner import Carry, Reasoner
from ponder.model.recurrence import States

Floats = npt.NDArray[np.float32]

SLOTS = 128
"""Enough puzzles at a time to keep a CPU's matrix products busy."""


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
    q_halt: Floats
    """Halting logit; for a model without a halting head, the mean log-probability of the predicted tokens."""
    q_continue: Floats | None
    accepted: Bools | None
    """The checker's verdict; None unless the policy asks for it."""


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
        if self.threshold is not None:
            return seen.q_halt > math.log(self.threshold / (1 - self.threshold))
        return seen.q_halt > (0 if seen.q_continue is None else seen.q_continue)


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
    """What a puzzle leaves with."""

    ticket: int
    answer: Tokens
    steps: int
    q_halt: float
    q_continue: float | None
    accepted: bool | None


@dataclass(frozen=True)
class Results:
    """The same for an array of puzzles, in its order."""

    answers: Tokens
    steps: Ints
    q_halt: Floats
    q_continue: Floats | None
    accepted: Bools | None


@dataclass(frozen=True)
class _Arrival:
    ticket: int
    inputs: Tokens
    task_id: int
    key: int


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
        states = States(_joined(a.states.h, b.states.h), _joined(a.states.l, b.states.l))
        carry = Carry(states, torch.cat((a.steps, b.steps)), torch.cat((a.key, b.key)))
        arrays = (
            np.concatenate((getattr(self, name), getattr(other, name)))
            for name in ("tickets", "inputs", "answers", "unchanged", "accepted")
        )
        return _Batch(carry, torch.cat((self.x, other.x)), torch.cat((self.rows, other.rows)), *arrays)


def _joined(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return None if a is None or b is None else torch.cat((a, b))


class Engine:
    """A model at work on at most `slots` puzzles at a time.

    `admit` queues a puzzle, `advance` or `step` runs one ACT step of all puzzles that have a slot, and a puzzle leaves
    after the step at which the policy calls it done or its budget ends. With `noise`, the states are perturbed at each
    step by random numbers that are a function of the puzzle's key and the step.
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
        for name, value in (("slots", slots), ("budget", self.budget)):
            if value < 1:
                raise UserError(f"{name} {value} is too small: give at least 1")
        if self.policy.checks and not domain.checkable:
            raise UserError(f"policy {self.policy.name!r} needs a checker and {domain.name} has none: choose another")
        if isinstance(self.policy, Halt) and config.halting == "none":
            raise UserError(f"policy {self.policy.name!r} needs a halting head and this model has none: choose another")
        self.queue: deque[_Arrival] = deque()
        self.batch: _Batch | None = None
        self.admitted = 0
        self.slot_steps = 0
        """ACT steps of single puzzles done so far: the work."""

    @property
    def idle(self) -> bool:
        return not self.queue and self.batch is None

    def admit(self, inputs: Tokens, task_id: int = 0, key: int = 0) -> int:
        """Queue a puzzle; the ticket it is known by from now on. Tickets count from 0."""
        self.queue.append(_Arrival(self.admitted, inputs, task_id, key))
        self.admitted += 1
        return self.admitted - 1

    def drop(self, tickets: npt.ArrayLike) -> None:
        """Forget puzzles that wait or hold a slot: nobody wants their answers any more."""
        self.queue = deque(a for a in self.queue if not np.isin(a.ticket, tickets))
        if self.batch is not None:
            self._keep(~np.isin(self.batch.tickets, tickets))

    def advance(self) -> tuple[Seen, Bools]:
        """One ACT step of every puzzle that has a slot: what it led to, and which of them were finished and left."""
        batch = self._filled()
        with torch.no_grad(), Runtime(self.model.table.device).autocast(self.precision):
            step = self.model(batch.carry, batch.x, batch.rows, noise=self.noise)
        answers = step.logits.argmax(dim=-1).to(torch.uint8).cpu().numpy()
        steps: Ints = step.carry.steps.cpu().numpy()
        changed = (answers != batch.answers).any(axis=1) | (steps == 1)
        unchanged = np.where(changed, 0, batch.unchanged + 1)
        accepted = batch.accepted
        if self.policy.checks and changed.any():
            accepted = accepted.copy()
            accepted[changed] = self.domain.check(batch.inputs[changed], answers[changed])
        if step.q_halt is not None:
            confidence = step.q_halt.float()
        else:
            confidence = step.logits.float().log_softmax(dim=-1).amax(dim=-1).mean(dim=-1)
        confidence = torch.where(confidence.isnan(), -torch.inf, confidence)  # a diverged model is never confident
        seen = Seen(
            tickets=batch.tickets,
            inputs=batch.inputs,
            answers=answers,
            steps=steps,
            unchanged=unchanged,
            q_halt=confidence.cpu().numpy(),
            q_continue=None if step.q_continue is None else step.q_continue.float().cpu().numpy(),
            accepted=accepted if self.policy.checks else None,
        )
        done = self.policy.done(seen) | (steps >= self.budget)
        self.slot_steps += len(batch)
        self.batch = _Batch(step.carry, batch.x, batch.rows, batch.tickets, batch.inputs, answers, unchanged, accepted)
        self._keep(~done)
        return seen, done

    def step(self) -> list[Finished]:
        """One ACT step of every puzzle that has a slot; those that were finished by it, oldest first."""
        seen, done = self.advance()
        return [
            Finished(
                ticket=int(seen.tickets[i]),
                answer=seen.answers[i],
                steps=int(seen.steps[i]),
                q_halt=float(seen.q_halt[i]),
                q_continue=None if seen.q_continue is None else float(seen.q_continue[i]),
                accepted=None if seen.accepted is None else bool(seen.accepted[i]),
            )
            for i in np.flatnonzero(done)
        ]

    def run(
        self,
        inputs: Tokens,
        task_ids: Ints | None = None,
        keys: Ints | None = None,
        watch: Callable[[Seen], None] | None = None,
    ) -> Results:
        """A whole array of puzzles, slots refilled as they fall free. `watch` sees every step; row i has ticket i."""
        if self.admitted:
            raise RuntimeError("Engine.run wants an engine of its own: its tickets are the rows of the array")
        none = np.zeros(len(inputs), dtype=np.int64)
        for row, task_id, key in zip(
            inputs, none if task_ids is None else task_ids, none if keys is None else keys, strict=True
        ):
            self.admit(row, int(task_id), int(key))
        both, checks = self.model.config.halting == "halt+continue", self.policy.checks
        out = Results(
            answers=np.zeros_like(inputs),
            steps=none.copy(),
            q_halt=np.zeros(len(inputs), dtype=np.float32),
            q_continue=np.zeros(len(inputs), dtype=np.float32) if both else None,
            accepted=np.zeros(len(inputs), dtype=np.bool_) if checks else None,
        )
        while not self.idle:
            seen, done = self.advance()
            if watch is not None:
                watch(seen)
            left = seen.tickets[done]
            for name in ("answers", "steps", "q_halt", "q_continue", "accepted"):
                into = getattr(out, name)
                if into is not None:
                    into[left] = getattr(seen, name)[done]
        return out

    def _filled(self) -> _Batch:
        """The batch with as many of those who wait as there are free slots."""
        free = self.slots - (0 if self.batch is None else len(self.batch))
        arrivals = [self.queue.popleft() for _ in range(min(free, len(self.queue)))]
        if arrivals:
            fresh = self._fresh(arrivals)
            self.batch = fresh if self.batch is None else self.batch.joined(fresh)
        if self.batch is None:
            raise RuntimeError("no puzzle has a slot: admit one before the next step")
        return self.batch

    def _fresh(self, arrivals: list[_Arrival]) -> _Batch:
        table = self.model.table
        inputs = np.stack([a.inputs for a in arrivals])
        task_ids, keys = (
            torch.tensor(values, dtype=torch.int64, device=table.device)
            for values in ([a.task_id for a in arrivals], [a.key for a in arrivals])
        )
        return _Batch(
            carry=self.model.start(keys, torch.bfloat16 if self.precision == "bfloat16" else torch.float32),
            x=torch.from_numpy(inputs).to(table.device, torch.int64),
            rows=table[task_ids],
            tickets=np.array([a.ticket for a in arrivals], dtype=np.int64),
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
