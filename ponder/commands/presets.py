"""`ponder presets`: what there is to train, and what a name resolves to."""

import argparse
from collections.abc import Sequence

import yaml
from rich.console import Console

from ponder.base.console import plain_table


def main(args: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="ponder presets", description="List presets and models, or show one preset with every value."
    )
    parser.add_argument("name", nargs="?", help="a preset, or a YAML file of that form")
    parser.add_argument("--model", help="put another model's recipe on top, a name or a YAML file")
    known, overrides = parser.parse_known_args(args)
    from ponder.config.resolve import parse_overrides, resolve

    if known.name is None:
        print_all()
    else:
        config = resolve(known.name, known.model, parse_overrides(overrides))
        print(yaml.safe_dump(config.flat(), sort_keys=False, default_flow_style=None, width=110), end="")


def print_all() -> None:
    from ponder.config.resolve import model_names, preset_names, resolve

    console = Console(highlight=False)
    table = plain_table("preset", "scale", "about")
    for name in preset_names():
        config = resolve(name)
        table.add_row(f"[bold]{name}[/]", config.scale, config.about)
    console.print(table)
    models = [model for model in model_names() if not model.endswith("-mini")]
    console.print(f"\nmodels (--model): [bold]{', '.join(models)}[/]; at mini scale each in its mini form")
