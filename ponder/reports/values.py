"""What a report reads: quantities of stored cells, one number for each seed. Nothing is trained or filled in."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from pydantic import Field

from ponder.base import stats
from ponder.base.errors import UserError, unknown
from ponder.base.stats import Estimate, Pool
from ponder.config.schema import Frozen, Select, parse
from ponder.reports.llms import LlmResult
from ponder.studies.fixed import FixedAnswers
from ponder.studies.result import CellResult, CurvePoint, Metric
from ponder.studies.spec import OWN, SEARCHES, Study, WeightSet, shared
from ponder.studies.store import unpack

SCORES = "_scores.yaml"
Place = tuple[str, str, int]
"""Task, variant, seed: where a training stands in its study."""
Bits = npt.NDArray[np.bool_]
SEARCH = "search "
_SPLITS = "|".join(f"{restarts}x{depth}" for restarts, depth in SEARCHES)
Searched = Annotated[str, Field(pattern=f"^{SEARCH}({'|'.join(get_args(Select))}) ({_SPLITS})$")]
"""`search residual 4x1`: the rule, the restarts, and the depth of each in ACT budgets."""
Way = Literal["budget", "end", "best_step", "best_full", "halting"] | int | Searched
"""Where the last checkpoint's answer is taken: a number is that forced ACT step, end the last one that the study asks
for."""


class Score(Frozen):
    """A name that tables use for a task's accuracy on a split, or on the unweighted mean of several."""

    task: str
    splits: tuple[str, ...]
    metric: Literal["exact", "valid", "token", "pass@1", "pass@2"] = "valid"
    unique: bool = False
    """Whether each puzzle has one answer, so that `valid` is `exact`."""


class Quantity(Frozen):
    """One number of a cell."""

    label: str = ""
    score: str | None = None
    field: (
        Literal["grad_norm", "seconds", "updates", "parameters", "residual", "stretch", "settled", "bounded"] | None
    ) = None
    """A quantity of a whole cell, which is no share of examples. Of the last four, which `after.trace` measures: that
    of the step which reaches the training budget, the median over examples or their share; `bounded` of all steps up to
    it."""
    task: str | None = None
    """Whose cell a field is of; without it, the study's only or first task's."""
    metric: Literal["exact", "valid", "token", "pass@1", "pass@2"] | None = None
    """Instead of the score's own."""
    checkpoint: Literal["last", "chosen", "peak", "end_of_curve"] = "last"
    """last: measured after training, on more examples; the others are evaluations while training. chosen: on val; peak:
    on the score itself, so optimistic; end_of_curve: the last of them."""
    weights: Literal["ema", "online"] = "ema"
    way: Way = "budget"
    minus: Way | None = None
    """The gain over the answer that is taken this way, instead of the value."""
    show: Literal["value", "update", "step"] = "value"
    """Instead of the value: the update the checkpoint was made at, or the ACT step that was best, or of a search the
    ACT steps of all restarts."""

    @property
    def percent(self) -> bool:
        return self.field is None and self.show == "value"


@dataclass(frozen=True)
class Value:
    """A quantity of one cell."""

    value: float
    n: int | None = None
    """Examples of each split; None where it is no share of examples."""
    parts: int = 1
    """Splits whose mean it is."""
    bits: tuple[Bits, ...] | None = None
    """Right or wrong, for each example of each split, where stored."""
    examples: tuple[str, ...] = ()
    """What the examples are: data hash and split. Only the same examples can be paired."""


@dataclass(frozen=True)
class Clock:
    """Compare at equal `axis` (seconds or updates): at this much of it. None: at the end of each training."""

    axis: Literal["seconds", "update"]
    at: float


def scores() -> dict[str, Score]:
    return _scores(OWN.absolute())


@cache
def _scores(own: Path) -> dict[str, Score]:
    """Those that come with ponder and those of this folder."""
    return {name: parse(Score, score, f"{SCORES} {name}") for name, score in shared(SCORES).items()}


def score_of(name: str) -> Score:
    known = scores()
    if name not in known:
        raise unknown("score", name, known)
    return known[name]


