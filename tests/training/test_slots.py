"""What enters a slot, by a kernel and without: the same bits, and nothing of the other slots."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ponder.base import native, rng
from ponder.base.runtime import Runtime
from ponder.config.resolve import Config
from ponder.data import Dataset, build
from ponder.model.reasoner import Reasoner
from ponder.training.loop import new_run
from ponder.training.slots import Slots, refill
from tests.conftest import tiny
from tests.model.test_kernels import drawn, spied
from tests.training import test_asked

CPU = Runtime(torch.device("cpu"))
ONE: dict[str, Any] = {"states": 1, "bound": None, "gate": False, "post_norm": False}
NONE: dict[str, Any] = {**ONE, "states": 0, "halting": "none", "max_steps": 1}
CONFIGS: dict[str, Config] = {
    "two states": tiny(),
    "one state": tiny(model=ONE),
    "no states": tiny(model=NONE),
    "starts that are buffers": tiny(model={"learned_init": False}),
    "all right answers": tiny(train={"answers": "nearest"}),
    "some begin at an answer": tiny(train={"corrupt": 0.5}),
    "a label for each step": test_asked.life(),
}
OTHERS: dict[str, Config] = {
    "random starts": tiny(model={"init": "random"}),
    "several states of an example": tiny(train={"winners": 2}),
}


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return Dataset.open(build(test_asked.life().data, tmp_path_factory.mktemp("life")))


def begun(config: Config, dataset: Dataset) -> tuple[Slots, Reasoner]:
    """In which no start is one number again and again."""
    run = new_run(config, dataset.domain, CPU, torch.float32)
    for number, name in enumerate(("init_h", "init_l")[: config.model.states]):
        getattr(run.model, name).data.copy_(drawn(config.model.width, seed=number))
    return run.slots[0], run.model


def contents(slots: Slots) -> dict[str, Tensor]:
    carry = slots.carry
    held = {f"state {n}": z for n, z in enumerate(carry.states.held)}
    held |= {"inputs": slots.inputs, "labels": slots.labels, "task ids": slots.task_ids}
    held |= {"steps": carry.steps, "keys": carry.key}
    return held | ({} if slots.beside is None else {"beside": slots.beside})


def used(slots: Slots, number: int) -> Tensor:
    """In the middle of a training: states anywhere, and some examples that are done; all, none, one, and some."""
    for n, z in enumerate(slots.carry.states.held):
        z.copy_(drawn(*z.shape, seed=number + n))
    slots.carry.steps.fill_(number + 1)
    done = torch.rand(len(slots.ids), generator=torch.Generator().manual_seed(number)) < 0.4
    done[:] = done if number > 2 else number == 0
    done[-1] |= number == 2
    slots.done, slots.known = done, None
    return done


@pytest.mark.parametrize("name", [*CONFIGS, *OTHERS])
def test_what_enters_is_the_same_by_a_kernel_and_without(name: str, dataset: Dataset, life: Dataset) -> None:
    config = {**CONFIGS, **OTHERS}[name]
    data = life if config.model.halting == "asked" else dataset
    source = data.source("train")
    (ours, model), (plain, other) = begun(config, data), begun(config, data)
    kept = torch.arange(len(ours.ids)).repeat_interleave(ours.states)
    for number in range(20):
        done = used(ours, number)
        assert torch.equal(used(plain, number), done)
        before = {each: t.clone() for each, t in contents(ours).items()}
        with spied() as called:
            refill(ours, model, source, config, None)
        assert ("enter" in called) == (name in CONFIGS and bool(done.any()))
        with native.without():
            refill(plain, other, source, config, None)
        assert (ours.refills == plain.refills).all()
        after, expected = contents(ours), contents(plain)
        stays = ~done
        for each, t in after.items():
            assert t.dtype == expected[each].dtype and torch.equal(t, expected[each]), each
            rows = stays if len(t) == len(stays) else stays[kept]
            assert torch.equal(t[rows], before[each][rows]), f"{each} of others"
        entered(ours, model, config, done)
    assert ours.refills.min() > 1


def entered(slots: Slots, model: Reasoner, config: Config, done: Tensor) -> None:
    """Slots that take an example start over, with the key of it."""
    if slots.states > 1 or config.model.init == "random":
        return
    index = torch.from_numpy(slots.ids)[done], torch.from_numpy(slots.refills)[done]
    assert torch.equal(slots.carry.key[done], rng.slot_keys(config.seed, *index))
    assert not slots.carry.steps[done].any()
    if config.train.corrupt == 0:
        for start, z in zip(("init_h", "init_l"), slots.carry.states.held, strict=False):
            assert torch.equal(z[done], getattr(model, start).detach().expand(z[done].shape))
    assert np.unique(slots.carry.key.numpy()).size == len(slots.ids)
