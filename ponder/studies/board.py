"""What is seen of studies: the live table of a running one, plain lines elsewhere, lists, and how long it will take."""

import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from statistics import fmean
from typing import Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ponder.base.console import plain_table
from ponder.base.errors import UserError
from ponder.config.resolve import differences
from ponder.studies.spec import Cell, Study, Training
from ponder.studies.store import STATES, State, Store

COLOURS = {"done": "green", "running": "cyan", "failed": "red", "left": "dim"}
REDRAW = 1.0
"""Seconds between looks at the running cells' logs."""


class Durations:
    """How long cells take: as long as finished ones of the same variant and task, else task, else any."""

    def __init__(self, store: Store, cells: Iterable[Cell]) -> None:
        self.store = store
        self.known: dict[tuple[str, ...], list[float]] = {}
        for cell in cells:
            self.learn(cell)

    def learn(self, cell: Cell) -> None:
        result = self.store.stored(cell.key)
        if result is not None:
            for like in _likes(cell):
                self.known.setdefault(like, []).append(result.seconds + result.after_seconds)

    def expected(self, cell: Cell) -> float | None:
        found = next((self.known[like] for like in _likes(cell) if like in self.known), None)
        return None if found is None else fmean(found)

    def left(self, cell: Cell, elapsed: float) -> float | None:
        """Of a running cell: from how far its log has come, else from what is expected."""
        rows, updates = self.log(cell), cell.config.train.updates
        if rows and updates:
            return float(rows[-1]["seconds"] * (updates / rows[-1]["update"] - 1))
        expected = self.expected(cell)
        return None if expected is None else max(0.0, expected - elapsed)

    def log(self, cell: Cell) -> list[dict[str, Any]]:
        from ponder.training.log import read_log  # loads torch, which lists need not

        with suppress(UserError):  # a damaged one is the training's to refuse
            return read_log(self.store.folder(cell.key) / "metrics.jsonl")
        return []


def _likes(cell: Cell) -> list[tuple[str, ...]]:
    return [(cell.study, cell.variant, cell.task), (cell.study, cell.task), (cell.task,), ()]


class Board:
    """Where every cell of a run stands."""

    def __init__(self, trainings: Sequence[Training], store: Store, workers: int) -> None:
        self.trainings, self.workers = trainings, workers
        self.durations = Durations(store, [training.cells[0] for training in trainings])
        self.running: dict[str, tuple[Training, float]] = {}
        self.states: dict[str, State] = {
            cell.label: "done" if store.read(cell) is not None else "left"
            for training in trainings
            for cell in training.cells
        }

    def set(self, training: Training, state: State) -> None:
        for label in training.labels:
            self.states[label] = state

    def started(self, training: Training) -> None:
        self.running[training.key] = (training, time.monotonic())
        self.set(training, "running")

    def ended(self, training: Training) -> None:
        del self.running[training.key]

    def counts(self) -> dict[str, dict[State, int]]:
        """Study -> how many of its cells are in which state."""
        out: dict[str, dict[State, int]] = {}
        for label, state in self.states.items():
            study = out.setdefault(label.split("/")[0], dict.fromkeys(STATES, 0))
            study[state] += 1
        return out

    def seconds_left(self) -> float | None:
        """Until the last cell ends, if those to come take as long as those that were like them."""
        now = time.monotonic()
        lefts = [self.durations.left(training.cells[0], now - began) for training, began in self.running.values()]
        lefts += [
            self.durations.expected(training.cells[0])
            for training in self.trainings
            if any(self.states[label] == "left" for label in training.labels)
        ]
        known = [left for left in lefts if left is not None]
        if len(known) < len(lefts):
            return None
        return max([sum(known) / self.workers, *known])  # the last one runs alone

    def words(self) -> str:
        states = list(self.states.values())
        counted = ", ".join(f"{states.count(s)} {s}" for s in STATES if states.count(s) or s == "left")
        left = self.seconds_left()
        return counted if left is None or left == 0 else f"{counted}; ends in about {duration(left)}"


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


# While it runs --------------------------------------------------------------------------------------------------------


class BoardView(Protocol):
    def begin(self, board: Board) -> None: ...

    def show(self, board: Board) -> None: ...

    def done(self, training: Training, seconds: float | None, board: Board) -> None: ...

    def failed(self, training: Training, error: str, board: Board) -> None: ...

    def close(self, board: Board) -> None: ...


class Lines:
    """One line when a cell ends, for logs and pipes."""

    def begin(self, board: Board) -> None:
        print(f"{len(board.states)} cells: {board.words()}", flush=True)

    def show(self, board: Board) -> None:
        return

    def done(self, training: Training, seconds: float | None, board: Board) -> None:
        took = "by another runner" if seconds is None else f"in {duration(seconds)}"
        print(f"done {training.labels[0]} {took}. {board.words()}", flush=True)

    def failed(self, training: Training, error: str, board: Board) -> None:
        print(f"FAILED {training.labels[0]}: {error}. {board.words()}", flush=True)

    def close(self, board: Board) -> None:
        return


