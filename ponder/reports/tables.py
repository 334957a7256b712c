"""The tables of one study: ours with n, spread and interval, the paper's beside it, missing cells as missing."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError

from ponder.base.errors import UserError
from ponder.base.markers import markdown
from ponder.base.stats import Estimate
from ponder.config.resolve import Config
from ponder.config.schema import Frozen
from ponder.reports.findings import Finding, pairs_of
from ponder.reports.values import Clock, Quantity, StudyResults, llm_estimate, score_of, scores
from ponder.studies.spec import Study

MISSING = "missing"
FIXED = "best fixed answer"
NONE = "n/a"
"""The training is there and has no such number."""


class Which(Frozen):
    """A question answered by the options whose findings are all confirmed."""

    question: str
    options: Mapping[str, tuple[str, ...]]


class Measure(Frozen):
    """What the report of a study shows: the `measure` of its YAML."""

    rows: Literal["variants", "scores"] = "variants"
    """scores: each row a score of the baseline, each column a way to read it; differences are to the first column."""
    scores: tuple[str, ...] = ()
    columns: tuple[Quantity, ...]
    ranks: Literal["budget", "best_full"] = "budget"
    """Which answer of a model findings, figures and the paper's numbers go by; the other one stands beside it."""
    equal: tuple[Literal["seconds", "updates"], ...] = ()
    """Also compare the variants at the smallest common total of these."""
    policies: tuple[str, ...] = ()
    """Tasks whose halting policies are shown."""
    llm: bool = False
    which: Which | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Page:
    """What a study declares for its report, checked."""

    measure: Measure
    paper: Mapping[str, Mapping[str, float | Sequence[float]]]
    figure: Sequence[Mapping[str, Any]]
    findings: Sequence[Finding]


def page_of(study: Study) -> Page:
    """Everything the report reads from the YAML; a mistake in it is named before anything is written."""
    try:
        measure = Measure.model_validate(study.measure or {"columns": _all_scores(study)})
        findings = [Finding.model_validate(each) for each in study.findings or []]
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UserError(f"study {study.name}, report fields: {where}: {first['msg']}, got {first['input']!r}") from None
    page = Page(measure, study.paper_numbers or {}, study.figure or [], findings)
    _consistent(study, page)
    return page


def columns_of(page: Page) -> list[tuple[Quantity, str]]:
    """The columns, each with the label its numbers in the paper have, or none. A score at the training budget is
    followed by the one at each example's most confident step."""
    out = []
    for column in page.measure.columns:
        plain = (column.checkpoint, column.way, column.show) == ("last", "budget", "value")
        metric = (column.metric or score_of(column.score).metric) if column.score else ""
        if not (plain and metric in ("exact", "valid")):
            out.append((column, column.label))
            continue
        ranked = page.measure.ranks == "best_full"
        beside = column.model_copy(update={"label": f"{column.label}, best_full", "way": "best_full"})
        out += [(column, "" if ranked else column.label), (beside, column.label if ranked else "")]
    return out


def _all_scores(study: Study) -> list[dict[str, str]]:
    """What a study that declares no columns gets."""
    tasks = {task if isinstance(task, str) else task.task for scale in study.scales.values() for task in scale.tasks}
    return [{"label": name, "score": name} for name, score in scores().items() if score.task in tasks]


def _consistent(study: Study, page: Page) -> None:
    rows = page.measure.scores if page.measure.rows == "scores" else tuple(study.variants)
    labels = [column.label for column in page.measure.columns]
    for column in page.measure.columns:
        if page.measure.rows == "variants" and (column.score is None) == (column.field is None):
            raise UserError(f"study {study.name}, column {column.label!r}: give exactly one of score and field")
    for score in (*page.measure.scores, *(c.score for c in page.measure.columns if c.score)):
        score_of(score)
    for row, numbers in page.paper.items():
        if row not in rows and not page.measure.llm:
            raise UserError(f"study {study.name}: paper_numbers name {row!r}; rows are {', '.join(rows)}")
        for label in numbers:
            if label not in labels:
                raise UserError(f"study {study.name}: paper_numbers name {label!r}; columns are {', '.join(labels)}")
    for test in (test for finding in page.findings for test in finding.tests):
        pairs_of(test, study)
    ids = {finding.id for finding in page.findings}
    named = {i for option in (page.measure.which.options.values() if page.measure.which else ()) for i in option}
    if len(ids) != len(page.findings) or not named <= ids:
        raise UserError(f"study {study.name}: findings need different ids, and `which` must name some of them")


# Entries: one for each row and column ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    row: str
    column: str
    of: Quantity
    planned: int
    """Seeds that the study asks for; 0 for a language model."""
    there: int
    """Those whose training is stored."""
    ours: Estimate | None
    difference: Estimate | None
    """To the baseline, or to the first column; None for these themselves."""
    paper: float | None
    paper_sd: float | None


