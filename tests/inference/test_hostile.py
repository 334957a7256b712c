"""Files of strangers: what they say of sizes is compared with what they hold before anything of that size is made."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from ponder.base import files
from ponder.base.errors import UserError
from ponder.config.resolve import read_yaml
from ponder.data import MANIFEST, Dataset
from ponder.inference.weights import ZOO, open_weights
from ponder.model import published, reasoner
from ponder.training.log import read_log
from tests.commands.test_import import Published


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The 4x4 Sudoku model, to be tampered with."""
    for name in ("config.json", "weights.safetensors"):
        shutil.copy(ZOO / "sudoku-4x4" / name, tmp_path)
    return tmp_path


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """No model is made."""
    for module in (reasoner, published):
        monkeypatch.setattr(module, "Reasoner", lambda *_: pytest.fail("a model is made"))


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize(
    ("section", "key", "value", "says"),
    [
        ("model", "layers", 10**9, "at most 100000"),
        ("model", "layers", 30, "30 layers, the weights have"),
        ("model", "h_cycles", 10**9, "at most 100000"),
        ("model", "l_cycles", 10**9, "at most 100000"),
        ("model", "max_steps", 10**9, "max_steps"),
        ("model", "width", 2**16, "the configuration says"),
        ("model", "expansion", 1e15, "no model has the sizes|the configuration says"),
        ("model", "inner_multiple", 2**62, "no model has the sizes|the configuration says"),
        ("model", "prefix", 10**9, "positions: at most 65536"),
        ("data", "size", 9, "the configuration says"),
    ],
)
def test_a_configuration_that_asks_for_more_than_the_weights_hold(
    folder: Path, section: str, key: str, value: Any, says: str
) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config[section][key] = value
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(UserError, match=says) as error:
        open_weights(folder)
    assert "\n" not in str(error.value)


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize("tamper", ["transposed", "more", "no table", "flat table"])
def test_weights_that_are_not_the_configurations(folder: Path, tamper: str) -> None:
    tensors = load_file(folder / "weights.safetensors")
    if tamper == "transposed":
        tensors["embed"] = tensors["embed"].T.contiguous()
    elif tamper == "more":
        tensors["extra"] = torch.zeros(3)
    elif tamper == "no table":
        del tensors["table"]
    else:
        tensors["table"] = torch.zeros(5)
    save_file(tensors, folder / "weights.safetensors")
    with pytest.raises(UserError, match=r"embed|extra|table"):
        open_weights(folder)


@pytest.mark.parametrize(("key", "value"), [("vocab", 2**40), ("tokens", 10**9), ("tokens", "9"), ("vocab", -1)])
def test_an_imported_folder_that_lies_about_its_sizes(
    tmp_path: Path, request: pytest.FixtureRequest, key: str, value: Any
) -> None:
    hrm = Published("hrm", tmp_path)
    hrm.run("--seq-len", "9")
    request.getfixturevalue("no_model")
    file = hrm.out / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text(encoding="utf-8")), key: value}), encoding="utf-8")
    with pytest.raises(UserError, match=r"the configuration says|at most 65536|equal to 1|valid integer|no model has"):
        open_weights(hrm.out)


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize(
    ("key", "value"),
    [("L_layers", 10**9), ("H_cycles", 10**9), ("L_cycles", 10**9), ("hidden_size", 2**16), ("halt_max_steps", 10**9)],
)
def test_a_published_configuration_of_impossible_size(tmp_path: Path, key: str, value: int) -> None:
    hrm = Published("hrm", tmp_path)
    hrm.arch |= {key: value} | ({"H_layers": value} if key == "L_layers" else {})
    hrm.arch |= {"puzzle_emb_ndim": value} if key == "hidden_size" else {}
    hrm.configure()
    with pytest.raises(UserError) as error:
        hrm.run("--seq-len", "9")
    assert "\n" not in str(error.value) and not hrm.out.exists()


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize("kind", ["stride", "same", "sparse", "meta"])
def test_a_small_checkpoint_does_not_become_a_large_model(tmp_path: Path, kind: str) -> None:
    trm = Published("trm", tmp_path)
    state = torch.load(trm.checkpoint, weights_only=True)
    name = next(name for name in state if name.endswith("embedding_weight"))
    if kind == "same":
        largest = max(state.values(), key=torch.numel)
        state |= {f"{name}.{i}": largest for i in range(100)}
    else:
        state[name] = {
            "stride": torch.zeros(1).expand(10**6, 10**6),
            "sparse": torch.zeros(1000, 1000).to_sparse(),
            "meta": torch.empty(10**6, 10**6, device="meta"),
        }[kind]
    torch.save(state, trm.checkpoint)
    with pytest.raises(UserError, match=r"of which the file holds|many times over|not stored as plain|plain weights"):
        trm.run("--seq-len", "9")


