"""How time and memory grow: `python -m benchmarks.growth [--only WORD] [--save]`, about three minutes on one core.

Each quantity takes several values, each of them in a process of its own: CPU time of one thread (the least of several
tries) and the bytes by which its resident memory rose at most. The exponent is the slope of a straight line through
the logarithms: 1 is linear, 0 is no growth. Those above 1 are explained where they stand.
"""

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ponder.base import files, runtime
from ponder.base.plots import COLOURS, figure
from ponder.config.resolve import resolve
from ponder.config.schema import ModelConfig
from ponder.data import Dataset, build
from ponder.domains.arc.domain import Arc1, Arc1Params
from ponder.domains.contract import ArraySource
from ponder.domains.sudoku.domain import Sudoku, SudokuParams
from ponder.inference.engine import Engine, Full
from ponder.inference.weights import open_weights
from ponder.model.reasoner import Reasoner
from ponder.reports.figures import MARKERS
from ponder.studies.store import Store
from ponder.training import loop
from ponder.training.micro import Depth

ROOT = Path(__file__).resolve().parents[1]
RESULT, FIGURE = ROOT / "results" / "bench_growth.json", ROOT / "docs" / "growth.svg"
HERE = runtime.Runtime(torch.device("cpu"))
TRIES = 3

Work = Callable[[], object]


# What is made ready for a value, and then timed -----------------------------------------------------------------------


def update(preset: str, **train: Any) -> Work:
    """One training update."""
    config = resolve(preset, None, {"train": train})
    domain = config.data.make()
    run = loop.new_run(config, domain, HERE, torch.float32)
    cells = np.random.default_rng(0).integers(1, len(domain.vocab), (1000, domain.seq_len))
    source, depth = ArraySource({"inputs": cells, "labels": cells}), Depth.at(config, 1, 1)

    def work() -> None:
        loop.apply_gradients(run, loop.gather_gradients(run, source, depth, None, HERE, "float32"), 1.0)

    return work


def step(config: ModelConfig, tokens: int, batch: int) -> Work:
    """Forward and backward of one ACT step of a model of any size."""
    model = Reasoner(config, 11, tokens)
    inputs, rows = torch.ones(batch, tokens, dtype=torch.int64), torch.zeros(batch, config.width).requires_grad_()
    carry = model.start(torch.arange(batch))

    def work() -> None:
        model(carry, inputs, rows).logits.sum().backward()

    return work


def shallow(**changes: Any) -> ModelConfig:
    one = {"layers": 1, "h_cycles": 1, "l_cycles": 1, "h_horizon": 1, "l_horizon": 1, "halting": "halt", "heads": 4}
    return ModelConfig(**{**one, **changes})


def thinking(steps: int) -> Work:
    opened = open_weights("sudoku-6x6")
    assert opened.domain is not None
    domain, inputs = opened.domain, opened.domain.sample(0, 64)[0]
    return lambda: Engine(opened.model, domain, 64, Full(), steps).run(inputs)


def augmented(count: int) -> Work:
    return lambda: Arc1(Arc1Params(canvas=12, augmentations=count, conceptarc="none")).build(seed=0)


def generated(count: int) -> Work:
    params = {"size": 6, "source": "generate", "train": count, "val": 10, "test": 10}
    return lambda: Sudoku(SudokuParams.model_validate(params)).build(seed=0)


def opened_data(count: int) -> Work:
    """Opening a dataset and one refill of 128 slots: what training pays for its size."""
    config = resolve("sudoku-mini", None, {"data": {"train": count, "val": 10, "test": 10}}).data
    folder = tempfile.TemporaryDirectory()
    built = build(config, Path(folder.name))

    def work() -> None:
        source = Dataset.open(built).source("train")  # in `folder`, which lasts as long as this does
        assert Path(folder.name) in built.parents
        source.fetch(np.arange(128) % len(source), np.zeros(128, dtype=np.int64))

    return work


def studied(count: int) -> Work:
    """Reading the stored results of so many trainings, as a report does."""
    store = Store(ROOT / "results" / "cells")
    keys = [path.stem for path in sorted(store.root.glob("*.json"))[:count]]
    return lambda: [store.stored(key) for key in keys]


def asked(clients: int) -> Work:
    """So many clients' puzzles, which share the slots of one server's engine."""
    opened = open_weights("sudoku-4x4")
    assert opened.domain is not None
    domain, puzzles = opened.domain, opened.domain.sample(0, clients)[0]

    def work() -> None:
        engine = Engine(opened.model, domain, 128, Full(), 4)
        for puzzle in puzzles:
            engine.admit(puzzle)
        while not engine.idle:
            engine.advance()

    return work


