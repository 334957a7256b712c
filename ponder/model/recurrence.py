"""The recurrence, the gradient horizon and the state update, each in one place.

One ACT step, with x the embedded input:

    repeat H times:
        repeat L times:  z_L <- update(z_L, L(z_L + z_H + x))
        z_H <- post(H(z_H + z_L))

Gradients reach the last K_H cycles and, inside each of those, the last K_L inner cycles. Or they are those of a fixed
point: one cycle has a graph, and the cycles before it count as the same one (`gradient: implicit`).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ponder.config.schema import ModelConfig
from ponder.model import kernels
from ponder.model.products import linear, rms_norm


@dataclass(frozen=True)
class States:
    """z_H and z_L, [batch, prefix + tokens, width]. A one-state model keeps its state in `h`; a dense one has none."""

    h: Tensor | None
    l: Tensor | None  # noqa: E741

    @property
    def held(self) -> list[Tensor]:
        """Those that there are, z_H first."""
        return [z for z in (self.h, self.l) if z is not None]

    @staticmethod
    def of(held: Iterable[Tensor]) -> "States":
        return States(*(*held, None, None)[:2])


class Update(nn.Module):
    """How a candidate state replaces the old one: bounded, gated and normalised, each a switch."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.tau = config.bound
        self.exact = False
        """Whether derivatives see that the bound's scale depends on the state; in training it counts as a constant."""
        self.norm = config.post_norm
        self.gate: nn.Linear | None = None
        if config.gate:
            self.gate = linear(config.width, 1, bias=True)
            self.gate.weight.data.mul_(0.1)

    def forward(self, old: Tensor, candidate: Tensor, total: Tensor) -> tuple[Tensor, Tensor | None]:
        """`total` is z_H + z_L + x, what the gate looks at. Returns the new state and the ratio, if it was needed."""
        if self.tau is None and self.gate is None:
            return (rms_norm(candidate) if self.norm else candidate), None
        lib = None if self.exact else kernels.served(old, candidate, total, rows=old.shape[-1:])
        if lib is None:
            return self.plain(old, candidate, total, *self._gate())
        plain = lambda *given: self.plain(*given)[0]  # noqa: E731
        new, ratio = kernels.update(lib, old, candidate, total, self.tau, self._gate(), self.norm, plain)
        return new, None if self.tau is None else ratio

    def _gate(self) -> tuple[Tensor | None, Tensor | None]:
        return (None, None) if self.gate is None else (self.gate.weight, self.gate.bias)

    def plain(
        self, old: Tensor, candidate: Tensor, total: Tensor, weight: Tensor | None, bias: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        delta = candidate - old
        ratio = scale = None
        if self.tau is not None:
            with torch.set_grad_enabled(self.exact and torch.is_grad_enabled()):
                ratio = relative_size(delta, old)
                scale = (ratio / self.tau).clamp(min=1.0).reciprocal()
        if weight is not None:
            opened = torch.sigmoid(F.linear(total, weight, bias)).to(delta.dtype)
            scale = opened if scale is None else scale * opened
        assert scale is not None
        new = torch.addcmul(old, delta, scale)
        return (rms_norm(new) if self.norm else new), ratio


def relative_size(delta: Tensor, old: Tensor) -> Tensor:
    """r of the paper, per position."""
    size: Tensor = torch.linalg.vector_norm(delta, dim=-1, keepdim=True)
    before: Tensor = torch.linalg.vector_norm(old, dim=-1, keepdim=True)
    return size / (before + 1e-8)


Module = Callable[[Tensor], Tensor]
Drop = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Parts:
    """The functions one recurrence is made of."""

    low: Module
    high: Module
    update: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor | None]] | None
    """Of z_L, where there is one."""
    post: Module
    drop_h: Drop
    drop_l: Drop


@dataclass(frozen=True)
class Recurred:
    states: States
    ratio: Tensor | None


def horizon(config: ModelConfig) -> tuple[int, int]:
    """K_H and K_L: of how many cycles, and of how many inner cycles in each, a graph is kept."""
    return (1, config.l_cycles) if config.gradient == "implicit" else (config.h_horizon, config.l_horizon)


def recur(parts: Parts, states: States, x: Tensor, config: ModelConfig, h_cycles: int | None = None) -> Recurred:
    """One ACT step. `h_cycles` runs fewer cycles than the configuration says (a depth curriculum)."""
    cycles = h_cycles or config.h_cycles
    grad = torch.is_grad_enabled()
    z_h, z_l, ratio = states.h, states.l, None
    k_h, k_l = horizon(config)
    entered = None
    assert z_h is not None
    for cycle in range(cycles):
        reached = grad and cycle >= cycles - k_h
        if reached and config.gradient == "implicit":
            z_h, z_l = z_h.detach().requires_grad_(), None if z_l is None else z_l.detach().requires_grad_()
            entered = States(z_h, z_l)
        for inner in range(config.l_cycles):
            with torch.set_grad_enabled(reached and inner >= config.l_cycles - k_l):
                if z_l is None:
                    z_h = parts.low(parts.drop_h(z_h) + x)
                else:
                    assert parts.update is not None
                    total = parts.drop_l(z_l) + (parts.drop_h(z_h) + x)  # added in the authors' order, to the same bits
                    z_l, ratio = parts.update(z_l, parts.low(total), total)
        if z_l is not None:
            with torch.set_grad_enabled(reached):
                z_h = parts.post(parts.high(parts.drop_h(z_h) + parts.drop_l(z_l)))
    out = States(z_h, z_l)
    return Recurred(out if entered is None else settled(entered, out, config.neumann), ratio)


def settled(before: States, after: States, terms: int) -> States:
    """The states after a cycle, with the gradient of a fixed point of it in place of the cycle's own.

    With J the cycle's Jacobian, that is (I - J^T)^-1 applied to what comes back, here by its Neumann series up to
    (J^T)^terms: of the one graph, used again. No terms: the one-step gradient.
    """
    if terms == 0:
        return after
    return States.of(_Neumann.apply(terms, *before.held, *after.held))  # type: ignore[no-untyped-call]


class _Neumann(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, terms: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(*tensors)
        ctx.terms = terms
        return tuple(t.view_as(t) for t in tensors[len(tensors) // 2 :])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        before, after = ctx.saved_tensors[: len(grads)], ctx.saved_tensors[len(grads) :]
        term = total = grads
        for _ in range(ctx.terms):
            term = torch.autograd.grad(after, before, term, retain_graph=True)
            total = tuple(a + b for a, b in zip(total, term, strict=True))
        return None, *[None] * len(grads), *total
