"""`ponder diff A B`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ponder.evaluation.diff import print_differences, read


def main(args: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="ponder diff",
        description="Two evaluated runs: how their configurations differ, and how their scores do, example by example.",
    )
    for letter in ("a", "b"):
        parser.add_argument(letter, metavar=letter.upper(), type=Path, help="a run folder or an evaluation folder")
    known = parser.parse_args(args)
    print_differences(read(known.a), read(known.b), Console(highlight=False))
