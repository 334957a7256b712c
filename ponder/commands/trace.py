"""`ponder trace`."""

import argparse
from collections.abc import Sequence

from ponder.commands.policies import add_subject, read_subject, tell
from ponder.evaluation.show import draw_trace, print_trace
from ponder.evaluation.trace import TracePlan, trace

EXAMPLES = 32


def main(args: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="ponder trace",
        description="Look inside: how far each ACT step moves the state, how much it stretches small differences, who "
        "has settled and who is right, and the trajectories in a plane.",
        epilog=f"Without --limit: {EXAMPLES} examples, since a Jacobian takes a dozen passes.",
    )
    add_subject(parser)
    parser.add_argument("--steps", type=int, metavar="T", help="ACT steps (default: twice the training budget)")
    parser.add_argument("--settled", type=float, default=TracePlan.settled, metavar="R", help="residual of the settled")
    parser.add_argument("--directions", type=int, default=TracePlan.directions, help="that power iteration starts from")
    parser.add_argument("--rounds", type=int, default=TracePlan.rounds, help="of power iteration")
    parser.add_argument("--seed", type=int, default=0)
    parser.set_defaults(limit=EXAMPLES)
    known = parser.parse_args(args)
    what = read_subject(known)
    steps = 2 * what.model.config.max_steps if known.steps is None else known.steps
    result = trace(what, TracePlan(steps, known.settled, known.directions, known.rounds, known.seed))
    tell("trace", result, what, known.out, print_trace, draw_trace)