class Screen:
    """A table of the studies, the cells being run with their latest numbers, and when it will end."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.live = Live(console=console, auto_refresh=False)
        self.drawn = 0.0

    def begin(self, board: Board) -> None:
        self.live.start()
        self._draw(board)

    def show(self, board: Board) -> None:
        if time.monotonic() - self.drawn >= REDRAW:
            self._draw(board)

    def done(self, training: Training, seconds: float | None, board: Board) -> None:
        self._draw(board)

    def failed(self, training: Training, error: str, board: Board) -> None:
        self.console.print(Text(f"{training.labels[0]}: {error}", style="red"))
        self._draw(board)

    def close(self, board: Board) -> None:
        if self.live.is_started:
            self._draw(board)
            self.live.stop()

    def _draw(self, board: Board) -> None:
        self.drawn = time.monotonic()
        left = board.seconds_left()
        end = "" if not left else f", at {time.strftime('%a %H:%M', time.localtime(time.time() + left))}"
        parts: list[Any] = [counts_table(board.counts()), Text(board.words() + end, style="bold")]
        if board.running:
            parts.insert(1, _running(board))
        self.live.update(Group(*parts), refresh=True)


def _running(board: Board) -> Table:
    said = ("update", "loss", "grad", "left")
    table = plain_table("running", *said, right=said, no_wrap=True)
    now = time.monotonic()
    for training, began in board.running.values():
        cell = training.cells[0]
        left = board.durations.left(cell, now - began)
        row = next((r for r in reversed(board.durations.log(cell)) if r["kind"] == "train"), None)
        numbers = ("", "", "") if row is None else (str(row["update"]), f"{row['loss']:.3f}", f"{row['grad_norm']:.2f}")
        table.add_row(cell.label, *numbers, "" if left is None else duration(left))
    return table


def counts_table(counts: dict[str, dict[State, int]]) -> Table:
    table = plain_table("study", *STATES, right=STATES, no_wrap=True)
    for study, each in counts.items():
        table.add_row(study, *(Text(str(each[s]), style=COLOURS[s] if each[s] else "dim") for s in STATES))
    return table


def view_for() -> BoardView:
    return Screen(Console()) if sys.stdout.isatty() else Lines()


# Lists ----------------------------------------------------------------------------------------------------------------


def print_studies(studies: Sequence[Study], console: Console) -> None:
    table = plain_table("study", "asks", "variants", "cells", right=("variants", "cells"))
    for study in studies:
        cells = str(len(study.cells("mini"))) if study.has("mini") else "–"
        table.add_row(study.name, study.asks, str(len(study.variants)), cells)
    console.print(table)
    console.print(
        "[dim]ponder study show NAME | run NAME... | status | report NAME... | cost NAME...; `all` is every one[/]"
    )


def print_study(study: Study, scale: str, store: Store, console: Console) -> None:
    """The question, each variant as a difference from the baseline or from the one it names, and its cells."""
    cells = study.cells(scale)
    console.print(
        f"[bold]{study.title}[/] ({study.name}, {'paper ' + study.paper if study.paper else 'beyond the paper'})"
    )
    console.print(f"{study.asks}\nfactor: {', '.join(study.factor)}")
    first = {(cell.task, cell.variant): cell for cell in reversed(cells)}
    tasks = list(dict.fromkeys(cell.task for cell in cells))
    table = plain_table("variant", "difference", *STATES, right=STATES)
    for variant in study.variants:
        mine = [store.state(cell) for cell in cells if cell.variant == variant]
        words = _difference(study, first, tasks, variant)
        table.add_row(variant, words, *(str(mine.count(state)) for state in STATES))
    console.print(table)
    plan = study.scale(scale)
    durations, trainings = Durations(store, cells), {cell.key: cell for cell in cells}
    todo = [cell for cell in trainings.values() if store.read(cell) is None]
    each = [durations.expected(cell) for cell in todo]
    known = [seconds for seconds in each if seconds is not None]
    time_left = (
        "unknown until a cell is done" if len(known) < len(each) else f"about {duration(sum(known))} of one worker"
    )
    seeds = ", ".join(dict.fromkeys(str(cell.seed) for cell in cells))
    console.print(
        f"{scale}: {len(cells)} cells on {', '.join(tasks)}; seeds {seeds}; "
        f"{plan.threads} thread(s) each; {len(todo)} to do" + (f", {time_left}" if todo else "")
    )


def _difference(study: Study, first: dict[tuple[str, str], Cell], tasks: Sequence[str], variant: str) -> str:
    parent = study.variants[variant].from_ or study.baseline
    if variant == parent:
        return "(baseline)"
    lines: dict[str, list[str]] = {}
    for task in [task for task in tasks if {(task, parent), (task, variant)} <= first.keys()]:
        changed = differences(first[task, parent].config, first[task, variant].config)
        changes = ", ".join(f"{k} {_value(a)} -> {_value(b)}" for k, (a, b) in changed.items())
        lines.setdefault(changes, []).append(task)
    shown = [changes if len(lines) == 1 else f"{', '.join(names)}: {changes}" for changes, names in lines.items()]
    if variant == study.baseline:
        shown.insert(0, "(baseline)")
    if not shown:
        return "(not trained at this scale)"
    return ("" if parent == study.baseline else f"from {parent}: ") + "\n".join(shown)


def _value(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def print_status(studies: Sequence[Study], scale: str, store: Store, console: Console) -> None:
    counts: dict[str, dict[State, int]] = {}
    failures: list[str] = []
    for study in studies:
        counts[study.name] = dict.fromkeys(STATES, 0)
        for cell in study.cells(scale):
            state = store.state(cell)
            counts[study.name][state] += 1
            if state == "failed":
                failures.append(f"{cell.label}: {store.failed(cell)} (log: {store.log(cell.key)})")
    console.print(counts_table(counts))
    for line in failures:
        console.print(Text(line, style="red"))
