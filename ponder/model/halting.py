"""When an example is done thinking, and how sure its answer is: the one rule for training, engine and evaluation."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ponder.model import kernels
from ponder.model.losses import log_partition
from ponder.model.reasoner import Carry, Step


def halts(step: Step) -> Tensor:
    """[B] where the halting head would stop: halting beats going on, or is likelier than not where the model has no
    logit for going on. Without a head: where the puzzle asks for no more steps, or nowhere."""
    return stops(step.over, step.q_halt, step.q_continue, step.logits[:, 0, 0])


def stops(over: Tensor | None, q_halt: Tensor | None, q_continue: Tensor | None, shaped: Tensor) -> Tensor:
    """The same from what it depends on; `shaped` like the result."""
    if over is not None:
        return over
    if q_halt is None:
        return torch.zeros_like(shaped, dtype=torch.bool)
    return q_halt > (0 if q_continue is None else q_continue)


@dataclass(frozen=True)
class Read:
    """What can be read off a step."""

    answers: Tensor
    """[B, tokens] the likeliest symbols."""
    confidence: Tensor
    """[B] the halting logit; without a halting head, the mean log-probability of the answer's tokens."""
    energy: Tensor
    """[B] the negative log partition of the logits, mean over the tokens."""


def read(step: Step) -> Read:
    if lib := kernels.served(step.logits):
        answers, likely, energy = kernels.read_out(lib, step.logits)
    else:
        logits = step.logits.float()
        answers, energy = logits.argmax(dim=-1), -log_partition(logits).mean(dim=-1)
        likely = (logits.amax(dim=-1) - logits.logsumexp(dim=-1)).mean(dim=-1)
    return Read(answers, confident(likely if step.q_halt is None else step.q_halt.float()), energy)


def confident(sure: Tensor) -> Tensor:
    """A diverged model never is."""
    return torch.where(sure.isnan(), -torch.inf, sure)


@torch.no_grad()
def residual(before: Carry, after: Carry) -> Tensor:
    """[B] |z' - z| / |z| of the whole state, z_H and z_L at all positions: 0 at a fixed point. NaN without states."""
    old, new = before.states.held, after.states.held
    if old and (lib := kernels.served(*old, *new, rows=old[0].shape[-1:])):
        parts = [kernels.moved(lib, *pair) for pair in zip(old, new, strict=True)]
        by, size = (torch.stack(each).sum(dim=0) for each in zip(*parts, strict=True))
        return (by / size).sqrt()
    return residual_squared(before, after).sqrt()


def residual_squared(before: Carry, after: Carry) -> Tensor:
    """[B] Its square, which has a gradient at 0 too."""
    moved = size = torch.zeros(len(after.key), device=after.key.device)
    for old, new in zip(before.states.held, after.states.held, strict=True):
        moved, size = moved + _squared(new - old), size + _squared(old)
    return moved / size


def _squared(z: Tensor) -> Tensor:
    return z.float().flatten(1).square().sum(dim=1)


def logit(probability: float) -> float:
    return math.log(probability / (1 - probability))
