"""Side by side with the authors' own code: `python -m benchmarks.peers --hrm DIR --trm DIR --urm DIR [--save]`.

DIR is a checkout of theirs (sapientinc/HRM, SamsungSAILMontreal/TinyRecursiveModels, UbiquantAI/URM); nothing of it is
kept. Their configuration is read from their own file, width 512, on 81 tokens, in float32; flash-attn, which needs a
GPU, is replaced by torch's attention. Ours gets their weights, and must give their outputs before anything is timed.

- training: one ACT step with losses and gradients (and the pass for the continue target where they train it);
- inference: one ACT step without gradients;
- limit: the time the same float32 products take alone (benchmarks/model.py), for the share of it that ours reaches.

Rounds alternate between the two; the medians of both and of their ratio are reported. `--nano-trm DIR` measures another
thing, alone: how long its own 4x4 recipe takes to learn our 4x4 puzzles (benchmarks/nano.py).
"""

import argparse
import importlib
import importlib.util
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
import yaml
from torch import Tensor

from benchmarks import nano
from benchmarks.model import Peak, Shape, Steps, prepare
from ponder.base import runtime
from ponder.model import cost
from ponder.model.published import load_official, official_config

RESULT = Path(__file__).resolve().parents[1] / "results" / "bench_peers.json"
TOKENS, VOCAB, BATCH = 81, 11, 16
FILES = {"hrm": "hrm_v1.yaml", "trm": "trm.yaml", "urm": "urm.yaml"}


@dataclass(frozen=True)
class Row:
    peer: str
    layers: int
    what: str
    theirs_ms: float
    ours_ms: float
    ratio: float
    """Theirs / ours: above 1, ours is faster."""
    of_limit: float
    """The time of the products alone / ours."""


def stub(name: str, **functions: Any) -> None:
    """A module that is not installed here, made of the functions they take from it."""
    if importlib.util.find_spec(name) is None:
        module = ModuleType(name)
        module.__dict__.update(functions)
        sys.modules[name] = module


