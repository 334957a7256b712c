"""`ponder eval`."""

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ponder.base import runtime
from ponder.base.console import Bar
from ponder.commands import policies
from ponder.domains.contract import silent
from ponder.evaluation.run import FIGURE, RECORDS, RESULT, run
from ponder.evaluation.schema import read_eval
from ponder.evaluation.show import print_result
from ponder.evaluation.subject import EvalRequest


def main(args: Sequence[str]) -> None:
    if "--policy" in args or "--policy=all" in args:
        parser = argparse.ArgumentParser(prog="ponder eval", add_help=False)
        parser.add_argument("--policy", choices=("all",))
        policies.main(parser.parse_known_args(args)[1])
        return
    parser = argparse.ArgumentParser(
        prog="ponder eval",
        description="Score a checkpoint on its splits at every ACT step, up to and beyond its training budget.",
        epilog="docs/evaluation.md says what each number means. With --policy all: accuracy against compute for every "
        "halting policy, as `ponder policies` (whose options then hold).",
    )
    parser.add_argument("checkpoint", help="a run folder, a checkpoint in one, an imported folder, or a zoo name")
    parser.add_argument(
        "--domain", metavar="PRESET", help="evaluate on this preset's data; imported ones that name none need it"
    )
    parser.add_argument("--split", nargs="+", action="extend", default=[], metavar="S", help="default: all but train")
    parser.add_argument("--steps", type=int, metavar="T", help="ACT steps to run (default: twice the training budget)")
    parser.add_argument("--weights", choices=("ema", "online", "both"), default="ema")
    parser.add_argument("--batch", type=int, metavar="N", help="examples at a time; changes nothing but the time")
    parser.add_argument("--limit", type=int, metavar="N", help="so many examples of each split, spread evenly over it")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data-dir", type=Path, default=Path("data"), metavar="DIR")
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: eval in the run folder, or ./eval-ZOONAME")
    known = parser.parse_args(args)
    request = EvalRequest(
        checkpoint=known.checkpoint,
        domain=known.domain,
        splits=tuple(dict.fromkeys(known.split)),
        weights=known.weights,
        steps=known.steps,
        batch=known.batch,
        limit=known.limit,
        data_dir=known.data_dir,
        out=known.out,
        command=shlex.join(["ponder", "eval", *args]),
    )
    here = runtime.start(known.device)
    with Bar() as bar:
        out = run(request, here, bar if here.main else silent)
    if here.main:
        print_result(read_eval(out / RESULT), Console(highlight=False))
        print(f"\nwrote {out / RESULT}, {FIGURE} and {RECORDS}/")
    here.close()
