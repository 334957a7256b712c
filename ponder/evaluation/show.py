"""The table and the figure of `ponder eval`, from the data of `eval.json` alone."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ponder.base.console import interval, percent
from ponder.evaluation.arc import READINGS


def print_result(result: Mapping[str, Any], console: Console) -> None:
    at = result["checkpoint"]
    update = "" if at["update"] is None else f", update {at['update']}"
    console.print(f"[bold]{at['name']}[/]{update} on {result['data']['config']['domain']} {result['data']['hash']}")
    console.print(f"[dim]{result['protocol']}[/]")
    first = next(iter(next(iter(result["scores"].values())).values()))
    ends = [end for end in ("to_budget", "to_end") if end in first]
    if len(ends) == 2 and first["to_budget"]["steps"] == first["to_end"]["steps"]:
        ends = ["to_budget"]
    for end in ends:
        steps = first[end]["steps"]
        flops, layers = (result["cost"][key][steps - 1] for key in ("flops", "layer_applications"))
        said = "the training budget" if end == "to_budget" else "all that were run"
        title = f"{steps} ACT steps, {said}: {layers} layer applications, {flops / 1e6:,.1f} MFLOP an answer"
        console.print(f"\n[bold]{title}[/]")
        console.print(_table(result["scores"], end))
    if first[ends[0]]["halting"]:
        title = f"stopping where the halting head says so, at the latest after {first[ends[0]]['steps']} steps"
        console.print(f"\n[bold]{title}[/]")
        console.print(_halting_table(result["scores"], ends[0], result["cost"]["flops"][0]))
    for weights, scores in result["scores"].items():
        for split, said in scores.items():
            if "arc" in said:
                console.print(f"\n[bold]ARC, {split}, {weights} weights[/]\n[dim]{said['arc']['protocol']}[/]")
                console.print(_arc_table(said["arc"]))


def _rows(scores: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """(label, what was measured), the weights named where there are two."""
    return [
        (split if len(scores) == 1 else f"{split} {weights}", said)
        for weights, splits in scores.items()
        for split, said in splits.items()
    ]


def _columns(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    return table


def _table(scores: Mapping[str, Any], end: str) -> Table:
    """Percentages. best step: chosen on the split itself; any step: chosen by an oracle for each example."""
    table = _columns("split", "n", "exact", "valid", "token", "best_full", "best step", "any step")
    for label, said in _rows(scores):
        part = said[end]
        best = part["best_step"]["exact"]
        table.add_row(
            label,
            f"{said['n']:,}",
            interval(part["final"]["exact"]),
            *(percent(part["final"][m]["value"]) for m in ("valid", "token")),
            percent(part["best_full"]["exact"]["value"]),
            f"{percent(best['value'])} @{best['step']}",
            percent(part["any_step"]["exact"]["value"]),
        )
    return table


def _halting_table(scores: Mapping[str, Any], end: str, flops: int) -> Table:
    table = _columns("split", "mean step", "MFLOP", "exact", "valid", "AUROC", "ECE", "Brier")
    for label, said in _rows(scores):
        halting = said[end].get("halting")
        if not halting:
            continue
        trust = halting["calibration"]["all_steps"]
        table.add_row(
            label,
            f"{halting['mean_step']:.2f}",
            f"{halting['mean_step'] * flops / 1e6:,.1f}",
            interval(halting["exact"]),
            percent(halting["valid"]["value"]),
            *("" if trust[key] is None else f"{trust[key]:.3f}" for key in ("auroc", "ece", "brier")),
        )
    return table


def _arc_table(arc: Mapping[str, Any]) -> Table:
    names = {"all_test_inputs": "all inputs", "fractional": "fractional"}
    table = _columns("", *(f"{k}\n{names[reading]}" for reading in READINGS for k in ("pass@1", "pass@2")))

    def row(name: str, passes: Mapping[str, Any], cell: Any) -> None:
        table.add_row(name, *(cell(passes[r][k]) for r in READINGS for k in ("pass@1", "pass@2")))

    most = arc["votes"]["most"]
    for at in arc["at_step"]:
        row(f"{most} votes, step {at['step']}", at, interval)
    row("  blank id", arc["blank_id"], interval)
    for point in arc["curve"][:-1]:
        row(f"  {point['votes']} vote{'s' if point['votes'] > 1 else ''}", point, lambda s: percent(s["value"]))
    return table


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Accuracy against ACT steps, a line for each split; for ARC also pass@k against votes."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    scores = result["scores"]
    first = next(iter(scores.values()))
    voted = {(w, s): said["arc"] for w, splits in scores.items() for s, said in splits.items() if "arc" in said}
    columns = 2 if voted else 1
    figure, axes = plt.subplots(1, columns, figsize=(7.5 * columns, 4.8), layout="constrained", squeeze=False)
    axis, colours = axes[0, 0], plt.colormaps["tab10"].colors
    at = range(1, result["steps"] + 1)
    for weights, style in zip(scores, ("-", ":"), strict=False):
        for number, (split, said) in enumerate(scores[weights].items()):
            curve = {k: [100 * v for v in values] for k, values in said["steps"]["exact"].items()}
            colour = colours[number % len(colours)]
            bold = 2.6 if "splits" in said else 1.4
            label = f"{split} (n {said['n']:,})" if style == "-" else None
            axis.plot(at, curve["value"], style, color=colour, label=label, marker=".", linewidth=bold)
            if style == "-":
                axis.fill_between(at, curve["low"], curve["high"], color=colour, alpha=0.15, linewidth=0)
                if len(at) == 1:
                    axis.vlines(at, curve["low"], curve["high"], color=colour, alpha=0.6)
    if result["budget"] <= result["steps"] and result["steps"] > 1:
        axis.axvline(result["budget"], color="0.4", linestyle="--", linewidth=1)
        axis.annotate(
            "training budget", (result["budget"], 0.5), xycoords=("data", "axes fraction"), xytext=(3, 0),
            textcoords="offset points", rotation=90, va="center", fontsize=8, color="0.35",
        )  # fmt: skip
    dotted = "; dotted: online weights" if len(scores) > 1 else ""
    axis.set(xlabel="ACT steps", ylabel=f"exact, % (95% interval{dotted})", ylim=(-2, 102))
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.legend(loc="best", fontsize=8)
    for (weights, split), arc in voted.items():
        number = list(first).index(split)
        style = "-" if weights == next(iter(scores)) else ":"
        for k, marker in (("pass@1", "o"), ("pass@2", "s")):
            value = [100 * point["all_test_inputs"][k]["value"] for point in arc["curve"]]
            votes = [point["votes"] for point in arc["curve"]]
            label = f"{split} {k}" if style == "-" else None
            axes[0, 1].plot(votes, value, style, color=colours[number], marker=marker, label=label)
    if voted:
        axes[0, 1].set(
            xscale="log", xlabel="votes for each test input", ylabel="tasks solved, % (all test inputs)", ylim=(-2, 102)
        )
        axes[0, 1].legend(fontsize=8)
    for each in axes.flat:
        each.grid(alpha=0.25)
    figure.suptitle(f"{result['checkpoint']['name']} on {result['data']['config']['domain']}")
    figure.savefig(path, dpi=120)
    plt.close(figure)
