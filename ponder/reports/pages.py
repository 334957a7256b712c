"""Reports of studies: tables, CSV and figures for each, and RESULTS.md for all, written from stored results alone.

    results/studies/NAME.md .csv .png .svg      one study (NAME-paper.* at paper scale)
    RESULTS.md                                  every finding with its verdict

Nothing here trains or fills in: a training that is not stored is shown as missing.
"""

import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ponder.base import files, stats
from ponder.base.errors import UserError
from ponder.base.markers import around, put_between
from ponder.reports.figures import draw, panels_of
from ponder.reports.findings import (
    CONFIRMED,
    CONTRARY,
    NOT_RUN,
    NOT_TESTABLE,
    UNDECIDED,
    Compared,
    Judgement,
    judge,
)
from ponder.reports.llms import read_llms
from ponder.reports.tables import (
    MISSING,
    Entry,
    Page,
    as_csv,
    details,
    ends,
    entries,
    markdown,
    matrix,
    number,
    page_of,
    paper_number,
)
from ponder.reports.values import Quantity, StudyResults, policies_of
from ponder.studies import spec as studies
from ponder.studies.spec import Study
from ponder.studies.store import Store

RESULTS = Path("results")
VERDICTS = (CONFIRMED, UNDECIDED, CONTRARY, NOT_TESTABLE, NOT_RUN)
SMALL_SCALE = (
    "Ours are small-scale numbers: small models on small puzzles, trained for minutes on one core; the paper's are at "
    "paper scale. A finding that is not confirmed here is not refuted there."
)
BEGIN, END = "<!-- studies: ponder study report all --write README.md -->", "<!-- end of studies -->"
VALID = Quantity(score="")
"""How an accuracy is written."""
AXES: dict[str, Literal["seconds", "update"]] = {"seconds": "seconds", "updates": "update"}


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