# One cell -------------------------------------------------------------------------------------------------------------


def read(stored: CellResult, wanted: Quantity, clock: Clock | None = None) -> Value | None:
    """The quantity, or None where this cell does not have it."""
    if wanted.field is not None:
        return _field(stored, wanted.field)
    if wanted.minus is not None:
        ways = (wanted.model_copy(update={"way": way, "minus": None}) for way in (wanted.way, wanted.minus))
        first, second = (read(stored, each, clock) for each in ways)
        return None if first is None or second is None else Value(first.value - second.value)
    assert wanted.score is not None
    score = score_of(wanted.score)
    metric = wanted.metric or score.metric
    if metric == "pass@1" or metric == "pass@2":
        return _passes(stored, score.splits[0], metric, wanted) if clock is None else None
    if clock is not None:
        return _on_clock(stored, score, metric, wanted, clock)
    if wanted.checkpoint == "last" and (measured := _measured(stored, score, metric, wanted)) is not None:
        return measured
    if wanted.way not in ("budget", "best_full") or wanted.show == "step":
        return None
    return _from_curve(stored, score, metric, wanted)


def _field(stored: CellResult, field: str) -> Value | None:
    if field in ("residual", "stretch", "settled", "bounded"):
        trace = stored.after.trace
        if trace is None:
            return None
        if field == "bounded":
            return None if trace.bounded is None else Value(float(np.mean(trace.bounded)))
        settled = trace.table["settled_right"] + trace.table["settled_wrong"]
        return Value(settled / trace.n if field == "settled" else getattr(trace, field)[-1].median)
    values = {
        "grad_norm": stored.summary.mean_grad_norm,
        "seconds": stored.seconds,
        "updates": stored.updates,
        "parameters": stored.cost.parameters,
    }
    return Value(float(values[field]))


def _passes(stored: CellResult, split: str, metric: str, wanted: Quantity) -> Value | None:
    """ARC votes, a task solved when all its test inputs are. They are counted at the training budget and at the end."""
    profile = stored.after.profile(wanted.weights, split)
    if profile is None or profile.arc is None or wanted.checkpoint != "last" or wanted.show != "value":
        return None
    known = {"budget": stored.after.budget, "end": stored.after.steps}
    step = wanted.way if isinstance(wanted.way, int) else known.get(wanted.way)
    votes = next((votes for votes in profile.arc.at_step if votes.step == step), None)
    return None if votes is None else Value(votes.all_test_inputs[metric].value, profile.arc.tasks)


def _measured(stored: CellResult, score: Score, metric: Metric, wanted: Quantity) -> Value | None:
    """From the measurement after training, which has every forced step and the single examples."""
    after = stored.after
    if isinstance(wanted.way, str) and wanted.way.startswith(SEARCH):
        return _searched(stored, score, metric, wanted)
    parts = [part for split in score.splits if (part := after.profile(wanted.weights, split)) is not None]
    if len(parts) < len(score.splits):
        return None
    curve = np.mean([getattr(part, metric) for part in parts], axis=0)
    budget, bits = min(after.budget, len(curve)), None
    if wanted.way in ("best_full", "halting"):
        answered = [getattr(part, wanted.way) for part in parts]
        if None in answered:
            return None
        value = float(np.mean([getattr(each, "mean_step" if wanted.show == "step" else metric) for each in answered]))
        if wanted.way == "best_full":
            bits = _bits([(part.bits_full, part.n) for part in parts], metric)
    else:
        steps = {"budget": budget, "end": len(curve), "best_step": int(curve.argmax()) + 1}
        step = wanted.way if isinstance(wanted.way, int) else steps[wanted.way]
        if step > len(curve):
            return None
        value = float(curve[step - 1]) if wanted.show == "value" else float(step)
        if step in (budget, len(curve)):
            bits = _bits([(part.bits if step == budget else part.bits_end, part.n) for part in parts], metric)
    if wanted.show == "update":
        profiles = after.ema if wanted.weights == "ema" else after.online
        assert profiles is not None
        value = float(profiles.update)
    examples = tuple(f"{stored.data_hash} {split}" for split in score.splits)
    n = min(part.n for part in parts)
    return Value(value, n if wanted.show == "value" else None, len(parts), bits, examples)


