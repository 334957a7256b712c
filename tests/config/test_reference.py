"""docs/reference.md and docs/config.schema.json say what the code says; the schema knows good presets from bad ones."""

import argparse
import json
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from ponder.commands import VERBS
from ponder.commands.completion import parser_of
from ponder.config.resolve import PRESETS
from tools import reference

SCHEMA = json.loads((reference.DOCS / "config.schema.json").read_text(encoding="utf-8"))
FILES = sorted(PRESETS.rglob("*.yaml"))


def test_the_stored_files_are_current() -> None:
    for path, text in reference.files():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is old: run `python -m tools.reference`"


@pytest.fixture(scope="module")
def page() -> str:
    return reference.page()


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_that_help_shows_is_on_the_page(verb: str, page: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = parser_of(verb)
    assert isinstance(parser, argparse.ArgumentParser) and parser.prog == f"ponder {verb}"
    _, _, rest = page.partition(f"### ponder {verb}\n")
    section = rest.partition("\n### ")[0]
    parser.print_help()
    for word in capsys.readouterr().out.split():
        if word.startswith("--") and word != "--help" and word.strip("[],.:").replace("-", "").isalpha():
            assert word.strip("[],.:") in section


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_shipped_presets_are_valid(path: Path) -> None:
    jsonschema.validate(yaml.safe_load(path.read_text(encoding="utf-8")), SCHEMA)


@pytest.mark.parametrize(
    "preset",
    [
        {"trian": {}},
        {"train": {"lrr": 1}},
        {"train": {"lr": 0}},
        {"train": {"lr": "fast"}},
        {"model": {"states": 3}},
        {"scale": "huge"},
        {"data": {"domain": "chess"}},
        {"data": {"domain": "maze", "size": 6}},
        {"data": {"domain": "sudoku", "size": 5}},
        {"data": {"domain": "joint", "parts": {"maze": {"hight": 3}}}},
    ],
)
def test_mistakes_are_refused(preset: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(preset, SCHEMA)


def test_it_is_a_schema_and_every_field_says_what_it_is() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    for section in (*SCHEMA["$defs"].values(), *SCHEMA["properties"]["data"]["anyOf"]):
        for name, field in section["properties"].items():
            assert "$ref" in field or field.get("description"), f"{section['title']}.{name}"
