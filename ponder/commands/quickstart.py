"""`ponder quickstart`: train the 4x4 Sudoku model, see what more thinking buys, watch it solve an unseen puzzle."""

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.columns import Columns
from rich.console import Console, Group
from rich.text import Text

if TYPE_CHECKING:
    from ponder.evaluation.records import Records

PRESET = "sudoku-mini"
FOLDER = Path("runs/quickstart")


def main(args: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="ponder quickstart", description="Train the 4x4 Sudoku model and watch it think."
    )
    parser.add_argument("--seconds", type=float, default=120, metavar="S", help="training time at most")
    known = parser.parse_args(args)
    from ponder import data
    from ponder.base import runtime
    from ponder.commands import train
    from ponder.config.resolve import resolve
    from ponder.evaluation.records import Settings, run_split
    from ponder.inference.solver import Solver

    console = Console(highlight=False)
    console.print(
        "[bold]ponder[/] trains a small recursive network to solve minimal 4x4 Sudokus: one block, applied again and "
        f"again.\n{known.seconds:g} seconds at most; Ctrl-C stops it early and keeps what was learned.\n"
    )
    train.main([PRESET, "--out", str(FOLDER), "--max-seconds", f"{known.seconds:g}", "--device", "cpu"])
    console.print()
    config, here = resolve(PRESET), runtime.start("cpu")
    dataset = data.Dataset.open(data.folder_for(Path("data"), config.data))
    solver = Solver(FOLDER)
    how = Settings(config.model.max_steps, batch=500)
    records = run_split(solver.opened.model, dataset.domain, dataset.source("test"), how, here)
    console.print(f"[bold]What thinking longer buys[/]: puzzles solved after each step, of {records.n} held-out ones")
    for step, share in enumerate(records.exact.mean(axis=0), start=1):
        console.print(
            f"  step {step}  [green]{'█' * round(40 * share)}[/]{'·' * (40 - round(40 * share))} {share:6.1%}"
        )

    console.print("\n[bold]One of them, step by step[/]")
    index = _interesting(records)
    inputs = dataset.source("test").fetch(np.array([index]), np.array([0])).inputs[0]
    frames: list[Group] = [Group(Text("puzzle"), dataset.domain.render(inputs))]
    for thought in solver.think(inputs):
        verdict = "right" if thought.valid else f"{int(thought.changed.sum())} changed"
        frames.append(Group(Text(f"step {thought.step}: {verdict}"), dataset.domain.render(inputs, thought.answer)))
    console.print(Columns(frames, padding=(0, 4)))
    last = thought
    end = "The checker accepts the answer." if last.valid else dataset.domain.explain(inputs, last.answer)
    console.print(f"\n{end}\n")
    console.print(
        "[bold]Next[/]\n"
        "  ponder train sudoku-6x6-mini               a harder board, a minute\n"
        "  ponder train sudoku-mini --model trm       the same puzzles, another published recipe\n"
        "  ponder train sudoku-mini --model.gate false --out runs/no-gate     change one factor\n"
        "  ponder data show maze-mini --split test    look at another domain\n"
        "  ponder cost all                            what each model costs"
    )
    if shutil.which("ponder") is None:
        console.print("[dim]`. .venv/bin/activate` makes `ponder` a command.[/]")


def _interesting(records: "Records") -> int:
    """A puzzle that was solved in the end and took longest to get right."""
    solved = records.exact[:, -1]
    first = np.where(solved, records.exact.argmax(axis=1), -1)
    return int(records.index[int(first.argmax())])
