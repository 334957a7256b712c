"""The model's newer switches (docs/newer-ideas.md), each against its definition written out plainly."""

import pytest
import torch

from ponder.model import halting
from ponder.model.layers import Layer
from ponder.model.losses import log_partition
from ponder.training.optimisers import undecayed
from tests.support.models import advance, batch, build, small

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
    again, fresh = model.reset(carry, where, keys), model.start(keys)
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
        assert float(halting.energy(step)[i]) == pytest.approx(-float(mean), rel=1e-5)
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
        scales = [p for n, p in build(small(norm="pre", layers=layers)).named_parameters() if n.endswith(".scale")]
        assert len(scales) == layers
        assert float(torch.cat(scales).detach().sigmoid().prod()) == pytest.approx(0.25)
    model = build(small(norm="pre"))
    assert all(undecayed(n) for n, _ in model.named_parameters() if n.endswith("scale"))