def _searched(stored: CellResult, score: Score, metric: Metric, wanted: Quantity) -> Value | None:
    """What a search found, of which only valid answers are kept."""
    found, name = stored.after.search, str(wanted.way).removeprefix(SEARCH)
    point = next((each for each in found.results if each.policy == name), None) if found else None
    kept = metric == "valid" or (metric == "exact" and score.unique)
    if found is None or point is None or not kept or (found.split,) != score.splits or wanted.weights != "ema":
        return None
    if wanted.show != "value":
        return Value(point.mean_steps) if wanted.show == "step" else None
    bits = None if point.bits is None else (unpack(point.bits, found.n),)
    return Value(point.valid.value, found.n, 1, bits, (f"{stored.data_hash} {found.split}",))


def _bits(parts: Sequence[tuple[Any, int]], metric: Metric) -> tuple[Bits, ...] | None:
    packed = [(getattr(bits, metric, ""), n) for bits, n in parts]
    return tuple(unpack(text, n) for text, n in packed) if all(text for text, _ in packed) else None


def rows_of(
    stored: CellResult, score: Score, metric: Metric, weights: WeightSet, way: str | int = "budget"
) -> list[tuple[CurvePoint, float]]:
    """Each evaluation while training, and its score. At the most confident step only `exact` was measured; where each
    answer is unique, `valid` is the same."""
    name: str = metric
    if way == "best_full":
        if metric != "exact" and not (metric == "valid" and score.unique):
            return []
        name = "best_full"
    return [
        (row, float(np.mean([getattr(row.of(weights)[split], name) for split in score.splits])))
        for row in stored.curve
        if all(split in row.of(weights) for split in score.splits)
    ]


def _n(stored: CellResult, score: Score) -> int:
    return min(stored.n[split] for split in score.splits)


def _from_curve(stored: CellResult, score: Score, metric: Metric, wanted: Quantity) -> Value | None:
    rows = rows_of(stored, score, metric, wanted.weights, wanted.way)
    if not rows:
        return None
    if wanted.checkpoint == "peak":
        row, value = max(rows, key=lambda each: (each[1], -each[0].update))
    else:
        chosen = stored.summary.chosen_on_val.update if wanted.checkpoint == "chosen" else rows[-1][0].update
        row, value = next(each for each in rows if each[0].update == chosen)
    if wanted.show == "update":
        return Value(float(row.update))
    return Value(value, _n(stored, score), len(score.splits))


def _on_clock(stored: CellResult, score: Score, metric: Metric, wanted: Quantity, clock: Clock) -> Value | None:
    """Between two evaluations the curve is taken as straight; before the first there is nothing. The end of a training
    is what was measured after it, on more examples."""
    if clock.axis == "update" and clock.at == stored.updates:
        measured = _measured(stored, score, metric, wanted)
        if measured is not None:
            return measured
    rows = rows_of(stored, score, metric, wanted.weights, wanted.way)
    x = [row.along(clock.axis) for row, _ in rows]
    if not x or clock.at < x[0] or clock.at > x[-1] * (1 + 1e-9):
        return None
    value = float(np.interp(clock.at, x, [value for _, value in rows]))
    return Value(value, _n(stored, score), len(score.splits))


