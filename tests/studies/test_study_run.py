"""The runner: every cell once, whoever runs it and however it is stopped."""

import io
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import submitit
from rich.console import Console

from ponder.base import runtime
from ponder.base.errors import UserError
from ponder.base.files import holder, locked
from ponder.cli import main
from ponder.studies import run as study_run
from ponder.studies import spec as study
from ponder.studies.board import Board, Lines, Screen, duration
from ponder.studies.cell import run_cell
from ponder.studies.result import CellResult
from ponder.studies.run import Assignment, Runner, attempt, build_data, worker_environment
from ponder.studies.slurm import DEAF, SlurmCell, Wanted, parse, submit
from ponder.studies.spec import Training, plan
from ponder.studies.store import Store
from ponder.training import curves
from ponder.training.log import TIMING
from ponder.training.loop import Limits
from tests.support import ROOT
from tests.support.cells import raw_result, result, some_right

# A worker that does what the real one promises but trains nothing: takes the lock, notes that it ran, writes a result.
WORKER = """
import filelock, json, os, signal, sys, time
from pathlib import Path
words = sys.argv[1:]
value = {words[i][2:]: words[i + 1] for i in range(len(words) - 1) if words[i].startswith("--")}
results, runs, key = Path(value["results"]), Path(value["runs"]), value["key"]
behave = json.loads((runs / "behave.json").read_text())
signal.signal(signal.SIGTERM, lambda *_: os._exit(76))
lock = filelock.FileLock(runs / f"{key}.lock")
try:
    lock.acquire(timeout=3)
except filelock.Timeout:
    sys.exit(75)
if (results / f"{key}.json").exists():
    sys.exit(0)
with (runs / "ran.txt").open("a") as file:
    file.write(f"{key} {os.environ['OMP_NUM_THREADS']}\\n")
if words[0] in behave.get("dies", []):
    os.kill(os.getpid(), signal.SIGKILL)
until = time.monotonic() + behave["seconds"]
while time.monotonic() < until:
    time.sleep(0.01)
    if os.getppid() != int(value["parent"]):
        sys.exit(76)
results.mkdir(exist_ok=True)
(results / f"{key}.part").write_bytes((runs / f"{key}.made").read_bytes())
(results / f"{key}.part").rename(results / f"{key}.json")
"""


