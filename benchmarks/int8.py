"""What weights in 8 bits gain and cost (`ponder export --int8`): `python -m benchmarks.int8 [MODEL ...]`.

Rate: one ACT step at width 512 in onnxruntime, one thread, float32 and int8 in turns; random weights, since they cost
the same. Answers: puzzles of each model over its whole training budget of steps, both graphs in onnxruntime; a puzzle
counts as equal where every answer on the way is the same text. Writes results/bench_int8.json and the table in
docs/performance.md.
"""

import argparse
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

os.environ["ORT_DISABLE_TELEMETRY"] = "1"
import onnxruntime

from ponder.base import runtime
from ponder.base.markers import markdown, put_between
from ponder.base.stats import share
from ponder.config.resolve import resolve
from ponder.domains.contract import Domain, Tokens
from ponder.inference.export import export, quantise, quiet
from ponder.inference.weights import Opened, open_weights, zoo_names
from ponder.model.reasoner import Reasoner

ROOT = Path(__file__).resolve().parents[1]
STORED, PAGE = ROOT / "results" / "bench_int8.json", ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- int8: benchmarks/int8.py -->", "<!-- end of int8 -->"
RECIPES = ("ponder-mlp", "ponder", "trm")
AIM = 1.7
BATCH = 16


class Graphs:
    """A model's step in float32 and in int8, any number of puzzles at a time."""

    def __init__(self, opened: Opened, aside: Path) -> None:
        self.about = export(opened, aside / "float32.onnx")
        shutil.copy(aside / "float32.onnx", aside / "int8.onnx")
        with quiet():
            quantise(aside / "int8.onnx")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.bytes = {name: (aside / f"{name}.onnx").stat().st_size for name in ("float32", "int8")}
        self.sessions = {
            name: onnxruntime.InferenceSession(str(aside / f"{name}.onnx"), options) for name in self.bytes
        }

    def start(self, inputs: Tokens) -> dict[str, Any]:
        """What the first step is given."""
        count = len(inputs)
        feeds = {"tokens": inputs.astype(np.int64), "task_ids": np.zeros(count, dtype=np.int64)}
        if "steps" in self.about["inputs"]:
            feeds["steps"] = np.zeros(count, dtype=np.int64)
        for name, vector in self.about["initial"].items():
            feeds[name] = np.tile(np.float32(vector), (count, self.about["inputs"][name]["shape"][1], 1))
        return feeds

    def answers(self, which: str, inputs: Tokens, steps: int) -> Tokens:
        """[step, puzzle, token]"""
        feeds, out = self.start(inputs), []
        for _ in range(steps):
            got = dict(zip(self.about["outputs"], self.sessions[which].run(None, feeds), strict=True))
            out.append(got["logits"].argmax(axis=-1).astype(np.uint8))
            feeds |= {name: got[new] for name, new in self.about["carry"].items()}
            if "steps" in feeds:
                feeds["steps"] = feeds["steps"] + 1
        return np.stack(out)


def rate(recipe: str, width: int, rounds: int) -> dict[str, Any]:
    """Puzzles a second of one ACT step with one cycle of each kind, on 9x9 boards."""
    few = {"h_cycles": 1, "l_cycles": 1, "h_horizon": 1, "l_horizon": 1}
    config = resolve("sudoku-paper", recipe, {"model": {**few, "width": width}})
    domain = config.data.make()
    torch.manual_seed(0)
    model = Reasoner(config.model, len(domain.vocab), domain.seq_len, 1, domain.geometry).eval()
    opened = Opened(recipe, Path(), model, config, domain, None, "")
    best = dict.fromkeys(("float32", "int8"), float("inf"))
    with tempfile.TemporaryDirectory() as aside:
        graphs = Graphs(opened, Path(aside))
        inputs = np.random.default_rng(0).integers(1, len(domain.vocab), (BATCH, domain.seq_len)).astype(np.uint8)
        feeds = graphs.start(inputs)
        for _ in range(rounds + 1):  # the first allocates
            for which, session in graphs.sessions.items():
                began = time.thread_time()
                session.run(None, feeds)
                best[which] = min(best[which], time.thread_time() - began)
    per_second = {which: BATCH / seconds for which, seconds in best.items()}
    return {"recipe": recipe, "width": width, **per_second, "ratio": per_second["int8"] / per_second["float32"]}


