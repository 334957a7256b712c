"""The backbone: post-norm Transformer blocks without biases, as HRM, TRM and URM publish them.

Written to run well on a CPU at short sequences too: norms and gates have hand-written backward passes, which halve
the element-wise work that dominates there.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ponder import rng
from ponder.config import ModelConfig

EPS = 1e-5


def lecun_(tensor: Tensor, std: float) -> Tensor:
    """Truncated normal at two deviations, widened so that its standard deviation is `std` after truncation."""
    wide = std / 0.87962566103423978
    return nn.init.trunc_normal_(tensor, std=wide, a=-2 * wide, b=2 * wide)


def linear(inner: int, outer: int, bias: bool = False) -> nn.Linear:
    layer = nn.Linear(inner, outer, bias=bias)
    lecun_(layer.weight.data, 1 / math.sqrt(inner))
    if bias:
        nn.init.zeros_(layer.bias.data)
    return layer


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        scale = size.square_().div_(x.shape[-1]).add_(EPS).rsqrt_()
        y = (x * scale).to(x.dtype)
        ctx.save_for_backward(y, scale)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        y, scale = ctx.saved_tensors
        (grad,) = grads
        along = (grad * y).mean(dim=-1, keepdim=True)
        return torch.addcmul(grad, y, along, value=-1).mul_(scale.to(grad.dtype))


def rms_norm(x: Tensor) -> Tensor:
    """Parameter-free RMSNorm over the last axis."""
    out: Tensor = _RmsNorm.apply(x)  # type: ignore[no-untyped-call]
    return out


class _SwiGate(torch.autograd.Function):
    """silu(gate) * up of a tensor that holds both halves."""

    @staticmethod
    def forward(ctx: Any, both: Tensor) -> Tensor:
        ctx.save_for_backward(both)
        gate, up = both.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (both,) = ctx.saved_tensors
        (grad,) = grads
        gate, up = both.chunk(2, dim=-1)
        out = torch.empty_like(both)
        d_gate, d_up = out.chunk(2, dim=-1)
        s = torch.sigmoid(gate)
        silu = gate * s
        torch.mul(grad, silu, out=d_up)
        # silu' = s + silu - silu * s
        slope = silu.neg().mul_(s).add_(silu).add_(s)
        torch.mul(slope.mul_(up), grad, out=d_gate)
        return out


def swi_gate(both: Tensor) -> Tensor:
    out: Tensor = _SwiGate.apply(both)  # type: ignore[no-untyped-call]
    return out


def inner_width(width: int, expansion: float) -> int:
    return -(-round(expansion * width * 2 / 3) // 256) * 256


class SwiGLU(nn.Module):
    def __init__(self, width: int, expansion: float, conv: bool = False) -> None:
        super().__init__()
        inner = inner_width(width, expansion)
        self.up = linear(width, 2 * inner)
        self.down = linear(inner, width)
        self.conv = nn.Conv1d(inner, inner, kernel_size=2, padding=1, groups=inner) if conv else None

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        mid = swi_gate(self.up(x))
        if self.conv is not None:
            mid = F.silu(self.conv(mid.transpose(1, 2))[..., : mid.shape[1]].transpose(1, 2))
        if mask is not None:
            mid = mid * mask
        out: Tensor = self.down(mid)
        return out


@dataclass(frozen=True)
class Rotary:
    """RoPE over prefix and tokens: rotate the halves of each head."""

    cos: Tensor
    sin: Tensor

    @staticmethod
    def make(length: int, size: int, device: torch.device, theta: float = 10000.0) -> "Rotary":
        rate = 1.0 / theta ** (torch.arange(0, size, 2, dtype=torch.float32, device=device) / size)
        angle = torch.outer(torch.arange(length, dtype=torch.float32, device=device), rate)
        angle = torch.cat((angle, angle), dim=-1)
        return Rotary(angle.cos(), angle.sin())

    def __call__(self, x: Tensor) -> Tensor:
        """x: [batch, length, ..., heads, size]"""
        shape = (self.cos.shape[0],) + (1,) * (x.dim() - 3) + (self.cos.shape[1],)
        half = x.shape[-1] // 2
        turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
        return (x * self.cos.view(shape) + turned * self.sin.view(shape)).to(x.dtype)


# Above this many tokens the fused kernel beats explicit products on a CPU (benchmarks/model.py prints both).
SHORT = 160


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = linear(width, 3 * width)
        self.out = linear(width, width)

    def forward(self, x: Tensor, rotary: Rotary | None, key_bias: Tensor | None, mask: Tensor | None) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(x)
        if mask is not None:
            qkv = qkv * mask
        qkv = qkv.view(batch, length, 3, self.heads, width // self.heads)
        if rotary is not None:
            turned = rotary(qkv[:, :, :2])
            q, k = turned.unbind(2)
            v = qkv[:, :, 2]
        else:
            q, k, v = qkv.unbind(2)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if x.device.type == "cpu" and length <= SHORT:
            score = torch.matmul(q * (width // self.heads) ** -0.5, k.transpose(2, 3))
            if key_bias is not None:
                score = score + key_bias.to(score.dtype)
            mixed = torch.matmul(score.softmax(dim=-1), v)
        else:
            bias = key_bias.to(q.dtype) if key_bias is not None else None
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return out


@dataclass(frozen=True)
class LayerMasks:
    """Dropout masks of one layer; None where that rate is zero."""

    qkv: Tensor
    attention: Tensor
    middle: Tensor
    ffn: Tensor


@dataclass(frozen=True)
class Context:
    """What every application within one ACT step shares."""

    rotary: Rotary | None
    key_bias: Tensor | None


class Layer(nn.Module):
    def __init__(self, config: ModelConfig, length: int) -> None:
        super().__init__()
        self.width = config.width
        self.length = length
        self.attention = Attention(config.width, config.heads) if config.mixer == "attention" else None
        self.tokens = SwiGLU(length, config.expansion) if config.mixer == "mlp" else None
        self.mlp = SwiGLU(config.width, config.expansion, conv=config.mlp_conv)

    def forward(self, x: Tensor, context: Context, masks: LayerMasks | None) -> Tensor:
        if self.attention is not None:
            mixed = self.attention(x, context.rotary, context.key_bias, masks.qkv if masks else None)
            if masks is not None:
                mixed = mixed * masks.attention
            x = rms_norm(x + mixed)
        else:
            assert self.tokens is not None
            across = x.transpose(1, 2)
            mixed = self.tokens(across)
            if masks is not None:
                mixed = mixed * masks.attention.transpose(1, 2)
            x = rms_norm(across + mixed).transpose(1, 2)
        out = self.mlp(x, masks.middle if masks else None)
        if masks is not None:
            out = out * masks.ffn
        return rms_norm(x + out)

    def masks(self, key: Tensor, drop: float, dtype: torch.dtype) -> LayerMasks:
        """This layer's masks for the examples that `key` names: [B] keys."""
        inner = self.mlp.down.in_features
        sizes = {"qkv": 3 * self.width, "attention": self.width, "middle": inner, "ffn": self.width}
        made = {
            name: rng.keep_mask(rng.fold(key, place), (self.length, size), drop, dtype)
            for place, (name, size) in enumerate(sizes.items())
        }
        return LayerMasks(**made)


class Block(nn.Module):
    """One recurrent module: the layers that are applied again and again."""

    def __init__(self, config: ModelConfig, length: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(config, length) for _ in range(config.layers))

    def forward(self, x: Tensor, context: Context, masks: list[LayerMasks] | None) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = layer(x, context, masks[i] if masks is not None else None)
        return x

    def masks(self, key: Tensor, drop: float, dtype: torch.dtype) -> list[LayerMasks]:
        return [layer.masks(rng.fold(key, i), drop, dtype) for i, layer in enumerate(self.layers)]  # type: ignore[operator, union-attr]