@dataclass(frozen=True)
class Axis:
    make: Callable[[int], Work]
    values: tuple[int, ...]
    aim: float = 1.0
    """The exponent of time that the work itself has."""
    why: str = ""


AXES = {
    "batch": Axis(lambda n: update("sudoku-6x6-mini", batch=n), (32, 64, 128, 256)),
    "tokens, attention": Axis(
        lambda n: step(shallow(width=64), n, 16),
        (64, 128, 256, 512),
        2.0,
        "every token looks at every other; linear layers are linear",
    ),
    "tokens, MLP over them": Axis(
        lambda n: step(shallow(width=64, mixer="mlp", inner_multiple=16, positions="none"), n, 16),
        (64, 128, 256, 512),
        2.0,
        "its weights are tokens x tokens",
    ),
    "width": Axis(
        lambda n: step(shallow(width=n, inner_multiple=16), 36, 16),
        (64, 128, 256, 512),
        2.0,
        "weights are width x width",
    ),
    "ACT steps": Axis(thinking, (2, 4, 8, 16)),
    "augmentations, ARC data": Axis(augmented, (30, 100, 300, 1000)),
    "dataset, generated": Axis(generated, (250, 500, 1000, 2000)),
    "dataset, opened and read": Axis(opened_data, (1000, 2000, 4000, 8000), 0.0),
    "cells of a study": Axis(studied, (20, 40, 80, 160)),
    "clients": Axis(asked, (64, 128, 256, 512)),
}


# Measuring ------------------------------------------------------------------------------------------------------------


def resident(what: str) -> int:
    """Bytes, of Linux: VmRSS is now, VmHWM at most."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(what):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"no {what} here: this benchmark needs Linux")


def measure(name: str, value: int) -> tuple[float, int]:
    torch.set_num_threads(1)
    work = AXES[name].make(value)
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the highest is from now on
    before, best = resident("VmRSS"), float("inf")
    for _ in range(TRIES):
        began = time.process_time()
        work()
        best = min(best, time.process_time() - began)
    return best, resident("VmHWM") - before


def exponent(values: tuple[int, ...], measured: list[float]) -> float:
    return float(np.polyfit(np.log(values), np.log(np.maximum(measured, 1e-9)), 1)[0])


def draw(rows: list[dict[str, Any]]) -> None:
    with figure([FIGURE], 1, 2, (10, 4.2)) as (_, grid):
        axes = grid[0]
        for number, row in enumerate(rows):
            style = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)], "markersize": 4}
            for axis, key in zip(axes, ("seconds", "bytes"), strict=True):
                relative = np.array(row["values"]) / row["values"][0]
                axis.plot(relative, np.maximum(row[key], 1e-9) / max(row[key][0], 1e-9), label=row["name"], **style)
        for axis, title in zip(axes, ("CPU time", "peak memory"), strict=True):
            axis.plot([1, 16], [1, 16], color="0.5", linestyle=":", lw=1, label="linear")
            axis.set(xscale="log", yscale="log", title=f"{title}, against the first", xlabel="times the first value")
        axes[1].legend(fontsize=7, loc="upper left")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="quantities whose name contains this")
    parser.add_argument("--save", action="store_true", help=f"write {RESULT.name} and {FIGURE.name}")
    args = parser.parse_args()
    torch.set_num_threads(1)
    load, rows = os.getloadavg()[0], list[dict[str, Any]]()
    for name, axis in AXES.items():
        if args.only not in name:
            continue
        seconds, peak = list[float](), list[float]()
        for value in axis.values:
            with multiprocessing.get_context("fork").Pool(1) as pool:  # whose memory is its own
                took, rose = pool.apply(measure, (name, value))
            seconds.append(round(took, 5))
            peak.append(rose)
        grows, swells = exponent(axis.values, seconds), exponent(axis.values, peak)
        row = {"name": name, "values": axis.values, "seconds": seconds, "bytes": peak, "aim": axis.aim, "why": axis.why}
        rows.append(row | {"time": round(grows, 2), "memory": round(swells, 2)})
        shown = "  ".join(
            f"{v}: {s * 1e3:.0f} ms {b / 1e6:.1f} MB" for v, s, b in zip(axis.values, seconds, peak, strict=True)
        )
        print(f"{name:<26} time^{grows:.2f} (aim {axis.aim:g}) memory^{swells:.2f}   {shown}", flush=True)
    if args.save:
        files.write_json(RESULT, {"load": load, "environment": runtime.environment(), "rows": rows})
        draw(rows)


if __name__ == "__main__":
    main()
