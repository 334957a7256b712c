"""`ponder runs` and `ponder watch` say what the folders say, of runs that train, stopped and finished."""

import os
from pathlib import Path

import pytest

from ponder.base import files
from ponder.base.errors import UserError
from ponder.base.runtime import Runtime, start
from ponder.cli import main
from ponder.config.resolve import Config
from ponder.training.listing import find_runs, follow, read_run
from ponder.training.log import read_log
from ponder.training.loop import Limits
from ponder.training.runs import LOCK, train_in
from tests.conftest import tiny
from tests.support import processes


def trained(folder: Path, data_dir: Path, updates: int | None = None, config: Config | None = None) -> Path:
    here: Runtime = start("cpu")
    train_in(config or tiny(), folder, data_dir, here, Limits(updates=updates), quiet=True)
    return folder


def test_finished_and_stopped_runs_are_told_apart(
    tmp_path: Path, data_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done, half = trained(tmp_path / "done", data_dir), trained(tmp_path / "cells" / "half", data_dir, 10)
    (tmp_path / "no-run").mkdir()
    found = {run.folder: run for run in find_runs(tmp_path)}
    assert set(found) == {done, half}
    assert (found[done].state, found[half].state) == ("finished", "stopped")
    assert (found[done].update, found[half].update, found[half].updates) == (24, 10, 24)
    evals = [row for row in read_log(done / "metrics.jsonl") if row["kind"] == "eval"]
    best = found[done].best
    assert best is not None and best[1] == max(row["ema"]["val"]["exact"] for row in evals)
    assert any(row["update"] == best[0] and row["ema"]["val"]["exact"] == best[1] for row in evals)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["runs", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "cells/half" in out and "finished" in out and "stopped" in out and "…" not in out
    assert all(len(line.rstrip()) <= 80 for line in out.splitlines())
    assert main(["runs", str(tmp_path / "nowhere")]) == 2 and "no folder" in capsys.readouterr().err


def test_a_run_in_epochs_takes_its_length_from_the_data(tmp_path: Path, data_dir: Path) -> None:
    config = tiny(train={"updates": None, "epochs": 0.5})
    assert read_run(trained(tmp_path / "run", data_dir, 2, config)).updates == 10  # 0.5 x 300 / 16, rounded up


def test_a_run_belongs_to_one_process_at_a_time(tmp_path: Path, data_dir: Path) -> None:
    folder = trained(tmp_path / "run", data_dir, 4)
    with files.locked(folder / LOCK):
        assert read_run(folder).running and f"pid {os.getpid()} on " in read_run(folder).state
        with pytest.raises(UserError, match=f"is being trained by pid {os.getpid()}"):
            trained(folder, data_dir)
    assert read_run(folder).state == "stopped"


def test_watching_gives_every_row_once_and_ends_with_the_training(tmp_path: Path, data_dir: Path) -> None:
    folder = trained(tmp_path / "run", data_dir, 6)
    seen = [row for rows in follow(folder) for row in rows]
    assert seen == read_log(folder / "metrics.jsonl")
    with files.locked(folder / LOCK):
        watching = follow(folder, pause=0.0)
        assert next(watching) == seen and next(watching) == []
        log = folder / "metrics.jsonl"
        lines = log.read_text(encoding="utf-8").splitlines(keepends=True)
        log.write_text("".join(lines[:-1]), encoding="utf-8")  # resumed from the checkpoint before
        assert next(watching) == []
        log.write_text("".join(lines), encoding="utf-8")
        assert next(watching) == seen[-1:]
    assert list(watching) == [[]]


def test_another_terminal_shows_what_the_first_did(tmp_path: Path, data_dir: Path) -> None:
    folder = trained(tmp_path / "run", data_dir)
    watching = processes.start(["watch", str(folder)], tmp_path / "said")
    assert watching.ended() == 0 and "24 updates of 16" in watching.said and "update 24  evaluated" in watching.said
    assert watching.said.endswith("run: finished\n")
