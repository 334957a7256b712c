"""Recurrence-consistent dropout and noise: functions of an example's key, nothing else."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from ponder.base import rng
from ponder.config.schema import ModelConfig
from ponder.model import reasoner
from ponder.model.reasoner import Carry, Reasoner, _perturbed
from ponder.model.recurrence import Parts, Recurred, States, recur
from tests.support import naive
from tests.support.models import TOKENS, Batch, advance, batch, build, gradients, small
from tests.support.rounding import agree, apart, limits

DROPPING: dict[str, Any] = {"dropout": 0.3, "state_dropout": 0.2}


def masks_of(model: Reasoner, b: Batch, monkeypatch: pytest.MonkeyPatch, **kwargs: Any) -> list[tuple[Tensor, float]]:
    """Every mask that one ACT step makes, with its rate, in order."""
    made: list[tuple[Tensor, float]] = []
    make = rng.keep_mask

    def spy(key: Tensor, shape: tuple[int, ...], drop: float, dtype: torch.dtype) -> Tensor:
        mask = make(key, shape, drop, dtype)
        made.append((mask, drop))
        return mask

    with monkeypatch.context() as patch:
        patch.setattr(rng, "keep_mask", spy)
        advance(model, b, **kwargs)
    return made


# Dropout --------------------------------------------------------------------------------------------------------------


def test_masks_are_made_for_every_place_once_per_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """QKV output, attention residual, FFN middle and residual of each layer; x; z_H and z_L, shared over positions."""
    model, length = build(small(**DROPPING)).train(), 1 + TOKENS
    made = masks_of(model, batch(), monkeypatch)
    core = [tuple(mask.shape[1:]) for mask, rate in made if rate == 0.3]
    inner = model.low.layers[0].mlp.down.in_features  # type: ignore[union-attr]
    per_layer = [(length, 48), (length, 16), (length, inner), (length, 16)]
    assert sorted(core) == sorted([*per_layer, *per_layer, (length, 16)])
    assert [tuple(mask.shape[1:]) for mask, rate in made if rate == 0.2] == [(1, 16), (1, 16)]


def test_separate_modules_have_masks_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    made = masks_of(build(small(modules="separate", **DROPPING)).train(), batch(), monkeypatch)
    assert len(made) == 2 * 2 * 4 + 1 + 2


@pytest.mark.parametrize("modules", ["shared", "separate"])
def test_masks_differ_between_examples_layers_and_places(modules: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = masks_of(build(small(modules=modules, **DROPPING)).train(), batch(2), monkeypatch)
    for (one, _), (other, _) in itertools.combinations(made, 2):
        if one.shape == other.shape:
            assert not torch.equal(one, other)
    for mask, _ in made:
        assert not torch.equal(mask[0], mask[1])


def test_masks_are_the_same_at_every_step_and_follow_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    model, b = build(small(**DROPPING)).train(), batch(2)
    first = masks_of(model, b, monkeypatch)
    later = model.start(b.keys)
    third = masks_of(model, b, monkeypatch, carry=Carry(later.states, later.steps + 3, later.key))
    swapped = masks_of(model, b, monkeypatch, carry=model.start(b.keys.flip(0)))
    for (one, _), (other, _), (turned, _) in zip(first, third, swapped, strict=True):
        assert torch.equal(one, other)
        assert torch.equal(one, turned.flip(0))


@pytest.mark.parametrize("rate", [0.01, 0.25, 0.6])
def test_rate_and_scale(rate: float) -> None:
    mask = rng.keep_mask(torch.arange(64), (50, 100), rate, torch.float32)
    kept = mask != 0
    assert torch.equal(mask[kept], torch.full_like(mask[kept], 1 / (1 - rate)))
    share = float(kept.float().mean())
    assert abs(share - (1 - rate)) < 5 * (rate * (1 - rate) / mask.numel()) ** 0.5
    assert float(mask.mean()) == pytest.approx(1, abs=0.01)


def from_masks(model: Reasoner, made: list[tuple[Tensor, float]]) -> naive.Dropped:
    """The spied masks in the oracle's form. Order: low's layers, high's layers, x, then z_H, z_L."""
    core = [mask for mask, rate in made if rate == model.config.dropout]
    state = [mask for mask, rate in made if rate == model.config.state_dropout]
    names = ("qkv", "attention", "middle", "ffn")
    layers = [dict(zip(names, core[i : i + 4], strict=True)) for i in range(0, len(core) - 1, 4)]
    if model.config.positions == "rope":
        for layer in layers:
            layer["qkv"] = _pairs_apart(layer["qkv"], model.config)
    count = model.config.layers
    return naive.Dropped({"low": layers[:count], "high": layers[-count:]}, core[-1], state[0], state[1])


