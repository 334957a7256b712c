"""The zoo: what a card says is what the model does."""

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from ponder import Solver, checkpoint, cli
from ponder.base import files
from ponder.base.errors import UserError
from ponder.base.runtime import Runtime
from ponder.config.resolve import Config, parse_overrides, resolve
from ponder.config.schema import SearchPlan
from ponder.data import Dataset
from ponder.domains.sudoku.generate import rate
from ponder.inference.engine import Engine
from ponder.inference.search import search
from ponder.inference.weights import ZOO, zoo_names
from ponder.training.loop import Limits
from ponder.training.runs import train_in
from ponder.zoo import cards, making
from tests.conftest import tiny
from tests.support.disk import files_of_at_most

CONFIG = tiny(train={"updates": 8, "eval_every": 4})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, data_dir: Path, dataset: Dataset) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    train_in(CONFIG, folder, data_dir, Runtime(torch.device("cpu")), Limits(), quiet=True)
    return folder


@pytest.fixture(scope="module")
def added(run: Path, data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return making.add(run, "tiny-one", "a toy", data_dir, tmp_path_factory.mktemp("zoo"))


def retold(command: str) -> Config:
    """The configuration that a `ponder train` command stands for."""
    ponder, train, preset, *rest = shlex.split(command)
    assert (ponder, train) == ("ponder", "train")
    model = rest[rest.index("--model") + 1] if "--model" in rest else None
    if model is not None:
        at = rest.index("--model")
        rest = rest[:at] + rest[at + 2 :]
    return resolve(preset, model, parse_overrides(rest))


def test_a_model_in_the_zoo_is_the_run_it_came_from(run: Path, added: Path) -> None:
    stored, best = load_file(added / "weights.safetensors"), load_file(run / "best" / "ema.safetensors")
    assert stored.keys() == best.keys() and all(torch.equal(stored[k], best[k]) for k in best)
    assert (added / "config.json").read_bytes() == (run / "config.json").read_bytes()
    assert all(file.stat().st_mode & 0o777 == 0o644 for file in added.iterdir())
    puzzle = "1... ..2. .3.. ...4"
    assert Solver(added).solve(puzzle).text == Solver(run).solve(puzzle).text


@pytest.mark.parametrize("name", ["weights.safetensors", "config.json", "card.json"])
def test_a_bit_that_flips_in_a_model_of_the_zoo_is_noticed(name: str, added: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(added, tmp_path / "tiny-one")
    content = bytearray((folder / name).read_bytes())
    if name == "weights.safetensors":
        content[-1] ^= 1
    else:  # a digit, which leaves it readable
        at = content.index(b'max_steps": ') + len(b'max_steps": ')
        content[at] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(UserError, match=rf"{name} (is not what its card says|was changed after it was written)"):
        cards.read_card(folder)
        Solver(folder)


def test_a_disk_that_is_full_at_the_weights_is_said_in_one_line(
    run: Path, added: Path, data_dir: Path, tmp_path: Path
) -> None:
    weights = (added / "weights.safetensors").stat().st_size
    with pytest.raises(UserError, match="cannot write") as error, files_of_at_most(weights - 1):
        making.add(run, "tiny-one", "", data_dir, tmp_path / "zoo")
    assert "\n" not in str(error.value) and not (tmp_path / "zoo").exists()


def test_a_key_too_many_deep_in_a_card_is_named(added: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(added, tmp_path / "tiny-one")
    card = json.loads((folder / "card.json").read_bytes())
    card["accuracy"]["test"]["exact"]["valeu"] = 1.0
    cards.write_card(folder, card)
    with pytest.raises(UserError, match=r"unknown key 'accuracy\.test\.exact\.valeu': did you mean 'value'\?"):
        cards.read_card(folder)


def test_a_model_is_there_while_another_takes_its_name(added: Path, user_zoo: Path) -> None:
    """Whoever puts the new one there is killed between its two renames; then the same is done again."""
    zoo = user_zoo
    shutil.copytree(added, zoo / "tiny-one")
    (zoo / "tiny-one").rename(zoo / ".tiny-one.old")
    assert Solver("tiny-one").opened.sha256 == files.sha256(added / "weights.safetensors")
    assert "tiny-one" in {card["name"] for card in cards.list_cards()}
    making.put(added, zoo / "tiny-one")
    assert [path.name for path in zoo.iterdir()] == ["tiny-one"] and "tiny-one" in zoo_names()


def test_the_card_says_what_the_model_does(run: Path, added: Path, dataset: Dataset) -> None:
    card = json.loads((added / "card.json").read_text(encoding="utf-8"))
    solver = Solver(added)
    source = dataset.source("test")
    batch = source.fetch(np.arange(len(source)), np.zeros(len(source), dtype=np.int64))
    score = card["accuracy"]["test"]
    assert score["n"] == len(source) == 50
    forced = Engine(solver.opened.model, solver.domain, budget=card["max_steps"]).run(batch.inputs)
    assert score["exact"]["value"] == pytest.approx((forced.answers == batch.labels).all(axis=1).mean())
    valid = solver.domain.check(batch.inputs, forced.answers).mean()
    assert score["valid"]["value"] == pytest.approx(valid)
    assert card["by_step"][card["max_steps"] - 1] == {"step": card["max_steps"], "valid": pytest.approx(valid)}
    solved = np.mean([answer.verified for answer in solver.solve_tokens(list(batch.inputs))])
    assert score["solved"]["value"] == pytest.approx(solved)
    assert len(card["by_step"]) == solver.steps
    assert card["data"]["hash"] == dataset.hash and card["data"]["counts"] == dict(dataset.counts)
    assert card["limits"] == "a toy" and card["recipe"]["updates"] == 8
    assert card["recipe"]["chosen_update"] == checkpoint.read(run / "best").state["update"]
    assert retold(card["command"]).key() == CONFIG.key()


def test_the_card_says_what_search_and_the_classical_methods_do(added: Path, dataset: Dataset) -> None:
    card, solver = cards.read_card(added), Solver(added)
    inputs = (
        dataset.source("test").fetch(np.arange(dataset.counts["test"]), np.zeros(dataset.counts["test"], int)).inputs
    )
    # A puzzle of the search by itself, with its number in the split, ends as it does among the others.
    plan = SearchPlan(10, CONFIG.model.max_steps, 0.0, vary="suppose")
    each = [
        search(solver.opened.model, solver.domain, puzzle[None], plan, numbers=np.array([i]))
        for i, puzzle in enumerate(inputs)
    ]
    said = card["search"]
    assert said["n"] == len(inputs) and (said["restarts"], said["steps"], said["vary"]) == (10, plan.steps, "suppose")
    assert card["search"]["solved"]["value"] == pytest.approx(np.mean([found.accepted[0] for found in each]))
    assert card["search"]["compute"] == pytest.approx(np.mean([found.compute[0] for found in each]), abs=0.05)
    fallback, puzzles = card["fallback"], inputs[: making.TIMED]
    assert fallback["n"] == len(puzzles) and min(fallback[f"{name}_ms"] for name in ("exact", "alone", "guided")) > 0
    assert fallback["alone_guesses"] == pytest.approx(np.mean([rate(4, puzzle) for puzzle in puzzles]))
    console = Console(record=True, width=200)
    cards.print_card(console, card)
    words = console.export_text()
    assert f"with 10 suppositions of {plan.steps} steps" in words and "guided by the model" in words


def test_a_model_with_a_card_is_measured_anew(added: Path, data_dir: Path, tmp_path: Path) -> None:
    """The training is known from the card, all else is measured; a card that said something else is set right."""
    card = cards.read_card(added)
    folder = shutil.copytree(added, tmp_path / "before")
    without = {key: value for key, value in card.items() if key not in ("search", "hard", "fallback", "seal")}
    wrong = {**without["accuracy"]["test"], "valid": {"value": 0.5, "low": 0.4, "high": 0.6}}
    cards.write_card(folder, {**without, "accuracy": {"test": wrong}})
    again = cards.read_card(making.add(folder, "again", "", data_dir, tmp_path / "zoo"))
    assert again["search"] == card["search"] and again["hard"] == card["hard"] and again["fallback"]
    for key in ("accuracy", "recipe", "command", "limits", "protocol", "sha256", "by_step", "data"):
        assert again[key] == card[key], key


@pytest.mark.parametrize(
    "config",
    [
        resolve("sudoku-mini", "ponder-mlp"),
        resolve("sudoku-mini", "hrm", {"seed": 3, "train": {"clip": None, "lr": 1e-3}}),
        resolve("life-mini", None, {"eval": {"splits": ["val", "unseen"]}, "data": {"boundary": "torus"}}),
    ],
)
def test_the_command_of_a_card_gives_its_configuration(config: Config) -> None:
    assert retold(making.command(config)).key() == config.key()


def test_the_command_is_short() -> None:
    assert making.command(resolve("sudoku-mini", "ponder-mlp")) == "ponder train sudoku-mini --model ponder-mlp"
    assert making.command(resolve("sudoku-mini", None, {"seed": 2})) == "ponder train sudoku-mini --seed 2"


@pytest.mark.parametrize("name", zoo_names())
def test_what_is_shipped_is_whole(name: str) -> None:
    card: dict[str, Any] = json.loads((ZOO / name / "card.json").read_text(encoding="utf-8"))
    weights = ZOO / name / "weights.safetensors"
    solver = Solver(name)
    assert card["name"] == name and card["domain"] == solver.domain.name
    assert card["sha256"] == files.sha256(weights) and card["bytes"] == weights.stat().st_size < 5e6
    assert card["parameters"] == sum(p.numel() for p in solver.opened.model.parameters())
    assert solver.opened.config is not None and retold(card["command"]).key() == solver.opened.config.key()
    assert card["limits"] and card["recipe"]["seconds"] > 0 and card["recipe"]["cores"] > 0
    for score in card["accuracy"].values():
        assert score["n"] >= 100
        for share in (score["exact"], score["valid"], score["solved"]):
            assert share["low"] <= share["value"] <= share["high"] and share["low"] < share["high"]
    assert [each["step"] for each in card["by_step"]] == list(range(1, len(card["by_step"]) + 1))


def test_the_listing_and_the_card_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["zoo"]) == 0
    listing = capsys.readouterr().out
    assert all(name in listing for name in zoo_names())
    assert cli.main(["zoo", "sudoku-4x4"]) == 0
    card, words = json.loads((ZOO / "sudoku-4x4" / "card.json").read_text(encoding="utf-8")), capsys.readouterr().out
    assert card["command"] in words and f"{card['parameters']:,}" in words and card["data"]["hash"] in words
    assert cli.main(["zoo", "--json", "sudoku-4x4"]) == 0
    assert json.loads(capsys.readouterr().out) == card


@pytest.fixture
def user_zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    return tmp_path / "share" / "ponder" / "zoo"


def test_a_model_is_added_to_the_users_own_zoo_and_not_to_the_package(
    run: Path, data_dir: Path, user_zoo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shipped = sorted(ZOO.rglob("*"))
    assert cli.main(["zoo", "add", str(run), "my-own", "--data-dir", str(data_dir)]) == 0
    files = [sorted(path.name for path in zoo.iterdir()) for zoo in (user_zoo / "my-own", ZOO / "sudoku-4x4")]
    assert files[0] == files[1]
    assert sorted(ZOO.rglob("*")) == shipped and "my-own" in zoo_names() and "sudoku-4x4" in zoo_names()
    assert Solver("my-own").name == "my-own"
    assert cli.main(["zoo", "add", str(run), "sudoku-4x4", "--data-dir", str(data_dir)]) == 2
    assert "comes with ponder" in capsys.readouterr().err


def test_a_bad_entry_is_left_out_with_one_line(
    added: Path, user_zoo: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = json.loads((added / "config.json").read_text(encoding="utf-8"))
    entries = {
        "unknown-domain": json.dumps({**config, "data": {"domain": "latin"}}),
        "not-json": "{",
        "no-weights": json.dumps(config),
    }
    for name, text in entries.items():
        (user_zoo / name).mkdir(parents=True)
        (user_zoo / name / "config.json").write_text(text, encoding="utf-8")
    shutil.copy(added / "weights.safetensors", user_zoo / "unknown-domain")
    assert cli.main(["solve", "sudoku", "1... ..2. .3.. ...4"]) in (0, None)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3 and all(any(name in line for line in lines) for name in entries)
    assert any("unknown domain 'latin'" in line and "--domain-file" in line for line in lines)
    assert cli.main(["zoo"]) == 0
    listing = capsys.readouterr()
    assert "sudoku-4x4" in listing.out and len(listing.err.splitlines()) == 2  # weights are not looked at
    assert cli.main(["solve", "unknown-domain", "x"]) == 2  # asked for by name, it is an error


def test_a_folder_without_a_card_is_listed_as_such(added: Path, user_zoo: Path) -> None:
    bare = user_zoo / "bare"
    bare.mkdir(parents=True)
    (bare / "config.json").write_bytes((added / "config.json").read_bytes())
    card = next(card for card in cards.list_cards() if card["name"] == "bare")
    assert card["accuracy"] == {} and card["domain"] == "sudoku"
    assert cards.table([card]).row_count == 1


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["nothing"], "unknown zoo model 'nothing'"),
        (["add", "nowhere"], "ponder zoo add RUN NAME"),
        (["add", "nowhere", "x"], "not a run folder"),
        (["add", ".", "../x"], "no name for the zoo"),
        (["a", "b"], "too much"),
    ],
)
def test_misuse_is_one_line(args: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["zoo", *args]) == 2
    err = capsys.readouterr().err
    assert words in err and err.count("\n") == 1


def test_an_untrained_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny().flat()), encoding="utf-8")
    with pytest.raises(UserError, match="holds no checkpoint"):
        making.add(tmp_path, "x", "", tmp_path, tmp_path / "zoo")
    assert not (tmp_path / "zoo").exists()


def test_a_model_that_is_being_written_is_not_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("maze-9x9", ".maze-9x9-part"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}", encoding="utf-8")
    monkeypatch.setattr("ponder.inference.weights.ZOO", tmp_path)
    assert zoo_names() == ["maze-9x9"]
