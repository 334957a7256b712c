"""What a model costs: parameters, layer applications, FLOPs and activation memory.

FLOPs follow from the shapes of the products; multiply and add count as two, element-wise work is not counted. Memory is
measured by running the model on tensors that have a shape but no data.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks

from ponder.base.geometry import NO_GEOMETRY, Geometry
from ponder.config.schema import ModelConfig
from ponder.model.products import inner_width
from ponder.model.reasoner import Reasoner
from ponder.model.recurrence import horizon
from ponder.model.relations import LINKS

DENSE_LAYERS = 8
"""The paper counts in passes of its dense control, which has this many layers."""


@dataclass(frozen=True)
class Work:
    """Parameters and FLOPs: the part of a model's cost that is had in a second."""

    parameters: int
    """Without the puzzle table."""
    inference: int
    """One ACT step of one example."""
    training: int
    """One update, per example: forward, backward within the horizon, and the forward pass of the continue target."""


@dataclass(frozen=True)
class Cost:
    work: Work
    steps: int
    """T: ACT steps of one answer."""
    table: int
    applications: int
    """Layer applications per ACT step."""
    activations: int
    """Bytes kept for the backward pass, per example, in float32."""

    @property
    def relative_per_step(self) -> float:
        """Of the paper's dense pass: 3 for HRM's 3T."""
        return self.applications / DENSE_LAYERS


def applications(config: ModelConfig) -> int:
    """Layer applications per ACT step: H (L layers_L + layers_H)."""
    if config.states == 0:
        return config.layers
    return config.h_cycles * (config.l_cycles * config.layers + (config.layers_above if config.states == 2 else 0))


def cost(
    config: ModelConfig,
    vocab: int,
    tokens: int,
    steps: int | None = None,
    task_ids: int = 1,
    geometry: Geometry = NO_GEOMETRY,
) -> Cost:
    """The cost of a model on puzzles of `tokens` tokens; `steps` is its ACT budget unless it says otherwise."""
    return Cost(
        work=flops(config, vocab, tokens, geometry),
        steps=1 if config.states == 0 else steps or config.max_steps,
        table=task_ids * config.width,
        applications=applications(config),
        activations=_kept_bytes(config, vocab, tokens, geometry),
    )


@cache
def flops(config: ModelConfig, vocab: int, tokens: int, geometry: Geometry = NO_GEOMETRY) -> Work:
    """Counted from the shapes of all products; the tests hold it against what torch counts while the model runs."""
    with torch.device("meta"):
        model = Reasoner(config, vocab, tokens, geometry=geometry)
    layer, once = _layer(config, model.length, geometry), _once(config, model)
    layers = config.layers * layer
    gate = 2 * model.length * config.width if config.gate else 0
    low, above = layers + gate, config.layers_above if config.states == 2 else 0
    high = above * layer
    inference = once + (layers if config.states == 0 else config.h_cycles * (config.l_cycles * low + high))
    # A product within the horizon has two more in the backward pass, one for each factor.
    k_h, k_l = horizon(config)
    reached = layers if config.states == 0 else k_h * (k_l * low + high)
    training = inference + 2 * (once + reached)
    if config.gradient == "implicit":
        # A term of the series asks for the gradients of states alone: one product less for each weight.
        both = 0 if config.mixer == "mlp" else 4 * model.length**2 * config.width
        training += config.neumann * (reached + both * (k_l * config.layers + above))
    if config.halting == "halt+continue":
        training += inference  # the continue target is the next step's forward pass
    return Work(sum(p.numel() for p in model.parameters()), inference, training)


def _layer(config: ModelConfig, length: int, geometry: Geometry) -> int:
    """FLOPs of one layer's products for one example."""
    width, inner = config.width, inner_width(config.width, config)
    if config.mixer == "relations":
        symbols = len(geometry.symbols) if config.symbols == "equivariant" else 1
        groups = symbols * sum(len(relation.groups) for relation in geometry.relations)
        cells = (length - config.prefix) // symbols
        mlps = int(config.halting != "asked") + groups + (cells if symbols > 1 else 0)
        tree = 0 if geometry.tree is None else geometry.tree.most * (2 * LINKS + 1)
        return 2 * geometry.told(cells).terms * symbols * width + 2 * (3 * (mlps + length) + tree) * width * inner
    if config.mixer == "attention":
        mixer = 2 * length * 4 * width**2 + 4 * length**2 * width
    else:
        mixer = 2 * width * 3 * length * inner_width(length, config)
    conv = 2 * 2 * (length + 1) * inner if config.mlp_conv else 0
    return mixer + 2 * length * 3 * width * inner + conv


def _once(config: ModelConfig, model: Reasoner) -> int:
    """FLOPs of an ACT step outside the recurrence: input convolution, head, halting head."""
    conv = 2 * 3 * model.length * config.width if config.input_conv else 0
    head = 2 * (model.length - config.prefix) * config.width * model.head.out_features
    return conv + head + (2 * config.width * 2 if config.head else 0)


# Measuring ------------------------------------------------------------------------------------------------------------


def _kept_bytes(config: ModelConfig, vocab: int, tokens: int, geometry: Geometry) -> int:
    """What one more example adds to what the graph of an ACT step keeps."""
    with torch.device("meta"):
        model = Reasoner(config, vocab, tokens, geometry=geometry).train()
    # The meta device has attention kernels of its own; fake CPU tensors take the path that real ones take.
    with FakeTensorMode():
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                setattr(module, name, nn.Parameter(torch.empty(parameter.shape)))
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, torch.empty(buffer.shape))
        return (_kept_by(model, batch=4) - _kept_by(model, batch=2)) // 2  # a batch of one takes short cuts


def _kept_by(model: Reasoner, batch: int) -> int:
    kept: dict[int, Any] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return tensor

    carry = model.start(torch.zeros(batch, dtype=torch.int64))
    inputs = torch.ones(batch, model.tokens, dtype=torch.int64)
    rows = torch.zeros(batch, model.config.width, requires_grad=True)
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        # The cycles before the horizon leave nothing behind.
        model(carry, inputs, rows, h_cycles=horizon(model.config)[0])
    return sum(storage.nbytes() for storage in kept.values())
