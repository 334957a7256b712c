"""Training speed of every model in one run: examples x ACT steps per second on a mini preset, and their share of peak.

    python benchmarks/train.py [--preset sudoku-mini] [--updates 10] [--rounds 3] [--save]

Rounds are interleaved over the models and the best of each is kept, so that a busy moment hurts no model in particular.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch

from ponder import data
from ponder.base.runtime import Runtime, matmul_peak, reuse_memory
from ponder.config.resolve import Config, resolve
from ponder.model.cost import cost
from ponder.model.reasoner import Reasoner
from ponder.training.micro import Depth, micro_step
from ponder.training.optimisers import AdamAtan2, Weights, clip
from ponder.training.slots import Slots, make_slots, refill

MODELS = ("dense", "hrm", "trm", "urm", "ponder")
HERE = Runtime(torch.device("cpu"))


class Trainer:
    """The inner part of the training loop: refill, ACT step, gradients, optimiser."""

    def __init__(self, config: Config, dataset: data.Dataset) -> None:
        self.config, self.source = config, dataset.source("train")
        domain = dataset.domain
        torch.manual_seed(0)
        self.model = Reasoner(config.model, len(domain.vocab), domain.seq_len, domain.task_ids).train()
        self.weights = Weights(self.model)
        self.optimiser = AdamAtan2(self.weights, config.train)
        (self.slots,) = make_slots(config, self.model, domain, HERE, torch.float32)
        self.flops = cost(config.model, len(domain.vocab), domain.seq_len).work.training

    def update(self) -> None:
        slots: Slots = self.slots
        self.weights.grad.zero_()
        refill(slots, self.model, self.source, self.config, None)
        depth = Depth(self.config.model.max_steps, self.config.model.h_cycles)
        micro_step(slots, self.model, self.weights, self.config, depth, HERE, "float32")
        clip(self.weights.grad, self.config.train.clip)
        self.optimiser.update(1e-4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="sudoku-mini")
    parser.add_argument("--updates", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--save", action="store_true", help="write results/bench_train.json")
    args = parser.parse_args()
    reuse_memory()
    batch = resolve(args.preset).train.batch
    configs = {name: resolve(args.preset, name, {"train": {"batch": batch}}) for name in MODELS}
    dataset = data.Dataset.open(data.build(configs["ponder"].data, args.data_dir))
    trainers = {name: Trainer(config, dataset) for name, config in configs.items()}
    best = dict.fromkeys(MODELS, 0.0)
    peak = 0.0
    for _ in range(args.rounds):
        width = configs["ponder"].model.width
        one = matmul_peak((batch * dataset.domain.seq_len, width, 3 * width), HERE.device)
        peak = max(peak, torch.get_num_threads() * one)
        for name, trainer in trainers.items():
            trainer.update()
            began = time.perf_counter()
            for _ in range(args.updates):
                trainer.update()
            best[name] = max(best[name], args.updates * batch / (time.perf_counter() - began))
    threads = torch.get_num_threads()
    print(f"{args.preset}, batch {batch}, {os.cpu_count()} cores, {threads} threads, best of {args.rounds}")
    print(f"matrix products at width {width}: {peak / 1e9:.0f} GFLOP/s")
    print(f"{'model':<8} {'example-steps/s':>16} {'MFLOP each':>11} {'of peak':>8} {'relative to ponder':>19}")
    rows = {}
    for name, rate in best.items():
        flops = trainers[name].flops
        share = rate * flops / peak
        rows[name] = {"example_steps_per_second": rate, "flops": flops, "peak_fraction": share}
        print(f"{name:<8} {rate:>16,.0f} {flops / 1e6:>11.1f} {share:>8.0%} {rate / best['ponder']:>19.2f}")
    if args.save:
        path = Path(__file__).resolve().parents[1] / "results" / "bench_train.json"
        about = {"preset": args.preset, "batch": batch, "cores": os.cpu_count(), "threads": threads}
        path.write_text(
            json.dumps({**about, "rounds": args.rounds, "peak_flops": peak, "models": rows}, indent=1) + "\n",
            encoding="utf-8",
        )


if __name__ == "__main__":
    main()
