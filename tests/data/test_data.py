"""Dataset folders: same bytes, complete or absent, and damage is named."""

import json
from pathlib import Path

import numpy as np
import pytest

from ponder import data
from ponder.base.errors import UserError
from ponder.base.files import sha256
from ponder.data import Dataset
from tests.conftest import tiny
from tests.support.disk import files_of_at_most


def files(path: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in path.iterdir()}


def test_same_seed_same_bytes_on_any_number_of_workers(tmp_path: Path) -> None:
    config = tiny().data
    one = data.build(config, tmp_path / "one", workers=1)
    two = data.build(config, tmp_path / "two", workers=2)
    assert files(one) == files(two)
    other = data.build(config.model_copy(update={"seed": 1}), tmp_path / "one", workers=1)
    assert other != one and files(other) != files(one)


def test_building_again_changes_nothing(dataset: Dataset, data_dir: Path) -> None:
    before = {p.name: p.stat().st_mtime_ns for p in dataset.path.iterdir()}
    assert data.build(tiny().data, data_dir) == dataset.path
    assert {p.name: p.stat().st_mtime_ns for p in dataset.path.iterdir()} == before


def test_a_failed_build_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise RuntimeError("power cut")

    monkeypatch.setattr(np, "save", fail)
    with pytest.raises(RuntimeError):
        data.build(tiny().data, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_at_the_last_byte_of_an_array_is_noticed(tmp_path: Path) -> None:
    sound = data.build(tiny().data, tmp_path / "sound")
    largest = max(path.stat().st_size for path in sound.glob("*.npy"))
    with pytest.raises(OSError), files_of_at_most(largest - 1):
        data.build(tiny().data, tmp_path / "full")
    assert files(data.build(tiny().data, tmp_path / "full")) == files(sound)


def test_a_folder_without_manifest_is_not_a_dataset(tmp_path: Path) -> None:
    path = data.folder_for(tmp_path, tiny().data)
    path.mkdir()
    (path / "train.inputs.npy").write_bytes(b"half")
    with pytest.raises(UserError, match="holds no dataset"):
        Dataset.open(path)
    assert data.build(tiny().data, tmp_path) == path
    Dataset.open(path)


@pytest.fixture
def copy(dataset: Dataset, tmp_path: Path) -> Path:
    path = tmp_path / dataset.path.name
    path.mkdir()
    for name, content in files(dataset.path).items():
        (path / name).write_bytes(content)
    return path


def test_verify_accepts_what_was_built(copy: Path) -> None:
    assert set(data.verify(copy).checked) == {"train", "val", "test"}


def test_verify_finds_a_changed_byte(copy: Path) -> None:
    file = copy / "test.inputs.npy"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"test\.inputs\.npy was changed"):
        data.verify(copy)


def test_verify_finds_a_wrong_label(copy: Path) -> None:
    file = copy / "test.labels.npy"
    labels = np.load(file)
    labels[0, :2] = labels[0, :2][::-1]
    np.save(file, labels)
    manifest = json.loads((copy / "manifest.json").read_text(encoding="utf-8"))
    manifest["splits"]["test"]["labels"]["sha256"] = sha256(file)
    (copy / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(UserError, match="test example 0 is wrong"):
        data.verify(copy)


def test_a_manifest_that_does_not_match_is_refused(copy: Path) -> None:
    manifest = json.loads((copy / "manifest.json").read_text(encoding="utf-8"))
    manifest["splits"]["train"]["inputs"]["shape"][0] += 1
    (copy / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(UserError, match="the manifest says"):
        Dataset.open(copy)


def test_an_odd_header_is_read_without_a_word_of_numpys(copy: Path, recwarn: pytest.WarningsRecorder) -> None:
    file = copy / "train.inputs.npy"
    sound = np.load(file)
    rows, columns = sound.shape
    text = file.read_bytes().replace(f"({rows}, {columns})".encode(), f"({rows}L,{columns})".encode())
    assert text != file.read_bytes()
    file.write_bytes(text)
    assert (Dataset.open(copy).arrays("train")["inputs"] == sound).all() and not list(recwarn)


def test_a_truncated_array_is_refused(copy: Path) -> None:
    file = copy / "train.inputs.npy"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(UserError, match="missing or damaged"):
        Dataset.open(copy)


def test_splits_share_no_example(dataset: Dataset) -> None:
    seen: set[bytes] = set()
    for split in dataset.counts:
        rows = {row.tobytes() for row in np.asarray(dataset.arrays(split)["inputs"])}
        assert not rows & seen
        seen |= rows


def test_a_missing_split_lists_those_that_exist(dataset: Dataset) -> None:
    with pytest.raises(UserError, match="allowed: test, train, val"):
        dataset.source("tset")
