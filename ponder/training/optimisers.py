"""Adam-atan2 over all weights at once, sign-SGD for the puzzle table, and the averaged weights of both.

All weights live in one flat tensor of which the model's parameters are views, and so do their gradients. One update
is then a handful of operations, whatever the number of parameters, and ranks exchange one message.
"""

import itertools
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ponder.base import native
from ponder.config.schema import TrainConfig
from ponder.model import kernels
from ponder.model.reasoner import Reasoner

WORTH = 100.0
"""Floating-point operations, about, that an update of one weight is worth to a thread."""


def undecayed(name: str) -> bool:
    """Initial states and the gate's bias are left alone by weight decay: for most horizons no gradient holds them. So
    are residual scales, for which 0 is no smaller than anything else."""
    return name in ("init_h", "init_l", "update.gate.bias") or name.endswith(".scale")


class Weights:
    """The model's parameters as one tensor, decayed ones first."""

    def __init__(self, model: Reasoner) -> None:
        named = list(model.named_parameters())
        order = [pair for pair in named if not undecayed(pair[0])] + [pair for pair in named if undecayed(pair[0])]
        self.names = [name for name, _ in order]
        self.shapes = [tuple(p.shape) for _, p in order]
        sizes = [math.prod(shape) for shape in self.shapes]
        self.places = dict(zip(self.names, itertools.accumulate(sizes[:-1], initial=0), strict=True))
        """Where in the flat tensors each of them begins."""
        self.decayed = sum(p.numel() for name, p in order if not undecayed(name))
        with torch.no_grad():
            self.value = torch.cat([p.detach().reshape(-1) for _, p in order])
        self.grad = torch.zeros_like(self.value)
        for (_, p), value, grad in zip(order, self._views(self.value), self._views(self.grad), strict=True):
            p.data = value
            p.grad = grad

    def _views(self, flat: Tensor) -> list[Tensor]:
        sizes = [math.prod(shape) for shape in self.shapes]
        return [part.view(shape) for part, shape in zip(flat.split(sizes), self.shapes, strict=True)]

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """Any tensor laid out like the weights, cut into the parameters' names and shapes."""
        return dict(zip(self.names, self._views(flat), strict=True))

    def load(self, flat: Tensor, named: Mapping[str, Tensor]) -> None:
        for name, view in self.named(flat).items():
            view.copy_(named[name])


class AdamAtan2:
    """p <- p (1 - lr wd) - lr atan2(m', sqrt(v')): Adam without an epsilon, invariant to the gradient's scale.

    Two published forms of the first moment's bias correction: `outside` divides the atan2 by 1 - beta1^t (HRM's
    kernel), `inside` divides m before it.
    """

    def __init__(self, weights: Weights, config: TrainConfig) -> None:
        self.weights, self.config = weights, config
        self.m = torch.zeros_like(weights.value)
        self.v = torch.zeros_like(weights.value)
        self.t = 0

    @torch.no_grad()
    def update(self, lr: float, average: "Average | None" = None) -> None:
        """Of the weights, and then of their average."""
        c, w, g = self.config, self.weights.value, self.weights.grad
        self.t += 1
        first, second, keep = 1 - c.beta1**self.t, 1 - c.beta2**self.t, 1 - lr * c.weight_decay
        if lib := kernels.served(w, g):
            outside, inside = (first, 1.0) if c.atan2 == "outside" else (1.0, first)
            rates = (1 - c.beta1, c.beta2, 1 - c.beta2, 1 / second, 1 / inside, lr / outside, keep)
            mean, by = (None, 0.0) if average is None else (average.value, 1 - average.decay)
            given = (self.weights.decayed, *rates, by, g, self.m, self.v, w, mean)
            lib.shared(len(w), native.least(WORTH), lambda start, end, _: lib("adam_atan2", start, end, *given))
            return
        self.m.lerp_(g, 1 - c.beta1)
        self.v.mul_(c.beta2).addcmul_(g, g, value=1 - c.beta2)
        root = self.v.div(second).sqrt_()
        w[: self.weights.decayed].mul_(keep)
        if c.atan2 == "outside":
            w.add_(torch.atan2(self.m, root), alpha=-lr / first)
        else:
            w.add_(torch.atan2(self.m / first, root), alpha=-lr)
        if average is not None:
            average.update(self.weights)


