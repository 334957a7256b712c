"""The training loop, top to bottom: data, model, resume, then one optimiser update per ACT step until it is done.

Slots are numbered over all ranks. What enters a slot, and everything random about it, is a function of (seed, slot,
refill, step), so that a resumed run, a run on other ranks and every variant of a study see the same numbers.
"""

import json
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

from ponder import checkpoint, evaluate, losses, rng
from ponder.config import Config
from ponder.data import Dataset
from ponder.domains.base import Source
from ponder.errors import UserError

from ponder.model.reasoner import Carry, Reasoner
from ponder.model.recurrence import States
from ponder.optim import AdamAtan2, Average, PuzzleTable, Schedule, Weights, clip, swapped
from ponder.runtime import Runtime, compile_for, environment, precision_for

Ints = npt.NDArray[np.int64]
TIMING = ("seconds", "example_steps_per_second", "peak_fraction")
"""Fields of metrics.jsonl that depend on the machine's mood; all others repeat bit for bit."""


class View(Protocol):
    """Whoever watches: the terminal, plain lines, a tracker, nobody."""

    def begin(self, config: Config, updates: int, done: int) -> None: ...

    def row(self, row: dict[str, Any]) -> None: ...

    def say(self, text: str) -> None: ...


@dataclass
class Slots:
    """A group of slots that advance together: the carry and the examples in it."""

    ids: Ints
    refills: Ints
    carry: Carry
    inputs: Tensor
    labels: Tensor
    task_ids: Tensor
    done: Tensor
    """Which slots take a new example before the next step."""


@dataclass(frozen=True)
class Limits:
    """When this invocation ends even if training is not finished."""

    seconds: float | None = None
    updates: int | None = None


@dataclass(frozen=True)
class Outcome:
    finished: bool
    update: int
    updates: int
    reason: str


class Stop:
    """Set by a signal; looked at between updates."""

    def __init__(self) -> None:
        self.asked = False


# Slots ----------------------------------------------------------------------------------------------------------------


