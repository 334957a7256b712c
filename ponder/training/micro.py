"""One micro-step: every slot takes an ACT step, is judged, adds to the gradients, and may be done.

By one program where base/kernels.c covers it (`model.whole`), else by autograd, on any device.
"""

import math
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ponder.base import native, rng
from ponder.base.native import Library
from ponder.base.runtime import Runtime
from ponder.config.resolve import Config
from ponder.model import halting, losses, whole
from ponder.model.reasoner import Carry, Reasoner, Step
from ponder.model.recurrence import States
from ponder.model.sublayers import Form, Lesson
from ponder.training.optimisers import Weights
from ponder.training.slots import Slots


@dataclass(frozen=True)
class Depth:
    """How deep training goes at this update: full, unless a curriculum is still growing it."""

    steps: int
    h_cycles: int

    @staticmethod
    def at(config: Config, update: int, updates: int) -> "Depth":
        model, train = config.model, config.train
        grown = min(1.0, update / (train.grow_until * updates))
        steps = math.ceil(1 + (model.max_steps - 1) * grown) if train.grow == "steps" else model.max_steps
        cycles = math.ceil(1 + (model.h_cycles - 1) * grown) if train.grow == "cycles" else model.h_cycles
        return Depth(steps, cycles)

    def unsupervised(self, config: Config) -> int:
        """ACT steps of an update without a graph and without a loss."""
        return self.steps - 1 if config.train.supervise == "last" else 0


@dataclass(frozen=True)
class Moment:
    """Sums over the examples of one micro-step, for the log, by name in alphabetical order: ranks add up by place."""

    names: list[str]
    sums: Tensor
    task_ids: Tensor
    row_grads: Tensor


def micro_step(
    slots: Slots, model: Reasoner, weights: Weights, config: Config, depth: Depth, runtime: Runtime, precision: str
) -> Moment:
    """Advance the slots by one ACT step, add to the gradients, and decide which examples are done.

    Where only the last step is supervised, all steps of an example are taken here, and the last one is learned from.
    Where an example has several states, all of them advance, and it learns from the one whose answer has the lowest
    loss.
    """
    before, rows = slots.carry, model.table[slots.task_ids].detach()
    with runtime.autocast(precision):
        if depth.unsupervised(config):
            with torch.no_grad():
                every = slots.wide(slots.inputs), slots.wide(rows)
                for _ in range(depth.unsupervised(config)):
                    before = model(before, *every, h_cycles=depth.h_cycles).carry
        form = lesson(config, depth, model.training)
        lib = None if form is None else whole.library(model, before.states.held, before.key, form)
    if form is None or lib is None:
        return by_graph(slots, model, before, rows, config, depth, runtime.autocast(precision))
    return by_program(lib, form, slots, model, before, rows, weights, config)


# fmt: off
KNOWN = frozenset((
    "batch", "accumulate", "accumulation", "per_micro_step", "updates", "epochs", "lr", "lr_min_ratio",
    "schedule", "warmup", "beta1", "beta2", "atan2", "weight_decay", "table_lr", "clip", "ema", "loss",
    "halting_weight", "explore", "supervise", "corrupt", "grow", "grow_until", "start", "precision",
    "compile", "data_workers", "log_every", "eval_every", "save_every", "trackers"
))
# fmt: on
"""The settings of a training that a program knows, or that are no matter of a micro-step. Where another one is on,
there is a graph."""


def lesson(config: Config, depth: Depth, training: bool = True) -> Form | None:
    """A micro-step as one program; None where it needs a graph."""
    train = config.train
    if whole.switched(train, KNOWN):
        return None
    judged = Lesson(depth.steps, train.batch, train.loss == "softmax", train.halting_weight, train.explore)
    return Form(depth.h_cycles, config.model.noise if training else 0.0, training, judged)


def programmed(config: Config) -> bool:
    """Whether this training's micro-steps are programs on this machine's CPU, whose threads share the batch and meet
    once an update."""
    train, domain = config.train, config.data.make()
    form = lesson(config, Depth(config.model.max_steps, config.model.h_cycles))
    if form is None or train.precision == "bfloat16" or train.compile == "block" or native.library() is None:
        return False
    with torch.device("meta"):
        model = Reasoner(config.model, len(domain.vocab), domain.seq_len, geometry=domain.geometry)
    return whole.covered(model, form)