def entries(results: StudyResults, page: Page, clock_axis: Literal["seconds", "update"] | None = None) -> list[Entry]:
    """Every number of the study's table, in order of rows."""
    if page.measure.rows == "scores":
        return list(_by_score(results, page))
    out = [
        _entry(results, page, variant, column, clock)
        for variant in results.study.variants
        for column, clock in _columns(results, page, clock_axis)
        if results.seeds(results.task_of(column[0]), variant)
    ]
    if page.measure.llm and clock_axis is None:
        out += list(_llms(results, page))
    if clock_axis is None:
        for column, _ in _columns(results, page, None):
            if (constant := results.constant(column[0])) is not None:
                out.append(Entry(FIXED, column[0].label, column[0], 0, 0, constant, None, None, None))
    return out


def _columns(
    results: StudyResults, page: Page, axis: Literal["seconds", "update"] | None
) -> Iterator[tuple[tuple[Quantity, str], Clock | None]]:
    """The columns whose task is part of this scale; on a clock, those that a curve can give."""
    every = ((each, label) for column, label in columns_of(page) for each in _of_each_task(results, column))
    for column, label in every:
        if results.task_of(column) not in results.tasks:
            continue
        if axis is None:
            yield (column, label), None
        elif column.score is not None and (column.checkpoint, column.way, column.show) == ("last", "budget", "value"):
            clock = results.clock(axis, results.study.variants, column)
            yield (column, ""), clock or Clock(axis, 0.0)


def _of_each_task(results: StudyResults, column: Quantity) -> Iterator[Quantity]:
    """A field of no named task is given for every task."""
    if column.field is None or column.task is not None or len(results.tasks) == 1:
        yield column
    else:
        for task in results.tasks:
            yield column.model_copy(update={"task": task, "label": f"{column.label}, {task}"})


def _entry(results: StudyResults, page: Page, variant: str, named: tuple[Quantity, str], clock: Clock | None) -> Entry:
    baseline, (column, label) = results.study.baseline, named
    difference = None
    if variant != baseline:
        difference = results.compare((variant, column), (baseline, column), clock)
    seeds = _seeds(results, variant, column)
    ours = results.estimate(variant, column, clock)
    return Entry(variant, column.label, column, *seeds, ours, difference, *_paper(page, variant, label))


def _seeds(results: StudyResults, variant: str, of: Quantity) -> tuple[int, int]:
    """Planned, and stored."""
    task = results.task_of(of)
    return len(results.seeds(task, variant)), len(results.stored(task, variant))


def _by_score(results: StudyResults, page: Page) -> Iterator[Entry]:
    variant = results.study.baseline
    for name in page.measure.scores:
        if score_of(name).task not in results.tasks:
            continue
        first = page.measure.columns[0].model_copy(update={"score": name})
        for column in page.measure.columns:
            of = column.model_copy(update={"score": name})
            difference = None
            if of != first and of.percent and of.metric == first.metric:
                difference = results.compare((variant, of), (variant, first))
            seeds = _seeds(results, variant, of)
            ours = results.estimate(variant, of)
            yield Entry(name, column.label, of, *seeds, ours, difference, *_paper(page, name, column.label))
        if (constant := results.constant(first)) is not None:
            yield Entry(name, FIXED, first, 0, 0, constant, None, None, None)


def _llms(results: StudyResults, page: Page) -> Iterator[Entry]:
    """Language models with stored results."""
    for model in results.llms:
        for (column, _), _ in _columns(results, page, None):
            if (column.checkpoint, column.way) == ("last", "budget"):
                ours = llm_estimate(results, model, column)
                yield Entry(model, column.label, column, 0, 0, ours, None, *_paper(page, model, column.label))


@dataclass(frozen=True)
class LlmTask:
    """What a language model must be asked for its row of a study's table."""

    task: str
    config: Config
    splits: tuple[str, ...]
    attempts: int
    """Answers to each example: as many as the largest k of a pass@k."""


def llm_tasks(study: Study, scale: str) -> list[LlmTask]:
    """By task, on the very data of the study's cells."""
    page = page_of(study)
    if not page.measure.llm:
        raise UserError(f"the table of study {study.name} has no rows for language models; main-results has")
    out = []
    for task, config in {cell.task: cell.config for cell in study.cells(scale)}.items():
        columns = [column for column, _ in columns_of(page) if column.score and score_of(column.score).task == task]
        splits = dict.fromkeys(split for column in columns for split in score_of(str(column.score)).splits)
        metrics = [str(column.metric or score_of(str(column.score)).metric) for column in columns]
        attempts = max([int(metric[5:]) for metric in metrics if metric.startswith("pass@")], default=1)
        if splits:
            out.append(LlmTask(task, config, tuple(splits), attempts))
    return out


def _paper(page: Page, row: str, label: str) -> tuple[float | None, float | None]:
    numbers = page.paper.get(row, {}).get(label)
    if isinstance(numbers, Sequence):
        return float(numbers[0]), float(numbers[1])
    return (None if numbers is None else float(numbers)), None


