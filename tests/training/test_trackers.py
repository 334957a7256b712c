"""Trackers get the log's numbers; missing ones are found before the first step."""

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ponder.base import files
from ponder.base.errors import UserError
from ponder.config.resolve import parse_overrides, resolve
from ponder.training.log import read_log
from ponder.training.trackers import KEPT, TRACKERS, Group, Tracked, open_trackers
from ponder.training.view import Silent
from tests.conftest import tiny
from tests.support import ROOT

ROW = {"kind": "train", "update": 7, "loss": 1.5, "ema": {"val": {"exact": 0.25}}}


class Kept:
    """What a tracker was told, through nothing but the calls its package documents."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.config: dict[str, Any] | None = None
        self.about: dict[str, Any] = {}
        self.numbers: dict[tuple[str, int], float] = {}
        self.closed = False

    def put(self, values: dict[str, float], update: int) -> None:
        assert self.name is not None and not self.closed
        self.numbers |= {(key, update): value for key, value in values.items()}

    def close(self) -> None:
        assert not self.closed
        self.closed = True


def tensorboard(kept: Kept) -> SimpleNamespace:
    class SummaryWriter:
        def __init__(self, log_dir: str, purge_step: int | None = None) -> None:
            kept.name, kept.about["purge_step"] = Path(log_dir).parent.name, purge_step

        def add_text(self, tag: str, text_string: str, global_step: int) -> None:
            kept.about["text"] = text_string

        def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
            kept.put({tag: scalar_value}, global_step)

        def close(self) -> None:
            kept.close()

    return SimpleNamespace(SummaryWriter=SummaryWriter)


def wandb(kept: Kept) -> SimpleNamespace:
    def log(data: dict[str, float], step: int) -> None:
        kept.put(data, step)

    def init(
        project: str, id: str, name: str, group: str | None, tags: list[str], config: dict[str, Any], resume: str
    ) -> SimpleNamespace:
        assert project == "ponder" and resume == "allow"
        kept.name, kept.config, kept.about = name, config, {"id": id, "group": group, "tags": tags}
        return SimpleNamespace(log=log, finish=kept.close)

    return SimpleNamespace(init=init)


def trackio(kept: Kept) -> SimpleNamespace:
    def log(metrics: dict[str, float], step: int) -> None:
        kept.put(metrics, step)

    def init(
        project: str, name: str, group: str | None, config: dict[str, Any], resume: str, embed: bool
    ) -> SimpleNamespace:
        assert project == "ponder" and resume == "allow" and not embed
        tags = config.pop("tags")
        name, _, id = name.rpartition("-")
        kept.name, kept.config, kept.about = name, config, {"id": id, "group": group, "tags": tags}
        return SimpleNamespace()

    return SimpleNamespace(init=init, log=log, finish=kept.close)


def mlflow(kept: Kept) -> SimpleNamespace:
    experiments: list[str] = []

    def start_run(
        run_id: str | None = None, run_name: str | None = None, tags: dict[str, Any] | None = None
    ) -> SimpleNamespace:
        assert experiments[-1] == "ponder" and (run_id is None) != (run_name is None)
        kept.name, kept.about = run_name or "resumed", {"id": run_id or "given", "tags": tags}
        return SimpleNamespace(info=SimpleNamespace(run_id="given"))

    def log_dict(dictionary: dict[str, Any], artifact_file: str) -> None:
        assert kept.name is not None and artifact_file.endswith(".json")
        kept.config = dictionary

    def log_metrics(metrics: dict[str, float], step: int) -> None:
        kept.put(metrics, step)

    return SimpleNamespace(
        set_experiment=experiments.append,
        start_run=start_run,
        log_dict=log_dict,
        log_metrics=log_metrics,
        end_run=kept.close,
    )


def clearml(kept: Kept) -> SimpleNamespace:
    def report_scalar(title: str, series: str, value: float, iteration: int) -> None:
        assert title == series
        kept.put({title: value}, iteration)

    def connect_configuration(configuration: dict[str, Any]) -> None:
        kept.config = configuration

    def init(
        project_name: str, task_name: str, tags: list[str], reuse_last_task_id: bool, continue_last_task: str | bool
    ) -> SimpleNamespace:
        assert project_name == "ponder" and not reuse_last_task_id
        kept.name, kept.about = task_name, {"id": continue_last_task or "given", "tags": tags}
        return SimpleNamespace(
            id="given",
            connect_configuration=connect_configuration,
            get_logger=lambda: SimpleNamespace(report_scalar=report_scalar),
            close=kept.close,
        )

    return SimpleNamespace(Task=SimpleNamespace(init=init))


PACKAGES: dict[str, Callable[[Kept], SimpleNamespace]] = {
    "tensorboard": tensorboard,
    "wandb": wandb,
    "trackio": trackio,
    "mlflow": mlflow,
    "clearml": clearml,
}


@pytest.mark.parametrize("name", sorted(TRACKERS))
def test_every_tracker_gets_the_numbers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept()
    monkeypatch.setitem(sys.modules, TRACKERS[name][0], cast(Any, PACKAGES[name](kept)))
    config = tiny(train={"trackers": (name,)})
    view = Tracked(Silent(), open_trackers(config, tmp_path))
    view.row(ROW)
    view.row({**ROW, "update": 8, "loss": 1.25})
    assert not kept.closed
    view.close()
    exact = {("train/ema/val/exact", update): 0.25 for update in (7, 8)}
    assert kept.numbers == {("train/loss", 7): 1.5, ("train/loss", 8): 1.25, **exact}
    assert kept.closed and kept.name == tmp_path.name
    assert kept.config == (None if name == "tensorboard" else config.flat())


@pytest.mark.parametrize("name", sorted(TRACKERS))
def test_a_resumed_run_keeps_its_id_and_a_study_names_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, group = tiny(train={"trackers": (name,)}), Group("halting", "halting/base/sudoku/s0")
    told = []
    for done in (0, 8):
        kept = Kept()
        monkeypatch.setitem(sys.modules, TRACKERS[name][0], cast(Any, PACKAGES[name](kept)))
        if done:
            (tmp_path / "checkpoints" / f"u{done:08d}").mkdir(parents=True)
        (tracker,) = open_trackers(config, tmp_path, group if name in ("wandb", "trackio") else None)
        tracker.log({"x": 1.0}, done + 1)
        tracker.close()
        told.append(kept)
    first, second = told
    if name == "tensorboard":
        assert (first.about["purge_step"], second.about["purge_step"]) == (None, 9)
        assert "domain: sudoku" in first.about["text"] and "text" not in second.about
        return
    assert first.about["id"] == second.about["id"]
    if name in ("wandb", "trackio"):
        assert first.about["group"] == "halting" and first.name == group.label and len(first.about["id"]) == 8
    assert "sudoku" in str(first.about["tags"]) and "ponder" in str(first.about["tags"])
    other = tmp_path / "other"
    other.mkdir()
    if name in ("wandb", "trackio"):
        kept = Kept()
        monkeypatch.setitem(sys.modules, TRACKERS[name][0], cast(Any, PACKAGES[name](kept)))
        open_trackers(config, other)
        assert kept.about["id"] != first.about["id"]


def test_one_or_several_are_written_as_they_are_on_the_command_line() -> None:
    for text, names in (("wandb", ("wandb",)), ("wandb,mlflow", ("wandb", "mlflow")), ("[wandb]", ("wandb",))):
        overrides = parse_overrides(["--train.trackers", text])
        assert resolve("sudoku-mini", None, overrides).train.trackers == names


def test_an_unknown_or_missing_tracker_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="did you mean 'wandb'"):
        open_trackers(tiny(train={"trackers": ("wandbb",)}), tmp_path)
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(UserError, match="pip install trackio"):
        open_trackers(tiny(train={"trackers": ("trackio",)}), tmp_path)


# The real libraries, where they are installed (pip install 'ponder[trackers]') ---------------------------------------

SMALL = [
    "--model.width=16",
    "--model.heads=2",
    "--train.batch=16",
    "--train.updates=12",
    "--train.eval_every=6",
    "--train.log_every=2",
    "--train.save_every=4",
    "--train.warmup=1",
    "--eval.examples=8",
    "--data.train=200",
    "--data.val=20",
    "--data.test=20",
    "--seed=3",
]
REAL = [name for name in ("tensorboard", "wandb", "trackio", "mlflow") if find_spec(name) is not None]


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run stopped after 5 updates and resumed, tracked by all that are here, without a network."""
    if not REAL:
        pytest.skip("no tracker is installed")
    work = tmp_path_factory.mktemp("tracked")
    offline = {
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "TRACKIO_DIR": str(work / "trackio"),
        "MLFLOW_TRACKING_URI": (work / "mlruns").as_uri(),
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "PONDER_PROJECT": "puzzles",
        "PYTHONPATH": str(ROOT),
    }
    train = [sys.executable, "-m", "ponder", "train"]
    first = ["sudoku-mini", "--out", "one", "--train.trackers", ",".join(REAL), *SMALL, "--max-updates", "5"]
    for words in (first, ["--resume", "one"]):
        done = subprocess.run(
            [*train, *words], cwd=work, env=os.environ | offline, capture_output=True, encoding="utf-8", check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return work


def _losses(work: Path) -> dict[int, Any]:
    rows = read_log(work / "one" / "metrics.jsonl")
    return {row["update"]: pytest.approx(row["loss"], rel=1e-5) for row in rows if row["kind"] == "train"}


def test_tensorboard_shows_one_run(tracked: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tracked / "one" / "tensorboard"))
    events.Reload()
    assert {each.step: each.value for each in events.Scalars("train/loss")} == _losses(tracked)


