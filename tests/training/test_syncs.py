"""What an update costs a device nobody here has: how often the host waits for it, and what is copied."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ponder.base.runtime import Runtime
from ponder.config.resolve import Config
from ponder.data import Dataset
from ponder.training import loop as train
from ponder.training.loop import apply_gradients, gather_gradients, new_run
from ponder.training.micro import Depth
from ponder.training.state import Run
from tests.conftest import tiny


def update(run: Run, dataset: Dataset, runtime: Runtime) -> None:
    depth = Depth.at(run.config, run.update, updates=24)
    gathered = gather_gradients(run, dataset.source("train"), depth, None, runtime, "float32")
    apply_gradients(run, gathered, 1.0)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Tensors without data cannot be read: any other wait than this one is an error of torch."""
    sizes: list[int] = []

    def read(values: Tensor) -> Any:
        assert values.device.type == "meta"
        sizes.append(len(values))
        return np.ones(len(values), dtype=np.float32)

    monkeypatch.setattr(train, "read", read)
    yield sizes


@pytest.mark.parametrize(
    "config",
    [
        tiny(),
        tiny(model={"halting": "halt+continue", "positions": "rope"}),
        tiny(model={"mixer": "mlp", "positions": "none"}),
        tiny(train={"accumulate": 4, "clip": None}),
        tiny(model={"init": "random"}, train={"corrupt": 0.5, "fixpoint_weight": 1, "winners": 2, "supervise": "last"}),
    ],
    ids=["halt", "continue", "mlp", "accumulated", "newer ideas"],
)
def test_the_host_waits_once_per_update(config: Config, dataset: Dataset, reads: list[int]) -> None:
    meta = Runtime(torch.device("meta"))
    run = new_run(config, dataset.domain, meta, torch.float32)
    for done in range(1, 4):
        update(run, dataset, meta)
        assert len(reads) == done


@pytest.mark.parametrize("wait", [float, Tensor.tolist, Tensor.cpu, Tensor.nonzero, Tensor.unique, lambda t: t[t > 0]])
def test_that_check_sees_every_wait(wait: Any) -> None:
    with pytest.raises((RuntimeError, NotImplementedError)):
        wait(torch.zeros(1, device="meta"))


def test_what_the_host_knows_is_what_the_device_decided(dataset: Dataset) -> None:
    here = Runtime(torch.device("cpu"))
    run = new_run(tiny(train={"accumulate": 2}), dataset.domain, here, torch.float32)
    for _ in range(4):
        update(run, dataset, here)
        for slots in run.slots:
            assert slots.known is not None
            assert (slots.known == slots.done.numpy()).all()


def test_ranks_meet_once_per_update_where_the_puzzle_table_has_one_row(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And twice more, for ids and gradients, where they share no row."""
    meetings: list[str] = []
    monkeypatch.setattr(dist, "all_reduce", lambda flat: meetings.append("sum"))

    def gathered(parts: list[Tensor], mine: Tensor) -> None:
        meetings.append("gather")
        for part in parts:
            part.copy_(mine)

    monkeypatch.setattr(dist, "all_gather", gathered)
    two = Runtime(torch.device("cpu"), 0, 2)
    run = new_run(tiny(), dataset.domain, two, torch.float32)
    assert len(run.model.table) == 1
    update(run, dataset, two)
    assert meetings == ["sum"]
    monkeypatch.setattr(run.model, "table", run.model.table.repeat(3, 1))
    meetings.clear()
    update(run, dataset, two)
    assert meetings == ["sum", "gather", "gather"]


class Largest(TorchDispatchMode):
    """The most bytes that one operation put into memory of its own."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        out = func(*args, **(kwargs or {}))
        for t in tree_leaves(out):
            if isinstance(t, Tensor) and t.untyped_storage().data_ptr() not in given:
                self.bytes = max(self.bytes, t.untyped_storage().nbytes())
        return out


def test_a_large_table_is_never_copied_by_an_update(dataset: Dataset) -> None:
    """ARC's at 1000 augmentations is gigabytes."""
    here = Runtime(torch.device("cpu"))

    def largest(task_ids: int) -> int:
        run = new_run(tiny(), dataset.domain, here, torch.float32)
        run.model.table = torch.zeros(task_ids, run.config.model.width)
        run.table = type(run.table)(run.model, run.config.train)
        with Largest() as seen:
            update(run, dataset, here)
            update(run, dataset, here)
        return int(seen.bytes)

    assert largest(task_ids=100_000) == largest(task_ids=10)
    with Largest() as seen:
        torch.zeros(0).new_ones(5).add_(1).clone()
    assert seen.bytes == 20
