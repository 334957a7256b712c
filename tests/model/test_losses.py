"""Losses against float64 and hand-written formulas."""

import torch

from ponder.model.losses import continue_target, log_stablemax, losses
from tests.support.rounding import EPS

ROUNDED = 16 * EPS
"""A dozen operations in float32, each of which may be half a bit off."""


def oracle(logits: torch.Tensor) -> torch.Tensor:
    x = logits.to(torch.float64)
    s = torch.where(x >= 0, x + 1, 1 / (1 - x))
    return torch.log(s / s.sum(dim=-1, keepdim=True))


def test_stablemax_in_float32_agrees_with_float64() -> None:
    torch.manual_seed(0)
    for scale in (0.01, 1.0, 30.0, 300.0):
        logits = torch.randn(2000, 12) * scale
        wanted = oracle(logits)
        assert (log_stablemax(logits).double() - wanted).abs().max() < ROUNDED * max(1.0, float(wanted.abs().max()))


def test_stablemax_gradient_agrees_with_float64() -> None:
    logits = (torch.randn(50, 12) * 10).requires_grad_()
    double = logits.detach().double().requires_grad_()
    log_stablemax(logits)[:, 3].sum().backward()
    oracle(double)[:, 3].sum().backward()
    assert logits.grad is not None and double.grad is not None
    assert (logits.grad.double() - double.grad).abs().max() < ROUNDED


def test_stablemax_gradient_where_its_halves_meet() -> None:
    """At exactly 0 and exactly 1, which bfloat16 logits often are, by differences in float64."""
    values = torch.tensor([[1.0, 0.0, -1.0, 2.0, -3.0]])
    for picked in range(5):
        logits = values.clone().requires_grad_()
        log_stablemax(logits)[0, picked].backward()
        h = 1e-5
        step = h * torch.eye(5, dtype=torch.float64)
        differences = (oracle(values + step)[:, picked] - oracle(values - step)[:, picked]) / (2 * h)
        assert logits.grad is not None
        assert (logits.grad[0] - differences).abs().max() < 10 * h  # the second derivative jumps there


def test_unsupervised_positions_do_not_count() -> None:
    torch.manual_seed(1)
    logits, labels = torch.randn(3, 5, 7), torch.randint(1, 7, (3, 5))
    labels[0, 2:] = 0
    before = losses(logits, labels, None, None, None, 0.5)
    changed = logits.clone()
    changed[0, 2:] += 100
    after = losses(changed, labels, None, None, None, 0.5)
    assert torch.equal(before.total, after.total)
    expected = -oracle(logits).gather(-1, labels[..., None])[..., 0]
    mean = expected[0, :2].mean() + expected[1].mean() + expected[2].mean()
    assert abs(float(before.total) - float(mean)) < ROUNDED * float(mean)


def test_exact_needs_every_supervised_position() -> None:
    labels = torch.tensor([[1, 2, 0], [1, 2, 0], [0, 0, 0]])
    logits = torch.zeros(3, 3, 4)
    logits[0, 0, 1] = logits[0, 1, 2] = logits[0, 2, 3] = 1
    logits[1, 0, 1] = logits[1, 1, 3] = 1
    out = losses(logits, labels, torch.zeros(3), None, None, 0.5)
    assert out.exact.tolist() == [True, False, False]
    assert out.token.tolist() == [1.0, 0.5, 0.0]


def test_continue_target_is_the_best_of_the_next_step_but_halting_at_the_last() -> None:
    target = continue_target(torch.tensor([1.0, 1.0]), torch.tensor([2.0, 2.0]), torch.tensor([False, True]))
    assert torch.equal(target, torch.sigmoid(torch.tensor([2.0, 1.0])))