def main_report(
    names: Sequence[str],
    scale: str = "mini",
    results: Path = RESULTS,
    store: Store | None = None,
    page: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> list[Path]:
    """Write the reports of the named studies into `results`/studies; with `all`, of every study, and RESULTS.md; and
    the overview between the markers of `page`. Trainings are read from `store`, by default `results`/cells. Returns
    what was written; `say` hears the numbers."""
    if page is not None:
        if "all" not in names:
            raise UserError(f"--write puts all studies into {page}: report all, or leave it out")
        around(page, BEGIN, END)
    written = []
    reports = []
    for study in studies.load_all(names, scale):
        report = make(study, scale, results, store)
        reports.append(report)
        folder = results / "studies"
        texts = {".md": study_text(report), ".csv": as_csv(report.results, report.entries)}
        for suffix, text in texts.items():
            files.write(folder / f"{report.file}{suffix}", text)
        if "all" not in names:
            say(f"{study.title}, {_status(report)}\n\n{numbers(report)}\n")
        written += [
            folder / f"{report.file}{suffix}" for suffix in (*texts, *((".png", ".svg") if report.drawn else ()))
        ]
    if "all" in names:
        name = "RESULTS.md" if scale == "mini" else f"RESULTS-{scale}.md"
        path = Path(name) if results == RESULTS else results / name  # the usual one stands beside README.md
        files.write(path, results_text(reports, scale, _link(results, path.parent)))
        written.append(path)
        say(f"{overview(reports, _link(results, path.parent))}\n")
    if page is not None:
        put_between(page, BEGIN, END, overview(reports, _link(results, page.parent)))
        written.append(page)
    return written


def _link(to: Path, here: Path) -> str:
    return Path(os.path.relpath(to, here)).as_posix()


def make(study: Study, scale: str, results: Path, store: Store | None = None) -> StudyReport:
    page = page_of(study)
    panels = panels_of(study.name, page.figure, [column.label for column in page.measure.columns])
    found = gather(study, scale, results, page.measure.llm, store)
    verdicts = [judge(finding, found) for finding in page.findings]
    file = study.name if scale == "mini" else f"{study.name}-{scale}"
    table = entries(found, page)
    (results / "studies").mkdir(parents=True, exist_ok=True)
    drawn = draw(found, table, panels, titles_of(study), results / "studies" / file)
    return StudyReport(found, page, table, verdicts, drawn, file)


def titles_of(study: Study) -> dict[str, str]:
    return {name: variant.title or name for name, variant in study.variants.items()}


def gather(study: Study, scale: str, results: Path, llm: bool, store: Store | None = None) -> StudyResults:
    store = store or Store(results / "cells")
    cells, failed = {}, {}
    for cell in study.cells(scale):
        place = (cell.task, cell.variant, cell.seed)
        cells[place] = store.read(cell)
        if cells[place] is None and (error := store.failed(cell)) is not None:
            failed[place] = error
    llms = read_llms([results / "llm", Path("runs")]) if llm else {}
    return StudyResults(study, scale, cells, failed, llms)


# One study ------------------------------------------------------------------------------------------------------------


def study_text(report: StudyReport) -> str:
    results, page, study = report.results, report.page, report.results.study
    parts = [
        f"# {study.title}",
        f"Made by `ponder study report {study.name} --scale {results.scale}` from the stored results of its trainings.",
        study.asks,
        _status(report),
    ]
    if report.drawn:
        parts.append(f"![{study.title}]({report.file}.png)")
    beside, there = (
        (", the paper's numbers beside it", " *paper*: the number there, at paper scale, of exact matches.")
        if page.paper
        else ("", "")
    )
    parts += [
        f"## {results.scale} scale{beside}",
        matrix(report.entries, report.titles),
        "Percent of valid answers where nothing else is said (the rules accept them; exact match is the same where the "
        "answer is unique): last checkpoint, averaged weights where the recipe has them, at the training budget, "
        f"halting off. ± is the standard deviation over seeds.{there}",
    ]
    for axis in page.measure.equal:
        parts += _equal(report, axis)
    if page.measure.policies:
        parts += ["## Halting policies", _policy_table(report)]
    if report.verdicts:
        parts += ["## Findings", *(verdict_text(v, report) for v in report.verdicts)]
    if page.measure.which is not None:
        parts.append(which_text(report))
    if page.measure.notes:
        parts += ["## Notes", "\n".join(f"- {note}" for note in page.measure.notes)]
    parts += [
        "## All numbers",
        numbers(report),
        "Intervals of means: Student's t over seeds and the Wilson interval over examples, added in squares; with one "
        "seed, over examples only, which says nothing about other seeds. Differences are taken seed by seed and, where "
        "the answers are stored, example by example.",
    ]
    if missing := _missing(report):
        parts += ["## Missing", missing]
    return "\n\n".join(parts) + "\n"


def numbers(report: StudyReport) -> str:
    """n, mean, spread and interval of every score, and its difference from the baseline."""
    page, study = report.page, report.results.study
    against = page.measure.columns[0].label if page.measure.rows == "scores" else study.baseline
    return details(report.entries, report.titles, against)


def _status(report: StudyReport) -> str:
    results = report.results
    seeds = sorted({seed for _, _, seed in results.cells})
    text = f"{results.scale} scale: {results.done} of {len(results.cells)} trainings are there"
    if results.failed:
        text += f", {len(results.failed)} failed"
    count = f"{len(seeds)} seeds" if len(seeds) > 1 else "one seed, so nothing is said about other seeds"
    return f"{text}; {count}; tasks: {', '.join(results.tasks)}."


def _missing(report: StudyReport) -> str:
    results = report.results
    lines = []
    for (task, variant, seed), stored in results.cells.items():
        if stored is None:
            why = results.failed.get((task, variant, seed))
            lines.append(f"- {variant}, {task}, seed {seed}{f': failed: {why}' if why else ''}")
    return "\n".join(lines)


def _equal(report: StudyReport, axis: str) -> list[str]:
    """The variants where each has trained for as long as the shortest of them."""
    results = report.results
    found = entries(results, report.page, AXES[axis])
    words = "seconds spent in updates" if axis == "seconds" else "updates"
    reached = []
    for column in dict.fromkeys(e.column for e in found):
        of = next(e.of for e in found if e.column == column)
        clock = results.clock(AXES[axis], results.study.variants, of)
        reached.append(f"{column} {'–' if clock is None else format(clock.at, ',.0f')}")
    return [
        f"## At equal {'wall-clock' if axis == 'seconds' else 'updates'}",
        details(found, report.titles, results.study.baseline),
        f"At the smallest common total of {words} ({'; '.join(reached)}), from the evaluations while training, "
        f"taken as straight in between.",
    ]


def _policy_table(report: StudyReport) -> str:
    rows = []
    results = report.results
    for task in report.page.measure.policies:
        for variant in results.study.variants if task in results.tasks else ():
            found = policies_of(results, task, variant)
            if not found:
                rows.append([task, report.titles[variant], MISSING, *["–"] * 6])
            for policy, each in found.items():
                ours = stats.estimate([point.valid for point in each], min(point.n for point in each))
                steps = sum(point.steps for point in each) / len(each)
                counts = [str(ours.seeds), str(ours.examples)]
                shares = [number(ours.value, VALID), number(ours.sd, VALID), ends(ours, VALID)]
                rows.append([task, report.titles[variant], policy, *counts, *shares, f"{steps:.2f}"])
    header = ["task", "", "policy", "seeds", "n", "valid, %", "sd", "95% interval", "mean ACT steps"]
    return markdown(header, rows)


# Findings -------------------------------------------------------------------------------------------------------------


def words_of(verdict: Judgement, scale: str) -> str:
    if verdict.verdict in (CONFIRMED, UNDECIDED, CONTRARY):
        one = all(c.estimate is not None and c.estimate.seeds == 1 for c in verdict.compared)
        why = "; ".join(filter(None, (verdict.why, "one seed" if one else "")))
        words, _, how = verdict.verdict.partition(": ")
        return f"{words} at {scale} scale" + (f": {how}" if how else "") + (f" ({why})" if why else "")
    words = "not testable at this scale" if verdict.verdict == NOT_TESTABLE else verdict.verdict
    return f"{words}: {verdict.why}" if verdict.why else words


def verdict_text(verdict: Judgement, report: StudyReport) -> str:
    finding = verdict.finding
    beyond = " *(beyond the paper)*" if finding.source == "beyond" else ""
    lines = [f"- **{finding.claim}**{beyond}", f"  {words_of(verdict, report.results.scale)}."]
    if finding.need == "any" and len(verdict.compared) > 1:
        lines.append("  (One of these is enough.)")
    lines += [f"  - {_compared_text(c, report)}" for c in verdict.compared]
    return "\n".join(lines)


def _compared_text(compared: Compared, report: StudyReport) -> str:
    text = f"{compared.words}: "
    found = compared.estimate
    if found is None:
        return text + ("not run yet" if compared.missing else compared.why)
    ratio = compared.unit == "times"

    def shown(value: float) -> str:
        """Ratios are kept as logarithms."""
        return f"{math.exp(value):.2f}" if ratio else f"{(100 if compared.unit == 'points' else 1) * value:+.2f}"

    text += shown(found.value) + (f" {compared.unit}" if compared.unit else "")
    if found.low is not None and found.high is not None:
        text += f", 95% interval {shown(found.low)} to {shown(found.high)}"
    if found.sd is not None:
        text += f", sd {shown(found.sd).lstrip('+')}"
    text += f"; {found.seeds} seed{'s' if found.seeds > 1 else ''}"
    if found.examples:
        text += f", {found.examples:,} {'examples in pairs' if found.paired else 'examples, not paired'}"
    text += _paper_text(compared, report)
    if compared.missing:
        text += f"; {len(compared.needed) - len(compared.missing)} of {len(compared.needed)} trainings"
    elif compared.outcome is not None:
        text += f"; **{compared.outcome}**" + (f": {compared.why}" if compared.why else "")
    return text


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
    """The options whose findings are all confirmed, by name."""
    which = report.page.measure.which
    assert which is not None
    verdicts = {v.finding.id: v for v in report.verdicts}
    shown, parts = [], []
    for option, ids in which.options.items():
        some = [verdicts[i].verdict for i in ids]
        state = CONFIRMED if all(v == CONFIRMED for v in some) else next(v for v in some if v != CONFIRMED)
        parts.append(f"{option}: {state}")
        if state == CONFIRMED:
            shown.append(option)
    undecided = any(part.endswith((NOT_RUN, NOT_TESTABLE)) for part in parts)
    answer = " and ".join(shown) or ("not known yet" if undecided else "none of them at this scale")
    why = " ".join(which.because[option] for option in shown if option in which.because)
    if not shown:
        why = " ".join(text for i, text in which.hints.items() if verdicts[i].verdict == CONFIRMED)
    return f"**{which.question}** {answer} ({'; '.join(parts)}).{f' {why}' if why else ''}"


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
    stored = {cell.key: cell for report in reports for cell in report.results.cells.values() if cell is not None}
    spent = sum(cell.seconds + cell.after_seconds for cell in stored.values())
    tables = markdown(["", *VERDICTS], rows), markdown(["study", "trainings", "seeds", "tasks", *VERDICTS], of_each)
    spent_text = (
        f"{len(stored)} different trainings are stored; with what was measured after them: {spent / 3600:.1f} hours."
    )
    return "\n\n".join([*tables, spent_text])


def results_text(reports: Sequence[StudyReport], scale: str, results: str) -> str:
    """RESULTS.md: every finding, what became of it, and the numbers."""
    parts = [
        "# Results",
        f"Made by `ponder study report all --scale {scale}` from the trainings in `{results}/cells/`; nothing here is "
        "typed by hand. Each finding is a claim in our words with a rule declared in `ponder/studies/*.yaml`: it is "
        "*confirmed* when the 95% intervals of its differences lie wholly on the claimed side (or within the margin it "
        "names) in every comparison, or in one where it says that one is enough; *contrary* when one lies wholly on "
        "the other side, and *undecided* when an interval has both. Scores are of *valid* answers, which the puzzle's "
        "rules accept. Differences are taken between trainings that share seed, data and random numbers (where data "
        "is the factor, seed alone).",
        *([] if scale == "paper" else [SMALL_SCALE]),
        overview(reports, results),
    ]
    for report in reports:
        study, file = report.results.study, f"{results}/studies/{report.file}"
        parts += [f"## {study.title}", study.asks, _status(report)]
        parts += [verdict_text(v, report) for v in report.verdicts]
        if report.page.measure.which is not None:
            parts.append(which_text(report))
        links = [f"[tables]({file}.md)", f"[CSV]({file}.csv)"]
        if report.drawn:
            links += [f"[figure]({file}.png)", f"[SVG]({file}.svg)"]
        parts.append(", ".join(links))
    return "\n\n".join(parts) + "\n"
