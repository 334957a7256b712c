"""The model: its size, the reach of gradients, the state update, and the whole of it against a plain rewriting."""

import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ponder.config.schema import ModelConfig
from ponder.model import reasoner
from ponder.model.published import load_official
from ponder.model.reasoner import Carry, Reasoner
from ponder.model.recurrence import Parts, Recurred, States, Update, recur
from tests.support import golden, naive
from tests.support.models import PRESETS, TOKENS, VOCAB, advance, batch, build, gradients, preset, small, trajectory
from tests.support.rounding import FORMULA, agree, apart, limits

# Size and initial values ----------------------------------------------------------------------------------------------


def parameters(config: ModelConfig) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in Reasoner(config, vocab=11, tokens=81).parameters())


@pytest.mark.parametrize(
    ("config", "millions"),
    [
        (preset("hrm"), "27.3"),
        (preset("trm"), "6.83"),
        (preset("urm"), "6.84"),
        (preset("urm-one-state"), "6.84"),
        (preset("ponder"), "13.6"),
        (preset("ponder", modules="separate", h_cycles=8, l_cycles=8), "27.3"),
    ],
    ids=["hrm", "trm", "urm", "urm-one-state", "ponder", "joint"],
)
def test_parameter_counts_of_the_design(config: ModelConfig, millions: str) -> None:
    assert config.width == 512
    digits = len(millions.split(".")[1])
    assert f"{parameters(config) / 1e6:.{digits}f}" == millions


def test_dense_is_as_large_as_the_separate_modules() -> None:
    assert parameters(preset("dense")) == pytest.approx(parameters(preset("hrm")), rel=0.001)


def test_initial_values() -> None:
    torch.manual_seed(0)
    model = Reasoner(small(width=128, heads=4), 500, TOKENS)
    layer: Any = model.low.layers[0]
    for weight, inner in ((model.embed, 128), (layer.attention.qkv.weight, 128), (layer.mlp.up.weight, 128)):
        assert float(weight.detach().std()) * math.sqrt(inner) == pytest.approx(1, abs=0.03)
        assert weight.abs().max() * math.sqrt(inner) < 2 / 0.8796 + 1e-4
    assert model.q_head is not None
    assert not model.q_head.weight.any()
    assert (model.q_head.bias == -5).all()
    assert not model.table.any()
    assert model.update is not None
    assert model.update.gate is not None
    assert not model.update.gate.bias.any()
    assert float(model.update.gate.weight.detach().std()) * math.sqrt(128) == pytest.approx(0.1, rel=0.25)


def test_initial_states_are_parameters_in_ponder_and_buffers_in_the_published_models() -> None:
    for name in PRESETS:
        model = build(small(name))
        trained = {n for n, _ in model.named_parameters()} & {"init_h", "init_l"}
        assert trained == ({"init_h", "init_l"} if name == "ponder" else set())


# Against the plain rewriting ------------------------------------------------------------------------------------------

VARIANTS: dict[str, ModelConfig] = {
    **{name: small(name) for name in PRESETS},
    "ponder-separate": small(modules="separate"),
    "ponder-learned-positions": small(positions="learned"),
    "ponder-no-positions": small(positions="none"),
    "ponder-input-conv": small(input_conv=True),
    "ponder-without-bound": small(bound=None),
    "ponder-without-gate": small(gate=False),
    "ponder-without-norm": small(post_norm=False),
    "ponder-bound-only": small(gate=False, post_norm=False),
    "ponder-key-mask": small(key_mask=True),
    "ponder-pre-norm": small(norm="pre"),
    "trm-pre-norm": small("trm", norm="pre"),
    "trm-mlp-pre-norm": small("trm-mlp", norm="pre"),
}


def full(config: ModelConfig) -> ModelConfig:
    return config.model_copy(update={"h_horizon": config.h_cycles, "l_horizon": config.l_cycles})


