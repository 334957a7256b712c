"""Watching a run: a live table in a terminal, plain lines elsewhere."""

import sys
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from ponder.config.resolve import Config

EXACT = "exact: online weights at their own halting; evaluated: averaged weights at the full budget"
"""The two numbers of that name, which differ; both are shown while training."""


def describe_row(row: dict[str, Any]) -> str:
    """One row of metrics.jsonl as one plain line."""
    if row["kind"] == "train":
        parts = [f"update {row['update']}", f"loss {row['loss']:.4f}", f"exact {row['exact']:.1%}"]
        parts += [f"steps {row['steps']:.2f}", f"grad {row['grad_norm']:.3f}"]
        norms = [f"{row[key]:.2f}" for key in ("norm_h", "norm_l") if key in row]
        if norms:
            parts.append(f"norms {' '.join(norms)}")
        if "ratio" in row:
            parts.append(f"ratio {row['ratio']:.3f}")
        if "example_steps_per_second" in row:
            parts.append(f"{row['example_steps_per_second']:,.0f} example-steps/s")
        if "peak_fraction" in row:
            parts.append(f"{row['peak_fraction']:.0%} of peak")
        return "  ".join(parts)
    scores = "  ".join(f"{split} {s['exact']:.1%} exact, {s['valid']:.1%} valid" for split, s in row["ema"].items())
    return f"update {row['update']}  evaluated: {scores}  (n {', '.join(str(n) for n in row['n'].values())})"


class Plain:
    """Lines, for logs and pipes."""

    updates = batch = 0

    def begin(self, config: Config, updates: int, done: int) -> None:
        self.updates, self.batch = updates, config.train.batch
        start = f", resuming after update {done}" if done else ""
        physical = config.train.batch // config.train.accumulate
        if config.train.accumulate > 1:
            start = f" (physical batch {physical}, {config.train.accumulation} accumulation){start}"
        print(
            f"training {config.model.name} on {config.preset}: {updates} updates of {config.train.batch}{start}",
            flush=True,
        )
        print(f"({EXACT})", flush=True)

    def row(self, row: dict[str, Any]) -> None:
        rate = row.get("example_steps_per_second", 0.0)
        left = (self.updates - row["update"]) * self.batch / rate if rate > 0 else 0.0
        print(describe_row(row) + (f"  {left / 60:.1f} min left" if left > 0 else ""), flush=True)

    def say(self, text: str) -> None:
        print(text, flush=True)

    def close(self) -> None:
        return


class Silent:
    def begin(self, config: Config, updates: int, done: int) -> None:
        return

    def row(self, row: dict[str, Any]) -> None:
        return

    def say(self, text: str) -> None:
        return

    def close(self) -> None:
        return


class Terminal:
    """Progress, time left, the latest numbers and the accuracy of each split, redrawn in place."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
        )
        self.bar = self.progress.add_task("training", total=1)
        self.train: dict[str, Any] = {}
        self.evals: list[dict[str, Any]] = []
        self.live = Live(console=console, refresh_per_second=4)

    def begin(self, config: Config, updates: int, done: int) -> None:
        text = f"[bold]{config.model.name}[/] on [bold]{config.preset}[/]"
        self.progress.update(self.bar, description=text, total=updates, completed=done)
        self.progress.start_task(self.bar)
        self.live.start()
        self.live.update(self._drawn())

    def row(self, row: dict[str, Any]) -> None:
        self.progress.update(self.bar, completed=row["update"])
        if row["kind"] == "train":
            self.train = row
        else:
            self.evals.append(row)
        self.live.update(self._drawn())

    def say(self, text: str) -> None:
        self.console.print(Text(text, style="yellow"))

    def close(self) -> None:
        self.live.stop()

    def _drawn(self) -> Group:
        numbers = Table.grid(padding=(0, 2))
        shown = (
            ("loss", "loss", "{:.4f}"),
            ("exact, own halting", "exact", "{:.1%}"),
            ("mean ACT steps", "steps", "{:.2f}"),
            ("gradient norm", "grad_norm", "{:.3f}"),
            ("norm z_H", "norm_h", "{:.2f}"),
            ("norm z_L", "norm_l", "{:.2f}"),
            ("update ratio", "ratio", "{:.3f}"),
            ("halting logit", "q_halt", "{:+.1f}"),
            ("example-steps/s", "example_steps_per_second", "{:,.0f}"),
            ("of machine peak", "peak_fraction", "{:.0%}"),
        )
        pairs = [(label, form.format(self.train[key])) for label, key, form in shown if key in self.train]
        for left in range(0, len(pairs), 2):
            cells = [cell for label, value in pairs[left : left + 2] for cell in (f"[dim]{label}[/]", value)]
            numbers.add_row(*cells)
        parts: list[Any] = [self.progress, numbers]
        if self.evals:
            parts.append(accuracy_table(self.evals[-6:]))
        return Group(*parts)


def accuracy_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(
        box=None,
        padding=(0, 2),
        title="evaluated: exact, averaged weights at the full budget",
        title_justify="left",
        title_style="dim",
    )
    table.add_column("update", justify="right")
    for split in rows[-1]["ema"]:
        table.add_column(split, justify="right")
    for row in rows:
        table.add_row(f"{row['update']:,}", *(f"{s['exact']:.1%}" for s in row["ema"].values()))
    return table


def view_for(quiet: bool) -> Plain | Silent | Terminal:
    if quiet:
        return Silent()
    return Terminal(Console()) if sys.stdout.isatty() else Plain()
