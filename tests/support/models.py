"""Small models and batches that the tests of the model share."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ponder.config.resolve import model_preset
from ponder.config.schema import ModelConfig
from ponder.model.reasoner import Carry, Reasoner, Step

VOCAB, TOKENS, TASKS = 7, 9, 3
PRESETS = ("dense", "hrm", "trm", "trm-mlp", "urm", "urm-one-state", "ponder")
SMALL: dict[str, Any] = {"width": 16, "heads": 2, "expansion": 1.0, "layers": 2}


def preset(name: str, **changes: Any) -> ModelConfig:
    """A model preset as it stands."""
    return ModelConfig(**{**model_preset(name, "paper")["model"], **changes})


def small(name: str = "ponder", **changes: Any) -> ModelConfig:
    """A model preset's switches at a width that takes milliseconds."""
    return preset(name, **{**SMALL, **changes})


def build(config: ModelConfig, seed: int = 0, tokens: int = TOKENS) -> Reasoner:
    """A model in which every tensor is random, the halting head and the puzzle table too."""
    torch.manual_seed(seed)
    model = Reasoner(config, VOCAB, tokens, TASKS)
    with torch.no_grad():
        model.table.normal_()
        if model.q_head is not None:
            model.q_head.weight.normal_()
    return model


@dataclass(frozen=True)
class Batch:
    inputs: Tensor
    labels: Tensor
    task_ids: Tensor
    keys: Tensor

    def take(self, index: Tensor) -> "Batch":
        return Batch(self.inputs[index], self.labels[index], self.task_ids[index], self.keys[index])


def batch(size: int = 3, tokens: int = TOKENS, seed: int = 0) -> Batch:
    """Random puzzles without padding, each with a key of its own."""
    g = torch.Generator().manual_seed(seed)
    inputs, labels = (torch.randint(1, VOCAB, (size, tokens), generator=g) for _ in range(2))
    keys = torch.randint(-(2**62), 2**62, (size,), generator=g)
    return Batch(inputs, labels, torch.arange(size) % TASKS, keys)


def advance(model: Reasoner, b: Batch, carry: Carry | None = None, **kwargs: Any) -> Step:
    step: Step = model(model.start(b.keys) if carry is None else carry, b.inputs, model.table[b.task_ids], **kwargs)
    return step


def gradients(model: Reasoner, value: Tensor) -> dict[str, Tensor]:
    """The gradient of every parameter; zeros where none arrives."""
    named = dict(model.named_parameters())
    found = torch.autograd.grad(value, list(named.values()), allow_unused=True, retain_graph=True)
    return {
        name: torch.zeros_like(p) if grad is None else grad
        for (name, p), grad in zip(named.items(), found, strict=True)
    }


@torch.no_grad()
def trajectory(model: Reasoner, inputs: Tensor, task_ids: Tensor, steps: int) -> list[Step]:
    """Outputs after each of `steps` ACT steps from a fresh carry, halting off."""
    was = model.training
    model.eval()
    carry = model.start(torch.zeros(len(inputs), dtype=torch.int64))
    out = list[Step]()
    for _ in range(steps):
        out.append(model(carry, inputs, model.table[task_ids]))
        carry = out[-1].carry
    model.train(was)
    return out
