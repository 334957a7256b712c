"""Puzzles that ask for steps: one per ACT step, each judged by what it should come to, neither more nor fewer."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ponder.base import rng
from ponder.base.errors import UserError
from ponder.base.runtime import Runtime
from ponder.config.resolve import Config, resolve
from ponder.data import Dataset, build
from ponder.domains.contract import Batch, Ints, Tokens
from ponder.evaluation.records import Settings, picked_steps, run_batch
from ponder.inference.engine import Checker, Engine, Full, Seen
from ponder.model import losses
from ponder.training import slots as slots_module
from ponder.training.loop import gather_gradients, new_run
from ponder.training.micro import Depth
from ponder.training.state import Run
from tests.support.rounding import agree, limits
from tests.training.test_train import resumes_exactly

CPU = Runtime(torch.device("cpu"))


def life(**changes: dict[str, Any]) -> Config:
    small: dict[str, dict[str, Any]] = {
        "data": {"configurations": 200, "min_side": 4, "max_side": 4, "max_steps": 8, "val": 8, "eval_size": 8},
        "model": {"width": 8, "max_steps": 6},
        "train": {"batch": 8, "updates": 12, "warmup": 0, "save_every": 4, "eval_every": 12, "log_every": 1},
        "eval": {"examples": 4},
    }
    merged = {section: {**values, **changes.get(section, {})} for section, values in small.items()}
    return resolve("life-8x8-mini", None, merged)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return Dataset.open(build(life().data, tmp_path_factory.mktemp("data")))


def generation(board: Any) -> Any:
    """Life's rule, cell by cell."""
    side = len(board)
    around = [(a, b) for a in (-1, 0, 1) for b in (-1, 0, 1) if a or b]
    new = np.zeros_like(board)
    for r in range(side):
        for c in range(side):
            alive = sum(board[r + a, c + b] for a, b in around if 0 <= r + a < side and 0 <= c + b < side)
            new[r, c] = alive == 3 or (alive == 2 and board[r, c])
    return new


def cells(tokens: Tokens, side: int = 4) -> Any:
    """The board in the first positions of a sequence: rows of cells with a separator after each."""
    return (np.append(tokens, 0)[: side * (side + 1)].reshape(side, side + 1)[:, :side] == 2).astype(np.int64)


def test_the_path_is_the_rule_applied_again_and_again_and_then_stays(dataset: Dataset) -> None:
    batch = dataset.source("train").fetch(np.arange(20), np.zeros(20, dtype=np.int64))
    path = dataset.domain.path(batch.inputs, 6)
    for inputs, labels, steps in zip(batch.inputs, batch.labels, path, strict=True):
        board, asked = cells(inputs), int(dataset.domain.format(inputs)[-2:])
        for number, answer in enumerate(steps, 1):
            board = generation(board) if number <= asked else board
            assert (cells(answer) == board).all()
        if asked <= 6:
            assert (steps[-1] == labels).all()


def loaded(config: Config, dataset: Dataset) -> Run:
    fresh = new_run(config, dataset.domain, CPU, torch.float32)
    gather_gradients(fresh, dataset.source("train"), Depth(config.model.max_steps, 1), None, CPU, "float32")
    return fresh


def test_each_step_has_its_own_labels_and_gradient(dataset: Dataset) -> None:
    """Two updates by hand: the loss of the second step is against the second generation."""
    config = life(train={"clip": None})
    fresh = loaded(config, dataset)
    slots, model = fresh.slots[0], fresh.model
    going = ~slots.done
    assert going.any() and slots.done.any()
    before, inputs, done = slots.carry, slots.inputs.clone(), slots.done.clone()
    gather_gradients(fresh, dataset.source("train"), Depth(6, 1), None, CPU, "float32")
    found = fresh.weights.grad.clone()

    start = before  # the slots that were done have started over in it
    second = dataset.domain.path(slots.inputs.numpy().astype(np.uint8), 2)
    labels = torch.from_numpy(np.where(done.numpy()[:, None], second[:, 0], second[:, 1]).astype(np.int64))
    assert (slots.inputs[~done] == inputs[~done]).all()

    def oracle() -> list[torch.Tensor]:
        fresh.weights.grad.zero_()
        step = model(start, slots.inputs, model.table[slots.task_ids])
        total = losses.losses(step.logits, labels, None, None, None, 0.5, "softmax").total
        (total / config.train.batch).backward()
        return [fresh.weights.grad.clone()]

    agree([found], oracle(), limits(oracle, model.state_dict().values()))


