"""Tokens mix by attention, with rotary positions: one path for short sequences on a CPU, one for everything else."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ponder.model import kernels
from ponder.model.products import Weight, linear, product


@dataclass(frozen=True)
class Rotary:
    """RoPE over prefix and tokens, which turns the pairs (i, i + size / 2) of each head.

    Queries and keys are computed with the members of a pair side by side, which leaves their products as they are: a
    pair is then one complex number, and the rotation one product with `turn`, [length, size / 2].
    """

    turn: Tensor
    order: Tensor
    """Rows of the joint query, key and value weight in that order."""
    back: Tensor
    """Its inverse."""

    @staticmethod
    def make(length: int, width: int, heads: int, device: torch.device, theta: float = 10000.0) -> "Rotary":
        size = width // heads
        rate = 1.0 / theta ** (torch.arange(0, size, 2, dtype=torch.float32, device=device) / size)
        angle = torch.outer(torch.arange(length, dtype=torch.float32, device=device), rate)
        rows = torch.arange(3 * width, device=device)
        order = torch.cat((rows[: 2 * width].view(2 * heads, 2, -1).transpose(1, 2).reshape(-1), rows[2 * width :]))
        return Rotary(torch.stack((angle.cos(), angle.sin()), dim=-1), order, order.argsort())

    @cached_property
    def native(self) -> Tensor:
        """`turn` as our own kernels read it."""
        return kernels.turns(self.turn)

    def __call__(self, x: Tensor) -> Tensor:
        """x: [..., length, size]"""
        even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
        cos, sin = self.turn.unbind(-1)
        return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2).to(x.dtype)

    def turn_(self, x: Tensor, back: bool = False) -> None:
        """The same in place, for contiguous float32 without a graph."""
        pairs = torch.view_as_complex(x.view(*x.shape[:-1], -1, 2))
        turn = torch.view_as_complex(self.turn)
        pairs.mul_(turn.conj_physical() if back else turn)


class _Reorder(torch.autograd.Function):
    """Rows of a weight in another order. (Plain indexing adds the gradient up row by row.)"""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, order: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return weight.index_select(0, order)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (back,) = ctx.saved_tensors
        return grads[0].index_select(0, back), None, None


class _ShortAttention(torch.autograd.Function):
    """Dropout, rotation and explicit attention of short sequences, from qkv [B, S, 3, heads, size] to [B, S, width].

    At a few dozen tokens, copies between layouts cost more than the products. Here there is one into the heads' layout
    and one out of it, in each direction, and the dropout mask is applied on the way.
    """

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, mask: Tensor | None, rotary: Rotary | None, key_bias: Tensor | None) -> Tensor:
        batch, length, _, heads, size = qkv.shape
        split = torch.empty(3, batch, heads, length, size, dtype=qkv.dtype, device=qkv.device)
        _masked_into(split, qkv.permute(2, 0, 3, 1, 4), None if mask is None else mask.permute(2, 0, 3, 1, 4))
        if rotary is not None:
            rotary.turn_(split[:2])
        q, k, v = split.view(3, batch * heads, length, size).unbind()
        score = torch.empty(batch * heads, length, length, dtype=q.dtype, device=q.device)
        torch.baddbmm(score, q, k.transpose(1, 2), beta=0, alpha=size**-0.5, out=score)
        if key_bias is not None:
            score.view(batch, heads, length, length).add_(key_bias)
        weight = torch.softmax(score, dim=-1)
        ctx.save_for_backward(split, weight, mask)
        ctx.rotary = rotary
        mixed = torch.bmm(weight, v).view(batch, heads, length, size)
        return mixed.transpose(1, 2).reshape(batch, length, heads * size)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        split, weight, mask = ctx.saved_tensors
        _, batch, heads, length, size = split.shape
        q, k, v = split.view(3, batch * heads, length, size).unbind()
        d_mixed = grads[0].view(batch, length, heads, size).transpose(1, 2).reshape(batch * heads, length, size)
        d_split = torch.empty_like(split)
        d_q, d_k, d_v = d_split.view(3, batch * heads, length, size).unbind()
        d_weight = torch.bmm(d_mixed, v.transpose(1, 2))
        d_score = torch._softmax_backward_data(d_weight, weight, -1, weight.dtype)
        torch.bmm(weight.transpose(1, 2), d_mixed, out=d_v)
        torch.baddbmm(d_q, d_score, k, beta=0, alpha=size**-0.5, out=d_q)
        torch.baddbmm(d_k, d_score.transpose(1, 2), q, beta=0, alpha=size**-0.5, out=d_k)
        if ctx.rotary is not None:
            ctx.rotary.turn_(d_split[:2], back=True)
        d_qkv = torch.empty(batch, length, 3, heads, size, dtype=split.dtype, device=split.device)
        _masked_into(d_qkv, d_split.permute(1, 3, 0, 2, 4), mask)
        return d_qkv, None, None, None


def _masked_into(out: Tensor, x: Tensor, mask: Tensor | None) -> None:
    if mask is None:
        out.copy_(x)
    else:
        torch.mul(x, mask, out=out)


# Above this many tokens the fused kernel beats explicit products on a CPU (benchmarks/model.py prints both).
SHORT = 160


@dataclass(frozen=True)
class AttentionWeights:
    qkv: Weight
    out: Weight


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = linear(width, 3 * width)
        self.out = linear(width, width)

    def weights(self, rotary: Rotary | None, rows: int | None) -> AttentionWeights:
        qkv = self.qkv.weight
        if rotary is not None:
            qkv = _Reorder.apply(qkv, rotary.order, rotary.back)  # type: ignore[no-untyped-call]
        return AttentionWeights(Weight.pack(qkv, rows), Weight.pack(self.out.weight, rows))

    def forward(
        self,
        x: Tensor,
        weights: AttentionWeights,
        rotary: Rotary | None,
        key_bias: Tensor | None,
        mask: Tensor | None,
    ) -> Tensor:
        batch, length, width = x.shape
        qkv = product(x, weights.qkv).view(batch, length, 3, self.heads, width // self.heads)
        mask = None if mask is None else mask.view(qkv.shape)
        mixed = self.mix(qkv, mask, rotary, key_bias, short=x.device.type == "cpu" and length <= SHORT)
        return product(mixed, weights.out)

    def mix(
        self, qkv: Tensor, mask: Tensor | None, rotary: Rotary | None, key_bias: Tensor | None, short: bool
    ) -> Tensor:
        """qkv [B, S, 3, heads, size] -> [B, S, width]"""
        if not short or qkv.dtype != torch.float32 or torch.compiler.is_compiling():
            return self.plain_mix(qkv, mask, rotary, key_bias, short)
        if lib := kernels.served(qkv):
            bias = None if key_bias is None else key_bias[:, 0, 0].expand(len(qkv), -1)
            plain = lambda x: self.plain_mix(x, mask, rotary, key_bias, short)  # noqa: E731
            return kernels.attention(lib, qkv, mask, None if rotary is None else rotary.native, bias, plain)
        mixed: Tensor = _ShortAttention.apply(qkv, mask, rotary, key_bias)  # type: ignore[no-untyped-call]
        return mixed

    def plain_mix(
        self, qkv: Tensor, mask: Tensor | None, rotary: Rotary | None, key_bias: Tensor | None, short: bool
    ) -> Tensor:
        """The same in operations that compilers, exporters and other devices know."""
        if mask is not None:
            qkv = qkv * mask
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind()
        if rotary is not None:
            q, k = rotary(q), rotary(k)
        bias = None if key_bias is None else key_bias.to(q.dtype)
        if short:
            score = torch.matmul(q * q.shape[-1] ** -0.5, k.transpose(2, 3))
            mixed = torch.matmul((score if bias is None else score + bias).softmax(dim=-1), v)
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return mixed.transpose(1, 2).flatten(2)
