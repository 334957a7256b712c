"""What each halting policy gives and costs on one checkpoint: accuracy against compute, every slot kept busy."""

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ponder import data
from ponder.base import files, runtime
from ponder.base.console import interval
from ponder.base.errors import UserError
from ponder.base.stats import paired, share
from ponder.data import Dataset
from ponder.domains.contract import Batch, Bools, Domain, Ints
from ponder.evaluation.arc import arranged_table
from ponder.evaluation.records import Judge, chosen_examples
from ponder.evaluation.run import choose_data, default_folder
from ponder.inference.engine import SLOTS, Checker, Engine, Full, Halt, Policy, Seen, Stable
from ponder.inference.weights import Opened, open_weights
from ponder.model import cost
from ponder.model.reasoner import Reasoner

THRESHOLDS = (0.75, 0.9, 0.99)
STABLE = (1, 2, 3)
UNVERIFIABLE = {
    "life": "its checker computes the answer, so that an accepted answer is no find",
    "joint": "some of its puzzles are Life, whose checker computes the answer",
}


# What is measured -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Subject:
    """A checkpoint and the examples it is measured on."""

    opened: Opened
    domain: Domain
    split: str
    index: Ints
    """The examples' numbers in their split."""
    batch: Batch
    data_hash: str
    precision: str = "float32"

    @property
    def model(self) -> Reasoner:
        return self.opened.model

    def about(self) -> dict[str, Any]:
        """What ties a score to its origin."""
        opened = self.opened
        return {
            "checkpoint": {
                "name": opened.name,
                "path": str(opened.path),
                "update": opened.update,
                "sha256": opened.sha256,
            },
            "config": None if opened.config is None else opened.config.flat(),
            "data_hash": self.data_hash,
            "split": self.split,
            "n": len(self.index),
            "precision": self.precision,
            "environment": runtime.environment(),
        }


def subject(
    opened: Opened, dataset: Dataset, split: str | None = None, limit: int | None = None, precision: str = "float32"
) -> Subject:
    """`limit` examples spread evenly over a split; by default the first one that is neither train nor val."""
    if split is None:
        split = next(name for name in dataset.counts if dataset.domain.splits[name].role not in ("train", "val"))
    source = dataset.source(split)
    index = chosen_examples(len(source), limit)
    batch = source.fetch(index, np.zeros_like(index))
    return Subject(opened, dataset.domain, split, index, batch, dataset.hash, precision)


def unverifiable(domain: Domain) -> str:
    """Why an answer that the checker accepts is no achievement here; empty where it is."""
    return UNVERIFIABLE.get(domain.name) or ("" if domain.checkable else "it has no checker")


# The comparison -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PolicyResult:
    policy: str
    exact: dict[str, float]
    """value, low and high: the 95% Wilson interval."""
    valid: dict[str, float]
    change: dict[str, float]
    """Exact accuracy minus that of the full budget, in pairs, with its 95% interval."""
    mean_steps: float
    max_steps: int
    applications: float
    """Layer applications of an answer, on average."""
    flops: float
    seconds: float
    per_second: float


@dataclass(frozen=True)
class Comparison:
    about: dict[str, Any]
    budget: int
    training_budget: int
    steps: dict[str, Any]
    """Exact accuracy of the full budget's run after each step, as `stats.share` gives it."""
    results: list[PolicyResult]

    def data(self) -> dict[str, Any]:
        protocol = (
            "Each puzzle leaves after the step at which the policy calls it done, at the latest at the budget, and its "
            "slot is refilled. full is the main protocol; checker uses the domain's rules while answering."
        )
        return {"protocol": protocol, **self.about, **{k: v for k, v in asdict(self).items() if k != "about"}}


def all_policies(
    model: Reasoner, domain: Domain, thresholds: Sequence[float] = THRESHOLDS, stable: Sequence[int] = STABLE
) -> list[Policy]:
    """Every policy that this model and this domain allow, the main protocol first."""
    out: list[Policy] = [Full()]
    if model.config.halting != "none":
        out += [Halt(), *(Halt(threshold) for threshold in thresholds)]
    if model.config.states:
        out += [Stable(steps) for steps in stable]
    return out if unverifiable(domain) else [*out, Checker()]


