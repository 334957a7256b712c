"""How far apart two results may be that differ by rounding alone.

The recurrence amplifies rounding, and the next processor rounds otherwise, so that no fixed limit holds everywhere.
A formula is compared in float64 (`FORMULA`), a single operation in units of the last place (`EPS`), and a trajectory
against what one part in ten million, in everything it is made of, does to the very same trajectory (`limits`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from ponder.model.reasoner import Reasoner

EPS = torch.finfo(torch.float32).eps
FORMULA = 1e-9
"""For float64, which rounds at 1e-16: what is further apart is another formula, on any processor."""
PART = 1e-7
"""A nudge: about the last bit of a float32."""
DRAWS = 4
SLACK = 32
"""A nudge enters once; rounding enters at every operation on the way."""


def apart(a: Tensor, b: Tensor) -> float:
    """|a - b| / |b| over the whole tensor; absolute where b is zero."""
    a, b = a.detach().double(), b.detach().double()
    size = float(b.norm())
    return float((a - b).norm()) / (size if size > 0 else 1.0)


def nudge(tensors: Iterable[Tensor], draw: int, part: float = PART) -> None:
    """Make every number of these tensors a little larger or smaller."""
    generator = torch.Generator().manual_seed(draw)
    for t in {t.data_ptr(): t.data for t in tensors if t.is_floating_point()}.values():  # two names, one nudge
        t.mul_(1 + part * (2 * torch.randint(0, 2, t.shape, generator=generator) - 1))


@contextmanager
def nudged(tensors: Iterable[Tensor], draw: int, part: float = PART) -> Iterator[None]:
    """The same for as long as the block lasts."""
    mine = [t.data for t in tensors]
    held = [t.clone() for t in mine]
    nudge(mine, draw, part)
    try:
        yield
    finally:
        for t, before in zip(mine, held, strict=True):
            t.copy_(before)


def spread(plain: Sequence[Tensor], moved: Iterable[Sequence[Tensor]], slack: float = SLACK) -> list[float]:
    """A limit for each result, from what nudges made of it."""
    most = [PART] * len(plain)
    for results in moved:
        most = [max(m, apart(new, old)) for m, new, old in zip(most, results, plain, strict=True)]
    return [slack * m for m in most]


def limits(run: Callable[[], Sequence[Tensor]], tensors: Iterable[Tensor]) -> list[float]:
    """For each result of `run`, how far (see `apart`) one may be from it that differs by rounding alone."""
    found = spread(_kept(run), _moved(run, tensors))
    assert min(found) < 0.01, f"rounding is amplified until nothing can be compared: {found}"
    return found


def _moved(run: Callable[[], Sequence[Tensor]], tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    mine = list(tensors)
    for draw in range(DRAWS):
        with nudged(mine, draw):
            yield _kept(run)


def _kept(run: Callable[[], Sequence[Tensor]]) -> list[Tensor]:
    return [t.detach().clone() for t in run()]


def agree(got: Sequence[Tensor], wanted: Sequence[Tensor], within: Sequence[float]) -> None:
    """Assert that each result is as near to what is wanted as its limit says."""
    for number, (a, b, limit) in enumerate(zip(got, wanted, within, strict=True)):
        assert a.shape == b.shape
        assert apart(a, b) <= limit, f"result {number} is {apart(a, b):.1e} apart, allowed is {limit:.1e}"


# Answers --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Said:
    """What a model says of each example at one ACT step, and how far rounding may move it."""

    logits: Tensor
    q_halt: Tensor
    margin: Tensor
    """By how much halting beats going on."""
    answers: Tensor
    """[B] whether every position's best symbol leads by more than rounding could take away."""
    reach: Tensor
    """[B] how far the halting logits may be moved."""

    @property
    def halting(self) -> Tensor:
        """[B] whether rounding cannot turn the decision to halt."""
        return self.margin.abs() > self.reach


@torch.no_grad()
def sayings(model: Reasoner, inputs: Tensor, task_ids: Tensor, steps: int) -> list[Said]:
    """A trajectory without noise, and what of it holds on any processor: the rest is not to be compared."""

    def run() -> list[Tensor]:
        carry, out = model.start(torch.zeros(len(inputs), dtype=torch.int64)), []
        for _ in range(steps):
            step = model(carry, inputs, model.table[task_ids])
            carry, q = step.carry, step.logits.new_zeros(len(inputs)) if step.q_halt is None else step.q_halt
            out += [step.logits, q, q if step.q_continue is None else q - step.q_continue]
        return out

    plain = _kept(run)
    reach = [PART * t.abs() for t in plain]
    for results in _moved(run, model.state_dict().values()):
        reach = [torch.maximum(r, (new - old).abs()) for r, new, old in zip(reach, results, plain, strict=True)]
    out = []
    for at in range(0, len(plain), 3):
        best, second = plain[at].topk(2, dim=-1).values.unbind(-1)
        lead, moved = (best - second).flatten(1).amin(dim=1), reach[at].flatten(1).amax(dim=1)
        sure = lead > 2 * SLACK * moved
        moved_q = SLACK * (reach[at + 1] + reach[at + 2])
        out.append(Said(plain[at], plain[at + 1], plain[at + 2], sure, moved_q))
    return out
