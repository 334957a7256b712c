"""`ponder completion`: a script that completes verbs, options, presets, models and dotted overrides in a shell."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin
from unittest.mock import patch

from ponder.base.errors import UserError
from ponder.commands import VERBS

SHELLS = ("bash", "zsh")
EPILOG = """\
bash: ponder completion bash > ~/.local/share/bash-completion/completions/ponder
zsh:  ponder completion zsh > DIR/_ponder, DIR being one of $fpath
Write it again after an update: it holds the names that there are now."""


def main(args: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="ponder completion",
        description="Print what makes a shell complete verbs, options, presets, models and overrides.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=SHELLS, help="for which shell")
    shell = parser.parse_args(args).shell
    import shtab

    print(shtab.complete(whole_parser(), shell=shell))


# Parsers of the verbs -------------------------------------------------------------------------------------------------


class _Found(Exception):
    """Carries the parser."""


def parser_of(verb: str) -> argparse.ArgumentParser:
    """The parser that a verb's main makes: it is caught when it is about to read the command line."""

    def caught(self: argparse.ArgumentParser, *_: object) -> None:
        raise _Found(self)

    with (
        patch.object(argparse.ArgumentParser, "parse_known_args", caught),
        patch.object(argparse.ArgumentParser, "parse_known_intermixed_args", caught),
    ):
        try:
            VERBS[verb].main([])
        except _Found as found:
            parser: argparse.ArgumentParser = found.args[0]
            return parser
    raise AssertionError(f"ponder {verb} reads no command line")


def whole_parser() -> argparse.ArgumentParser:
    """All verbs as one parser, whose arguments know the names they take."""
    whole = argparse.ArgumentParser(prog="ponder")
    verbs = whole.add_subparsers()
    names, settings = _names(), dict(_settings())
    for verb, about in VERBS.items():
        parser = verbs.add_parser(verb, help=about.about)
        try:
            parser = parser_of(verb)
        except UserError:  # its extra is not installed
            continue
        for section in OVERRIDES.get(verb, ()):
            for name, values in settings.items():
                if name.startswith(f"--{section}"):
                    parser.add_argument(name, choices=values or None)
        _give_names(verb, parser, names)
        verbs.choices[verb] = parser
    return whole


# Names ----------------------------------------------------------------------------------------------------------------

OVERRIDES = {
    "train": ("data.", "model.", "train.", "eval.", "seed"),
    "presets": ("data.", "model.", "train.", "eval.", "seed"),
    "data": ("data.",),
    "eval-llm": ("data.",),
}
"""Verb -> the sections whose fields it takes as --SECTION.FIELD."""
TAKES = {
    ("train", "preset"): "presets",
    ("train", "model"): "models",
    ("presets", "name"): "presets",
    ("presets", "model"): "models",
    ("data", "what"): "presets",
    ("cost", "preset"): "presets and models",
    ("domain", "name"): "domains",
    ("solve", "model"): "solvers",
    ("zoo", "words"): "zoo",
    **{(verb, "checkpoint"): "zoo" for verb in ("eval", "policies", "search", "trace", "export")},
    **{(verb, "domain"): "presets" for verb in ("eval", "policies", "search", "trace", "eval-llm")},
    **{(verb, "model"): "zoo" for verb in ("serve", "mcp")},
    **{("study", dest): "studies" for dest in ("name", "names")},
}
"""Verb and argument -> the kind of name it takes."""
FOLDERS = ("DIR", "RUN", "A", "B")
"""What stands for a folder where an argument is a path; all else is a file."""


def _names() -> dict[str, list[str]]:
    from ponder.config.resolve import model_names, preset_names
    from ponder.domains import registry
    from ponder.inference.weights import zoo_names
    from ponder.studies import spec

    zoo, domains = list(zoo_names()), list(registry.every())
    models = [model for model in model_names() if not model.endswith("-mini")]
    return {
        "presets": preset_names(),
        "models": models,
        "presets and models": [*models, *preset_names(), "all"],
        "domains": domains,
        "zoo": zoo,
        "solvers": [*domains, *zoo],
        "studies": [*spec.names(), "all"],
    }


def _settings() -> Iterator[tuple[str, list[str]]]:
    """Every override, and the values it may have where they can be listed."""
    from pydantic import BaseModel

    from ponder.config.schema import EvalConfig, ModelConfig, TrainConfig
    from ponder.domains import registry

    yield "--seed", []
    yield "--data.seed", []
    sections: list[tuple[str, type[BaseModel]]] = [("model", ModelConfig), ("train", TrainConfig), ("eval", EvalConfig)]
    for section, cls in [*sections, *(("data", domain.Params) for domain in registry.every().values())]:
        for name, field in cls.model_fields.items():
            kind = field.annotation
            values = ["true", "false"] if kind is bool else [str(v) for v in get_args(kind)]
            yield f"--{section}.{name}", values if kind is bool or get_origin(kind) is Literal else []


def _give_names(verb: str, parser: argparse.ArgumentParser, names: Mapping[str, list[str]]) -> None:
    import shtab

    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                _give_names(verb, each, names)
        elif action.choices is None:
            kind = TAKES.get((verb, action.dest))
            paths: list[Any] = []
            if action.type is Path:
                paths = shtab.Required.DIRECTORY if action.metavar in FOLDERS else shtab.Required.FILE
            elif kind in ("zoo", "solvers"):
                paths = shtab.Required.DIRECTORY
            action.choices = [*(names[kind] if kind else []), *paths] or None
