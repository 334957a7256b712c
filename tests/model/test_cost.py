"""The cost of a model: the paper's column, FLOPs against torch's count, memory against real tensors."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from ponder.base import native
from ponder.config.resolve import model_preset
from ponder.config.schema import ModelConfig
from ponder.model import losses
from ponder.model.cost import Cost, Work, applications, cost
from ponder.model.products import inner_width
from ponder.model.reasoner import Reasoner

MODELS = ("dense", "hrm", "trm", "trm-mlp", "urm", "urm-one-state", "ponder")
VOCAB = 11


def model_config(name: str, **changes: Any) -> ModelConfig:
    return ModelConfig(**{**model_preset(name, "paper")["model"], **changes})


def counted(config: ModelConfig, tokens: int) -> tuple[int, int]:
    """FLOPs per example that torch counts while one ACT step's forward pass, and one update, run without data."""
    with torch.device("meta"):
        model = Reasoner(config, VOCAB, tokens)
        carry, inputs = model.start(torch.zeros(1, dtype=torch.int64)), torch.ones(1, tokens, dtype=torch.int64)
        rows = torch.zeros(1, config.width, requires_grad=True)
        with torch.no_grad(), counter() as forward:
            model.eval()(carry, inputs, rows)
        with counter() as update:
            step = model.train()(carry, inputs, rows)
            target = None if step.q_continue is None else torch.zeros(1)
            losses.losses(step.logits, inputs, step.q_halt, step.q_continue, target, 0.5).total.backward()
    following = forward.get_total_flops() if config.halting == "halt+continue" else 0
    return forward.get_total_flops(), update.get_total_flops() + following


class Untracked(nullcontext[None]):
    """In place of the counter's own list of modules, whose hooks bear no gradient within a backward pass."""

    parents = ("Global",)


def counter() -> FlopCounterMode:
    mode = FlopCounterMode(display=False, custom_mapping={torch.ops.aten.convolution_backward: convolution_backward})
    mode.mod_tracker = Untracked()  # type: ignore[assignment]
    return mode


def convolution_backward(
    grad: Sequence[int], x: Sequence[int], weight: Sequence[int], *rest: Any, **kwargs: Any
) -> int:
    """torch's own formula ignores the groups of a depthwise convolution: off by a factor of the channels."""
    wanted = next(mask for mask in reversed(rest) if isinstance(mask, list) and len(mask) == 3)
    return sum(map(bool, wanted[:2])) * 2 * math.prod(grad) * math.prod(weight[1:])


# The paper's column ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "relative"), [("dense", 1), ("hrm", 3), ("trm", 5.25), ("urm", 5.25), ("ponder", 6)])
def test_the_papers_relative_compute(name: str, relative: float) -> None:
    assert Cost(Work(0, 0, 0), 16, 0, applications(model_config(name)), 0).relative_per_step == relative


def test_one_state_has_no_applications_of_h() -> None:
    assert applications(model_config("urm-one-state")) == 3 * 6 * 2
    assert applications(model_config("urm")) == 3 * (6 * 2 + 2)


def test_steps_are_the_budget_unless_said_and_dense_has_one() -> None:
    small = {"width": 32, "heads": 2, "layers": 1}
    recurrent = model_config("ponder", **small, max_steps=5)
    assert cost(recurrent, VOCAB, 9).steps == 5
    assert cost(recurrent, VOCAB, 9, steps=7).steps == 7
    assert cost(model_config("dense", **small), VOCAB, 9, steps=7).steps == 1


# Measured -------------------------------------------------------------------------------------------------------------


CHANGES: list[dict[str, Any]] = [
    {},
    {"l_horizon": 1, "h_horizon": 1},
    {"l_horizon": 2, "h_horizon": 4},
    {"gate": False, "halting": "halt"},
    {"input_conv": True, "modules": "separate"},
    {"modules": "separate", "high_layers": 3},
    {"modules": "separate", "high_layers": 1, "gradient": "implicit", "neumann": 2},
    {"gradient": "implicit"},
    {"gradient": "implicit", "neumann": 3, "norm": "pre"},
    {"gradient": "implicit", "neumann": 2, "mixer": "mlp", "inner_multiple": 64, "positions": "none"},
    {"mixer": "mlp", "inner_multiple": 64, "positions": "learned"},
]


@pytest.mark.parametrize(
    ("name", "tokens", "changes"),
    [*((n, 30, {}) for n in MODELS), ("urm", 200, {}), *(("ponder", 30, changes) for changes in CHANGES)],
)
def test_flops_are_those_that_torch_counts(name: str, tokens: int, changes: dict[str, Any]) -> None:
    config = model_config(name, width=64, heads=4, layers=2, **changes)
    found = cost(config, VOCAB, tokens)
    assert (found.work.inference, found.work.training) == counted(config, tokens)


def test_inner_widths_may_be_rounded_to_less() -> None:
    config = model_config("ponder-mlp", width=64, heads=4, layers=1, inner_multiple=64)
    assert inner_width(64, config) == 192 and inner_width(31, config) == 128
    published = cost(config.model_copy(update={"inner_multiple": 256}), VOCAB, 30)
    assert cost(config, VOCAB, 30).work.inference < 0.7 * published.work.inference


def kept_by_real_tensors(model: Reasoner, batch: int) -> int:
    """Bytes that the graph of a real ACT step holds on to."""
    held: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        held[storage.data_ptr()] = storage
        return tensor

    inputs, rows = torch.ones(batch, model.tokens, dtype=torch.int64), torch.zeros(batch, model.config.width)
    with native.without(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.train()(model.start(torch.arange(batch)), inputs, rows.requires_grad_())
    return sum(storage.nbytes() for storage in held.values())


@pytest.mark.parametrize("name", MODELS)
def test_activation_memory_is_what_an_example_adds_to_a_real_step(name: str) -> None:
    config = model_config(name, width=64, heads=4, layers=1)
    if name == "ponder":
        config = config.model_copy(update={"dropout": 0.1, "state_dropout": 0.1, "noise": 0.01})
    model = Reasoner(config, VOCAB, 30)
    real = (kept_by_real_tensors(model, 32) - kept_by_real_tensors(model, 8)) / 24
    assert cost(config, VOCAB, 30).activations == pytest.approx(real, rel=0.01)
    assert real > 0


def test_activation_memory_follows_the_horizon_and_not_the_cycles() -> None:
    def kept(**changes: Any) -> int:
        return cost(model_config("ponder", width=64, heads=4, layers=1, **changes), VOCAB, 30).activations

    once, twice = kept(h_horizon=1), kept(h_horizon=2)
    assert 1.8 < twice / once < 2.1
    assert kept(h_cycles=3) == twice


def test_the_table_is_counted_apart() -> None:
    config = model_config("ponder", width=32, heads=2, layers=1)
    small, large = cost(config, VOCAB, 9), cost(config, VOCAB, 9, task_ids=1000)
    assert large.work == small.work
    assert small.work.parameters == sum(p.numel() for p in Reasoner(config, VOCAB, 9).parameters())
    assert (small.table, large.table) == (32, 32_000)