def make_slots(config: Config, model: Reasoner, tokens: int, runtime: Runtime, dtype: torch.dtype) -> list[Slots]:
    """This rank's slots, one group for each micro-step that has its own."""
    train = config.train
    groups = train.accumulate if train.accumulation == "independent" else 1
    total = slot_count(config)
    if total % (runtime.world * groups):
        raise UserError(
            f"train.batch {train.batch} with accumulate {train.accumulate} cannot be shared by {runtime.world} ranks: "
            f"choose a batch that is a multiple of {runtime.world * train.accumulate}"
        )
    size = total // runtime.world // groups
    made = []
    for group in range(groups):
        first = runtime.rank * (total // runtime.world) + group * size
        ids = np.arange(first, first + size, dtype=np.int64)
        key = torch.zeros(size, dtype=torch.int64, device=runtime.device)
        made.append(
            Slots(
                ids=ids,
                refills=np.full(size, -1, dtype=np.int64),
                carry=model.start(key, dtype),
                inputs=torch.zeros(size, tokens, dtype=torch.int64, device=runtime.device),
                labels=torch.zeros(size, tokens, dtype=torch.int64, device=runtime.device),
                task_ids=torch.zeros(size, dtype=torch.int64, device=runtime.device),
                done=torch.ones(size, dtype=torch.bool, device=runtime.device),
            )
        )
    return made


def slot_count(config: Config) -> int:
    train = config.train
    return train.batch if train.accumulation == "independent" else train.batch // train.accumulate


def load_examples(slots: Slots, where: Ints, source: Source, config: Config, pool: ThreadPoolExecutor | None) -> None:
    """Put the examples that (slot, refill) name into the slots."""
    index, epoch = rng.drawn(config.seed, len(source), slot_count(config), slots.ids[where], slots.refills[where])
    if pool is None:
        batches = [source.fetch(index, epoch)]
    else:
        pieces = min(config.train.data_workers, len(where))
        batches = list(pool.map(source.fetch, np.array_split(index, pieces), np.array_split(epoch, pieces)))
    device = slots.inputs.device
    at = torch.from_numpy(where).to(device)
    for name in ("inputs", "labels", "task_ids"):
        value = np.concatenate([getattr(batch, name) for batch in batches])
        getattr(slots, name)[at] = torch.from_numpy(value).to(device, torch.int64)


def refill(slots: Slots, model: Reasoner, source: Source, config: Config, pool: ThreadPoolExecutor | None) -> None:
    """Slots whose example is done take the next one."""
    where = np.flatnonzero(slots.done.cpu().numpy())
    if len(where) == 0:
        return
    slots.refills[where] += 1
    load_examples(slots, where, source, config, pool)
    slots.carry = model.reset(slots.carry, slots.done, slot_keys(slots, config))


def slot_keys(slots: Slots, config: Config) -> Tensor:
    device = slots.inputs.device
    ids, refills = torch.from_numpy(slots.ids).to(device), torch.from_numpy(slots.refills).to(device)
    return rng.slot_keys(config.seed, ids, refills)


# One micro-step -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Depth:
    """How deep training goes at this update: full, unless a curriculum is still growing it."""

    steps: int
    h_cycles: int

    @staticmethod
    def at(config: Config, update: int, updates: int) -> "Depth":
        model, train = config.model, config.train
        grown = min(1.0, update / (train.grow_until * updates))
        steps = math.ceil(1 + (model.max_steps - 1) * grown) if train.grow == "steps" else model.max_steps
        cycles = math.ceil(1 + (model.h_cycles - 1) * grown) if train.grow == "cycles" else model.h_cycles
        return Depth(steps, cycles)


@dataclass(frozen=True)
class Moment:
    """Sums over the examples of one micro-step, for the log."""

    sums: dict[str, Tensor]
    task_ids: Tensor
    row_grads: Tensor


def micro_step(slots: Slots, model: Reasoner, config: Config, depth: Depth, runtime: Runtime, precision: str) -> Moment:
    """Advance the slots by one ACT step, add to the gradients, and decide which examples are done."""
    rows = model.table[slots.task_ids].detach().requires_grad_()
    with runtime.autocast(precision):
        step = model(slots.carry, slots.inputs, rows, h_cycles=depth.h_cycles)
        carry = step.carry.detach()
        last = carry.steps >= depth.steps
        target = None
        if step.q_continue is not None:
            with torch.no_grad():
                # The very step that comes next, with its noise and masks, under the present weights.
                following = model(carry, slots.inputs, rows, h_cycles=depth.h_cycles)
            target = losses.continue_target(following.q_halt, following.q_continue, last)
    loss = losses.losses(step.logits, slots.labels, step.q_halt, step.q_continue, target, config.train.halting_weight)
    (loss.total / config.train.batch).backward()  # type: ignore[no-untyped-call]
    slots.carry = carry
    slots.done = halted(step.q_halt, step.q_continue, carry, last, depth.steps, config)
    done = slots.done
    sums = {
        "loss": loss.total.detach(),
        "answer_loss": loss.answer,
        "halt_loss": loss.halt,
        "continue_loss": loss.cont,
        "finished": done.sum(),
        "exact": (loss.exact & done).sum(),
        "token": (loss.token * done).sum(),
        "steps": (carry.steps * done).sum(),
    }
    if step.q_halt is not None:
        sums["q_halt"] = step.q_halt.detach().sum()
    for name, state in (("norm_h", carry.states.h), ("norm_l", carry.states.l)):
        if state is not None:
            sums[name] = torch.linalg.vector_norm(state, dim=-1, dtype=torch.float32).mean(dim=-1).sum()
    if step.ratio is not None:
        sums["ratio"] = step.ratio.float().mean(dim=(1, 2)).sum()
    assert rows.grad is not None
    return Moment(sums, slots.task_ids, rows.grad)


def halted(
    q_halt: Tensor | None, q_continue: Tensor | None, carry: Carry, last: Tensor, budget: int, config: Config
) -> Tensor:
    """An example ends when the halting head says so, at the latest at the budget; now and then a random minimum holds."""
    if q_halt is None:
        return last
    done = q_halt > (q_continue if q_continue is not None else 0)
    key = rng.fold(carry.key, carry.steps)
    explore = rng.uniform(rng.fold(key, rng.EXPLORE)) < config.train.explore
    minimum = 2 + (rng.uniform(rng.fold(key, rng.EXPLORE_LENGTH)) * (budget - 1)).to(torch.int64)
    return (done & (~explore | (carry.steps >= minimum))) | last


# Checkpoints ----------------------------------------------------------------------------------------------------------


@dataclass
class Run:
    """Everything that changes while training: what a checkpoint must hold."""

    config: Config
    model: Reasoner
    weights: Weights
    optimiser: AdamAtan2
    average: Average | None
    table: PuzzleTable
    slots: list[Slots]
    update: int = 0
    seconds: float = 0.0
    best: dict[str, Any] | None = None
    window: dict[str, float] | None = None
    """Sums since the last row of the log."""

    def averaged(self) -> tuple[Tensor, Tensor]:
        """The EMA weights and table; the online ones where there is no EMA."""
        if self.average is None:
            return self.weights.value, self.model.table
        return self.average.value, self.table.averaged(self.update)

    def save(self, folder: Path, runtime: Runtime, everything: bool = True) -> None:
        """Write a checkpoint. `everything` adds what resuming needs to what evaluating needs."""
        part = checkpoint.aside(folder)
        if runtime.main:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
        runtime.barrier()
        if everything:
            carried = [_carry_tensors(slots) for slots in self.slots]
            checkpoint.write_tensors(
                part, f"carry-{runtime.rank}", {k: torch.cat([c[k] for c in carried]) for k in carried[0]}
            )
        runtime.barrier()
        if runtime.main:
            buffers = {n: b for n, b in self.model.named_buffers() if n != "table"}
            online = {**self.weights.named(self.weights.value), **buffers, "table": self.model.table}
            checkpoint.write_tensors(part, "weights", online)
            if self.average is not None:
                value, table = self.averaged()
                checkpoint.write_tensors(part, "ema", {**self.weights.named(value), **buffers, "table": table})
            if everything:
                named = {f"m.{k}": v for k, v in self.weights.named(self.optimiser.m).items()}
                named |= {f"v.{k}": v for k, v in self.weights.named(self.optimiser.v).items()}
                if self.table.ema is not None:
                    named |= {"table.ema": self.table.ema, "table.seen": self.table.seen}
                checkpoint.write_tensors(part, "optimiser", named)
            checkpoint.complete(folder, self._state(runtime))
        runtime.barrier()

    def _state(self, runtime: Runtime) -> dict[str, Any]:
        return {
            "update": self.update,
            "seconds": self.seconds,
            "best": self.best,
            "window": self.window,
            "ranks": runtime.world,
            "config": self.config.key(),
        }

    def load(self, saved: checkpoint.Checkpoint, source: Source) -> None:
        online = saved.tensors("weights")
        self.weights.load(self.weights.value, online)
        for name, buffer in self.model.named_buffers():
            buffer.copy_(online[name])
        held = saved.tensors("optimiser")
        self.weights.load(self.optimiser.m, {k[2:]: v for k, v in held.items() if k.startswith("m.")})
        self.weights.load(self.optimiser.v, {k[2:]: v for k, v in held.items() if k.startswith("v.")})
        if self.average is not None:
            self.weights.load(self.average.value, saved.tensors("ema"))
        if self.table.ema is not None:
            self.table.ema.copy_(held["table.ema"])
            self.table.seen.copy_(held["table.seen"])
        self.update = self.optimiser.t = saved.state["update"]
        self.seconds, self.best, self.window = (saved.state[k] for k in ("seconds", "best", "window"))
        files = [saved.tensors(f"carry-{rank}") for rank in range(saved.state["ranks"])]
        carried = {k: torch.cat([f[k] for f in files]) for k in files[0]}
        order = {int(slot): at for at, slot in enumerate(carried["ids"])}
        for slots in self.slots:
            at = torch.tensor([order[int(slot)] for slot in slots.ids])
            _restore_slots(slots, {k: v[at] for k, v in carried.items()}, self.config, source)


def _carry_tensors(slots: Slots) -> dict[str, Tensor]:
    states = {"h": slots.carry.states.h, "l": slots.carry.states.l}
    return {
        "ids": torch.from_numpy(slots.ids),
        "refills": torch.from_numpy(slots.refills),
        "steps": slots.carry.steps.cpu(),
        "done": slots.done.cpu(),
        **{name: state.cpu() for name, state in states.items() if state is not None},
    }


def _restore_slots(slots: Slots, saved: dict[str, Tensor], config: Config, source: Source) -> None:
    """The examples themselves are not saved: (slot, refill) names them."""
    device = slots.inputs.device
    slots.refills = saved["refills"].numpy()
    slots.done = saved["done"].to(device)
    states = [saved[name].to(device) if name in saved else None for name in ("h", "l")]
    slots.carry = Carry(States(*states), saved["steps"].to(device), slot_keys(slots, config))
    load_examples(slots, np.arange(len(slots.ids)), source, config, None)


# The whole of it ------------------------------------------------------------------------------------------------------


def train(
    config: Config, folder: Path, dataset: Dataset, runtime: Runtime, view: View, limits: Limits, stop: Stop
) -> Outcome:
    """Train in `folder`, from its newest checkpoint if it has one."""
    began = time.perf_counter()
    domain, source = dataset.domain, dataset.source("train")
    updates = total_updates(config, len(source))
    precision = precision_for(config.train.precision, runtime.device)
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32

    # Model and optimisers
    torch.manual_seed(config.seed)
    model = Reasoner(config.model, len(domain.vocab), domain.seq_len, domain.task_ids).to(runtime.device).train()
    weights = Weights(model)
    run = Run(
        config=config,
        model=model,
        weights=weights,
        optimiser=AdamAtan2(weights, config.train),
        average=Average(weights, config.train.ema) if config.train.ema is not None else None,
        table=PuzzleTable(model, config.train),
        slots=make_slots(config, model, domain.seq_len, runtime, dtype),
    )
    schedule = Schedule(updates, config.train.warmup, config.train.lr_min_ratio, config.train.schedule)
    if compile_for(config.train.compile, runtime.device):
        from ponder.model.layers import compile_blocks

        compile_blocks(model)

    # Resume, or find out now what would fail later
    checkpoints = folder / "checkpoints"
    log = Log(folder / "metrics.jsonl", runtime)
    saved = checkpoint.newest(checkpoints, view.say if runtime.main else None)
    if saved is not None:
        run.load(saved, source)
    log.cut_after(run.update if saved is not None else -1)
    splits = list(config.eval.splits) or [s for s in dataset.counts if s != "train"]
    if saved is None:
        preflight(run, folder, dataset, splits, runtime, precision)
    view.begin(config, updates, run.update)

    pool = ThreadPoolExecutor(config.train.data_workers) if config.train.data_workers > 0 else None
    started_at, spent_before = run.update, run.seconds
    outcome = None
    while outcome is None:
        # One update: a micro-step for each accumulation step, then the optimisers
        if run.update < updates:
            depth = Depth.at(config, run.update, updates)
            weights.grad.zero_()
            moments = []
            for micro in range(config.train.accumulate):
                slots = run.slots[micro % len(run.slots)]
                refill(slots, model, source, config, pool)
                moments.append(micro_step(slots, model, config, depth, runtime, precision))
            runtime.sum_([weights.grad])
            norm = float(clip(weights.grad, config.train.clip))
            sums = _summed(moments, runtime)
            if not (math.isfinite(norm) and math.isfinite(sums["loss"])):
                raise UserError(_not_finite(run.update, norm, sums, checkpoints))
            factor = schedule(run.update)
            run.optimiser.update(config.train.lr * factor)
            run.update = run.optimiser.t
            if config.train.table_lr > 0:
                run.table.update(
                    torch.cat([m.task_ids for m in moments]),
                    torch.cat([m.row_grads for m in moments]),
                    config.train.table_lr * factor,
                    run.update,
                    runtime,
                )
            if run.average is not None:
                run.average.update(weights)
            run.seconds = spent_before + time.perf_counter() - began
            window = run.window or {}
            sums |= {"grad_norm": norm, "updates": 1.0}
            run.window = {k: window.get(k, 0.0) + v for k, v in sums.items()}
            run.window["grad_norm_max"] = max(window.get("grad_norm_max", 0.0), norm)

        # Log, evaluate, save: in this order, so that a checkpoint covers all rows up to its update
        outcome = _ending(run, updates, limits, started_at, time.perf_counter() - began, stop, runtime)
        if run.window and (run.update % config.train.log_every == 0 or run.update == updates):
            row = _log_row(run, config, factor)
            run.window = None
            log.write(row)
            view.row(row)
            if warning := _collapse(row):
                view.say(warning)
        if (run.update % config.train.eval_every == 0 or run.update == updates) and not log.has("eval", run.update):
            row = evaluation_row(run, dataset, splits, runtime, precision)
            row["seconds"] = run.seconds
            log.write(row)
            view.row(row)
            score = row["ema"].get("val", {}).get(config.eval.select)
            if score is not None and (run.best is None or score > run.best["score"]):
                run.best = {"update": run.update, "score": score}
                run.save(folder / "best", runtime, everything=False)
        if run.update % config.train.save_every == 0 or outcome is not None:
            run.save(checkpoints / f"u{run.update:09d}", runtime)
            if runtime.main:
                checkpoint.prune(checkpoints, keep=2)
    if pool is not None:
        pool.shutdown()
    return outcome


def total_updates(config: Config, examples: int) -> int:
    if config.train.updates is not None:
        return config.train.updates
    assert config.train.epochs is not None
    return math.ceil(config.train.epochs * examples / config.train.batch)


def _summed(moments: list[Moment], runtime: Runtime) -> dict[str, float]:
    names = list(moments[0].sums)
    total = torch.stack([torch.stack([m.sums[k].float() for k in names]) for m in moments]).sum(dim=0)
    runtime.sum_([total])
    return dict(zip(names, total.tolist(), strict=True))


def _ending(
    run: Run, updates: int, limits: Limits, started_at: int, seconds: float, stop: Stop, runtime: Runtime
) -> Outcome | None:
    """Whether to stop after this update, agreed between ranks."""
    reason = ""
    if run.update >= updates:
        return Outcome(True, run.update, updates, "finished")
    if limits.updates is not None and run.update - started_at >= limits.updates:
        reason = f"--max-updates {limits.updates}"
    elif limits.seconds is not None and seconds >= limits.seconds:
        reason = f"--max-seconds {limits.seconds:g}"
    elif stop.asked:
        reason = "interrupted"
    if runtime.world > 1:
        reason = next((r for r in runtime.gather_objects(reason) if r), "")
    return Outcome(False, run.update, updates, reason) if reason else None


def _log_row(run: Run, config: Config, factor: float) -> dict[str, Any]:
    """Means over the updates since the last row."""
    window = run.window
    assert window is not None
    count = window["updates"] * config.train.batch
    finished = max(window["finished"], 1.0)
    row: dict[str, Any] = {"kind": "train", "update": run.update}
    for name in ("loss", "answer_loss", "halt_loss", "continue_loss", "q_halt", "norm_h", "norm_l", "ratio"):
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
    }
    return row


