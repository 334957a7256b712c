"""The verdicts of a study in words: a claim, what became of it, and every comparison with its numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ponder.reports.findings import CONFIRMED, LEFT_OUT, NOT_RUN, NOT_TESTABLE, Compared, Judgement
from ponder.reports.tables import Entry, Page, paper_number
from ponder.reports.values import StudyResults
from ponder.studies.spec import Study

PROTOCOLS = {
    "best_full": "Findings and the paper's numbers go by each example's most confident step within the training budget "
    "(`best_full`, which the paper's series are); the answer at the training budget, halting off, stands beside it: "
    "late steps, which most examples never reach in training, are scored there too.",
    "budget": "Findings go by the answer at the training budget, halting off; each example's most confident step "
    "(`best_full`) stands beside it.",
}


@dataclass(frozen=True)
class StudyReport:
    """One study, read and judged."""

    results: StudyResults
    page: Page
    entries: Sequence[Entry]
    verdicts: Sequence[Judgement]
    drawn: bool
    file: str

    @property
    def titles(self) -> dict[str, str]:
        return titles_of(self.results.study)


def titles_of(study: Study) -> dict[str, str]:
    return {name: variant.title or name for name, variant in study.variants.items()}


def status(report: StudyReport) -> str:
    results = report.results
    seeds = sorted({seed for _, _, seed in results.cells})
    text = f"{results.scale} scale: {results.done} of {len(results.cells)} trainings are there"
    if results.failed:
        text += f", {len(results.failed)} failed"
    count = f"{len(seeds)} seeds" if len(seeds) > 1 else "one seed, so nothing is said about other seeds"
    return f"{text}; {count}; tasks: {', '.join(results.tasks)}."


def words_of(verdict: Judgement, scale: str) -> str:
    if verdict.chance is not None:
        words, _, how = verdict.verdict.partition(": ")
        why = "; ".join(filter(None, (verdict.why, f"p {_chance(verdict.chance)} in its study")))
        return f"{words} at {scale} scale" + (f": {how}" if how else "") + f" ({why})"
    words = "not testable at this scale" if verdict.verdict == NOT_TESTABLE else verdict.verdict
    return f"{words}: {verdict.why}" if verdict.why else words


def _chance(p: float) -> str:
    return "below 0.001" if p < 0.001 else f"{p:.2g}"


def verdict_text(verdict: Judgement, report: StudyReport) -> str:
    finding = verdict.finding
    beyond = " *(beyond the paper)*" if finding.source == "beyond" else ""
    lines = [f"- **{finding.claim}**{beyond}", f"  {words_of(verdict, report.results.scale)}."]
    lines += [f"  - {_compared_text(c, report)}" for c in verdict.compared]
    return "\n".join(lines)


def _compared_text(compared: Compared, report: StudyReport) -> str:
    text = f"{compared.words}: "
    found = compared.estimate
    if found is None:
        return text + ("not run yet" if compared.missing else compared.decision.why)
    text += shown(found.value, compared.unit) + (f" {compared.unit}" if compared.unit else "")
    if found.low is not None and found.high is not None:
        text += f", 95% interval {shown(found.low, compared.unit)} to {shown(found.high, compared.unit)}"
    if found.sd is not None:
        text += f", sd {shown(found.sd, compared.unit).lstrip('+')}"
    if found.pooled:
        text += f", pooled over {found.pooled} variants"
    text += f"; {found.seeds} seed{'s' if found.seeds > 1 else ''}"
    if found.examples:
        text += f", {found.examples:,} {'examples in pairs' if found.paired else 'examples, not paired'}"
    text += _paper_text(compared, report)
    if compared.missing:
        return text + f"; {len(compared.needed) - len(compared.missing)} of {len(compared.needed)} trainings"
    if found.seeds > 1 and compared.decision.outcome is not None:
        why = compared.decision.why
        text += f"; **{compared.decision.outcome}**" + (f": {why}" if why else "") + _seen_text(compared)
    return text


def shown(value: float, unit: str) -> str:
    """Ratios are kept as logarithms."""
    return f"{math.exp(value):.2f}" if unit == "times" else f"{(100 if unit == 'points' else 1) * value:+.2f}"


def _seen_text(compared: Compared) -> str:
    """The difference that this comparison could have seen."""
    seen = compared.estimate.visible(compared.same) if compared.estimate else None
    if seen is None:
        return ""
    text = shown(seen, compared.unit).lstrip("+")
    return f"; equality was to be seen within {text}" if compared.same else f"; {text} was to be seen"


def _paper_text(compared: Compared, report: StudyReport) -> str:
    """What the paper has for the same comparison; of what is no score, also where it was measured if not here."""
    if compared.sides is None:
        return ""
    ratio = compared.unit == "times"
    a, b = (paper_number(report.page, *side)[1 if ratio else 0] for side in compared.sides)
    if a is None or b is None:
        return ""
    text = f"; the paper, at paper scale: {f'{a / b:.2f}' if ratio else f'{a - b:+.2f}'}"
    results = report.results
    if compared.sides[0][1].field is not None and results.study.has("paper"):
        tasks = list(dict.fromkeys(cell.task for cell in results.study.cells("paper")))
        text += "" if tasks == list(results.tasks) else f" (on {', '.join(tasks)})"
    return text


def which_text(report: StudyReport) -> str:
    """The options whose findings are all confirmed, by name; those that this scale leaves out do not count."""
    which = report.page.measure.which
    assert which is not None
    verdicts = {v.finding.id: v for v in report.verdicts}
    chosen, parts = [], []
    for option, ids in which.options.items():
        some = [verdicts[i].verdict for i in ids if not verdicts[i].why.startswith(LEFT_OUT)] or [NOT_TESTABLE]
        state = CONFIRMED if all(v == CONFIRMED for v in some) else next(v for v in some if v != CONFIRMED)
        parts.append(f"{option}: {state}")
        if state == CONFIRMED:
            chosen.append(option)
    open_ = any(part.endswith((NOT_RUN, NOT_TESTABLE)) for part in parts)
    answer = " and ".join(chosen) or ("not known yet" if open_ else "none of them at this scale")
    return f"**{which.question}** {answer} ({'; '.join(parts)})."