def test_a_packed_checkpoint_is_refused(tmp_path: Path) -> None:
    """What torch saves is not packed; what is packed may unpack to anything."""
    from zipfile import ZIP_DEFLATED, ZipFile

    trm = Published("trm", tmp_path)
    torch.save({"weights": torch.zeros(10**6)}, tmp_path / "plain")
    with ZipFile(tmp_path / "plain") as plain, ZipFile(trm.checkpoint, "w", ZIP_DEFLATED) as packed:
        for name in plain.namelist():
            packed.writestr(name, plain.read(name))
    with pytest.raises(UserError, match="it unpacks to more than it is"):
        trm.run("--seq-len", "9")


LAUGHS = "\n".join(["a0: &a0 [1, 2]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9))])


@pytest.mark.parametrize(
    "text",
    [
        "a: " + "[" * 3000 + "]" * 3000,
        "\n".join("  " * i + "a:" for i in range(3000)),
        LAUGHS,
        "a: &a [1]\nb: [" + "*a, " * 101 + "]",
        "a: " + "9" * 5000,
        "a: 2020-13-45",
        "a: \x00",
        "- 1",
        "a: " + "x" * 2**21,
    ],
    ids=["brackets", "blocks", "laughs", "repeats", "digits", "date", "zero", "list", "long"],
)
def test_yaml_of_a_stranger(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=str(file)) as error:
        read_yaml(file)
    assert "\n" not in str(error.value)


def test_yaml_with_a_few_names_is_read_as_before(tmp_path: Path) -> None:
    text = "a: &a {b: 1}\nc: [*a, {<<: *a, d: [[1]]}]\n"
    (tmp_path / "config.yaml").write_text(text, encoding="utf-8")
    assert read_yaml(tmp_path / "config.yaml") == yaml.safe_load(text)


def test_only_regular_files_of_some_size_are_read(dataset: Dataset, tmp_path: Path) -> None:
    """A pipe that nobody writes to is not waited for."""
    os.mkfifo(tmp_path / MANIFEST)
    with pytest.raises(UserError, match="it is not a regular file"):
        Dataset.open(tmp_path)
    copy = Path(shutil.copytree(dataset.path, tmp_path / "set"))
    (copy / "train.inputs.npy").unlink()
    os.mkfifo(copy / "train.inputs.npy")
    with pytest.raises(UserError, match=r"train\.inputs\.npy is missing or damaged"):
        Dataset.open(copy)
    os.mkfifo(tmp_path / "metrics.jsonl")
    for reads in (read_log, files.sha256):
        with pytest.raises(OSError, match="it is not a regular file"):
            reads(tmp_path / "metrics.jsonl")
    with pytest.raises(OSError, match="more than 10 bytes"):
        files.read(Path(__file__), 10)
    (tmp_path / "deep.json").write_text("[" * 100_000, encoding="utf-8")
    with pytest.raises(json.JSONDecodeError, match="nested too deeply"):
        files.read_json(tmp_path / "deep.json")
