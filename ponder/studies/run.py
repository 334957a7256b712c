"""Running a study's cells: worker processes, each a cell at a time, that end with the runner and can be started again.

A worker is `ponder study cell LABEL...` in a process of its own. It holds the cell's lock while it works, so that two
runners never work on one cell, and it stops, saved, when its runner asks it to or is gone.
"""

import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import IO

from ponder import data
from ponder.base import runtime
from ponder.base.errors import UserError
from ponder.base.files import holder, locked
from ponder.domains.contract import Progress, silent
from ponder.studies.board import Board, BoardView
from ponder.studies.cell import one_training, run_cell
from ponder.studies.spec import Cell, Training, find
from ponder.studies.store import Store
from ponder.training.loop import Limits, Stop

BUSY, UNFINISHED = 75, 76
"""Exit codes of a worker: another process has the cell; stopped before the end and saved."""
PATIENCE = 3.0
"""Seconds a worker waits for a lock: a process that was told to stop may still be saving."""


# The worker's side ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Assignment:
    """What a worker is told."""

    labels: tuple[str, ...]
    scale: str
    store: Store
    data_dir: Path
    device: str = "auto"
    key: str | None = None
    """What the runner takes the cells' key to be: a study file may have been edited since."""
    max_seconds: float | None = None
    quiet: bool = True


def attempt(work: Assignment) -> int:
    """Run a cell in this process (or these ranks). Returns the exit code; a failure is written down."""
    cell = one_training([find(label, work.scale) for label in work.labels])
    if work.key is not None and work.key != cell.key:
        raise UserError(f"the study of {cell.label} was edited while it ran: start the study again")
    return attempt_cell(cell, work)


def attempt_cell(cell: Cell, work: Assignment) -> int:
    here = runtime.start(work.device)
    try:
        if not here.main:
            return _attempt(cell, work, here, bool(here.gather_objects(None)[0]))
        with locked(work.store.lock(cell.key), PATIENCE) as ours:
            return _attempt(cell, work, here, bool(here.gather_objects(ours)[0]))
    finally:
        here.close()


def _attempt(cell: Cell, work: Assignment, here: runtime.Runtime, ours: bool) -> int:
    if not ours:
        return BUSY
    store = work.store
    if store.read(cell) is not None:
        return 0
    if here.main:
        store.forgive(cell.key)
    try:
        finished = run_cell(cell, store, work.data_dir, here, Limits(work.max_seconds), work.quiet)
    except Exception as error:
        traceback.print_exc()
        named = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        if here.main:
            store.fail(cell.key, named + (str(error).splitlines() or [""])[0])
        return 1
    return 0 if finished else UNFINISHED


# The runner's side ----------------------------------------------------------------------------------------------------


@dataclass
class Worker:
    training: Training
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    began: float


@dataclass
class Tally:
    """How a run of the runner ended, in trainings."""

    done: list[Training] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """Label -> error."""
    elsewhere: list[Training] = field(default_factory=list)
    stopped: list[Training] = field(default_factory=list)


