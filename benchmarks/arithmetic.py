"""How fast arithmetic datasets are made, and how many puzzles there are.

`python benchmarks/arithmetic.py` builds the paper's sizes for each kind of labels (`--labels canonical` for one of
them), `--quick` a tenth. The goal: about 900,000 training examples in under 60 s on two cores.
"""

import argparse
import os
import resource
import sys
import time
from itertools import product

import numpy as np

from ponder.domains.arithmetic.domain import Arithmetic
from ponder.domains.arithmetic.generate import ArithmeticParams, draw, matches, search, shapes

KINDS = ("canonical", "sampled", "unique")


def report_build(labels: str, train: int, workers: int) -> None:
    domain = Arithmetic(ArithmeticParams.model_validate({"labels": labels, "train": train}))
    start = time.perf_counter()
    splits = domain.build(seed=0, workers=workers, progress=bar)
    seconds = time.perf_counter() - start
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    peak = sum(usage.ru_maxrss for usage in used) / 1024
    inputs = splits["train"]["inputs"]
    operators = np.bincount((inputs == 1).sum(axis=1), minlength=8)
    total = sum(len(arrays["inputs"]) for arrays in splits.values())
    print(f"\r{labels:9}  {total:,} examples in {seconds:.1f} s, {total / seconds:,.0f} per second, ", end="")
    print(f"{workers} workers, {os.cpu_count()} cores")
    print(f"           peak memory {peak:.0f} MiB (this process plus the largest worker so far)")
    print("           training examples by operands: ", end="")
    print(", ".join(f"{n}: {operators[n - 1] / len(inputs):.1%}" for n in range(3, 9)))


def bar(what: str, done: int, total: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{what} {done}/{total}   ", end="", file=sys.stderr, flush=True)


def report_unique(draws: int) -> None:
    print("drawn puzzles with a value in [0, 101]: the share that only one assignment fits, and the mean of")
    print("1 / assignments that fit, which is the best that label equality allows under sampled labels")
    for operands in range(3, 9):
        params = ArithmeticParams(min_operands=operands, max_operands=operands, high=100, ood_high=101)
        start = time.perf_counter()
        keys, _ = draw(params, 0, 0, draws)
        _, count = search(keys)
        micro = 1e6 * (time.perf_counter() - start) / len(keys)
        print(f"  {operands} operands: {np.mean(count == 1):6.1%} {np.mean(1 / count):6.1%}   ", end="")
        print(f"(n = {len(keys)}, {micro:.0f} us each with the drawing)")


def report_puzzles(most: int) -> None:
    print("different puzzles there are, all splits together:")
    for operands in range(3, most + 1):
        every = np.array(list(product(range(1, 10), repeat=operands)))
        fits = np.zeros((202, len(shapes(operands)), len(every)), dtype=np.int64)
        for value in range(202):
            for i, shape in enumerate(shapes(operands)):
                found = matches(shape, every, np.full(len(every), value))
                fits[value, i] = np.count_nonzero(found, axis=(1, 2))
        inside, beyond = fits[:102], fits[102:]
        print(f"  {operands} operands: [0, 101] {np.sum(inside > 0):,}, unique {np.sum(inside == 1):,}; ", end="")
        print(f"[102, 201] {np.sum(beyond > 0):,}, unique {np.sum(beyond == 1):,}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the training examples")
    parser.add_argument("--labels", choices=KINDS, action="append", help="only this kind (may be given again)")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    for labels in args.labels or KINDS:
        report_build(labels, 90_000 if args.quick else 900_000, args.workers)
    report_unique(10_000 if args.quick else 40_000)
    report_puzzles(3 if args.quick else 4)


if __name__ == "__main__":
    main()