def by_program(
    lib: Library,
    form: Form,
    slots: Slots,
    model: Reasoner,
    before: Carry,
    rows: Tensor,
    weights: Weights,
    config: Config,
) -> Moment:
    labels = slots.due(slots.carry.steps, None, config.train)
    made = whole.learn(lib, model, before, slots.inputs, rows, labels, form, weights.places, weights.grad)
    slots.carry = Carry(States.of(made.states), before.steps + 1, before.key)
    slots.done, slots.known = made.of("finished") > 0, None
    return Moment(made.names, made.said.sum(dim=1), slots.task_ids, made.d_rows)


def by_graph(
    slots: Slots,
    model: Reasoner,
    before: Carry,
    rows: Tensor,
    config: Config,
    depth: Depth,
    autocast: AbstractContextManager[Any],
) -> Moment:
    rows, tried = rows.requires_grad_(), None
    with autocast:
        if slots.states > 1:
            with torch.no_grad():
                tried = model(before, slots.wide(slots.inputs), slots.wide(rows), h_cycles=depth.h_cycles)
                each = losses.answer_losses(tried.logits, slots.wide(slots.labels), config.train.loss)
                before = before.take(slots.best(each))
        step = model(before, slots.inputs, rows, h_cycles=depth.h_cycles)
        carry = step.carry.detach()
        last = carry.steps >= depth.steps
        done = halted(step, last, depth.steps, config)
        target, settling = None, config.train.fixpoint_weight
        if step.q_continue is not None or settling > 0:
            with torch.set_grad_enabled(settling > 0):
                # The very step that comes next, with its noise and masks, under the present weights.
                following = model(carry, slots.inputs, rows, h_cycles=depth.h_cycles)
        if step.q_continue is not None:
            target = losses.continue_target(following.q_halt, following.q_continue, last).detach()
    labels = slots.due(slots.carry.steps, step.logits, config.train)
    loss = losses.losses(
        step.logits, labels, step.q_halt, step.q_continue, target, config.train.halting_weight, config.train.loss
    )
    total, sums = loss.total, {}
    if settling > 0:
        moved = (halting.residual_squared(carry, following.carry) * done).sum()
        total, sums["fixpoint_loss"] = total + settling * moved, moved.detach()
    (total / config.train.batch).backward()
    sums |= {
        "loss": total.detach(),
        "answer_loss": loss.answer,
        "halt_loss": loss.halt,
        "continue_loss": loss.cont,
    }
    if step.q_halt is not None:
        sums["q_halt"] = step.q_halt.detach().sum()
    for name, state in zip(("norm_h", "norm_l"), carry.states.held, strict=False):
        sums[name] = torch.linalg.vector_norm(state, dim=-1, dtype=torch.float32).mean(dim=-1).sum()
    if step.ratio is not None:
        sums["ratio"] = step.ratio.float().mean(dim=(1, 2)).sum()
    slots.carry = carry if tried is None else tried.carry
    slots.done, slots.known = done, None
    sums |= {
        "finished": done.sum(),
        "exact": (loss.exact * done).sum(),
        "token": (loss.token * done).sum(),
        "steps": (slots.carry.steps[:: slots.states] * done).sum(),
    }
    assert rows.grad is not None
    names = sorted(sums)
    return Moment(names, torch.stack([sums[name].float() for name in names]), slots.task_ids, rows.grad)


def halted(step: Step, last: Tensor, budget: int, config: Config) -> Tensor:
    """Done when the halting head says so, at the latest at the budget; now and then a random minimum length holds."""
    halts, share = halting.halts(step), config.train.explore
    if share > 0:
        key = rng.fold(step.carry.key, step.carry.steps)
        minimum = 2 + (rng.uniform(rng.fold(key, rng.EXPLORE_LENGTH)) * (budget - 1)).to(torch.int64)
        held = step.carry.steps < minimum
        if share < 1:
            held &= rng.uniform(rng.fold(key, rng.EXPLORE)) < share
        halts = halts & ~held
    return halts | last