# All cells of a study -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StudyResults:
    """A study at one scale and what is stored of it."""

    study: Study
    scale: str
    cells: Mapping[Place, CellResult | None]
    """What is stored; None: not finished."""
    failed: Mapping[Place, str]
    llms: Mapping[str, Mapping[str, LlmResult]]
    """Language model -> data hash -> its llm.json."""
    fixed: Mapping[str, FixedAnswers] = field(default_factory=dict)
    """Task -> what the best fixed answers score on the baseline's data."""

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(task for task, _, _ in self.cells))

    @property
    def done(self) -> int:
        return sum(stored is not None for stored in self.cells.values())

    def seeds(self, task: str, variant: str) -> list[int]:
        return [s for t, v, s in self.cells if (t, v) == (task, variant)]

    def stored(self, task: str, variant: str) -> dict[int, CellResult]:
        """The finished cells of a variant, by seed."""
        found = {s: self.cells[task, variant, s] for s in self.seeds(task, variant)}
        return {seed: stored for seed, stored in found.items() if stored is not None}

    def task_of(self, wanted: Quantity) -> str:
        return score_of(wanted.score).task if wanted.score else wanted.task or self.tasks[0]

    def readings(self, variant: str, wanted: Quantity, clock: Clock | None = None) -> dict[int, Value]:
        if variant not in self.study.variants:
            raise unknown(f"variant of {self.study.name}", variant, self.study.variants)
        cells = self.stored(self.task_of(wanted), variant)
        every = {s: read(c, self._asked(wanted, c), clock) for s, c in cells.items()}
        return {seed: reading for seed, reading in every.items() if reading is not None}

    def _asked(self, wanted: Quantity, stored: CellResult) -> Quantity:
        """The end is the last step that this study asks for; another one may have measured the training deeper."""
        last = self.study.measured(self.scale).steps or stored.after.budget
        if last >= stored.after.steps or "end" not in (wanted.way, wanted.minus):
            return wanted
        ways = {name: last for name in ("way", "minus") if getattr(wanted, name) == "end"}
        return wanted.model_copy(update=ways)

    def estimate(self, variant: str, wanted: Quantity, clock: Clock | None = None) -> Estimate | None:
        found = list(self.readings(variant, wanted, clock).values())
        if not found:
            return None
        return stats.estimate([r.value for r in found], _least(r.n for r in found), found[0].parts)

    def constant(self, wanted: Quantity) -> Estimate | None:
        """What the best fixed answer scores, a number of the data."""
        score = score_of(wanted.score) if wanted.score else None
        metric = (wanted.metric or score.metric) if score else None
        found = self.fixed.get(score.task) if score else None
        if score is None or found is None or metric not in ("exact", "valid") or not wanted.percent:
            return None
        if wanted.minus is not None:
            return None
        parts = [found.splits[split] for split in score.splits]
        mean = float(np.mean([getattr(part, metric) for part in parts]))
        return Estimate(mean, 0, None, None, None, min(part.n for part in parts))

    def compare(self, a: tuple[str, Quantity], b: tuple[str, Quantity], clock: Clock | None = None) -> Estimate | None:
        """a - b, each a variant and its quantity; the spread over seeds is pooled over all variants of the study."""
        return compare(self.readings(*a, clock), self.readings(*b, clock), self._pool(a, b, clock))

    def _pool(self, a: tuple[str, Quantity], b: tuple[str, Quantity], clock: Clock | None) -> Pool | None:
        """Residuals of every variant measured in the same way that has the seeds which these two share: one that is
        still in training does not count. Scores only: other numbers, such as gradient norms, spread by their size."""
        (first, of_a), (second, of_b) = a, b
        if not of_a.percent or self.task_of(of_a) != self.task_of(of_b):
            return None
        every = [(self.readings(v, of_a, clock), self.readings(v, of_b, clock)) for v in self.study.variants]
        ours, theirs = self.readings(first, of_a, clock), self.readings(second, of_b, clock)
        seeds = [seed for seed in ours if seed in theirs]
        full = [(x, y) for x, y in every if all(seed in x and seed in y for seed in seeds)] if seeds else []
        if first == second:
            return stats.within([[x[s].value - y[s].value for s in seeds] for x, y in full])
        return stats.blocks([[x[s].value for s in seeds] for x, _ in full]) if of_a == of_b else None

    def correlate(self, x: Quantity, y: Quantity) -> Estimate | None:
        """Spearman's correlation over the trainings of all variants, with the seeds that all of them have."""
        task = self.task_of(x)
        if self.task_of(y) != task:
            raise UserError(f"study {self.study.name}: {task} and {self.task_of(y)} have no trainings in common")
        every = [(self.readings(v, x), self.readings(v, y)) for v in self.variants(task)]
        seeds = [s for s in (every[0][0] if every else ()) if all(s in a and s in b for a, b in every)]
        sides = ([[pair[side][s].value for s in seeds] for pair in every] for side in (0, 1))
        return stats.rank_correlation(*sides) if seeds else None

    def variants(self, task: str) -> list[str]:
        """Those that are trained on it."""
        return [variant for variant in self.study.variants if self.seeds(task, variant)]

    def clock(self, axis: Literal["seconds", "update"], variants: Iterable[str], wanted: Quantity) -> Clock | None:
        """The smallest common total: what every finished training of these variants has reached."""
        task = self.task_of(wanted)
        totals = [c.curve[-1].along(axis) for v in variants for c in self.stored(task, v).values()]
        return Clock(axis, min(totals)) if totals else None


