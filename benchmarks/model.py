"""How much of the machine's matrix-product rate the model reaches: `python benchmarks/model.py [--quick] [--save]`.

For each shape it measures, interleaved and best of several rounds because other work may disturb any one of them
(two threads wait for each other, so on a busy machine use `--threads 1`, which measures CPU time). `--processes 2` is
how `torchrun --nproc-per-node 2` and two workers of a study use two cores: one thread each, together, rates summed.

- peak: float32 products at the shapes of the model's own linear layers, by MKL, oneDNN or our own kernels, whichever
  is fastest;
- inference: one ACT step without gradients;
- training: one ACT step with dropout and noise, the forward pass for the continue target, the losses, the gradients.

`--profile` says instead where the time of a whole training update goes: refill, optimiser and all.

Only useful FLOPs count: the products of linear layers and attention, the backward pass of an application as two forward
passes. Everything else (norms, gates, softmax, random numbers, losses, Python) is time without FLOPs.
"""

import argparse
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

from ponder.base import native, rng, runtime
from ponder.base.native import SIGNATURES, Library
from ponder.config.resolve import resolve
from ponder.config.schema import ModelConfig
from ponder.domains.contract import ArraySource
from ponder.model import cost, losses, program, whole
from ponder.model.attention import Attention, Rotary
from ponder.model.layers import compile_blocks
from ponder.model.products import inner_width
from ponder.model.reasoner import Carry, Reasoner
from ponder.model.sublayers import Form, Lesson
from ponder.training import loop as train
from ponder.training.micro import Depth
from ponder.training.optimisers import Weights
from ponder.training.slots import slot_count

RESULT = Path(__file__).resolve().parents[1] / "results" / "bench_model.json"


@dataclass(frozen=True)
class Shape:
    name: str
    config: ModelConfig
    tokens: int
    vocab: int
    batch: int
    rounds: int

    @property
    def length(self) -> int:
        return self.tokens + self.config.prefix


@dataclass(frozen=True)
class Row:
    shape: str
    form: str
    peak: float
    """GFLOP/s, like the next two."""
    training: float
    inference: float
    training_fraction: float
    inference_fraction: float
    training_ms: float
    inference_ms: float
    batch: int
    layers: int


def shapes(quick: bool) -> list[Shape]:
    """Paper width: the `ponder` preset (quick: one of its four equal layers). Mini: the 4x4 and 6x6 Sudoku presets."""
    noisy: dict[str, Any] = {"dropout": 0.01, "noise": 0.005}
    mini = [
        Shape("mini 4x4, width 64", ModelConfig(layers=1, width=64, heads=4, **noisy), 16, 6, 256, 4 if quick else 15),
        Shape("mini 6x6, width 96", ModelConfig(layers=1, width=96, heads=4, **noisy), 36, 8, 192, 3 if quick else 8),
    ]
    paper = Shape("paper, width 512", ModelConfig(layers=1 if quick else 4, **noisy), 81, 11, 16, 2 if quick else 3)
    return [*mini, paper]


def useful_flops(shape: Shape, training: bool) -> float:
    c, rows = shape.config, shape.batch * shape.length
    inner = inner_width(c.width, c)
    linear = 2 * rows * (4 * c.width**2 + 3 * c.width * inner)
    attention = 4 * rows * shape.length * c.width
    application = c.layers * (linear + attention)
    forward = application * c.h_cycles * (c.l_cycles + 1)
    if not training:
        return forward
    within = c.h_horizon * (c.l_horizon + 1)
    passes = 2 if c.halting == "halt+continue" else 1
    return passes * forward + 2 * within * application