def _pairs_apart(mask: Tensor, config: ModelConfig) -> Tensor:
    """With RoPE the two numbers that turn together lie side by side in queries and keys, and so in their mask."""
    batch, length, _ = mask.shape
    parts = mask.view(batch, length, 3, config.heads, -1)
    turned = parts.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
    return torch.cat((turned[:, :, :2], parts[:, :, 2:]), dim=2).reshape(batch, length, -1)


@pytest.mark.numeric
@pytest.mark.parametrize(
    "config",
    [
        pytest.param(small(h_horizon=4, **DROPPING), id="shared"),
        pytest.param(small(modules="separate", h_horizon=4, **DROPPING), id="separate"),
        pytest.param(small(mlp_conv=True, h_horizon=4, **DROPPING), id="convolution"),
        pytest.param(small(mixer="mlp", positions="none", h_horizon=4, **DROPPING), id="mlp-mixer"),
        pytest.param(small(norm="pre", h_horizon=4, **DROPPING), id="pre-norm"),
        pytest.param(small(positions="learned", gate=False, h_horizon=4, **DROPPING), id="learned-positions"),
    ],
)
def test_one_mask_for_all_cycles_at_the_places_of_the_design(
    config: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the oracle, which multiplies by the very same masks in every cycle: values and gradients."""
    model, b = build(config).train(), batch()
    weights = naive.doubled(model)
    dropped = from_masks(model, masks_of(model, b, monkeypatch))
    starts = [weights[name].expand(3, model.length, 16) for name in ("init_h", "init_l")]
    plain = naive.step(weights, config, starts[0], starts[1], b.inputs, weights["table"][b.task_ids], dropped)
    without = naive.step(weights, config, starts[0], starts[1], b.inputs, weights["table"][b.task_ids])

    def ours() -> list[Tensor]:
        logits = advance(model, b).logits
        return [logits, *gradients(model, logits.square().sum()).values()]

    named = [weights[name] for name, _ in model.named_parameters()]
    found = torch.autograd.grad(plain.logits.square().sum(), named, allow_unused=True)
    wanted = [plain.logits, *(torch.zeros_like(p) if g is None else g for p, g in zip(named, found, strict=True))]
    within = limits(ours, model.state_dict().values())
    agree(ours(), wanted, within)
    assert apart(ours()[0], without.logits) > 10 * within[0]


@pytest.mark.numeric
def test_dropout_and_noise_are_gone_in_eval() -> None:
    b = batch()
    plain = build(small()).eval()
    noisy = build(small(**DROPPING, noise=0.1)).eval()
    one, other = advance(plain, b), advance(noisy, b)
    assert torch.equal(one.logits, other.logits)
    assert not torch.equal(advance(noisy.train(), b).logits, one.logits)


def test_with_all_rates_zero_training_and_evaluation_agree() -> None:
    b, model = batch(), build(small())
    assert torch.equal(advance(model.train(), b).logits, advance(model.eval(), b).logits)


@pytest.mark.numeric
def test_nothing_random_depends_on_the_order_of_calls() -> None:
    model, b = build(small(**DROPPING, noise=0.05)).train(), batch()
    first = advance(model, b).logits
    torch.manual_seed(99)
    advance(model, batch(5, seed=1))
    assert torch.equal(advance(model, b).logits, first)


# Noise ----------------------------------------------------------------------------------------------------------------


def started_with(
    model: Reasoner, b: Batch, monkeypatch: pytest.MonkeyPatch, **kwargs: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """x, z_H and z_L as the recurrence receives them."""
    seen: list[tuple[Tensor, States]] = []

    def spy(parts: Parts, states: States, x: Tensor, *rest: Any) -> Recurred:
        seen.append((x, states))
        return recur(parts, states, x, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(reasoner, "recur", spy)
        advance(model, b, **kwargs)
    x, states = seen[0]
    assert states.h is not None
    assert states.l is not None
    return x.detach(), states.h.detach(), states.l.detach()


@pytest.mark.numeric
def test_noise_has_per_element_deviation_eta_times_the_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    eta, b = 0.02, batch(200)
    model = build(small(noise=eta)).train()
    # States of very different sizes per position, so that the norm must be that of the position.
    carry = model.start(b.keys)
    sizes = torch.logspace(-2, 2, 1 + TOKENS)[None, :, None]
    assert carry.states.h is not None
    assert carry.states.l is not None
    carry = Carry(States(carry.states.h * sizes, carry.states.l / sizes), carry.steps, carry.key)
    noisy = started_with(model, b, monkeypatch, carry=carry)
    clean = started_with(model.eval(), b, monkeypatch, carry=carry)
    drawn = []
    for after, before in zip(noisy, clean, strict=True):
        unit = (after - before) / (eta * before.norm(dim=-1, keepdim=True))
        count = unit.numel()
        assert abs(float(unit.mean())) < 5 / count**0.5
        assert float(unit.std()) == pytest.approx(1, abs=5 / (2 * count) ** 0.5)
        assert float((unit**4).mean()) == pytest.approx(3, abs=0.3)
        per_position = unit.std(dim=(0, 2))
        assert per_position.min() > 0.9
        assert per_position.max() < 1.1
        drawn.append(unit.flatten())
    for one, other in itertools.combinations(drawn, 2):
        assert abs(float((one * other).mean())) < 5 / len(one) ** 0.5
    # No two examples share their noise.
    first, second = drawn[0].view(200, -1)[:2]
    assert abs(float((first * second).mean())) < 5 / len(first) ** 0.5


def test_noise_is_a_function_of_key_and_step(monkeypatch: pytest.MonkeyPatch) -> None:
    model, b = build(small(noise=0.02)).train(), batch()
    fresh = model.start(b.keys)
    again = started_with(model, b, monkeypatch)
    next_step = Carry(fresh.states, fresh.steps + 1, fresh.key)
    other_key = Carry(fresh.states, fresh.steps, fresh.key + 1)
    for one, same in zip(again, started_with(model, b, monkeypatch), strict=True):
        assert torch.equal(one, same)
    for carry in (next_step, other_key):
        for one, different in zip(again, started_with(model, b, monkeypatch, carry=carry), strict=True):
            assert not (one == different).any(dim=-1).all()


def test_noise_can_be_asked_for_when_evaluating() -> None:
    model, b = build(small()).eval(), batch()
    clean, noisy, again = advance(model, b), advance(model, b, noise=0.05), advance(model, b, noise=0.05)
    assert torch.equal(noisy.logits, again.logits)
    assert not torch.equal(noisy.logits, clean.logits)
    training = build(small(noise=0.05)).train()
    assert torch.equal(advance(training, b, noise=0.0).logits, clean.logits)


def test_the_norm_in_the_noise_carries_no_gradient() -> None:
    u = torch.randn(2, 3, 16, requires_grad=True)
    (gradient,) = torch.autograd.grad(_perturbed(u, torch.arange(2), 0.5).sum(), u)
    assert torch.equal(gradient, torch.ones_like(u))
