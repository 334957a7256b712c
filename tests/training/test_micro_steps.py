"""What may be done after every micro-step instead of once an update, against the definition written out plainly."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from ponder.base.errors import UserError
from ponder.base.runtime import Runtime
from ponder.config.schema import TrainConfig
from ponder.data import Dataset
from ponder.training.loop import apply_gradients, gather_gradients, new_run
from ponder.training.micro import Depth, micro_step
from ponder.training.optimisers import PuzzleTable
from ponder.training.slots import refill
from ponder.training.state import Run
from tests.conftest import tiny
from tests.support.processes import by_ranks
from tests.support.rounding import EPS, apart
from tests.training.test_optimisers import small
from tests.training.test_train import close, gradients, held_gradients, moved, resumes_exactly, words_of

CPU = Runtime(torch.device("cpu"))
LIMIT = 0.05
DEPTH = Depth(3, 2)


def started(dataset: Dataset, *apart: str, mode: str = "independent") -> Run:
    train = {"accumulate": 4, "accumulation": mode, "per_micro_step": apart, "clip": LIMIT, "table_lr": 0.1}
    return new_run(tiny(train=train), dataset.domain, CPU, torch.float32)


def parts_of(run: Run, dataset: Dataset, step_table: bool = False) -> list[Tensor]:
    """The gradient of every micro-step; the table steps in between if it is to."""
    found = []
    for micro in range(4):
        slots = run.slots[micro % len(run.slots)]
        run.weights.grad.zero_()
        refill(slots, run.model, dataset.source("train"), run.config, None)
        moment = micro_step(slots, run.model, run.weights, run.config, DEPTH, CPU, "float32")
        found.append(run.weights.grad.clone())
        if step_table:
            lr, decay = run.config.train.table_lr, run.config.train.weight_decay
            assert len(run.model.table) == 1
            run.model.table = run.model.table * (1 - lr * decay) - lr * moment.row_grads.sum(dim=0).sign()
    return found


@pytest.mark.parametrize("mode", ["independent", "trajectory"])
def test_each_gradient_is_clipped_to_its_share(mode: str, dataset: Dataset) -> None:
    parts = parts_of(started(dataset, mode=mode), dataset)
    lengths = [float(part.double().norm()) for part in parts]
    assert min(lengths) > LIMIT / 4, "nothing to clip"
    run = started(dataset, "clip", mode=mode)
    gathered = gather_gradients(run, dataset.source("train"), DEPTH, None, CPU, "float32")
    shares = [part.double() * LIMIT / 4 / (length + 1e-6) for part, length in zip(parts, lengths, strict=True)]
    within = len(parts[0]) * EPS  # a norm sums as many squares, in any order (Higham, section 3.1)
    assert apart(run.weights.grad, torch.stack(shares).sum(dim=0)) < within
    assert gathered.norm == pytest.approx(float(torch.stack(parts).double().sum(dim=0).norm()), rel=within)
    at_once = started(dataset, mode=mode)
    gather_gradients(at_once, dataset.source("train"), DEPTH, None, CPU, "float32")
    assert apart(at_once.weights.grad, run.weights.grad) > within


@pytest.mark.parametrize("mode", ["independent", "trajectory"])
def test_the_table_steps_between_micro_steps(mode: str, dataset: Dataset) -> None:
    plain, run, untouched = (started(dataset, *each, mode=mode) for each in ((), ("table",), ()))
    parts = parts_of(plain, dataset, step_table=True)
    first = run.model.table.clone()
    gathered = gather_gradients(run, dataset.source("train"), DEPTH, None, CPU, "float32")
    assert apart(run.model.table, plain.model.table) < 4 * EPS
    apply_gradients(run, gathered, 1.0)
    assert apart(run.model.table, plain.model.table) < 4 * EPS, "it stepped once more with the update"
    average = run.config.train.ema
    assert average is not None
    assert apart(run.table.averaged(run.update), average * first.double() + (1 - average) * run.model.table) < 4 * EPS
    later = [float((a - b).abs().max()) for a, b in zip(parts, parts_of(untouched, dataset), strict=True)]
    assert later[0] == 0 and min(later[1:]) > 0, "what comes later does not see the step"


def test_an_average_counts_where_a_row_ends() -> None:
    """Rows that step several times at one update, once, and never."""
    model = small()
    table = PuzzleTable(model, TrainConfig.model_validate({"updates": 1, "ema": 0.9}))
    plain, generator = model.table.double(), torch.Generator().manual_seed(0)
    for t in range(1, 8):
        for _ in range(3):
            ids = torch.randint(0, 6, (2,), generator=generator)
            table.update(ids, torch.randn(2, 8, generator=generator), 0.05, t)
        plain = 0.9 * plain + 0.1 * model.table
        assert apart(table.averaged(t), plain) < 12 * t * EPS


@pytest.mark.numeric
def test_two_ranks_are_one(dataset: Dataset, data_dir: Path, tmp_path: Path) -> None:
    """Along trajectories; which examples share an independent micro-step is a matter of the ranks."""
    train = {"accumulate": 2, "accumulation": "trajectory", "per_micro_step": ("clip", "table"), "clip": LIMIT}
    config = tiny(train={**train, "updates": 1})
    one = gradients(config, tmp_path / "one", data_dir)
    by_ranks(words_of(tmp_path / "two", data_dir, config), tmp_path / "said", 2)
    close(held_gradients(tmp_path / "two"), one, moved(config, tmp_path, data_dir))


def test_resume_stays_exact(dataset: Dataset, data_dir: Path, tmp_path: Path) -> None:
    train = {"accumulate": 2, "accumulation": "trajectory", "per_micro_step": ("clip", "table"), "updates": 16}
    resumes_exactly(tiny(train=train), data_dir, tmp_path)


@pytest.mark.parametrize(
    ("train", "why"),
    [
        ({"per_micro_step": "clip"}, "set accumulate to 2 or more"),
        ({"per_micro_step": "clip,table", "accumulate": 2, "clip": None}, "needs a limit"),
        ({"per_micro_step": "average", "accumulate": 2}, "'clip' or 'table'"),
    ],
)
def test_what_makes_no_sense_is_refused(train: dict[str, object], why: str) -> None:
    with pytest.raises(UserError, match=why):
        tiny(train=train)
