"""The training loop, top to bottom: data, model, resume, then one optimiser update per ACT step until it is done.

Slots are numbered over all ranks. What enters a slot, and everything random about it, is a function of (seed, slot,
refill, step), so that a resumed run, a run on other ranks and every variant of a study see the same numbers.
"""

import math
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ponder import checkpoint
from ponder.base import native
from ponder.base.errors import UserError
from ponder.base.runtime import Runtime, carry_dtype, compile_for, precision_for
from ponder.config.resolve import Config
from ponder.data import Dataset
from ponder.domains.contract import Augmented, Domain, Source
from ponder.evaluation.records import Settings, run_split
from ponder.model.layers import compile_blocks
from ponder.model.reasoner import Reasoner
from ponder.training.log import Log
from ponder.training.micro import Depth, micro_step
from ponder.training.optimisers import AdamAtan2, Average, PuzzleTable, Schedule, Weights, clip
from ponder.training.rows import Speed, collapse, evaluation_row, log_row
from ponder.training.slots import make_slots, refill
from ponder.training.state import Run


class View(Protocol):
    """Whoever watches: the terminal, plain lines, a tracker, nobody."""

    def begin(self, config: Config, updates: int, done: int) -> None: ...

    def row(self, row: dict[str, Any]) -> None: ...

    def say(self, text: str) -> None: ...


@dataclass(frozen=True)
class Limits:
    """When this invocation ends even if training is not finished."""

    seconds: float | None = None
    updates: int | None = None

    def __post_init__(self) -> None:
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise UserError(f"--max-seconds {self.seconds:g} is no time: give more than 0, or leave it out")
        if self.updates is not None and self.updates < 1:
            raise UserError(f"--max-updates {self.updates} is no number of updates: give 1 or more, or leave it out")


@dataclass(frozen=True)
class Outcome:
    finished: bool
    update: int
    updates: int
    reason: str


LATE = float(2**20)
"""The wish of a rank whose time is up: more than all ranks together can wish because of a signal."""


class Stop:
    """Set by a signal; looked at between updates."""

    def __init__(self) -> None:
        self.asked = False


# One update -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gathered:
    """What the micro-steps of one update came to; the gradients themselves are in the weights' flat tensor."""

    ids: Tensor
    rows: Tensor
    """Of the puzzle table: gradients of the rows that examples of all ranks used."""
    norm: float
    """Of the gradient, before clipping."""
    sums: dict[str, float]
    stopping: float
    """The reasons to stop, as ranks gave them before this update; 0 where nobody had one."""


def gather_gradients(
    run: Run,
    source: Source,
    depth: Depth,
    pool: ThreadPoolExecutor | None,
    runtime: Runtime,
    precision: str,
    stopping: float = 0.0,
    factor: float = 1.0,
) -> Gathered:
    """A micro-step for each accumulation step. The host waits for the device once, to read what all of them came to.
    `factor`: of the schedule, for a table that steps after each."""
    config, apart = run.config, run.config.train.per_micro_step
    run.weights.grad.zero_()
    moments, parts = [], []
    for micro in range(config.train.accumulate):
        slots = run.slots[micro % len(run.slots)]
        refill(slots, run.model, source, config, pool)
        moments.append(micro_step(slots, run.model, run.weights, config, depth, runtime, precision))
        if "table" in apart:
            used = runtime.gather(slots.task_ids), runtime.gather(moments[-1].row_grads)
            run.table.update(*used, config.train.table_lr * factor, run.update + 1)
        if "clip" in apart:
            parts.append(run.weights.grad.clone())
            run.weights.grad.zero_()
    for part in parts:
        run.weights.grad.add_(part)
    ids, rows = torch.cat([m.task_ids for m in moments]), torch.cat([m.row_grads for m in moments])
    names, total = moments[0].names, torch.stack([m.sums for m in moments]).sum(dim=0)
    total = torch.cat((total.new_full((1,), stopping), total))
    if len(run.model.table) == 1:  # one message for all there is: ranks that meet wait for each other
        ids, rows = ids[:1], rows.float().sum(dim=0, keepdim=True)
        runtime.sum_([run.weights.grad, total, rows, *parts])
    else:
        runtime.sum_([run.weights.grad, total, *parts])
        if config.train.table_lr > 0:
            ids, rows = runtime.gather(ids), runtime.gather(rows)
    norm = clip(run.weights.grad, None if parts else config.train.clip)
    if parts and config.train.clip is not None:
        for part in parts:
            clip(part, config.train.clip / len(parts))
        run.weights.grad.copy_(torch.stack(parts).sum(dim=0))
    done = torch.cat([slots.done for slots in run.slots])
    values = read(torch.cat((norm.float()[None], total, done.float())))
    first = 2 + len(names)
    for slots in run.slots:
        slots.known = values[first : first + len(slots.ids)] > 0
        first += len(slots.ids)
    sums = dict(zip(names, values[2:].tolist(), strict=False))
    return Gathered(ids, rows, float(values[0]), sums, float(values[1]))


