"""Training's newer switches (docs/newer-ideas.md), each against its definition written out plainly."""

from pathlib import Path
from typing import Any

import pytest
import torch

from ponder.base import native, rng
from ponder.base.errors import UserError
from ponder.base.runtime import Runtime
from ponder.config.resolve import Config, resolve
from ponder.data import Dataset
from ponder.model import losses
from ponder.model.reasoner import Step
from ponder.training.loop import Limits, gather_gradients, new_run
from ponder.training.micro import Depth
from ponder.training.runs import train_in
from ponder.training.slots import refill
from ponder.training.state import Run
from tests.conftest import tiny
from tests.support.processes import by_ranks
from tests.support.rounding import EPS, agree, limits
from tests.training.test_train import HERE, close, gradients, held_gradients, moved, resumes_exactly, words_of

CPU = Runtime(torch.device("cpu"))
PLAIN: dict[str, object] = {"dropout": 0.0, "state_dropout": 0.0, "noise": 0.0, "max_steps": 3}
SWITCHES: dict[str, dict[str, dict[str, object]]] = {
    "init": {"model": {"init": "random"}},
    "augment": {"data": {"augment": True}},
    "corrupt": {"train": {"corrupt": 0.5}},
    "fixpoint": {"train": {"fixpoint_weight": 0.3}},
    "winners": {"train": {"winners": 3}},
    "all": {
        "model": {"init": "random", "halting": "halt+continue"},
        "train": {"corrupt": 0.5, "fixpoint_weight": 0.3, "winners": 2, "supervise": "last", "accumulate": 2},
    },
    "pre-norm": {"model": {"norm": "pre"}},
    "implicit": {"model": {"gradient": "implicit", "neumann": 2}},
    "supervise": {"train": {"supervise": "last", "grow": "steps"}},
}


@pytest.mark.parametrize("name", SWITCHES)
def test_resume_stays_exact(name: str, dataset: Dataset, data_dir: Path, tmp_path: Path) -> None:
    fewer: dict[str, object] = {"updates": 16}
    config = tiny(**{**SWITCHES[name], "train": {**SWITCHES[name].get("train", {}), **fewer}})
    assert config.key() != tiny(train=fewer).key()
    resumes_exactly(config, data_dir, tmp_path)


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
    with native.without():  # a program's gradient is the same but for rounding (tests/model/test_whole.py)
        fresh, found = one_update(config, dataset, Depth(steps, 2))
        slots, model = fresh.slots[0], fresh.model
        table = model.table[slots.task_ids]
        carry = model.start(slots.carry.key)
        for _ in range(steps - 1):
            carry = model(carry, slots.inputs, table).carry.detach()
        wanted = by_hand(fresh, answer_loss(model(carry, slots.inputs, table), slots.labels) / config.train.batch)
    assert torch.equal(found, wanted) and found.any()
    assert slots.done.all() and slots.carry.steps.tolist() == [steps] * config.train.batch


# corrupt --------------------------------------------------------------------------------------------------------------


def test_some_examples_start_from_a_noised_answer(dataset: Dataset) -> None:
    """Read back from the states: which symbol each token of z_H embeds, and how often it is the label's."""
    size = 600
    config = tiny(model=PLAIN, train={"corrupt": 0.3, "batch": size})
    fresh = new_run(config, dataset.domain, CPU, torch.float32)
    refill(fresh.slots[0], fresh.model, dataset.source("train"), config, None)
    slots, model, start = fresh.slots[0], fresh.model, fresh.model.start(fresh.slots[0].carry.key)
    h, prefix = slots.carry.states.h, config.model.prefix
    assert h is not None and start.states.h is not None and start.states.l is not None
    assert torch.equal(h[:, :prefix], start.states.h[:, :prefix])
    assert slots.carry.states.l is not None and torch.equal(slots.carry.states.l, start.states.l)
    apart = (h != start.states.h).flatten(1).any(dim=1)
    assert abs(float(apart.double().mean()) - 0.3) < 5 * (0.3 * 0.7 / size) ** 0.5
    embedded = model.scale * model.embed.detach()
    away = (h[apart, prefix:, None] - embedded).norm(dim=-1)
    assert float(away.amin(dim=-1).max()) == 0, "a token of the state embeds no symbol"
    symbols, labels = away.argmin(dim=-1), slots.labels[apart]
    assert int(symbols.min()) >= 1 and set(symbols.unique().tolist()) == set(range(1, len(model.embed)))
    kept = (symbols == labels).double().mean(dim=1)
    # With a level drawn uniformly, about half of the symbols are replaced, and a share of those by themselves.
    wanted = 0.5 + 0.5 / (len(model.embed) - 1)
    assert abs(float(kept.mean()) - wanted) < 5 * float(kept.std()) / len(kept) ** 0.5
    assert float(kept.min()) < 0.3 and float(kept.max()) == 1, "the levels should differ from example to example"


def test_examples_under_way_are_left_alone(dataset: Dataset) -> None:
    config = tiny(model=PLAIN, train={"corrupt": 1.0})
    fresh, _ = one_update(config, dataset)
    slots = fresh.slots[0]
    slots.done, slots.known = torch.arange(config.train.batch) % 2 == 0, None
    before, done = slots.carry.states.h, slots.done
    refill(slots, fresh.model, dataset.source("train"), config, None)
    assert before is not None and slots.carry.states.h is not None
    same_rows = (slots.carry.states.h == before).flatten(1).all(dim=1)
    assert torch.equal(same_rows, ~done)


