"""Scores, intervals and calibration of records, against brute force and by hand."""

from pathlib import Path

import numpy as np
import pytest
import torch

from ponder.base import stats
from ponder.config.resolve import resolve
from ponder.domains.contract import Bools
from ponder.evaluation import records as evaluate
from ponder.evaluation.records import (
    Records,
    auroc,
    calibration,
    load_records,
    save_records,
    summarise,
)
from ponder.evaluation.run import ood_means
from ponder.evaluation.schema import SplitResult
from ponder.inference.engine import Engine, Seen
from ponder.model.reasoner import Reasoner
from tests.conftest import tiny
from tests.support.runs import made_model


def random_records(n: int = 60, steps: int = 6, seed: int = 0) -> Records:
    rng = np.random.default_rng(seed)
    exact = rng.random((n, steps)) < 0.4
    return Records(
        index=np.arange(n),
        exact=exact,
        valid=exact | (rng.random((n, steps)) < 0.2),
        token=rng.random((n, steps)).astype(np.float32),
        confidence=np.round(rng.normal(size=(n, steps)) + exact, 1).astype(np.float32),
        halts=rng.random((n, steps)) < 0.2,
    )


def test_ways_to_answer_against_brute_force() -> None:
    r = random_records()
    summary = summarise(r, budget=4, head=True)
    assert summary.to_budget is not None
    for end, steps in ((summary.to_budget, 4), (summary.to_end, 6)):
        for m in ("exact", "valid", "token"):
            rows = [row[:steps].tolist() for row in getattr(r, m)]
            q = [row[:steps].tolist() for row in r.confidence]
            halts = [row[:steps].tolist() for row in r.halts]
            at = [row.index(True) if True in row else steps - 1 for row in halts]
            confident = [row[qs.index(max(qs))] for row, qs in zip(rows, q, strict=True)]
            by_step = [sum(row[s] for row in rows) / 60 for s in range(steps)]
            assert getattr(end.final, m).value == pytest.approx(by_step[-1])
            assert getattr(end.best_full, m).value == pytest.approx(sum(confident) / 60)
            assert getattr(end.best_step, m).value == pytest.approx(max(by_step))
            assert getattr(end.best_step, m).step == by_step.index(max(by_step)) + 1
            assert getattr(summary.steps, m).value[:steps] == pytest.approx(by_step)
            assert end.halting is not None
            stopped = sum(row[i] for row, i in zip(rows, at, strict=True)) / 60
            assert getattr(end.halting, m).value == pytest.approx(stopped)
            assert end.halting.mean_step == pytest.approx(sum(at) / 60 + 1)
            assert end.halting.halted == pytest.approx(sum(True in row for row in halts) / 60)
            if m != "token":
                assert getattr(end.any_step, m).value == pytest.approx(sum(any(row) for row in rows) / 60)
    assert summarise(r, budget=7, head=False).to_budget is None
    assert summarise(r, budget=7, head=False).to_end.halting is None


def test_wilson_by_hand() -> None:
    """8 of 10: (0.8 + z²/20 ± z sqrt(0.016 + z²/400)) / (1 + z²/10), z = 1.96; 0 of 20 reaches up to z² / (20 + z²)."""
    some = stats.share(0.8, 10)
    assert (some["low"], some["high"]) == (pytest.approx(0.490162, abs=1e-5), pytest.approx(0.943318, abs=1e-5))
    none, every = stats.share(0.0, 20), stats.share(np.array([1.0]), 20)
    assert none["low"] == 0 and none["high"] == pytest.approx(0.161125, abs=1e-5)
    assert every["high"] == [1.0] and every["low"] == [pytest.approx(1 - 0.161125, abs=1e-5)]