def test_wandb_shows_one_run(tracked: Path) -> None:
    pytest.importorskip("wandb")
    sessions = sorted((tracked / "wandb").glob("offline-run-*/run-*.wandb"))
    id = files.read_json(tracked / "one" / KEPT)["id"]
    assert len(sessions) == 2 and {path.name for path in sessions} == {f"run-{id}.wandb"}
    for path in sessions:
        assert all(word in path.read_bytes() for word in (b"puzzles", b"train/loss", b"sudoku"))


def test_trackio_shows_one_run(tracked: Path) -> None:
    pytest.importorskip("trackio")
    (database,) = (path for path in (tracked / "trackio").glob("puzzles*.db"))
    with closing(sqlite3.connect(database)) as opened:
        rows = opened.execute("select run_name, step, metrics from metrics").fetchall()
    assert len({name for name, _, _ in rows}) == 1
    told = {step: json.loads(text) for _, step, text in rows if "train/loss" in json.loads(text)}
    assert {step: values["train/loss"] for step, values in told.items()} == _losses(tracked)


def test_mlflow_shows_one_run(tracked: Path) -> None:
    pytest.importorskip("mlflow")
    (losses,) = (tracked / "mlruns").glob("*/*/metrics/train/loss")
    told = [line.split() for line in losses.read_text(encoding="utf-8").splitlines()]
    assert {int(step): float(value) for _, value, step in told} == _losses(tracked)
    (tag,) = (tracked / "mlruns").glob("*/*/tags/domain")
    assert tag.read_text(encoding="utf-8") == "sudoku"
