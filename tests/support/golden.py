"""Reading the golden files: outputs and gradients of the authors' own models."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ponder.model import losses
from ponder.model.published import our_name
from ponder.model.reasoner import Reasoner
from tests.support import SHARED

COMPACT = Path(__file__).parent / "golden"
LARGE = SHARED / "golden"

T = TypeVar("T")


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
    data: dict[str, Any] = json.loads((COMPACT / f"{name}.json").read_text(encoding="utf-8"))
    return data


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
    loss.total.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert rows.grad is not None
    return Trained(loss, gradients, rows.grad)


def trm_mlp_step(
    weights: dict[str, Tensor], inputs: Tensor, task_ids: Tensor, z_h: Tensor, z_l: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits and states after one ACT step of TRM's MLP form, written out in float64 in the order of the published
    code."""
    named = {name.removeprefix("model.inner."): tensor.double() for name, tensor in weights.items()}
    z_h, z_l = z_h.double(), z_l.double()
    rows, embed = named["puzzle_emb.weights"][task_ids], named["embed_tokens.embedding_weight"]
    width, length = embed.shape[1], named["L_level.layers.0.mlp_t.down_proj.weight"].shape[0]
    batch, prefix = len(inputs), length - inputs.shape[1]

    def norm(x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)

    def mlp(x: Tensor, name: str) -> Tensor:
        gate, up = F.linear(x, named[f"{name}.gate_up_proj.weight"]).chunk(2, dim=-1)
        return F.linear(F.silu(gate) * up, named[f"{name}.down_proj.weight"])

    def level(z: Tensor, added: Tensor) -> Tensor:
        z = z + added
        for layer in ("L_level.layers.0", "L_level.layers.1"):
            z = z.transpose(1, 2)
            z = norm(z + mlp(z, f"{layer}.mlp_t")).transpose(1, 2)
            z = norm(z + mlp(z, f"{layer}.mlp"))
        return z

    front = F.pad(rows, (0, (prefix - 1) * width)).view(batch, prefix, width)
    x = math.sqrt(width) * torch.cat((front, F.embedding(inputs, embed)), dim=1)
    for _ in range(3):
        for _ in range(6):
            z_l = level(z_l, z_h + x)
        z_h = level(z_h, z_l)
    return F.linear(z_h[:, prefix:], named["lm_head.weight"]), z_h, z_l


def named_like_ours(kind: str, theirs: Mapping[str, T]) -> dict[str, T]:
    out = {}
    for name, tensor in theirs.items():
        place = our_name(kind, name)
        assert place is not None, name
        out[place] = tensor
    return out