def compare_policies(
    what: Subject, budget: int | None = None, policies: Sequence[Policy] | None = None, slots: int = SLOTS
) -> Comparison:
    """Run every policy on the same examples; the full budget is always the first."""
    model, domain, batch = what.model, what.domain, what.batch
    policies = [p for p in policies or all_policies(model, domain) if not isinstance(p, Full)]
    work = cost.flops(model.config, len(model.embed), model.tokens)
    n, results = len(what.index), []
    full = Engine(model, domain, slots, Full(), budget, precision=what.precision)
    by_step = np.zeros((n, full.budget), dtype=np.bool_)

    def watch(seen: Seen) -> None:
        by_step[seen.tickets, seen.steps - 1] = _exact(seen.answers, batch.labels[seen.tickets])

    Engine(model, domain, slots, Full(), 1).run(
        batch.inputs[:slots], batch.task_ids[:slots]
    )  # the first time allocates
    for policy in (Full(), *policies):
        engine = full
        if not isinstance(policy, Full):
            engine = Engine(model, domain, slots, policy, budget, precision=what.precision)
        began = time.perf_counter()
        out = engine.run(batch.inputs, batch.task_ids, watch=watch if engine is full else None)
        seconds = time.perf_counter() - began
        exact, valid, _ = Judge(domain, batch.inputs, batch.labels)(out.answers)
        mean_steps = engine.slot_steps / n
        results.append(
            PolicyResult(
                policy=policy.name,
                exact=share(exact.mean(), n),
                valid=share(valid.mean(), n),
                change=paired(exact, by_step[:, -1]),
                mean_steps=mean_steps,
                max_steps=int(out.steps.max()),
                applications=mean_steps * cost.applications(model.config),
                flops=mean_steps * work.inference,
                seconds=seconds,
                per_second=n / seconds,
            )
        )
    return Comparison(what.about(), full.budget, model.config.max_steps, share(by_step.mean(axis=0), n), results)


def _exact(answers: Any, labels: Any) -> Bools:
    out: Bools = ((answers == labels) | (labels == 0)).all(axis=1)
    return out


# Showing --------------------------------------------------------------------------------------------------------------


def print_comparison(comparison: Comparison, console: Console) -> None:
    about = comparison.about
    title = (
        f"{about['checkpoint']['name']} on {about['split']}, n {about['n']}, budget {comparison.budget} steps "
        f"(trained with {comparison.training_budget})"
    )
    table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 1), pad_edge=False)
    table.add_column("policy", no_wrap=True)
    for column in ("exact %", "valid %", "steps", "max", "layers", "MFLOP", "a second"):
        table.add_column(column, justify="right", no_wrap=True)
    for r in comparison.results:
        cells = (f"{r.mean_steps:.2f}", f"{r.max_steps}", f"{r.applications:.1f}", f"{r.flops / 1e6:.4g}")
        table.add_row(r.policy, interval(r.exact), interval(r.valid), *cells, f"{r.per_second:.4g}")
    console.print(table)
    console.print("[dim]with 95% intervals; steps, layer applications and FLOP: mean of an answer[/]")


