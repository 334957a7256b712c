"""Run folders: what a start may delete, what a refused one leaves, and that a run goes on with its own data."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from ponder import checkpoint, data
from ponder.base.errors import UserError
from ponder.base.runtime import Runtime
from ponder.cli import main as ponder_main
from ponder.data import Dataset
from ponder.training.loop import Limits
from ponder.training.runs import train_in
from tests.conftest import tiny

HERE = Runtime(torch.device("cpu"))
SHORT = tiny(train={"updates": 2, "eval_every": 2, "save_every": 2, "warmup": 1})


@pytest.fixture
def finished(dataset: Dataset, data_dir: Path, tmp_path: Path) -> Path:
    train_in(SHORT, tmp_path / "run", data_dir, HERE, Limits(), quiet=True)
    return tmp_path / "run"


def test_fresh_replaces_a_run_and_leaves_other_folders_alone(finished: Path, data_dir: Path, tmp_path: Path) -> None:
    (finished / "mark").touch()
    train_in(SHORT, finished, data_dir, HERE, Limits(), quiet=True, fresh=True)
    assert not (finished / "mark").exists() and (finished / "result.json").is_file()
    thesis = tmp_path / "thesis" / "chapter.tex"
    thesis.parent.mkdir()
    thesis.write_text("long work", encoding="utf-8")
    with pytest.raises(UserError, match="not a run folder"):
        train_in(SHORT, thesis.parent, data_dir, HERE, Limits(), quiet=True, fresh=True)
    assert thesis.read_text(encoding="utf-8") == "long work" and [*thesis.parent.iterdir()] == [thesis]


def test_a_fresh_start_that_is_refused_deletes_nothing(
    finished: Path, data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(finished.rglob("*"))
    wrong = tiny(train={"updates": 2, "warmup": 1, "trackers": ["foo"]})
    with pytest.raises(UserError, match="tracker"):
        train_in(wrong, finished, data_dir, HERE, Limits(), quiet=True, fresh=True)
    assert ponder_main(["train", "--resume", str(finished), "--fresh"]) == 2
    assert "leave out one" in capsys.readouterr().err
    assert ponder_main(["train", "sudoku-mini", "--out", str(finished), "--fresh", "--device", "cuda:99"]) == 2
    assert sorted(finished.rglob("*")) == before


def test_a_refused_start_does_not_stand_in_the_way_of_the_right_one(data_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="split"):
        train_in(tiny(eval={"splits": ["tset"]}), tmp_path / "run", data_dir, HERE, Limits(), quiet=True)
    assert not (tmp_path / "run").exists()
    assert train_in(SHORT, tmp_path / "run", data_dir, HERE, Limits(), quiet=True).finished
    with pytest.raises(UserError, match="another configuration"):
        train_in(tiny(), tmp_path / "run", data_dir, HERE, Limits(), quiet=True)


def test_val_is_evaluated_even_if_not_asked_for(data_dir: Path, tmp_path: Path) -> None:
    config = tiny(eval={"splits": ["test"]}, train={"updates": 2, "eval_every": 1, "warmup": 1})
    assert train_in(config, tmp_path / "run", data_dir, HERE, Limits(), quiet=True).finished
    assert set(json.loads((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))["n"]) == {"test", "val"}


def test_an_edited_state_is_refused(finished: Path) -> None:
    saved = checkpoint.listed(finished / "checkpoints")[-1]
    file = saved / checkpoint.STATE
    file.write_text(file.read_text(encoding="utf-8").replace('"update": 2', '"update": 1'), encoding="utf-8")
    with pytest.raises(UserError, match=r"state\.json was edited"):
        checkpoint.read(saved)


def test_data_that_was_changed_is_found_before_the_first_step(tmp_path: Path) -> None:
    path = data.build(SHORT.data, tmp_path / "data")
    train_in(SHORT, tmp_path / "run", tmp_path / "data", HERE, Limits(updates=1), quiet=True)
    inputs = np.load(path / "train.inputs.npy")
    inputs[0, 0] ^= 1
    np.save(path / "train.inputs.npy", inputs)
    with pytest.raises(UserError, match=r"train\.inputs\.npy was changed"):
        train_in(SHORT, tmp_path / "other", tmp_path / "data", HERE, Limits(), quiet=True)


@pytest.mark.parametrize("limits", [(0.0, None), (-1.0, None), (math.nan, None), (None, 0), (None, -5)])
def test_limits_are_positive(limits: tuple[float | None, int | None]) -> None:
    with pytest.raises(UserError, match="--max-"):
        Limits(*limits)