def paper_number(page: Page, variant: str, of: Quantity) -> tuple[float | None, float | None]:
    """The paper's number for a quantity and its spread, where one of the columns is that quantity."""
    for column, label in columns_of(page):
        if page.measure.rows == "scores":
            same, row = column.model_copy(update={"label": "", "score": of.score}), str(of.score)
        else:
            same, row = column.model_copy(update={"label": ""}), variant
        if same == of.model_copy(update={"label": ""}):
            return _paper(page, row, label)
    return None, None


# Text -----------------------------------------------------------------------------------------------------------------


def number(value: float | None, of: Quantity) -> str:
    if value is None:
        return "–"
    if of.percent:
        return f"{100 * value:.1f}"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def paper_text(value: float | None, sd: float | None, of: Quantity) -> str:
    """The paper's numbers are percentages already."""
    if value is None:
        return "–"
    shown = f"{value:.2f}" if of.percent or abs(value) < 100 else f"{value:,.0f}"
    return shown if sd is None else f"{shown} ± {sd:.2f}"


def ends(found: Estimate | None, of: Quantity) -> str:
    if found is None or found.low is None or found.high is None:
        return "–"
    return f"{number(found.low, of)} to {number(found.high, of)}"


def signed(found: Estimate | None, of: Quantity) -> str:
    if found is None:
        return "–"
    text = number(found.value, of)
    return text if text.startswith("-") else f"+{text}"


def short(entry: Entry) -> str:
    """A table's cell: mean ± sd over seeds, how many of them are missing, and the paper's number."""
    if entry.ours is None:
        text = NONE if entry.there else MISSING
    else:
        text = number(entry.ours.value, entry.of)
        if entry.ours.sd is not None:
            text += f" ± {number(entry.ours.sd, entry.of)}"
        if entry.planned and entry.ours.seeds < entry.planned:
            text += f" ({entry.ours.seeds} of {entry.planned} seeds)"
    if entry.paper is not None:
        text += f"<br>*paper {paper_text(entry.paper, entry.paper_sd, entry.of)}*"
    return text


def matrix(found: Sequence[Entry], titles: Mapping[str, str]) -> str:
    """Rows by columns, the longer side downwards."""
    rows, columns = (list(dict.fromkeys(getattr(e, k) for e in found)) for k in ("row", "column"))
    at = {(e.row, e.column): short(e) for e in found}
    names = {row: titles.get(row, row) for row in rows}
    if len(columns) > max(len(rows), 9):
        return markdown(["", *names.values()], [[c, *(at.get((r, c), "") for r in rows)] for c in columns])
    return markdown(["", *columns], [[names[r], *(at.get((r, c), "") for c in columns)] for r in rows])


def details(found: Sequence[Entry], titles: Mapping[str, str], against: str) -> str:
    header = [
        "",
        "score",
        "seeds",
        "n",
        "mean",
        "sd",
        "95% interval",
        f"minus {against}",
        "95% interval",
        "pairs",
        "paper",
    ]
    rows = []
    for e in found:
        ours, sd = e.ours, e.ours.sd if e.ours else None
        pairs = "–" if e.difference is None else "examples and seeds" if e.difference.paired else "seeds"
        rows.append(
            [
                titles.get(e.row, e.row),
                e.column,
                f"{ours.seeds if ours else 0} of {e.planned}" if e.planned else "–",
                f"{ours.examples:,}" if ours and ours.examples else "–",
                number(ours.value, e.of) if ours else NONE if e.there else MISSING,
                number(sd, e.of),
                ends(ours, e.of),
                signed(e.difference, e.of),
                ends(e.difference, e.of),
                pairs,
                paper_text(e.paper, e.paper_sd, e.of),
            ]
        )
    return markdown(header, rows)


def as_csv(results: StudyResults, found: Sequence[Entry]) -> str:
    """Every number with full precision; accuracies are shares, the paper's too."""
    rows = [_csv_row(results, entry) for entry in found]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]) if rows else ["study"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _csv_row(results: StudyResults, entry: Entry) -> dict[str, Any]:
    """None is written as an empty field."""
    of, ours, gap = entry.of, entry.ours, entry.difference
    scaled = 100 if of.percent else 1
    paired = None if gap is None else "examples" if gap.paired else "seeds"
    return {
        "study": results.study.name,
        "scale": results.scale,
        "row": entry.row,
        "column": entry.column,
        "metric": of.metric or (score_of(of.score).metric if of.score else of.field),
        **{key: getattr(of, key) for key in ("checkpoint", "weights", "way", "show")},
        "seeds": ours.seeds if ours else 0,
        "seeds_planned": entry.planned,
        **{key: getattr(ours, key, None) for key in ("examples", "value", "sd", "low", "high")},
        **{f"difference_{key}": getattr(gap, key, None) for key in ("value", "low", "high")},
        "difference_pairs": paired,
        "paper": None if entry.paper is None else entry.paper / scaled,
        "paper_sd": None if entry.paper_sd is None else entry.paper_sd / scaled,
    }
