"""Honest scores: every forced ACT step of every example, kept as records from which any metric can be had later."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ponder.base import rng, stats
from ponder.base.errors import UserError
from ponder.base.runtime import Runtime
from ponder.base.stats import Floats
from ponder.domains.contract import Batch, Bools, Domain, Ints, Progress, Source, Tokens, silent
from ponder.evaluation.schema import (
    MEASURES,
    AnyStep,
    BestStep,
    Bin,
    Calibration,
    Calibrations,
    Curve,
    Halting,
    Measures,
    Share,
    SplitSummary,
    Within,
)
from ponder.inference.engine import Forced, forced
from ponder.model.reasoner import Reasoner

VERSION = 2
"""Of a stored file of records. Those without one call confidence q_halt."""
COLUMNS = ("exact", "valid", "token", "confidence", "halts")
PACKED = ("exact", "valid", "halts")
BINS = 10
S = TypeVar("S", Share, Curve)


@dataclass(frozen=True)
class Records:
    """What happened to each example at each forced step, [n, steps]. `index` numbers the examples in their split."""

    index: npt.NDArray[np.int64]
    exact: npt.NDArray[np.bool_]
    valid: npt.NDArray[np.bool_]
    token: npt.NDArray[np.float32]
    confidence: npt.NDArray[np.float32]
    """Halting logit; for a model without a halting head, the mean log-probability of the predicted tokens."""
    halts: npt.NDArray[np.bool_]
    """Whether the halting head would stop here; nowhere without one."""

    @property
    def n(self) -> int:
        return len(self.index)

    @property
    def steps(self) -> int:
        return int(self.exact.shape[1])

    def first(self, steps: int) -> "Records":
        """The same examples with a smaller budget."""
        return Records(self.index, **{name: getattr(self, name)[:, :steps] for name in COLUMNS})

    def at(self, rows: Ints) -> "Records":
        return Records(self.index[rows], **{name: getattr(self, name)[rows] for name in COLUMNS})


def join(parts: Sequence[Records]) -> Records:
    """Records of several ranks or batches as one, in the order of the examples."""
    index = np.concatenate([p.index for p in parts])
    order = np.argsort(index, kind="stable")
    columns = {name: np.concatenate([getattr(p, name) for p in parts])[order] for name in COLUMNS}
    return Records(index=index[order], **columns)


def save_records(records: Records, path: Path) -> None:
    """A compressed .npz: yes and no as bits, the rest as float32, so that every metric comes out the same again."""
    columns = {name: getattr(records, name) for name in COLUMNS}
    packed = {name: np.packbits(columns[name], axis=1) for name in PACKED}
    np.savez_compressed(path, version=VERSION, index=records.index, steps=records.steps, **{**columns, **packed})


def load_records(path: Path) -> Records:
    with np.load(path) as stored:
        steps = int(stored["steps"])
        old = {} if "version" in stored else {"confidence": "q_halt"}
        columns = {name: stored[old.get(name, name)] for name in COLUMNS}
        bits = {name: np.unpackbits(columns[name], axis=1, count=steps).astype(bool) for name in PACKED}
        return Records(index=stored["index"], **{**columns, **bits})


# Running the model ----------------------------------------------------------------------------------------------------


class Judge:
    """Judges a batch step by step; the checker sees a row only when its answer changed and is not the label."""

    def __init__(self, domain: Domain, inputs: Tokens, labels: Tokens) -> None:
        self.domain, self.inputs, self.labels = domain, inputs, labels
        self.supervised = labels != 0
        self.last = np.zeros_like(labels)
        self.valid = np.zeros(len(labels), dtype=bool)

    def __call__(self, answers: Tokens) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_], npt.NDArray[np.float32]]:
        """(exact, valid, token) of each row."""
        right = (answers == self.labels) & self.supervised
        count = self.supervised.sum(axis=1)
        exact = right.sum(axis=1) == count
        if self.domain.checkable:
            changed = (answers != self.last).any(axis=1) & ~exact
            if changed.any():
                self.valid[changed] = self.domain.check(self.inputs[changed], answers[changed])
            self.valid[exact] = True
            self.last = answers
            valid = self.valid.copy()
        else:
            valid = exact
        return exact, valid, (right.sum(axis=1) / np.maximum(count, 1)).astype(np.float32)


@dataclass(frozen=True)
class Settings:
    """How examples are run: each from a fresh carry for so many ACT steps, halting off."""

    steps: int
    batch: int
    """Examples at a time; changes nothing but the time."""
    limit: int | None = None
    """So many examples of a split, spread evenly over it; None: all."""
    precision: str = "float32"


def run_batch(model: Reasoner, domain: Domain, batch: Batch, index: Ints, how: Settings) -> tuple[Records, Forced]:
    """All forced steps of one batch, judged, and what they were."""
    keys = example_keys(index)
    seen = forced(model, domain, batch.inputs, batch.task_ids, keys, how.steps, how.precision)
    judge = Judge(domain, batch.inputs, batch.labels)
    exact, valid, token = zip(*(judge(answers) for answers in seen.answers), strict=True)
    # Where a puzzle asks for so many steps, what the model says before the last of them answers another question.
    early = (model.config.halting == "asked") & ~seen.halts
    confidence = np.where(early, np.float32(-np.inf), seen.confidence)
    columns = (np.stack(exact), np.stack(valid), np.stack(token), confidence, seen.halts)
    return Records(index=index, **{name: each.T for name, each in zip(COLUMNS, columns, strict=True)}), seen


def example_keys(index: Ints) -> Ints:
    """What the examples of a split draw from where a model starts from random states: a function of their numbers."""
    keys: Ints = rng.mix(rng.EXAMPLE, index).view(np.int64)
    return keys


def chosen_examples(size: int, limit: int | None) -> Ints:
    """All examples of a split, or `limit` spread evenly over it."""
    if size == 0:
        raise UserError("the split holds no examples: build the dataset with more, or choose another --split")
    return np.arange(size) if limit is None or limit >= size else np.linspace(0, size - 1, limit).astype(np.int64)


def shares(chosen: Ints, batch: int, runtime: Runtime, progress: Progress = silent) -> Iterator[Ints]:
    """This rank's examples, batch by batch."""
    mine = chosen[runtime.rank :: runtime.world]
    for start in range(0, len(mine), batch):
        progress("evaluating", start, len(mine))
        yield mine[start : start + batch]
    progress("evaluating", len(mine), len(mine))


