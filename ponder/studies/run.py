"""Running a study's cells: worker processes, each a cell at a time, that end with the runner and can be started again.

A worker is `ponder study cell LABEL...` in a process of its own. It holds the cell's lock while it works, so that two
runners never work on one cell, and it stops, saved, when its runner asks it to or is gone.
"""

import os
import signal
import subprocess
import sys
import threading
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
from ponder.studies.board import Board, View
from ponder.studies.cell import one_training, run_cell
from ponder.studies.spec import Cell, Job, find
from ponder.studies.store import Store
from ponder.training.loop import Limits, Stop

BUSY, UNFINISHED = 75, 76
"""Exit codes of a worker: another process has the cell; stopped before the end and saved."""
PATIENCE = 3.0
"""Seconds a worker waits for a lock: a process that was told to stop may still be saving."""


# The worker's side ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
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


def attempt(work: Work) -> int:
    """Run a cell in this process (or these ranks). Returns the exit code; a failure is written down."""
    cell = one_training([find(label, work.scale) for label in work.labels])
    if work.key is not None and work.key != cell.key:
        raise UserError(f"the study of {cell.label} was edited while it ran: start the study again")
    here = runtime.start(work.device)
    try:
        if not here.main:
            return _attempt(cell, work, here, bool(here.gather_objects(None)[0]))
        with locked(work.store.lock(cell.key), PATIENCE) as ours:
            return _attempt(cell, work, here, bool(here.gather_objects(ours)[0]))
    finally:
        here.close()


def _attempt(cell: Cell, work: Work, here: runtime.Runtime, ours: bool) -> int:
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


def end_with(parent: int) -> None:
    """Ask this process to stop as soon as its parent is gone, however that went."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


# The runner's side ----------------------------------------------------------------------------------------------------


@dataclass
class Worker:
    job: Job
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    began: float


@dataclass
class Tally:
    """How a run of the runner ended, in jobs."""

    done: list[Job] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """Label -> error."""
    elsewhere: list[Job] = field(default_factory=list)
    stopped: list[Job] = field(default_factory=list)


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

    def run(self, jobs: Sequence[Job], view: View, hopeless: Mapping[str, str] = MappingProxyType({})) -> Tally:
        """Run what is not done yet. A failure does not stop the rest; a signal or the time limit stops it, saved.
        `hopeless`: key -> why a cell cannot be run."""
        stop, began = Stop(), time.monotonic()
        tally, board = Tally(), Board(jobs, self.store, self.workers)
        waiting = [job for job in jobs if not self.done(job)]
        running: dict[int, Worker] = {}

        def ask(*_: object) -> None:
            stop.asked = True

        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        told = False
        try:
            view.begin(board)
            for job in [job for job in waiting if job.key in hopeless]:
                waiting.remove(job)
                self._failed(job, hopeless[job.key], tally, board, view)
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
                    job = waiting.pop(0)
                    if self.done(job):  # by another runner, meanwhile
                        self._finished(job, tally, board, view)
                    elif holder(self.store.lock(job.key)) is not None:
                        tally.elsewhere.append(job)
                        board.set(job, "running")
                    else:
                        slot = next(i for i in range(self.workers) if i not in running)
                        running[slot] = self._start(job, slot)
                        board.started(job)
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

    def done(self, job: Job) -> bool:
        return all(self.store.read(cell) is not None for cell in job.cells)

    def _start(self, job: Job, slot: int) -> Worker:
        command = [*self.command, *job.labels, "--scale", self.scale]
        command += ["--key", job.key, "--parent", str(os.getpid()), "--device", self.device, "--quiet"]
        command += ["--results", str(self.store.root), "--runs", str(self.store.runs), "--data-dir", str(self.data_dir)]
        log = self.store.log(job.key)
        log.parent.mkdir(parents=True, exist_ok=True)
        handle = log.open("ab")
        # A session of its own: Ctrl-C reaches the runner alone, which then asks its workers.
        process = subprocess.Popen(
            command,
            env={**os.environ, **worker_environment(job.cells[0].threads, slot, self.gpus)},
            stdin=subprocess.DEVNULL,
            stdout=handle,
            stderr=handle,
            start_new_session=True,
        )
        return Worker(job, process, handle, time.monotonic())

    def _ended(self, worker: Worker, tally: Tally, board: Board, view: View, told: bool) -> None:
        worker.log.close()
        job, code = worker.job, worker.process.returncode
        board.ended(job)
        if self.done(job):
            self._finished(job, tally, board, view, time.monotonic() - worker.began)
        elif code == BUSY:
            tally.elsewhere.append(job)
            board.set(job, "running")
        elif code == UNFINISHED or told:
            tally.stopped.append(job)
            board.set(job, "left")
        else:
            error = self.store.failed(job.cells[0])
            if error is None:
                how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
                error = f"its process {how}; see {self.store.log(job.key)}"
            self._failed(job, error, tally, board, view)

    def _failed(self, job: Job, error: str, tally: Tally, board: Board, view: View) -> None:
        self.store.fail(job.key, error)
        tally.failed[job.labels[0]] = error
        board.set(job, "failed")
        view.failed(job, error, board)

    def _finished(self, job: Job, tally: Tally, board: Board, view: View, seconds: float | None = None) -> None:
        tally.done.append(job)
        board.set(job, "done")
        board.clock.learn(job.cells[0])
        view.done(job, seconds, board)


def build_data(jobs: Sequence[Job], data_dir: Path, progress: Progress = silent) -> dict[str, str]:
    """Build each dataset once, before the workers want it. Returns key -> error where it cannot be had."""
    paths = {job.key: data.folder_for(data_dir, job.cells[0].config.data) for job in jobs}
    errors: dict[Path, str] = {}
    for path, job in {paths[job.key]: job for job in jobs}.items():
        with locked(data_dir / f".{path.name}.lock", patience=float("inf")):
            try:
                data.build(job.cells[0].config.data, data_dir, data.default_workers(), progress)
            except Exception as error:  # one dataset that cannot be had does not stop the studies of others
                errors[path] = f"dataset: {(str(error).splitlines() or [type(error).__name__])[0]}"
    return {key: errors[path] for key, path in paths.items() if path in errors}


def worker_environment(threads: int, slot: int, gpus: int) -> dict[str, str]:
    """Threads must be said before torch is loaded; workers take turns on the GPUs."""
    out = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpus else []
    ids = visible if len(visible) == gpus and all(visible) else [str(gpu) for gpu in range(gpus)]
    return {**out, "CUDA_VISIBLE_DEVICES": ids[slot % gpus]} if gpus else out