def evaluation_row(run: Run, dataset: Dataset, splits: list[str], runtime: Runtime, precision: str) -> dict[str, Any]:
    """Every split with the online and with the averaged weights, at the full budget."""
    config = run.config
    row: dict[str, Any] = {"kind": "eval", "update": run.update, "n": {}}
    value, table = run.averaged()
    for name in ("online", "ema") if run.average is not None else ("ema",):
        with swapped(
            run.weights, run.model, *((value, table) if name == "ema" else (run.weights.value.clone(), run.model.table))
        ):
            records = evaluate.run_splits(
                run.model,
                dataset,
                splits,
                config.model.max_steps,
                config.eval.batch,
                runtime,
                precision,
                config.eval.examples,
            )
        row[name] = {split: evaluate.final_scores(r) for split, r in records.items()}
        row["n"] = {split: r.n for split, r in records.items()}
    return row


def preflight(run: Run, folder: Path, dataset: Dataset, splits: list[str], runtime: Runtime, precision: str) -> None:
    """What can fail later fails now: splits, shapes, disk space, a write, and two batches of evaluation."""
    for split in splits:
        dataset.arrays(split)
    need = 16 * run.weights.value.numel() + 12 * run.model.table.numel()
    for slots in run.slots:
        need += sum(s.numel() * s.element_size() for s in (slots.carry.states.h, slots.carry.states.l) if s is not None)
    free = shutil.disk_usage(folder).free
    if free < 4 * need:
        raise UserError(
            f"{folder} has {free / 1e9:.1f} GB free, checkpoints need {4 * need / 1e9:.1f} GB: use --out elsewhere"
        )
    for split in splits:
        limit = 2 * config_batch(run.config, dataset.counts[split])
        evaluate.run_split(
            run.model,
            dataset.domain,
            dataset.source(split),
            1,
            config_batch(run.config, dataset.counts[split]),
            runtime,
            precision,
            min(limit, 16),
        )


