"""What layers are made of: initial weights, linear products, the norm and the gated MLP.

Written to run well on a CPU at short sequences too: norms and gates have hand-written backward passes, which halve
the element-wise work that dominates there.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ponder.base.runtime import ONEDNN, mkl_lags
from ponder.config.schema import ModelConfig
from ponder.model import kernels
from ponder.model.kernels import plain_only

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

GRADIENTS_BY_ONEDNN = mkl_lags()
"""Of weights: products over all rows of a batch, in which MKL is no slower where it uses the whole processor."""


@dataclass(frozen=True)
class Weight:
    """The weight of a linear layer, as all applications within one ACT step use it."""

    value: Tensor
    packed: Tensor | None = None
    """The same in oneDNN's own order, which it would otherwise make again for every product."""
    native: kernels.Packed | None = None
    """The same in the order of our own kernels, where they serve."""

    @staticmethod
    def pack(value: Tensor, rows: int | None) -> "Weight":
        """For products with about so many rows; None leaves it as it is."""
        if rows is None or value.dtype != torch.float32 or plain_only(value):
            return Weight(value)
        if lib := kernels.served(value, rows=value.shape):
            return Weight(value, native=kernels.Packed.of(lib, value))
        if ONEDNN is None:
            return Weight(value)
        return Weight(value, torch.ops.mkldnn._reorder_linear_weight(value.detach(), rows))


def product(x: Tensor, weight: Weight, times: Tensor | None = None) -> Tensor:
    """x weight^T, or that times another tensor.

    F.linear, by way of our own kernels or of oneDNN where the weight was packed for them: their float32 products on a
    CPU are faster than those behind F.linear (docs/performance.md).
    """
    value, packed = weight.value, weight.packed
    if weight.native is not None:
        out = kernels.linear(x, value, weight.native)
    elif packed is None:
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
        d_weight = weight_gradient(grad.flatten(0, -2), x.flatten(0, -2)) if needs_weight else None
        return d_x, d_weight, None


def weight_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """grad^T x, of [rows, outer] and [rows, inner]."""
    if not GRADIENTS_BY_ONEDNN or len(x) == 0:
        return torch.mm(grad.t(), x)
    if grad.shape[1] <= x.shape[1]:
        return _product(grad.t(), x.t())
    return _product(x.t(), grad.t()).t()  # oneDNN is faster where the result is wider than it is high


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
        d_x = _norm_back(grads[0], y, scale)
        if not ctx.added:
            return d_x, None, None
        return d_x, d_x if mask is None else d_x * mask, None


def _norm_back(grad: Tensor, y: Tensor, scale: Tensor) -> Tensor:
    along = (grad * y).mean(dim=-1, keepdim=True)
    return torch.addcmul(grad, y, along, value=-1).mul_(scale.to(grad.dtype))


