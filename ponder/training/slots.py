"""Slots: the places of the batch, each holding one example and its carry until it is done.

Slots are numbered over all ranks. What enters a slot at its r-th refill is a function of (seed, slot, r).
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from ponder.base import rng
from ponder.base.errors import UserError
from ponder.base.native import Library
from ponder.base.runtime import Runtime
from ponder.config.resolve import Config
from ponder.config.schema import TrainConfig
from ponder.domains.contract import Batch, Bools, Domain, Ints, Source, Tokens
from ponder.model import kernels, losses
from ponder.model.reasoner import Carry, Reasoner
from ponder.model.recurrence import States


@dataclass
class Slots:
    """A group of slots that advance together: the carry and the examples in it."""

    ids: Ints
    refills: Ints
    carry: Carry
    inputs: Tensor
    labels: Tensor
    task_ids: Tensor
    done: Tensor
    """Which slots take a new example before the next step."""
    beside: Tensor | None = None
    """[slots, n, tokens] as bytes, more than the label: what each step should come to, where steps have answers of
    their own; or all answers that are right."""
    beside_of: Callable[[Tokens, int], Tokens] | None = None
    known: Bools | None = None
    """Which slots are done, on the host, once it has been read there: a device is not asked twice."""
    ahead: "Ahead | None" = None

    def due(self, done: Tensor, logits: Tensor | None, train: TrainConfig) -> Tensor:
        """[slots, tokens] the labels of the step that came after those that were `done`, and gave these logits, which
        matter where all right answers are known."""
        if self.beside is None:
            return self.labels
        if train.answers == "nearest":
            assert logits is not None
            return losses.nearest(logits.detach(), self.beside.to(torch.int64), train.loss)
        return self.beside[torch.arange(len(done), device=done.device), done].to(torch.int64)

    @property
    def states(self) -> int:
        """States of each slot: row i of the carry belongs to slot i // states."""
        return len(self.carry.key) // len(self.ids)

    def rows(self, where: Ints) -> Tensor:
        """The rows of the carry that belong to these slots."""
        rows = where[:, None] * self.states + np.arange(self.states)
        return torch.from_numpy(rows.ravel()).to(self.carry.key.device)

    def wide(self, rows: Tensor) -> Tensor:
        """What belongs to slots, once for each of their states."""
        return rows if self.states == 1 else rows.repeat_interleave(self.states, dim=0)

    def best(self, losses: Tensor) -> Tensor:
        """[slots] the row of the carry with the lowest loss of each slot; of equals the first."""
        each = losses.view(-1, self.states)
        return each.argmin(dim=1) + self.states * torch.arange(len(each), device=losses.device)


@dataclass(frozen=True)
class Ahead:
    """The examples that come into each slot next, made for many slots at a time: a few cost a domain nearly as much."""

    first: Ints
    """[slots] the refill that brings the first of them."""
    held: dict[str, npt.NDArray[Any]]
    """[slots, n, ...] inputs, labels, task_ids and beside."""


MOST_AHEAD, ROOM_AHEAD = 16, 2**24
"""Examples of each slot that are held, and bytes of them all."""
RIGHT = 32
"""Right answers of a puzzle that training knows at the most."""


