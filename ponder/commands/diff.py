"""`ponder diff A B`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ponder.evaluation.diff import Evaluated, changed_settings, compare, read


def main(args: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="ponder diff",
        description="Two evaluated runs: how their configurations differ, and how their scores do, example by example.",
    )
    for letter in ("a", "b"):
        parser.add_argument(letter, metavar=letter.upper(), type=Path, help="a run folder or an evaluation folder")
    known = parser.parse_args(args)
    print_differences(read(known.a), read(known.b), Console(highlight=False))


def print_differences(a: Evaluated, b: Evaluated, console: Console) -> None:
    rows = compare(a, b)
    changed = changed_settings(a, b)
    for letter, each in (("A", a), ("B", b)):
        weights, sha256 = next(iter(each.result.weights.items()))
        at = each.result.checkpoint
        update = "" if at.update is None else f", update {at.update}"
        console.print(f"[bold]{letter}[/] {each.folder}: {weights} weights {sha256[:12]}{update}")
    table = Table(box=None, padding=(0, 2), pad_edge=False)
    for column in ("setting" if changed else "the configurations are the same", *(("A", "B") if changed else ())):
        table.add_column(column)
    for key, values in changed.items():
        table.add_row(key, *(str(value) for value in values))
    console.print(table)
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    for column in ("split", "measure", "n", "A %", "B %", "B - A", "95% interval", "only A", "only B"):
        table.add_column(column, justify="left" if column in ("split", "measure") else "right", no_wrap=True)
    for row in rows:
        value, low, high = (100 * v for v in (row.difference.value, row.difference.low, row.difference.high))
        sure = "bold" if low > 0 or high < 0 else "dim"
        table.add_row(
            row.split,
            row.measure,
            f"{row.n:,}",
            f"{100 * row.a:.1f}",
            f"{100 * row.b:.1f}",
            f"[{sure}]{value:+.1f}[/]",
            f"{low:+.1f} to {high:+.1f}",
            *("" if count is None else f"{count:,}" for count in (row.only_a, row.only_b)),
        )
    console.print(table)
    console.print(
        f"[dim]on the same examples of data {a.result.data.hash}, each at its training budget (A "
        f"{a.result.budget}, B {b.result.budget} ACT steps); B - A in points; only A: A right, B wrong; "
        f"best_full: exact at the most confident step; pass@k: tasks with all test inputs solved[/]"
    )