def test_a_model_without_states_has_none_to_corrupt() -> None:
    with pytest.raises(UserError, match=r"train\.corrupt is about the state"):
        resolve("sudoku-mini", "dense", {"train": {"corrupt": 0.5}})


# fixpoint_weight ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["halt", "halt+continue"])
@pytest.mark.parametrize("budget", [1, 3])
def test_a_final_state_that_still_moves_is_penalised(budget: int, head: str, dataset: Dataset) -> None:
    """Added to the plain gradient: that of the weight times |f(z) - z|^2 / |z|^2, z held, of examples that end here."""
    model = {**PLAIN, "halting": head}
    _, plain = one_update(tiny(model=model, train={"clip": None}), dataset, Depth(budget, 2))
    config = tiny(model=model, train={"clip": None, "fixpoint_weight": 0.7})
    fresh, found = one_update(config, dataset, Depth(budget, 2))
    slots = fresh.slots[0]
    assert slots.done.all() if budget == 1 else not slots.done.any()
    z = [s.detach() for s in (slots.carry.states.h, slots.carry.states.l) if s is not None]
    after = fresh.model(slots.carry, slots.inputs, fresh.model.table[slots.task_ids]).carry.states
    moved = (after.h - z[0]).flatten(1).square().sum(1) + (after.l - z[1]).flatten(1).square().sum(1)
    size = z[0].flatten(1).square().sum(1) + z[1].flatten(1).square().sum(1)
    more = by_hand(fresh, 0.7 * (moved / size * slots.done).sum() / config.train.batch)
    assert bool(more.any()) == (budget == 1)
    # Two sums in another order: what rounding does to the larger of them is all that may differ.
    assert float((found - plain - more).abs().max()) <= 16 * EPS * float(found.abs().max())


# winners --------------------------------------------------------------------------------------------------------------


@pytest.mark.numeric
def test_the_gradient_flows_through_the_state_with_the_lowest_loss(dataset: Dataset) -> None:
    """Two updates: each example's three states advance by themselves, whichever of them wins."""
    config = tiny(model={**PLAIN, "init": "random", "halting": "halt"}, train={"winners": 3, "clip": None, "batch": 8})
    fresh, first = one_update(config, dataset)
    slots, model = fresh.slots[0], fresh.model
    assert not slots.done.any()
    gather_gradients(fresh, dataset.source("train"), Depth(3, 2), None, CPU, "float32")
    assert slots.carry.states.h is not None
    found = [first, fresh.weights.grad.clone(), slots.carry.states.h.clone()]
    keys = slots.carry.key.view(8, 3)
    assert torch.equal(keys[:, 0], rng.slot_keys(config.seed, torch.arange(8), torch.zeros(8, dtype=torch.int64)))
    assert len(keys.unique()) == 24
    table, won = model.table[slots.task_ids], set()

    def oracle() -> list[torch.Tensor]:
        """Each state in a batch of its own; the winners' losses, example by example."""
        carries, out = [model.start(keys[:, k]) for k in range(3)], []
        for _ in range(2):
            steps = [model(carry, slots.inputs, table) for carry in carries]
            winner = torch.stack([per_example(step.logits, slots.labels) for step in steps]).argmin(dim=0).tolist()
            won.update(winner)
            total = torch.zeros(())
            for i, k in enumerate(winner):
                one = Step(steps[k].carry, steps[k].logits[i : i + 1], steps[k].q_halt[i : i + 1], None, None)
                total = total + answer_loss(one, slots.labels[i : i + 1])
            out.append(by_hand(fresh, total / 8))
            carries = [step.carry.detach() for step in steps]
        return [*out, torch.stack([c.states.h for c in carries if c.states.h is not None], dim=1).flatten(0, 1)]

    agree(found, oracle(), limits(oracle, model.state_dict().values()))
    assert len(won) > 1, "one state wins always: no choice to speak of"


def per_example(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    s = torch.where(logits >= 0, logits + 1, 1 / (1 - logits))
    p = s / s.sum(dim=-1, keepdim=True)
    right = p.gather(-1, labels[..., None])[..., 0].log() * (labels != 0)
    return -right.sum(dim=1) / (labels != 0).sum(dim=1)


def test_states_that_could_not_differ_are_refused() -> None:
    with pytest.raises(UserError, match="would be the same"):
        tiny(model=PLAIN, train={"winners": 2})


# Ranks ----------------------------------------------------------------------------------------------------------------


def test_two_ranks_are_one_with_all_of_them(dataset: Dataset, data_dir: Path, tmp_path: Path) -> None:
    config = tiny(model=SWITCHES["all"]["model"], train={**SWITCHES["all"]["train"], "clip": None})
    one = gradients(config, tmp_path / "one", data_dir)
    by_ranks([*words_of(tmp_path / "two", data_dir, config), "--max-updates", "1"], tmp_path / "said", 2)
    close(held_gradients(tmp_path / "two"), one, moved(config, tmp_path, data_dir))
    outcome = train_in(config, tmp_path / "two", data_dir, HERE, Limits(updates=2), quiet=True, ranks=1)
    assert outcome.update == 3, "one rank goes on where two stopped"