@dataclass(frozen=True)
class Runner:
    store: Store
    data_dir: Path
    scale: str
    workers: int
    device: str = "auto"
    gpus: int = 0
    max_seconds: float | None = None
    command: tuple[str, ...] = (sys.executable, "-m", "ponder", "study", "cell")

    def run(
        self, trainings: Sequence[Training], view: BoardView, hopeless: Mapping[str, str] = MappingProxyType({})
    ) -> Tally:
        """Run what is not done yet. A failure does not stop the rest; a signal or the time limit stops it, saved.
        `hopeless`: key -> why a cell cannot be run."""
        stop, began = Stop(), time.monotonic()
        tally, board = Tally(), Board(trainings, self.store, self.workers)
        waiting = [training for training in trainings if not self.done(training)]
        running: dict[int, Worker] = {}

        def ask(*_: object) -> None:
            stop.asked = True

        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        told = False
        try:
            view.begin(board)
            for training in [training for training in waiting if training.key in hopeless]:
                waiting.remove(training)
                self._failed(training, hopeless[training.key], tally, board, view)
            again = True
            while waiting or running:
                for slot in [s for s, w in running.items() if w.process.poll() is not None]:
                    self._ended(running.pop(slot), tally, board, view, told)
                if self.max_seconds is not None and time.monotonic() - began >= self.max_seconds:
                    stop.asked = True
                if stop.asked and not told:
                    told = True
                    for worker in running.values():
                        worker.process.terminate()
                    tally.stopped += waiting
                    waiting = []
                while waiting and len(running) < self.workers:
                    training = waiting.pop(0)
                    if self.done(training):  # by another runner, meanwhile
                        self._finished(training, tally, board, view)
                    elif holder(self.store.lock(training.key)) is not None:
                        tally.elsewhere.append(training)
                        board.set(training, "running")
                    else:
                        slot = next(i for i in range(self.workers) if i not in running)
                        running[slot] = self._start(training, slot)
                        board.started(training)
                if not waiting and not running and not told and again:
                    again, waiting, tally.elsewhere = False, tally.elsewhere, []  # a last look at what others had
                view.show(board)
                time.sleep(0.1)
        finally:
            for worker in running.values():
                worker.process.terminate()
            for worker in running.values():
                worker.process.wait()
                worker.log.close()
            for number, handler in before.items():
                signal.signal(number, handler)
            view.close(board)
        return tally

    def done(self, training: Training) -> bool:
        return all(self.store.read(cell) is not None for cell in training.cells)

    def _start(self, training: Training, slot: int) -> Worker:
        command = [*self.command, *training.labels, "--scale", self.scale]
        command += ["--key", training.key, "--parent", str(os.getpid()), "--device", self.device, "--quiet"]
        command += ["--results", str(self.store.root), "--runs", str(self.store.runs), "--data-dir", str(self.data_dir)]
        log = self.store.log(training.key)
        log.parent.mkdir(parents=True, exist_ok=True)
        handle = log.open("ab")
        # A session of its own: Ctrl-C reaches the runner alone, which then asks its workers.
        process = subprocess.Popen(
            command,
            env={**os.environ, **worker_environment(training.cells[0].threads, slot, self.gpus)},
            stdin=subprocess.DEVNULL,
            stdout=handle,
            stderr=handle,
            start_new_session=True,
        )
        return Worker(training, process, handle, time.monotonic())

    def _ended(self, worker: Worker, tally: Tally, board: Board, view: BoardView, told: bool) -> None:
        worker.log.close()
        training, code = worker.training, worker.process.returncode
        board.ended(training)
        if self.done(training):
            self._finished(training, tally, board, view, time.monotonic() - worker.began)
        elif code == BUSY:
            tally.elsewhere.append(training)
            board.set(training, "running")
        elif code == UNFINISHED or told:
            tally.stopped.append(training)
            board.set(training, "left")
        else:
            error = self.store.failed(training.cells[0])
            if error is None:
                how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
                error = f"its process {how}; see {self.store.log(training.key)}"
            self._failed(training, error, tally, board, view)

    def _failed(self, training: Training, error: str, tally: Tally, board: Board, view: BoardView) -> None:
        self.store.fail(training.key, error)
        tally.failed[training.labels[0]] = error
        board.set(training, "failed")
        view.failed(training, error, board)

    def _finished(
        self, training: Training, tally: Tally, board: Board, view: BoardView, seconds: float | None = None
    ) -> None:
        tally.done.append(training)
        board.set(training, "done")
        board.durations.learn(training.cells[0])
        view.done(training, seconds, board)


def build_data(trainings: Sequence[Training], data_dir: Path, progress: Progress = silent) -> dict[str, str]:
    """Build each dataset once, before the workers want it. Returns key -> error where it cannot be had."""
    paths = {training.key: data.folder_for(data_dir, training.cells[0].config.data) for training in trainings}
    errors: dict[Path, str] = {}
    for path, training in {paths[training.key]: training for training in trainings}.items():
        with locked(data_dir / f".{path.name}.lock", patience=float("inf")):
            try:
                data.build(training.cells[0].config.data, data_dir, data.default_workers(), progress)
            except Exception as error:  # one dataset that cannot be had does not stop the studies of others
                errors[path] = f"dataset: {(str(error).splitlines() or [type(error).__name__])[0]}"
    return {key: errors[path] for key, path in paths.items() if path in errors}


def worker_environment(threads: int, slot: int, gpus: int) -> dict[str, str]:
    """Threads must be said before torch is loaded; workers take turns on the GPUs."""
    out = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpus else []
    ids = visible if len(visible) == gpus and all(visible) else [str(gpu) for gpu in range(gpus)]
    return {**out, "CUDA_VISIBLE_DEVICES": ids[slot % gpus]} if gpus else out