@pytest.mark.numeric
@pytest.mark.parametrize("name", VARIANTS)
def test_full_horizon_is_plain_autograd_through_a_naive_unroll(name: str) -> None:
    config = full(VARIANTS[name])
    model, b = build(config).train(), batch()
    inputs = b.inputs.clone()
    inputs[0, 6:] = 0
    shape = (len(inputs), model.length, config.width)
    weighing = torch.randn(len(inputs), TOKENS, VOCAB, generator=torch.Generator().manual_seed(1))

    def results(logits: Tensor, q: Tensor | None, states: States, sources: list[Tensor]) -> list[Tensor]:
        value = (weighing * logits).sum() + (0 if q is None else q.square().sum())
        found = torch.autograd.grad(value, sources, allow_unused=True)
        kept = [t for t in (q, states.h, states.l) if t is not None]
        return [logits, *kept, *(torch.zeros_like(s) if g is None else g for s, g in zip(sources, found, strict=True))]

    def ours() -> list[Tensor]:
        rows = model.table[b.task_ids].requires_grad_()
        step = model(model.start(b.keys), inputs, rows)
        return results(step.logits, step.q_halt, step.carry.states, [*model.parameters(), rows])

    def plain() -> list[Tensor]:
        weights = naive.doubled(model)
        rows = weights["table"][b.task_ids]
        starts = [weights[n].expand(shape) if n in weights else None for n in ("init_h", "init_l")]
        step = naive.step(weights, config, starts[0], starts[1], inputs, rows)
        q = None if step.q is None else step.q[:, 0]
        sources = [*(weights[name] for name, _ in model.named_parameters()), rows]
        return results(step.logits, q, States(step.h, step.l), sources)

    agree(ours(), plain(), limits(ours, model.state_dict().values()))


@pytest.mark.numeric
@pytest.mark.parametrize("name", ["hrm", "trm", "urm-one-state", "ponder"])
def test_a_second_step_continues_from_the_carry(name: str) -> None:
    config = VARIANTS[name]
    model, b = build(config).eval(), batch()
    weights = naive.doubled(model)
    with torch.no_grad():
        first = advance(model, b)
        second = advance(model, b, first.carry)
        h, low = (None if z is None else z.double() for z in (first.carry.states.h, first.carry.states.l))
        plain = naive.step(weights, config, h, low, b.inputs, weights["table"][b.task_ids])
        within = limits(lambda: [advance(model, b, first.carry).logits], model.state_dict().values())
    agree([second.logits], [plain.logits], within)
    assert torch.equal(second.carry.steps, torch.full((3,), 2))
    assert torch.equal(second.carry.key, b.keys)


# Reach of gradients ---------------------------------------------------------------------------------------------------


def probed(model: Reasoner) -> list[tuple[str, Tensor]]:
    """Add a zero tensor with a gradient of its own to the result of each application of a block, in order."""
    probes: list[tuple[str, Tensor]] = []

    def hook(name: str) -> Callable[[Any, Any, Tensor], Tensor]:
        def add(module: Any, args: Any, out: Tensor) -> Tensor:
            probe = torch.zeros(out.shape[-1], requires_grad=True)
            probes.append((name, probe))
            return out + probe

        return add

    model.low.register_forward_hook(hook("low"))
    if model.high is not model.low:
        model.high.register_forward_hook(hook("high"))
    return probes


GRID = [
    *(pytest.param(small(l_horizon=kl, h_horizon=kh), id=f"ponder-{kl}-{kh}") for kl in (1, 2) for kh in (1, 2, 3, 4)),
    *(
        pytest.param(small(modules="separate", l_horizon=kl, h_horizon=kh), id=f"separate-{kl}-{kh}")
        for kl, kh in ((1, 1), (2, 2), (1, 4))
    ),
    pytest.param(small("hrm"), id="hrm"),
    pytest.param(small("trm"), id="trm"),
    pytest.param(small("trm-mlp"), id="trm-mlp"),
    pytest.param(small("urm"), id="urm"),
    pytest.param(small("urm-one-state"), id="urm-one-state"),
]


@pytest.mark.parametrize("config", GRID)
def test_exactly_the_applications_within_the_horizon_receive_gradient(config: ModelConfig) -> None:
    model, b = build(config).train(), batch()
    probes = probed(model)
    step = advance(model, b)
    value = step.logits.square().sum()
    found = torch.autograd.grad(value, [probe for _, probe in probes], allow_unused=True)
    reached = [grad is not None for grad in found]
    assert all(grad is None or bool(grad.any()) for grad in found)  # out of reach means out of the graph

    expected = []
    for h in range(config.h_cycles):
        last = h >= config.h_cycles - config.h_horizon
        expected += [last and i >= config.l_cycles - config.l_horizon for i in range(config.l_cycles)]
        if config.states == 2:
            expected.append(last)
    assert reached == expected
    if config.modules == "separate":
        per_cycle = ["low"] * config.l_cycles + ["high"]
        assert [name for name, _ in probes] == per_cycle * config.h_cycles


