"""`ponder search`."""

import argparse
from collections.abc import Sequence
from typing import get_args

from ponder.commands.policies import add_subject, read_subject, tell
from ponder.config.schema import SearchPlan, Vary
from ponder.evaluation.search import report
from ponder.evaluation.show import draw_search, print_search
from ponder.inference.search import RULES, SIZE, default_noise


def main(args: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="ponder search",
        description="Several tries at each puzzle until the checker accepts an answer: noisy restarts in parallel, "
        "suppositions about a cell, or likely answers, one after the other.",
        epilog="For Sudoku, Maze and Arithmetic. By another rule than the checker's, everywhere: "
        + "; ".join(f"{name}: {what}" for name, what in RULES.items() if name != "checker")
        + ".",
    )
    add_subject(parser)
    parser.add_argument("--restarts", type=int, default=8, metavar="R")
    parser.add_argument("--steps", type=int, metavar="T", help="ACT steps of a restart (default: the training budget)")
    parser.add_argument("--noise", type=float, metavar="ETA", help=f"per element (default: {SIZE} / sqrt(width))")
    parser.add_argument(
        "--vary",
        choices=get_args(Vary),
        default="noise",
        help="what tells the tries apart: noise in the states, a symbol supposed in one cell more (Sudoku), or other "
        "answers that the model finds likely (Arithmetic)",
    )
    parser.add_argument("--select", choices=tuple(RULES), default="checker")
    parser.add_argument("--totals", type=int, nargs="+", metavar="N", help="compute to split into breadth and depth")
    parser.add_argument("--seed", type=int, default=0)
    known = parser.parse_args(args)
    what = read_subject(known)
    steps = what.model.config.max_steps if known.steps is None else known.steps
    noise = default_noise(what.model) if known.noise is None else known.noise
    plan = SearchPlan(known.restarts, steps, noise, known.seed, known.select, known.vary)
    result = report(what, plan, known.totals, known.slots)
    tell("search", result, what, known.out, print_search, draw_search)
