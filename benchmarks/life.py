"""Game of Life: time, memory and counts of building all splits. The goal: paper scale, two cores, 60 s and 2 GiB."""

import argparse
import os
import resource
import sys
import time

from ponder.domains.life.domain import Life
from ponder.domains.life.generate import LifeParams


def peak_gib(who: int) -> float:
    """Largest resident memory of one process; macOS counts bytes, Linux kilobytes."""
    return resource.getrusage(who).ru_maxrss / (2**30 if sys.platform == "darwin" else 2**20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a twentieth of the paper's scale")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--boundary", choices=["dead", "torus"], default="dead")
    args = parser.parse_args()

    params = LifeParams(configurations=10_000 if args.quick else 200_000, boundary=args.boundary)
    domain = Life(params)
    start = time.perf_counter()
    splits = domain.build(seed=0, workers=args.workers)
    seconds = time.perf_counter() - start
    examples = sum(len(arrays["inputs"]) for arrays in splits.values())

    memory = peak_gib(resource.RUSAGE_SELF) + args.workers * peak_gib(resource.RUSAGE_CHILDREN)
    print(f"life {args.boundary}: {params.configurations:,} configurations, {examples:,} examples in {seconds:.1f} s")
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(usage.ru_utime + usage.ru_stime for usage in used)
    print(f"  {examples / seconds:,.0f} examples/s, {args.workers} workers, {os.cpu_count()} cores, {cpu:.1f} s of CPU")
    print(f"  peak memory at most {memory:.2f} GiB (this process plus workers x the largest worker)")
    print("  " + ", ".join(f"{name} {len(arrays['inputs']):,}" for name, arrays in splits.items()))

    test = splits["in_range"]
    start = time.perf_counter()
    accepted = domain.check(test["inputs"], test["labels"])
    print(f"  check: {len(accepted) / (time.perf_counter() - start):,.0f} answers/s, {accepted.mean():.0%} accepted")


if __name__ == "__main__":
    main()
