"""The figures of a study, as PNG and SVG, from stored results: what is missing is not drawn."""

from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import ValidationError

from ponder.base.errors import UserError, unknown
from ponder.base.plots import COLOURS, figure
from ponder.base.stats import spread
from ponder.config.schema import Frozen
from ponder.reports.tables import FIXED, Entry
from ponder.reports.values import StudyResults, policies_of, rows_of, score_of
from ponder.studies.spec import WeightSet

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<")
DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))
SMALL = 8
HIGH = 80
"""Percent above which everything has to lie for bars to become points."""
HEIGHT = 4.4
"""Inches of a panel."""
LETTERS = 88
"""Of a legend under a panel, side by side."""


class Panel(Frozen):
    """One panel of a study's figure."""

    kind: Literal["bars", "order", "spread", "factor", "training", "depth", "policies", "scatter"]
    columns: tuple[str, ...] = ()
    """bars, spread: the table's columns side by side; scatter: the one along the axis, and the one up."""
    column: str = ""
    """order, factor: the table's column."""
    x: str = "update"
    """training: update or seconds; factor: the setting along the axis."""
    line: str = ""
    """factor: the setting that makes lines."""
    score: str = ""
    scores: tuple[str, ...] = ()
    """training and depth: one line each, of the baseline; with `score`, one line for each variant."""
    weights: tuple[WeightSet, ...] = ("ema",)
    task: str = ""
    log: bool = False


