"""The backbone: post-norm Transformer blocks without biases, as HRM, TRM and URM publish them."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ponder.base import rng
from ponder.base.geometry import NO_GEOMETRY, Geometry
from ponder.config.schema import ModelConfig
from ponder.model.attention import Attention, Rotary
from ponder.model.products import Swi, SwiGLU, rms_norm
from ponder.model.relations import Relations


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
    links: Tensor | None = None
    """Which positions belong together in each puzzle, where that differs (`Tree.links`)."""


@dataclass(frozen=True)
class LayerWeights:
    mixer: Any
    """AttentionWeights, Swi, or a Swi for each kind of relation."""
    mlp: Swi


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
        return LayerWeights(self.tokens.across(columns, self.width), mlp)

    def forward(self, x: Tensor, weights: LayerWeights, context: Context, masks: LayerMasks | None) -> Tensor:
        inside = x if self.scale is None else rms_norm(x)
        mask = masks.attention if masks else None
        if self.attention is not None:
            dropped = masks.qkv if masks else None
            mixed = self.attention(inside, weights.mixer, context.rotary, context.key_bias, dropped)
            x = self._joined(0, x, mixed, mask)
        elif self.relations is not None:
            if self.scale is None:
                x = self.relations.joined(x, weights.mixer, context.links, mask)
            else:
                x = self._joined(0, x, self.relations(inside, weights.mixer, context.links), mask)
        else:
            assert self.tokens is not None
            post = self.scale is None
            mixed = self.tokens.along_tokens(inside, weights.mixer, mask if post else None, joined=post)
            x = mixed if post else self._joined(0, x, mixed, mask)
        dropped, mask = (masks.ffn, masks.middle) if masks else (None, None)
        if self.scale is None:
            return self.mlp.joined(x, weights.mlp, mask, dropped)
        return self._joined(1, x, self.mlp(rms_norm(x), weights.mlp, mask), dropped)

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
