"""`ponder import`: a published checkpoint becomes a folder that gives the published outputs."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from ponder import Solver, checkpoint, cli, evaluate
from ponder.base.errors import UserError
from ponder.commands.import_ import main
from ponder.config.resolve import resolve
from ponder.domains import Bools, GridDomain, Sizes, Tokens, registry
from ponder.inference.weights import open_weights
from ponder.model.published import weights_of
from ponder.model.reasoner import Reasoner
from tests.support import golden
from tests.support.folders import ONE_CYCLE, SMALL, random_folder
from tests.support.models import trajectory
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
    given_out(published, open_weights(published.out).model)


def given_out(published: Published, model: Reasoner) -> None:
    """That a model says what the authors' does."""
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
    with pytest.raises(UserError, match="--seq-len"):
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


# With a domain --------------------------------------------------------------------------------------------------------


class Letters(GridDomain):
    """As many symbols and tokens as the golden models have."""

    name, title, rules = "letters", "Copy the letters", "Write the same letters again."

    def __init__(self, params: Sizes) -> None:
        super().__init__(params, 3, 3, "abcdef")

    def check(self, inputs: Tokens, answers: Tokens) -> Bools:
        same: Bools = (inputs == answers).all(axis=1)
        return same


@pytest.fixture
def letters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(registry, "BUILT_IN", {**registry.BUILT_IN, "letters": Letters})
    preset = tmp_path / "letters.yaml"
    preset.write_text("{scale: mini, data: {domain: letters}, train: {updates: 1}}", encoding="utf-8")
    return str(preset)


@pytest.mark.numeric
@pytest.mark.parametrize("name", ["hrm", "hrm_learned_positions", "trm", "trm_mlp", "urm"])
def test_a_golden_model_with_a_domain_solves_by_its_published_outputs(name: str, tmp_path: Path, letters: str) -> None:
    published = Published(name, tmp_path)
    inputs, tasks = (torch.tensor(published.data[key]) for key in ("inputs", "task_ids"))
    row = int((inputs > 0).all(dim=1).nonzero()[0])
    weights = torch.load(published.checkpoint)
    table = weights["_orig_mod.model.inner.puzzle_emb.weights"]
    table[0] = table[tasks[row]]  # a solver's puzzles have the blank id
    torch.save(weights, published.checkpoint)
    published.run("--domain", letters)
    solver = Solver(published.out, steps=4)
    puzzle = "".join(solver.domain.vocab[token] for token in inputs[row])
    logits = [torch.tensor(step["logits"]).view(*inputs.shape, -1)[row] for step in published.data["eval_steps"]]
    theirs = [step.argmax(dim=-1).tolist() for step in logits]
    thoughts = list(solver.stream(puzzle))
    assert [thought.answer.tolist() for thought in thoughts] == theirs[: len(thoughts)]
    assert len(thoughts) == 4 or thoughts[-1].valid


class Ours:
    """A random model of ours, and the same in the form that the authors' code saves."""

    def __init__(self, folder: Path, preset: str, data: dict[str, Any], symbols: int) -> None:
        model = {**SMALL, **ONE_CYCLE, "prefix": 3, "max_steps": 3, "inner_multiple": 256, "positions": "rope"}
        self.config = resolve(preset, "trm", {"data": data, "model": model})
        self.own = random_folder(folder / "own", self.config)
        self.model = open_weights(self.own).model
        self.checkpoint, self.yaml, self.out = folder / "step_7", folder / "all_config.yaml", folder / "imported"
        self.weights = authors_names(self.model)
        for name in ("model.inner.embed_tokens.embedding_weight", "model.inner.lm_head.weight"):
            ours = self.weights[name]
            self.weights[name] = torch.cat([ours, 100 * torch.ones(symbols - len(ours), ours.shape[1])])
        torch.save(self.weights, self.checkpoint)
        config = self.config.model
        arch: dict[str, Any] = {"hidden_size": config.width, "num_heads": config.heads, "expansion": config.expansion}
        arch |= {"L_layers": config.layers, "H_layers": 0, "H_cycles": config.h_cycles, "L_cycles": config.l_cycles}
        arch |= {"pos_encodings": "rope", "puzzle_emb_ndim": config.width, "puzzle_emb_len": config.prefix}
        arch |= {"halt_max_steps": config.max_steps}
        self.yaml.write_text(yaml.safe_dump({"arch": arch, "data_paths": ["data/mine"]}), encoding="utf-8")

    def run(self, *more: str) -> None:
        main(["trm", str(self.checkpoint), "--config", str(self.yaml), "-o", str(self.out), *more])


