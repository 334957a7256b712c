"""Keys: what names a stored result must go on meaning the same training."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from ponder.config.resolve import LABELS, WITHOUT_EFFECT, Config, resolve
from ponder.config.schema import EvalConfig, ModelConfig, TrainConfig
from ponder.domains.registry import BUILT_IN

PINNED = Path(__file__).parent / "defaults.json"
CLASSES: dict[str, type[BaseModel]] = {
    "model": ModelConfig,
    "train": TrainConfig,
    "eval": EvalConfig,
    **{f"data of {name}": domain.Params for name, domain in BUILT_IN.items()},
}


def defaults(cls: type[BaseModel]) -> dict[str, Any]:
    return {name: to_jsonable_python(field.default) for name, field in cls.model_fields.items()}


@pytest.mark.parametrize("section", CLASSES)
def test_the_defaults_that_keys_count_from_are_as_pinned(section: str) -> None:
    pinned, now = json.loads(PINNED.read_text(encoding="utf-8"))[section], defaults(CLASSES[section])
    for name in pinned:
        assert name in now and now[name] == pinned[name], (
            f"the default of {name} ({section}) was changed, and the keys of stored results count from it: set the new "
            f"value in the presets instead, or run `ponder study migrate` and pin it in {PINNED.name}"
        )
    assert set(now) == set(pinned), f"new settings: if their defaults mean `as before`, pin them in {PINNED}"


def test_the_key_ignores_labels_and_notices_the_rest() -> None:
    base = resolve("sudoku-mini")
    every = {"model.name": "mine", "train.save_every": 7, "train.data_workers": 2, "train.trackers": ["wandb"]}
    assert set(every) | {"preset", "scale", "about"} == {*LABELS, *WITHOUT_EFFECT}
    for path, value in every.items():
        section, name = path.split(".")
        assert resolve("sudoku-mini", None, {section: {name: value}}).key() == base.key()
    assert base.model_copy(update={"preset": "mine", "scale": "paper", "about": "mine"}).key() == base.key()
    others: list[dict[str, Any]] = [{"train": {"lr": 0.1}}, {"train": {"compile": "block"}}, {"eval": {"batch": 7}}]
    others += [{"data": {"seed": 1}}, {"data": {"train": 7}}, {"seed": 1}, {"model": {"bound": None}}]
    others += [{"train": {"log_every": 7}}]
    assert len({base.key(), *(resolve("sudoku-mini", None, each).key() for each in others)}) == 1 + len(others)


class Deeper(BaseModel):
    some: int = 1


class Later(ModelConfig):
    """A model with switches of a later day."""

    switch: bool = False
    inner: Deeper = Deeper()
    maybe: Deeper | None = None


def later(**changes: Any) -> Config:
    base = resolve("sudoku-mini")
    return base.model_copy(update={"model": Later(**base.model.model_dump(), **changes)})


def test_a_new_switch_that_is_off_changes_no_key_and_one_that_is_on_does() -> None:
    assert later().key() == resolve("sudoku-mini").key()
    on = [later(switch=True), later(inner=Deeper(some=2)), later(maybe=Deeper()), later(maybe=Deeper(some=2))]
    assert len({later().key(), *(config.key() for config in on)}) == 5


def test_every_parameter_of_a_joint_domain_counts() -> None:
    base = resolve("joint-mini")
    parts = {"sudoku": {"train": 7}}
    assert resolve("joint-mini", None, {"data": {"parts": parts}}).key() != base.key()