@pytest.mark.numeric
@pytest.mark.parametrize("config", GRID[:8])
def test_forward_values_do_not_depend_on_the_horizon(config: ModelConfig) -> None:
    b = batch()
    other = build(small(l_horizon=1, h_horizon=1)).train()
    model = build(config).train()
    for _ in range(2):
        ours, theirs = advance(model, b), advance(other, b)
        assert torch.equal(ours.logits, theirs.logits)
        assert ours.carry.states.l is not None
        assert theirs.carry.states.l is not None
        assert torch.equal(ours.carry.states.l, theirs.carry.states.l)


def test_without_gradients_no_graph_is_built() -> None:
    model, b = build(small()), batch()
    with torch.no_grad():
        assert advance(model, b).logits.grad_fn is None


@pytest.mark.numeric
def test_horizons_shorten_the_gradient_of_the_naive_unroll() -> None:
    """K_H cycles of gradient are those of a model that starts from where the cycles before left the states."""
    config, b = small(h_cycles=4, l_cycles=2, h_horizon=1, l_horizon=2), batch()
    model = build(config).train()
    weights = naive.doubled(model)
    rows = weights["table"][b.task_ids].detach()
    shape = (len(rows), model.length, config.width)
    h, low = (weights[name].detach().expand(shape) for name in ("init_h", "init_l"))
    with torch.no_grad():
        before = naive.step(weights, config.model_copy(update={"h_cycles": 3}), h, low, b.inputs, rows)
    last = naive.step(weights, config.model_copy(update={"h_cycles": 1}), before.h, before.l, b.inputs, rows)

    def ours() -> list[Tensor]:
        logits = advance(model, b).logits
        return [logits, *gradients(model, logits.square().sum()).values()]

    named = [weights[name] for name, _ in model.named_parameters()]
    found = torch.autograd.grad(last.logits.square().sum(), named, allow_unused=True)
    wanted = [last.logits, *(torch.zeros_like(p) if g is None else g for p, g in zip(named, found, strict=True))]
    agree(ours(), wanted, limits(ours, model.state_dict().values()))


def test_initial_states_learn_only_where_the_horizon_covers_the_whole_first_step() -> None:
    b = batch()
    for config, step_number, expected in (
        (full(small()), 1, True),
        (full(small()), 2, False),
        (small(l_horizon=2, h_horizon=3), 1, False),
        (small(l_horizon=1, h_horizon=4), 1, False),
    ):
        model = build(config).train()
        step = advance(model, b)
        if step_number == 2:
            step = advance(model, b, step.carry.detach())
        found = gradients(model, step.logits.square().sum())
        assert bool(found["init_h"].any()) == bool(found["init_l"].any()) == expected


def test_fewer_cycles_can_be_asked_for() -> None:
    b = batch()
    ours = advance(build(small(h_cycles=4)).eval(), b, h_cycles=2)
    assert torch.equal(ours.logits, advance(build(small(h_cycles=2)).eval(), b).logits)


# The bounded, gated and normalised update -----------------------------------------------------------------------------

STATES = st.tuples(
    st.integers(0, 2**31), st.sampled_from([0.0, 1e-6, 1e-2, 1.0, 30.0]), st.sampled_from([1e-4, 1.0, 1e4])
)


def drawn(seed: int, old_size: float, change: float) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    old, delta, total = (torch.randn(2, 5, 16, generator=g, dtype=torch.float64) for _ in range(3))
    old = old * old_size
    return old, old + delta * change * torch.rand(2, 5, 1, generator=g, dtype=torch.float64), total