def compare(name: str, count: int) -> dict[str, Any]:
    """How often the two graphs of a model say the same, and how many puzzles each solves."""
    opened = open_weights(name)
    assert opened.domain is not None
    inputs = opened.domain.sample(1, count)[0]
    steps = opened.model.config.max_steps
    with tempfile.TemporaryDirectory() as aside:
        graphs = Graphs(opened, Path(aside))
        began = time.thread_time()
        answers = {}
        for which in graphs.sessions:
            parts = [graphs.answers(which, inputs[i : i + 50], steps) for i in range(0, count, 50)]
            answers[which] = np.concatenate(parts, axis=1)
        seconds = time.thread_time() - began
    texts = {which: _texts(opened.domain, inputs, each) for which, each in answers.items()}
    same = texts["float32"] == texts["int8"]
    solved = {
        which: np.stack([opened.domain.check(inputs, step) for step in each]).any(axis=0)
        for which, each in answers.items()
    }
    return {
        "model": name,
        "sha256": opened.sha256,
        "n": count,
        "steps": steps,
        "bytes": graphs.bytes,
        "trajectory": share(same.all(axis=0).mean(), count),
        "first": float(same[0].mean()),
        "last": float(same[-1].mean()),
        "solved": {which: float(each.mean()) for which, each in solved.items()},
        "seconds": seconds,
    }


def _texts(domain: Domain, inputs: Tokens, answers: Tokens) -> np.ndarray[Any, Any]:
    """[step, puzzle] what a user would read: other positions do not matter."""
    return np.array([[domain.format_answer(*each) for each in zip(inputs, step, strict=True)] for step in answers])


def tables(found: dict[str, Any]) -> str:
    rates = [
        [row["recipe"], f"{row['float32']:.1f}", f"{row['int8']:.1f}", f"{row['ratio']:.2f}"] for row in found["rates"]
    ]
    rows = [
        [
            row["model"],
            str(row["n"]),
            str(row["steps"]),
            f"{row['trajectory']['value']:.1%} ({row['trajectory']['low']:.1%} to {row['trajectory']['high']:.1%})",
            f"{row['first']:.1%}, {row['last']:.1%}",
            f"{row['solved']['float32']:.1%}, {row['solved']['int8']:.1%}",
            f"{row['bytes']['float32'] / 1e6:.2f}, {row['bytes']['int8'] / 1e6:.2f}",
        ]
        for row in found["models"]
    ]
    head = ["recipe, width 512", "float32, a second", "int8", f"times (aim {AIM})"]
    columns = [
        "model", "n", "steps", "the same at every step", "at the first, the last", "solved, float32 and int8", "MB",
    ]  # fmt: skip
    return f"{markdown(head, rates)}\n\n{markdown(columns, rows)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="default: all of the zoo")
    parser.add_argument("--puzzles", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--part", choices=("rates", "models"), help="measure one of them, keep the other as stored")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    found = json.loads(STORED.read_text(encoding="utf-8")) if STORED.exists() else {"rates": [], "models": []}
    found |= {"batch": BATCH, "environment": runtime.environment()}
    if asked.part != "models":
        found["rates"] = [rate(recipe, 512, asked.rounds) for recipe in RECIPES]
    if asked.part != "rates":
        rows = {row["model"]: row for row in found["models"]}
        rows |= {name: compare(name, asked.puzzles) for name in asked.models or zoo_names()}
        found["models"] = [rows[name] for name in sorted(rows)]
    STORED.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    table = tables(found)
    put_between(PAGE, BEGIN, END, table)
    print(table)


if __name__ == "__main__":
    main()
