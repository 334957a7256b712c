"""Findings: a claim, the rule that decides it, and the verdict that follows from stored results alone.

The rule is declared in the study's YAML as comparisons of two quantities. A comparison holds when the 95% interval of
its difference lies wholly on the claimed side, is contrary when it lies wholly on the other, and else undecided.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import Field

from ponder.base import stats
from ponder.base.errors import UserError, unknown
from ponder.base.stats import Estimate
from ponder.config.schema import Frozen, parse
from ponder.reports.values import Place, Quantity, StudyResults, compare, score_of
from ponder.studies.spec import Study

CONFIRMED, NOT_TESTABLE, NOT_RUN = "confirmed", "not testable", "not run yet"
UNDECIDED, CONTRARY = "not confirmed: undecided", "not confirmed: contrary"
Outcome = Literal["holds", "undecided", "contrary"]
"""Of one comparison."""

Side = str | Mapping[str, Any]
"""A variant's name, or the parts of a quantity that this side changes, `variant` among them."""


class Test(Frozen):
    a: Side = Field({})
    b: Side | tuple[Side, ...] = Field({})
    """Several: the comparison must hold with each of them."""
    of: Mapping[str, Any] = {}
    """What is compared, a quantity; each side may change parts of it."""
    is_: Literal["greater", "less", "within", "not_greater"] = Field(alias="is")
    margin: float = 0.0
    """In points for accuracies."""
    than: float | None = None
    """Compare `a` with this number, in points for accuracies, instead of with `b`."""
    at: Literal["end", "seconds", "updates"] = "end"
    """At the end of each training, or at the smallest common total of this."""
    spread: bool = False
    """Compare the standard deviations over seeds instead of the means."""


class Finding(Frozen):
    id: str
    claim: str
    source: Literal["paper", "beyond"] = "paper"
    tests: tuple[Test, ...]
    need: Literal["all", "any"] = "all"
    not_testable: Mapping[Literal["mini", "paper"], str] = {}


@dataclass(frozen=True)
class Compared:
    """One comparison, evaluated."""

    words: str
    estimate: Estimate | None
    outcome: Outcome | None
    """None: it cannot be said."""
    why: str
    unit: str
    needed: frozenset[Place]
    """The trainings it compares."""
    missing: frozenset[Place]
    sides: tuple[tuple[str, Quantity], tuple[str, Quantity]] | None
    """Variant and quantity of each side; None where it is no comparison of two final values."""


@dataclass(frozen=True)
class Judgement:
    finding: Finding
    verdict: str
    why: str
    compared: tuple[Compared, ...]


def judge(finding: Finding, results: StudyResults) -> Judgement:
    """The verdict, from the declared rule and what is stored."""
    scale: Literal["mini", "paper"] = "paper" if results.scale == "paper" else "mini"
    if scale in finding.not_testable:
        return Judgement(finding, NOT_TESTABLE, finding.not_testable[scale], ())
    compared = tuple(c for test in finding.tests for c in _compared(test, results))
    if not compared:
        return Judgement(finding, NOT_TESTABLE, f"its task is left out of the {scale} form", ())
    if finding.need == "any" and any(c.outcome == "holds" and not c.missing for c in compared):
        return Judgement(finding, CONFIRMED, _part(finding, compared), compared)
    needed = {place for c in compared for place in c.needed}
    if missing := {place for c in compared for place in c.missing}:
        why = f"{len(needed) - len(missing)} of the {len(needed)} trainings it compares are there"
        if lost := len(missing & {*results.failed}):
            why += f", {lost} failed"
        return Judgement(finding, NOT_RUN, why, compared)
    unknown = [c for c in compared if c.outcome is None]
    if unknown:
        return Judgement(finding, NOT_TESTABLE, unknown[0].why, compared)
    counts = Counter(c.outcome for c in compared)
    if counts["holds"] == len(compared):
        return Judgement(finding, CONFIRMED, _part(finding, compared), compared)
    if finding.need == "any" and (part := _part(finding, compared)):
        return Judgement(finding, NOT_TESTABLE, f"{part}, and none of those it has holds", compared)
    enough = len(compared) if finding.need == "any" else 1
    verdict = CONTRARY if counts["contrary"] >= enough else UNDECIDED
    mixed = ", ".join(f"{n} {outcome}" for outcome, n in counts.items()) if len(counts) > 1 else ""
    return Judgement(finding, verdict, mixed, compared)


def _part(finding: Finding, compared: tuple[Compared, ...]) -> str:
    """Which part of a claim this scale can speak of; nothing where it is all of it."""
    declared = sum(len(test.b) if isinstance(test.b, tuple) else 1 for test in finding.tests)
    return "" if len(compared) == declared else f"this scale has {len(compared)} of its {declared} comparisons"


def _compared(test: Test, results: StudyResults) -> Iterator[Compared]:
    for (variant_a, of_a), (variant_b, of_b) in pairs_of(test, results.study):
        if {results.task_of(of) for of in (of_a, of_b)} <= set(results.tasks):
            yield _compare(test, results, variant_a, of_a, variant_b, of_b)


def pairs_of(test: Test, study: Study) -> list[tuple[tuple[str, Quantity], tuple[str, Quantity]]]:
    """What is compared with what, checked. Where it is a number, both sides are the first."""
    first = _side(test.a, test, study)
    if test.than is not None:
        return [(first, first)]
    return [(first, _side(b, test, study)) for b in (test.b if isinstance(test.b, tuple) else (test.b,))]