class Peak:
    """The linear layers' products, one after the other: what one thread does, for every thread there is."""

    def __init__(self, shape: Shape) -> None:
        rows, width = shape.batch * shape.length, shape.config.width
        inner = inner_width(width, shape.config)
        sizes = ((width, 3 * width), (width, width), (width, 2 * inner), (inner, width))
        self.products = [runtime.products(torch.randn(rows, k), torch.randn(n, k)) for k, n in sizes]
        self.flops = sum(2 * rows * k * n for k, n in sizes)
        self.best = [float("inf")] * len(self.products)

    def measure(self) -> None:
        with native.threads_to_ourselves(1):
            for i, ways in enumerate(self.products):
                for product in 4 * ways:
                    began = _now()
                    product()
                    self.best[i] = min(self.best[i], _now() - began)

    @property
    def rate(self) -> float:
        return torch.get_num_threads() * self.flops / sum(self.best)


class Steps:
    def __init__(self, shape: Shape, compiled: bool) -> None:
        torch.manual_seed(0)
        self.model = Reasoner(shape.config, shape.vocab, shape.tokens)
        if compiled:
            compile_blocks(self.model)
        self.inputs = torch.randint(1, shape.vocab, (shape.batch, shape.tokens))
        self.labels = torch.randint(1, shape.vocab, (shape.batch, shape.tokens))
        self.rows = torch.zeros(shape.batch, shape.config.width).requires_grad_()
        self.carry: Carry = self.model.start(torch.arange(shape.batch))
        self.flat: tuple[Reasoner, Weights] | None = None

    def training(self) -> None:
        """As a micro-step does it: by a program, or by a graph."""
        config = self.model.train().config
        form = Form(config.h_cycles, config.noise, True, Lesson(16, len(self.inputs), False, 0.5))
        if lib := whole.library(self.model, self.carry.states.held, self.carry.key, form):
            if self.flat is None or self.flat[0] is not self.model:
                self.flat = self.model, Weights(self.model)
            weights = self.flat[1]
            given = self.carry, self.inputs, self.rows, self.labels
            whole.learn(lib, self.model, *given, form, weights.places, weights.grad)
            weights.grad.zero_()
            return
        step = self.model(self.carry, self.inputs, self.rows)
        target = None
        if step.q_continue is not None:
            with torch.no_grad():
                after = self.model(step.carry.detach(), self.inputs, self.rows)
            target = losses.continue_target(after.q_halt, after.q_continue, step.carry.steps >= 16)
        losses.losses(step.logits, self.labels, step.q_halt, step.q_continue, target, 0.5).total.backward()
        self.model.zero_grad()

    def inference(self) -> None:
        self.model.eval()
        with torch.no_grad():
            self.model(self.carry, self.inputs, self.rows)


_now: Callable[[], float] = time.perf_counter


def prepare(threads: int, wall: bool) -> None:
    """One thread alone is measured by its CPU time, which other processes hardly change."""
    global _now
    torch.set_num_threads(threads)
    runtime.reuse_memory()
    _now = time.perf_counter if wall or threads > 1 else time.thread_time


def timed(run: Callable[[], None]) -> float:
    began = _now()
    run()
    return _now() - began


def measure(shape: Shape, forms: list[str]) -> list[Row]:
    torch._dynamo.reset()  # shapes share the layers' code, and it keeps at most eight compiled forms
    peak = Peak(shape)
    steps = {form: Steps(shape, form == "compiled") for form in forms}
    best = {(form, what): float("inf") for form in forms for what in (True, False)}
    for step in steps.values():  # the first time allocates, or compiles
        step.training()
        step.inference()
    for _ in range(shape.rounds):
        for form, step in steps.items():
            peak.measure()
            best[form, True] = min(best[form, True], timed(step.training))
            best[form, False] = min(best[form, False], timed(step.inference))
    rows = []
    for form in forms:
        training, inference = (useful_flops(shape, what) / best[form, what] for what in (True, False))
        rows.append(
            Row(
                shape=shape.name,
                form=form,
                peak=round(peak.rate / 1e9, 1),
                training=round(training / 1e9, 1),
                inference=round(inference / 1e9, 1),
                training_fraction=round(training / peak.rate, 3),
                inference_fraction=round(inference / peak.rate, 3),
                training_ms=round(best[form, True] * 1e3, 1),
                inference_ms=round(best[form, False] * 1e3, 1),
                batch=shape.batch,
                layers=shape.config.layers,
            )
        )
    return rows


