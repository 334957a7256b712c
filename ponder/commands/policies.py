"""`ponder policies`, and what it shares with `ponder search`: one checkpoint on some examples of one split."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from ponder.base import runtime
from ponder.base.console import Bar
from ponder.evaluation.compare import STABLE, THRESHOLDS, all_policies, compare_policies
from ponder.evaluation.schema import Measurement
from ponder.evaluation.show import draw_policies, print_policies
from ponder.evaluation.subject import EvalRequest, Subject, open_subject, write_result
from ponder.inference.engine import SLOTS

R = TypeVar("R", bound=Measurement)


def add_subject(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", help="a run folder, a checkpoint in one, an imported folder, or a zoo name")
    parser.add_argument(
        "--domain", metavar="PRESET", help="use this preset's data; imported ones that name none need it"
    )
    parser.add_argument("--split", help="default: the test split")
    parser.add_argument("--limit", type=int, help="so many examples, spread evenly over the split")
    parser.add_argument("--weights", choices=("ema", "online"), default="ema")
    parser.add_argument("--slots", type=int, default=SLOTS, help="puzzles at a time; changes nothing but the time")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--out", type=Path, help="folder for the result (default: the run folder; for the zoo, this one)"
    )


def read_subject(known: argparse.Namespace) -> Subject:
    request = EvalRequest(
        checkpoint=known.checkpoint,
        domain=known.domain,
        splits=() if known.split is None else (known.split,),
        weights=known.weights,
        limit=known.limit,
        data_dir=known.data_dir,
    )
    with Bar() as bar:
        return open_subject(request, runtime.start(known.device), bar)


def tell(
    name: str,
    result: R,
    what: Subject,
    out: Path | None,
    show: Callable[[R, Console], None],
    draw: Callable[[R, Path], None],
) -> None:
    """The result on the terminal, as a file and as a figure beside it."""
    console = Console(highlight=False)
    show(result, console)
    file = write_result(result, what, name, out)
    draw(result, file.with_suffix(".png"))
    console.print(f"wrote {file} and {file.stem}.png")


def main(args: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="ponder policies",
        description="Accuracy against compute for every halting policy on one checkpoint.",
        epilog="full: the whole budget, the main protocol. halt: the halting head says so (with a threshold on its "
        "probability, or when halting beats going on). stable m: the answer unchanged for m steps. residual < r: "
        "the last step moved the state by less than r of its size. checker: the rules accept the answer.",
    )
    add_subject(parser)
    parser.add_argument("--budget", type=int, help="ACT steps at most (default: the training budget)")
    parser.add_argument("--threshold", type=float, nargs="+", default=THRESHOLDS, metavar="P")
    parser.add_argument("--stable", type=int, nargs="+", default=STABLE, metavar="M")
    parser.add_argument("--residual", type=float, nargs="+", default=(), metavar="R", help="default: none")
    known = parser.parse_args(args)
    what = read_subject(known)
    policies = all_policies(what.model, what.domain, known.threshold, known.stable, known.residual)
    result = compare_policies(what, known.budget, policies, known.slots)
    tell("policies", result, what, known.out, print_policies, draw_policies)
