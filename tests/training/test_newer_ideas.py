"""Training's newer switches (docs/newer-ideas.md), each against its definition written out plainly."""

from pathlib import Path
from typing import Any

import pytest
import torch

from ponder.base.runtime import Runtime
from ponder.config.resolve import Config
from ponder.data import Dataset
from ponder.model import losses
from ponder.model.reasoner import Step
from ponder.training.loop import Depth, Limits, gather_gradients, new_run
from ponder.training.state import Run
from tests.conftest import tiny
from tests.training.test_train import final, rows, run, same

CPU = Runtime(torch.device("cpu"))
PLAIN: dict[str, object] = {"dropout": 0.0, "state_dropout": 0.0, "noise": 0.0, "max_steps": 3}
SWITCHES: dict[str, dict[str, dict[str, object]]] = {
    "init": {"model": {"init": "random"}},
    "supervise": {"train": {"supervise": "last", "grow": "steps"}},
}


@pytest.mark.parametrize("name", SWITCHES)
def test_resume_stays_exact(name: str, dataset: Dataset, data_dir: Path, tmp_path: Path) -> None:
    config = tiny(**SWITCHES[name])
    assert config.key() != tiny().key()
    assert run(config, tmp_path / "whole", data_dir).finished
    for count in (5, 3):
        assert not run(config, tmp_path / "parts", data_dir, Limits(updates=count)).finished
    assert run(config, tmp_path / "parts", data_dir).finished
    assert rows(tmp_path / "parts") == rows(tmp_path / "whole")
    assert same(final(tmp_path / "parts"), final(tmp_path / "whole"))


def one_update(config: Config, dataset: Dataset, depth: Depth | None = None) -> tuple[Run, torch.Tensor]:
    """A fresh run and the gradient that one update adds up, as one vector."""
    fresh = new_run(config, dataset.domain, CPU, torch.float32)
    depth = depth or Depth(config.model.max_steps, config.model.h_cycles)
    gather_gradients(fresh, dataset.source("train"), depth, None, CPU, "float32")
    return fresh, fresh.weights.grad.clone()


def by_hand(fresh: Run, objective: Any) -> torch.Tensor:
    """The gradient of an objective that is written out here."""
    fresh.weights.grad.zero_()
    objective.backward()
    return fresh.weights.grad.clone()


def answer_loss(step: Step, labels: torch.Tensor) -> torch.Tensor:
    """Answer and halting loss, without a continue loss, summed over the examples."""
    return losses.losses(step.logits, labels, step.q_halt, None, None, 0.5).total


# supervise: last ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 3])
def test_only_the_last_step_is_supervised(steps: int, dataset: Dataset) -> None:
    """So many steps from the start state, all but the last without a graph; then every slot takes a new example."""
    config = tiny(model={**PLAIN, "halting": "halt"}, train={"supervise": "last", "clip": None})
    fresh, found = one_update(config, dataset, Depth(steps, 2))
    slots, model = fresh.slots[0], fresh.model
    table = model.table[slots.task_ids]
    carry = model.start(slots.carry.key)
    for _ in range(steps - 1):
        carry = model(carry, slots.inputs, table).carry.detach()
    wanted = by_hand(fresh, answer_loss(model(carry, slots.inputs, table), slots.labels) / config.train.batch)
    assert torch.equal(found, wanted) and found.any()
    assert slots.done.all() and slots.carry.steps.tolist() == [steps] * config.train.batch
