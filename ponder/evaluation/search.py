"""Breadth against depth: what a search gives for a total of ACT steps, beside the plain run."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ponder.config.schema import SearchPlan
from ponder.domains.contract import Ints, Tokens
from ponder.evaluation.records import Judge
from ponder.evaluation.schema import SearchPoint, SearchResult, Share
from ponder.evaluation.subject import Subject
from ponder.inference.engine import SLOTS, Engine, Full
from ponder.inference.search import RULES, restart_keys, search


def breadths(restarts: int) -> list[int]:
    """1, 2, 4, ... and the number asked for."""
    return sorted({2**k for k in range(restarts.bit_length())} | {restarts})


def report(what: Subject, plan: SearchPlan, totals: Sequence[int] | None = None, slots: int = SLOTS) -> SearchResult:
    """The plain run, the search, and every split of each total (default: the plain budget and the search's)."""
    batch = what.batch
    rest: dict[str, Any] = {"slots": slots, "precision": what.precision}
    judge = Judge(what.domain, batch.inputs, batch.labels)

    def point(p: SearchPlan, answers: Tokens, compute: Ints) -> SearchPoint:
        exact, valid = (Share.of(right.mean(), len(compute)) for right in judge(answers)[:2])
        return SearchPoint(
            restarts=p.restarts,
            steps=p.steps,
            total=p.total,
            exact=exact,
            valid=valid,
            mean_compute=float(compute.mean()),
            max_compute=int(compute.max()),
        )

    def searched(p: SearchPlan) -> SearchPoint:
        found = search(what.model, what.domain, batch.inputs, p, batch.task_ids, what.index, **rest)
        return point(p, found.answers, found.compute)

    points = {plan: searched(plan)}
    for total in sorted({plan.steps, plan.total} if totals is None else totals):
        for restarts in breadths(plan.restarts):
            split = replace(plan, restarts=restarts, steps=max(1, total // restarts))
            if split.total <= total and split not in points:
                points[split] = searched(split)
    plain = Engine(what.model, what.domain, policy=Full(), budget=plan.steps, **rest).run(
        batch.inputs, batch.task_ids, restart_keys(plan.seed, what.index, 1)[:, 0]
    )
    noise = "Restart 0 has no noise, the others have state noise"
    if plan.vary == "suppose":
        noise = "Restart 0 is the puzzle; the others have one more cell given, one after the other"
    elif plan.vary == "likely":
        noise = "Restart 0 is the model's answer; the others are the answers that it finds likeliest, a step each"
    elif what.model.config.init == "random":
        noise += "; each has an initial state of its own"
    return SearchResult(
        **what.measurement(f"{noise}; {RULES[plan.select]}. Compute: ACT steps of all restarts."),
        plan=plan,
        plain=point(replace(plan, restarts=1), plain.answers, plain.steps),
        found=points[plan],
        table=sorted(points.values(), key=lambda p: (p.total, p.restarts)),
    )