def run_split(
    model: Reasoner, domain: Domain, source: Source, how: Settings, here: Runtime, progress: Progress = silent
) -> Records:
    """Evaluate a split, or as much of it as the settings say. Ranks share the work; each example counts once."""
    return run_splits(model, domain, {"": source}, how, here, progress)[""]


def run_splits(
    model: Reasoner,
    domain: Domain,
    sources: Mapping[str, Source],
    how: Settings,
    here: Runtime,
    progress: Progress = silent,
) -> dict[str, Records]:
    """The same of several splits, a batch of each at a time: a few examples of many splits are little to do one by
    one."""
    shared = [shares(chosen_examples(len(s), how.limit), how.batch, here, progress) for s in sources.values()]
    parts: dict[str, list[Records]] = {name: [] for name in sources}
    with evaluating(model):
        for together in zip_longest(*shared):
            here_now = {name: index for name, index in zip(sources, together, strict=True) if index is not None}
            batches = [sources[name].fetch(index, np.zeros_like(index)) for name, index in here_now.items()]
            whole = Batch(*(np.concatenate([getattr(b, field) for b in batches]) for field in Batch.__annotations__))
            found, _ = run_batch(model, domain, whole, np.concatenate([*here_now.values()]), how)
            ends = np.cumsum([len(index) for index in here_now.values()])
            for name, rows in zip(here_now, np.split(np.arange(found.n), ends[:-1]), strict=True):
                parts[name].append(found.at(rows))
    by_rank = here.gather_objects(parts)
    return {name: join([part for rank in by_rank for part in rank[name]]) for name in sources}


@contextmanager
def evaluating(model: Reasoner) -> Iterator[None]:
    """Without dropout and noise, and then as before."""
    was = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was)


# Metrics --------------------------------------------------------------------------------------------------------------


def final_scores(records: Records) -> dict[str, float]:
    """The main protocol: the answer at the full budget."""
    return {
        "exact": float(records.exact[:, -1].mean()),
        "valid": float(records.valid[:, -1].mean()),
        "token": float(records.token[:, -1].mean()),
        "best_full": float(answered(records, "exact", "best_full").mean()),
    }


def picked_steps(records: Records) -> dict[str, Ints]:
    """For each way to answer, the column each example is answered at, within the steps the records have."""
    last = np.full(records.n, records.steps - 1)
    return {
        "final": last,
        "best_full": records.confidence.argmax(axis=1),
        "halting": np.where(records.halts.any(axis=1), records.halts.argmax(axis=1), last),
    }


def answered(records: Records, measure: str, way: str) -> npt.NDArray[Any]:
    """[n] the measure of each example, answered in that way."""
    column: npt.NDArray[Any] = getattr(records, measure)
    return column[np.arange(records.n), picked_steps(records)[way]]