@pytest.mark.numeric
@settings(max_examples=150, deadline=None)
@given(state=STATES, tau=st.sampled_from([0.1, 0.7, 2.0]))
def test_the_relative_change_before_gate_and_norm_never_exceeds_tau(
    state: tuple[int, float, float], tau: float
) -> None:
    old, candidate, total = drawn(*state)
    new, ratio = Update(small(bound=tau, gate=False, post_norm=False))(old, candidate, total)
    size = old.norm(dim=-1) + 1e-8
    change = (new - old).norm(dim=-1)
    rounding = FORMULA * (tau * size + old.norm(dim=-1))
    assert (change <= tau * size + rounding).all()
    wanted = (candidate - old).norm(dim=-1)
    assert ratio is not None
    assert apart(ratio.squeeze(-1), wanted / size) < FORMULA
    within = wanted <= tau * size
    assert apart(new[within], candidate[within]) < FORMULA
    beyond = ~within
    if beyond.any():
        # It is shortened, not turned, and no further than needed.
        direction = (candidate - old)[beyond] / wanted[beyond][:, None]
        expected = old[beyond] + direction * (tau * size[beyond])[:, None]
        # Elements that cancel are as precise as the vector they belong to.
        assert ((new[beyond] - expected).norm(dim=-1) <= FORMULA * (1 + tau) * size[beyond]).all()


@pytest.mark.numeric
@settings(max_examples=60, deadline=None)
@given(state=STATES)
def test_gate_and_norm_follow_the_bound(state: tuple[int, float, float]) -> None:
    given = [t.float() for t in drawn(*state)]
    torch.manual_seed(1)
    update = Update(small())
    assert update.gate is not None
    torch.nn.init.normal_(update.gate.weight)
    old, candidate, total = (t.double() for t in given)
    bounded, _ = Update(small(gate=False, post_norm=False))(old, candidate, total)
    alpha = 1 / (1 + torch.exp(-(total @ update.gate.weight.double().T + update.gate.bias)))
    expected = naive.norm(old + alpha * (bounded - old))
    agree([update(*given)[0]], [expected], limits(lambda: [update(*given)[0]], [*given, *update.parameters()]))


@pytest.mark.numeric
@pytest.mark.parametrize("switches", [{}, {"gate": False}, {"gate": False, "post_norm": False}])
def test_the_scale_carries_no_gradient(switches: dict[str, Any]) -> None:
    config = small(**switches)
    torch.manual_seed(0)
    update = Update(config)
    old, candidate, total = (torch.randn(2, 5, 16).requires_grad_() for _ in range(3))
    r = (candidate - old).norm(dim=-1, keepdim=True) / (old.norm(dim=-1, keepdim=True) + 1e-8)
    assert (r > 0.7).all()
    weighing = torch.randn(old.shape)

    def by_hand(scale: Tensor) -> Tensor:
        delta = (candidate - old) * scale
        if update.gate is not None:
            delta = torch.sigmoid(update.gate(total)) * delta
        new = old + delta
        return (weighing * (naive.norm(new) if config.post_norm else new)).sum()

    scale = 0.7 / r

    def found() -> tuple[Tensor, ...]:
        return torch.autograd.grad((weighing * update(old, candidate, total)[0]).sum(), (old, candidate))

    ours, within = found(), limits(found, (old, candidate, total, *update.parameters()))
    constant = torch.autograd.grad(by_hand(scale.detach()), (old, candidate))
    flowing = torch.autograd.grad(by_hand(scale), (old, candidate))
    agree(ours, constant, within)
    assert all(apart(got, other) > 10 * limit for got, other, limit in zip(ours, flowing, within, strict=True))


def test_alpha_is_one_half_on_average_at_initialisation() -> None:
    torch.manual_seed(0)
    model = Reasoner(small(width=64, heads=4), VOCAB, TOKENS).eval()
    seen: list[Tensor] = []
    assert model.update is not None
    gate = model.update.gate
    assert gate is not None
    model.update.register_forward_hook(lambda module, args, out: seen.append(torch.sigmoid(gate(args[2]))))
    with torch.no_grad():
        advance_many = batch(64)
        model(model.start(advance_many.keys), advance_many.inputs, torch.randn(64, 64))
    alpha = torch.stack(seen)
    assert len(seen) == 8
    assert float(alpha.mean()) == pytest.approx(0.5, abs=0.02)
    assert float(alpha.std()) < 0.1
    assert float(alpha.std()) > 0.001  # it looks at its input