def measure_together(shape: Shape, forms: list[str], pool: Pool, processes: int) -> list[Row]:
    """The same in several processes at a time, as one machine: rates are sums, times those of the slowest."""
    together = pool.starmap(measure, [(shape, forms)] * processes, chunksize=1)
    rows = []
    for parts in zip(*together, strict=True):
        peak, training, inference = (sum(getattr(p, name) for p in parts) for name in ("peak", "training", "inference"))
        rows.append(
            replace(
                parts[0],
                peak=round(peak, 1),
                training=round(training, 1),
                inference=round(inference, 1),
                training_fraction=round(training / peak, 3),
                inference_fraction=round(inference / peak, 3),
                training_ms=max(p.training_ms for p in parts),
                inference_ms=max(p.inference_ms for p in parts),
            )
        )
    return rows


def attention_forms(lengths: tuple[int, ...], rounds: int = 4) -> list[dict[str, Any]]:
    """Forward + backward of attention, explicit products against the fused kernel: where attention.SHORT should be."""
    out = []
    for length in lengths:
        heads, size = (4, 16) if length < 64 else (8, 64)
        batch = max(1, 4096 // length)
        qkv = torch.randn(batch, length, 3, heads, size, requires_grad=True)
        rotary = Rotary.make(length, heads * size, heads, qkv.device)
        attention = Attention(heads * size, heads)

        def explicit(a: Attention = attention, x: Tensor = qkv, r: Rotary = rotary) -> None:
            a.mix(x, None, r, None, short=True).sum().backward()

        def fused(x: Tensor = qkv, r: Rotary = rotary) -> None:
            q, k, v = x.permute(2, 0, 3, 1, 4).unbind()
            F.scaled_dot_product_attention(r(q), r(k), v).transpose(1, 2).flatten(2).sum().backward()

        forms: list[Callable[[], None]] = [explicit, fused]
        best = [float("inf"), float("inf")]
        for _ in range(rounds):
            for i, form in enumerate(forms):
                best[i] = min(best[i], timed(form))
        out.append({"tokens": length, "explicit_ms": round(best[0] * 1e3, 2), "fused_ms": round(best[1] * 1e3, 2)})
    return out


# Where the time of an update goes -------------------------------------------------------------------------------------

PROFILED: tuple[tuple[str, str | None, dict[str, Any]], ...] = (
    ("sudoku-mini", None, {}),
    ("sudoku-6x6-mini", None, {}),
    ("sudoku-9x9-mini", None, {}),
    ("maze-15x15-mini", None, {}),
    ("life-mini", None, {}),
    ("maze-mini", None, {}),
    ("sudoku-mini", "ponder", {}),
    ("sudoku-paper", "ponder", {"model": {"layers": 1}, "train": {"batch": 16, "accumulate": 1}}),
)
"""Preset, model (None: the preset's own recipe), changes."""
PARTS = ("gated MLPs", "mixing", "products", "norms", "random numbers", "losses", "optimiser", "refill", "the rest")
KERNELS = {
    "swiglu": "gated MLPs",
    "across": "mixing",
    "attention": "mixing",
    "collect": "mixing",
    "spread": "mixing",
    "linear": "products",
    "head": "products",
    "pack": "products",
    "norm": "norms",
    "update": "norms",
    "noise": "random numbers",
    "keep_mask": "random numbers",
    "fold": "random numbers",
    "answer_loss": "losses",
    "judge": "losses",
    "settle": "losses",
    # Where our own kernels are not to be had
    "_ShortAttention": "mixing",
    "_Norm": "norms",
    "_SwiGate": "gated MLPs",
    "aten::silu": "gated MLPs",
    "mkldnn::_linear_pointwise": "products",
    "aten::mm": "products",
    "aten::addmm": "products",
}
"""What the name of a kernel or operation, or of the one that called it, begins with -> the part of an update it is."""


@contextmanager
def named(part: str, *places: tuple[Any, str]) -> Iterator[None]:
    """Calls of these functions count as that part."""
    kept = [(owner, name, getattr(owner, name)) for owner, name in places]
    for owner, name, function in kept:
        setattr(owner, name, record_function(part)(function))
    try:
        yield
    finally:
        for owner, name, function in kept:
            setattr(owner, name, function)


@contextmanager
def kernels_by_name() -> Iterator[None]:
    kept = Library.__call__

    def seen(self: Library, name: str, *values: Any) -> None:
        with record_function(name):
            kept(self, name, *values)

    setattr(Library, "__call__", seen)  # noqa: B010
    try:
        yield
    finally:
        setattr(Library, "__call__", kept)  # noqa: B010


class Updates:
    """The updates of a training on one thread, as `ponder train` makes them, on random boards."""

    def __init__(self, preset: str, model: str | None = None, changes: dict[str, Any] | None = None) -> None:
        self.config = resolve(preset, model, changes or {})
        self.domain, self.here = self.config.data.make(), runtime.Runtime(torch.device("cpu"))
        self.run = train.new_run(self.config, self.domain, self.here, torch.float32)
        cells = np.random.default_rng(0).integers(1, len(self.domain.vocab), (1000, self.domain.seq_len))
        self.source = ArraySource({"inputs": cells, "labels": cells})
        self.depth = Depth.at(self.config, 1, 1)

    def update(self) -> None:
        gathered = train.gather_gradients(self.run, self.source, self.depth, None, self.here, "float32")
        train.apply_gradients(self.run, gathered, 1.0)

    def at_peak(self, rounds: int) -> float:
        """Seconds that the useful FLOPs of an update take as products alone."""
        config, domain = self.config, self.domain
        peak = Peak(Shape("", config.model, domain.seq_len, len(domain.vocab), slot_count(config), rounds))
        for _ in range(rounds):
            peak.measure()
        work = cost.flops(config.model, len(domain.vocab), domain.seq_len, domain.geometry)
        return work.training * config.train.batch / peak.rate


def profile_update(preset: str, model: str | None, changes: dict[str, Any], rounds: int) -> dict[str, float]:
    """Milliseconds of each part, `update`: all of it unobserved, and `at peak`: what its useful FLOPs take alone.

    Every single operation counts with the least time it took in any of the updates, which all run the same ones: what
    else the machine does then hardly shows.
    """
    made = Updates(preset, model, changes)
    update = made.update
    for _ in range(5):  # memory settles
        update()
    alone = min(timed(update) for _ in range(rounds))
    least: dict[tuple[str, int], float] = {}
    in_programs = dict.fromkeys(SIGNATURES, math.inf)
    with ExitStack() as stack:
        stack.enter_context(named("random numbers", (rng, "normal"), (rng, "keep_mask"), (rng, "fold")))
        stack.enter_context(named("losses", (losses, "losses"), (losses, "continue_target")))
        stack.enter_context(named("optimiser", (train, "apply_gradients"), (train, "clip")))
        stack.enter_context(named("refill", (train, "refill")))
        stack.enter_context(kernels_by_name())
        for _ in range(rounds):
            program.spent = torch.zeros(len(SIGNATURES), dtype=torch.int64)
            with profile(activities=[ProfilerActivity.CPU]) as seen:
                update()
            spent = zip(SIGNATURES, (program.spent / 1e6).tolist(), strict=True)
            in_programs = {name: min(in_programs[name], ms) for name, ms in spent}
            program.spent = None
            place = dict.fromkeys(PARTS, 0)
            for event in seen.events() or []:
                if event.name == "play":  # which says itself what it did
                    continue
                part = _part(event)
                at = part, place[part]
                least[at] = min(least.get(at, math.inf), event.self_cpu_time_total / 1e3)
                place[part] += 1
    out = {part: sum(time for (p, _), time in least.items() if p == part) for part in PARTS}
    for name, ms in in_programs.items():
        out[next((part for start, part in KERNELS.items() if name.startswith(start)), "the rest")] += ms
    return out | {"update": alone * 1e3, "at peak": made.at_peak(rounds) * 1e3}


def _part(event: Any) -> str:
    while event is not None:
        if event.name in PARTS:
            return str(event.name)
        for start, part in KERNELS.items():
            if event.name.startswith(start):
                return part if not _within(event, "_ShortAttention") else "mixing"
        event = event.cpu_parent
    return "the rest"


def _within(event: Any, name: str) -> bool:
    while event is not None and not event.name.startswith(name):
        event = event.cpu_parent
    return event is not None


def print_profile(rounds: int) -> None:
    print(f"| update of | ms | {' | '.join(PARTS)} | of peak |")
    print(f"|{'---|' * (len(PARTS) + 3)}")
    for preset, model, changes in PROFILED:
        spent = profile_update(preset, model, changes, rounds)
        total = sum(spent[part] for part in PARTS)
        shares = [f"{spent[part] / total:.1%}" for part in PARTS] + [f"{spent['at peak'] / spent['update']:.0%}"]
        print(
            f"| {preset}, {resolve(preset, model).model.name} | {spent['update']:.0f} | {' | '.join(shares)} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="about half a minute: fewer rounds, no compilation")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--processes", type=int, default=1, help="so many at a time, of one thread each")
    parser.add_argument("--only", default="", help="shapes whose name contains this")
    parser.add_argument("--save", action="store_true", help=f"write {RESULT.name}")
    parser.add_argument("--profile", action="store_true", help="where the time of a training update goes")
    args = parser.parse_args()
    if args.profile:
        prepare(1, wall=False)
        print_profile(rounds=5 if args.quick else 15)
        return
    threads = 1 if args.processes > 1 else args.threads
    prepare(threads, wall=False)
    load = os.getloadavg()[0]
    print(
        f"{args.processes} x {threads} threads on {os.cpu_count()} cores, torch {torch.__version__}, float32; "
        f"load before {load:.1f}"
    )
    print(f"{'shape':<20} {'form':<9} {'peak':>6} {'training':>15} {'inference':>15}   (GFLOP/s, share of peak)")
    wanted = ["eager"] if args.quick else ["eager", "compiled"]
    rows: list[Row] = []
    with get_context("spawn").Pool(args.processes, prepare, (1, True)) as pool:
        for shape in shapes(args.quick):
            if args.only not in shape.name:
                continue
            alone = args.processes == 1
            for row in measure(shape, wanted) if alone else measure_together(shape, wanted, pool, args.processes):
                rows.append(row)
                print(
                    f"{row.shape:<20} {row.form:<9} {row.peak:6.0f} {row.training:8.0f} {row.training_fraction:6.1%} "
                    f"{row.inference:8.0f} {row.inference_fraction:6.1%}",
                    flush=True,
                )
    forms = attention_forms((17, 82) if args.quick else (17, 82, 128, 160, 256, 512))
    for form in forms:
        print(f"attention, {form['tokens']:4d} tokens: explicit {form['explicit_ms']} ms, fused {form['fused_ms']} ms")
    if args.save:
        RESULT.parent.mkdir(exist_ok=True)
        said = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
        said[f"{args.processes} x {threads}"] = {
            "environment": runtime.environment(),
            "load": load,
            "quick": args.quick,
            "steps": [asdict(r) for r in rows],
            "attention": forms,
        }
        RESULT.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
