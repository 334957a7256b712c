"""Findings: a claim, the rule that decides it, and the verdict that follows from stored results alone.

The rule is declared in the study's YAML as comparisons of two quantities, before they are run. A finding is confirmed
when every one of its comparisons holds, contrary when one of them is turned round by more than their number explains,
absent when a difference of the size that matters is ruled out in one of them; "the same" is claimed with a margin and
tested from both sides. All findings of a study are one family, corrected as such (Holm), and a finding with one seed is
not tested at all.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import Field

from ponder.base import stats
from ponder.base.errors import UserError, unknown
from ponder.base.stats import Estimate
from ponder.config.schema import Frozen, parse
from ponder.reports.values import SEARCH, Clock, Place, Quantity, StudyResults, Way, score_of
from ponder.studies.spec import Form, Study, form

CONFIRMED, NOT_TESTABLE, NOT_RUN = "confirmed", "not testable", "not run yet"
UNDECIDED, CONTRARY, ABSENT = "not confirmed: undecided", "not confirmed: contrary", "not confirmed: absent"
DECIDED = (CONFIRMED, CONTRARY, ABSENT)
ONE_SEED, LEFT_OUT = "one seed", "its task is left out"
FAMILY = 2 * stats.LEVEL
"""How likely any false verdict among the findings of a study may be."""
MATTERS = 0.02
"""A difference of accuracies that a claim of more or less should come to, unless the paper's own is smaller."""
Outcome = Literal["holds", "undecided", "contrary", "absent"]
"""Of one comparison."""
Paper = Callable[[tuple[str, Quantity]], float | None]
"""The paper's number for a variant and its quantity, in points for accuracies."""

Side = str | Mapping[str, Any]
"""A variant's name, or the parts of a quantity that this side changes, `variant` among them."""


class Test(Frozen):
    a: Side = Field({})
    b: Side | tuple[Side, ...] = Field({})
    """Several: the comparison must hold with each of them."""
    of: Mapping[str, Any] = {}
    """What is compared, a quantity; each side may change parts of it."""
    is_: Literal["greater", "less", "within"] = Field(alias="is")
    margin: float = 0.0
    """In points for accuracies. greater, less: by more than this; a negative one allows a loss of so much. within: no
    further apart than this, on either side."""
    than: float | None = None
    """Compare `a` with this number, in points for accuracies, instead of with `b`."""
    at: Literal["end", "seconds", "updates"] = "end"
    """At the end of each training, or at the smallest common total of this."""
    spread: bool = False
    """Compare the standard deviations over seeds instead of the means."""
    rank: bool = False
    """Whether, over the trainings of all variants, `a` goes up (greater) or down (less) with `b`: the sign of
    Spearman's correlation."""


class Finding(Frozen):
    id: str
    claim: str
    source: Literal["paper", "beyond"] = "paper"
    tests: tuple[Test, ...] = Field(min_length=1)
    not_testable: Mapping[Form, str] = {}


@dataclass(frozen=True)
class Compared:
    """One comparison, evaluated."""

    words: str
    estimate: Estimate | None
    decision: "Decision"
    same: bool
    """Whether it claims that there is no difference."""
    unit: str
    needed: frozenset[Place]
    """The trainings it compares."""
    missing: frozenset[Place]
    sides: tuple[tuple[str, Quantity], tuple[str, Quantity]] | None
    """Variant and quantity of each side; None where it is no comparison of two final values."""


@dataclass(frozen=True)
class Decision:
    outcome: Outcome | None
    """Of the comparison alone; None: it cannot be said."""
    why: str
    holds: float = 1.0
    """How likely such a result is if the claim is wrong: its p-value."""
    turned: float = 1.0
    """The same of the claim's opposite."""
    absent: float = 1.0
    """And of a difference that is smaller than what matters, or on the other side."""


@dataclass(frozen=True)
class Judgement:
    finding: Finding
    verdict: str
    why: str
    compared: tuple[Compared, ...]
    chance: float | None = None
    """p-value of the verdict, or of what an undecided finding leans to, two-sided, for the family it belongs to; None
    where nothing was tested."""


