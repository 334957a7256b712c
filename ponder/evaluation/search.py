"""Verified search (beyond the paper): noisy restarts of one puzzle in parallel, until the checker accepts an answer.

Checking an answer is cheaper than finding it, so that a model that is right sometimes becomes one that is right nearly
always, at a price that is reported: ACT steps, summed over all restarts.
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from ponder.base import rng
from ponder.base.console import interval
from ponder.base.errors import UserError
from ponder.base.stats import share
from ponder.domains.contract import Bools, Domain, Ints, Tokens
from ponder.evaluation.compare import Subject, add_subject, read_subject, unverifiable, write_result
from ponder.evaluation.records import Judge
from ponder.inference.engine import SLOTS, Checker, Engine, Floats, Full, Seen
from ponder.model.reasoner import Reasoner

Select = Literal["checker", "confidence"]

SEARCH = 101
"""What these random numbers are for, beside the uses that ponder/rng.py lists."""
SIZE = 0.16
"""Expected relative size of the noise, eta sqrt(width); the best of 0.04 to 0.8 on 4x4 and 6x6 Sudoku."""


@dataclass(frozen=True)
class Plan:
    """How to search: `restarts` trajectories of each puzzle, for at most `steps` steps each."""

    restarts: int
    steps: int
    noise: float
    seed: int = 0
    select: Select = "checker"

    def __post_init__(self) -> None:
        for name, value in (("restarts", self.restarts), ("steps", self.steps)):
            if value < 1:
                raise UserError(f"{name} {value} is too small: give at least 1")
        if self.restarts > 1 and self.noise <= 0:
            raise UserError(f"noise {self.noise:g} would make all restarts the same: give a positive rate")

    @property
    def total(self) -> int:
        return self.restarts * self.steps


@dataclass(frozen=True)
class Found:
    """The answer of each puzzle and what it cost."""

    answers: Tokens
    restart: Ints
    """Which restart gave it; 0 is the one without noise."""
    steps: Ints
    """The ACT step of that restart at which it did."""
    confidence: Floats
    """Its halting logit."""
    accepted: Bools
    """The checker's verdict; False everywhere where it was not asked."""
    compute: Ints
    """ACT steps of all restarts together."""


def default_noise(model: Reasoner) -> float:
    return SIZE / math.sqrt(model.config.width)


def restart_keys(seed: int, numbers: Ints, restarts: int) -> Ints:
    """[n, restarts] the keys of the noise: a function of (seed, number of the puzzle, restart)."""
    start = torch.full((len(numbers), restarts), seed, dtype=torch.int64)
    keys = rng.fold(start, SEARCH, torch.from_numpy(numbers)[:, None], torch.arange(restarts)[None, :])
    out: Ints = keys.numpy()
    return out