def panels_of(name: str, declared: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> list[Panel]:
    """The panels, which draw some of these columns: what a panel calls it -> the table's label."""
    try:
        panels = [Panel.model_validate(each) for each in declared]
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UserError(f"study {name}, figure: {where}: {first['msg']}, got {first['input']!r}") from None
    for column in (c for panel in panels for c in (*panel.columns, panel.column) if c):
        if column not in columns:
            raise unknown(f"column in the figure of {name}", column, columns)
    if any(panel.kind == "scatter" and len(panel.columns) != 2 for panel in panels):
        raise UserError(f"study {name}, figure: a scatter has two columns, the one along the axis and the one up")
    for score in (s for panel in panels for s in (*panel.scores, panel.score) if s):
        score_of(score)
    shown = {"": "", **columns}
    return [
        panel.model_copy(update={"columns": tuple(shown[c] for c in panel.columns), "column": shown[panel.column]})
        for panel in panels
    ]


def draw(
    results: StudyResults, found: Sequence[Entry], panels: Sequence[Panel], titles: Mapping[str, str], path: Path
) -> bool:
    """Write `path`.png and .svg; False where there is nothing to draw yet, and no older figure is left then."""
    pictures = {kind: path.with_name(f"{path.name}.{kind}") for kind in ("png", "svg")}
    tasks = {task for task, _, _ in results.cells}
    panels = [panel for panel in panels if _task(panel) in {"", *tasks}]
    if not results.done or not panels:
        for file in pictures.values():
            file.unlink(missing_ok=True)
        return False
    across = min(3 if len(panels) > 4 else 2, len(panels))
    down = -(-len(panels) // across)
    orders = all(panel.kind == "order" for panel in panels)
    size = ((4.8 if orders else 6.4) * across + 1, HEIGHT * down)
    with figure(list(pictures.values()), down, across, size, 120) as (made, axes):
        for axis in axes.flat[len(panels) :]:
            axis.set_visible(False)
        for axis, panel in zip(axes.flat, panels, strict=False):
            DRAWERS[panel.kind](axis, results, found, panel, titles)
        made.set_figheight(sum(max(map(_height, row)) for row in axes))
        text = f"{results.study.title}, {results.scale} scale: {results.done} of {len(results.cells)} trainings"
        if panels[0].kind == "order":
            paper = "diamond: the paper at paper scale, " if any(e.paper is not None for e in found) else ""
            text += f"\ndots: seeds, bar and tick: their mean, {paper}dotted: best fixed answer"
        made.suptitle(text)
    return True


def _task(panel: Panel) -> str:
    """The one task that a panel is about: a scale may leave it out."""
    return panel.task or (score_of(panel.score).task if panel.score else "")


def _height(axis: Any) -> float:
    """Inches of a panel: more of them where there are many names along its side, or under it."""
    legend = axis.get_legend()
    names = [text.get_text() for text in legend.get_texts()] if legend else []
    under = max(0.0, 0.19 * (-(-len(names) // _across(names)) - 3)) if names else 0.0
    return max(HEIGHT, 0.3 * len(axis.get_yticklabels()) + 1.3 if axis.yaxis_inverted() else 0.0) + under


def _style(number: int) -> dict[str, Any]:
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": DASHES[number % len(DASHES)],
        "markersize": 4,
    }


def _error(entry: Entry, scale: float) -> tuple[float, float] | None:
    """How far the bar reaches down and up: one sd over seeds; for one seed the 95% interval over examples."""
    ours = entry.ours
    if ours is None:
        return None
    if ours.sd is not None:
        return ours.sd * scale, ours.sd * scale
    if ours.low is None or ours.high is None:
        return None
    return (ours.value - ours.low) * scale, (ours.high - ours.value) * scale


def _error_words(found: Sequence[Entry]) -> str:
    seeds = {e.ours.seeds for e in found if e.ours is not None}
    examples = {e.ours.examples for e in found if e.ours is not None and e.ours.examples}
    if not seeds:
        return "no results yet"
    judged = f"{_range(examples)} puzzles" if examples else "examples"
    if seeds == {1}:
        return f"bars: 95% interval over {judged}, n = 1 seed"
    also = f", or 95% over {judged} where there is one" if 1 in seeds else f"; {judged} each" if examples else ""
    return f"bars: sd over n = {_range(seeds)} seeds{also}"


def _range(counts: Collection[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{high:,}" if low == high else f"{low:,} to {high:,}"


def _bars(axis: Any, results: StudyResults, found: Sequence[Entry], panel: Panel, titles: Mapping[str, str]) -> None:
    """Groups of columns, a bar for each row; the paper's numbers as open diamonds. Where all of it is high, points on
    an axis that does not begin at 0: bars would hide what differs."""
    shown = [e for e in found if e.column in panel.columns and e.planned]
    columns = [c for c in panel.columns if any(e.column == c for e in shown)]
    rows = list(dict.fromkeys(e.row for e in shown))
    width = 0.8 / max(len(rows), 1)
    percent = all(e.of.percent for e in shown)
    scale, diamond = 100.0 if percent else 1.0, False
    drawn = [100 * e.ours.value for e in shown if e.ours] + [e.paper for e in shown if e.paper is not None]
    points = percent and not panel.log and min(drawn, default=0.0) > HIGH
    for number, row in enumerate(rows):
        label: str | None = titles.get(row, row)
        for place, column in enumerate(columns):
            entry = next((e for e in shown if (e.row, e.column) == (row, column)), None)
            if entry is None:
                continue
            at = place + (number - (len(rows) - 1) / 2) * width
            if entry.ours is not None:
                if points:
                    style = {**_style(number), "linestyle": "none", "markersize": 6}
                    axis.plot(at, entry.ours.value * scale, label=label, **style)
                else:
                    axis.bar(
                        at, entry.ours.value * scale, width * 0.92, color=COLOURS[number % len(COLOURS)], label=label,
                        hatch=("", "//", "..", "xx", "\\\\", "--")[number % 6], edgecolor="white", linewidth=0.3,
                    )  # fmt: skip
                label = None
                if (reach := _error(entry, scale)) is not None:
                    axis.errorbar(
                        at, entry.ours.value * scale, [[reach[0]], [reach[1]]], color="black", capsize=2, lw=1
                    )
            if entry.paper is not None and not panel.log:
                legend = None if diamond else "the paper, paper scale"
                axis.plot(at, entry.paper, "D", mfc="none", mec="black", markersize=5, linestyle="none", label=legend)
                diamond = True
    axis.set_xticks(
        range(len(columns)),
        columns,
        rotation=15 if len(columns) > 3 else 0,
        ha="right" if len(columns) > 3 else "center",
    )
    axis.set_xlim(-0.5, max(len(columns), 1) - 0.5)  # also where some bars are missing
    if panel.log:
        axis.set_yscale("log")
    if points:
        _points(axis)
    axis.set_ylabel("accuracy, %" if percent else ", ".join(columns))
    axis.set_title(_error_words(shown), fontsize=SMALL + 1)
    _legend(axis, below=True)


def _order(axis: Any, results: StudyResults, found: Sequence[Entry], panel: Panel, titles: Mapping[str, str]) -> None:
    """Recipes from the paper's best downwards: every seed, their mean, the paper's number, and the rank of those that
    it has. Where the paper has none, from our best."""
    here = [e for e in found if e.column == panel.column]
    told = any(e.paper is not None for e in here)
    shown = sorted((e for e in here if e.planned), key=lambda e: -(e.paper or 0.0) if told else -_ours(e))
    ours = sorted((e for e in shown if e.ours and e.paper is not None), key=lambda e: -_ours(e))
    seeds = 0
    for place, entry in enumerate(shown):
        colour = COLOURS[list(results.study.variants).index(entry.row) % len(COLOURS)]
        values = [100 * v.value for v in results.readings(entry.row, entry.of).values()]
        if values:
            seeds = max(seeds, len(values))
            mean = float(np.mean(values))
            axis.plot([0, mean], [place, place], color=colour, lw=5, alpha=0.25, solid_capstyle="butt")
            axis.plot(values, [place] * len(values), "o", color=colour, markersize=5, alpha=0.8, linestyle="none")
            axis.plot(mean, place, "|", color="black", markersize=min(14.0, 110 / len(shown)), mew=1.5)
        if entry.paper is not None:
            axis.plot(entry.paper, place, "D", mfc="none", mec="black", markersize=6, linestyle="none")
        if entry.paper is not None:
            mine = ours.index(entry) + 1 if entry in ours else "–"
            axis.text(103, place, f"{place + 1} / {mine}", va="center", fontsize=SMALL, clip_on=False)
    fixed = next((e.ours for e in here if e.row == FIXED), None)
    if fixed is not None:
        axis.axvline(100 * fixed.value, color="0.3", linestyle=":", lw=1.2)
    if told:
        axis.text(103, -0.75, "rank: paper / ours", fontsize=SMALL - 1, ha="left", clip_on=False)
    axis.set_yticks(range(len(shown)), [titles.get(e.row, e.row).split(" (")[0] for e in shown])
    axis.set(xlim=(-2, 102), ylim=(len(shown) - 0.5, -0.6), xlabel="valid answers, %")
    axis.set_title(f"{panel.column.removesuffix(', best_full')}, {seeds} seed{'s' if seeds != 1 else ''}")


def _ours(entry: Entry) -> float:
    return entry.ours.value if entry.ours is not None else -1.0


def _spread(axis: Any, results: StudyResults, found: Sequence[Entry], panel: Panel, titles: Mapping[str, str]) -> None:
    """Standard deviation over seeds, in the order of the rows; the paper's dotted."""
    rows, seeds = list(results.study.variants), set[int]()
    for number, column in enumerate(panel.columns):
        mine = {e.row: e for e in found if e.column == column}
        style = _style(number)
        ours = [
            (i, 100 * e.ours.sd) for i, r in enumerate(rows) if (e := mine.get(r)) and e.ours and e.ours.sd is not None
        ]
        if ours:
            seeds |= {mine[rows[i]].ours.seeds for i, _ in ours}  # type: ignore[union-attr]
            axis.plot(*zip(*ours, strict=True), label=column, **style)
        paper = [(i, e.paper_sd) for i, r in enumerate(rows) if (e := mine.get(r)) and e.paper_sd is not None]
        if paper:
            axis.plot(
                *zip(*paper, strict=True),
                **{**style, "linestyle": ":", "mfc": "none"},
                label=f"{column}, the paper, paper scale",
            )
    axis.set_xticks(range(len(rows)), [titles.get(r, r) for r in rows], rotation=15, ha="right")
    axis.set(ylabel="sd over seeds, points")
    axis.set_title(f"spread over n = {_range(seeds)} seeds" if seeds else "no results yet", fontsize=SMALL + 1)
    _legend(axis)


def _factor(axis: Any, results: StudyResults, found: Sequence[Entry], panel: Panel, titles: Mapping[str, str]) -> None:
    """A column against one setting, a line for each value of another."""
    shown = [e for e in found if e.column == panel.column and e.ours is not None and e.planned]
    place = {e.row: _settings(results, e.row, panel) for e in shown}
    for number, value in enumerate(sorted({line for _, line in place.values()})):
        some = sorted((e for e in shown if place[e.row][1] == value), key=lambda e: place[e.row][0])
        x, name = [place[e.row][0] for e in some], f"{panel.line.rpartition('.')[2]} {value:g}"
        y = [100 * e.ours.value for e in some if e.ours is not None]
        reach = [_error(e, 100) or (0.0, 0.0) for e in some]
        axis.errorbar(x, y, np.array(reach).T, capsize=3, label=name, **_style(number))
        paper = [(place[e.row][0], e.paper) for e in some if e.paper is not None]
        if paper:
            style = {**_style(number), "linestyle": ":", "alpha": 0.5, "mfc": "none"}
            axis.plot(*zip(*paper, strict=True), label=f"{name}, the paper, paper scale", **style)
    axis.set(xlabel=panel.x.rpartition(".")[2], ylabel=f"{panel.column}, %")
    axis.set_xticks(sorted({x for x, _ in place.values()}))
    axis.set_title(_error_words(shown), fontsize=SMALL + 1)
    _points(axis)
    _legend(axis, below=True)


def _settings(results: StudyResults, variant: str, panel: Panel) -> tuple[float, float]:
    config = next(c.config for (_, v, _), c in results.cells.items() if v == variant and c is not None)
    x, line = (float(attrgetter(key)(config)) for key in (panel.x, panel.line))
    return x, line


def _lines(results: StudyResults, panel: Panel, titles: Mapping[str, str]) -> list[tuple[str, str, str, WeightSet]]:
    """(label, variant, score, weights) of each line of a panel."""
    baseline = results.study.baseline
    if panel.score and len(panel.weights) > 1:
        return [(f"{w} weights", baseline, panel.score, w) for w in panel.weights]
    if panel.score:
        return [(titles.get(v, v), v, panel.score, panel.weights[0]) for v in results.study.variants]
    return [(score, baseline, score, panel.weights[0]) for score in panel.scores]


def _training(
    axis: Any, results: StudyResults, found: Sequence[Entry], panel: Panel, titles: Mapping[str, str]
) -> None:
    """Accuracy over training: the mean over seeds, shaded from the lowest to the highest seed."""
    seeds = 0
    for number, (label, variant, name, weights) in enumerate(_lines(results, panel, titles)):
        score = score_of(name)
        cells = list(results.stored(score.task, variant).values()) if score.task in results.tasks else []
        if score.metric not in ("exact", "valid", "token"):
            continue
        rows = [some for cell in cells if (some := rows_of(cell, score, score.metric, weights))]
        if not rows:
            continue
        seeds, length = max(seeds, len(rows)), min(len(some) for some in rows)
        x = np.mean(
            [
                [point.along("seconds" if panel.x == "seconds" else "update") for point, _ in some[:length]]
                for some in rows
            ],
            axis=0,
        )
        every = [[100 * value for _, value in some[:length]] for some in rows]
        style = _style(number)
        axis.plot(x, np.mean(every, axis=0), label=label, **style)
        if len(rows) > 1:
            axis.fill_between(x, np.min(every, axis=0), np.max(every, axis=0), color=style["color"], alpha=0.12, lw=0)
    axis.set(xlabel="seconds spent in updates" if panel.x == "seconds" else "update")
    axis.set(ylabel=f"{panel.score or 'accuracy'}, %")
    several = f"mean of n = {seeds} seeds, shaded from lowest to highest"
    axis.set_title("n = 1 seed" if seeds == 1 else several, fontsize=SMALL + 1)
    _points(axis)
    _legend(axis, below=True)


def _depth(axis: Any, results: StudyResults, found: Sequence[Entry], panel: Panel, titles: Mapping[str, str]) -> None:
    """Accuracy after each forced ACT step; the training budget is marked."""
    budgets, seeds = set(), set[int]()
    for number, (label, variant, name, weights) in enumerate(_lines(results, panel, titles)):
        score = score_of(name)
        cells = results.stored(score.task, variant).values() if score.task in results.tasks else []
        every = []
        for cell in cells:
            profiles = [cell.after.profile(weights, split) for split in score.splits]
            if None not in profiles:
                every.append(np.mean([getattr(profile, score.metric) for profile in profiles], axis=0))
                budgets.add(cell.after.budget)
        if every:
            seeds.add(len(every))
            length = min(map(len, every))
            mean = 100 * np.mean([e[:length] for e in every], axis=0)
            axis.plot(np.arange(1, length + 1), mean, label=label, **_style(number))
    for budget in sorted(budgets):
        axis.axvline(budget, color="0.5", linestyle=":", label="training budget")
    axis.set(xlabel="forced ACT steps", ylabel="accuracy, %")
    many = f", mean of n = {_range(seeds)} seeds" if seeds - {1} else ", n = 1 seed" if seeds else ""
    axis.set_title(f"last checkpoint{many}", fontsize=SMALL + 1)
    _points(axis)
    _legend(axis, below=True)


def _policies(
    axis: Any, results: StudyResults, found: Sequence[Entry], panel: Panel, titles: Mapping[str, str]
) -> None:
    """Accuracy against mean ACT steps: a marker for each policy, a colour for each variant."""
    names: list[str] = []
    seeds = set[int]()
    for number, variant in enumerate(results.study.variants):
        for policy, each in policies_of(results, panel.task, variant).items():
            seeds.add(len(each))
            if policy not in names:
                names.append(policy)
            steps, value = (np.mean([getattr(p, k) for p in each]) * by for k, by in (("steps", 1), ("valid", 100)))
            error = 100 * (spread([p.valid for p in each]) or 0.0)
            marker = MARKERS[names.index(policy) % len(MARKERS)]
            colour = COLOURS[number % len(COLOURS)]
            axis.errorbar(
                steps, value, error, color=colour, marker=marker, linestyle="none", capsize=2, alpha=0.8,
                label=f"{policy}, {titles.get(variant, variant)}",
            )  # fmt: skip
    axis.set(xlabel="mean ACT steps of an answer", ylabel="accuracy, %", title="")
    axis.set_title(
        f"halting policies on {panel.task}; bars: sd over n = {_range(seeds or {0})} seeds", fontsize=SMALL + 1
    )
    _legend(axis, below=True)


def _scatter(axis: Any, results: StudyResults, found: Sequence[Entry], panel: Panel, titles: Mapping[str, str]) -> None:
    """Two columns against each other: a point for each training, a colour and a marker for each variant."""
    columns, trainings = {e.column: e.of for e in found}, 0
    of = [columns[c] for c in panel.columns if c in columns]
    for number, variant in enumerate(results.study.variants if len(of) == 2 else ()):
        x, y = (results.readings(variant, each) for each in of)
        points = [
            [side[s].value * (100 if q.percent else 1) for s in x if s in y] for side, q in ((x, of[0]), (y, of[1]))
        ]
        trainings += len(points[0])
        if points[0]:
            style = {**_style(number), "marker": MARKERS[number // len(COLOURS)], "linestyle": "none"}
            axis.plot(*points, label=titles.get(variant, variant), **style)
    if panel.log:
        axis.set_xscale("log")
    axis.set(**dict(zip(("xlabel", "ylabel"), panel.columns, strict=True)))
    axis.set_title(f"a point for each of n = {trainings} trainings", fontsize=SMALL + 1)
    _legend(axis, below=True)


def _points(axis: Any) -> None:
    """An axis of percentages shows ten points at least: less than that is no picture of a difference."""
    low, high = axis.get_ylim()
    if high - low < 10:
        low = max((low + high) / 2 - 5, -0.5)
        axis.set_ylim(low, low + 10)


def _legend(axis: Any, below: bool = False) -> None:
    """`below`: under the axis, where it hides nothing."""
    lines = len(axis.get_legend_handles_labels()[0])
    if not lines:
        axis.set_axis_off()
        axis.text(0.5, 0.5, "no results yet", transform=axis.transAxes, ha="center", color="0.4")
    elif below:
        across = _across(axis.get_legend_handles_labels()[1])
        axis.legend(fontsize=SMALL, ncols=across, loc="upper center", bbox_to_anchor=(0.5, -0.2), frameon=False)
    else:
        axis.legend(fontsize=SMALL - 1, ncols=2 if lines > 6 else 1)


def _across(names: Collection[str]) -> int:
    """Columns of a legend under a panel."""
    return max(1, min(3, LETTERS // (max(map(len, names)) + 8)))


DRAWERS = {
    "bars": _bars,
    "order": _order,
    "spread": _spread,
    "factor": _factor,
    "training": _training,
    "depth": _depth,
    "policies": _policies,
    "scatter": _scatter,
}
