"""Reports of studies: tables, CSV and figures for each, and RESULTS.md for all, written from stored results alone.

    results/studies/NAME.md .csv .png .svg      one study (NAME-paper.* at paper scale)
    RESULTS.md                                  every finding with its verdict

Nothing here trains or fills in: a training that is not stored is shown as missing.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ponder import study as studies
from ponder.report_figures import draw, panels_of
from ponder.report_findings import (
    CONFIRMED,
    NOT_CONFIRMED,
    NOT_RUN,
    NOT_TESTABLE,
    Compared,
    Verdict,
    judge,
)
from ponder.report_tables import (
    Entry,
    Page,
    as_csv,
    details,
    entries,
    markdown,
    matrix,
    page_of,
    paper_number,
)
from ponder.report_values import Results, read_llms
from ponder.study import Study
from ponder.study_store import Store, write_aside

VERDICTS = (CONFIRMED, NOT_CONFIRMED, NOT_TESTABLE, NOT_RUN)
SMALL_SCALE = (
    "Ours are mini-scale numbers: small models on small puzzles, trained for minutes on one core; the paper's are at "
    "paper scale. A finding that is not confirmed here is not refuted there."
)
AXES: dict[str, Literal["seconds", "update"]] = {"seconds": "seconds", "updates": "update"}


@dataclass(frozen=True)
class Report:
    """One study, read and judged."""

    results: Results
    page: Page
    entries: Sequence[Entry]
    verdicts: Sequence[Verdict]
    drawn: bool
    file: str

    @property
    def titles(self) -> dict[str, str]:
        return {name: variant.title or name for name, variant in self.results.study.variants.items()}


def main_report(
    names: Sequence[str],
    scale: str = "mini",
    results: Path = Path("results"),
    top: Path | None = None,
    cells: Path | None = None,
) -> list[Path]:
    """Write the reports of the named studies into `results`/studies; with `all`, of every study, and RESULTS.md (or
    `top`). Trainings are read from `cells`, by default `results`/cells. Returns what was written."""
    written = []
    reports = []
    for study in studies.load_all(names):
        report = make(study, scale, results, cells)
        reports.append(report)
        base = results / "studies" / report.file
        write_aside(base.with_suffix(".md"), study_text(report))
        write_aside(base.with_suffix(".csv"), as_csv(report.results, report.entries))
        written += [base.with_suffix(".md"), base.with_suffix(".csv")]
        if report.drawn:
            written += [base.with_suffix(".png"), base.with_suffix(".svg")]
    if "all" in names:
        path = top or Path("RESULTS.md" if scale == "mini" else f"RESULTS-{scale}.md")
        write_aside(path, results_text(reports, scale, results))
        written.append(path)
    return written


def make(study: Study, scale: str, results: Path, cells: Path | None = None) -> Report:
    page = page_of(study)
    panels = panels_of(study.name, page.figure)
    found = gather(study, scale, results, page.measure.llm, cells)
    file = study.name if scale == "mini" else f"{study.name}-{scale}"
    table = entries(found, page)
    titles = {name: variant.title or name for name, variant in study.variants.items()}
    (results / "studies").mkdir(parents=True, exist_ok=True)
    drawn = draw(found, table, panels, titles, results / "studies" / file)
    return Report(found, page, table, [judge(f, found) for f in page.findings], drawn, file)


def gather(study: Study, scale: str, results: Path, llm: bool, root: Path | None = None) -> Results:
    store = Store(root or results / "cells")
    cells, failed = {}, {}
    for cell in study.cells(scale):
        place = (cell.task, cell.variant, cell.seed)
        cells[place] = store.read(cell)
        if cells[place] is None and (error := store.failed(cell)) is not None:
            failed[place] = error
    llms = read_llms([results / "llm", Path("runs")]) if llm else {}
    return Results(study, scale, cells, failed, llms)


# One study ------------------------------------------------------------------------------------------------------------


def study_text(report: Report) -> str:
    results, page, study = report.results, report.page, report.results.study
    against = page.measure.columns[0].label if page.measure.rows == "scores" else study.baseline
    parts = [
        f"# {study.title}",
        f"Made by `ponder study report {study.name} --scale {results.scale}` from `results/cells/`.",
        study.asks,
        _status(report),
    ]
    if report.drawn:
        parts.append(f"![{study.title}]({report.file}.png)")
    beside, there = (
        (", the paper's numbers beside it", " *paper*: the number there, at paper scale.") if page.paper else ("", "")
    )
    parts += [
        f"## {results.scale} scale{beside}",
        matrix(report.entries, report.titles),
        "Percent where nothing else is said: last checkpoint, averaged weights, at the training budget, halting off. "
        f"± is the standard deviation over seeds.{there}",
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
        details(report.entries, report.titles, against),
        "Intervals of means: Student's t over seeds and the Wilson interval over examples, added in squares; with one "
        "seed, over examples only, which says nothing about other seeds. Differences are taken seed by seed and, where "
        "the answers are stored, example by example.",
    ]
    if missing := _missing(report):
        parts += ["## Missing", missing]
    return "\n\n".join(parts) + "\n"


def _status(report: Report) -> str:
    results = report.results
    seeds = sorted({seed for _, _, seed in results.cells})
    said = f"{results.scale} scale: {results.done} of {len(results.cells)} trainings are there"
    if results.failed:
        said += f", {len(results.failed)} failed"
    count = f"{len(seeds)} seeds" if len(seeds) > 1 else "one seed, so nothing is said about other seeds"
    return f"{said}; {count}; tasks: {', '.join(results.tasks)}."


def _missing(report: Report) -> str:
    results = report.results
    lines = []
    for (task, variant, seed), stored in results.cells.items():
        if stored is None:
            why = results.failed.get((task, variant, seed))
            lines.append(f"- {variant}, {task}, seed {seed}{f': failed: {why}' if why else ''}")
    return "\n".join(lines)


def _equal(report: Report, axis: str) -> list[str]:
    """The variants where each has trained for as long as the shortest of them."""
    results = report.results
    found = entries(results, report.page, AXES[axis])
    words = "seconds of training" if axis == "seconds" else "updates"
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


def _policy_table(report: Report) -> str:
    rows = []
    results = report.results
    for task in report.page.measure.policies:
        for variant in results.study.variants if task in results.tasks else ():
            found: dict[str, list[tuple[float, float]]] = {}
            cells = results.stored(task, variant)
            for cell in cells.values():
                for row in (cell["after"]["policies"] or {}).get("results", []):
                    found.setdefault(row["policy"], []).append((row["valid"]["value"], row["mean_steps"]))
            if not found:
                rows.append([task, report.titles[variant], "missing", "0", "–", "–"])
            for policy, each in found.items():
                accuracy, steps = (sum(column) / len(each) for column in zip(*each, strict=True))
                rows.append(
                    [task, report.titles[variant], policy, str(len(each)), f"{100 * accuracy:.1f}", f"{steps:.2f}"]
                )
    return markdown(["task", "", "policy", "seeds", "valid, %", "mean ACT steps"], rows)


# Findings -------------------------------------------------------------------------------------------------------------


def words_of(verdict: Verdict, scale: str) -> str:
    if verdict.verdict in (CONFIRMED, NOT_CONFIRMED):
        one = all(c.estimate is not None and c.estimate.seeds == 1 for c in verdict.compared)
        why = "; ".join(filter(None, (verdict.why, "one seed" if one else "")))
        return f"{verdict.verdict} at {scale} scale" + (f" ({why})" if why else "")
    said = "not testable at this scale" if verdict.verdict == NOT_TESTABLE else verdict.verdict
    return f"{said}: {verdict.why}" if verdict.why else said


def verdict_text(verdict: Verdict, report: Report) -> str:
    finding = verdict.finding
    beyond = " *(beyond the paper)*" if finding.source == "beyond" else ""
    lines = [f"- **{finding.claim}**{beyond}", f"  {words_of(verdict, report.results.scale)}."]
    if finding.need == "any" and len(verdict.compared) > 1:
        lines.append("  (One of these is enough.)")
    lines += [f"  - {_compared_text(c, report.page)}" for c in verdict.compared]
    return "\n".join(lines)


def _compared_text(compared: Compared, page: Page) -> str:
    said = f"{compared.words}: "
    found = compared.estimate
    if found is None:
        return said + ("not run yet" if compared.missing else compared.why)
    scale = 100 if compared.unit == "points" else 1
    said += f"{scale * found.value:+.2f}" + (f" {compared.unit}" if compared.unit else "")
    if found.low is not None and found.high is not None:
        said += f", 95% interval {scale * found.low:+.2f} to {scale * found.high:+.2f}"
    if found.sd is not None:
        said += f", sd {scale * found.sd:.2f}"
    said += f"; {found.seeds} seed{'s' if found.seeds > 1 else ''}"
    if found.examples:
        said += f", {found.examples:,} {'examples in pairs' if found.paired else 'examples, not paired'}"
    theirs = [paper_number(page, *side) for side in compared.sides or ()]
    if len(theirs) == 2 and theirs[0] is not None and theirs[1] is not None:
        said += f"; the paper, at paper scale: {theirs[0] - theirs[1]:+.2f}"
    if compared.missing:
        said += f"; {len(compared.needed) - len(compared.missing)} of {len(compared.needed)} trainings"
    elif compared.holds is not None:
        said += "; holds" if compared.holds else "; does not hold"
    return said


def which_text(report: Report) -> str:
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
    return f"**{which.question}** {answer} ({'; '.join(parts)}).{f' {why}' if why else ''}"


def results_text(reports: Sequence[Report], scale: str, results: Path) -> str:
    """RESULTS.md: every finding, what became of it, and the numbers."""
    counts = {source: Counter[str]() for source in ("paper", "beyond")}
    for report in reports:
        for verdict in report.verdicts:
            counts[verdict.finding.source][verdict.verdict] += 1
    rows = [
        [name, *(str(counts[source][v]) for v in VERDICTS)]
        for source, name in (("paper", "findings of the paper"), ("beyond", "questions beyond it"))
    ]
    studies_rows = [
        [
            f"[{r.results.study.title}]({results / 'studies' / r.file}.md)",
            f"{r.results.done} of {len(r.results.cells)}",
            str(len({seed for _, _, seed in r.results.cells})),
            ", ".join(r.results.tasks),
            *(str(sum(v.verdict == name for v in r.verdicts)) for name in VERDICTS),
        ]
        for r in reports
    ]
    parts = [
        "# Results",
        f"Made by `ponder study report all --scale {scale}` from the trainings in `{results}/cells/`; nothing here is "
        f"typed by hand. Each finding is a claim in our words with a rule declared in `ponder/studies/*.yaml`: it is "
        f"*confirmed* when the 95% interval of the difference lies wholly on the claimed side, and *not confirmed* "
        f"when it includes the other side or lies there. Differences are taken between trainings that share seed, "
        f"data and random numbers.",
        *([] if scale == "paper" else [SMALL_SCALE]),
        markdown(["", *VERDICTS], rows),
        markdown(["study", "trainings", "seeds", "tasks", *VERDICTS], studies_rows),
    ]
    for report in reports:
        study, folder = report.results.study, results / "studies"
        parts += [f"## {study.title}", study.asks, _status(report)]
        parts += [verdict_text(v, report) for v in report.verdicts]
        if report.page.measure.which is not None:
            parts.append(which_text(report))
        links = [f"[tables]({folder / report.file}.md)", f"[CSV]({folder / report.file}.csv)"]
        if report.drawn:
            links += [f"[figure]({folder / report.file}.png)", f"[SVG]({folder / report.file}.svg)"]
        parts.append(", ".join(links))
    return "\n\n".join(parts) + "\n"
