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
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from ponder.base import rng
from ponder.base.errors import UserError
from ponder.base.geometry import NO_GEOMETRY, Geometry
from ponder.config.schema import ModelConfig

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


# Products -------------------------------------------------------------------------------------------------------------

ONEDNN: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None
"""oneDNN's product of a linear layer, where torch was built with it."""


def by_onednn(weight: Tensor) -> bool:
    """Whether products with this weight go to oneDNN. Compilers, exporters and counters get operations they know."""
    if ONEDNN is None or weight.dtype != torch.float32 or weight.device.type != "cpu":
        return False
    watched = torch.compiler.is_compiling() or is_in_torch_dispatch_mode()
    return not watched and not torch.is_autocast_enabled(weight.device.type)


@dataclass(frozen=True)
class Weight:
    """The weight of a linear layer, as all applications within one ACT step use it."""

    value: Tensor
    packed: Tensor | None = None
    """The same in oneDNN's own order, which it would otherwise make again for every product."""

    @staticmethod
    def pack(value: Tensor, rows: int | None) -> "Weight":
        """For products with about so many rows; None leaves it as it is."""
        if rows is None or not by_onednn(value):
            return Weight(value)
        return Weight(value, torch.ops.mkldnn._reorder_linear_weight(value.detach(), rows))


def product(x: Tensor, weight: Weight, times: Tensor | None = None) -> Tensor:
    """x weight^T, or that times another tensor.

    F.linear, by way of oneDNN where the weight was packed for it: its float32 products on a CPU are faster than those
    behind F.linear, and multiply while the result is in the cache (docs/performance.md).
    """
    value, packed = weight.value, weight.packed
    if packed is None:
        out = F.linear(x, value)
    elif torch.is_grad_enabled() and (x.requires_grad or value.requires_grad):
        out = _Product.apply(x, value, packed)  # type: ignore[no-untyped-call]
    elif times is None:
        return _product(x, packed)
    else:
        done: Tensor = ONEDNN.binary(x, times, packed, None, "mul")
        return done
    return out if times is None else out * times


def _product(x: Tensor, weight: Tensor) -> Tensor:
    out: Tensor = ONEDNN(x, weight, None, "none", [], "")
    return out


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, packed: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, packed)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        (grad,) = grads
        needs_x, needs_weight, _ = ctx.needs_input_grad
        d_x = _product(grad, weight.t()) if needs_x else None
        d_weight = torch.mm(grad.flatten(0, -2).t(), x.flatten(0, -2)) if needs_weight else None
        return d_x, d_weight, None


# Norm and gate --------------------------------------------------------------------------------------------------------


class _Norm(torch.autograd.Function):
    """RMSNorm of x, or of x + added * mask: the residual sum, the dropout and the norm in one node of the graph."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, added: Tensor | None, mask: Tensor | None) -> Tensor:
        if added is not None:
            x = x + added if mask is None else torch.addcmul(x, added, mask)
        # Summed as the authors sum: TRM-MLP's trajectory amplifies rounding 50-fold per ACT step, so that parity at the
        # fourth step (golden trm_mlp) needs the same bits, not only the same formula.
        scale = x.float().square().mean(dim=-1, keepdim=True).add_(EPS).rsqrt_()
        y = (x * scale).to(x.dtype) if added is None else x.mul_(scale)
        ctx.save_for_backward(y, scale, mask)
        ctx.added = added is not None
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None]:
        y, scale, mask = ctx.saved_tensors
        (grad,) = grads
        along = (grad * y).mean(dim=-1, keepdim=True)
        d_x = torch.addcmul(grad, y, along, value=-1).mul_(scale.to(grad.dtype))
        if not ctx.added:
            return d_x, None, None
        return d_x, d_x if mask is None else d_x * mask, None


def rms_norm(x: Tensor, added: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
    """Parameter-free RMSNorm over the last axis, of x or of the residual sum x + added * mask."""
    out: Tensor = _Norm.apply(x, added, mask)  # type: ignore[no-untyped-call]
    return out


class _SwiGate(torch.autograd.Function):
    """silu(gate) * up * mask."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, mask: Tensor | None) -> Tensor:
        ctx.save_for_backward(gate, up, mask)
        out = F.silu(gate).mul_(up)
        return out if mask is None else out.mul_(mask)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        gate, up, mask = ctx.saved_tensors
        (grad,) = grads
        if mask is not None:
            grad = grad * mask
        d_up = F.silu(gate).mul_(grad)
        if torch.is_grad_enabled():  # this is differentiated in its turn, which the fused operation does not bear
            share = torch.sigmoid(gate)
            return grad * up * share * (1 + gate * (1 - share)), d_up, None
        return torch.ops.aten.silu_backward(grad * up, gate), d_up, None