class PuzzleTable:
    """Sign-SGD on the rows that were used, and their average brought up to date only when needed.

    A 1000-augmentation ARC table is 2 GB: an update must touch the rows of the batch and nothing else.
    """

    def __init__(self, model: Reasoner, config: TrainConfig) -> None:
        self.value, self.config = model.table, config
        self.ema = self.value.clone() if config.ema is not None else None
        self.seen = torch.zeros(len(self.value), dtype=torch.int64, device=self.value.device)
        """The update up to which each row's average is right."""

    @torch.no_grad()
    def update(self, rows: Tensor, grads: Tensor, lr: float, t: int) -> None:
        """Gradients of one id are summed over the whole global batch before the sign is taken. A row may step again at
        the same t (`per_micro_step`): its average counts where it ends."""
        total, ema = grads.float(), self.config.ema if self.ema is not None else None
        if lib := kernels.served(self.value, total):
            first = torch.arange(len(rows))
            if len(rows) > 1:
                _, where, which = np.unique(rows.numpy(), return_index=True, return_inverse=True)
                first = torch.from_numpy(where[which])
            low, high = (int(end) for end in rows.aminmax())
            if low < 0 or high >= len(self.value):
                raise IndexError(f"rows from {low} to {high}: the puzzle table has {len(self.value)}")
            total = total.clone(memory_format=torch.contiguous_format)  # which is added up in place
            kept = (None, 0.0, 0.0, None) if ema is None else (self.ema, ema, 1 - ema, self.seen)
            rates = (lr, 1 - lr * self.config.weight_decay)
            lib("sign_step", *total.shape, rows, first, total, self.value, *rates, *kept, t)
            return
        if len(rows) > 1:
            # Examples of one id share the first place it has in sorted order, and write the same row. (`unique` would
            # make the host wait for the number of ids.)
            place = torch.searchsorted(rows.sort().values, rows)
            total = torch.zeros_like(total).index_add_(0, place, total)[place]
        old = self.value[rows]
        new = old * (1 - lr * self.config.weight_decay) - lr * total.sign()
        if self.ema is not None and ema is not None:
            again = (self.seen[rows] == t)[:, None]
            settled = self._settled(rows, t - 1).lerp(new, 1 - ema)
            self.ema[rows] = torch.where(again, self.ema[rows] + (1 - ema) * (new - old), settled)
            self.seen[rows] = t
        self.value[rows] = new

    def _settled(self, rows: Tensor, t: int) -> Tensor:
        """Averages of rows that were left alone since `seen`: their weights stood still, so decay has a closed form."""
        assert self.ema is not None and self.config.ema is not None
        rest = self.config.ema ** (t - self.seen[rows]).to(torch.float32)
        return torch.lerp(self.value[rows], self.ema[rows], rest[:, None])

    def averaged(self, t: int) -> Tensor:
        """The whole table of averages after update t."""
        if self.ema is None:
            return self.value
        return self._settled(torch.arange(len(self.value), device=self.value.device), t)


class Average:
    """Exponential moving average of the weights."""

    def __init__(self, weights: Weights, decay: float) -> None:
        self.value = weights.value.clone()
        self.decay = decay

    def update(self, weights: Weights) -> None:
        self.value.lerp_(weights.value, 1 - self.decay)


@contextmanager
def swapped(weights: Weights, model: Reasoner, value: Tensor, table: Tensor) -> Iterator[None]:
    """The model with other weights for a while; the old ones come back bit for bit."""
    old, old_table = weights.value.clone(), model.table
    weights.value.copy_(value)
    model.table = table
    try:
        yield
    finally:
        weights.value.copy_(old)
        model.table = old_table


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up, then cosine or exponential decay to `min_ratio`, as a factor on every learning rate."""

    updates: int
    warmup: int
    min_ratio: float
    kind: str

    def __call__(self, update: int) -> float:
        if update < self.warmup:
            return (update + 1) / self.warmup
        done = min(1.0, (update - self.warmup) / max(1, self.updates - self.warmup))
        if self.kind == "exponential":
            return float(max(self.min_ratio, 1e-8) ** done)
        return self.min_ratio + (1 - self.min_ratio) * 0.5 * (1 + math.cos(math.pi * done))


def clip(grad: Tensor, limit: float | None) -> Tensor:
    """Scale the flat gradient down to the limit in place; returns the norm before."""
    norm: Tensor = torch.linalg.vector_norm(grad)
    if limit is not None:
        grad.mul_((limit / (norm + 1e-6)).clamp(max=1.0))
    return norm
