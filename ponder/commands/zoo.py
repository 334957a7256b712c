"""`ponder zoo`: trained models, ponder's and your own: list them, show a card, add one."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ponder.base.console import Bar
from ponder.base.errors import UserError, unknown


def main(args: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="ponder zoo",
        description="List the trained models, show the card of one, or add one to your own: `ponder zoo add RUN NAME`.",
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="NAME | add RUN NAME",
        help="the model whose card to show, or the run to add and its name; a model's folder is measured anew",
    )
    parser.add_argument("--limits", default="", help="with add: what a user should know about where it fails")
    parser.add_argument("--shipped", action="store_true", help="with add: into the package itself, for maintainers")
    parser.add_argument("--data-dir", type=Path, default=Path("data"), metavar="DIR", help="where datasets are")
    parser.add_argument("--json", action="store_true", help="the card or cards as JSON")
    known = parser.parse_intermixed_args(args)
    from ponder.inference.weights import ZOO, user_zoo, zoo_folders
    from ponder.zoo.cards import list_cards, print_card, read_card, table
    from ponder.zoo.making import add

    console = Console(highlight=False)
    match known.words:
        case []:
            cards = list_cards()
            if known.json:
                print(json.dumps(cards, indent=1))
            else:
                console.print(table(cards))
                console.print("\n[dim]`ponder zoo NAME` shows a card, `ponder solve NAME PUZZLE` solves.[/]")
        case ["add", run, name]:
            with Bar() as bar:
                zoo = ZOO if known.shipped else user_zoo()
                path = add(Path(run), name, known.limits, known.data_dir, zoo, progress=bar)
            print_card(console, read_card(path))
            console.print(f"wrote {path}", soft_wrap=True)
        case ["add", *_]:
            raise UserError("add takes a run folder and a name: ponder zoo add RUN NAME")
        case [name]:
            if name not in (folders := zoo_folders()):
                raise unknown("zoo model", name, folders)
            card = read_card(folders[name])
            print(json.dumps(card, indent=1)) if known.json else print_card(console, card)
        case _:
            raise UserError(f"{' '.join(known.words)!r} is too much: give one name, or add RUN NAME")