@pytest.mark.numeric
def test_states_are_normalised_after_each_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    b, ones = batch(), torch.ones(3, 1 + TOKENS)
    posts = []

    def spy(parts: Parts, *rest: Any) -> Recurred:
        posts.append(parts.post)
        return recur(parts, *rest)

    monkeypatch.setattr(reasoner, "recur", spy)
    normed, plain = advance(build(small()).eval(), b), advance(build(small(post_norm=False)).eval(), b)
    for state in (normed.carry.states.h, normed.carry.states.l):
        assert state is not None
        # The norm's own epsilon of 1e-5 leaves a mean square of m / (m + 1e-5).
        torch.testing.assert_close(state.square().mean(dim=-1), ones, rtol=1e-3, atol=0)
    assert plain.carry.states.l is not None
    assert (plain.carry.states.l.square().mean(dim=-1) - 1).abs().max() > 0.01
    # A block ends in a norm of its own, so that of z_H shows only on something else.
    z = 3 * torch.randn(3, 1 + TOKENS, 16)
    agree([posts[0](z)], [naive.norm(z.double())], limits(lambda: [posts[0](z)], [z]))
    assert torch.equal(posts[1](z), z)


# ponder with TRM's switches -------------------------------------------------------------------------------------------

TRM_SWITCHES: dict[str, Any] = {
    "layers": 2,
    "h_cycles": 3,
    "l_cycles": 6,
    "h_horizon": 1,
    "l_horizon": 6,
    "prefix": 16,
    "learned_init": False,
    "bound": None,
    "gate": False,
    "post_norm": False,
    "halting": "halt",
}


@pytest.mark.numeric
def test_ponder_with_every_stabiliser_off_and_trms_switches_is_trm_bit_for_bit() -> None:
    data = golden.compact("trm")
    published = load_official("trm", data["config"], golden.filled(data["shapes"]))
    said = {"width": 32, "heads": 2, "prefix": data["config"]["puzzle_emb_len"]}
    ours = Reasoner(ModelConfig(**{**TRM_SWITCHES, **said}), 7, 9, 3)
    ours.load_state_dict(published.state_dict())
    inputs, task_ids, labels = (torch.tensor(data[k]) for k in ("inputs", "task_ids", "labels"))
    steps = [trajectory(model, inputs, task_ids, steps=4) for model in (ours, published)]
    for mine, theirs in zip(*steps, strict=True):
        assert torch.equal(mine.logits, theirs.logits)
        assert mine.q_halt is not None
        assert theirs.q_halt is not None
        assert torch.equal(mine.q_halt, theirs.q_halt)
    labels = labels.masked_fill(labels == -100, 0)
    trained = [golden.first_step_gradients(model, inputs, labels, task_ids) for model in (ours, published)]
    assert torch.equal(trained[0].loss.total, trained[1].loss.total)
    assert torch.equal(trained[0].rows, trained[1].rows)
    assert trained[0].gradients.keys() == trained[1].gradients.keys()
    for name, gradient in trained[0].gradients.items():
        assert torch.equal(gradient, trained[1].gradients[name]), name


def test_the_trm_preset_is_those_switches() -> None:
    assert preset("trm").model_dump(exclude={"name"}) == ModelConfig(**TRM_SWITCHES).model_dump(exclude={"name"})


# What a configuration cannot be ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"width": 30},
        {"width": 6 * 8, "heads": 16},
        {"h_horizon": 5},
        {"l_horizon": 3},
        {"states": 1},
        {"states": 1, "gate": False, "bound": None},
        {"states": 0},
        {"mixer": "mlp", "key_mask": True},
        {"halting": "none", "max_steps": 1},
    ],
)
def test_impossible_combinations_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"width|rope|horizon|states 2|one step|attention mixer|halting loss"):
        ModelConfig(**changes)


def test_the_carry_is_states_steps_and_eight_bytes_of_key() -> None:
    b = batch()
    carry = build(small(dropout=0.5, state_dropout=0.5, noise=0.1)).train().start(b.keys)
    assert [f.name for f in fields(Carry)] == ["states", "steps", "key"]
    assert [f.name for f in fields(States)] == ["h", "l"]
    for state in (carry.states.h, carry.states.l):
        assert state is not None
        assert state.shape == (3, 1 + TOKENS, 16)
        assert state.dtype == torch.float32
    assert carry.key.shape == carry.steps.shape == (3,)
    assert carry.key.element_size() == 8
