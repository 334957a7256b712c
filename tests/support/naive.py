"""The model written out plainly, as the design says it: an oracle that shares no code with `ponder.model`.

No autograd functions, no fused products, no horizon, no compact layouts: one ACT step from the named weights.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ponder.config.schema import ModelConfig

Weights = dict[str, Tensor]


def doubled(model: torch.nn.Module) -> Weights:
    """The weights of a model in float64, each a leaf of a graph of its own."""
    return {name: t.detach().double().requires_grad_() for name, t in model.state_dict().items()}


@dataclass(frozen=True)
class Dropped:
    """Masks of one example's whole trajectory; ones where there is no dropout."""

    layers: dict[str, list[dict[str, Tensor]]]
    """low / high -> layer -> qkv, attention, middle, ffn."""
    x: Tensor
    h: Tensor
    l: Tensor  # noqa: E741


def norm(x: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + 1e-5)


def rotated(x: Tensor) -> Tensor:
    """RoPE of [batch, heads, length, size] that turns the pair (i, i + size / 2)."""
    length, half = x.shape[-2], x.shape[-1] // 2
    out = torch.empty_like(x)
    for i in range(half):
        angle = torch.arange(length, dtype=x.dtype) * 10000.0 ** (-i / half)
        a, b = x[..., i], x[..., i + half]
        out[..., i] = a * angle.cos() - b * angle.sin()
        out[..., i + half] = b * angle.cos() + a * angle.sin()
    return out


def swiglu(w: Weights, name: str, x: Tensor, mask: Tensor | None) -> Tensor:
    gate, up = (x @ w[f"{name}.up.weight"].T).chunk(2, dim=-1)
    mid = gate / (1 + torch.exp(-gate)) * up
    if f"{name}.conv.weight" in w:
        before = F.pad(mid, (0, 0, 1, 0))[:, :-1]
        kernel = w[f"{name}.conv.weight"]
        mid = F.silu(before * kernel[:, 0, 0] + mid * kernel[:, 0, 1] + w[f"{name}.conv.bias"])
    if mask is not None:
        mid = mid * mask
    return mid @ w[f"{name}.down.weight"].T


def attention(w: Weights, name: str, x: Tensor, config: ModelConfig, hidden: Tensor | None, mask: Tensor) -> Tensor:
    batch, length, width = x.shape
    qkv = (x @ w[f"{name}.qkv.weight"].T) * mask
    q, k, v = (part.view(batch, length, config.heads, -1).transpose(1, 2) for part in qkv.split(width, dim=-1))
    if config.positions == "rope":
        q, k = rotated(q), rotated(k)
    score = q @ k.transpose(2, 3) / math.sqrt(width / config.heads)
    if hidden is not None:
        score = score.masked_fill(hidden[:, None, None, :], -math.inf)
    mixed = (score.softmax(dim=-1) @ v).transpose(1, 2).reshape(batch, length, width)
    return F.linear(mixed, w[f"{name}.out.weight"])


def block(
    w: Weights, module: str, x: Tensor, config: ModelConfig, hidden: Tensor | None, masks: list[dict[str, Tensor]]
) -> Tensor:
    for number, mask in enumerate(masks):
        name = f"{module}.layers.{number}"
        if config.norm == "pre":
            kept = 1 / (1 + torch.exp(-w[f"{name}.scale"]))
            if config.mixer == "attention":
                mixed = attention(w, f"{name}.attention", norm(x), config, hidden, mask["qkv"])
            else:
                mixed = swiglu(w, f"{name}.tokens", norm(x).transpose(1, 2), None).transpose(1, 2)
            x = kept[0] * x + mixed * mask["attention"]
            x = kept[1] * x + swiglu(w, f"{name}.mlp", norm(x), mask["middle"]) * mask["ffn"]
            continue
        if config.mixer == "attention":
            mixed = attention(w, f"{name}.attention", x, config, hidden, mask["qkv"])
            x = norm(x + mixed * mask["attention"])
        else:
            mixed = swiglu(w, f"{name}.tokens", x.transpose(1, 2), None).transpose(1, 2)
            x = norm((x + mixed * mask["attention"]).transpose(1, 2)).transpose(1, 2)
        x = norm(x + swiglu(w, f"{name}.mlp", x, mask["middle"]) * mask["ffn"])
    return x


def no_dropout(config: ModelConfig) -> Dropped:
    one = torch.ones(1)
    layers = [dict.fromkeys(("qkv", "attention", "middle", "ffn"), one) for _ in range(config.layers)]
    return Dropped({"low": layers, "high": layers}, one, one, one)


def embedded(w: Weights, config: ModelConfig, inputs: Tensor, rows: Tensor) -> Tensor:
    front = torch.cat((rows[:, None], rows.new_zeros(len(rows), config.prefix - 1, config.width)), dim=1)
    x = torch.cat((front, w["embed"][inputs]), dim=1)
    if config.positions == "learned":
        x = (x + w["position"]) / math.sqrt(2)
    x = x * math.sqrt(config.width)
    if config.input_conv:
        kernel, wide = w["input_conv.weight"][:, 0], F.pad(x, (0, 0, 1, 1))
        length = x.shape[1]
        near = sum(wide[:, i : i + length] * kernel[:, i] for i in range(3))
        x = x + near + w["input_conv.bias"]
    return x


@dataclass(frozen=True)
class Result:
    logits: Tensor
    q: Tensor | None
    h: Tensor | None
    l: Tensor | None  # noqa: E741


def step(
    w: Weights,
    config: ModelConfig,
    h: Tensor | None,
    low: Tensor | None,
    inputs: Tensor,
    rows: Tensor,
    dropped: Dropped | None = None,
    detach_scale: bool = True,
) -> Result:
    """One ACT step, every application in one graph."""
    d = dropped or no_dropout(config)
    hidden = F.pad(inputs == 0, (config.prefix, 0), value=False) if config.key_mask else None
    x = embedded(w, config, inputs, rows) * d.x
    upper = "high" if config.modules == "separate" else "low"
    out = None
    if config.states == 0:
        out = block(w, "low", x, config, hidden, d.layers["low"])
    for _ in range(config.h_cycles if config.states else 0):
        assert h is not None
        for _ in range(config.l_cycles):
            if low is None:
                h = block(w, "low", h * d.h + x, config, hidden, d.layers["low"])
                continue
            total = low * d.l + h * d.h + x
            low = _updated(w, config, low, block(w, "low", total, config, hidden, d.layers["low"]), total, detach_scale)
        if low is not None:
            h = block(w, upper, h * d.h + low * d.l, config, hidden, d.layers[upper])
            h = norm(h) if config.post_norm else h
        out = h
    assert out is not None
    if config.norm == "pre":
        out = norm(out)
    q = out[:, 0] @ w["q_head.weight"].T + w["q_head.bias"] if config.halting != "none" else None
    return Result(out[:, config.prefix :] @ w["head.weight"].T, q, h, low)


def _updated(w: Weights, config: ModelConfig, z: Tensor, new: Tensor, total: Tensor, detach_scale: bool) -> Tensor:
    delta = new - z
    if config.bound is not None:
        r = delta.norm(dim=-1, keepdim=True) / (z.norm(dim=-1, keepdim=True) + 1e-8)
        scale = torch.maximum(r / config.bound, torch.ones_like(r))
        delta = delta / (scale.detach() if detach_scale else scale)
    if config.gate:
        delta = torch.sigmoid(total @ w["update.gate.weight"].T + w["update.gate.bias"]) * delta
    return norm(z + delta) if config.post_norm else z + delta