def read(values: Tensor) -> npt.NDArray[np.float32]:
    """The one place of an update where the host waits for the device (tests/training/test_syncs.py)."""
    out: npt.NDArray[np.float32] = values.cpu().numpy()
    return out


def apply_gradients(run: Run, gathered: Gathered, factor: float) -> None:
    train = run.config.train
    run.optimiser.update(train.lr * factor, run.average)
    run.update = run.optimiser.t
    if train.table_lr > 0 and "table" not in train.per_micro_step:
        run.table.update(gathered.ids, gathered.rows, train.table_lr * factor, run.update)


# The whole of it ------------------------------------------------------------------------------------------------------


def train(
    config: Config,
    folder: Path,
    dataset: Dataset,
    runtime: Runtime,
    view: View,
    limits: Limits,
    stop: Stop,
    online: bool = False,
) -> Outcome:
    """Train in `folder`, from its newest checkpoint if it has one. `online`: evaluate these weights on the way too,
    beside the averaged ones; at the end both are."""
    began = time.perf_counter()
    domain, source = dataset.domain, dataset.source("train")
    if config.data.augment:
        source = Augmented(source, domain, config.seed)
    updates = total_updates(config, len(source))
    precision = precision_for(config.train.precision, runtime.device)
    run = new_run(config, domain, runtime, carry_dtype(precision))
    model = run.model
    schedule = Schedule(updates, config.train.warmup, config.train.lr_min_ratio, config.train.schedule)
    if compile_for(config.train.compile, runtime.device):
        compile_blocks(model)

    # Resume, or find out now what would fail later
    checkpoints, best = folder / "checkpoints", folder / "best"
    log = Log(folder / "metrics.jsonl", runtime)
    saved = checkpoint.newest(checkpoints, view.say if runtime.main else None)
    if saved is not None:
        run.load(saved, source)
        run.best = _kept(best, run.best, view)
    elif config.train.start is not None:
        run.begin_from(config.train.start)
    log.go_on(saved)
    surroundings = {"data_hash": dataset.hash, "threads": native.threads(), "kernels": native.state()}
    splits = list(dict.fromkeys(config.eval.splits)) or [s for s in dataset.counts if s != "train"]
    if "val" not in splits:
        splits.append("val")  # checkpoints are chosen on it
    if saved is None:
        preflight(run, folder, dataset, splits, runtime, precision)
    speed = Speed(config, dataset, runtime, run.update)
    view.begin(config, updates, run.update)

    pool = ThreadPoolExecutor(config.train.data_workers) if config.train.data_workers > 0 else None
    started_at, spent_before, stopping = run.update, run.seconds, 0.0
    outcome = None
    while outcome is None:
        if run.update < updates:
            update_began = runtime.clock()
            depth = Depth.at(config, run.update, updates)
            wish = _wish(limits, time.perf_counter() - began, stop)
            factor = schedule(run.update)
            gathered = gather_gradients(run, source, depth, pool, runtime, precision, wish, factor)
            norm, sums = gathered.norm, gathered.sums
            if not (math.isfinite(norm) and math.isfinite(sums["loss"])):
                raise UserError(_not_finite(run.update, norm, sums, checkpoints))
            apply_gradients(run, gathered, factor)
            now = time.perf_counter()
            run.seconds = spent_before + now - began
            run.update_seconds += runtime.clock() - update_began
            window = run.window or {}
            sums |= {"grad_norm": norm, "updates": 1.0}
            run.window = {k: window.get(k, 0.0) + v for k, v in sums.items()}
            run.window["grad_norm_max"] = max(window.get("grad_norm_max", 0.0), norm)

            # Log, evaluate, save: in this order, so that a checkpoint covers all rows up to its update
            stopping = gathered.stopping if runtime.world > 1 else _wish(limits, now - began, stop)
        outcome = _ending(run, updates, limits, started_at, stopping)
        if run.window and (run.update % config.train.log_every == 0 or run.update == updates):
            row = log_row(run, config, factor)
            speed.add_to(row, depth.unsupervised(config))
            run.window = None
            log.write(row)
            view.row(row)
            if warning := collapse(row):
                view.say(warning)
        due = run.update % config.train.eval_every == 0 or run.update == updates
        if due and run.update not in log.evaluated:
            row = evaluation_row(run, dataset, splits, runtime, precision, online or run.update == updates)
            row |= {"seconds": run.seconds, "update_seconds": run.update_seconds}
            log.write(row)
            view.row(row)
            score = row["ema"].get("val", {}).get(config.eval.select)
            if score is not None and (run.best is None or score >= run.best["score"]):  # of equal ones the later
                run.best = {"update": run.update, "score": score}
                run.save(best, runtime, surroundings, everything=False)
        if run.update % config.train.save_every == 0 or outcome is not None:
            about = {**surroundings, "log": log.covered()}
            run.save(checkpoints / f"u{run.update:09d}", runtime, about)
            if runtime.main:
                checkpoint.prune(checkpoints, keep=2)
    if pool is not None:
        pool.shutdown()
    return outcome