def judge(findings: Sequence[Finding], results: StudyResults, paper: Paper = lambda side: None) -> list[Judgement]:
    """The verdicts of a study, from the declared rules and what is stored."""
    found = [_judge(finding, results, paper) for finding in findings]
    tested = [each for each in found if isinstance(each, Tested)]
    # Where the truth lies decides which verdicts would be false, and at no place are those more likely than twice the
    # smallest p-value says: equal ones may be called more or less, a difference that matters may be called absent.
    least = [min(1.0, 2 * min(each.chances.values())) for each in tested]
    corrected = {id(each): chance for each, chance in zip(tested, stats.holm(least), strict=True)}
    return [
        each.judged(corrected[id(each)], results.study.looks, len(tested)) if isinstance(each, Tested) else each
        for each in found
    ]


@dataclass(frozen=True)
class Tested:
    """A finding whose comparisons are all there, before its family is looked at."""

    finding: Finding
    compared: tuple[Compared, ...]
    chances: Mapping[str, float]
    """Verdict -> its p-value, one-sided; of several that are sure enough the first counts."""

    def judged(self, corrected: float, looks: int, family: int) -> Judgement:
        """`corrected`: the smallest p-value of the family; what raised it raises the others alike."""
        alone = min(1.0, 2 * min(self.chances.values()))
        factor = looks * (corrected / alone if alone else 1.0)
        counts = Counter(c.decision.outcome for c in self.compared)
        mixed = ", ".join(f"{n} {outcome}" for outcome, n in counts.items()) if len(counts) > 1 else ""
        for verdict, chance in self.chances.items():
            if (chance := min(1.0, 2 * factor * chance)) <= FAMILY:
                return Judgement(self.finding, verdict, mixed, self.compared, chance)
        would = next((verdict for verdict, chance in self.chances.items() if 2 * chance <= FAMILY), None)
        why = f"{would.rpartition(': ')[2]} if it were the only one of {family} findings" if would else ""
        why += f" and this the first of {looks} looks" if would and looks > 1 else ""
        why = "; ".join(filter(None, (mixed, why)))
        return Judgement(self.finding, UNDECIDED, why, self.compared, min(1.0, looks * corrected))


def _judge(finding: Finding, results: StudyResults, paper: Paper) -> Judgement | Tested:
    scale = form(results.scale)
    if scale in finding.not_testable:
        return Judgement(finding, NOT_TESTABLE, finding.not_testable[scale], ())
    compared = tuple(c for test in finding.tests for c in _compared(test, results, paper))
    if len(compared) < sum(len(test.b) if isinstance(test.b, tuple) else 1 for test in finding.tests):
        return Judgement(finding, NOT_TESTABLE, f"{LEFT_OUT} of the {scale} form", compared)
    needed = {place for c in compared for place in c.needed}
    if missing := {place for c in compared for place in c.missing}:
        why = f"{len(needed) - len(missing)} of the {len(needed)} trainings it compares are there"
        if lost := len(missing & {*results.failed}):
            why += f", {lost} failed"
        return Judgement(finding, NOT_RUN, why, compared)
    if any(c.estimate is not None and c.estimate.seeds < 2 for c in compared):
        return Judgement(finding, NOT_TESTABLE, ONE_SEED, compared)
    unknown = [c for c in compared if c.decision.outcome is None]
    if unknown:
        return Judgement(finding, NOT_TESTABLE, unknown[0].decision.why, compared)
    # All comparisons together hold as surely as the least sure of them; that one of several is turned round, or absent,
    # is as likely by chance as there are comparisons.
    chances = {
        CONFIRMED: max(c.decision.holds for c in compared),
        CONTRARY: min(1.0, len(compared) * min(c.decision.turned for c in compared)),
        ABSENT: min(1.0, len(compared) * min(c.decision.absent for c in compared)),
    }
    return Tested(finding, compared, chances)


def _compared(test: Test, results: StudyResults, paper: Paper) -> Iterator[Compared]:
    for (variant_a, of_a), (variant_b, of_b) in pairs_of(test, results.study):
        if all(results.seeds(results.task_of(of), v) for v, of in ((variant_a, of_a), (variant_b, of_b))):
            yield _compare(test, results, (variant_a, of_a), (variant_b, of_b), paper)


def pairs_of(test: Test, study: Study) -> list[tuple[tuple[str, Quantity], tuple[str, Quantity]]]:
    """What is compared with what, checked. Where it is a number, both sides are the first."""
    first = _side(test.a, test, study)
    if test.rank and (test.is_ == "within" or test.margin or test.than is not None or test.at != "end" or test.spread):
        raise UserError(f"study {study.name}: a finding with `rank` is greater or less, and takes no other rule")
    if test.than is not None:
        return [(first, first)]
    return [(first, _side(b, test, study)) for b in (test.b if isinstance(test.b, tuple) else (test.b,))]


