"""`ponder domain`: start a domain of one's own, and check it."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from ponder.base.errors import UserError


def main(args: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="ponder domain",
        description="`new NAME` writes a package with a small puzzle, ready to train; `check NAME` tries whether a "
        "domain keeps its contract. See docs/domains.md.",
    )
    parser.add_argument("action", choices=("new", "check"), help="what to do")
    parser.add_argument("name", help="of the domain")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--grid", metavar="HxW", default="4x4", help="with new: puzzles on a grid (default 4x4)")
    kind.add_argument("--sequence", metavar="N", type=int, help="with new: puzzles in a line of up to N symbols")
    parser.add_argument("--out", type=Path, metavar="DIR", help="with new: the folder (default ./ponder-NAME)")
    known = parser.parse_args(args)
    from ponder.domains import conform, registry, skeleton

    if known.action == "check":
        domain = registry.find(known.name)
        if found := conform.problems(domain(domain.Params())):
            raise UserError(f"{known.name} breaks its contract: {'; '.join(found)}")
        print(f"{known.name} keeps its contract")
        return
    height, _, width = known.grid.partition("x")
    if not (height.isdecimal() and width.isdecimal()):
        raise UserError(f"--grid {known.grid!r} is no size: write rows x columns, as in 4x4")
    grid = None if known.sequence is not None else (int(height), int(width))
    folder = known.out or Path(f"ponder-{known.name}")
    for path in skeleton.write_package(known.name, folder, grid, 8 if known.sequence is None else known.sequence):
        print(f"wrote {path}")
    print(f"\nnext\n  pip install -e {folder}\n  ponder train {known.name}-mini")