def new_run(config: Config, domain: Domain, runtime: Runtime, dtype: torch.dtype) -> Run:
    torch.manual_seed(config.seed)
    model = Reasoner(config.model, len(domain.vocab), domain.seq_len, domain.task_ids, domain.geometry)
    model = model.to(runtime.device).train()
    weights = Weights(model)
    return Run(
        config=config,
        model=model,
        weights=weights,
        optimiser=AdamAtan2(weights, config.train),
        average=Average(weights, config.train.ema) if config.train.ema is not None else None,
        table=PuzzleTable(model, config.train),
        slots=make_slots(config, model, domain, runtime, dtype),
    )


def _kept(folder: Path, best: dict[str, Any] | None, view: View) -> dict[str, Any] | None:
    """What a run knows of its best checkpoint, as far as it is there: a damaged one is an error."""
    if best is None:
        return None
    if not folder.exists():
        view.say(f"{folder} is gone: the best of the evaluations to come takes its place")
        return None
    try:
        checkpoint.read(folder)
    except UserError as error:
        raise UserError(f"{error}: restore it from a copy, or delete {folder} to go on without it") from None
    return best


def total_updates(config: Config, examples: int) -> int:
    if config.train.updates is not None:
        return config.train.updates
    assert config.train.epochs is not None
    return math.ceil(config.train.epochs * examples / config.train.batch)


def _wish(limits: Limits, seconds: float, stop: Stop) -> float:
    """Whether this rank would stop: LATE, or 1 where a signal asked for it. Ranks add their wishes up in an update."""
    return LATE if limits.seconds is not None and seconds >= limits.seconds else float(stop.asked)


def _ending(run: Run, updates: int, limits: Limits, started_at: int, stopping: float) -> Outcome | None:
    """Whether to stop after this update: a matter of what all ranks know."""
    if run.update >= updates:
        return Outcome(True, run.update, updates, "finished")
    if limits.updates is not None and run.update - started_at >= limits.updates:
        return Outcome(False, run.update, updates, f"--max-updates {limits.updates}")
    if stopping == 0:
        return None
    late = stopping >= LATE and limits.seconds is not None
    return Outcome(False, run.update, updates, f"--max-seconds {limits.seconds:g}" if late else "interrupted")


def preflight(run: Run, folder: Path, dataset: Dataset, splits: list[str], runtime: Runtime, precision: str) -> None:
    """What can fail later fails now: splits, shapes, disk space, a write, and two batches of evaluation."""
    for split in splits:
        dataset.arrays(split)
    need = 16 * run.weights.value.numel() + 12 * run.model.table.numel()
    for slots in run.slots:
        need += sum(s.numel() * s.element_size() for s in slots.carry.states.held)
    free = shutil.disk_usage(folder).free
    if free < 4 * need:
        raise UserError(
            f"{folder} has {free / 1e9:.1f} GB free, checkpoints need {4 * need / 1e9:.1f} GB: use --out elsewhere"
        )
    for split in splits:
        few = max(1, min(8, dataset.counts[split] // 2))
        how = Settings(1, few, 2 * few, precision)
        run_split(run.model, dataset.domain, dataset.source(split), how, runtime)


def _not_finite(update: int, norm: float, sums: dict[str, float], checkpoints: Path) -> str:
    what = "loss" if not math.isfinite(sums["loss"]) else f"gradient norm ({norm})"
    if "q_halt" in sums and not math.isfinite(sums["q_halt"]):
        what = "halting logit"
    saved = checkpoint.listed(checkpoints)
    kept = f"the last good checkpoint is {saved[-1]}" if saved else "no checkpoint was written yet"
    return (
        f"the {what} was not finite at update {update + 1}; {kept}. Try a lower --train.lr, --train.clip 1, or "
        f"--train.precision float32, in another --out"
    )
