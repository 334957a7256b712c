"""Cross-entropy, of stablemax or softmax, and the halting losses."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ponder.model import kernels

Probabilities = Literal["stablemax", "softmax"]
"""How logits become probabilities."""


def log_stablemax(logits: Tensor) -> Tensor:
    """log of s(x) / sum s(x), with s(x) = x + 1 for x >= 0 and 1 / (1 - x) below.

    Taking log s(x) as +-log1p(|x|) keeps float32 within 1e-6 of float64, which not every device has. The two halves
    are split by value, not by `where`, whose gradient is not a number at x = 1, a value bfloat16 logits often have.
    """
    above, below = _halves(logits)
    return torch.log1p(above) - torch.log1p(-below) - _log_sum(above, below)


def log_partition(logits: Tensor) -> Tensor:
    """log sum s(x), over the last axis."""
    return _log_sum(*_halves(logits)).squeeze(-1)


def _halves(logits: Tensor) -> tuple[Tensor, Tensor]:
    x = logits.float()
    above = x.clamp(min=0)
    return above, x - above


def _log_sum(above: Tensor, below: Tensor) -> Tensor:
    s = (1 + above) / (1 - below)
    return s.sum(dim=-1, keepdim=True).log()


@dataclass(frozen=True)
class Losses:
    """Sums over the examples of the batch; divide by the global batch to get the objective's mean."""

    total: Tensor
    answer: Tensor
    halt: Tensor
    cont: Tensor
    exact: Tensor
    """[B] whether every supervised position is right."""
    token: Tensor
    """[B] share of the supervised positions that are right."""


def losses(
    logits: Tensor,
    labels: Tensor,
    q_halt: Tensor | None,
    q_continue: Tensor | None,
    continue_target: Tensor | None,
    halting_weight: float,
    probabilities: Probabilities = "stablemax",
) -> Losses:
    """Labels of 0 are not supervised. The halting target is whether the answer is exactly right now."""
    supervised = labels != 0
    count = supervised.sum(dim=-1).clamp(min=1)
    right = (logits.argmax(dim=-1) == labels) & supervised
    answer = answer_losses(logits, labels, probabilities).sum()
    exact = (right.sum(dim=-1) == supervised.sum(dim=-1)) & supervised.any(dim=-1)
    halt = cont = torch.zeros_like(answer)
    if q_halt is not None:
        halt = F.binary_cross_entropy_with_logits(q_halt, exact.to(q_halt.dtype), reduction="sum")
    if q_continue is not None and continue_target is not None:
        cont = F.binary_cross_entropy_with_logits(q_continue, continue_target, reduction="sum")
    total = answer + halting_weight * (halt + cont)
    return Losses(total, answer.detach(), halt.detach(), cont.detach(), exact, right.sum(dim=-1) / count)


def answer_losses(logits: Tensor, labels: Tensor, probabilities: Probabilities = "stablemax") -> Tensor:
    """[B] the cross-entropy of each answer, mean over its supervised positions."""
    if lib := kernels.served(logits):
        return kernels.answer_loss(lib, logits, labels, probabilities, plain_answer_losses)
    return plain_answer_losses(logits, labels, probabilities)


def plain_answer_losses(logits: Tensor, labels: Tensor, probabilities: Probabilities = "stablemax") -> Tensor:
    supervised = labels != 0
    logs = log_stablemax(logits) if probabilities == "stablemax" else logits.float().log_softmax(dim=-1)
    picked = logs.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    return -(torch.where(supervised, picked, 0.0).sum(dim=-1) / supervised.sum(dim=-1).clamp(min=1))


def nearest(logits: Tensor, answers: Tensor, probabilities: Probabilities = "stablemax") -> Tensor:
    """[B, tokens] of the right answers of each example, [B, n, tokens], the one that the model finds likeliest, of
    equals the first; zeros are none."""
    likely = torch.stack([answer_losses(logits, each, probabilities) for each in answers.unbind(dim=1)], dim=1)
    best = likely.masked_fill((answers == 0).all(dim=-1), torch.inf).argmin(dim=1)
    return answers[torch.arange(len(best), device=best.device), best]


def continue_target(q_halt: Tensor, q_continue: Tensor, last: Tensor) -> Tensor:
    """What continuing is worth, from the next step's halting logits; at the last step halting is all there is."""
    return torch.sigmoid(torch.where(last, q_halt, torch.maximum(q_halt, q_continue)))