def make_slots(config: Config, model: Reasoner, domain: Domain, runtime: Runtime, dtype: torch.dtype) -> list[Slots]:
    """This rank's slots, one group for each micro-step that has its own."""
    train, tokens = config.train, domain.seq_len
    beside: tuple[int, Callable[[Tokens, int], Tokens] | None] = (0, None)
    if config.model.halting == "asked":
        beside = config.model.max_steps, domain.path
    elif train.answers == "nearest":
        if not domain.exact:
            raise UserError(f"train.answers nearest: {domain.name} has no exact solver; set it to label")
        beside = RIGHT, domain.right
    more, beside_of = beside
    groups = train.accumulate if train.accumulation == "independent" else 1
    total = slot_count(config)
    if total % (runtime.world * groups):
        raise UserError(
            f"train.batch {train.batch} with accumulate {train.accumulate} cannot be shared by {runtime.world} ranks: "
            f"choose a batch that is a multiple of {runtime.world * train.accumulate}"
        )
    size = total // runtime.world // groups
    made = []
    for group in range(groups):
        first = runtime.rank * (total // runtime.world) + group * size
        ids = np.arange(first, first + size, dtype=np.int64)
        key = torch.zeros(size * train.winners, dtype=torch.int64, device=runtime.device)
        made.append(
            Slots(
                ids=ids,
                refills=np.full(size, -1, dtype=np.int64),
                carry=model.start(key, dtype),
                inputs=torch.zeros(size, tokens, dtype=torch.int64, device=runtime.device),
                labels=torch.zeros(size, tokens, dtype=torch.int64, device=runtime.device),
                task_ids=torch.zeros(size, dtype=torch.int64, device=runtime.device),
                done=torch.ones(size, dtype=torch.bool, device=runtime.device),
                beside=torch.zeros(size, more, tokens, dtype=torch.uint8, device=runtime.device) if more else None,
                beside_of=beside_of,
                known=np.ones(size, dtype=np.bool_),
            )
        )
    return made


def slot_count(config: Config) -> int:
    train = config.train
    return train.batch if train.accumulation == "independent" else train.batch // train.accumulate


def load_examples(slots: Slots, where: Ints, source: Source, config: Config, pool: ThreadPoolExecutor | None) -> None:
    """Put the examples that (slot, refill) name into the slots."""
    ahead, place = held_ahead(slots, where, source, config, pool)
    device = slots.inputs.device
    at = torch.from_numpy(where).to(device)
    for name, value in ahead.held.items():
        into = getattr(slots, name)
        into[at] = torch.from_numpy(value[where, place]).to(device, into.dtype)


def held_ahead(
    slots: Slots, where: Ints, source: Source, config: Config, pool: ThreadPoolExecutor | None
) -> tuple["Ahead", Ints]:
    """The examples that are held for slots, and for these slots which of them it is."""
    needed = slots.refills + 1
    needed[where] -= 1
    if slots.ahead is None or (needed - slots.ahead.first >= _held(slots))[where].any():
        slots.ahead = look_ahead(slots, needed, source, config, pool)
    return slots.ahead, (needed - slots.ahead.first)[where]


def _held(slots: Slots) -> int:
    """Examples of each slot that are made at a time."""
    tokens = slots.inputs[0].numel() * (2 + (0 if slots.beside is None else slots.beside.shape[1]))
    return max(1, min(MOST_AHEAD, ROOM_AHEAD // (len(slots.ids) * tokens)))


def look_ahead(slots: Slots, needed: Ints, source: Source, config: Config, pool: ThreadPoolExecutor | None) -> Ahead:
    """The next examples of every slot, from the refill on that it needs; half of those that are held may stay."""
    count, before = _held(slots), slots.ahead
    due = np.arange(len(needed)) if before is None else np.flatnonzero(2 * (needed - before.first) >= count)
    refills = needed[due, None] + np.arange(count)
    ids = np.broadcast_to(slots.ids[due, None], refills.shape)
    index, epoch = rng.drawn(config.seed, len(source), slot_count(config), ids.ravel(), refills.ravel())
    if pool is None:
        batches = [source.fetch(index, epoch)]
    else:
        pieces = min(config.train.data_workers, len(index))
        batches = list(pool.map(source.fetch, np.array_split(index, pieces), np.array_split(epoch, pieces)))
    made = {name: np.concatenate([getattr(batch, name) for batch in batches]) for name in Batch.__annotations__}
    if slots.beside is not None and slots.beside_of is not None:
        made["beside"] = slots.beside_of(made["inputs"], slots.beside.shape[1])
    kinds = {"task_ids": np.int64}  # all others are tokens
    new = {
        name: np.ascontiguousarray(value, kinds.get(name, np.uint8)).reshape(len(due), count, *value.shape[1:])
        for name, value in made.items()
    }
    if before is None:
        return Ahead(needed.copy(), new)
    before.first[due] = needed[due]
    for name, value in new.items():
        before.held[name][due] = value
    return before


def refill(slots: Slots, model: Reasoner, source: Source, config: Config, pool: ThreadPoolExecutor | None) -> None:
    """Slots whose example is done take the next one."""
    where = np.flatnonzero(slots.done.cpu().numpy() if slots.known is None else slots.known)
    if len(where) == 0:
        return
    slots.refills[where] += 1
    lib = kernels.served(model.embed, *slots.carry.states.held)
    if lib is None or slots.states > 1 or model.config.init != "fixed":
        load_examples(slots, where, source, config, pool)
        model.reset(slots.carry, slots.rows(where), slot_keys(slots, config, where))
    else:
        ahead, place = held_ahead(slots, where, source, config, pool)
        enter(lib, slots, model, ahead, where, place)
        slots.carry.key[torch.from_numpy(where)] = slot_keys(slots, config, where)
    if config.train.corrupt > 0:
        slots.carry = corrupted(slots, model, config.train.corrupt)


def enter(lib: Library, slots: Slots, model: Reasoner, ahead: Ahead, where: Ints, place: Ints) -> None:
    """Held examples enter these slots, which start over: `load_examples` and `Reasoner.reset`, by one kernel."""
    held = {name: torch.from_numpy(value) for name, value in ahead.held.items()}
    beside, carry = held.get("beside"), slots.carry
    more = 0 if slots.beside is None else slots.beside[0].numel()
    examples = (held["inputs"], held["labels"], held["task_ids"], beside)
    into = (slots.inputs, slots.labels, slots.task_ids, slots.beside, carry.steps)
    states: list[Tensor | None] = []
    for name, z in zip(("init_h", "init_l"), carry.states.held, strict=False):
        states += [getattr(model, name).detach(), z]
    states += [None] * (4 - len(states))
    sizes = (held["inputs"].shape[1], slots.inputs.shape[1], more)
    numbers = (len(where), torch.from_numpy(where), torch.from_numpy(place))
    lib("enter", *numbers, *sizes, *examples, *into, model.length, model.config.width, *states)


def corrupted(slots: Slots, model: Reasoner, share: float) -> Carry:
    """The carry in which a share of the examples that have just come in starts from a noised answer: at the tokens,
    z_H embeds the label, each symbol of which has become any symbol with a chance drawn for the example."""
    carry, labels = slots.carry, slots.wide(slots.labels)
    chosen, level, where, which = (rng.fold(carry.key, rng.CORRUPT, use) for use in range(4))
    noised = (rng.uniforms(where, model.tokens) < rng.uniform(level)[:, None]) & (labels != 0)
    symbols = 1 + (rng.uniforms(which, model.tokens) * (len(model.embed) - 1)).to(torch.int64)
    start, h = slots.wide(slots.done) & (rng.uniform(chosen) < share), carry.states.h
    assert h is not None
    with torch.no_grad():
        answer = model.scale * F.embedding(torch.where(noised, symbols, labels), model.embed)
    tokens = torch.where(start[:, None, None], answer.to(h.dtype), h[:, model.config.prefix :])
    h = torch.cat((h[:, : model.config.prefix], tokens), dim=1)
    return replace(carry, states=States(h, carry.states.l))


def slot_keys(slots: Slots, config: Config, where: Ints | slice = slice(None)) -> Tensor:
    """The keys of what is in these slots, one for each of their states."""
    device = slots.inputs.device
    ids, refills = (torch.from_numpy(each[where]).to(device) for each in (slots.ids, slots.refills))
    key = rng.slot_keys(config.seed, ids, refills)
    return torch.stack([key, *(rng.fold(key, rng.STATE, n) for n in range(1, config.train.winners))], dim=1).flatten()


def saved_slots(slots: Slots) -> dict[str, Tensor]:
    states = zip("hl", slots.carry.states.held, strict=False)
    return {
        "ids": torch.from_numpy(slots.ids),
        "refills": torch.from_numpy(slots.refills),
        "steps": slots.carry.steps[:: slots.states].cpu(),
        "done": slots.done.cpu(),
        # A row for each slot, so that ranks may share the slots in another way
        **{name: (z if slots.states == 1 else z.unflatten(0, (-1, slots.states))).cpu() for name, z in states},
    }


def restore_slots(slots: Slots, saved: dict[str, Tensor], config: Config, source: Source) -> None:
    """The examples themselves are not saved: (slot, refill) names them."""
    device = slots.inputs.device
    slots.refills, slots.ahead = saved["refills"].numpy(), None
    slots.done, slots.known = saved["done"].to(device), saved["done"].numpy()
    states = [saved[name].to(device) for name in "hl" if name in saved]
    if slots.states > 1:
        states = [state.flatten(0, 1) for state in states]
    slots.carry = Carry(States.of(states), slots.wide(saved["steps"].to(device)), slot_keys(slots, config))
    load_examples(slots, np.arange(len(slots.ids)), source, config, None)
