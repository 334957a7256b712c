"""Reports of studies: tables, CSV and figures for each, and RESULTS.md for all, written from stored results alone.

    results/studies/NAME.md .csv .png .svg      one study (NAME-paper.* at paper scale)
    RESULTS.md                                  every finding with its verdict

Nothing here trains or fills in: a training that is not stored is shown as missing.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from ponder.base import files, stats
from ponder.base.errors import UserError
from ponder.base.markers import around, markdown, put_between
from ponder.reports.figures import draw, panels_of
from ponder.reports.findings import judge
from ponder.reports.llms import read_llms
from ponder.reports.results import headline, overview, results_text
from ponder.reports.tables import (
    FIXED,
    MISSING,
    as_csv,
    columns_of,
    details,
    ends,
    entries,
    matrix,
    number,
    page_of,
    paper_number,
)
from ponder.reports.values import Quantity, StudyResults, policies_of
from ponder.reports.verdicts import PROTOCOLS, StudyReport, status, titles_of, verdict_text, which_text
from ponder.studies import spec as studies
from ponder.studies.fixed import read as read_fixed
from ponder.studies.spec import Study
from ponder.studies.store import Store

RESULTS = Path("results")
BEGIN, END = "<!-- studies: ponder study report all --write README.md -->", "<!-- end of studies -->"
VALID = Quantity(score="")
"""How an accuracy is written."""
AXES: dict[str, Literal["seconds", "update"]] = {"seconds": "seconds", "updates": "update"}


def main_report(
    names: Sequence[str],
    scale: str = "mini",
    results: Path = RESULTS,
    store: Store | None = None,
    page: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> list[Path]:
    """Write the reports of the named studies into `results`/studies; with `all`, of every study, and RESULTS.md; and
    the headline between the markers of `page`. Trainings are read from `store`, by default `results`/cells. Returns
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
            say(f"{study.title}, {status(report)}\n\n{numbers(report)}\n")
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
        put_between(page, BEGIN, END, headline(reports))
        written.append(page)
    return written


def _link(to: Path, here: Path) -> str:
    return Path(os.path.relpath(to, here)).as_posix()


def make(study: Study, scale: str, results: Path, store: Store | None = None) -> StudyReport:
    page = page_of(study)
    panels = panels_of(study.name, page.figure, {label: column.label for column, label in columns_of(page) if label})
    found = gather(study, scale, results, page.measure.llm, store)
    verdicts = judge(page.findings, found, lambda side: paper_number(page, *side)[0])
    file = study.name if scale == "mini" else f"{study.name}-{scale}"
    table = entries(found, page)
    (results / "studies").mkdir(parents=True, exist_ok=True)
    drawn = draw(found, table, panels, titles_of(study), results / "studies" / file)
    return StudyReport(found, page, table, verdicts, drawn, file)


def gather(study: Study, scale: str, results: Path, llm: bool, store: Store | None = None) -> StudyResults:
    store = store or Store(results / "cells")
    cells, failed = {}, {}
    for cell in study.cells(scale):
        place = (cell.task, cell.variant, cell.seed)
        cells[place] = store.read(cell)
        if cells[place] is None and (error := store.failed(cell)) is not None:
            failed[place] = error
    llms = read_llms([results / "llm", Path("runs")]) if llm else {}
    kept = {task: cell for (task, variant, _), cell in cells.items() if cell is not None and variant == study.baseline}
    fixed = {task: known for task, cell in kept.items() if (known := read_fixed(store.fixed, cell.data_hash))}
    return StudyResults(study, scale, cells, failed, llms, fixed)


# One study ------------------------------------------------------------------------------------------------------------


def study_text(report: StudyReport) -> str:
    results, page, study = report.results, report.page, report.results.study
    parts = [
        f"# {study.title}",
        f"Made by `ponder study report {study.name} --scale {results.scale}` from the stored results of its trainings.",
        study.asks,
        status(report),
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
        "answer is unique): last checkpoint, averaged weights where the recipe has them. ± is the standard deviation "
        f"over seeds; *{FIXED}*: one answer for all puzzles of a shape, the one right most often.{there}",
        PROTOCOLS[page.measure.ranks],
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
        "seed, over examples only, which says nothing about other seeds. Differences are taken seed by seed, with "
        "residuals pooled over the variants, and, where the answers are stored, example by example.",
    ]
    if missing := _missing(report):
        parts += ["## Missing", missing]
    return "\n\n".join(parts) + "\n"


def numbers(report: StudyReport) -> str:
    """n, mean, spread and interval of every score, and its difference from the baseline."""
    page, study = report.page, report.results.study
    against = page.measure.columns[0].label if page.measure.rows == "scores" else study.baseline
    return details(report.entries, report.titles, against)


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
        f"## At equal {'processor time' if axis == 'seconds' else 'updates'}",
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