def test_auroc_and_calibration_against_brute_force() -> None:
    r = random_records(seed=4)
    q, right = r.confidence.ravel(), r.exact.ravel()
    pairs = [(x > y) + 0.5 * (x == y) for x in q[right] for y in q[~right]]
    assert 0.6 < np.mean(pairs) < 0.95 and len(set(q.tolist())) < len(q) / 2
    assert auroc(q, right) == pytest.approx(np.mean(pairs))
    assert auroc(q, np.ones(len(q), bool)) is None
    found = calibration(q, right)
    p = [1 / (1 + np.exp(-float(x))) for x in q]
    assert found.brier == pytest.approx(np.mean([(a - b) ** 2 for a, b in zip(p, right, strict=True)]))
    error = 0.0
    for number in range(10):
        inside = [i for i, x in enumerate(p) if number / 10 <= x < (number + 1) / 10]
        part = found.bins[number]
        assert part.n == len(inside)
        if inside:
            accuracy, confidence = np.mean(right[inside]), np.mean([p[i] for i in inside])
            assert part.accuracy == pytest.approx(accuracy) and part.confidence == pytest.approx(confidence)
            error += len(inside) / len(p) * abs(accuracy - confidence)
    assert found.ece == pytest.approx(error)


def _first_step(model: Reasoner) -> tuple[Seen, Bools]:
    engine = Engine(model, tiny().data.make(), 2)
    for _ in range(2):
        engine.admit(np.ones(16, np.uint8))
    return engine.advance()


def test_a_sure_or_diverged_head_is_still_counted() -> None:
    sure = calibration(np.array([np.inf, -np.inf, 800.0, -800.0]), np.array([True, False, True, False]))
    assert sure.brier == 0 and sure.auroc == 1 and sure.bins[9].n == 2
    model = made_model(tiny())
    assert model.q_head is not None
    model.q_head.bias.fill_(torch.nan)
    one, _ = _first_step(model)
    assert (one.confidence == -np.inf).all() and not one.halts.any()


def test_records_survive_the_disk(tmp_path: Path) -> None:
    r = random_records(n=33, steps=11)
    save_records(r, tmp_path / "r.npz")
    back = load_records(tmp_path / "r.npz")
    for name in ("index", *evaluate.COLUMNS):
        assert np.array_equal(getattr(back, name), getattr(r, name))
        assert getattr(back, name).dtype == getattr(r, name).dtype
    with np.load(tmp_path / "r.npz") as stored:  # as it was before there were versions
        columns = {{"confidence": "q_halt"}.get(k, k): v for k, v in stored.items() if k != "version"}
    np.savez_compressed(tmp_path / "old.npz", **columns)
    assert np.array_equal(load_records(tmp_path / "old.npz").confidence, r.confidence)


def split_score(records: Records) -> SplitResult:
    return SplitResult(**dict(summarise(records, 4, True)), role="ood")


def test_ood_mean_is_unweighted_and_over_all_ood_splits() -> None:
    domain = resolve("life-mini").data.make()
    sizes = {"val": 10, "in_range": 20, "plus_1": 30, "plus_2": 60, "plus_3": 90, "plus_10": 15, "unseen": 45}
    scores = {s: split_score(random_records(n, seed=n)) for s, n in sizes.items()}
    mean = ood_means(scores, domain)["ood_mean"]
    ood = ("plus_1", "plus_2", "plus_3", "plus_10", "unseen")
    for number in (0, 1):
        for way in ("final", "best_full", "any_step"):
            each = [getattr(scores[s].ends[number], way).exact.value for s in ood]
            assert getattr(mean.ends[number], way).exact.value == pytest.approx(sum(each) / 5)
    assert mean.n == 240 and mean.splits == ood and mean.ends[0].halting is None
    final, widths = mean.ends[0].final.exact, [scores[s].ends[0].final.exact for s in ood]
    assert final.low < final.value < final.high
    assert final.high - final.low < min(w.high - w.low for w in widths)
    del scores["plus_10"]
    assert ood_means(scores, domain) == {}
    joint = resolve("joint-mini").data.make()
    every = {s: split_score(random_records(5)) for s in joint.splits}
    assert set(ood_means(every, joint)) == {"arithmetic.ood_mean", "life.ood_mean"}
