"""What a model costs: parameters, layer applications, FLOPs and activation memory.

FLOPs and memory are measured by running the model on tensors that have a shape but no data, so that a paper-scale model
takes seconds and no memory. Multiply and add count as two; element-wise work is not counted.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from ponder.config.schema import ModelConfig
from ponder.model import losses
from ponder.model.reasoner import Carry, Reasoner

DENSE_LAYERS = 8
"""The paper counts in passes of its dense control, which has this many layers."""


@dataclass(frozen=True)
class Cost:
    steps: int
    """T: ACT steps of one answer."""
    parameters: int
    """Without the puzzle table."""
    table: int
    applications: int
    """Layer applications per ACT step."""
    inference_flops: int
    """One ACT step of one example."""
    training_flops: int
    """One update, per example: forward, backward within the horizon, and the forward pass of the continue target."""
    activations: int
    """Bytes kept for the backward pass, per example, in float32."""

    @property
    def relative_per_step(self) -> float:
        """Of the paper's dense pass: 3 for HRM's 3T."""
        return self.applications / DENSE_LAYERS

    @property
    def relative(self) -> float:
        return self.relative_per_step * self.steps

    @property
    def answer_flops(self) -> int:
        return self.inference_flops * self.steps


def applications(config: ModelConfig) -> int:
    """Layer applications per ACT step: H (L layers_L + layers_H)."""
    if config.states == 0:
        return config.layers
    each_cycle = config.l_cycles if config.states == 1 else config.l_cycles + 1
    return config.h_cycles * each_cycle * config.layers


def cost(config: ModelConfig, vocab: int, tokens: int, steps: int | None = None, task_ids: int = 1) -> Cost:
    """The cost of a model on puzzles of `tokens` tokens; `steps` is its ACT budget unless it says otherwise."""
    work = flops(config, vocab, tokens)
    return Cost(
        steps=1 if config.states == 0 else steps or config.max_steps,
        parameters=work.parameters,
        table=task_ids * config.width,
        applications=applications(config),
        inference_flops=work.inference,
        training_flops=work.training,
        activations=_kept_bytes(config, vocab, tokens),
    )


@dataclass(frozen=True)
class Work:
    """What `Cost` says of parameters and FLOPs: the part that is had in a second."""

    parameters: int
    inference: int
    training: int


@cache
def flops(config: ModelConfig, vocab: int, tokens: int) -> Work:
    with torch.device("meta"):
        model = Reasoner(config, vocab, tokens)
    inference, training = _inference_flops(model), _training_flops(model)
    if config.halting == "halt+continue":
        training += inference  # the continue target is the next step's forward pass
    return Work(sum(p.numel() for p in model.parameters()), inference, training)


# Measuring ------------------------------------------------------------------------------------------------------------


def _puzzles(model: Reasoner, batch: int = 1) -> tuple[Carry, Tensor, Tensor]:
    """A fresh carry, inputs and rows of the puzzle table, on the device that new tensors are made on."""
    carry = model.start(torch.zeros(batch, dtype=torch.int64))
    inputs = torch.ones(batch, model.tokens, dtype=torch.int64)
    return carry, inputs, torch.zeros(batch, model.config.width, requires_grad=True)


def _inference_flops(model: Reasoner) -> int:
    with torch.device("meta"), torch.no_grad(), _counter() as counter:
        model.eval()(*_puzzles(model))
    return int(counter.get_total_flops())


def _training_flops(model: Reasoner) -> int:
    with torch.device("meta"), _counter() as counter:
        carry, inputs, rows = _puzzles(model)
        step = model.train()(carry, inputs, rows)
        target = None if step.q_continue is None else torch.zeros(1)
        loss = losses.losses(step.logits, inputs, step.q_halt, step.q_continue, target, halting_weight=0.5)
        loss.total.backward()
    return int(counter.get_total_flops())


def _kept_bytes(config: ModelConfig, vocab: int, tokens: int) -> int:
    """What one more example adds to what the graph of an ACT step keeps."""
    with torch.device("meta"):
        model = Reasoner(config, vocab, tokens).train()
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

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        # The cycles before the horizon leave nothing behind.
        model(*_puzzles(model, batch), h_cycles=model.config.h_horizon)
    return sum(storage.nbytes() for storage in kept.values())


def _counter() -> FlopCounterMode:
    return FlopCounterMode(display=False, custom_mapping={torch.ops.aten.convolution_backward: _convolution_backward})


Shape = Sequence[int]


def _convolution_backward(grad: Shape, x: Shape, weight: Shape, *rest: Any, **kwargs: Any) -> int:
    """torch's own formula ignores the groups of a depthwise convolution: off by a factor of the channels."""
    wanted = next(mask for mask in reversed(rest) if isinstance(mask, list) and len(mask) == 3)
    return sum(map(bool, wanted[:2])) * 2 * math.prod(grad) * math.prod(weight[1:])
