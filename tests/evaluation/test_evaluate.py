"""Evaluation counts what each example does alone, and changes nothing."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from ponder.config.resolve import resolve
from ponder.data import Dataset
from ponder.domains.contract import ArraySource, Domain, Tokens
from ponder.evaluation import records as evaluate
from ponder.evaluation.records import (
    Judge,
    Settings,
    run_split,
    run_splits,
)
from ponder.model.reasoner import Reasoner
from tests.conftest import tiny
from tests.support.rounding import agree, limits
from tests.support.runs import HERE, agree_where_sure, made_model, mostly, told, with_right_answers


def slow(model: Reasoner, domain: Domain, inputs: Tokens, label: Tokens, steps: int) -> Iterator[dict[str, Any]]:
    """One example by itself, judged position by position."""
    carry = model.start(torch.zeros(1, dtype=torch.int64))
    for _ in range(steps):
        step = model(carry, torch.tensor(inputs[None].astype(np.int64)), model.table[:1])
        carry = step.carry
        answer = step.logits[0].argmax(-1).tolist()
        hits = [a == b for a, b in zip(answer, label.tolist(), strict=True) if b != 0]
        q_continue = 0.0 if step.q_continue is None else float(step.q_continue[0])
        assert step.q_halt is not None
        yield {
            "exact": all(hits),
            "valid": all(hits) or bool(domain.check(inputs[None], np.array([answer], dtype=np.uint8))[0]),
            "token": sum(hits) / len(hits),
            "q_halt": float(step.q_halt[0]),
            "margin": float(step.q_halt[0]) - q_continue,
        }


@pytest.mark.numeric
@pytest.mark.parametrize(
    ("preset", "size", "batch", "halting"),
    [("sudoku-mini", 23, 7, "halt+continue"), ("sudoku-mini", 5, 16, "halt"), ("arithmetic-mini", 17, 6, "halt")],
)
def test_records_are_what_each_example_does_alone(preset: str, size: int, batch: int, halting: str) -> None:
    """Sizes that do not divide, padded rows, both halting rules."""
    model_config = {**tiny().flat()["model"], "max_steps": 3, "halting": halting, "key_mask": preset != "sudoku-mini"}
    config = resolve(preset, None, {"model": model_config})
    domain, model = config.data.make(), made_model(config).eval()
    inputs, labels = domain.sample(3, size)
    labels = with_right_answers(model, inputs, labels, 4)
    assert preset == "sudoku-mini" or (labels == 0).any()
    records = run_split(model, domain, ArraySource({"inputs": inputs, "labels": labels}), Settings(4, batch), HERE)
    assert records.index.tolist() == list(range(size)) and records.steps == 4
    sure = told(model, inputs, 4)
    for row in range(size):
        for step, said in enumerate(slow(model, domain, inputs[row], labels[row], 4)):
            if sure[step].answers[row]:
                assert records.exact[row, step] == said["exact"]
                assert records.valid[row, step] == said["valid"]
                assert records.token[row, step] == np.float32(said["token"])
            assert records.halts[row, step] == (said["margin"] > 0) or not sure[step].halting[row]
            assert abs(records.confidence[row, step] - said["q_halt"]) <= sure[step].reach[row]
    assert mostly(sure)
    for column in (records.exact, records.halts):
        assert 0 < column.mean() < 1


def test_positions_without_a_label_do_not_count() -> None:
    domain = resolve("arithmetic-mini").data.make()
    inputs, labels = domain.sample(0, 40)
    rng = np.random.default_rng(0)
    wrong = rng.random(labels.shape) < 0.1
    answers = np.where(wrong | (labels == 0), rng.integers(0, 3, labels.shape), labels).astype(np.uint8)
    exact, _, token = Judge(domain, inputs, labels)(answers)
    for row in range(40):
        hits = [a == b for a, b in zip(answers[row].tolist(), labels[row].tolist(), strict=True) if b != 0]
        assert exact[row] == all(hits) and token[row] == pytest.approx(sum(hits) / len(hits))
    assert 0.2 < exact.mean() < 0.95


def test_another_batch_size_changes_nothing(dataset: Dataset) -> None:
    model = made_model(tiny()).eval()
    batch = dataset.source("train").fetch(np.arange(300), np.zeros(300, np.int64))
    inputs = torch.from_numpy(batch.inputs.astype(np.int64))

    def logits(size: int) -> torch.Tensor:
        parts = [inputs[at : at + size] for at in range(0, 300, size)]
        starts = [model.start(torch.zeros(len(p), dtype=torch.int64)) for p in parts]
        rows = model.table[torch.zeros(300, dtype=torch.int64)]
        return torch.cat([model(c, p, rows[: len(p)]).logits for c, p in zip(starts, parts, strict=True)])

    agree([logits(7)], [logits(300)], limits(lambda: [logits(300)], model.state_dict().values()))
    labels = with_right_answers(model, batch.inputs, batch.labels, 4)
    source = ArraySource({"inputs": batch.inputs, "labels": labels})
    a, b = (run_split(model, dataset.domain, source, Settings(4, size), HERE) for size in (7, 300))
    agree_where_sure(a, b, told(model, batch.inputs, 4))
    assert a.exact.any()


@pytest.mark.parametrize("batch", [3, 16, 1000])
def test_splits_together_are_what_each_is_alone(batch: int, dataset: Dataset) -> None:
    model = made_model(tiny()).eval()
    sources = {name: dataset.source(name) for name in ("test", "val", "train")}
    how = Settings(3, batch, limit=41)
    together = run_splits(model, dataset.domain, sources, how, HERE)
    assert [*together] == [*sources]
    for name, source in sources.items():
        alone = run_split(model, dataset.domain, source, how, HERE)
        assert together[name].n == alone.n > 0
        for column in ("index", "exact", "valid", "halts"):
            assert (getattr(together[name], column) == getattr(alone, column)).all()
        apart = np.abs(together[name].confidence - alone.confidence).max()
        assert apart < alone.confidence.std() / 100, "rounding is far less than what tells examples apart"


def test_evaluation_changes_nothing(dataset: Dataset) -> None:
    model = made_model(tiny()).train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    states = torch.get_rng_state(), str(np.random.get_state()), random.getstate()
    first, again = (run_split(model, dataset.domain, dataset.source("test"), Settings(5, 16), HERE) for _ in range(2))
    still = run_split(made_model(tiny()).eval(), dataset.domain, dataset.source("test"), Settings(5, 16), HERE)
    assert model.training and all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1:] == (str(np.random.get_state()), random.getstate())
    for name in ("index", *evaluate.COLUMNS):
        assert np.array_equal(getattr(first, name), getattr(again, name)), name
        assert np.array_equal(getattr(first, name), getattr(still, name)), name  # without dropout and noise


def test_a_limit_spreads_over_the_split(dataset: Dataset) -> None:
    records = run_split(made_model(tiny()), dataset.domain, dataset.source("test"), Settings(1, 16, limit=7), HERE)
    assert records.index.tolist() == [0, 8, 16, 24, 32, 40, 49]