def ranks(study: Study) -> Literal["budget", "best_full"]:
    """Which answer of a model its findings go by: `measure.ranks`, where a comparison names no other."""
    return "best_full" if (study.measure or {}).get("ranks") == "best_full" else "budget"


def _side(side: Side, test: Test, study: Study) -> tuple[str, Quantity]:
    parts = {"variant": side} if isinstance(side, str) else dict(side)
    variant = str(parts.pop("variant", study.baseline))
    if variant not in study.variants:
        raise unknown(f"variant in a finding of {study.name}", variant, study.variants)
    asked = {**test.of, **parts}
    of = parse(Quantity, asked, f"a finding of {study.name}")
    if (of.score is None) == (of.field is None):
        raise UserError(f"study {study.name}: a finding's `of` needs exactly one of score and field")
    if of.score is not None and "way" not in asked and test.at == "end":
        votes = score_of(of.score).metric.startswith("pass")  # counted at the training budget
        of = of.model_copy(update={"way": "budget" if votes else ranks(study)})
    return variant, of


def _compare(
    test: Test, results: StudyResults, a: tuple[str, Quantity], b: tuple[str, Quantity], paper: Paper
) -> Compared:
    (variant_a, of_a), (variant_b, of_b) = sides = a, b
    if test.rank:
        return _correlated(test, results, of_a, of_b)
    clock = None
    if test.at != "end":
        clock = results.clock("update" if test.at == "updates" else "seconds", [variant_a, variant_b], of_a)
    places = [(results.task_of(of), variant) for variant, of in sides]
    needed = frozenset((*place, seed) for place in places for seed in results.seeds(*place))
    missing = frozenset(place for place in needed if results.cells[place] is None)
    percent = of_a.percent and not test.spread
    unit = "points" if percent else "times" if test.spread else ""
    if test.spread:
        found = stats.spread_ratio(*([r.value for r in results.readings(*side, clock).values()] for side in sides))
        margin = 0.0
    else:
        by = 100 if percent else 1
        found = results.compare(*sides, clock) if test.than is None else _against(results, *sides[0], test.than / by)
        margin = test.margin / by
    matters = _matters(test, results, a, b, clock, paper) if percent else None
    decision = decide(found, test.is_, margin, matters)
    if test.spread:  # a ratio is decided by its logarithm
        why = decision.why.replace("includes 0", "includes 1")
        if found is None and not missing:
            seeds = min(len(results.stored(*place)) for place in places)
            why = ONE_SEED if seeds < 2 else "the spread over seeds is 0"
        decision = replace(decision, why=why)
    words = _words(test, results, variant_a, of_a, variant_b, of_b)
    if test.than is not None:
        described = [x for x, usual in zip(_described(variant_a, of_a, results), DEFAULTS, strict=True) if x != usual]
        words = f"{', '.join(described)} minus {test.than:g}"
    if clock is not None:
        words += f", at {clock.at:,.0f} {'updates' if clock.axis == 'update' else 'seconds spent in updates'} each"
    final = clock is None and test.than is None
    same = test.is_ == "within"
    return Compared(words, found, decision, same, unit, needed, missing, sides if final else None)


def _matters(
    test: Test,
    results: StudyResults,
    a: tuple[str, Quantity],
    b: tuple[str, Quantity],
    clock: Clock | None,
    paper: Paper,
) -> float | None:
    """What a claim of more or less should come to: MATTERS, or the paper's own difference where that is smaller. None
    where the claim is of another kind, and where `b` has no room for twice as much: at the ceiling nothing is more."""
    if test.is_ == "within" or test.margin or test.than is not None:
        return None
    up = test.is_ == "greater"
    size, (theirs, than) = MATTERS, (paper(a), paper(b))
    if clock is None and theirs is not None and than is not None:
        gap = (theirs - than if up else than - theirs) / 100
        size = min(size, gap) if gap > 0 else size
    known = [reading.value for reading in results.readings(*b, clock).values()]
    if not known:
        return None
    mean = sum(known) / len(known)
    return size if (1 - mean if up else mean) >= 2 * size else None


