"""Reading the golden files: outputs and gradients of the authors' own models."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ponder import losses
from ponder.model.interop import our_name
from ponder.model.reasoner import Reasoner

COMPACT = Path(__file__).parent / "golden"
LARGE = Path(__file__).resolve().parents[2] / "shared" / "golden"


def filled(shapes: dict[str, list[int]]) -> dict[str, Tensor]:
    """The compact files' weights: a formula instead of numbers (the file's `fill` says which)."""
    out = {}
    for k, name in enumerate(sorted(shapes)):
        shape = shapes[name]
        i = np.arange(int(np.prod(shape)), dtype=np.float64)
        value = np.sin((k + 1) * (i + 1) * 0.618033988749895)
        if len(shape) > 1:
            value *= np.sqrt(2 / shape[-1])
        out[name] = torch.tensor(value.reshape(shape), dtype=torch.float32)
    return out


def compact(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((COMPACT / f"{name}.json").read_text())
    return data


def apart(ours: Tensor, theirs: Tensor) -> float:
    """|a - b| / |b| over the whole tensor; absolute where theirs is zero."""
    size = float(theirs.norm())
    return float((ours - theirs).norm()) / (size if size > 0 else 1.0)


@dataclass(frozen=True)
class Trained:
    loss: losses.Losses
    gradients: dict[str, Tensor]
    rows: Tensor
    """Gradients of the gathered puzzle embeddings, one row for each example."""


def first_step_gradients(
    model: Reasoner, inputs: Tensor, labels: Tensor, task_ids: Tensor, halting_weight: float = 0.5
) -> Trained:
    """Loss (summed over the batch) and gradients of the first ACT step, as the published training computes them."""
    model.train()
    model.zero_grad()
    rows = model.table[task_ids].detach().requires_grad_()
    carry = model.start(torch.zeros(len(inputs), dtype=torch.int64))
    step = model(carry, inputs, rows)
    target = None
    if step.q_continue is not None:
        with torch.no_grad():
            following = model(step.carry.detach(), inputs, rows)
        last = step.carry.steps >= model.config.max_steps
        target = losses.continue_target(following.q_halt, following.q_continue, last)
    loss = losses.losses(step.logits, labels, step.q_halt, step.q_continue, target, halting_weight)
    loss.total.backward()  # type: ignore[no-untyped-call]
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert rows.grad is not None
    return Trained(loss, gradients, rows.grad)


def named_like_ours(kind: str, theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    out = {}
    for name, tensor in theirs.items():
        place = our_name(kind, name)
        assert place is not None, name
        out[place] = tensor
    return out
