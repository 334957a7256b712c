"""Adam-atan2 and the puzzle table against scalar oracles; every parameter in exactly one place."""

import itertools
import math

import pytest
import torch

from ponder.config.schema import ModelConfig, TrainConfig
from ponder.model.reasoner import Reasoner
from ponder.training.optimisers import AdamAtan2, Average, PuzzleTable, Schedule, Weights, clip, swapped, undecayed
from tests.support.rounding import EPS, FORMULA, apart

pytestmark = pytest.mark.numeric


def small(**kwargs: object) -> Reasoner:
    torch.manual_seed(0)
    config = ModelConfig.model_validate({"width": 8, "heads": 2, "layers": 1, "expansion": 1.0, **kwargs})
    return Reasoner(config, 5, 4, 6)


def scalar_adam(p: float, grads: list[float], lr: float, wd: float, b1: float, b2: float, form: str) -> float:
    """One number through Adam-atan2 in double precision, written from the formula."""
    m = v = 0.0
    for t, g in enumerate(grads, start=1):
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g * g
        p *= 1 - lr * wd
        root = math.sqrt(v / (1 - b2**t))
        if form == "outside":
            p -= lr / (1 - b1**t) * math.atan2(m, root)
        else:
            p -= lr * math.atan2(m / (1 - b1**t), root)
    return p


@pytest.mark.parametrize("form", ["outside", "inside"])
def test_adam_atan2_agrees_with_a_scalar_oracle(form: str) -> None:
    model = small().double()
    weights = Weights(model)
    config = TrainConfig.model_validate({"updates": 10, "atan2": form, "beta2": 0.99, "weight_decay": 0.3})
    optimiser = AdamAtan2(weights, config)
    start = weights.value.clone()
    torch.manual_seed(1)
    grads = [torch.randn_like(weights.value) * 10.0 ** (k - 3) for k in range(6)]
    for grad in grads:
        weights.grad.copy_(grad)
        optimiser.update(lr=0.01)
    for at in (0, 7, weights.decayed - 1, weights.decayed, len(start) - 1):
        wd = 0.3 if at < weights.decayed else 0.0
        expected = scalar_adam(float(start[at]), [float(g[at]) for g in grads], 0.01, wd, 0.9, 0.99, form)
        assert abs(float(weights.value[at]) - expected) < FORMULA


def test_inside_form_agrees_with_the_public_package() -> None:
    package = pytest.importorskip("adam_atan2_pytorch")
    model = small().double()
    weights = Weights(model)
    config = TrainConfig.model_validate({"updates": 10, "atan2": "inside", "beta2": 0.99, "weight_decay": 0.0})
    optimiser = AdamAtan2(weights, config)
    theirs = torch.nn.Parameter(weights.value.clone())
    other = package.AdamAtan2([theirs], lr=0.01, betas=(0.9, 0.99), a=1.0, b=1.0)
    for seed in range(5):
        grad = torch.randn(len(theirs), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        weights.grad.copy_(grad)
        theirs.grad = grad.clone()
        optimiser.update(lr=0.01)
        other.step()
    assert apart(weights.value, theirs) < FORMULA


def test_every_parameter_has_exactly_one_place_and_the_named_ones_do_not_decay() -> None:
    model = small()
    weights = Weights(model)
    names = [name for name, _ in model.named_parameters()]
    assert sorted(weights.names) == sorted(names) and len(set(weights.names)) == len(names)
    assert weights.value.numel() == sum(p.numel() for p in model.parameters())
    left_alone = [n for n in names if undecayed(n)]
    assert sorted(left_alone) == ["init_h", "init_l", "update.gate.bias"]
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    AdamAtan2(weights, TrainConfig.model_validate({"updates": 1, "weight_decay": 1.0})).update(lr=0.5)
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name] if name in left_alone else before[name] * 0.5), name


def test_gradients_of_the_model_land_in_the_flat_tensor() -> None:
    model = small(halting="halt", noise=0.0).train()
    weights = Weights(model)
    carry = model.start(torch.zeros(2, dtype=torch.int64))
    out = model(carry, torch.ones(2, 4, dtype=torch.int64), model.table[[0, 1]])
    out.logits.square().sum().backward()
    assert float(weights.named(weights.grad)["head.weight"].norm()) > 0
    assert weights.grad.data_ptr() == weights.named(weights.grad)[weights.names[0]].data_ptr()


def test_table_touches_only_the_rows_of_the_batch_and_sums_before_the_sign() -> None:
    model = small()
    model.table.uniform_(-1, 1)
    start = model.table.clone()
    table = PuzzleTable(model, TrainConfig.model_validate({"updates": 1, "weight_decay": 0.1, "ema": 0.9}))
    ids = torch.tensor([3, 1, 3])
    grads = torch.stack([torch.full((8,), 1.0), torch.full((8,), -2.0), torch.full((8,), -3.0)])
    table.update(ids, grads, lr=0.01, t=1)
    for row in (0, 2, 4, 5):
        assert torch.equal(model.table[row], start[row])
    for row in (1, 3):  # 1 - 3 < 0
        assert apart(model.table[row], start[row].double() * (1 - 0.001) + 0.01) < 4 * EPS


def test_lazy_average_of_the_table_equals_the_plain_one() -> None:
    model = small()
    config = TrainConfig.model_validate({"updates": 1, "ema": 0.9})
    table = PuzzleTable(model, config)
    plain = model.table.double()
    generator = torch.Generator().manual_seed(0)
    for t in range(1, 12):
        ids = torch.randint(0, 6, (2,), generator=generator)
        table.update(ids, torch.randn(2, 8, generator=generator), 0.05, t)
        plain = 0.9 * plain + 0.1 * model.table
        assert apart(table.averaged(t), plain) < 4 * t * EPS  # a few operations for each update


def test_average_and_swap_leave_the_weights_as_they_were() -> None:
    model = small()
    weights = Weights(model)
    average = Average(weights, 0.5)
    before = weights.value.clone()
    weights.value.add_(1)
    average.update(weights)
    assert apart(average.value, before.double() + 0.5) < 4 * EPS
    held, table = weights.value.clone(), model.table
    with swapped(weights, model, average.value, table + 1):
        assert torch.equal(
            dict(model.named_parameters())["embed"].reshape(-1), weights.named(average.value)["embed"].reshape(-1)
        )
        assert torch.equal(model.table, table + 1)
    assert torch.equal(weights.value, held) and model.table is table


def test_schedule_warms_up_and_reaches_its_floor() -> None:
    for kind in ("cosine", "exponential"):
        schedule = Schedule(updates=100, warmup=10, min_ratio=0.1, kind=kind)
        values = [schedule(u) for u in range(101)]
        assert values[0] == 0.1 and values[9] == 1.0
        assert all(a >= b for a, b in itertools.pairwise(values[9:]))
        assert abs(values[100] - 0.1) < FORMULA
    assert Schedule(100, 0, 1.0, "cosine")(57) == 1.0


def test_clip_reports_the_norm_before() -> None:
    grad = torch.tensor([3.0, 4.0])
    assert float(clip(grad, 1.0)) == 5.0
    assert abs(float(grad.norm()) - 1) < 4 * EPS  # 1e-6 / 5 of which is the guard against a division by zero
    assert float(clip(grad, None)) == float(torch.linalg.vector_norm(grad))