def attention(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """flash-attn's call by torch's attention: [batch, length, heads, size]."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).contiguous()


class Theirs:
    """Their model under their loss, built as their own training builds it."""

    def __init__(self, peer: str, folder: Path, layers: int | None) -> None:
        stub("flash_attn", flash_attn_func=attention)
        stub("einops", rearrange=lambda x, pattern: x.transpose(1, 2))  # the two patterns they use swap these axes
        sys.path.insert(0, str(folder))
        arch = yaml.safe_load((folder / "config" / "arch" / FILES[peer]).read_text(encoding="utf-8"))
        module, _, name = arch.pop("name").partition("@")
        loss = arch.pop("loss")
        arch |= {
            "forward_dtype": "float32",
            "puzzle_emb_ndim": arch["hidden_size"],
            "batch_size": BATCH,
            "seq_len": TOKENS,
            "vocab_size": VOCAB,
            "num_puzzle_identifiers": 1,
        }
        if layers is not None:
            arch |= {key: layers for key in ("H_layers", "L_layers", "num_layers") if key in arch}
        self.arch = arch
        torch.manual_seed(0)
        model = getattr(importlib.import_module(f"models.{module}"), name)(arch)
        self.head = importlib.import_module("models.losses").ACTLossHead(model, loss["loss_type"])
        self.head.float()  # URM's convolution is bfloat16 whatever the configuration says
        tokens = torch.randint(1, VOCAB, (BATCH, TOKENS))
        zeros = torch.zeros(BATCH, dtype=torch.int32)
        self.batch = {"inputs": tokens, "labels": tokens, "puzzle_identifiers": zeros}
        self.carry = self.head.initial_carry(self.batch)

    def training(self) -> None:
        self.head.train()
        loss = self.head(carry=self.carry, batch=self.batch, return_keys=[])[1]
        loss.backward()
        self.head.zero_grad()

    def inference(self) -> Tensor:
        self.head.eval()
        with torch.inference_mode():
            outputs = self.head.model(carry=self.carry, batch=self.batch)[1]
        logits: Tensor = outputs["logits"]
        return logits


def compared(peer: str, folder: Path, layers: int | None, rounds: int) -> list[Row]:
    theirs = Theirs(peer, folder, layers)
    config = official_config(peer, theirs.arch)
    shape = Shape(peer, config, TOKENS, VOCAB, BATCH, rounds)
    ours = Steps(shape, compiled=False)
    ours.model = load_official(peer, theirs.arch, theirs.head.model.state_dict())
    ours.carry = ours.model.start(torch.arange(BATCH))
    ours.inputs = ours.labels = theirs.batch["inputs"]
    with torch.no_grad():
        mine = ours.model.eval()(ours.carry, ours.inputs, ours.rows).logits
    apart = float((mine - theirs.inference()).norm() / mine.norm())
    assert apart < 1e-3, f"{peer}: outputs differ by {apart:.1e} of their size"
    peak = Peak(shape)
    work = cost.flops(config, VOCAB, TOKENS)
    rows = []
    pairs: list[tuple[str, Callable[[], Any], Callable[[], Any], int]] = [
        ("training", theirs.training, ours.training, work.training),
        ("inference", theirs.inference, ours.inference, work.inference),
    ]
    for what, their_step, our_step, flops in pairs:
        their_step()
        our_step()
        times: list[tuple[float, float]] = []
        for _ in range(rounds):
            peak.measure()
            times.append((_timed(their_step), _timed(our_step)))
        them, us = (statistics.median(column) for column in zip(*times, strict=True))
        rows.append(
            Row(
                peer=peer,
                layers=config.layers,
                what=what,
                theirs_ms=round(them * 1e3, 1),
                ours_ms=round(us * 1e3, 1),
                ratio=round(statistics.median(a / b for a, b in times), 3),
                of_limit=round(flops * BATCH / peak.rate / us, 3),
            )
        )
    return rows


def _timed(run: Callable[[], Any]) -> float:
    now = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    began = now()
    run()
    return now() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for peer in FILES:
        parser.add_argument(f"--{peer}", type=Path, help="a checkout of theirs")
    parser.add_argument("--threads", type=int, default=1, help="1 measures CPU time, which neighbours hardly change")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--layers", type=int, help="so many layers in each module instead of theirs: they are all alike"
    )
    parser.add_argument(
        "--nano-trm", type=Path, help="a checkout of nano-trm: trained on our 4x4 puzzles by its recipe"
    )
    parser.add_argument("--nano-python", type=Path, help="the Python of an environment that has what it needs")
    parser.add_argument("--nano-seconds", type=float, default=120.0, help="at most so long")
    parser.add_argument("--nano-look", type=int, metavar="UPDATES", help="look at held-out puzzles then, and end")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--save", action="store_true", help=f"write {RESULT.name}")
    args = parser.parse_args()
    if args.nano_trm is not None:
        if args.nano_python is None:
            parser.error("--nano-trm needs --nano-python: it has dependencies of its own")
        where = args.nano_trm.resolve(), args.nano_python.absolute()
        learned = nano.run(*where, args.nano_seconds, args.nano_look, args.data_dir.resolve())
        print(f"nano-trm, 4x4: {asdict(learned)}", flush=True)
        if args.save:
            said = json.loads(RESULT.read_text(encoding="utf-8"))
            RESULT.write_text(json.dumps({**said, "nano_trm": asdict(learned)}, indent=1) + "\n", encoding="utf-8")
        return
    load = os.getloadavg()[0]
    rows: list[Row] = []
    for peer in FILES:
        folder = getattr(args, peer)
        if folder is None:
            continue
        # All three call their package `models`: each has a process of its own.
        with get_context("spawn").Pool(1, prepare, (args.threads, False)) as pool:
            found = pool.apply(compared, (peer, folder.resolve(), args.layers, args.rounds))
        for row in found:
            print(
                f"{row.peer:<4} {row.what:<10} theirs {row.theirs_ms:8.1f} ms, ours {row.ours_ms:8.1f} ms: "
                f"{row.ratio:.2f} times, {row.of_limit:.0%} of the limit",
                flush=True,
            )
        rows += found
    if args.save:
        before = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
        said = {
            **{name: value for name, value in before.items() if name == "nano_trm"},
            "environment": runtime.environment(),
            "load": load,
            "threads": args.threads,
            "rounds": args.rounds,
            "batch": BATCH,
            "tokens": TOKENS,
            "rows": [asdict(row) for row in rows],
        }
        RESULT.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
