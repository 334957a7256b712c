"""The cost of a model: the paper's column, and measured FLOPs against a count by hand."""

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from ponder.config.resolve import model_preset
from ponder.config.schema import ModelConfig
from ponder.model.cost import Cost, applications, cost
from ponder.model.layers import inner_width
from ponder.model.reasoner import Reasoner

MODELS = ("dense", "hrm", "trm", "trm-mlp", "urm", "urm-one-state", "ponder")
VOCAB = 11


def model_config(name: str, **changes: Any) -> ModelConfig:
    return ModelConfig(**{**model_preset(name, "paper")["model"], **changes})


def by_hand(config: ModelConfig, tokens: int) -> tuple[int, int]:
    """Useful FLOPs per example of one ACT step's forward pass, and of one update."""
    length, width = config.prefix + tokens, config.width
    inner = inner_width(width, config)
    layer = 2 * length * 3 * width * inner
    if config.mixer == "attention":
        layer += 2 * length * 4 * width * width + 2 * 2 * length * length * width
    else:
        layer += 2 * width * 3 * length * inner_width(length, config)
    if config.mlp_conv:
        layer += 2 * length * 2 * inner
    head = 2 * tokens * width * VOCAB
    if config.states == 0:
        run = reached = config.layers
    else:
        high = 1 if config.states == 2 else 0
        run = config.h_cycles * (config.l_cycles + high) * config.layers
        reached = config.h_horizon * (config.l_horizon + high) * config.layers
    forward = run * layer + head
    target = forward if config.halting == "halt+continue" else 0
    return forward, forward + 2 * (reached * layer + head) + target


# The paper's column ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "relative"), [("dense", 1), ("hrm", 3), ("trm", 5.25), ("urm", 5.25), ("ponder", 6)])
def test_the_papers_relative_compute(name: str, relative: float) -> None:
    config = model_config(name)
    for steps in (1, 16):
        c = Cost(steps, 0, 0, applications(config), 0, 0, 0)
        assert c.relative_per_step == relative
        assert c.relative == relative * steps


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


@pytest.mark.parametrize(("name", "tokens"), [*((name, 30) for name in MODELS), ("urm", 200)])
def test_measured_flops_agree_with_a_count_by_hand(name: str, tokens: int) -> None:
    config = model_config(name, width=64, heads=4, layers=1)
    measured = cost(config, VOCAB, tokens)
    forward, update = by_hand(config, tokens)
    assert measured.inference_flops == pytest.approx(forward, rel=0.02)
    assert measured.training_flops == pytest.approx(update, rel=0.02)
    assert measured.answer_flops == measured.inference_flops * measured.steps


def test_inner_widths_may_be_rounded_to_less() -> None:
    config = model_config("ponder-mlp", width=64, heads=4, layers=1, inner_multiple=64)
    assert inner_width(64, config) == 192 and inner_width(31, config) == 128
    measured = cost(config, VOCAB, 30)
    assert measured.inference_flops == pytest.approx(by_hand(config, 30)[0], rel=0.02)
    published = cost(config.model_copy(update={"inner_multiple": 256}), VOCAB, 30)
    assert measured.inference_flops < 0.7 * published.inference_flops


def test_measured_flops_at_paper_width() -> None:
    config = model_config("ponder")
    measured = cost(config, VOCAB, 81)
    forward, update = by_hand(config, 81)
    assert measured.inference_flops == pytest.approx(forward, rel=0.02)
    assert measured.training_flops == pytest.approx(update, rel=0.02)


@pytest.mark.parametrize("horizon", [(1, 1), (2, 4)])
def test_an_update_costs_what_its_horizon_reaches(horizon: tuple[int, int]) -> None:
    config = model_config("ponder", width=64, heads=4, layers=1, l_horizon=horizon[0], h_horizon=horizon[1])
    assert cost(config, VOCAB, 30).training_flops == pytest.approx(by_hand(config, 30)[1], rel=0.02)


def kept_by_real_tensors(model: Reasoner, batch: int) -> int:
    """Bytes that the graph of a real ACT step holds on to."""
    held: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        held[storage.data_ptr()] = storage
        return tensor

    inputs, rows = torch.ones(batch, model.tokens, dtype=torch.int64), torch.zeros(batch, model.config.width)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
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


def test_real_tensors_take_as_many_flops_as_the_ones_without_data() -> None:
    config = model_config("ponder", width=64, heads=4, layers=1)
    model = Reasoner(config, VOCAB, 30).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(model.start(torch.arange(3)), torch.ones(3, 30, dtype=torch.int64), torch.zeros(3, 64))
    assert cost(config, VOCAB, 30).inference_flops == pytest.approx(counter.get_total_flops() / 3, rel=0.001)


def test_activation_memory_follows_the_horizon_and_not_the_cycles() -> None:
    def kept(**changes: Any) -> int:
        return cost(model_config("ponder", width=64, heads=4, layers=1, **changes), VOCAB, 30).activations

    once, twice = kept(h_horizon=1), kept(h_horizon=2)
    assert 1.8 < twice / once < 2.1
    assert kept(h_cycles=3) == twice


def test_the_table_is_counted_apart() -> None:
    config = model_config("ponder", width=32, heads=2, layers=1)
    small, large = cost(config, VOCAB, 9), cost(config, VOCAB, 9, task_ids=1000)
    assert large.parameters == small.parameters == sum(p.numel() for p in Reasoner(config, VOCAB, 9).parameters())
    assert (small.table, large.table) == (32, 32_000)
