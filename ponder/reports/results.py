"""RESULTS.md: a page for who has never been here, then every finding of every study, and the count of them."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from ponder.base import stats
from ponder.base.markers import markdown
from ponder.reports.findings import (
    ABSENT,
    CONFIRMED,
    CONTRARY,
    DECIDED,
    NOT_RUN,
    NOT_TESTABLE,
    ONE_SEED,
    UNDECIDED,
    Compared,
    Judgement,
)
from ponder.reports.tables import FIXED, MISSING, Entry, columns_of
from ponder.reports.values import score_of
from ponder.reports.verdicts import PROTOCOLS, StudyReport, shown, status, verdict_text, which_text
from ponder.studies.spec import form

VERDICTS = (CONFIRMED, CONTRARY, ABSENT, UNDECIDED, NOT_TESTABLE, NOT_RUN)
WORDS = {CONFIRMED: "", CONTRARY: "The other way round", ABSENT: "No such difference"}
"""What stands before the claim of a finding that is decided."""
SHOWN = 6
"""Claims of a kind that the README lists; RESULTS.md has them all."""
MAIN = "main-results"
"""The study whose figure and order of recipes open RESULTS.md."""
SMALL_SCALE = (
    "Ours are small models on small puzzles, trained for minutes on one core; the paper's numbers are at paper scale. "
    "What does not hold here is not refuted there."
)
RULES = (
    "**How a claim is judged.** The rule stands in `ponder/studies/*.yaml` before anything is run. Variants share "
    "seeds, data and random numbers, so that differences are taken seed by seed (seeds are blocks, residuals are "
    "pooled over the variants of a study) and, where the answers are stored, example by example. *Confirmed*: every "
    'comparison of the claim holds; "the same" and "no gain" have a margin and are tested from both sides, so that a '
    "collapse is contrary and not a tie. *Contrary*: one comparison is turned round by more than their number "
    "explains. *Absent*: more or less was claimed, and a difference of 2 points, or as large as the paper's own where "
    "that is smaller, is ruled out (only where there was room for twice as much: at the ceiling nothing can be more). "
    "*Undecided*: none of these; the text gives the smallest difference that was to be seen (found four times in "
    "five). The findings of a study are one family, corrected by Holm: any false verdict among them has a chance of "
    "5%, shared by the looks where seeds were added after one. One seed decides nothing. Scores are of *valid* "
    "answers, which the puzzle's rules accept; the *best fixed answer* is what is scored without looking at the "
    "puzzle."
)


def overview(reports: Sequence[StudyReport], results: str) -> str:
    """How many findings came out how, of all studies and of each."""
    counts = {source: Counter[str]() for source in ("paper", "beyond")}
    for report in reports:
        for verdict in report.verdicts:
            counts[verdict.finding.source][verdict.verdict] += 1
    rows = [
        [name, *(str(counts[source][v]) for v in VERDICTS)]
        for source, name in (("paper", "findings of the paper"), ("beyond", "questions beyond it"))
    ]
    of_each = [
        [
            f"[{r.results.study.title}]({results}/studies/{r.file}.md)",
            f"{r.results.done} of {len(r.results.cells)}",
            str(len({seed for _, _, seed in r.results.cells})),
            ", ".join(r.results.tasks),
            *(str(sum(v.verdict == name for v in r.verdicts)) for name in VERDICTS),
        ]
        for r in reports
    ]
    tables = markdown(["", *VERDICTS], rows), markdown(["study", "trainings", "seeds", "tasks", *VERDICTS], of_each)
    return "\n\n".join([*tables, _spent_text(reports)])


def headline(reports: Sequence[StudyReport]) -> str:
    """For the newcomer: what became of the paper's findings, bad news included."""
    every = [verdict for report in reports for verdict in report.verdicts]
    paper = [v for v in every if v.finding.source == "paper"]
    new = [v for v in every if v.finding.source == "beyond"]
    count = Counter(v.verdict for v in paper)
    unanswered = [v for v in paper if v.verdict not in DECIDED]
    lines = [f"**Of the paper's {len(paper)} findings, {_outcome(count, 'at this size')}.**", ""]
    for verdict, words in WORDS.items():
        claims = [v.finding.claim for v in paper if v.verdict == verdict]
        lines += [f"- {words or 'Holds'}: {claim}" for claim in claims[:SHOWN]]
        lines += [f"- and {len(claims) - SHOWN} more of these in RESULTS.md"] if claims[SHOWN:] else []
    lines += ["", "Why the others could not be told:", ""] if unanswered else []
    reasons = Counter(map(_reason, unanswered)).most_common()
    lines += [f"- {n}: {reason}" for reason, n in reasons[:3]]
    lines += [f"- {sum(n for _, n in reasons[3:])}: other reasons"] if reasons[3:] else []
    answered = [[v for v in r.verdicts if v.finding.source == "beyond" and v.verdict in DECIDED] for r in reports]
    found = f"Questions beyond it that have an answer: {sum(map(len, answered))} of {len(new)}"
    told = [f"- {_prefix(some[0])}{some[0].finding.claim}" for some in answered if some]
    lines += ["", *([f"{found}; the first of each study:", "", *told] if told else [f"{found}."])]
    return "\n".join([*lines, "", _spent_text(reports)])


