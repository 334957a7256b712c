"""`ponder import`: a published checkpoint becomes a folder that gives the published outputs."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from ponder import checkpoint
from ponder.base.errors import UserError
from ponder.commands.import_ import main
from ponder.inference.weights import open_weights
from ponder.model.published import trajectory
from tests.support import golden
from tests.support.rounding import agree, limits


class Published:
    """A golden file in the form its authors' code saves: a checkpoint and an all_config.yaml."""

    def __init__(self, name: str, folder: Path) -> None:
        self.data = golden.compact(name)
        self.kind: str = self.data["model"]
        self.checkpoint, self.config, self.out = folder / "step_10", folder / "all_config.yaml", folder / "imported"
        weights = golden.filled(self.data["shapes"])
        torch.save({f"_orig_mod.{name}": tensor for name, tensor in weights.items()}, self.checkpoint)
        outside = ("seq_len", "vocab_size", "batch_size", "num_puzzle_identifiers")
        self.arch = {key: value for key, value in self.data["config"].items() if key not in outside}
        self.rows = len(weights["model.inner.puzzle_emb.weights"])
        self.configure(data_path="data/nine-aug-1000")

    def configure(self, **top: Any) -> None:
        self.config.write_text(
            yaml.safe_dump({"arch": {**self.arch, "loss": {"name": "losses@ACTLossHead"}}, **top}), encoding="utf-8"
        )

    def run(self, *more: str) -> None:
        words = [self.kind, str(self.checkpoint), "--config", str(self.config), "-o", str(self.out), *more]
        main(words)


@pytest.fixture
def hrm(tmp_path: Path) -> Published:
    return Published("hrm", tmp_path)


@pytest.mark.parametrize("name", ["hrm", "hrm_learned_positions", "trm", "trm_mlp", "urm"])
def test_the_folder_gives_the_published_outputs(name: str, tmp_path: Path) -> None:
    published = Published(name, tmp_path)
    published.run("--seq-len", "9")
    model = open_weights(published.out).model
    given = [torch.tensor(published.data[name]) for name in ("inputs", "task_ids")]

    def ours() -> list[torch.Tensor]:
        steps = trajectory(model, given[0], given[1], steps=4)
        return [getattr(step, name).flatten() for step in steps for name in ("logits", "q_halt")]

    theirs = [torch.tensor(step[name]) for step in published.data["eval_steps"] for name in ("logits", "q_halt")]
    agree(ours(), theirs, limits(ours, model.state_dict().values()))


def test_the_folder_says_where_it_came_from(hrm: Published) -> None:
    hrm.run("--seq-len", "9")
    config = json.loads((hrm.out / "config.json").read_text(encoding="utf-8"))
    assert sorted(p.name for p in hrm.out.iterdir()) == ["config.json", "weights.safetensors"]
    assert config["kind"] == "imported"
    assert (config["vocab"], config["tokens"], config["task_ids"]) == (7, 9, 3)
    assert config["source"] == {
        "kind": "hrm",
        "checkpoint": "step_10",
        "sha256": hashlib.sha256(hrm.checkpoint.read_bytes()).hexdigest(),
    }


@pytest.mark.parametrize(
    ("top", "tokens"),
    [
        ({"data_path": "data/sudoku-extreme-1k-aug-1000"}, 81),
        ({"data_path": "data/maze-30x30-hard-1k"}, 900),
        ({"data_paths": ["data/arc1concept-aug-1000"]}, 900),
        ({"data_path": "data/sudoku-extreme-1k-aug-1000", "seq_len": 9}, 9),
    ],
)
def test_the_length_comes_from_the_configuration(hrm: Published, top: dict[str, Any], tokens: int) -> None:
    hrm.configure(**top)
    hrm.run()
    assert open_weights(hrm.out).model.tokens == tokens


def test_an_unknown_length_is_asked_for(hrm: Published) -> None:
    with pytest.raises(UserError, match="seq_len"):
        hrm.run()
    assert not hrm.out.exists()


@pytest.mark.parametrize("name", ["hrm_learned_positions", "trm_mlp"])
def test_the_length_comes_from_weights_that_show_it(name: str, tmp_path: Path) -> None:
    published = Published(name, tmp_path)
    published.run()
    assert open_weights(published.out).model.tokens == 9


def test_identifiers_are_stored_beside_the_weights(hrm: Published, tmp_path: Path) -> None:
    names = ["<blank>", "007bbfb7_t3_0123456789", "007bbfb7"]
    (tmp_path / "names.json").write_text(json.dumps(names), encoding="utf-8")
    hrm.run("--seq-len", "9", "--identifiers", str(tmp_path / "names.json"))
    assert json.loads((hrm.out / "identifiers.json").read_text(encoding="utf-8")) == names


@pytest.mark.parametrize("text", ['["<blank>", "one"]', '{"<blank>": 0}', "[0, 1, 2]", "not json"])
def test_identifiers_that_do_not_fit_are_refused(hrm: Published, tmp_path: Path, text: str) -> None:
    (tmp_path / "names.json").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match="identifiers"):
        hrm.run("--seq-len", "9", "--identifiers", str(tmp_path / "names.json"))
    assert not hrm.out.exists()


def test_a_used_folder_is_left_alone(hrm: Published) -> None:
    hrm.out.mkdir()
    hrm.run("--seq-len", "9")  # an empty one is as good as none
    before = {path.name: path.read_bytes() for path in hrm.out.iterdir()}
    with pytest.raises(UserError, match="exists and is not an empty folder"):
        hrm.run("--seq-len", "9")
    assert {path.name: path.read_bytes() for path in hrm.out.iterdir()} == before


def test_an_interrupted_import_leaves_nothing(hrm: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    written = checkpoint.write_tensors

    def fails(*args: Any) -> None:
        written(*args)
        raise OSError("No space left on device")

    monkeypatch.setattr(checkpoint, "write_tensors", fails)
    before = sorted(hrm.out.parent.iterdir())
    with pytest.raises(UserError, match="No space left"):
        hrm.run("--seq-len", "9")
    assert sorted(hrm.out.parent.iterdir()) == before


def test_a_missing_configuration_is_named(hrm: Published) -> None:
    hrm.config.unlink()
    with pytest.raises(UserError, match=r"all_config\.yaml"):
        hrm.run("--seq-len", "9")
