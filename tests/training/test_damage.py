"""What becomes of a run folder that somebody else uses, or that lost something: said in one line, and nothing redone in
silence. Where nothing of value is missing, the run ends bit for bit where it should."""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ponder import checkpoint, data
from ponder.base import files
from ponder.base.errors import UserError
from ponder.data import Dataset
from ponder.training import launch
from ponder.training.loop import Limits
from ponder.training.runs import train_in
from tests.conftest import tiny
from tests.support.processes import start
from tests.training.test_train import HERE, final, rows, run, same, whole

__all__ = ["whole"]
STOPPED = 14
"""Updates of `begun`, which rows and two checkpoints cover; the best is older than both."""


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def flip(file: Path) -> None:
    found = bytearray(file.read_bytes())
    found[len(found) // 2] ^= 1
    file.write_bytes(found)


@pytest.fixture(scope="session")
def stopped(dataset: Dataset, data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "stopped"
    run(tiny(), folder, data_dir, Limits(updates=STOPPED))
    assert len(checkpoint.listed(folder / "checkpoints")) == 2
    return folder


@pytest.fixture
def begun(stopped: Path, tmp_path: Path) -> Path:
    """A run that stopped halfway, to be damaged."""
    return Path(shutil.copytree(stopped, tmp_path / "run"))


def as_written_before(folder: Path) -> None:
    """Take from the checkpoints what an older ponder did not write."""
    for path in (*checkpoint.listed(folder / "checkpoints"), folder / "best"):
        state = files.read_json(path / checkpoint.STATE)
        state = {k: v for k, v in state.items() if k not in ("log", "data_hash", "threads", checkpoint.OWN)}
        own = hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()
        (path / checkpoint.STATE).write_text(json.dumps({**state, checkpoint.OWN: own}), encoding="utf-8")


# Two at once ----------------------------------------------------------------------------------------------------------


def test_a_second_training_in_one_folder_is_refused_by_name_and_process(
    whole: Path, data_dir: Path, tmp_path: Path
) -> None:
    """While one trains, another is started in the same folder: in this process, and from the command line."""
    folder, refused = tmp_path / "run", list[str]()
    (tmp_path / "alias").symlink_to(folder)

    def intrude(row: dict[str, Any]) -> None:
        if row["update"] != 8 or row["kind"] != "train":
            return
        for name in ("run", "alias"):
            with pytest.raises(UserError) as error:
                run(tiny(), tmp_path / name, data_dir)
            refused.append(str(error.value))
        with pytest.raises(UserError) as error:
            train_in(tiny(), folder, data_dir, HERE, Limits(), quiet=True, fresh=True)
        refused.append(str(error.value))
        words = ["train", "--resume", str(folder), "--data-dir", str(data_dir), "--quiet"]
        other = start(words, tmp_path / "said")
        assert other.ended() == 2 and other.said.count("\n") == 1, other.said
        refused.append(other.said)

    train_in(tiny(), folder, data_dir, HERE, Limits(), quiet=True, callback=intrude)
    assert len(refused) == 4
    for text in refused:
        assert f"pid {os.getpid()} on" in text and ("run" in text or "alias" in text)
    assert rows(folder) == rows(whole) and same(final(folder), final(whole))
    run(tiny(), folder, data_dir)  # free again


# The log --------------------------------------------------------------------------------------------------------------


def _cut_within(log: Path) -> None:
    log.write_bytes(log.read_bytes()[: log.stat().st_size // 2])


def _without_a_row(log: Path) -> None:
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:1] + lines[2:]))


LOSSES: dict[str, Callable[[Path], object]] = {
    "cut": _cut_within,
    "emptied": lambda log: log.write_bytes(b""),
    "deleted": lambda log: log.unlink(),
    "edited": flip,
    "without a row": _without_a_row,
    "last line cut": lambda log: log.write_bytes(log.read_bytes()[:-1]),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_rows_that_are_missing_are_said_and_not_written_short(loss: str, begun: Path, data_dir: Path) -> None:
    LOSSES[loss](begun / "metrics.jsonl")
    before = content(begun)
    with pytest.raises(UserError, match=r"metrics\.jsonl .*--fresh"):
        run(tiny(), begun, data_dir)
    assert content(begun) == before


@pytest.mark.parametrize(
    "tail", [b'{"kind": "tr', b'{"kind": "train", "update": 16}\n{"ki', b"\0" * 100 + b"\n\n\xff\n"]
)
def test_what_a_crash_left_after_the_checkpoint_goes(tail: bytes, begun: Path, whole: Path, data_dir: Path) -> None:
    log = begun / "metrics.jsonl"
    log.write_bytes(log.read_bytes() + tail)
    run(tiny(), begun, data_dir)
    assert rows(begun) == rows(whole) and same(final(begun), final(whole))


@pytest.mark.parametrize("line", [b'{"kind": ', b"[" * 100_000], ids=["cut", "nested"])
def test_a_log_damaged_after_the_end_is_not_read_short(line: bytes, whole: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(whole, tmp_path / "run"))
    lines = (copy / "metrics.jsonl").read_bytes().split(b"\n")
    (copy / "metrics.jsonl").write_bytes(b"\n".join([lines[0], line, *lines[2:]]))
    with pytest.raises(UserError, match=r"metrics\.jsonl is damaged in line 2"):
        rows(copy)


# Data -----------------------------------------------------------------------------------------------------------------


def _other_data(root: Path) -> Path:
    """The same dataset by name, with another label in it, whole by its manifest."""
    path = data.build(tiny().data, root)
    labels = np.load(path / "train.labels.npy")
    labels[0, 0] ^= 1
    np.save(path / "train.labels.npy", labels)
    manifest = files.read_json(path / data.MANIFEST)
    manifest["splits"]["train"]["labels"]["sha256"] = files.sha256(path / "train.labels.npy")
    files.write_json(path / data.MANIFEST, manifest)
    return root


@pytest.mark.parametrize("environment", ["whole", "empty", "gone", "of the other data"])
def test_a_run_goes_on_with_its_own_data_whatever_became_of_the_environment(
    environment: str, begun: Path, whole: Path, data_dir: Path, tmp_path: Path
) -> None:
    about, other = begun / "environment.json", _other_data(tmp_path / "data")
    if environment == "of the other data":
        files.write_json(about, {"data_hash": Dataset.open(data.folder_for(other, tiny().data)).hash})
    elif environment != "whole":
        about.write_bytes(b"")
        if environment == "gone":
            about.unlink()
    before = content(begun)
    with pytest.raises(UserError, match="trained on other data"):
        run(tiny(), begun, other)
    assert content(begun) == before
    run(tiny(), begun, data_dir)
    assert rows(begun) == rows(whole) and same(final(begun), final(whole))


# Checkpoints ----------------------------------------------------------------------------------------------------------


def test_starting_over_must_be_asked_for(begun: Path, whole: Path, data_dir: Path) -> None:
    for path in checkpoint.listed(begun / "checkpoints"):
        flip(path / "weights.safetensors")
    before = content(begun)
    with pytest.raises(UserError, match=r"u000000012.*--fresh"):
        run(tiny(), begun, data_dir)
    assert content(begun) == before
    train_in(tiny(), begun, data_dir, HERE, Limits(), quiet=True, fresh=True)
    assert rows(begun) == rows(whole) and same(final(begun), final(whole))


@pytest.mark.parametrize("finished", [False, True])
def test_checkpoints_that_are_gone_are_missed(finished: bool, begun: Path, whole: Path, data_dir: Path) -> None:
    folder = Path(shutil.copytree(whole, begun.with_name("whole"))) if finished else begun
    shutil.rmtree(folder / "checkpoints")
    before = content(folder)
    with pytest.raises(UserError, match=r"checkpoints .*gone.*--fresh"):
        run(tiny(), folder, data_dir)
    assert content(folder) == before


def test_a_damaged_best_is_noticed_before_training_goes_on(
    begun: Path, whole: Path, data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(begun / "best" / "ema.safetensors")
    before = content(begun)
    with pytest.raises(UserError, match=r"best/ema\.safetensors .*delete"):
        run(tiny(), begun, data_dir)
    assert content(begun) == before
    shutil.rmtree(begun / "best")
    train_in(tiny(), begun, data_dir, HERE, Limits(), quiet=False)
    assert "best is gone" in capsys.readouterr().out
    assert same(final(begun), final(whole)) and checkpoint.read(begun / "best").state["update"] > STOPPED


def test_a_checkpoint_between_its_two_names_is_found(begun: Path, whole: Path, data_dir: Path) -> None:
    """Killed after the old folder was set aside and before the new one got its name."""
    for path in (*checkpoint.listed(begun / "checkpoints"), begun / "best"):
        path.rename(path.with_name(f".{path.name}.old"))
    run(tiny(), begun, data_dir)
    assert rows(begun) == rows(whole) and same(final(begun), final(whole))


def test_a_folder_of_an_older_ponder_goes_on_bit_for_bit(begun: Path, whole: Path, data_dir: Path) -> None:
    as_written_before(begun)
    log = begun / "metrics.jsonl"
    log.write_bytes(log.read_bytes() + b'{"kind": "train", "update": 16}\n{"kind": "tr')
    run(tiny(), begun, data_dir)
    assert rows(begun) == rows(whole) and same(final(begun), final(whole))


def test_what_an_older_ponder_wrote_is_guarded_too(begun: Path, data_dir: Path, tmp_path: Path) -> None:
    as_written_before(begun)
    other = _other_data(tmp_path / "data")
    with pytest.raises(UserError, match="trained on other data"):
        run(tiny(), begun, other)
    (begun / "environment.json").write_bytes(b"")
    with pytest.raises(UserError, match=r"environment\.json.*--fresh"):
        run(tiny(), begun, other)


def test_a_run_knows_its_layout_without_its_environment(begun: Path) -> None:
    known = launch.before(begun)
    (begun / "environment.json").unlink()
    assert known is not None and launch.before(begun) == known


# The disk -------------------------------------------------------------------------------------------------------------

AT_THE_START = ("config.json", "environment.json", "metrics.jsonl")
LATER = ("state.json", "result.json", "curves.png", "checkpoints", ".u000000008.part", ".best.part")


@pytest.mark.parametrize("name", [*AT_THE_START, *LATER])
def test_a_full_disk_is_said_in_one_line_and_costs_nothing(
    name: str, whole: Path, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system refuses to write the file, or to make the folder, of that name; then there is room again."""
    folder = tmp_path / "run"
    opens, makes = Path.open, Path.mkdir

    def refuse(path: Path, *named: str) -> None:
        """As the system does: it names a folder, not the file that could not be written on."""
        if name in path.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), *named)

    def opened(path: Path, mode: str = "r", *rest: Any, **more: Any) -> Any:
        if mode[0] in "aw":
            refuse(path)
        return opens(path, mode, *rest, **more)

    def made(path: Path, *rest: Any, **more: Any) -> None:
        if not path.exists():
            refuse(path, str(path))
        makes(path, *rest, **more)

    with monkeypatch.context() as full:
        full.setattr(Path, "open", opened)
        full.setattr(Path, "mkdir", made)
        with pytest.raises(UserError) as error:
            run(tiny(), folder, data_dir)
    told = str(error.value)
    assert "No space left" in told and "make room" in told and "\n" not in told
    assert folder.exists() is (name not in AT_THE_START) and not list(folder.rglob(".*.part"))
    run(tiny(), folder, data_dir)
    assert rows(folder) == rows(whole) and same(final(folder), final(whole))