def config_batch(config: Config, size: int) -> int:
    return max(1, min(config.eval.batch, size, 8))


def _not_finite(update: int, norm: float, sums: dict[str, float], checkpoints: Path) -> str:
    what = "loss" if not math.isfinite(sums["loss"]) else f"gradient norm ({norm})"
    if "q_halt" in sums and not math.isfinite(sums["q_halt"]):
        what = "halting logit"
    saved = checkpoint.listed(checkpoints)
    kept = f"the last good checkpoint is {saved[-1]}" if saved else "no checkpoint was written yet"
    return (
        f"the {what} was not finite at update {update + 1}; {kept}. Try a lower --train.lr, --train.clip 1, or "
        f"--train.precision float32"
    )


def _collapse(row: dict[str, Any]) -> str | None:
    """The halting head has given up when it is sure to be wrong although many answers are right (or the reverse)."""
    q = row.get("q_halt")
    if q is None:
        return None
    if (q < -15 and row["exact"] > 0.2) or q > 30:
        return (
            f"halting logits have run away (mean {q:.0f} with {row['exact']:.0%} right): halting has collapsed. Lower "
            f"--train.lr or --train.halting_weight, or set --train.clip 1"
        )
    return None


class Log:
    """metrics.jsonl: one row per line, appended by rank 0; rows after a restored checkpoint are dropped."""

    def __init__(self, path: Path, runtime: Runtime) -> None:
        self.path, self.runtime = path, runtime
        self.evaluated: set[int] = set()

    def cut_after(self, update: int) -> None:
        kept = [row for row in read_log(self.path) if row["update"] <= update]
        self.evaluated = {row["update"] for row in kept if row["kind"] == "eval"}
        self.runtime.barrier()
        if self.runtime.main and self.path.exists():
            part = self.path.with_suffix(".part")
            part.write_text("".join(json.dumps(row) + "\n" for row in kept))
            part.replace(self.path)

    def has(self, kind: str, update: int) -> bool:
        return update in self.evaluated

    def write(self, row: dict[str, Any]) -> None:
        if row["kind"] == "eval":
            self.evaluated.add(row["update"])
        if self.runtime.main:
            with self.path.open("a") as file:
                file.write(json.dumps(row) + "\n")


def read_log(path: Path) -> list[dict[str, Any]]:
    """All complete rows; a last line cut short by a crash is not one."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


def describe(config: Config, dataset: Dataset, run_seconds: float) -> dict[str, Any]:
    """What result.json says about how it came about."""
    return {
        "config": config.flat(),
        "key": config.key(),
        "data": dataset.hash,
        "environment": environment(),
        "seconds": run_seconds,
    }
