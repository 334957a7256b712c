"""What the terminal shows in more than one place: progress bars, tables, percentages."""

import time
from collections.abc import Container, Iterator
from contextlib import contextmanager
from typing import Self

from rich.console import Console
from rich.progress import Progress as RichProgress
from rich.progress import SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table


class Bar:
    """A domain's progress as a bar, shown once somebody has waited two seconds."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.bars: RichProgress | None = None
        self.tasks: dict[str, TaskID] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        if self.bars is None:
            if time.monotonic() - self.began < 2:
                return
            self.bars = RichProgress(console=Console(stderr=True), transient=True)
            self.bars.start()
        if what not in self.tasks:
            self.tasks[what] = self.bars.add_task(what, total=total)
        self.bars.update(self.tasks[what], completed=done, total=total)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.bars is not None:
            self.bars.stop()


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """On a terminal, say what a long step is that cannot say how far it is, with a clock."""
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with RichProgress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        bars.add_task(text, total=None)
        yield


def plain_table(*names: str, right: Container[str] = (), no_wrap: bool = False) -> Table:
    """A table without lines; the columns named in `right` hold numbers."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in names:
        table.add_column(name, justify="right" if name in right else "left", no_wrap=no_wrap)
    return table


def percent(value: float) -> str:
    return f"{100 * value:.1f}"


def counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def printable(text: str) -> str:
    """Words of others for a terminal: what would move its cursor, change its title or turn the line is escaped."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
