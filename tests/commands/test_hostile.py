"""Files and words that nobody should give: one line, an exit code, and nothing new on the disk."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from ponder import data
from ponder.base import files
from ponder.cli import main as ponder_main
from ponder.config.resolve import resolve
from tests.support.folders import random_config, random_folder

PUZZLE = "1" + 14 * "." + "2"
SMALL = ["--data.train", "30", "--data.val", "10", "--data.test", "10"]
CONFIG = resolve("sudoku-mini", None, {"data": {"train": 30, "val": 10, "test": 10}})
DEEP = 3000 * "[" + 3000 * "]"
LONG = 5000 * "x"
Spoil = Callable[[Path], object]


def refused(capsys: pytest.CaptureFixture[str], *words: str, code: int = 2) -> str:
    """What `ponder WORDS` says in its one line; the folder it runs in stays as it is."""
    before = sorted(Path().rglob("*"))
    try:
        ended: object = ponder_main(words)
    except SystemExit as end:
        ended = end.code
    err = capsys.readouterr().err
    assert ended == code and err.startswith("ponder: ") and err.count("\n") == 1 and len(err) < 3000, err
    assert sorted(Path().rglob("*")) == before
    return err


def _folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def text(content: str | bytes) -> Spoil:
    """Spoils the file `config.json` or what else a folder is named by."""
    return lambda file: file.write_bytes(content if isinstance(content, bytes) else content.encode())


NO_OBJECTS: dict[str, Spoil] = {
    "empty": text(""),
    "list": text("[1, 2]"),
    "null": text("null"),
    "no JSON": text("{"),
    "no UTF-8": text(b'{"a": "\xff"}'),
    "deep": text(100_000 * "["),
    "long number": text('{"seed": ' + 5000 * "9" + "}"),
    "nothing in it": text("{}"),
    "a folder": _folder,
}


# A model --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_folder(tmp_path_factory.mktemp("models") / "model", random_config("sudoku-mini"))


@pytest.fixture
def model(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(sound, "model")
    return Path("model")


@pytest.mark.parametrize("spoil", NO_OBJECTS)
def test_a_configuration_that_is_none(spoil: str, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    NO_OBJECTS[spoil](model / "config.json")
    refused(capsys, "solve", "model", PUZZLE)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "imported"},
        {"kind": "imported", "model": [], "vocab": "x", "tokens": {}, "task_ids": -1},
        {"data": [1]},
        {"data": {"domain": ["x"]}},
        {"model": None},
        {"model": {"expansion": float("inf")}},
    ],
)
def test_a_configuration_of_something_else(
    change: dict[str, Any], model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = files.read_json(model / "config.json")
    (model / "config.json").write_text(json.dumps({**stored, **change}), encoding="utf-8")
    refused(capsys, "solve", "model", PUZZLE)


TENSORS: dict[str, Callable[[dict[str, torch.Tensor]], object]] = {
    "another shape": lambda t: t.update(embed=torch.zeros(3, 3)),
    "another width": lambda t: t.update(table=torch.zeros(1, 3)),
    "no rows": lambda t: t.update(table=torch.tensor(1.0)),
    "no table": lambda t: t.pop("table"),
    "no embedding": lambda t: t.pop("embed"),
    "one too many": lambda t: t.update(more=torch.zeros(2)),
}


@pytest.mark.parametrize("change", TENSORS)
def test_tensors_that_do_not_fit(change: str, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = load_file(model / "weights.safetensors")
    TENSORS[change](tensors)
    save_file(tensors, model / "weights.safetensors")
    assert "does not fit its own configuration" in refused(capsys, "solve", "model", PUZZLE)


@pytest.mark.parametrize("content", [b"", b"\x10" + 7 * b"\0" + b"no tensors at all", b"\xff" * 100])
def test_no_tensors(content: bytes, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (model / "weights.safetensors").write_bytes(content)
    assert "weights.safetensors is damaged" in refused(capsys, "solve", "model", PUZZLE)


@pytest.mark.parametrize(
    "state",
    ["[1]", '{"update": 3, "files": [1]}', '{"update": 3, "files": {}}', '{"files": {}}', 100_000 * "[",
     '{"update": 3, "files": {"../config.json": "x"}}'],
)  # fmt: skip
def test_a_checkpoint_that_says_nothing(state: str, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (model / "best").mkdir()
    (model / "weights.safetensors").rename(model / "best" / "weights.safetensors")
    (model / "best" / "state.json").write_text(state, encoding="utf-8")
    assert "incomplete" in refused(capsys, "solve", "model", PUZZLE)


@pytest.mark.parametrize("puzzle", [5000 * "1", f"[{5000 * '1'}]", DEEP, 3000 * '{"a":', LONG, "\udc80"])
def test_a_puzzle_that_is_none(puzzle: str, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, "solve", "model", puzzle, code=1)


@pytest.mark.parametrize("puzzle", ["", " \n"])
def test_no_puzzle_is_an_error(puzzle: str, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no puzzle" in refused(capsys, "solve", "model", puzzle)
    (model / "puzzles.txt").write_text(puzzle, encoding="utf-8")
    assert "no puzzle" in refused(capsys, "solve", "model", "--file", "model/puzzles.txt")


# A card ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "card",
    [*NO_OBJECTS, '{"name": "x", "domain": 3}', '{"name": "x", "domain": "sudoku", "accuracy": {"a": 3}}',
     '{"name": "x", "domain": "sudoku", "accuracy": {}}'],
)  # fmt: skip
def test_a_card_that_is_none(
    card: str, model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "share")
    place = Path("share/ponder/zoo/mine")
    shutil.copytree(model, place)
    (place / "card.json").touch()
    NO_OBJECTS.get(card, text(card))(place / "card.json")
    assert "card.json" in refused(capsys, "zoo", "mine")
    assert ponder_main(["zoo"]) == 0  # the others are listed
    told = capsys.readouterr()
    assert "mine is left out" in told.err and told.err.count("\n") == 1 and "sudoku-4x4" in told.out


# A dataset ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data.build(CONFIG.data, tmp_path_factory.mktemp("data"))


@pytest.fixture
def dataset(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(built, "set")
    return Path("set")


@pytest.mark.parametrize("spoil", NO_OBJECTS)
def test_a_manifest_that_is_none(spoil: str, dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    NO_OBJECTS[spoil](dataset / data.MANIFEST)
    refused(capsys, "data", "verify", "set")


@pytest.mark.parametrize("value", [None, [], {}, "x", 3, -1, [[]], {"train": 3}, float("inf")], ids=repr)
@pytest.mark.parametrize("key", ["data", "vocab", "seq_len", "counts", "splits", "split", "entry"])
def test_a_manifest_of_something_else(
    key: str, value: object, dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = files.read_json(dataset / data.MANIFEST)
    at = {"split": manifest["splits"], "entry": manifest["splits"]["train"]}.get(key, manifest)
    at[{"split": "train", "entry": "inputs"}.get(key, key)] = value
    (dataset / data.MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    refused(capsys, "data", "verify", "set")
    refused(capsys, "data", "show", "set")


@pytest.mark.parametrize("name", ["file", "shape", "dtype", "sha256"])
@pytest.mark.parametrize("value", [None, 3, [1], "../set/train.inputs.npy"], ids=repr)
def test_an_array_described_as_none(
    name: str, value: object, dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = files.read_json(dataset / data.MANIFEST)
    manifest["splits"]["train"]["inputs"][name] = value
    (dataset / data.MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    refused(capsys, "data", "verify", "set")


ARRAYS: dict[str, Callable[[Any], Any]] = {
    "objects": lambda a: a.astype(object),
    "floats": lambda a: a.astype(np.float64),
    "bits": lambda a: a.astype(bool),
    "words": lambda a: a.astype("U3"),
    "dates": lambda a: a.astype("datetime64[s]"),
    "pairs": lambda a: np.zeros(len(a), dtype=[("a", "i4"), ("b", "i4")]),
    "a number": lambda a: np.array(3),
    "a row": lambda a: a[:, 0].copy(),
    "deep": lambda a: a[:, :, None].copy(),
    "wide": lambda a: np.hstack([a, a]),
    "few": lambda a: a[:5],
    "none": lambda a: a[:0],
    "beyond": lambda a: a.astype(np.int64) + 1000,
    "below": lambda a: a.astype(np.int64) - 1000,
}


@pytest.mark.parametrize("array", ARRAYS)
def test_an_array_of_something_else(array: str, dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whole by its hash: whoever wrote it wrote the manifest too."""
    file = dataset / "train.inputs.npy"
    changed = ARRAYS[array](np.load(file))
    np.save(file, changed, allow_pickle=True)
    manifest = files.read_json(dataset / data.MANIFEST)
    described = {"shape": changed.shape, "dtype": str(changed.dtype), "sha256": files.sha256(file)}
    manifest["splits"]["train"]["inputs"].update(described)
    (dataset / data.MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    refused(capsys, "data", "verify", "set")
    refused(capsys, "data", "show", "set")


def npy(header: bytes) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


NO_ARRAYS = [
    b"",
    b"\x93NUMPY\x01\x00garbage",
    npy(65535 * b"("),
    npy(b"{'descr': '<i4', 'shape': (3,"),
    npy(b"  {\n }\n  a"),
]


@pytest.mark.parametrize("content", NO_ARRAYS)
def test_no_array(content: bytes, dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (dataset / "train.inputs.npy").write_bytes(content)
    refused(capsys, "data", "verify", "set")
    with (dataset / "train.inputs.npy").open("wb") as file:
        np.savez(file, a=np.zeros(3))
    refused(capsys, "data", "verify", "set")


# Words ----------------------------------------------------------------------------------------------------------------

TRAIN = ["train", "sudoku-mini", *SMALL, "--train.updates", "2", "--processes", "1", "--data-dir", "data"]


@pytest.mark.parametrize(
    "words",
    [
        [*TRAIN, "--out", "file"],
        [*TRAIN, "--out", "file", "--fresh"],
        [*TRAIN, "--out", "file/run"],
        [*TRAIN, "--out", LONG],
        [*TRAIN, "--data-dir", "file"],
        ["train", "--resume", "file"],
        ["train", "--resume", LONG],
        ["train", LONG],
        [*TRAIN, "--train.lr", "1", "--train.lr.a", "2"],
        [*TRAIN, "--train.lr.a", "1", "--train.lr", "2"],
        [*TRAIN, "--train.lr", "inf"],
        [*TRAIN, "--train.lr", "1e999"],
        [*TRAIN, "--train.lr", "nan"],
        [*TRAIN, "--model.expansion", ".inf"],
        [*TRAIN, "--train.lr", 5000 * "9"],
        [*TRAIN, "--train.lr", 900 * "9"],
        [*TRAIN, "--train.lr", DEEP],
        [*TRAIN, "--train.lr", DEEP[2600:3400]],
        [*TRAIN, "--train.lr", "0x" + 900 * "f"],
        [*TRAIN, "--train.lr", "2020-13-45"],
        [*TRAIN, f"--train.{LONG}", "1"],
        ["data", "build", "sudoku-mini", "--data.seed", "-1"],
        ["data", "build", "sudoku-mini", *SMALL, "--workers", "-1"],
        ["data", "build", "sudoku-mini", *SMALL, "--workers", "0"],
        ["data", "show", "set", "--svg", "nowhere/x.svg"],
        ["data", "verify", "file"],
        ["data", "verify", LONG],
        ["domains", "--domain-file", LONG],
        [LONG],
        *([verb, LONG] for verb in ("solve", "eval", "policies", "search", "zoo", "presets", "cost")),
    ],
    ids=lambda words: " ".join(words[-2:])[:40],
)
def test_words_that_nobody_should_give(words: list[str], dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").write_text("a file", encoding="utf-8")
    shutil.copytree(dataset, data.folder_for(Path("data"), CONFIG.data))
    refused(capsys, *words)
    assert Path("file").read_text(encoding="utf-8") == "a file"


def test_a_recipe_that_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.yaml").write_text("extends: sudoku-mini\nrecipe: 3\n", encoding="utf-8")
    refused(capsys, "train", "my.yaml")