def summarise(records: Records, budget: int, head: bool) -> SplitSummary:
    """Everything `eval.json` says about a split: each step, and each way to answer within the training budget and
    within all the steps that were run. `head`: whether the model has a halting head."""
    return SplitSummary(
        n=records.n,
        steps=Measures[Curve](**{m: Curve.of(curve, records.n) for m, curve in _curves(records).items()}),
        to_budget=_within(records.first(budget), head) if budget <= records.steps else None,
        to_end=_within(records, head),
    )


def _curves(records: Records) -> dict[str, Floats]:
    return {m: getattr(records, m).mean(axis=0, dtype=np.float64) for m in MEASURES}


def _within(records: Records, head: bool) -> Within:
    n, steps = records.n, records.steps
    return Within(
        steps=steps,
        final=Measures[Share](**_answered(records, "final")),
        best_full=Measures[Share](**_answered(records, "best_full")),
        best_step=Measures[BestStep](**{m: Curve.of(c, n).best(steps) for m, c in _curves(records).items()}),
        any_step=AnyStep(**{m: Share.of(getattr(records, m).any(axis=1).mean(), n) for m in ("exact", "valid")}),
        halting=_halting(records) if head else None,
    )


def _answered(records: Records, way: str) -> dict[str, Share]:
    return {m: Share.of(answered(records, m, way).mean(dtype=np.float64), records.n) for m in MEASURES}


def _halting(records: Records) -> Halting:
    return Halting(
        mean_step=float(picked_steps(records)["halting"].mean() + 1),
        halted=float(records.halts.any(axis=1).mean()),
        **_answered(records, "halting"),
        calibration=Calibrations(
            final=calibration(records.confidence[:, -1], records.exact[:, -1]),
            all_steps=calibration(records.confidence.ravel(), records.exact.ravel()),
        ),
    )


def calibration(logits: Floats, right: Bools) -> Calibration:
    """Does the halting probability say how likely the answer is right?"""
    p = stats.probability(logits)
    at = np.minimum((p * BINS).astype(np.int64), BINS - 1)
    count = np.bincount(at, minlength=BINS)
    confidence, accuracy = (np.bincount(at, v, minlength=BINS) / np.maximum(count, 1) for v in (p, right))
    return Calibration(
        auroc=auroc(logits, right),
        brier=float(((p - right) ** 2).mean()),
        ece=float((count * np.abs(confidence - accuracy)).sum() / count.sum()),
        bins=[
            Bin(n=int(n), confidence=float(c) if n else None, accuracy=float(a) if n else None)
            for n, c, a in zip(count, confidence, accuracy, strict=True)
        ],
    )


def auroc(score: Floats, right: Bools) -> float | None:
    """How often a right answer scores above a wrong one, ties counting half; None where all are right or all wrong."""
    positive = int(right.sum())
    negative = len(right) - positive
    if positive == 0 or negative == 0:
        return None
    _, group, counts = np.unique(score, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[group]
    return float((ranks[right].sum() - positive * (positive + 1) / 2) / (positive * negative))


def mean_of(parts: Sequence[SplitSummary]) -> SplitSummary:
    """The unweighted mean over splits, the splits taken as independent."""
    steps = {m: mean_share([getattr(p.steps, m) for p in parts]) for m in MEASURES}
    budgets = [p.to_budget for p in parts if p.to_budget is not None]
    return SplitSummary(
        n=sum(p.n for p in parts),
        steps=Measures[Curve](**steps),
        to_budget=_mean_within(budgets, steps) if budgets else None,
        to_end=_mean_within([p.to_end for p in parts], steps),
    )


def _mean_within(parts: Sequence[Within], curves: Mapping[str, Curve]) -> Within:
    def mean(way: str, measures: Sequence[str] = MEASURES) -> dict[str, Share]:
        return {m: mean_share([getattr(getattr(part, way), m) for part in parts]) for m in measures}

    steps = parts[0].steps
    return Within(
        steps=steps,
        final=Measures[Share](**mean("final")),
        best_full=Measures[Share](**mean("best_full")),
        best_step=Measures[BestStep](**{m: curve.best(steps) for m, curve in curves.items()}),
        any_step=AnyStep(**mean("any_step", ("exact", "valid"))),
    )


def mean_share(shares: Sequence[S]) -> S:
    """The distances to each end of the intervals add up in squares, as those of independent means do."""
    value, low, high = (np.array([getattr(s, k) for s in shares], dtype=np.float64) for k in ("value", "low", "high"))
    middle, count = value.mean(axis=0), len(shares)
    below, above = (np.sqrt(((value - end) ** 2).sum(axis=0)) / count for end in (low, high))
    return type(shares[0])(value=middle.tolist(), low=(middle - below).tolist(), high=(middle + above).tolist())
