"""The tables and figures of `ponder eval`, `policies`, `search` and `trace`, from what they wrote down alone."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ponder.base import plots
from ponder.base.console import percent
from ponder.evaluation.schema import (
    ArcScore,
    EvalResult,
    PassAt,
    Passes,
    PoliciesResult,
    SearchPoint,
    SearchResult,
    Share,
    SplitResult,
    TraceResult,
)


def interval(share: Share) -> str:
    return f"{percent(share.value)} [dim]{percent(share.low)}-{percent(share.high)}[/]"


def columns(*names: str, title: str | None = None) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=None,
        padding=(0, 1),
        pad_edge=False,
        collapse_padding=True,
    )
    for number, name in enumerate(names):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    return table


@contextmanager
def figure(path: Path, count: int = 1, size: tuple[float, float] = (8, 5), dpi: int = 110) -> Iterator[list[Any]]:
    """`count` axes side by side, written to the file at the end."""
    with plots.figure([path], 1, count, (size[0] * count, size[1]), dpi) as (_, axes):
        yield list(axes.flat)
        for axis in axes.flat:
            axis.legend()


# eval.json ------------------------------------------------------------------------------------------------------------


def print_result(result: EvalResult, console: Console) -> None:
    at = result.checkpoint
    update = "" if at.update is None else f", update {at.update}"
    console.print(f"[bold]{at.name}[/]{update} on {result.data.config['domain']} {result.data.hash}")
    console.print(f"[dim]{result.protocol}[/]")
    ends = next(iter(result.main.values())).ends
    for number, end in enumerate(ends):
        flops, layers = (cost[end.steps - 1] for cost in (result.cost.flops, result.cost.layer_applications))
        what = "the training budget" if end.steps == result.budget else "all that were run"
        title = f"{end.steps} ACT steps, {what}: {layers} layer applications, {flops / 1e6:,.1f} MFLOP an answer"
        console.print(f"\n[bold]{title}[/]")
        console.print(_table(result.scores, number))
    if ends[0].halting is not None:
        title = f"stopping where the halting head says so, at the latest after {ends[0].steps} steps"
        console.print(f"\n[bold]{title}[/]")
        console.print(_halting_table(result.scores, result.cost.flops[0]))
    for weights, scores in result.scores.items():
        for split, score in scores.items():
            if score.arc is not None:
                console.print(f"\n[bold]ARC, {split}, {weights} weights[/]\n[dim]{score.arc.protocol}[/]")
                console.print(_arc_table(score.arc))


def _rows(scores: Mapping[str, Mapping[str, SplitResult]]) -> list[tuple[str, SplitResult]]:
    """(label, score), the weights named where there are two."""
    return [
        (split if len(scores) == 1 else f"{split} {weights}", score)
        for weights, splits in scores.items()
        for split, score in splits.items()
    ]


def _table(scores: Mapping[str, Mapping[str, SplitResult]], number: int) -> Table:
    """Percentages. best step: chosen on the split itself; any step: chosen by an oracle for each example."""
    table = columns("split", "n", "exact", "valid", "token", "best_full", "best step", "any step")
    for label, score in _rows(scores):
        end = score.ends[number]
        best = end.best_step.exact
        table.add_row(
            label,
            f"{score.n:,}",
            interval(end.final.exact),
            *(percent(share.value) for share in (end.final.valid, end.final.token, end.best_full.exact)),
            f"{percent(best.value)} @{best.step}",
            percent(end.any_step.exact.value),
        )
    return table


def _halting_table(scores: Mapping[str, Mapping[str, SplitResult]], flops: int) -> Table:
    table = columns("split", "mean step", "MFLOP", "exact", "valid", "AUROC", "ECE", "Brier")
    for label, score in _rows(scores):
        halting = score.ends[0].halting
        if halting is None:
            continue
        trust = halting.calibration.all_steps
        table.add_row(
            label,
            f"{halting.mean_step:.2f}",
            f"{halting.mean_step * flops / 1e6:,.1f}",
            interval(halting.exact),
            percent(halting.valid.value),
            *("" if value is None else f"{value:.3f}" for value in (trust.auroc, trust.ece, trust.brier)),
        )
    return table


def _arc_table(arc: ArcScore) -> Table:
    names = [f"pass@{k}\n{reading}" for reading in ("all inputs", "fractional") for k in (1, 2)]
    table = columns("", *names)

    def row(name: str, passes: Passes, cell: Callable[[Share], str] = interval) -> None:
        readings = (passes.all_test_inputs, passes.fractional)
        table.add_row(name, *(cell(share) for reading in readings for share in (reading.one, reading.two)))

    for at in arc.at_step:
        row(f"{arc.votes.most} votes, step {at.step}", at)
    row("  blank id", arc.blank_id)
    for point in arc.curve[:-1]:
        row(f"  {point.votes} vote{'s' if point.votes > 1 else ''}", point, lambda share: percent(share.value))
    return table


def draw(result: EvalResult, path: Path) -> None:
    """Accuracy against ACT steps, a line for each split; for ARC also pass@k against votes."""
    voted = [(w, s, x.arc) for w, splits in result.scores.items() for s, x in splits.items() if x.arc is not None]
    with figure(path, 2 if voted else 1, (7.5, 4.8), 120) as axes:
        axis, main = axes[0], next(iter(result.scores))
        at = range(1, result.steps + 1)
        for weights, style in zip(result.scores, ("-", ":"), strict=False):
            for number, (split, score) in enumerate(result.scores[weights].items()):
                value, low, high = score.steps.exact.percents()
                colour, bold = f"C{number % 10}", 1.4 if score.splits is None else 2.6
                label = f"{split} (n {score.n:,})" if style == "-" else None
                axis.plot(at, value, style, color=colour, label=label, marker=".", linewidth=bold)
                if style == "-":
                    axis.fill_between(at, low, high, color=colour, alpha=0.15, linewidth=0)
                    if len(at) == 1:
                        axis.vlines(at, low, high, color=colour, alpha=0.6)
        if result.steps > 1 and result.budget <= result.steps:
            axis.axvline(result.budget, color="0.4", linestyle="--", linewidth=1)
            axis.annotate(
                "training budget", (result.budget, 0.5), xycoords=("data", "axes fraction"), xytext=(3, 0),
                textcoords="offset points", rotation=90, va="center", fontsize=8, color="0.35",
            )  # fmt: skip
        dotted = "; dotted: online weights" if len(result.scores) > 1 else ""
        axis.set(xlabel="ACT steps", ylabel=f"exact, % (95% interval{dotted})", ylim=(-2, 102))
        axis.xaxis.get_major_locator().set_params(integer=True)
        for weights, split, arc in voted:
            style, colour = "-" if weights == main else ":", f"C{list(result.main).index(split)}"
            votes = [point.votes for point in arc.curve]
            solved: list[PassAt] = [point.all_test_inputs for point in arc.curve]
            for name, marker, shares in (
                ("pass@1", "o", [each.one for each in solved]),
                ("pass@2", "s", [each.two for each in solved]),
            ):
                label = f"{split} {name}" if style == "-" else None
                value = [100 * share.value for share in shares]
                axes[1].plot(votes, value, style, color=colour, marker=marker, label=label)
        if voted:
            name = "tasks solved, % (all test inputs)"
            axes[1].set(xscale="log", xlabel="votes for each test input", ylabel=name, ylim=(-2, 102))
        axis.figure.suptitle(f"{result.checkpoint.name} on {result.data.config['domain']}")


# policies.json --------------------------------------------------------------------------------------------------------


def print_policies(result: PoliciesResult, console: Console) -> None:
    title = (
        f"{result.checkpoint.name} on {result.split}, n {result.n}, budget {result.budget} steps "
        f"(trained with {result.training_budget})"
    )
    table = columns("policy", "exact %", "valid %", "steps", "max", "layers", "MFLOP", "a second", title=title)
    for r in result.results:
        cells = (f"{r.mean_steps:.2f}", f"{r.max_steps}", f"{r.applications:.1f}", f"{r.flops / 1e6:.4g}")
        table.add_row(r.policy, interval(r.exact), interval(r.valid), *cells, f"{r.per_second:.4g}")
    console.print(table)
    console.print("[dim]with 95% intervals; steps, layer applications and FLOP: mean of an answer[/]")


def draw_policies(result: PoliciesResult, path: Path) -> None:
    """Accuracy against compute."""
    with figure(path) as (axis,):
        steps = np.arange(1, result.budget + 1)
        value, low, high = result.steps.percents()
        axis.plot(steps, value, color="0.4", label="every puzzle the same number of steps")
        axis.fill_between(steps, low, high, color="0.4", alpha=0.15, linewidth=0)
        for i, r in enumerate(result.results):
            middle, below, above = r.exact.percents()
            kind = next((m for name, m in (("halt", "o"), ("stable", "s"), ("checker", "*")) if name in r.policy), "D")
            style = {"fmt": kind, "color": f"C{i % 10}", "markersize": 10 if kind == "*" else 6}
            spread = [[middle - below], [above - middle]]
            axis.errorbar(r.mean_steps, middle, spread, capsize=3, label=r.policy, **style)
        if result.training_budget <= result.budget:
            axis.axvline(result.training_budget, color="0.6", linestyle=":", label="training budget")
        layers = result.results[0].applications / result.results[0].mean_steps
        above_axis = axis.secondary_xaxis("top", functions=(lambda s: s * layers, lambda a: a / layers))
        above_axis.set_xlabel("layer applications of an answer")
        axis.set(xlabel="mean ACT steps of an answer", ylabel="exact accuracy, %")
        axis.set_title(f"{result.checkpoint.name} on {result.split}, n {result.n}")


# search.json ----------------------------------------------------------------------------------------------------------


def print_search(result: SearchResult, console: Console) -> None:
    plan, found, budget = result.plan, result.found, result.plain.total
    console.print(f"[bold]{result.checkpoint.name}[/] on {result.split}, n {result.n}")
    table = columns("", "valid %", "exact %", "mean steps", "of plain", "max")
    for name, p in ((f"plain, {budget} steps", result.plain), (f"search, {found.restarts} x {found.steps}", found)):
        table.add_row(name, *_cells(p, budget), f"{p.max_compute}")
    console.print(table)
    names = ("at most", "r x steps", "valid %", "exact %", "mean steps", "of plain")
    table = columns(*names, title="\nbreadth against depth at equal compute")
    table.columns[0].justify = "right"
    for p in result.table:
        table.add_row(f"{p.total}", f"{p.restarts} x {p.steps}", *_cells(p, budget))
    console.print(table)
    varied = {"suppose": "a cell supposed", "likely": "the likeliest answers"}.get(plan.vary)
    varied = varied or f"noise {plan.noise:.2g}, seed {plan.seed}"
    console.print(
        f"[dim]with 95% intervals; answers selected by {plan.select}, {varied}; steps: "
        f"ACT steps of a puzzle, all its restarts together[/]"
    )


def _cells(p: SearchPoint, budget: int) -> tuple[str, ...]:
    return interval(p.valid), interval(p.exact), f"{p.mean_compute:.1f}", f"{p.mean_compute / budget:.2f}"


def draw_search(result: SearchResult, path: Path) -> None:
    """Accuracy against the compute that was used."""
    from matplotlib.ticker import ScalarFormatter

    with figure(path) as (axis,):
        for total in sorted({p.total for p in result.table}):
            same = [p for p in result.table if p.total == total]
            used = [p.mean_compute for p in same]
            value, low, high = np.transpose([p.valid.percents() for p in same])
            axis.errorbar(used, value, [value - low, high - value], fmt="o-", capsize=3, label=f"at most {total} steps")
            for p, x, y in zip(same, used, value, strict=True):
                at = {"xytext": (4, -10), "textcoords": "offset points", "fontsize": 7}
                axis.annotate(f"{p.restarts}x{p.steps}", (x, y), **at)
        plain = result.plain
        axis.plot(plain.mean_compute, 100 * plain.valid.value, "kD", label=f"plain, {plain.steps} steps")
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter(ScalarFormatter())
        axis.set(xlabel="ACT steps of a puzzle, all restarts together, mean", ylabel="valid answers, %")
        where = f"{result.checkpoint.name} on {result.split}, n {result.n}"
        axis.set_title(f"{where}: restarts x steps, by {result.plan.select}")


# trace.json -----------------------------------------------------------------------------------------------------------


def print_trace(result: TraceResult, console: Console) -> None:
    title = f"{result.checkpoint.name} on {result.split}, n {result.n} (trained with {result.budget} steps)"
    table = columns("step", "right %", "residual", "10-90%", "stretch", "10-90%", "bounded %", title=title)
    every = zip(result.right, result.residual, result.stretch, result.bounded, strict=True)
    for number, (right, moved, wide, bounded) in enumerate(every, 1):
        spread = (f"{q.low:.2g}-{q.high:.2g}" for q in (moved, wide))
        sizes = (f"{moved.median:.2g}", next(spread), f"{wide.median:.3g}", next(spread))
        table.add_row(f"{number}", percent(right), *sizes, percent(bounded))
    console.print(table)
    cells = result.table
    table = columns(f"\nlast residual < {result.settled:g}", "right", "wrong")
    table.add_row("settled", f"{cells.settled_right}", f"{cells.settled_wrong}")
    table.add_row("still moving", f"{cells.moving_right}", f"{cells.moving_wrong}")
    console.print(table)
    console.print(
        "[dim]medians over examples; residual: |z' - z| / |z| of a step; stretch: largest singular value of its "
        f"Jacobian, {result.directions} directions, {result.rounds} rounds; bounded: positions whose last update of "
        "z_L was larger than the bound allows[/]"
    )


def draw_trace(result: TraceResult, path: Path) -> None:
    """Residual and stretch by step, settled against right, and the trajectories in their plane."""
    with figure(path, 4, (4.6, 4.4)) as (first, second, third, fourth):
        steps = range(1, result.steps + 1)
        for axis, name, values in ((first, "residual", result.residual), (second, "stretch", result.stretch)):
            axis.plot(steps, [q.median for q in values], marker=".", label=f"{name}, median")
            axis.fill_between(steps, [q.low for q in values], [q.high for q in values], alpha=0.2, label="10-90%")
            axis.axvline(result.budget, color="0.6", linestyle=":", label="training budget")
            axis.set(xlabel="ACT steps", yscale="log", title=name)
        first.axhline(result.settled, color="C3", linewidth=0.8, label="settled below")
        second.axhline(1.0, color="C3", linewidth=0.8, label="1: neither way")
        cells, bottom = result.table, np.zeros(2)
        kinds = ("settled", "still moving")
        for name, counts, colour in (
            ("right", (cells.settled_right, cells.moving_right), "C2"),
            ("wrong", (cells.settled_wrong, cells.moving_wrong), "C3"),
        ):
            bars = third.bar(kinds, counts, bottom=bottom, color=colour, label=name)
            third.bar_label(bars, [f"{c}" if c else "" for c in counts], label_type="center")
            bottom = bottom + np.array(counts)
        third.set(title=f"after {result.steps} steps", ylabel="examples")
        told = set()
        for each in result.trajectories:
            x, y = zip(*each.points, strict=True)
            name = "right" if each.right else "wrong"
            label = None if name in told else name
            told.add(name)
            fourth.plot(x, y, color="C2" if each.right else "C3", alpha=0.5, linewidth=0.8, label=label)
            fourth.plot(x[-1:], y[-1:], "o" if each.settled else "x", color="C2" if each.right else "C3", markersize=4)
        one, two = (100 * share for share in result.explained)
        fourth.set(xlabel=f"{one:.0f}% of the variance", ylabel=f"{two:.0f}%", title="states (o settled, x moving)")
        first.figure.suptitle(f"{result.checkpoint.name} on {result.split}, n {result.n}")
