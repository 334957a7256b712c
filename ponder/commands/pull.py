"""`ponder pull`: a model from the Hugging Face Hub into the user's zoo."""

import argparse
from collections.abc import Sequence


def main(args: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="ponder pull",
        description="Fetch a model from the Hugging Face Hub into your zoo: hashes are compared, nothing of it runs.",
    )
    parser.add_argument("address", metavar="OWNER/NAME[@REVISION]", help="a commit, tag or branch; main unless given")
    parser.add_argument("--name", help="its name in your zoo (default: that of the repository)")
    known = parser.parse_args(args)
    from rich.console import Console

    from ponder.zoo.cards import print_card, read_card
    from ponder.zoo.travel import pull

    path = pull(known.address, known.name)
    card = read_card(path)
    console = Console(highlight=False)
    print_card(console, card)
    console.print(f"wrote {path}, from commit {card['origin']['commit']}", soft_wrap=True)
