"""When an example is done thinking, and how sure its answer is: the one rule for training, engine and evaluation."""

import math

import torch
from torch import Tensor

from ponder.model.reasoner import Step


def halts(step: Step) -> Tensor:
    """[B] where the halting head would stop: halting beats going on, or is likelier than not where the model has no
    logit for going on. Nowhere without a halting head."""
    if step.q_halt is None:
        return torch.zeros(len(step.logits), dtype=torch.bool, device=step.logits.device)
    return step.q_halt > (0 if step.q_continue is None else step.q_continue)


def confidence(step: Step) -> Tensor:
    """[B] the halting logit; without a halting head, the mean log-probability of the predicted tokens."""
    if step.q_halt is not None:
        sure = step.q_halt.float()
    else:
        sure = step.logits.float().log_softmax(dim=-1).amax(dim=-1).mean(dim=-1)
    return torch.where(sure.isnan(), -torch.inf, sure)  # a diverged model is never confident


def logit(probability: float) -> float:
    return math.log(probability / (1 - probability))
