"""Writes docs/reference.md, docs/puzzles, docs/config.schema.json and README's tables: `python -m tools.reference`."""

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from ponder.commands import VERBS
from ponder.commands.completion import parser_of
from ponder.config.resolve import PRESETS, Config, model_names, resolve
from ponder.config.schema import EvalConfig, ModelConfig, TrainConfig
from ponder.domains.registry import BUILT_IN
from tools import puzzles, readme

DOCS = Path(__file__).parents[1] / "docs"
SECTIONS: dict[str, type[BaseModel]] = {"model": ModelConfig, "train": TrainConfig, "eval": EvalConfig}
Schema = Mapping[str, Any]
INTRODUCTION = """\
Every field of the configuration, every parameter of the domains, every preset, recipe and verb. Made from the code by
`python -m tools.reference`, as is [config.schema.json](config.schema.json), with which an editor checks and completes a
preset's YAML file: put `# yaml-language-server: $schema=PATH/docs/config.schema.json` into its first line.

A field is set by a preset, on the command line (`--train.lr 1e-3`) or from Python (`train={"lr": 1e-3}`)."""


# The JSON schema ------------------------------------------------------------------------------------------------------


def schema() -> dict[str, Any]:
    """Of a preset's YAML file. Every key may be left out: what a preset does not say is the default's."""
    classes: list[type[BaseModel]] = [*SECTIONS.values(), Config, *(domain.Params for domain in BUILT_IN.values())]
    _, common = models_json_schema(
        [(each, "validation") for each in dict.fromkeys(classes)], ref_template="#/$defs/{model}"
    )
    defs: dict[str, Any] = common["$defs"]
    top, data = defs.pop("Config")["properties"], defs.pop("DataConfig")["properties"]
    kinds = [
        {
            "title": name,
            "properties": {
                "domain": {"const": name, "description": data["domain"]["description"]},
                "seed": data["seed"],
                **defs[domain.Params.__name__]["properties"],
            },
            "additionalProperties": False,
        }
        for name, domain in BUILT_IN.items()
    ]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "a preset of ponder",
        "type": "object",
        "properties": {
            "extends": {"type": "string", "description": "the preset it is a difference from"},
            **{key: top[key] for key in ("about", "scale", "seed")},
            "data": {"type": "object", "anyOf": kinds},
            **{section: {"$ref": f"#/$defs/{cls.__name__}"} for section, cls in SECTIONS.items()},
            "recipe": {
                "type": "object",
                "description": "what is trained when no --model is given: a model preset, and settings that go with it",
                "properties": {
                    "model": {"type": "string"},
                    "but": {
                        "$ref": f"#/$defs/{SECTIONS['model'].__name__}",
                        "description": "where the model differs from that preset",
                    },
                    "data": {"type": "object", "anyOf": kinds},
                    **{name: {"$ref": f"#/$defs/{SECTIONS[name].__name__}"} for name in ("train", "eval")},
                },
                "additionalProperties": False,
            },
            "published": {
                "type": "object",
                "description": "in a model preset: domain -> what its authors set for it, at paper scale",
                "additionalProperties": {
                    "type": "object",
                    "properties": {name: {"$ref": f"#/$defs/{SECTIONS[name].__name__}"} for name in ("model", "train")},
                    "additionalProperties": False,
                },
            },
        },
        "additionalProperties": False,
        "$defs": defs,
    }


# The page -------------------------------------------------------------------------------------------------------------


def page() -> str:
    lines = [
        "# Reference",
        "",
        INTRODUCTION,
        "",
        "## Configuration",
        "",
        *_fields({"seed": Config.model_json_schema()["properties"]["seed"]}),
    ]
    for section, cls in SECTIONS.items():
        lines += [f"### {section}", "", *_fields(cls.model_json_schema()["properties"], section)]
    lines += ["## Domains", "", "The section `data` holds `domain`, `seed` and the parameters of the domain.", ""]
    for name, domain in BUILT_IN.items():
        lines += [f"### {name}", "", f"{domain.title}.", ""]
        lines += _fields(domain.Params.model_json_schema()["properties"], "data")
    shipped = sorted(path.stem for path in PRESETS.glob("*.yaml"))
    lines += ["## Presets", "", *_table(("preset", "about"), ((f"`{name}`", resolve(name).about) for name in shipped))]
    lines += ["## Recipes", "", "`--model NAME` puts one on top of a preset; on one of mini scale, its mini form.", ""]
    lines += _table(("recipe", "what it is"), ((f"`{name}`", _comment(name)) for name in model_names()))
    lines += ["## Verbs", ""]
    for verb in VERBS:
        lines += [f"### ponder {verb}", "", *_parser_lines(parser_of(verb))]
    return "\n".join(lines).rstrip() + "\n"


def _comment(recipe: str) -> str:
    """What the file says about itself in its first lines."""
    text = (PRESETS / "models" / f"{recipe}.yaml").read_text(encoding="utf-8")
    comment = " ".join(line[1:].strip() for line in text.splitlines() if line.startswith("#"))
    return comment or f"`{recipe.removesuffix('-mini')}` at mini scale"


def _fields(properties: Schema, section: str = "") -> list[str]:
    rows = []
    for name, field in properties.items():
        default = "" if "$ref" in field else _value(field.get("default"))
        rows.append((f"`{section}.{name}`" if section else f"`{name}`", _allowed(field), default, field["description"]))
    return _table(("field", "allowed", "default", "what it is"), rows)


def _allowed(field: Schema) -> str:
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if "anyOf" in field:
        return " or ".join(_allowed(each) for each in field["anyOf"])
    if "$ref" in field:
        return "the parameters of each"
    if field["type"] == "array":
        return f"list of {_allowed(field['items'])}"
    words = {"integer": "whole number", "number": "number", "boolean": "true, false", "string": "text", "null": "null"}
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    limits = [f"{sign} {field[key]}" for key, sign in signs.items() if key in field]
    return " ".join([words[field["type"]], *limits])


def _value(value: Any) -> str:
    return f"`{json.dumps(value)}`" if not isinstance(value, str) else f"`{value}`"


# Verbs ----------------------------------------------------------------------------------------------------------------


def _parser_lines(parser: argparse.ArgumentParser) -> list[str]:
    lines = [f"{parser.description}", ""] if parser.description else []
    rows, below = [], list[str]()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {each.dest: each.help for each in action._choices_actions}
            for name, each in action.choices.items():
                below += [f"#### {each.prog}", "", f"{helps[name]}", "", *_parser_lines(each)]
        elif action.help != argparse.SUPPRESS and not isinstance(action, argparse._HelpAction):
            rows.append(_argument(action))
    lines += _table(("argument", "default", "what it is"), rows) if rows else []
    return [*lines, *([parser.epilog, ""] if parser.epilog else []), *below]


def _argument(action: argparse.Action) -> tuple[str, str, str]:
    value = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
    assert isinstance(value, str)
    if not action.option_strings:
        return f"`{value}`", "", action.help or ""
    taken = "" if action.nargs == 0 else f" {value}"
    default = "" if action.default in (None, False, "", []) or action.nargs == 0 else f"`{action.default}`"
    return f"`{', '.join(action.option_strings)}{taken}`", default, action.help or ""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|').replace('%%', '%') for cell in cells)} |"

    return [line(head), "|" + "---|" * len(head), *map(line, rows), ""]


def files() -> Iterator[tuple[Path, str]]:
    yield DOCS / "reference.md", page()
    yield from puzzles.pages()
    yield readme.page()
    yield DOCS / "config.schema.json", json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for path, text in files():
        path.write_text(text, encoding="utf-8")