def _correlated(test: Test, results: StudyResults, of_a: Quantity, of_b: Quantity) -> Compared:
    task = results.task_of(of_a)
    variants = results.variants(task)
    needed = frozenset((task, variant, seed) for variant in variants for seed in results.seeds(task, variant))
    missing = frozenset(place for place in needed if results.cells[place] is None)
    found = results.correlate(of_a, of_b)
    decision = decide(found, test.is_, 0.0)
    if found is None and not missing:
        decision = replace(decision, why="fewer than three variants have both, or all of them the same")
    a, b = (
        ", ".join(x for x, usual in zip(_described("", of, results), DEFAULTS, strict=True) if x != usual)
        for of in (of_a, of_b)
    )
    words = f"rank correlation of {a} with {b}, over {len(variants)} variants"
    return Compared(words, found, decision, False, "", needed, missing, None)


def _against(results: StudyResults, variant: str, of: Quantity, number: float) -> Estimate | None:
    """A mean as a difference from a number."""
    found = results.estimate(variant, of)
    if found is None or found.low is None or found.high is None:
        return None
    return replace(found, value=found.value - number, low=found.low - number, high=found.high - number)


def decide(found: Estimate | None, claimed: str, margin: float, matters: float | None = None) -> Decision:
    """Whether the truth lies on the claimed side, by one test for each side of each limit; if not, where it lies.
    `matters`: what the claimed difference should come to, for a claim without a margin."""
    if found is None:
        return Decision(None, "one side has no result")
    if found.low is None or found.high is None:
        return Decision(None, "one seed and no examples to resample give no interval")
    if claimed == "within":
        holds = max(found.above(-margin), found.below(margin))
        gains, falls = found.above(margin), found.below(-margin)
        turned = min(gains, falls)
        if holds <= stats.LEVEL:
            return Decision("holds", "", holds, turned)
        if turned <= stats.LEVEL:
            side = "above" if gains < falls else "below (a fall, not a tie)"
            return Decision("contrary", f"the interval lies beyond the margin, {side}", holds, turned)
        return Decision("undecided", "the interval reaches beyond the margin", holds, turned)
    value, low, high = found.value, found.low, found.high
    holds, turned = found.above(margin), found.below(margin)
    absent = found.below(matters) if matters is not None else 1.0
    if claimed == "less":
        value, low, high, holds, turned = -value, -high, -low, found.below(-margin), found.above(-margin)
        absent = found.above(-matters) if matters is not None else 1.0
    if holds <= stats.LEVEL:
        return Decision("holds", "", holds, turned)
    if turned <= stats.LEVEL:
        short = margin > 0 and high >= 0
        where = "below the margin" if short else "on the other side" if margin >= 0 else "beyond the loss allowed"
        return Decision("contrary", f"the interval lies {where}", holds, turned, absent)
    if matters is not None and absent <= stats.LEVEL:
        return Decision("absent", f"a difference of {100 * matters:.2g} points is ruled out", holds, turned, absent)
    mean = "the mean is as claimed" if value > margin else "the mean is not as claimed"
    why = f"the interval includes {'0' if margin == 0 else 'the margin'}, {mean}"
    return Decision("undecided", why, holds, turned, absent)


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


FIELDS = {
    "grad_norm": "mean gradient norm",
    "residual": "residual at the training budget",
    "stretch": "stretch at the training budget",
    "bounded": "share of positions that the bound acts on, up to the training budget",
}
DEFAULTS = ("", "", "", "last checkpoint", "EMA weights", "at the training budget")


def _described(variant: str, of: Quantity, results: StudyResults) -> list[str]:
    ways = {
        "budget": DEFAULTS[-1],
        "end": "at the last forced step",
        "best_step": "at the best step",
        "best_full": "at the most confident step",
        "halting": "at its own halting",
    }

    def words(way: Way) -> str:
        if isinstance(way, str) and way.startswith(SEARCH):
            return "{} by {}, {}".format(*way.split())
        return ways.get(str(way), f"at step {way}")

    metric = of.metric or (score_of(of.score).metric if of.score else "")
    return [
        (results.study.variants[variant].title or variant) if variant and len(results.study.variants) > 1 else "",
        of.score or FIELDS.get(str(of.field), str(of.field)),
        "" if metric.startswith("pass") else metric,
        f"{of.checkpoint} checkpoint",
        "EMA weights" if of.weights == "ema" else "online weights",
        words(of.way) if of.minus is None else f"{words(of.way)} less {words(of.minus)}",
    ]