def test_resume_stays_exact(dataset: Dataset, tmp_path: Path) -> None:
    config, data_dir = life(), dataset.path.parent
    resumes_exactly(config, data_dir, tmp_path)


def test_a_puzzle_gets_the_steps_it_asks_for(dataset: Dataset) -> None:
    """Under a policy it leaves at that step; at the full budget its answer stays from there on."""
    fresh = new_run(life(), dataset.domain, CPU, torch.float32)
    model, domain = fresh.model.eval(), dataset.domain
    inputs = np.stack([domain.parse(f".O../.OO./..O./....:{steps:02d}") for steps in (1, 3, 4)])
    left = Engine(model, domain, 8, Checker(), 6).run(inputs)
    assert left.steps.tolist() == [1, 3, 4]
    answers: list[Tokens] = []

    def watch(seen: Seen) -> None:
        answers.append(seen.answers)

    full = Engine(model, domain, 8, Full(), 6).run(inputs, watch=watch)
    for row, asked in enumerate((1, 3, 4)):
        assert (answers[asked - 1][row] == left.answers[row]).all()
        assert all((answers[at][row] == left.answers[row]).all() for at in range(asked, 6))
    assert full.steps.tolist() == [6, 6, 6]


def test_the_most_confident_step_is_not_before_the_one_that_is_asked_for(dataset: Dataset) -> None:
    """What stands there earlier is the board of another generation, however sure the model is of it."""
    fresh = new_run(life(), dataset.domain, CPU, torch.float32)
    index = np.arange(8)
    batch = dataset.source("in_range").fetch(index, index * 0)
    asked = [int(dataset.domain.format(row)[-2:]) for row in batch.inputs]
    records, _ = run_batch(fresh.model.eval(), dataset.domain, batch, index, Settings(steps=6, batch=8))
    assert max(asked) > 1, asked
    assert (picked_steps(records)["best_full"] + 1 >= asked).all()


@pytest.mark.parametrize("train", [{"supervise": "last"}, {"winners": 2}])
def test_what_skips_steps_is_refused(train: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="halting asked has an answer for every step"):
        life(train=train)


def test_domains_without_steps_are_refused() -> None:
    config = resolve("sudoku-mini", "ponder-rule")
    with pytest.raises(UserError, match="halting asked needs a domain whose puzzles ask for steps"):
        new_run(config, config.data.make(), CPU, torch.float32)


@pytest.mark.parametrize(("most", "room"), [(1, 2**24), (3, 2**24), (8, 2**24), (8, 1)])
def test_a_slot_gets_the_example_that_its_refill_names_however_many_are_made_ahead(
    most: int, room: int, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the epochs to come: 8 slots of a few steps each are through a small dataset soon."""
    monkeypatch.setattr(slots_module, "MOST_AHEAD", most)
    monkeypatch.setattr(slots_module, "ROOM_AHEAD", room)
    config, source, calls = life(), dataset.source("train"), []
    fresh = new_run(config, dataset.domain, CPU, torch.float32)
    (slots,) = fresh.slots
    kept = source.fetch

    def fetch(index: Ints, epoch: Ints) -> Batch:
        calls.append(len(index))
        return kept(index, epoch)

    monkeypatch.setattr(source, "fetch", fetch)
    for _ in range(60):
        gather_gradients(fresh, source, Depth(6, 1), None, CPU, "float32")
        index, epoch = rng.drawn(config.seed, len(source), 8, slots.ids, slots.refills)
        wanted = kept(index, epoch)
        for name in ("inputs", "labels", "task_ids"):
            assert (getattr(slots, name).numpy() == getattr(wanted, name)).all()
        assert slots.beside is not None
        assert (slots.beside.numpy() == dataset.domain.path(wanted.inputs, 6)).all()
    each = most if room > 1 else 1
    assert calls[0] == 8 * each and slots.refills.min() > 8
    assert sum(calls) < 2 * (slots.refills + 1 + each).sum(), "half of what is held may be made again"
    assert each == 1 or len(calls) < 40
