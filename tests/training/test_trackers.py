"""Trackers get the log's numbers; missing ones are found before the first step."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ponder.base.errors import UserError
from ponder.training.trackers import TRACKERS, Tracked, open_trackers
from ponder.training.view import Silent
from tests.conftest import tiny

ROW = {"kind": "train", "update": 7, "loss": 1.5, "ema": {"val": {"exact": 0.25}}}


class Kept:
    """What a tracker was told, through nothing but the calls its package documents."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.config: dict[str, Any] | None = None
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
        def __init__(self, log_dir: str) -> None:
            kept.name = Path(log_dir).parent.name

        def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
            kept.put({tag: scalar_value}, global_step)

        def close(self) -> None:
            kept.close()

    return SimpleNamespace(SummaryWriter=SummaryWriter)


def wandb(kept: Kept) -> SimpleNamespace:
    def init(project: str, name: str, config: dict[str, Any]) -> None:
        assert project == "ponder"
        kept.name, kept.config = name, config

    def log(data: dict[str, float], step: int) -> None:
        kept.put(data, step)

    return SimpleNamespace(init=init, log=log, finish=kept.close)


def mlflow(kept: Kept) -> SimpleNamespace:
    experiments: list[str] = []

    def start_run(run_name: str) -> None:
        assert experiments == ["ponder"]
        kept.name = run_name

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

    def init(project_name: str, task_name: str) -> SimpleNamespace:
        assert project_name == "ponder"
        kept.name = task_name
        logger = SimpleNamespace(report_scalar=report_scalar)
        return SimpleNamespace(connect_configuration=connect_configuration, get_logger=lambda: logger, close=kept.close)

    return SimpleNamespace(Task=SimpleNamespace(init=init))


PACKAGES: dict[str, Callable[[Kept], SimpleNamespace]] = {
    "tensorboard": tensorboard,
    "wandb": wandb,
    "trackio": wandb,
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


def test_an_unknown_or_missing_tracker_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="did you mean 'wandb'"):
        open_trackers(tiny(train={"trackers": ("wandbb",)}), tmp_path)
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(UserError, match="pip install trackio"):
        open_trackers(tiny(train={"trackers": ("trackio",)}), tmp_path)