def authors_names(model: Reasoner) -> dict[str, torch.Tensor]:
    top = {"embed": "embed_tokens.embedding_weight", "head.weight": "lm_head.weight", "table": "puzzle_emb.weights"}
    top |= {"q_head.weight": "q_head.weight", "q_head.bias": "q_head.bias", "init_h": "H_init", "init_l": "L_init"}
    layer = {"attention.qkv": "self_attn.qkv_proj", "attention.out": "self_attn.o_proj"}
    layer |= {"mlp.up": "mlp.gate_up_proj", "mlp.down": "mlp.down_proj"}
    out = {}
    for name, tensor in weights_of(model).items():
        theirs = top.get(name)
        if theirs is None:
            block, _, number, *part, weight = name.split(".")
            theirs = f"{ {'low': 'L_level'}[block] }.layers.{number}.{layer['.'.join(part)]}.{weight}"
        out[f"model.inner.{theirs}"] = tensor
    return out


FOUR = {"source": "generate", "size": 4, "train": 40, "val": 8, "test": 8}


def test_ours_in_the_authors_form_solves_is_evaluated_and_searched_like_ours(tmp_path: Path) -> None:
    ours = Ours(tmp_path, "sudoku-mini", FOUR, symbols=11)  # theirs have the digits to 9 at any size
    preset = tmp_path / "four.yaml"
    preset.write_text(yaml.safe_dump({"extends": "sudoku-mini", "data": FOUR}), encoding="utf-8")
    ours.run("--domain", str(preset))
    own, imported = Solver(ours.own), Solver(ours.out)
    puzzles = [own.domain.format(row) for row in own.domain.sample(3, 6)[0]]
    for one, other in zip(own.solve_many(puzzles), imported.solve_many(puzzles), strict=True):
        assert other.domain.name == "sudoku" and other.as_data(trace=True) == {
            **one.as_data(trace=True),
            "model": "imported",
        }
    searched = [Solver(folder, steps=2, search=3).solve_many(puzzles) for folder in (ours.own, ours.out)]
    assert [a.tokens.tolist() for a in searched[0]] == [a.tokens.tolist() for a in searched[1]]
    scores = [evaluate(folder, device="cpu", data_dir=tmp_path / "data") for folder in (ours.own, ours.out)]
    ema, published = (json.loads((each.folder / "eval.json").read_text("utf-8"))["scores"] for each in scores)
    assert list(published) == ["published"] and published["published"]["test"]["n"] == 8
    assert [each["steps"] for each in published["published"].values()] == [
        each["steps"] for each in ema["ema"].values()
    ]
    assert cli.main(["search", str(ours.out), "--limit", "2", "--restarts", "2", "--data-dir", str(tmp_path / "data"),
                     "--out", str(tmp_path / "searched")]) == 0  # fmt: skip


def test_the_authors_sudoku_is_ours_token_for_token(tmp_path: Path) -> None:
    """What build_sudoku_dataset writes: each character's digit, 0 where it is blank, and one more."""
    ours = Ours(tmp_path, "sudoku-paper", {}, symbols=11)
    ours.run("--domain", "sudoku-paper")
    solver = Solver(ours.out)
    puzzle = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
    assert solver.read(puzzle).tolist() == [1 + int(c.replace(".", "0")) for c in puzzle]
    assert {k: v.tolist() for k, v in weights_of(solver.opened.model).items()} == {
        k: v.tolist() for k, v in weights_of(ours.model).items()
    }


