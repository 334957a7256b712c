"""Configuration: every preset resolves, and mistakes are named."""

import pytest

from ponder.base.errors import UserError
from ponder.config import resolve as configuration
from ponder.config.resolve import from_flat, parse_overrides, resolve


@pytest.mark.parametrize("preset", configuration.preset_names())
def test_every_preset_resolves_with_every_model(preset: str) -> None:
    for model in [None, *(m for m in configuration.model_names() if not m.endswith("-mini"))]:
        config = resolve(preset, model)
        assert config.model.name == (model or "ponder")
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
