"""Models and run folders of random weights whose answers and halting change from step to step."""

import json
from pathlib import Path

import numpy as np
import torch

from ponder import checkpoint
from ponder.base.runtime import Runtime
from ponder.config.resolve import Config
from ponder.domains.contract import Tokens
from ponder.evaluation.records import Records
from ponder.inference.engine import Engine, Full, Seen
from ponder.model.reasoner import Reasoner
from tests.conftest import tiny
from tests.support.rounding import Said, sayings

HERE = Runtime(torch.device("cpu"))


def made_model(config: Config, seed: int = 0) -> Reasoner:
    """Random weights, such that answers and halting change with the input and from step to step."""
    torch.manual_seed(seed)
    domain = config.data.make()
    model = Reasoner(config.model, len(domain.vocab), domain.seq_len, domain.task_ids).requires_grad_(False)
    for parameter in model.parameters():
        parameter.mul_(1.5)
    model.embed.mul_(8)
    for name in ("init_h", "init_l")[: config.model.states]:
        getattr(model, name).mul_(0.1)
    model.head.weight[0] = 0  # padding is not what it says
    if model.q_head is not None:
        torch.nn.init.normal_(model.q_head.weight, std=0.5)
        torch.nn.init.zeros_(model.q_head.bias)
    model.table.normal_()
    return model


def made_run(config: Config, folder: Path, seed: int = 0) -> Path:
    """A run folder with a checkpoint of random weights, EMA and online."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config.flat()), encoding="utf-8")
    for name, number in (("weights", seed), ("ema", seed + 100)):
        tensors = {k: v for k, v in made_model(config, number).state_dict().items() if not k.startswith("high.")}
        checkpoint.write_tensors(checkpoint.aside(folder / "best"), name, tensors)
    checkpoint.complete(folder / "best", {"update": 7})
    return folder


def with_right_answers(model: Reasoner, inputs: Tokens, labels: Tokens, steps: int) -> Tokens:
    """Labels of which some are what the model says at some step, so that no score is trivially 0."""
    seen: list[Seen] = []
    Engine(model, tiny().data.make(), len(inputs), Full(), steps).run(inputs, watch=seen.append)
    rng = np.random.default_rng(0)
    out = labels.copy()
    for row in range(len(out)):
        says = np.where(labels[row] != 0, seen[rng.integers(steps)].answers[row], 0)
        if rng.random() < 0.6 and ((says != 0) == (labels[row] != 0)).all():
            out[row] = says
    return out


def told(model: Reasoner, inputs: Tokens, steps: int) -> list[Said]:
    """What the model says of each puzzle, and of what rounding can turn nothing."""
    return sayings(model, torch.from_numpy(inputs.astype(np.int64)), torch.zeros(len(inputs), dtype=torch.int64), steps)


def mostly(sure: list[Said]) -> bool:
    """Whether there was something to compare."""
    return min(float(s.answers.float().mean()) for s in sure) > 0.8


def agree_where_sure(a: Records, b: Records, sure: list[Said]) -> None:
    assert mostly(sure)
    for step, said in enumerate(sure):
        assert (a.exact[:, step] == b.exact[:, step])[said.answers.numpy()].all()
        assert (a.halts[:, step] == b.halts[:, step])[said.halting.numpy()].all()
        assert (np.abs(a.confidence[:, step] - b.confidence[:, step]) <= said.reach.numpy()).all()