def _outcome(count: Counter[str], where: str) -> str:
    holds, turned, absent = (count[verdict] for verdict in DECIDED)
    left = count.total() - holds - turned - absent
    return (
        f"{holds} {'holds' if holds == 1 else 'hold'} {where}, {turned} {'comes' if turned == 1 else 'come'} out the "
        f"other way, for {absent} the claimed difference is ruled out, and {left} could not be told"
    )


def _prefix(verdict: Judgement) -> str:
    words = WORDS[verdict.verdict]
    return f"{words}: " if words else ""


def _spent_text(reports: Sequence[StudyReport]) -> str:
    stored = {cell.key: cell for report in reports for cell in report.results.cells.values() if cell is not None}
    spent = sum(cell.seconds + cell.after_seconds for cell in stored.values())
    return f"{len(stored)} different trainings are stored; with what was measured after them: {spent / 3600:.1f} hours."


def results_text(reports: Sequence[StudyReport], scale: str, results: str) -> str:
    """RESULTS.md: a page for the newcomer, then every finding, what became of it, and the numbers."""
    parts = [
        "# Results",
        f"Made by `ponder study report all --scale {scale}` from the trainings in `{results}/cells/`; nothing here is "
        f"typed by hand. {'' if form(scale) == 'paper' else SMALL_SCALE}".strip(),
        *first_page(reports, results),
        "## How many, and where",
        RULES,
        overview(reports, results),
    ]
    for report in reports:
        study, file = report.results.study, f"{results}/studies/{report.file}"
        parts += [f"## {study.title}", study.asks, status(report), PROTOCOLS[report.page.measure.ranks]]
        parts += [verdict_text(v, report) for v in report.verdicts]
        if report.page.measure.which is not None:
            parts.append(which_text(report))
        links = [f"[tables]({file}.md)", f"[CSV]({file}.csv)"]
        if report.drawn:
            links += [f"[figure]({file}.png)", f"[SVG]({file}.svg)"]
        parts.append(", ".join(links))
    return "\n\n".join(parts) + "\n"


def first_page(reports: Sequence[StudyReport], results: str) -> list[str]:
    """What holds, what does not, what could not be told and why, and what is new."""
    every = [(report, verdict) for report in reports for verdict in report.verdicts]
    paper = [(r, v) for r, v in every if v.finding.source == "paper"]
    new = [(r, v) for r, v in every if v.finding.source == "beyond"]
    count = Counter(v.verdict for _, v in paper)

    def listed(some: Sequence[tuple[StudyReport, Judgement]], *verdicts: str) -> str:
        return "\n".join(f"- {_in_a_line(v, r)}" for r, v in some if v.verdict in verdicts) or "Nothing yet."

    beyond = Counter(_reason(v) for _, v in new if v.verdict not in DECIDED)
    rest = "; ".join(f"{reason} {n}" for reason, n in beyond.most_common())
    return [
        "A recursive reasoning model applies a small network again and again to refine its answer. The paper compares "
        "a stabilised recipe (*ponder*) with HRM, TRM, URM and a dense network that answers in one pass, and asks what "
        "makes such models train and generalise. Here its experiments are repeated at another size, from the same "
        f"code. Of {len(paper)} findings of the paper {_outcome(count, 'here')}.",
        "## What holds at this size",
        listed(paper, CONFIRMED),
        "## What does not",
        listed(paper, CONTRARY, ABSENT),
        "## What could not be told, and why",
        _open_text(reports, paper),
        "## What is new",
        "Questions beyond the paper that were answered:",
        listed(new, *DECIDED),
        *([f"Open: {rest}."] if rest else []),
        *_order_part(reports, results),
    ]


def _in_a_line(verdict: Judgement, report: StudyReport) -> str:
    """The claim, with the comparison that says least for it, or most against it."""
    title = report.results.study.title
    text = f"{_prefix(verdict)}{verdict.finding.claim} ([{title}](#{_anchor(title)})"
    known = [c for c in verdict.compared if c.estimate is not None]
    if verdict.chance is not None and known:
        telling = min(known, key=lambda c: _against(c, verdict.verdict))
        found, unit = telling.estimate, telling.unit
        assert found is not None
        text += f": {shown(found.value, unit)}{f' {unit}' if unit else ''}"
        if found.low is not None and found.high is not None:
            text += f", {shown(found.low, unit)} to {shown(found.high, unit)}"
        text += f"; {found.seeds} seeds"
    return text + ")"


def _against(compared: Compared, verdict: str) -> float:
    decision = compared.decision
    return {CONTRARY: decision.turned, ABSENT: decision.absent}.get(verdict, -decision.holds)