def draw_policies(said: dict[str, Any], path: Path) -> None:
    """Accuracy against compute, from what policies.json says."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(8, 5), layout="constrained")
    steps = np.arange(1, said["budget"] + 1)
    curve = {k: 100 * np.array(v) for k, v in said["steps"].items()}
    axis.plot(steps, curve["value"], color="0.4", label="every puzzle the same number of steps")
    axis.fill_between(steps, curve["low"], curve["high"], color="0.4", alpha=0.15, linewidth=0)
    for i, r in enumerate(said["results"]):
        value, low, high = (100 * r["exact"][k] for k in ("value", "low", "high"))
        kind = next((m for name, m in (("halt", "o"), ("stable", "s"), ("checker", "*")) if name in r["policy"]), "D")
        style = {"fmt": kind, "color": plt.cm.tab10(i % 10), "markersize": 10 if kind == "*" else 6}
        axis.errorbar(r["mean_steps"], value, [[value - low], [high - value]], capsize=3, label=r["policy"], **style)
    if said["training_budget"] <= said["budget"]:
        axis.axvline(said["training_budget"], color="0.6", linestyle=":", label="training budget")
    layers = said["results"][0]["applications"] / said["results"][0]["mean_steps"]
    above = axis.secondary_xaxis("top", functions=(lambda s: s * layers, lambda a: a / layers))
    above.set_xlabel("layer applications of an answer")
    axis.set(xlabel="mean ACT steps of an answer", ylabel="exact accuracy, %")
    axis.set_title(f"{said['checkpoint']['name']} on {said['split']}, n {said['n']}")
    axis.grid(alpha=0.25)
    axis.legend(fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


# The command ----------------------------------------------------------------------------------------------------------


def add_subject(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", help="a run folder, a checkpoint in one, an imported folder, or a zoo name")
    parser.add_argument("--domain", metavar="PRESET", help="use this preset's data; imported models need it")
    parser.add_argument("--split", help="default: the test split")
    parser.add_argument("--limit", type=int, help="so many examples, spread evenly over the split")
    parser.add_argument("--weights", choices=("ema", "online"), default="ema")
    parser.add_argument("--slots", type=int, default=SLOTS, help="puzzles at a time; changes nothing but the time")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--out", type=Path, help="folder for the result (default: the run folder; for the zoo, this one)"
    )


def read_subject(args: argparse.Namespace) -> Subject:
    here = runtime.start(args.device)
    opened = open_weights(args.checkpoint, args.weights, here.device)
    data_config, defaults = choose_data(opened, args.domain)
    if args.limit is not None and args.limit < 1:
        raise UserError(f"--limit {args.limit} is too small: give at least 1")
    from ponder.base.console import Bar

    with Bar() as bar:
        path = data.build(data_config, args.data_dir, data.default_workers(), bar)
    precision = runtime.precision_for(defaults.train.precision, here.device)
    what = subject(opened, Dataset.open(path), args.split, args.limit, precision)
    if opened.config is None and what.domain.task_ids > 1:  # a published table has rows in an order of its own
        opened.model.table = arranged_table(opened.model.table, opened.path, Dataset.open(path), [what.split])
    return what


def write_result(args: argparse.Namespace, what: Subject, name: str, said: dict[str, Any]) -> Path:
    """NAME.json in the folder asked for, or beside where `ponder eval` puts its own; returns where its figure goes."""
    beside = default_folder(what.opened)
    folder: Path = args.out or beside.parent
    file = folder / f"{name if args.out else beside.name.replace('eval', name, 1)}.json"
    try:
        files.write_json(file, said)
    except OSError as error:
        raise UserError(f"cannot write to {folder} ({error.strerror}): choose another --out") from None
    return file.with_suffix(".png")


def main(args: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="ponder policies",
        description="Accuracy against compute for every halting policy on one checkpoint.",
        epilog="full: the whole budget, the main protocol. halt: the halting head says so (with a threshold on its "
        "probability, or when halting beats going on). stable m: the answer unchanged for m steps. checker: the rules "
        "accept the answer.",
    )
    add_subject(parser)
    parser.add_argument("--budget", type=int, help="ACT steps at most (default: the training budget)")
    parser.add_argument("--threshold", type=float, nargs="+", default=THRESHOLDS, metavar="P")
    parser.add_argument("--stable", type=int, nargs="+", default=STABLE, metavar="M")
    known = parser.parse_args(args)
    what = read_subject(known)
    policies = all_policies(what.model, what.domain, known.threshold, known.stable)
    comparison = compare_policies(what, known.budget, policies, known.slots)
    console = Console(highlight=False)
    print_comparison(comparison, console)
    said = comparison.data()
    picture = write_result(known, what, "policies", said)
    draw_policies(said, picture)
    console.print(f"wrote {picture.with_suffix('.json')} and {picture.name}")
