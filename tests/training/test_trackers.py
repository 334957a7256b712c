"""Trackers get the log's numbers; missing ones are found before the first step."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ponder.base.errors import UserError
from ponder.training.trackers import TRACKERS, Tracked, open_trackers
from ponder.training.view import Silent
from tests.conftest import tiny

ROW = {"kind": "train", "update": 7, "loss": 1.5, "ema": {"val": {"exact": 0.25}}}


class Recorder:
    """Stands in for any tracker's package: remembers every call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((name, args, kwargs))
            return self

        return call


@pytest.mark.parametrize("name", sorted(TRACKERS))
def test_every_tracker_gets_the_numbers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    module: Any = SimpleNamespace(Task=recorder) if name == "clearml" else recorder
    monkeypatch.setitem(sys.modules, TRACKERS[name][0], module)
    view = Tracked(Silent(), open_trackers(tiny(train={"trackers": (name,)}), tmp_path))
    view.row(ROW)
    view.close()
    said = str(recorder.calls)
    assert "train/loss" in said and "1.5" in said and "train/ema/val/exact" in said and "7" in said
    assert recorder.calls[-1][0] in ("close", "finish", "end_run")


def test_an_unknown_or_missing_tracker_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="did you mean 'wandb'"):
        open_trackers(tiny(train={"trackers": ("wandbb",)}), tmp_path)
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(UserError, match="pip install trackio"):
        open_trackers(tiny(train={"trackers": ("trackio",)}), tmp_path)