def search(
    model: Reasoner,
    domain: Domain,
    inputs: Tokens,
    plan: Plan,
    task_ids: Ints | None = None,
    numbers: Ints | None = None,
    slots: int = SLOTS,
    precision: str = "float32",
) -> Found:
    """All restarts of a puzzle side by side, the first without noise.

    `numbers` name the puzzles, so that the noise of one does not depend on which others are searched.

    By checker: all restarts of a puzzle end at the step at which one is accepted (several at once: the lowest); without
    any, the last answer of restart 0 stays. By confidence: all run to the end, and the answer is the one of which the
    halting head was most confident, over all restarts and steps.
    """
    if plan.select == "checker" and (why := unverifiable(domain)):
        raise UserError(f"no verified search in {domain.name}: {why}; select by confidence (--select confidence)")
    count, room = len(inputs), max(1, slots // plan.restarts)
    task_ids = np.zeros(count, dtype=np.int64) if task_ids is None else task_ids
    keys = restart_keys(plan.seed, np.arange(count) if numbers is None else numbers, plan.restarts)
    policy = Checker() if plan.select == "checker" else Full()
    sides = [
        _Side(Engine(model, domain, room * width, policy, plan.steps, noise, precision), first, width)
        for first, width, noise in ((0, 1, 0.0), (1, plan.restarts - 1, plan.noise))
        if width
    ]
    out = Found(
        answers=np.zeros_like(inputs),
        restart=np.zeros(count, dtype=np.int64),
        steps=np.zeros(count, dtype=np.int64),
        confidence=np.full(count, -np.inf, dtype=np.float32),
        accepted=np.zeros(count, dtype=np.bool_),
        compute=np.zeros(count, dtype=np.int64),
    )
    ended, entered = np.zeros(count, dtype=np.bool_), 0
    while not ended.all():
        while entered < count and entered - ended.sum() < room:
            for side in sides:
                side.admit(inputs[entered], int(task_ids[entered]), keys[entered])
            entered += 1
        for side in sides:
            seen, _ = side.engine.advance()
            for restart in range(side.first, side.first + side.width):
                _choose(out, seen, side, restart, plan.select)
        inside = np.flatnonzero(~ended[:entered])
        out.compute[inside] += plan.restarts
        over = inside[out.accepted[inside] | (out.compute[inside] == plan.restarts * sides[0].engine.budget)]
        for side in sides:
            side.leave(over)
        ended[over] = True
    return out


@dataclass(frozen=True)
class _Side:
    """Restarts `first` to `first + width - 1` of every puzzle. Tickets count admissions, so they tell both apart."""

    engine: Engine
    first: int
    width: int

    def admit(self, puzzle: Tokens, task_id: int, keys: Ints) -> None:
        for restart in range(self.first, self.first + self.width):
            self.engine.admit(puzzle, task_id, int(keys[restart]))

    def leave(self, puzzles: Ints) -> None:
        self.engine.drop((puzzles[:, None] * self.width + np.arange(self.width)).ravel())


def _choose(out: Found, seen: Seen, side: _Side, restart: int, select: Select) -> None:
    """Let this restart's answers replace, in `out`, those that they beat."""
    rows = np.flatnonzero(seen.tickets % side.width == restart - side.first)
    puzzles = seen.tickets[rows] // side.width
    if select == "confidence":
        better = seen.confidence[rows] > out.confidence[puzzles]
    else:
        assert seen.accepted is not None
        # Restart 0 comes first in each step, and its answer stands until another is accepted.
        better = (seen.accepted[rows] & ~out.accepted[puzzles]) | (restart == 0)
        out.accepted[puzzles] |= seen.accepted[rows]
    rows, puzzles = rows[better], puzzles[better]
    out.answers[puzzles], out.steps[puzzles], out.confidence[puzzles] = (
        seen.answers[rows],
        seen.steps[rows],
        seen.confidence[rows],
    )
    out.restart[puzzles] = restart


# Breadth against depth ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """What `restarts` trajectories of at most `steps` steps gave, and what they took."""

    restarts: int
    steps: int
    total: int
    exact: dict[str, float]
    valid: dict[str, float]
    mean_compute: float
    """ACT steps of a puzzle over all its restarts."""
    max_compute: int


@dataclass(frozen=True)
class Report:
    about: dict[str, Any]
    plan: Plan
    plain: Cell
    """The main protocol: one trajectory, the answer at the last step."""
    found: Cell
    table: list[Cell]
    """The same compute at most, spent on breadth or on depth."""

    def data(self) -> dict[str, Any]:
        rule = {
            "checker": "all restarts of a puzzle end at the first step at which the checker accepts an answer",
            "confidence": "all restarts run to the end; the answer is the one with the highest halting logit",
        }[self.plan.select]
        protocol = f"Restart 0 has no noise, the others have state noise; {rule}. Compute: ACT steps of all restarts."
        return {"protocol": protocol, **self.about, **{k: v for k, v in asdict(self).items() if k != "about"}}


def breadths(restarts: int) -> list[int]:
    """1, 2, 4, ... and the number asked for."""
    return sorted({2**k for k in range(restarts.bit_length())} | {restarts})


def report(what: Subject, plan: Plan, totals: Sequence[int] | None = None, slots: int = SLOTS) -> Report:
    """The plain run, the search, and every split of each total (default: the plain budget and the search's)."""
    batch = what.batch
    rest: dict[str, Any] = {"slots": slots, "precision": what.precision}
    judge = Judge(what.domain, batch.inputs, batch.labels)

    def cell(p: Plan, answers: Tokens, compute: Ints) -> Cell:
        exact, valid = (share(right.mean(), len(compute)) for right in judge(answers)[:2])
        return Cell(p.restarts, p.steps, p.total, exact, valid, float(compute.mean()), int(compute.max()))

    def searched(p: Plan) -> Cell:
        found = search(what.model, what.domain, batch.inputs, p, batch.task_ids, what.index, **rest)
        return cell(p, found.answers, found.compute)

    cells = {plan: searched(plan)}
    for total in sorted({plan.steps, plan.total} if totals is None else totals):
        for restarts in breadths(plan.restarts):
            split = replace(plan, restarts=restarts, steps=max(1, total // restarts))
            if split.total <= total and split not in cells:
                cells[split] = searched(split)
    plain = Engine(what.model, what.domain, policy=Full(), budget=plan.steps, **rest).run(batch.inputs, batch.task_ids)
    table = sorted(cells.values(), key=lambda c: (c.total, c.restarts))
    return Report(what.about(), plan, cell(replace(plan, restarts=1), plain.answers, plain.steps), cells[plan], table)


# Showing --------------------------------------------------------------------------------------------------------------


def print_report(r: Report, console: Console) -> None:
    about, plan, found, budget = r.about, r.plan, r.found, r.plain.total
    console.print(f"[bold]{about['checkpoint']['name']}[/] on {about['split']}, n {about['n']}")
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    for column in ("", "valid %", "exact %", "mean steps", "of plain", "max"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for name, c in ((f"plain, {budget} steps", r.plain), (f"search, {found.restarts} x {found.steps}", found)):
        table.add_row(name, *_cells(c, budget), f"{c.max_compute}")
    console.print(table)
    table = Table(
        title="\nbreadth against depth at equal compute",
        title_justify="left",
        title_style="bold",
        box=None,
        padding=(0, 1),
        pad_edge=False,
    )
    for column in ("at most", "r x steps", "valid %", "exact %", "mean steps", "of plain"):
        table.add_column(column, justify="right", no_wrap=True)
    for c in r.table:
        table.add_row(f"{c.total}", f"{c.restarts} x {c.steps}", *_cells(c, budget))
    console.print(table)
    console.print(
        f"[dim]with 95% intervals; answers selected by {plan.select}, noise {plan.noise:.2g}, seed {plan.seed}; steps: "
        f"ACT steps of a puzzle, all its restarts together[/]"
    )


def _cells(c: Cell, budget: int) -> tuple[str, ...]:
    return interval(c.valid), interval(c.exact), f"{c.mean_compute:.1f}", f"{c.mean_compute / budget:.2f}"


def draw_search(said: dict[str, Any], path: Path) -> None:
    """Accuracy against the compute that was used, from what search.json says."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import ScalarFormatter

    figure, axis = plt.subplots(figsize=(8, 5), layout="constrained")
    for total in sorted({c["total"] for c in said["table"]}):
        cells = [c for c in said["table"] if c["total"] == total]
        points = np.array(
            [[c["mean_compute"], *(100 * c["valid"][k] for k in ("value", "low", "high"))] for c in cells]
        )
        spread = [points[:, 1] - points[:, 2], points[:, 3] - points[:, 1]]
        axis.errorbar(points[:, 0], points[:, 1], spread, fmt="o-", capsize=3, label=f"at most {total} steps")
        for c, (x, y, *_) in zip(cells, points, strict=True):
            at = {"xytext": (4, -10), "textcoords": "offset points", "fontsize": 7}
            axis.annotate(f"{c['restarts']}x{c['steps']}", (x, y), **at)
    plain = said["plain"]
    axis.plot(plain["mean_compute"], 100 * plain["valid"]["value"], "kD", label=f"plain, {plain['steps']} steps")
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter(ScalarFormatter())
    axis.set(xlabel="ACT steps of a puzzle, all restarts together, mean", ylabel="valid answers, %")
    title = (
        f"{said['checkpoint']['name']} on {said['split']}, n {said['n']}: restarts x steps, by {said['plan']['select']}"
    )
    axis.set_title(title)
    axis.grid(alpha=0.25)
    axis.legend(fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(args: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="ponder search",
        description="Noisy restarts of each puzzle in parallel until the checker accepts an answer.",
        epilog="For Sudoku, Maze and Arithmetic. With --select confidence no checker is used: all restarts run to the "
        "end and the most confident answer counts.",
    )
    add_subject(parser)
    parser.add_argument("--restarts", type=int, default=8, metavar="R")
    parser.add_argument("--steps", type=int, metavar="T", help="ACT steps of a restart (default: the training budget)")
    parser.add_argument("--noise", type=float, metavar="ETA", help=f"per element (default: {SIZE} / sqrt(width))")
    parser.add_argument("--select", choices=("checker", "confidence"), default="checker")
    parser.add_argument("--totals", type=int, nargs="+", metavar="N", help="compute to split into breadth and depth")
    parser.add_argument("--seed", type=int, default=0)
    known = parser.parse_args(args)
    what = read_subject(known)
    steps = what.model.config.max_steps if known.steps is None else known.steps
    noise = default_noise(what.model) if known.noise is None else known.noise
    plan = Plan(known.restarts, steps, noise, known.seed, known.select)
    out = report(what, plan, known.totals, known.slots)
    console = Console(highlight=False)
    print_report(out, console)
    said = out.data()
    picture = write_result(known, what, "search", said)
    draw_search(said, picture)
    console.print(f"wrote {picture.with_suffix('.json')} and {picture.name}")