def rms_norm(x: Tensor, added: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
    """Parameter-free RMSNorm over the last axis, of x or of the residual sum x + added * mask."""
    if lib := kernels.served(x, rows=x.shape[-1:]):
        return kernels.norm(lib, x, added, mask, _norm_back)
    return plain_norm(x, added, mask)


def plain_norm(x: Tensor, added: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
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


def inner_width(width: int, config: ModelConfig) -> int:
    return -(-round(config.expansion * width * 2 / 3) // config.inner_multiple) * config.inner_multiple


@dataclass(frozen=True)
class SwiWeights:
    gate: Weight
    up: Weight
    down: Weight


Swi = SwiWeights | kernels.Swi
"""For products one by one, or for our own kernels, which do all of it at once."""


class SwiGLU(nn.Module):
    """Of `hears` states side by side, where there are several, it makes one."""

    def __init__(self, width: int, config: ModelConfig, conv: bool = False, hears: int = 1) -> None:
        super().__init__()
        inner = inner_width(width, config)
        self.up = linear(hears * width, 2 * inner)
        self.down = linear(inner, width)
        self.conv = nn.Conv1d(inner, inner, kernel_size=2, padding=1, groups=inner) if conv else None

    def weights(self, rows: int | None) -> Swi:
        """For products with about so many rows; None leaves them as they are."""
        both, down = self.up.weight, self.down.weight
        if rows is not None and (lib := kernels.served(both, down, rows=(*both.shape, *down.shape))):
            return kernels.Swi(lib, both, down, self._plain, self._taps())
        # Two products instead of one: the element-wise half then reads contiguous memory (docs/performance.md).
        return SwiWeights(*(Weight.pack(w, rows) for w in (*both.chunk(2), down)))

    def across(self, rows: int | None, width: int) -> Swi:
        """The same for `along_tokens` of examples of this width, with so many rows in all."""
        both, down = self.up.weight, self.down.weight
        if rows is not None and kernels.fits_across(*down.shape) and (lib := kernels.served(both, down, rows=(width,))):
            return kernels.Swi(lib, both, down, self._plain_across, turned=True)
        return self.weights(rows)

    def forward(self, x: Tensor, weights: Swi, mask: Tensor | None = None) -> Tensor:
        if isinstance(weights, kernels.Swi):
            return kernels.swiglu(x, weights, mask, None, joined=False)
        x = x.contiguous()
        gate = product(x, weights.gate)
        if gate.requires_grad or mask is not None:
            dropped = mask if self.conv is None else None
            mid: Tensor = _SwiGate.apply(gate, product(x, weights.up), dropped)  # type: ignore[no-untyped-call]
        else:
            mid = product(x, weights.up, times=F.silu(gate, inplace=True))
        if self.conv is not None:
            along = _two_taps if weights.down.packed is not None else _convolved
            mid = F.silu(along(mid, self.conv))
            if mask is not None:
                mid = mid * mask
        return product(mid, weights.down)

    def joined(self, x: Tensor, weights: Swi, mask: Tensor | None, dropped: Tensor | None) -> Tensor:
        """The norm of x plus what this makes of it times `dropped`."""
        if isinstance(weights, kernels.Swi):
            return kernels.swiglu(x, weights, mask, dropped, joined=True)
        return rms_norm(x, self(x, weights, mask), dropped)

    def along_tokens(self, x: Tensor, weights: Swi, dropped: Tensor | None, joined: bool) -> Tensor:
        """The same across the tokens of x [B, tokens, width], norm and all; without the norm, what is to be added."""
        if isinstance(weights, kernels.Swi) and weights.turned:
            return kernels.across(x, weights, dropped, joined)
        turned = x.transpose(1, 2)
        if not joined:
            return self(turned, weights).transpose(1, 2)  # type: ignore[no-any-return]
        return self.joined(turned, weights, None, None if dropped is None else dropped.transpose(1, 2)).transpose(1, 2)

    @staticmethod
    def plainly(both: Tensor, down: Tensor) -> SwiWeights:
        return SwiWeights(*(Weight(w) for w in (*both.chunk(2), down)))

    def _taps(self) -> Tensor | None:
        """The convolution as [3, inner]: what the token before counts, what the token itself, and what is added."""
        if self.conv is None or self.conv.bias is None:
            return None
        return torch.cat((self.conv.weight[:, 0].t(), self.conv.bias[None]))

    def _plain(
        self,
        x: Tensor,
        both: Tensor,
        down: Tensor,
        taps: Tensor | None,
        mask: Tensor | None,
        dropped: Tensor | None,
        joined: bool,
    ) -> Tensor:
        weights = self.plainly(both, down)
        mid: Tensor = F.silu(product(x, weights.gate)) * product(x, weights.up)
        if taps is not None:
            mid = F.silu(F.pad(mid, (0, 0, 1, 0))[..., :-1, :] * taps[0] + mid * taps[1] + taps[2])
        out = product(mid if mask is None else mid * mask, weights.down)
        return plain_norm(x, out, dropped) if joined else out

    def _plain_across(
        self,
        x: Tensor,
        both: Tensor,
        down: Tensor,
        taps: None,
        mask: Tensor | None,
        dropped: Tensor | None,
        joined: bool,
    ) -> Tensor:
        dropped = None if dropped is None else dropped.transpose(1, 2)
        return self._plain(x.transpose(1, 2), both, down, taps, mask, dropped, joined).transpose(1, 2)


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
