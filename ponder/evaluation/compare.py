"""What each halting policy gives and costs on one checkpoint: accuracy against compute, every slot kept busy."""

import time
from collections.abc import Sequence

import numpy as np

from ponder.base.stats import paired
from ponder.domains.contract import Domain
from ponder.evaluation.records import Judge, example_keys
from ponder.evaluation.schema import Curve, PoliciesResult, PolicyScore, Share
from ponder.evaluation.subject import Subject
from ponder.inference.engine import SLOTS, Checker, Engine, Full, Halt, Policy, Seen, Settled, Stable
from ponder.model import cost
from ponder.model.reasoner import Reasoner

THRESHOLDS = (0.75, 0.9, 0.99)
STABLE = (1, 2, 3)
PROTOCOL = (
    "Each puzzle leaves after the step at which the policy calls it done, at the latest at the budget, and its slot is "
    "refilled. full is the main protocol; checker uses the domain's rules while answering."
)


def all_policies(
    model: Reasoner,
    domain: Domain,
    thresholds: Sequence[float] = THRESHOLDS,
    stable: Sequence[int] = STABLE,
    residuals: Sequence[float] = (),
) -> list[Policy]:
    """Every policy that this model and this domain allow, the main protocol first."""
    out: list[Policy] = [Full()]
    if model.config.head:
        out += [Halt(), *(Halt(threshold) for threshold in thresholds)]
    if model.config.states:
        out += [*(Stable(steps) for steps in stable), *(Settled(residual) for residual in residuals)]
    return out if domain.unverifiable else [*out, Checker()]


def compare_policies(
    what: Subject, budget: int | None = None, policies: Sequence[Policy] | None = None, slots: int = SLOTS
) -> PoliciesResult:
    """Run every policy on the same examples; the full budget is always the first."""
    model, domain, batch, n = what.model, what.domain, what.batch, len(what.index)
    work = cost.flops(model.config, len(domain.vocab), domain.seq_len, domain.geometry)
    results: list[PolicyScore] = []
    Engine(model, domain, slots, Full(), 1).run(batch.inputs[:slots], batch.task_ids[:slots])  # allocates
    rest = [policy for policy in policies or all_policies(model, domain) if not isinstance(policy, Full)]
    full = Engine(model, domain, slots, Full(), budget, precision=what.precision)
    by_step = np.zeros((n, full.budget), dtype=np.bool_)

    def watch(seen: Seen) -> None:
        labels = batch.labels[seen.tickets]
        by_step[seen.tickets, seen.steps - 1] = ((seen.answers == labels) | (labels == 0)).all(axis=1)

    engines = [full, *(Engine(model, domain, slots, p, budget, precision=what.precision) for p in rest)]
    for engine in engines:
        began = time.perf_counter()
        keys = example_keys(what.index)
        out = engine.run(batch.inputs, batch.task_ids, keys, watch if engine is full else None)
        seconds = time.perf_counter() - began
        exact, valid, _ = Judge(domain, batch.inputs, batch.labels)(out.answers)
        mean_steps = engine.slot_steps / n
        results.append(
            PolicyScore(
                policy=engine.policy.name,
                exact=Share.of(exact.mean(), n),
                valid=Share.of(valid.mean(), n),
                change=Share(**paired(exact, by_step[:, -1])),
                mean_steps=mean_steps,
                max_steps=int(out.steps.max()),
                applications=mean_steps * cost.applications(model.config),
                flops=mean_steps * work.inference,
                seconds=seconds,
                per_second=n / seconds,
            )
        )
    return PoliciesResult(
        **what.measurement(PROTOCOL),
        budget=full.budget,
        training_budget=model.config.max_steps,
        steps=Curve.of(by_step.mean(axis=0), n),
        results=results,
    )
