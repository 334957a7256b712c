"""Adaptive inference against the full budget: `python benchmarks/inference.py [CHECKPOINT ...] [--quick] [--save]`.

The full budget is the loop of `ponder eval`: fixed batches, every puzzle 16 ACT steps. Adaptive is the engine, whose
slots are refilled as puzzles leave. Both take turns on the same puzzles in batches of the same size, and the best of
several rounds counts, because other work may disturb any one of them (with one thread it is CPU time that is measured).
The last few puzzles have the batch to themselves, so that few puzzles show less of a gain than many.

Goal: at least 0.75 x (16 / mean steps) times as many puzzles a second, and at least 3 times, at no loss of accuracy
(the interval of the paired difference reaches 0). Voting for ARC is timed by benchmarks/arc.py.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ponder import data
from ponder.base import runtime
from ponder.base.errors import UserError
from ponder.base.stats import paired
from ponder.data import Dataset
from ponder.domains.contract import Tokens
from ponder.evaluation.compare import Subject, subject
from ponder.evaluation.records import Judge
from ponder.inference.engine import SLOTS, Checker, Engine, Full, Halt, Policy
from ponder.inference.weights import open_weights, zoo_names

RESULT = Path(__file__).resolve().parents[1] / "results" / "bench_inference.json"
DEFAULT = ("sudoku-4x4", "sudoku-6x6")
BUDGET = 16


@dataclass(frozen=True)
class Row:
    checkpoint: str
    sha256: str
    policy: str
    n: int
    slots: int
    full_per_second: float
    per_second: float
    ratio: float
    mean_steps: float
    wanted: float
    """The ratio to reach: 0.75 x (16 / mean steps), and at least 3."""
    full_exact: float
    exact: float
    change: dict[str, float]
    fast_enough: bool
    as_accurate: bool


def measure(what: Subject, slots: int, rounds: int) -> list[Row]:
    batch, n = what.batch, len(what.index)
    policies: list[Policy] = [Halt(), Halt(0.9), Checker()]
    answers: dict[str, Tokens] = {}
    steps: dict[str, float] = {}
    best: dict[str, float] = {}

    def full() -> None:
        parts = []
        for start in range(0, n, slots):
            rows = slice(start, start + slots)
            engine = Engine(what.model, what.domain, slots, Full(), BUDGET)
            parts.append(engine.run(batch.inputs[rows], batch.task_ids[rows]).answers)
        answers["full"], steps["full"] = np.concatenate(parts), BUDGET

    def adaptive(policy: Policy) -> Callable[[], None]:
        def run() -> None:
            engine = Engine(what.model, what.domain, slots, policy, BUDGET)
            answers[policy.name] = engine.run(batch.inputs, batch.task_ids).answers
            steps[policy.name] = engine.slot_steps / n

        return run

    runs = {"full": full, **{p.name: adaptive(p) for p in policies}}
    Engine(what.model, what.domain, slots, budget=1).run(batch.inputs[:slots], batch.task_ids[:slots])  # allocates
    for _ in range(rounds):
        for name, run in runs.items():
            began = _now()
            run()
            best[name] = min(best.get(name, float("inf")), _now() - began)
    exact = {name: Judge(what.domain, batch.inputs, batch.labels)(given)[0] for name, given in answers.items()}
    rows = []
    for name in list(runs)[1:]:
        ratio, wanted = best["full"] / best[name], max(3.0, 0.75 * BUDGET / steps[name])
        change = paired(exact[name], exact["full"])
        rows.append(
            Row(
                checkpoint=what.opened.name,
                sha256=what.opened.sha256,
                policy=name,
                n=n,
                slots=slots,
                full_per_second=round(n / best["full"], 1),
                per_second=round(n / best[name], 1),
                ratio=round(ratio, 2),
                mean_steps=round(steps[name], 3),
                wanted=round(wanted, 2),
                full_exact=float(exact["full"].mean()),
                exact=float(exact[name].mean()),
                change=change,
                fast_enough=ratio >= wanted,
                as_accurate=change["high"] >= 0,
            )
        )
    return rows


def _now() -> float:
    """With one thread, its CPU time, which other processes hardly change; with more, the time on the wall."""
    return time.thread_time() if torch.get_num_threads() == 1 else time.perf_counter()


def show(row: Row) -> str:
    low, high = (100 * row.change[k] for k in ("low", "high"))
    verdict = "reached" if row.fast_enough else "MISSED"
    return (
        f"{row.checkpoint}, {row.policy}: {row.per_second:.0f} puzzles a second against {row.full_per_second:.0f} = "
        f"{row.ratio:.2f} times (wanted {row.wanted:.2f}: {verdict}); "
        f"{row.mean_steps:.2f} steps on average; exact {row.exact:.1%} against {row.full_exact:.1%}, difference "
        f"{low:+.2f} to {high:+.2f} points{'' if row.as_accurate else ': WORSE'}, n {row.n}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoints", nargs="*", help=f"default: {' and '.join(DEFAULT)} of the zoo")
    parser.add_argument("--quick", action="store_true", help="512 puzzles, one round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=int, help="so many puzzles of each test split")
    parser.add_argument("--slots", type=int, default=SLOTS)
    parser.add_argument("--threads", type=int, help="with 1, CPU time is measured")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--save", action="store_true", help=f"write {RESULT.name}")
    options = parser.parse_args()
    names = options.checkpoints or [name for name in DEFAULT if name in zoo_names()]
    if not names:
        raise SystemExit(f"the zoo has none of {', '.join(DEFAULT)} yet: name run folders")
    if options.threads:
        torch.set_num_threads(options.threads)
    runtime.reuse_memory()
    rows: list[Row] = []
    try:
        for name in names:
            opened = open_weights(name)
            if opened.config is None:
                raise UserError(f"{name} was imported: give a run folder or a zoo name")
            dataset = Dataset.open(data.build(opened.config.data, options.data_dir, data.default_workers()))
            what = subject(opened, dataset, "test", 512 if options.quick else options.limit)
            for row in measure(what, options.slots, 1 if options.quick else options.rounds):
                rows.append(row)
                print(show(row), flush=True)
    except UserError as error:
        raise SystemExit(str(error)) from None
    if options.save:
        said: dict[str, Any] = {
            "budget": BUDGET,
            "clock": "CPU time" if torch.get_num_threads() == 1 else "wall",
            "environment": runtime.environment(),
            "rows": [asdict(row) for row in rows],
        }
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