def _side(side: Side, test: Test, study: Study) -> tuple[str, Quantity]:
    parts = {"variant": side} if isinstance(side, str) else dict(side)
    variant = str(parts.pop("variant", study.baseline))
    if variant not in study.variants:
        raise unknown(f"variant in a finding of {study.name}", variant, study.variants)
    of = parse(Quantity, {**test.of, **parts}, f"a finding of {study.name}")
    if (of.score is None) == (of.field is None):
        raise UserError(f"study {study.name}: a finding's `of` needs exactly one of score and field")
    if of.score is not None:
        score_of(of.score)
    return variant, of


def _compare(
    test: Test, results: StudyResults, variant_a: str, of_a: Quantity, variant_b: str, of_b: Quantity
) -> Compared:
    clock = None
    if test.at != "end":
        clock = results.clock("update" if test.at == "updates" else "seconds", [variant_a, variant_b], of_a)
    a, b = results.readings(variant_a, of_a, clock), results.readings(variant_b, of_b, clock)
    sides = ((variant_a, of_a), (variant_b, of_b))
    places = [(results.task_of(of), variant) for variant, of in sides]
    needed = frozenset((*place, seed) for place in places for seed in results.seeds(*place))
    missing = frozenset(place for place in needed if results.cells[place] is None)
    percent = of_a.percent and not test.spread
    unit = "points" if percent else "times" if test.spread else ""
    if test.spread:
        found = stats.spread_ratio([r.value for r in a.values()], [r.value for r in b.values()])
        margin = 0.0
    else:
        by = 100 if percent else 1
        found = compare(a, b) if test.than is None else _against(results, variant_a, of_a, test.than / by)
        margin = test.margin / by
    outcome, why = decide(found, test.is_, margin)
    if test.spread:
        why = why.replace("includes 0", "includes 1")  # a ratio is decided by its logarithm
        if found is None and not missing:
            why = "the spread over seeds is 0 or there is one seed only"
    words = _words(test, results, variant_a, of_a, variant_b, of_b)
    if test.than is not None:
        described = [x for x, usual in zip(_described(variant_a, of_a, results), DEFAULTS, strict=True) if x != usual]
        words = f"{', '.join(described)} minus {test.than:g}"
    if clock is not None:
        words += f", at {clock.at:,.0f} {'updates' if clock.axis == 'update' else 'seconds spent in updates'} each"
    final = clock is None and test.than is None
    return Compared(words, found, outcome, why, unit, needed, missing, sides if final else None)


def _against(results: StudyResults, variant: str, of: Quantity, number: float) -> Estimate | None:
    """A mean as a difference from a number."""
    found = results.estimate(variant, of)
    if found is None or found.low is None or found.high is None:
        return None
    return replace(found, value=found.value - number, low=found.low - number, high=found.high - number)


def decide(found: Estimate | None, claimed: str, margin: float) -> tuple[Outcome | None, str]:
    """Whether the interval lies wholly on the claimed side; if not, where it lies."""
    if found is None:
        return None, "one side has no result"
    if found.low is None or found.high is None or not (math.isfinite(found.low) and math.isfinite(found.high)):
        return None, "one seed and no examples to resample give no interval"
    low, high = found.low, found.high
    if claimed in ("greater", "less"):
        value = found.value
        if claimed == "less":
            low, high, value = -high, -low, -value
        if low > margin:
            return "holds", ""
        if high < margin:
            short = margin > 0 and high >= 0
            return "contrary", f"the interval lies {'below the margin' if short else 'on the other side'}"
        mean = "the mean is as claimed" if value > margin else "the mean is not as claimed"
        return "undecided", f"the interval includes {'0' if margin == 0 else 'the margin'}, {mean}"
    inside, outside = high < margin, low > margin
    if claimed == "within":
        inside, outside = inside and -margin < low, outside or high < -margin
    if inside:
        return "holds", ""
    if outside:
        return "contrary", "the interval lies beyond the margin"
    return "undecided", "the interval reaches beyond the margin"


def _words(test: Test, results: StudyResults, variant_a: str, of_a: Quantity, variant_b: str, of_b: Quantity) -> str:
    """Both sides in words; what they share is said once."""
    parts_a, parts_b = _described(variant_a, of_a, results), _described(variant_b, of_b, results)
    both = list(zip(parts_a, parts_b, DEFAULTS, strict=True))
    shared = [x for x, y, usual in both if x == y and x != usual]
    left, right = ([pair[side] for pair in both if pair[0] != pair[1]] for side in (0, 1))
    what = f"{', '.join(left)} minus {', '.join(right)}"
    if test.spread:
        what = f"spread over seeds of {what.replace(' minus ', ' over ')}"
    return f"{what} ({', '.join(shared)})" if shared else what


DEFAULTS = ("", "", "", "last checkpoint", "EMA weights", "at the training budget")


def _described(variant: str, of: Quantity, results: StudyResults) -> list[str]:
    ways = {
        "budget": DEFAULTS[-1],
        "end": "at the last forced step",
        "best_step": "at the best step",
        "best_full": "at the most confident step",
        "halting": "at its own halting",
    }
    metric = of.metric or (score_of(of.score).metric if of.score else "")
    return [
        (results.study.variants[variant].title or variant) if len(results.study.variants) > 1 else "",
        of.score or str(of.field).replace("grad_norm", "mean gradient norm"),
        "" if metric.startswith("pass") else metric,
        f"{of.checkpoint} checkpoint",
        "EMA weights" if of.weights == "ema" else "online weights",
        ways.get(str(of.way), f"at step {of.way}"),
    ]