def test_the_newer_form_gives_the_averaged_weights(tmp_path: Path) -> None:
    ours = Ours(tmp_path, "sudoku-paper", {}, symbols=11)
    buffers = {"model.inner.puzzle_emb.weights", "model.inner.H_init", "model.inner.L_init"}
    online = {name: tensor if name in buffers else torch.zeros_like(tensor) for name, tensor in ours.weights.items()}
    averaged = {name: tensor for name, tensor in ours.weights.items() if name not in buffers}
    state: dict[str, Any] = {
        "model": {f"_orig_mod.{name}": tensor for name, tensor in online.items()},
        "optimizers": [{"state": {0: {"exp_avg": torch.zeros(3)}}, "param_groups": [{"lr": 1e-4, "params": [0]}]}],
        "step": 7,
    }
    read = {}
    for form, ema in {"none": None, "shadow": averaged, "inside": {"mu": 0.999, "shadow": averaged}}.items():
        torch.save(state if ema is None else {**state, "ema_helper": ema}, ours.checkpoint)
        ours.out = tmp_path / form
        ours.run("--seq-len", "81")
        read[form] = open_weights(ours.out).model.state_dict()
    assert not read["none"]["embed"].any() and read["none"]["table"].any()
    for form in ("shadow", "inside"):
        assert all(torch.equal(tensor, ours.model.state_dict()[name]) for name, tensor in read[form].items())


def test_a_domain_that_does_not_fit_is_refused(tmp_path: Path, hrm: Published) -> None:
    ours = Ours(tmp_path, "sudoku-paper", {}, symbols=11)
    for words, says in (
        (["--domain", "maze-mini"], "11 symbols, maze at these parameters 6"),
        (["--domain", "sudoku-paper", "--seq-len", "80"], "80 tokens, preset sudoku-paper has 81"),
        (["--domain", "sudoku-papre"], "unknown preset"),
    ):
        with pytest.raises(UserError, match=says) as error:
            ours.run(*words)
        assert "\n" not in str(error.value) and not ours.out.exists()


def test_a_folder_whose_domain_does_not_fit_is_refused(tmp_path: Path) -> None:
    ours = Ours(tmp_path, "sudoku-paper", {}, symbols=11)
    ours.run("--domain", "sudoku-paper")
    config = json.loads((ours.out / "config.json").read_text(encoding="utf-8"))
    config["data"] |= {"size": 4, "source": "generate"}
    (ours.out / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(UserError, match="11 symbols and 81 tokens cannot be one for sudoku of 6"):
        Solver(ours.out)


def test_h_may_have_other_layers_than_l(hrm: Published) -> None:
    """A third layer of H that adds nothing only normalises what is normalised: the published outputs stay."""
    hrm.arch["H_layers"] = 3
    hrm.configure()
    with pytest.raises(UserError, match="3 layers, the weights have 2"):
        hrm.run("--seq-len", "9")
    weights = torch.load(hrm.checkpoint, weights_only=True)
    for name, tensor in list(weights.items()):
        if "H_level.layers.1." in name:
            silent = any(part in name for part in ("o_proj", "down_proj"))
            weights[name.replace("layers.1", "layers.2")] = torch.zeros_like(tensor) if silent else tensor
    torch.save(weights, hrm.checkpoint)
    hrm.run("--seq-len", "9")
    model = open_weights(hrm.out).model
    assert (len(model.low.layers), len(model.high.layers)) == (2, 3)
    given_out(hrm, model)
    with torch.no_grad():
        model.get_parameter("high.layers.2.mlp.down.weight").fill_(0.1)
    with pytest.raises(AssertionError):
        given_out(hrm, model)
