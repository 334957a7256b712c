"""Puzzles with several right answers: training against the one that the model is nearest to."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ponder.base.errors import UserError
from ponder.base.runtime import Runtime
from ponder.config.resolve import Config, resolve
from ponder.data import Dataset, build
from ponder.domains.contract import Tokens
from ponder.model import losses
from ponder.training.loop import gather_gradients, new_run
from ponder.training.micro import Depth
from ponder.training.slots import RIGHT
from tests.support.rounding import agree, limits
from tests.training.test_train import resumes_exactly

CPU = Runtime(torch.device("cpu"))


def arithmetic(**changes: dict[str, Any]) -> Config:
    small: dict[str, dict[str, Any]] = {
        "data": {"max_operands": 4, "train": 200, "val": 8, "eval_size": 8},
        "model": {"width": 8, "heads": 1, "inner_multiple": 8, "max_steps": 2},
        "train": {"batch": 16, "updates": 12, "warmup": 0, "save_every": 4, "eval_every": 12, "log_every": 1},
        "eval": {"examples": 4},
    }
    merged = {section: {**values, **changes.get(section, {})} for section, values in small.items()}
    return resolve("arithmetic-3-5-mini", None, merged)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return Dataset.open(build(arithmetic().data, tmp_path_factory.mktemp("data")))


def all_right(dataset: Dataset, puzzle: Tokens) -> set[tuple[int, ...]]:
    """Every way to fill in the operators, as far as the checker accepts it."""
    places = np.flatnonzero(puzzle == 1)
    found = set()
    for operators in product(range(2, 6), repeat=len(places)):
        answer = np.zeros_like(puzzle)
        answer[places] = operators
        if dataset.domain.check(puzzle[None], answer[None])[0]:
            found.add(tuple(answer.tolist()))
    return found


def test_all_right_answers_are_known(dataset: Dataset) -> None:
    puzzles = dataset.source("train").fetch(np.arange(30), np.zeros(30, dtype=np.int64)).inputs
    several = 0
    for puzzle, answers in zip(puzzles, dataset.domain.right(puzzles, RIGHT), strict=True):
        wanted, found = all_right(dataset, puzzle), [tuple(each) for each in answers.tolist() if any(each)]
        assert len(found) == min(len(wanted), RIGHT) and set(found) <= wanted
        several += len(wanted) > 1
    assert several, "in none of these is there a choice"


@pytest.mark.parametrize("probabilities", ["softmax", "stablemax"])
def test_the_nearest_is_the_likeliest(probabilities: losses.Probabilities) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(20, 4, 6, generator=generator, dtype=torch.float64)
    answers = torch.randint(1, 6, (20, 3, 4), generator=generator)
    answers[:, :, 0] = 0  # not supervised
    answers[:7, 2] = 0  # and of these there are two
    logs = losses.log_stablemax(logits) if probabilities == "stablemax" else logits.log_softmax(dim=-1)
    for row, found in enumerate(losses.nearest(logits, answers, probabilities)):
        real = [answer for answer in answers[row].tolist() if any(answer)]
        chances = [sum(float(logs[row, at, token]) for at, token in enumerate(each) if token) for each in real]
        assert found.tolist() == real[int(np.argmax(chances))]


def test_the_gradient_is_that_of_the_nearest(dataset: Dataset) -> None:
    config = arithmetic(train={"clip": None})
    run = new_run(config, dataset.domain, CPU, torch.float32)
    gather_gradients(run, dataset.source("train"), Depth(2, 1), None, CPU, "float32")
    found, slots, model = run.weights.grad.clone(), run.slots[0], run.model
    inputs = slots.inputs.clone()
    start = model.start(slots.carry.key)
    others = []

    def oracle() -> list[torch.Tensor]:
        run.weights.grad.zero_()
        step = model(start, inputs, model.table[slots.task_ids])
        logs, labels = step.logits.log_softmax(dim=-1), torch.zeros_like(inputs)
        for row, puzzle in enumerate(inputs.numpy().astype(np.uint8)):
            right = torch.tensor(sorted(all_right(dataset, puzzle)))
            chances = [float(logs[row].detach().gather(-1, each[:, None])[each > 0].sum()) for each in right]
            labels[row] = right[int(np.argmax(chances))]
        others.append((labels != slots.labels).any())
        total = losses.losses(step.logits, labels, step.q_halt, None, None, 0.5, "softmax").total
        (total / config.train.batch).backward()
        return [run.weights.grad.clone()]

    agree([found], oracle(), limits(oracle, model.state_dict().values()))
    assert others[0], "every nearest answer is the label"


def test_resume_stays_exact(dataset: Dataset, tmp_path: Path) -> None:
    resumes_exactly(arithmetic(), dataset.path.parent, tmp_path)


def test_what_has_other_labels_is_refused() -> None:
    with pytest.raises(UserError, match=r"train\.answers nearest needs halting by the model and winners 1"):
        arithmetic(train={"winners": 2}, model={"noise": 0.1})
    with pytest.raises(UserError, match=r"train\.answers nearest needs halting by the model"):
        resolve("life-8x8-mini", None, {"train": {"answers": "nearest"}})


def test_a_domain_without_an_exact_solver_is_refused() -> None:
    config = resolve("arc1-mini", None, {"train": {"answers": "nearest"}})
    with pytest.raises(UserError, match="arc1 has no exact solver"):
        new_run(config, config.data.make(), CPU, torch.float32)
