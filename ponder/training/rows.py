"""The rows of a run's log: what training and evaluation came to, how fast, and what a reader should be warned of."""

import time
from typing import Any

from ponder.base import native
from ponder.base.runtime import Runtime, matmul_peak
from ponder.config.resolve import Config
from ponder.data import Dataset
from ponder.evaluation.records import Settings, final_scores, run_splits
from ponder.model import cost
from ponder.training.optimisers import swapped
from ponder.training.state import Run


class Speed:
    """Example-steps per second, and their share of the machine's measured matrix-product peak."""

    def __init__(self, config: Config, dataset: Dataset, runtime: Runtime, done: int) -> None:
        domain, model = dataset.domain, config.model
        self.config = config
        self.work = cost.flops(model, len(domain.vocab), domain.seq_len, domain.geometry)
        cores = runtime.world * (native.threads() if runtime.device.type == "cpu" else 1)
        rows = config.train.batch // config.train.accumulate * domain.seq_len // cores
        self.peak = cores * matmul_peak((max(rows, 1), model.width, 3 * model.width), runtime.device)
        self.batch, self.update, self.at = config.train.batch, done, time.perf_counter()

    def add_to(self, row: dict[str, Any], more: int) -> None:
        """`more`: ACT steps of an update without a graph and without a loss."""
        now = time.perf_counter()
        rate = (row["update"] - self.update) * self.batch / max(now - self.at, 1e-9)
        states, work = self.config.train.winners, self.work
        flops = work.training + (states * (more + 1) if states > 1 else more) * work.inference
        if self.config.train.fixpoint_weight > 0:
            # A backward pass, and a forward one unless the continue target has it.
            back = work.training - work.inference
            flops += back - work.inference if self.config.model.halting == "halt+continue" else back + work.inference
        row |= {"example_steps_per_second": rate * (1 + more), "peak_fraction": rate * flops / self.peak}
        self.at, self.update = now, row["update"]


def log_row(run: Run, config: Config, factor: float) -> dict[str, Any]:
    """Means over the updates since the last row."""
    window = run.window
    assert window is not None
    count = window["updates"] * config.train.batch
    finished = max(window["finished"], 1.0)
    row: dict[str, Any] = {"kind": "train", "update": run.update}
    losses = ("loss", "answer_loss", "halt_loss", "continue_loss", "fixpoint_loss")
    for name in (*losses, "q_halt", "norm_h", "norm_l", "ratio"):
        if name in window:
            row[name] = window[name] / count
    for name in ("exact", "token", "steps"):
        row[name] = window[name] / finished
    row |= {
        "finished": int(window["finished"]),
        "grad_norm": window["grad_norm"] / window["updates"],
        "grad_norm_max": window["grad_norm_max"],
        "lr": config.train.lr * factor,
        "seconds": run.seconds,
        "update_seconds": run.update_seconds,
    }
    return row


def evaluation_row(
    run: Run, dataset: Dataset, splits: list[str], runtime: Runtime, precision: str, online: bool = True
) -> dict[str, Any]:
    """Every split with the averaged and, where they are asked for, the online weights, at the full budget."""
    config = run.config
    how = Settings(config.model.max_steps, config.eval.batch, config.eval.examples, precision)
    row: dict[str, Any] = {"kind": "eval", "update": run.update, "n": {}}
    value, table = run.averaged()
    for name in ("online", "ema") if online and run.average is not None else ("ema",):
        with swapped(
            run.weights, run.model, *((value, table) if name == "ema" else (run.weights.value.clone(), run.model.table))
        ):
            records = run_splits(run.model, dataset.domain, {s: dataset.source(s) for s in splits}, how, runtime)
        row[name] = {split: final_scores(r) for split, r in records.items()}
        row["n"] = {split: r.n for split, r in records.items()}
    return row


def collapse(row: dict[str, Any]) -> str | None:
    """The halting head has given up when it is sure to be wrong although many answers are right, or to be right
    although most are wrong, or has run away."""
    q = row.get("q_halt")
    if q is None:
        return None
    if (q < -15 and row["exact"] > 0.2) or (q > 3 and row["exact"] < 0.5) or q > 30:
        return (
            f"halting logits say nothing (mean {q:.0f} with {row['exact']:.0%} right): halting has collapsed. Lower "
            f"--train.lr or --train.halting_weight, or set --train.clip 1"
        )
    return None
