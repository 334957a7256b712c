"""`ponder runs`: the runs of a folder as a table."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table


def main(args: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="ponder runs",
        description="The runs of a folder: what they train, how far they are, their best score on val, when they were "
        "last heard of, and whether somebody trains them now.",
    )
    parser.add_argument("folder", nargs="?", type=Path, default=Path("runs"), metavar="DIR", help="default: runs")
    known = parser.parse_args(args)
    from ponder.training.listing import find_runs

    found = find_runs(known.folder)
    console = Console(highlight=False)
    if not found:
        console.print(f"no runs in {known.folder}: `ponder train PRESET` makes one", soft_wrap=True)
        return
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("run", overflow="fold")
    table.add_column("preset\nmodel", no_wrap=True)
    for column in ("update\nof", "best\non val", "age", "state"):  # two lines a run: they fit a narrow terminal
        table.add_column(column, justify="right", no_wrap=True)
    for run in found:
        best = "" if run.best is None else f"{run.best[1]:.1%}\nat {run.best[0]}"
        of = "?" if run.updates is None else run.updates
        state = run.state.replace(": ", "\n")
        name = str(run.folder.relative_to(known.folder)) if run.folder != known.folder else run.folder.name
        table.add_row(name, f"{run.preset}\n[dim]{run.model}[/]", f"{run.update}\n{of}", best, age(run.age), state)
    console.print(table)


def age(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