class Place:
    """A folder with the pretended worker, the jobs of a study, and what has been run."""

    def __init__(self, root: Path, seconds: float = 0.05) -> None:
        self.store = Store(root / "results", root / "runs")
        self.store.runs.mkdir()
        self.worker = root / "worker.py"
        self.worker.write_text(WORKER, encoding="utf-8")
        self.trainings = plan(study.load("gradient-path").cells("mini"))[:8]
        for job in self.trainings:
            made = {**raw_result(job.cells[0], lambda *_: some_right(0.5), seconds=10.0), "after_seconds": 1.0}
            (self.store.runs / f"{job.key}.made").write_bytes(
                CellResult.model_validate(made).model_dump_json().encode()
            )
        self.behave(seconds=seconds)

    def behave(self, **how: Any) -> None:
        (self.store.runs / "behave.json").write_text(json.dumps(how), encoding="utf-8")

    def runner(self, workers: int = 2, **rest: Any) -> Runner:
        command = (sys.executable, str(self.worker))
        return Runner(self.store, Path("nowhere"), "mini", workers, command=command, **rest)

    def ran(self) -> list[str]:
        file = self.store.runs / "ran.txt"
        return [line.split()[0] for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []

    @property
    def keys(self) -> list[str]:
        return [job.key for job in self.trainings]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_every_cell_runs_once_in_order_and_done_ones_are_skipped(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    tally = place.runner(1).run(place.trainings, Lines())
    assert place.ran() == place.keys and [job.key for job in tally.done] == place.keys
    assert not tally.failed and not tally.stopped and not tally.elsewhere
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "8 cells: 8 left" and said[-1].endswith("8 done, 0 left")
    assert "ends in about 77 s" in said[1]  # seven to go, and the first said it took eleven seconds
    again = place.runner().run(place.trainings, Lines())
    assert place.ran() == place.keys and not again.done
    threads = {line.split()[1] for line in (place.store.runs / "ran.txt").read_text(encoding="utf-8").splitlines()}
    assert threads == {"1"}


def test_a_cell_that_dies_is_named_and_does_not_stop_the_rest(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    bad = place.trainings[2]
    place.behave(seconds=0.05, dies=bad.labels)
    tally = place.runner().run(place.trainings, Lines())
    assert len(tally.done) == 7 and list(tally.failed) == [bad.labels[0]]
    assert "signal 9" in tally.failed[bad.labels[0]]
    assert place.store.state(bad.cells[0]) == "failed" and "FAILED" in capsys.readouterr().out
    place.behave(seconds=0.05)
    tally = place.runner().run(place.trainings, Lines())  # tried again
    assert [job.key for job in tally.done] == [bad.key] and place.store.state(bad.cells[0]) == "done"


def test_a_cell_without_data_fails_and_the_others_run(place: Place) -> None:
    tally = place.runner().run(place.trainings, Lines(), {place.keys[0]: "dataset: no network"})
    assert place.keys[0] not in place.ran() and len(tally.done) == 7
    assert place.store.failed(place.trainings[0].cells[0]) == "dataset: no network"


def test_the_time_limit_stops_it_and_the_next_run_goes_on(place: Place) -> None:
    place.behave(seconds=30)
    tally = place.runner(max_seconds=1.0).run(place.trainings, Lines())
    assert len(tally.stopped) == 8 and not tally.failed and not tally.done
    place.behave(seconds=0.05)
    assert len(place.runner().run(place.trainings, Lines()).done) == 8


RUNNER = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from tests.studies.test_study_run import Place
from ponder.studies.board import Lines
from ponder.studies.store import Store
place = Place.__new__(Place)
place.store, place.worker = Store(Path({root!r}) / "results", Path({root!r}) / "runs"), Path({root!r}) / "worker.py"
from ponder.studies import spec as study
jobs = study.plan(study.load("gradient-path").cells("mini"))[:8]
place.runner(2).run(jobs, Lines())
"""


def in_another_process(root: Path) -> "subprocess.Popen[bytes]":
    code = RUNNER.format(tests=str(ROOT), root=str(root))
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)


def until(what: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def test_two_runners_and_a_killed_one_run_every_cell_once(tmp_path: Path) -> None:
    place = Place(tmp_path, seconds=0.3)
    other = in_another_process(tmp_path)
    try:
        until(lambda: len(place.ran()) >= 2)
        runner = place.runner(2)
        half = [job for job in place.trainings if not runner.done(job)]
        tally = runner.run(place.trainings[:5], Lines())
        assert half and not tally.failed
        other.kill()  # no chance to tell its workers
    finally:
        other.kill()
        other.wait()
    # Its workers saw that it is gone; what they had not finished is free again.
    until(lambda: all(holder(place.store.lock(key)) is None for key in place.keys))
    finished = {key for key in place.keys if place.store.stored(key) is not None}
    ran = place.ran()
    assert all(ran.count(key) == 1 for key in finished)
    before = {key: place.store.path(key).stat().st_mtime_ns for key in finished}
    place.runner(2).run(place.trainings, Lines())
    assert {key: place.store.path(key).stat().st_mtime_ns for key in finished} == before
    assert all(place.store.stored(key) is not None for key in place.keys)
    assert all(place.ran().count(key) == ran.count(key) for key in finished)


def test_data_that_cannot_be_had_is_named_and_the_rest_is_built(tmp_path: Path) -> None:
    cells = study.load("stabilization").cells("smoke")
    good = next(c for c in cells if c.task == "sudoku")
    lost = good.config.data.params.model_copy(update={"source": "csv", "folder": str(tmp_path / "none")})
    config = good.config.model_copy(update={"data": good.config.data.model_copy(update={"params": lost})})
    jobs = [Training(good.key, (good,)), Training("bad", (study.Cell(**{**vars(good), "config": config}),))]
    errors = build_data(jobs, tmp_path)
    assert list(errors) == ["bad"] and "none" in errors["bad"]
    assert any(tmp_path.glob("sudoku-*/manifest.json"))


def test_workers_get_the_studys_threads_and_take_turns_on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert worker_environment(3, 5, 0)["OMP_NUM_THREADS"] == "3"
    assert [worker_environment(1, slot, 2)["CUDA_VISIBLE_DEVICES"] for slot in range(4)] == ["0", "1", "0", "1"]
    assert "CUDA_VISIBLE_DEVICES" not in worker_environment(1, 0, 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,7")
    assert [worker_environment(1, slot, 2)["CUDA_VISIBLE_DEVICES"] for slot in range(3)] == ["2", "7", "2"]


def test_time_left_is_that_of_like_cells(tmp_path: Path) -> None:
    place = Place(tmp_path)
    board = Board(place.trainings, place.store, 2)
    assert board.seconds_left() is None
    place.runner(2).run(place.trainings[:2], Lines())
    assert Board(place.trainings, place.store, 2).seconds_left() == 6 * 11 / 2
    running = Board(place.trainings, place.store, 1)
    job = place.trainings[2]
    running.started(job)
    place.store.folder(job.key).mkdir()
    updates = job.cells[0].config.train.updates
    assert updates is not None and updates % 5 == 0
    rows = [{"kind": "train", "update": updates // 5, "seconds": 20.0}]
    (place.store.folder(job.key) / "metrics.jsonl").write_text(
        "".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8"
    )
    assert running.seconds_left() == pytest.approx(5 * 11 + 80)
    assert [duration(s) for s in (80, 600, 3 * 3600 + 120)] == ["80 s", "10 min", "3 h 2 min"]


def test_the_screen_shows_counts_the_running_cell_and_the_end(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.runner(2).run(place.trainings[:2], Lines())
    board = Board(place.trainings, place.store, 1)
    board.started(place.trainings[2])
    board.set(place.trainings[3], "failed")
    text = io.StringIO()
    screen = Screen(Console(file=text, width=120))
    screen.begin(board)
    screen.close(board)
    said = text.getvalue()
    assert re.search(r"gradient-path +2 +1 +1 +4", said) and place.trainings[2].labels[0] in said
    assert "2 done, 1 running, 1 failed, 4 left; ends in about 55 s" in said


# The real worker ------------------------------------------------------------------------------------------------------


def untimed(value: Any) -> Any:
    """A stored cell without what depends on the machine's mood or was left out here."""
    if isinstance(value, CellResult):
        return untimed(value.model_dump())
    if isinstance(value, dict):
        aside = (*TIMING, "after_seconds", "per_second", "environment", "cost")
        return {k: untimed(v) for k, v in value.items() if k not in aside}
    return [untimed(v) for v in value] if isinstance(value, list) else value


def test_the_command_runs_cells_as_one_process_would_and_survives_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """kill -9 with one worker, then again with two: as if nothing had happened, bit for bit."""
    monkeypatch.setattr(curves, "draw_curves", lambda *_: None)
    alone, store = Store(tmp_path / "alone", tmp_path / "alone-runs"), Store(tmp_path / "results", tmp_path / "runs")
    cells = [c for c in study.load("stabilization").cells("smoke") if c.task == "sudoku"][:2]
    for cell in cells:
        assert run_cell(cell, alone, tmp_path / "data", runtime.start("cpu"), Limits())
    where = ["--results", str(store.root), "--runs", str(store.runs), "--data-dir", str(tmp_path / "data")]
    words = ["study", "run", "stabilization", "--scale", "smoke", "--only", *(f"{c.variant}/sudoku/s0" for c in cells)]
    command = [sys.executable, "-m", "ponder", *words, *where]
    first = subprocess.Popen([*command, "--workers", "1"], stdout=subprocess.DEVNULL)
    try:
        # The second has begun, so the first is done.
        until(lambda: holder(store.lock(cells[1].key)) is not None or first.poll() is not None, 400)
    finally:
        first.kill()
        first.wait()
    until(lambda: holder(store.lock(cells[1].key)) is None)
    assert store.read(cells[0]) is not None
    written = store.path(cells[0].key).stat().st_mtime_ns
    assert main([*words, *where, "--workers", "2"]) == 0
    assert store.path(cells[0].key).stat().st_mtime_ns == written
    for cell in cells:
        kept = store.read(cell)
        assert kept is not None and untimed(kept) == untimed(alone.read(cell))
        assert kept.environment["threads"] == 1
    capsys.readouterr()
    assert main([*words, *where, "--dry-run"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["done", "done"]
    assert main(["study", "status", "stabilization", "--scale", "smoke", *where[:4]]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[:2] == ["stabilization", "2"]


def test_an_attempt_writes_its_failure_down_and_yields_to_who_has_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "results", tmp_path / "runs")
    cell = study.load("stabilization").cells("smoke")[0]
    work = Assignment((cell.label,), "smoke", store, tmp_path / "data", "cpu", cell.key)
    monkeypatch.setattr(study_run, "PATIENCE", 0.1)
    with locked(store.lock(cell.key)):
        assert attempt(work) == study_run.BUSY

    def fails(*_: object) -> bool:
        raise ValueError("numbers ran out\nand more")

    monkeypatch.setattr(study_run, "run_cell", fails)
    assert attempt(work) == 1
    assert store.failed(cell) == "ValueError: numbers ran out" and holder(store.lock(cell.key)) is None
    monkeypatch.setattr(study_run, "run_cell", lambda *_: False)
    assert attempt(work) == study_run.UNFINISHED
    with pytest.raises(UserError, match="edited"):
        attempt(Assignment((cell.label,), "smoke", store, tmp_path / "data", "cpu", "other"))


def test_slurm_settings_are_submitits_and_a_job_runs_the_same_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert parse("partition=gpu,time=60,gpus=4,array=8,mem=32") == Wanted(
        parameters={
            "slurm_partition": "gpu",
            "timeout_min": 60,
            "gpus_per_node": 4,
            "tasks_per_node": 4,
            "slurm_array_parallelism": 8,
            "mem_gb": 32,
        },
    )
    assert parse("cluster=local,nodes=2,pack=3,constraint=a100,--nice=100,--exclusive") == Wanted(
        "local",
        3,
        {
            "nodes": 2,
            "slurm_constraint": "a100",
            "slurm_additional_parameters": {"nice": "100", "exclusive": True},
        },
    )
    for text, words in (
        ("partiton=gpu", "did you mean 'partition'"),
        ("time=1h", "whole number"),
        ("pack=0", "whole number from 1 on"),
        ("gpus", "no value"),
        ("--", "no value"),
    ):
        with pytest.raises(UserError, match=words):
            parse(text)
    store = Store(tmp_path / "results", tmp_path / "runs")
    jobs = plan(c for c in study.load("stabilization").cells("smoke") if c.task == "sudoku")[:2]
    store.write(result(jobs[0].cells[0], lambda *_: some_right(0.5)))
    seen: list[Assignment] = []

    def note(work: Assignment) -> int:
        seen.append(work)
        return 0

    monkeypatch.setattr("ponder.studies.slurm.attempt", note)
    asked: list[dict[str, Any]] = []
    real = submitit.AutoExecutor

    def noted(**settings: Any) -> Any:
        asked.append(settings)
        return real(**settings)

    monkeypatch.setattr(submitit, "AutoExecutor", noted)
    submitted = submit(jobs, "cluster=debug,time=5", "smoke", store, tmp_path / "data")
    assert [job.result() for job in submitted] == [[0]]
    assert asked[0]["slurm_max_num_timeout"] >= 1000  # weeks of training in limits of hours
    assert [(w.labels, w.key) for w in seen] == [(tuple(jobs[1].labels), jobs[1].key)]
    assert pickle.loads(pickle.dumps(SlurmCell((seen[0],)))).work == (seen[0],)  # it must reach the node
    monkeypatch.setattr("ponder.studies.slurm.attempt", lambda work: 1)
    monkeypatch.setattr("pdb.post_mortem", lambda *_: None)  # what submitit's debug executor does with an error
    (job,) = submit(jobs, "cluster=debug", "smoke", store, tmp_path / "data")
    with pytest.raises(Exception, match="failed"):
        job.result()


def test_a_job_that_is_told_before_it_listens_hears_it() -> None:
    """Without DEAF it dies of the signal, in the seconds that imports take."""
    code = """
import os, signal
os.kill(os.getpid(), signal.SIGUSR2)
signal.signal(signal.SIGUSR2, lambda *_: print("heard"))
from ponder.studies.slurm import SlurmCell
print("listens", flush=True)
try:
    SlurmCell(())()
except RuntimeError:  # no job of submitit's
    print("goes on")
"""
    words = [sys.executable, "-c", DEAF, "-c", code]
    done = subprocess.run(words, stdout=subprocess.PIPE, encoding="utf-8", check=True)
    assert done.stdout.split("\n")[:2] == ["listens", "heard"]


def test_arrays_are_cut_to_what_the_cluster_takes_and_short_cells_share_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A Slurm of shell scripts: its arrays have at most two jobs."""
    commands = {
        "srun": "exit 1",
        "scontrol": "echo 'MaxArraySize            = 2'",
        "sbatch": f'cat "$1" >> {tmp_path}/asked; echo "Submitted batch job $(grep -c "^srun" {tmp_path}/asked)"',
    }
    for name, line in commands.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("ponder.studies.slurm.build_data", lambda *_: {})
    store = Store(tmp_path / "results", tmp_path / "runs")
    cells = plan(study.load("stabilization").cells("smoke"))[:5]
    text = "time=5,pack=2,array=4,nodes=2,constraint=a100,--nice=100,--exclusive"

    assert submit(cells, text, "smoke", store, tmp_path / "data", show=True) == []
    shown = capsys.readouterr().out
    assert not (tmp_path / "asked").exists() and not store.runs.exists()
    assert shown.count("#SBATCH --array=0-1%2\n") == shown.count("--array") == 1  # two to a job, two jobs to an array
    for line in ("--nodes=2", "--constraint=a100", "--nice=100", "--exclusive", "--time=5", "--signal=USR2@75"):
        assert shown.count(f"#SBATCH {line}\n") == 2

    submitted = submit(cells, text, "smoke", store, tmp_path / "data")
    assert (tmp_path / "asked").read_text(encoding="utf-8").split() == shown.split()
    work = [job.submission().function.work for job in submitted]
    assert [len(each) for each in work] == [2, 2, 1]
    assert [one.key for each in work for one in each] == [each.key for each in cells]


def test_a_worker_ends_when_its_parent_is_gone() -> None:
    code = (
        "import os, subprocess, sys, time\n"
        'child = \'from ponder.base.runtime import end_with; import time; end_with(int(__import__("sys").argv[1])); '
        'print(__import__("os").getpid(), flush=True); time.sleep(60)\'\n'
        "subprocess.Popen([sys.executable, '-c', child, str(os.getpid())])\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()

    def gone() -> bool:
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return True
        return Path(f"/proc/{child}/stat").read_text(encoding="utf-8").split()[2] == "Z"

    try:
        until(gone, 30)
    finally:
        if not gone():
            os.kill(child, signal.SIGKILL)
