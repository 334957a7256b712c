"""Configuration: every preset resolves, and mistakes are named."""

from pathlib import Path

import pytest

from ponder.base.errors import UserError
from ponder.config import resolve as configuration
from ponder.config.resolve import from_flat, parse_overrides, resolve


@pytest.mark.parametrize("preset", configuration.preset_names())
def test_every_preset_resolves_with_every_model(preset: str) -> None:
    for model in [None, *(m for m in configuration.model_names() if not m.endswith("-mini"))]:
        config = resolve(preset, model)
        assert model is None or config.model.name == model
        assert from_flat(config.flat()) == config


def test_no_two_recipes_are_the_same() -> None:
    """A mini form that changes nothing is not needed: the recipe itself is taken."""
    recipes = [configuration.model_preset(name, "paper") for name in configuration.model_names()]
    assert all(recipes[i] not in recipes[:i] for i in range(len(recipes)))


def test_mini_presets_keep_the_rules_of_the_design() -> None:
    """Warm-up at most 5% of the updates, EMA window at most 10%."""
    for preset in configuration.preset_names():
        train = resolve(preset).train
        if resolve(preset).scale == "mini":
            assert train.updates is not None
            assert train.warmup <= 0.05 * train.updates, preset
            assert train.ema is None or 1 / (1 - train.ema) <= 0.1 * train.updates, preset


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--train.lr", "3e-4"], 3e-4),
        (["--train.lr=3e-4"], 3e-4),
    ],
)
def test_overrides_reach_the_configuration(words: list[str], expected: float) -> None:
    assert resolve("sudoku-mini", None, parse_overrides(words)).train.lr == expected


@pytest.mark.parametrize("word", ["auto", "off", "block"])
def test_compile_takes_the_words_it_names(word: str) -> None:
    assert resolve("sudoku-mini", None, parse_overrides(["--train.compile", word])).train.compile == word


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--train.lrr", "1"], "did you mean 'lr'"),
        (["--lr", "1"], "--train.lr"),
        (["--trian.lr", "1"], "--train.lr"),
        (["--train.lr", "fast"], "train.lr"),
        (["--train.lr"], "no value"),
        (["--model.heads", "7"], "not a multiple"),
        (["--model.h_horizon", "9"], "horizon"),
        (["--data.sise", "4"], "did you mean 'size'"),
        (["--data.size", "5"], "data.size"),
        (["--train.epochs", "3"], "exactly one"),
        (["--train.accumulate", "3"], "not a multiple"),
        (["--eval.select", "luck"], "eval.select"),
        (["oops"], "oops"),
    ],
)
def test_mistakes_are_named_in_one_line(words: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        resolve("sudoku-mini", None, parse_overrides(words))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_unknown_preset_and_model_name_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'sudoku-mini'"):
        resolve("sudoku-mimi")
    with pytest.raises(UserError, match="did you mean 'hrm'"):
        resolve("sudoku-mini", "hmr")


def test_a_recipe_is_what_the_plain_preset_trains(tmp_path: Path) -> None:
    """On top of the preset that has it and of its model's own values; beneath what a preset extends it with, and out of
    the way of another model."""
    base = tmp_path / "base.yaml"
    base.write_text(
        "extends: maze-mini\nmodel: {width: 32}\ntrain: {updates: 7, lr: 0.5}\n"
        "recipe: {model: ponder-short, train: {updates: 9}}\n",
        encoding="utf-8",
    )
    plain, other = resolve(str(base)), resolve(str(base), "hrm")
    assert (plain.model.name, plain.model.h_cycles, plain.model.width) == ("ponder-short", 2, 32)
    assert (plain.train.updates, plain.train.lr, plain.train.explore) == (9, 0.5, 1.0)
    assert (other.model.name, other.train.updates, other.train.lr) == ("hrm", 7, 0.5)
    assert resolve(str(base), None, {"train": {"updates": 3}}).train.updates == 3

    child = tmp_path / "child.yaml"
    child.write_text("extends: sudoku-mini\ntrain: {updates: 11}\nmodel: {max_steps: 5}\n", encoding="utf-8")
    parent, extended = resolve("sudoku-mini"), resolve(str(child))
    assert (extended.train.updates, extended.model.max_steps) == (11, 5) != (parent.train.updates, 8)
    assert (extended.model.name, extended.train.lr) == (parent.model.name, parent.train.lr)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("recipe: {model: }", "recipe.model: should be a name, got None"),
        ("recipe: {model: {batch: 64}}", "recipe.model: should be a name, got {'batch': 64}"),
        ("extends: sudoku-mini\ndata: 5\nrecipe: {model: ponder}", "data: "),
        ("data: {domain: [1]}\nrecipe: {model: ponder}", "unknown domain '[1]'"),
        ("extends: {a: 1}", "preset"),
        ("extends: 7", "preset"),
    ],
)
def test_a_recipe_or_parent_that_is_none_is_named_in_one_line(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as told:
        resolve(str(file))
    assert said in str(told.value) and "\n" not in str(told.value)


@pytest.mark.parametrize("published", ["5", "{sudoku: 5}", "[sudoku]"])
def test_what_was_published_that_holds_no_keys_is_named(published: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"extends: ponder\npublished: {published}\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"published(\.sudoku)?: should hold keys and values, got "):
        configuration.model_preset(str(file), "paper", "sudoku")


def test_the_recipe_of_a_preset_is_that_of_its_about_line() -> None:
    """`ponder train PRESET`, nothing added, trains what docs/mini.md reports: no mini preset speaks of a --model."""
    for name in configuration.preset_names():
        assert "--model" not in resolve(name).about, name


def test_baselines_have_their_published_values_at_paper_scale_and_the_tasks_at_mini() -> None:
    """The authors' READMEs: Sudoku and Maze with weight decay 1.0, puzzle rate 1e-4 and so many epochs of 1,000."""
    for name, epochs in (("hrm", 20_000), ("trm", 50_000), ("trm-mlp", 50_000), ("dense", 50_000)):
        for preset in ("sudoku-paper", "maze-paper"):
            train = configuration.resolve(preset, name).train
            assert (train.weight_decay, train.table_lr, train.lr, train.lr_min_ratio) == (1.0, 1e-4, 1e-4, 1.0)
            assert train.updates == -(-epochs * 1000 // 768) and train.epochs is None and train.beta2 == 0.95
        arc = configuration.resolve("arc1-paper", name)
        assert arc.train.epochs == 100_000 and arc.train.table_lr == 0.01
        assert arc.model.max_steps == (1 if name == "dense" else 16)
        life = configuration.resolve("life-paper", name).train
        assert (life.lr_min_ratio, life.weight_decay, life.epochs) == (1.0, 0.1, 2000)
    urm = configuration.resolve("sudoku-paper", "urm").train
    assert (urm.batch, urm.updates, urm.weight_decay) == (128, 50_000 * 1000 // 128, 1.0)
    assert configuration.resolve("arc2-paper", "urm").train.epochs == 200_000
    ponder = configuration.resolve("sudoku-paper", "ponder").train
    assert (ponder.epochs, ponder.weight_decay, ponder.table_lr) == (2000, 0.1, 0.01)
    plain = configuration.resolve("sudoku-mini", "ponder").train
    for name in ("hrm", "trm", "urm", "dense"):
        mini = configuration.resolve("sudoku-mini", name).train
        assert (mini.lr, mini.weight_decay, mini.updates) == (plain.lr, plain.weight_decay, plain.updates)
