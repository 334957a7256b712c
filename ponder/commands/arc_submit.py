"""`ponder arc-submit`: ARC as its competition gives and takes it."""

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from ponder.training.submission import SubmissionScore


def main(args: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="ponder arc-submit",
        description="Fine-tune an ARC model on the demonstrations of a challenges file and write a submission of two "
        "attempts at each test input. Needs no network. The same command goes on where it was stopped.",
        epilog="The recipe is the model's own; any value can be overridden: --train.lr 1e-3 --data.augmentations 100. "
        "See docs/puzzles/arc.md.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("challenges", type=Path, help="the competition's challenges JSON")
    add("--start", required=True, metavar="MODEL", help="a run folder, a checkpoint, an imported folder, a zoo name")
    add("--out", type=Path, required=True, metavar="DIR", help="folder of the run and of submission.json")
    add("--solutions", type=Path, metavar="FILE", help="the solutions JSON: score the submission")
    add("--seconds", type=float, metavar="S", help="stop fine-tuning after so long; the votes come after it")
    add("--updates", type=int, metavar="N", help="length of fine-tuning (default: as long as the model was trained)")
    add("--fresh", action="store_true", help="delete what the folder holds of an earlier submission and start over")
    add("--device", default="auto", help="cpu, cuda, mps; auto: the fastest there is")
    add("--threads", type=int, metavar="N", help="threads (default: chosen)")
    add("--quiet", action="store_true", help="print the outcome only")
    known, overrides = parser.parse_known_args(args)
    from rich.console import Console

    from ponder.base import runtime
    from ponder.base.console import Bar
    from ponder.base.errors import at_least
    from ponder.config.resolve import parse_overrides
    from ponder.domains.contract import silent
    from ponder.training.submission import SCORE, SUBMISSION, SubmissionPlan, submit

    if known.threads is not None:
        import torch

        at_least(1, {"--threads": known.threads})
        torch.set_num_threads(known.threads)
    plan = SubmissionPlan(
        challenges=known.challenges,
        start=known.start,
        out=known.out,
        solutions=known.solutions,
        seconds=known.seconds,
        updates=known.updates,
        overrides=parse_overrides(overrides),
        fresh=known.fresh,
    )
    here = runtime.start(known.device)
    with Bar() as bar:
        done = submit(
            plan,
            here,
            known.quiet,
            silent if known.quiet or not here.main else bar,
            shlex.join(["ponder", "arc-submit", *args]),
        )
    if here.main:
        if done is None:
            print(f"interrupted; saved. The same command goes on in {known.out}")
        else:
            end = "finished" if done.outcome.finished else f"{known.seconds:g} s are over"
            print(
                f"{len(done.submission)} tasks in {known.out / SUBMISSION}, after {done.outcome.update} of "
                f"{done.outcome.updates} updates ({end})"
            )
            if done.left_out:
                print(
                    f"{done.left_out} of them have a grid that is too large for the model's canvas: answered with [[0]]"
                )
            if done.score is not None:
                print_score(done.score, Console(highlight=False))
                print(f"wrote {known.out / SCORE}")
    here.close()


def print_score(score: "SubmissionScore", console: "Console") -> None:
    from ponder.base.console import plain_table

    table = plain_table("", "n", "solved", "95% interval", right=("n", "solved", "95% interval"))
    for what, n, share in (
        ("test inputs", score.test_inputs, score.test_inputs_solved),
        ("tasks, all their test inputs", score.tasks, score.all_test_inputs),
        ("tasks, share of their test inputs", score.tasks, score.fractional),
    ):
        table.add_row(what, str(n), f"{share.value:.1%}", f"{100 * share.low:.1f}-{100 * share.high:.1f}")
    console.print(table)