@dataclass(frozen=True)
class Point:
    """A halting policy of one cell."""

    steps: float
    valid: float
    n: int


def policies_of(results: StudyResults, task: str, variant: str) -> dict[str, list[Point]]:
    """Policy -> what it came to, for each seed."""
    out: dict[str, list[Point]] = {}
    for cell in results.stored(task, variant).values() if task in results.tasks else ():
        if (policies := cell.after.policies) is not None:
            for each in policies.results:
                out.setdefault(each.policy, []).append(Point(each.mean_steps, each.valid.value, policies.n))
    return out


def _least(counts: Iterable[int | None]) -> int | None:
    known = [n for n in counts if n is not None]
    return min(known) if known else None


def compare(a: Mapping[int, Value], b: Mapping[int, Value], pool: Pool | None = None) -> Estimate | None:
    """a - b over the seeds that both have; example by example where the answers are stored."""
    seeds = [seed for seed in a if seed in b]
    if not seeds:
        return None
    ours, theirs = [a[s] for s in seeds], [b[s] for s in seeds]
    n = _least(r.n for r in (*ours, *theirs))
    half, paired = None, False
    if n is not None:
        arrays = _paired_arrays(ours, theirs)
        paired = arrays is not None
        if arrays is not None:
            half = math.hypot(*(stats.paired_half(each) for each in arrays)) / len(arrays)
        else:
            means = [float(np.mean([r.value for r in side])) for side in (ours, theirs)]
            counts = [(r.n or 1) * r.parts for r in (ours[0], theirs[0])]
            half = stats.unpaired_half(means[0], counts[0], means[1], counts[1])
    return stats.difference([r.value for r in ours], [r.value for r in theirs], half, n, paired, pool)


def _paired_arrays(a: Sequence[Value], b: Sequence[Value]) -> list[npt.NDArray[np.floating[Any]]] | None:
    """For each split [seeds, examples] of a - b; None unless all of them answered the same examples."""
    every = [*a, *b]
    if any(r.bits is None or r.examples != every[0].examples for r in every):
        return None
    shapes = {tuple(len(bits) for bits in r.bits or ()) for r in every}
    if len(shapes) != 1:
        return None
    sides = [[np.stack([(r.bits or ())[part] for r in side]) for part in range(a[0].parts)] for side in (a, b)]
    return [x.astype(np.float64) - y for x, y in zip(*sides, strict=True)]


# Language models ------------------------------------------------------------------------------------------------------


def llm_estimate(results: StudyResults, model: str, wanted: Quantity) -> Estimate | None:
    """A language model's score on the very data that this study's cells were judged on."""
    if wanted.score is None:
        return None
    score = score_of(wanted.score)
    hashes = {c.data_hash for (task, _, _), c in results.cells.items() if task == score.task and c is not None}
    found = next((results.llms[model][h] for h in sorted(hashes) if h in results.llms[model]), None)
    parts = [found.splits.get(split) for split in score.splits] if found else []
    shares = [part.share(wanted.metric or score.metric) for part in parts if part is not None and part.complete]
    known = [share for share in shares if share is not None]
    if not parts or len(known) < len(parts):
        return None
    return stats.estimate([float(np.mean([value for value, _ in known]))], min(n for _, n in known), len(known))