def _anchor(title: str) -> str:
    """What a heading is called in a link."""
    return "".join(c for c in title.lower().replace(" ", "-") if c.isalnum() or c == "-")


def _reason(verdict: Judgement) -> str:
    """Why a finding has no answer."""
    if verdict.verdict == UNDECIDED:
        return "the difference, if there is one, was too small to be seen"
    if verdict.verdict == NOT_RUN:
        return NOT_RUN
    return "only one seed was trained, and one seed decides nothing" if verdict.why == ONE_SEED else verdict.why


def _open_text(reports: Sequence[StudyReport], every: Sequence[tuple[StudyReport, Judgement]]) -> str:
    """Findings without an answer, by the reason."""
    why: dict[str, list[tuple[StudyReport, Judgement]]] = {}
    for report, verdict in every:
        if verdict.verdict not in DECIDED:
            why.setdefault(_reason(verdict), []).append((report, verdict))
    lines = []
    for reason, some in sorted(why.items(), key=lambda each: -len(each[1])):
        counts = Counter(report.results.study.title for report, _ in some)
        where = ", ".join(f"{title} {n}" for title, n in counts.items())
        text = f"- **{reason[0].upper()}{reason[1:]}**: {len(some)} finding{'s' if len(some) > 1 else ''} ({where})."
        if seen := _seen_by_study(some):
            text += f" Smallest difference that was to be seen, found four times in five: {'; '.join(seen)}."
        lines.append(text)
    if low := [text for report in reports if report.results.study.name == MAIN for text in _below_fixed(report)]:
        lines.append(f"- **No recipe is above the best fixed answer** on {'; '.join(low)}: such scores rank nothing.")
    return "\n".join(lines) or "Nothing."


def _below_fixed(report: StudyReport) -> list[str]:
    """The scores of the ranked protocol on which the data's best constant is at least as good as every recipe."""
    out = []
    for entry in report.entries:
        if entry.row == FIXED and entry.ours and entry.of.checkpoint == "last" and entry.of.metric is None:
            ours = [e.ours.value for e in report.entries if e.column == entry.column and e.planned and e.ours]
            if entry.of.way == report.page.measure.ranks and ours and max(ours) <= entry.ours.value:
                out.append(f"{entry.of.score} ({100 * max(ours):.0f}% against {100 * entry.ours.value:.0f}%)")
    return out


def _seen_by_study(unsure: Sequence[tuple[StudyReport, Judgement]]) -> list[str]:
    """Study by study, from the sharpest comparison to the bluntest, in points; spreads are left to the study."""
    seen: dict[str, list[float]] = {}
    for report, verdict in unsure:
        for c in verdict.compared:
            if (
                verdict.chance is not None
                and c.unit == "points"
                and c.estimate
                and (visible := c.estimate.visible(c.same)) is not None
            ):
                seen.setdefault(report.results.study.title, []).append(100 * visible)
    return [
        f"{title} {min(some):.0f} points" if round(min(some)) == round(max(some)) else
        f"{title} {min(some):.0f} to {max(some):.0f} points"
        for title, some in seen.items()
    ]  # fmt: skip


def _order_part(reports: Sequence[StudyReport], results: str) -> list[str]:
    """The main figure, and the order of the recipes beside the paper's."""
    main = next((report for report in reports if report.results.study.name == MAIN), None)
    if main is None or not main.results.done:
        return []
    rows = []
    for column, label in columns_of(main.page):
        some = {e.row: e for e in main.entries if e.column == column.label and e.paper is not None and e.planned}
        if label and some and column.score and score_of(column.score).metric == "valid":
            rows.append([column.score, *_orders(main, some)])
    figure = [f"![{main.results.study.title}]({results}/studies/{main.file}.png)"] if main.drawn else []
    said = (
        "The order of the recipes on each domain, best first: `>` where the next one is behind by more than chance "
        "(95%, this comparison alone), `~` where that could not be told. The figure has every seed."
    )
    table = markdown(["", "the paper, paper scale", "ours", "n"], rows)
    return [f"## {main.results.study.title}: the paper's order beside ours", *figure, said, table]


def _orders(main: StudyReport, some: dict[str, Entry]) -> list[str]:
    paper = sorted(some, key=lambda row: -(some[row].paper or 0.0))
    ours = sorted((row for row in some if some[row].ours), key=lambda row: -_value(some[row]))
    text = ours[0] if ours else MISSING
    for better, worse in pairwise(ours):
        of = some[better].of
        gap = main.results.compare((better, of), (worse, of))
        clear = gap is not None and gap.seeds > 1 and gap.above(0.0) <= stats.LEVEL
        text += f" {'>' if clear else '~'} {worse}"
    seeds = {some[row].ours.seeds for row in ours}  # type: ignore[union-attr]
    return [" > ".join(paper), text, "–" if not seeds else f"{min(seeds)} seed{'s' if min(seeds) > 1 else ''}"]


def _value(entry: Entry) -> float:
    return entry.ours.value if entry.ours else -math.inf
