"""`ponder watch`: the live view of a run that another process trains."""

import argparse
from collections.abc import Sequence
from pathlib import Path


def main(args: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="ponder watch",
        description="Attach the live view of `ponder train` to a run in another terminal, or on another machine that "
        "shares the disk. Ends with the training; Ctrl-C leaves the run alone.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="its folder")
    known = parser.parse_args(args)
    from ponder.training.listing import follow, read_run
    from ponder.training.runs import read_config
    from ponder.training.view import view_for

    run, view = read_run(known.run), view_for(quiet=False)
    view.begin(read_config(known.run), run.updates or run.update, 0)
    try:
        for rows in follow(known.run):
            for row in rows:
                view.row(row)
    finally:
        view.close()
    print(f"{known.run}: {read_run(known.run).state}")