def swi_gate(gate: Tensor, up: Tensor, mask: Tensor | None) -> Tensor:
    out: Tensor = _SwiGate.apply(gate, up, mask)  # type: ignore[no-untyped-call]
    return out


def inner_width(width: int, config: ModelConfig) -> int:
    return -(-round(config.expansion * width * 2 / 3) // config.inner_multiple) * config.inner_multiple


@dataclass(frozen=True)
class SwiWeights:
    gate: Weight
    up: Weight
    down: Weight


class SwiGLU(nn.Module):
    def __init__(self, width: int, config: ModelConfig, conv: bool = False) -> None:
        super().__init__()
        inner = inner_width(width, config)
        self.up = linear(width, 2 * inner)
        self.down = linear(inner, width)
        self.conv = nn.Conv1d(inner, inner, kernel_size=2, padding=1, groups=inner) if conv else None

    def weights(self, rows: int | None) -> SwiWeights:
        # Two products instead of one: the element-wise half then reads contiguous memory (docs/performance.md).
        gate, up = self.up.weight.chunk(2)
        return SwiWeights(*(Weight.pack(w, rows) for w in (gate, up, self.down.weight)))

    def forward(self, x: Tensor, weights: SwiWeights, mask: Tensor | None = None) -> Tensor:
        x = x.contiguous()
        gate = product(x, weights.gate)
        if gate.requires_grad or mask is not None:
            mid = swi_gate(gate, product(x, weights.up), mask if self.conv is None else None)
        else:
            mid = product(x, weights.up, times=F.silu(gate, inplace=True))
        if self.conv is not None:
            along = _two_taps if weights.down.packed is not None else _convolved
            mid = F.silu(along(mid, self.conv))
            if mask is not None:
                mid = mid * mask
        return product(mid, weights.down)


def _convolved(x: Tensor, conv: nn.Conv1d) -> Tensor:
    """A depthwise convolution along the tokens of [B, S, inner], each seeing itself and the one before."""
    out: Tensor = conv(x.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2)
    return out


class _TwoTaps(torch.autograd.Function):
    """The same without leaving the products' layout, which takes longer on a CPU than the convolution itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        before, here = weight[:, 0].unbind(dim=-1)
        out = torch.addcmul(bias, x, here)
        out[:, 1:].addcmul_(x[:, :-1], before)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        (grad,) = grads
        before, here = weight[:, 0].unbind(dim=-1)
        d_x = grad * here
        d_x[:, :-1].addcmul_(grad[:, 1:], before)
        d_before, d_here = (grad[:, 1:] * x[:, :-1]).sum(dim=(0, 1)), (grad * x).sum(dim=(0, 1))
        return d_x, torch.stack((d_before, d_here), dim=-1)[:, None], grad.sum(dim=(0, 1))


def _two_taps(x: Tensor, conv: nn.Conv1d) -> Tensor:
    out: Tensor = _TwoTaps.apply(x, conv.weight, conv.bias)  # type: ignore[no-untyped-call]
    return out


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
        if short and qkv.dtype == torch.float32 and not torch.compiler.is_compiling():
            mixed: Tensor = _ShortAttention.apply(qkv, mask, rotary, key_bias)  # type: ignore[no-untyped-call]
            return mixed
        # The same in operations that compilers, exporters and other devices know.
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


class Relations(nn.Module):
    """Tokens mix through the groups they belong to: what a group's tokens add up to is transformed and told to all.

    Nothing in it depends on the number of cells or symbols. Where symbols are exchangeable, a cell has one position
    for each of them: groups are then of one symbol's positions, and the symbols of a cell are one more group.
    """

    gather: Tensor
    tell: Tensor

    def __init__(self, config: ModelConfig, length: int, geometry: Geometry) -> None:
        super().__init__()
        if not geometry.relations:
            raise UserError("mixer relations needs a domain that has relations (sudoku, maze, life); set model.mixer")
        self.prefix = config.prefix
        self.symbols = len(geometry.symbols) if config.symbols == "equivariant" else 1
        self.tokens = tokens = (length - config.prefix) // self.symbols
        self.counts: dict[str, int] = {}
        for relation in geometry.relations:
            self.counts[relation.name] = self.counts.get(relation.name, 0) + len(relation.groups)
        groups = sum(self.counts.values())
        gather, tell, i = torch.zeros(groups, tokens), torch.zeros(tokens, groups), 0
        for relation in geometry.relations:
            largest = max(map(len, relation.groups))  # one scale for all: a cell at the edge counts as others do
            for group, told in zip(relation.groups, relation.tells, strict=True):
                gather[i, list(group)] = largest**-0.5
                tell[list(told), i] = 1.0
                i += 1
        self.register_buffer("gather", gather, persistent=False)
        self.register_buffer("tell", tell, persistent=False)
        kinds = [*self.counts, *(["symbols"] if self.symbols > 1 else []), "all"]
        self.kinds = nn.ModuleDict({kind: SwiGLU(config.width, config) for kind in kinds})

    def weights(self, batch: int | None) -> dict[str, SwiWeights]:
        rows = {kind: count * self.symbols for kind, count in self.counts.items()} | {"symbols": self.tokens, "all": 1}
        return {
            kind: mlp.weights(None if batch is None else batch * rows[kind])  # type: ignore[operator]
            for kind, mlp in self.kinds.items()
        }

    def forward(self, x: Tensor, weights: dict[str, SwiWeights]) -> Tensor:
        batch, length, width = x.shape
        body = x[:, self.prefix :].reshape(batch, self.tokens, self.symbols * width)
        groups = torch.matmul(self.gather.to(x.dtype), body).view(batch, -1, self.symbols, width)
        parts = groups.split(list(self.counts.values()), dim=1)
        answers = [self.kinds[kind](part, weights[kind]) for kind, part in zip(self.counts, parts, strict=True)]
        mixed = torch.matmul(self.tell.to(x.dtype), torch.cat(answers, dim=1).view(batch, -1, self.symbols * width))
        mixed = mixed.view(batch, self.tokens, self.symbols, width)
        if self.symbols > 1:
            cells = body.view(mixed.shape).sum(dim=2) * self.symbols**-0.5
            mixed = mixed + self.kinds["symbols"](cells, weights["symbols"])[:, :, None]
        everything: Tensor = self.kinds["all"](x.sum(dim=1, keepdim=True) * length**-0.5, weights["all"])
        return F.pad(mixed.view(batch, -1, width), (0, 0, self.prefix, 0)) + everything


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


@dataclass(frozen=True)
class LayerWeights:
    mixer: AttentionWeights | SwiWeights | dict[str, SwiWeights]
    mlp: SwiWeights


class Layer(nn.Module):
    def __init__(self, config: ModelConfig, length: int, geometry: Geometry = NO_GEOMETRY) -> None:
        super().__init__()
        self.width = config.width
        self.length = length
        self.relations = Relations(config, length, geometry) if config.mixer == "relations" else None
        self.attention = Attention(config.width, config.heads) if config.mixer == "attention" else None
        self.tokens = SwiGLU(length, config) if config.mixer == "mlp" else None
        self.mlp = SwiGLU(config.width, config, conv=config.mlp_conv)
        self.scale: nn.Parameter | None = None
        if config.norm == "pre":
            # What both sublayers of all layers leave of their input, together: a quarter of it.
            kept = 0.25 ** (1 / (2 * config.layers))
            self.scale = nn.Parameter(torch.full((2,), math.log(kept / (1 - kept))))

    def weights(self, rotary: Rotary | None, batch: int) -> LayerWeights:
        compiled = self._compiled_call_impl is not None  # compilers know nothing of packed weights
        rows, columns = (None, None) if compiled else (batch * self.length, batch * self.width)
        mlp = self.mlp.weights(rows)
        if self.attention is not None:
            return LayerWeights(self.attention.weights(rotary, rows), mlp)
        if self.relations is not None:
            return LayerWeights(self.relations.weights(None if compiled else batch), mlp)
        assert self.tokens is not None
        return LayerWeights(self.tokens.weights(columns), mlp)

    def forward(self, x: Tensor, weights: LayerWeights, context: Context, masks: LayerMasks | None) -> Tensor:
        inside = x if self.scale is None else rms_norm(x)
        if self.attention is not None:
            mask = masks.qkv if masks else None
            mixed = self.attention(inside, weights.mixer, context.rotary, context.key_bias, mask)
            x = self._joined(0, x, mixed, masks.attention if masks else None)
        elif self.relations is not None:
            x = self._joined(0, x, self.relations(inside, weights.mixer), masks.attention if masks else None)
        elif self.scale is not None:
            assert self.tokens is not None
            mixed = self.tokens(inside.transpose(1, 2), weights.mixer).transpose(1, 2)
            x = self._joined(0, x, mixed, masks.attention if masks else None)
        else:
            assert self.tokens is not None
            across = x.transpose(1, 2)
            mixed = self.tokens(across, weights.mixer)
            x = rms_norm(across, mixed, masks.attention.transpose(1, 2) if masks else None).transpose(1, 2)
        inside = x if self.scale is None else rms_norm(x)
        out = self.mlp(inside, weights.mlp, masks.middle if masks else None)
        return self._joined(1, x, out, masks.ffn if masks else None)

    def _joined(self, sublayer: int, x: Tensor, added: Tensor, mask: Tensor | None) -> Tensor:
        """The norm of the sum; or, where the norm came before the sublayer, a sum that x enters scaled down."""
        if self.scale is None:
            return rms_norm(x, added, mask)
        kept = torch.sigmoid(self.scale[sublayer]).to(x.dtype)
        return kept * x + (added if mask is None else added * mask)

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

    def __init__(self, config: ModelConfig, length: int, geometry: Geometry = NO_GEOMETRY) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(config, length, geometry) for _ in range(config.layers))

    def forward(
        self, x: Tensor, weights: list[LayerWeights], context: Context, masks: list[LayerMasks] | None
    ) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = layer(x, weights[i], context, masks[i] if masks is not None else None)
        return x

    def weights(self, rotary: Rotary | None, batch: int) -> list[LayerWeights]:
        return [layer.weights(rotary, batch) for layer in self.layers]  # type: ignore[operator]

    def masks(self, key: Tensor, drop: float, dtype: torch.dtype) -> list[LayerMasks]:
        return [layer.masks(rng.fold(key, i), drop, dtype) for i, layer in enumerate(self.layers)]  # type: ignore[operator]


def compile_blocks(model: nn.Module) -> None:
    """Compile every layer on its own, in place; names of parameters stay as they are.

    Layers of the same shape share the generated code, and one more is generated for each combination of gradient or
    none, dropout or none, and batch size. The whole recurrence at once would take minutes to compile for little more.
    """
    for module in model.modules():
        if isinstance(module, Layer):
            module.compile(dynamic=False)
