"""The model's newer switches (docs/newer-ideas.md), each against its definition written out plainly."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ponder.config.schema import ModelConfig
from ponder.model import halting
from ponder.model.layers import Layer
from ponder.model.losses import log_partition
from ponder.model.recurrence import Parts, States, recur
from ponder.training.optimisers import undecayed
from tests.support.models import advance, batch, build, gradients, small
from tests.support.rounding import FORMULA, apart

# init: random ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ponder", "urm-one-state"])
def test_random_states_are_normal_numbers_of_the_key_alone(name: str) -> None:
    model = build(small(name, init="random", prefix=2))
    keys = torch.arange(200) * 7919
    states = model.start(keys).states
    made = [z for z in (states.h, states.l) if z is not None]
    assert len(made) == model.config.states
    few = model.start(keys[[3, 150, 3]]).states
    for z, some in zip(made, (few.h, few.l), strict=False):
        assert z.shape == (200, model.length, 16) and some is not None
        assert torch.equal(some, z[[3, 150, 3]]), "a state depends on its neighbours"
        assert len(torch.unique(z[:, 0, 0])) == 200
        flat = z.flatten().double()
        deviation = len(flat) ** -0.5
        assert abs(float(flat.mean())) < 5 * deviation and abs(float(flat.square().mean()) - 1) < 8 * deviation
        assert abs(float((flat.square() < 1).double().mean()) - 0.6827) < 5 * deviation
    if len(made) == 2:
        assert abs(float((made[0] * made[1]).mean())) < 5 * deviation, "z_H and z_L draw the same numbers"
    assert not any(n.startswith("init") for n, _ in model.named_parameters())


def test_a_slot_that_starts_over_draws_anew_and_the_others_stay() -> None:
    model, b = build(small(init="random")), batch(4)
    carry = advance(model, b).carry.detach()
    where, keys = torch.tensor([True, False, False, True]), b.keys + 1
    again, fresh = carry.take(torch.arange(4)), model.start(keys)
    model.reset(again, where.nonzero()[:, 0], keys[where])
    for new, old, start in (
        (again.states.h, carry.states.h, fresh.states.h),
        (again.states.l, carry.states.l, fresh.states.l),
    ):
        assert new is not None and old is not None and start is not None
        assert torch.equal(new[where], start[where]) and torch.equal(new[~where], old[~where])
    assert again.steps.tolist() == [0, 1, 1, 0]


def test_the_other_weights_start_as_without_it() -> None:
    """Variants of a study differ in the switch alone."""
    fixed, random = (build(small(init=init)).state_dict() for init in ("fixed", "random"))
    assert fixed.keys() == random.keys() and all(torch.equal(fixed[k], random[k]) for k in fixed)


# What selection looks at ----------------------------------------------------------------------------------------------


@torch.no_grad()
def test_residual_and_energy_are_what_they_say() -> None:
    model, b = build(small()), batch(3)
    carry = model.start(b.keys)
    step = advance(model, b, carry)
    for i in range(3):
        before, after = (
            torch.cat([z[i].flatten() for z in (c.states.h, c.states.l) if z is not None]).double()
            for c in (carry, step.carry)
        )
        wanted = (after - before).norm() / before.norm()
        assert float(halting.residual(carry, step.carry)[i]) == pytest.approx(float(wanted), rel=1e-5)
        sums = [sum(x + 1 if x >= 0 else 1 / (1 - x) for x in row) for row in step.logits[i].tolist()]
        assert float(log_partition(step.logits)[i].exp().sum()) == pytest.approx(sum(sums), rel=1e-5)
        mean = sum(torch.tensor(sums, dtype=torch.float64).log()) / len(sums)
        assert float(halting.read(step).energy[i]) == pytest.approx(-float(mean), rel=1e-5)
    assert float(halting.residual(carry, carry).max()) == 0
    dense = build(small("dense"))
    assert halting.residual(dense.start(b.keys), advance(dense, b).carry).isnan().all()


# norm: pre ------------------------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("name", ["trm", "urm-one-state"])
def test_the_residual_scale_keeps_states_bounded(name: str) -> None:
    """What a plain residual stream does not do: without a norm of the state itself, it grows with every step."""
    b = batch(2)
    for layers in (1, 3):
        model = build(small(name, norm="pre", layers=layers))
        sizes = []
        for open_ in (False, True):
            if open_:
                for layer in model.low.layers:
                    assert isinstance(layer, Layer) and layer.scale is not None
                    layer.scale.fill_(torch.inf)  # all of x stays
            carry = model.start(b.keys)
            for _ in range(8):
                carry = advance(model, b, carry).carry
            assert carry.states.h is not None
            sizes.append(float(carry.states.h.norm(dim=-1).max()))
        assert sizes[0] < 100 and not sizes[1] < 1000, sizes


def test_a_block_starts_by_keeping_a_quarter_of_its_input() -> None:
    for layers in (1, 2, 4):
        scales = [
            p.detach() for n, p in build(small(norm="pre", layers=layers)).named_parameters() if n.endswith(".scale")
        ]
        assert len(scales) == layers
        assert float(torch.cat(scales).sigmoid().prod()) == pytest.approx(0.25)
    model = build(small(norm="pre"))
    assert all(undecayed(n) for n, _ in model.named_parameters() if n.endswith("scale"))


# gradient: implicit ---------------------------------------------------------------------------------------------------

SIZE = 5


def linear_parts(low: Tensor, high: Tensor) -> Parts:
    """A recurrence whose modules are matrices."""
    same: Callable[[Tensor], Tensor] = lambda z: z  # noqa: E731
    update: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, None]] = lambda old, new, total: (new, None)  # noqa: E731
    return Parts(lambda z: z @ low.T, lambda z: z @ high.T, update, same, same, same)


@pytest.mark.parametrize("states", [1, 2])
def test_many_terms_give_the_gradient_of_the_solved_fixed_point(states: int) -> None:
    """z_L = A (z_L + z_H + x), z_H = B (z_H + z_L), or z = A (z + x): solved as one linear system, by another road."""
    off: dict[str, Any] = {} if states == 2 else {"bound": None, "gate": False, "post_norm": False}
    config = small(states=states, gradient="implicit", neumann=80, l_cycles=1, l_horizon=1, **off)
    g = torch.Generator().manual_seed(0)
    a, b = (0.25 * torch.linalg.qr(torch.randn(SIZE, SIZE, generator=g, dtype=torch.float64)).Q for _ in range(2))
    x, weighing = (torch.randn(1, SIZE, generator=g, dtype=torch.float64) for _ in range(2))
    leaves = [t.requires_grad_() for t in (a, b, x)]
    eye, none = torch.eye(SIZE, dtype=torch.float64), torch.zeros(SIZE, SIZE, dtype=torch.float64)
    if states == 2:
        system = torch.cat((torch.cat((eye - a, -a), dim=1), torch.cat((-b, eye - b), dim=1)))
        right = torch.cat((a @ x[0], none[0]))
        low, high = torch.linalg.solve(system, right).chunk(2)
    else:
        high, low = torch.linalg.solve(eye - a, a @ x[0]), none[0]
    wanted = torch.autograd.grad((high * weighing[0]).sum(), leaves, allow_unused=True, retain_graph=True)
    start = States(high.detach()[None], low.detach()[None] if states == 2 else None)
    for terms, near in ((80, True), (2, False)):
        out = recur(linear_parts(a, b), start, x, config.model_copy(update={"neumann": terms})).states.h
        assert out is not None and apart(out, high[None]) < FORMULA
        found = torch.autograd.grad((out * weighing).sum(), leaves, allow_unused=True)
        for one, other in zip(found, wanted, strict=True):
            assert (one is None) == (other is None)
            if one is not None and other is not None:
                assert (apart(one, other) < FORMULA) == near


@pytest.mark.parametrize("name", ["ponder", "trm-mlp", "urm-one-state"])
def test_no_terms_is_the_horizon_of_one_cycle(name: str) -> None:
    config = small(name)
    one = config.model_copy(update={"h_horizon": 1, "l_horizon": config.l_cycles})
    implicit = config.model_copy(update={"gradient": "implicit"})
    found = []
    for c in (one, implicit, implicit.model_copy(update={"neumann": 3})):
        model = build(c).train()
        found.append(gradients(model, advance(model, batch()).logits.square().sum()))
    assert all(torch.equal(found[0][n], found[1][n]) for n in found[0])
    assert any(not torch.equal(found[0][n], found[2][n]) for n in found[0])


def kept(config: ModelConfig) -> int:
    """Numbers that the graph of one ACT step holds on to."""
    model, held = build(config).train(), dict[int, int]()

    def keep(tensor: Tensor) -> Tensor:
        held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        step = advance(model, batch())
    assert step.logits.requires_grad
    return sum(held.values())


def test_memory_does_not_grow_with_the_cycles() -> None:
    few, many = (small(h_cycles=n, h_horizon=1, gradient="implicit", neumann=4) for n in (2, 9))
    assert kept(few) == kept(many)
    assert kept(small(h_cycles=9, h_horizon=9)) > 4 * kept(many)
