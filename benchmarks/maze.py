"""How fast mazes are made and checked: 30x30 with a shortest path over 110 steps, and small ones for mini presets."""

import argparse
import os
import resource
import time

import numpy as np

from ponder.domains.contract import Tokens
from ponder.domains.maze.domain import PATH, Maze, MazeParams


def cpu_seconds() -> float:
    """Of this process and its workers: comparable between runs on a busy machine."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def make(side: int, min_path: int, count: int, workers: int) -> tuple[Maze, Tokens, Tokens]:
    params = MazeParams(height=side, width=side, source="generate", min_path=min_path, train=count - 2, val=1, test=1)
    domain = Maze(params)
    start, start_cpu = time.perf_counter(), cpu_seconds()
    built = domain.build(seed=0, workers=workers)
    seconds, cpu = time.perf_counter() - start, cpu_seconds() - start_cpu
    inputs, labels = (np.concatenate([arrays[name] for arrays in built.values()]) for name in ("inputs", "labels"))
    steps = (labels == PATH).sum(1) + 1
    print(
        f"{side}x{side}, path >= {min_path}: {count} different mazes in {seconds:.1f} s with {workers} worker(s): "
        f"{count / seconds:.0f} per second, {count / cpu:.0f} per CPU second; "
        f"path {steps.min()} to {steps.max()}, median {np.median(steps):.0f}"
    )
    return domain, inputs, labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer mazes")
    quick = parser.parse_args().quick
    print(f"{os.cpu_count()} cores")
    for workers in (1, 2):
        domain, inputs, labels = make(30, 111, 500 if quick else 2000, workers)
    start = time.perf_counter()
    assert domain.check(inputs, labels).all()
    print(f"checked at {len(inputs) / (time.perf_counter() - start):.0f} per second")
    for side, min_path in ((8, 12), (8, 18), (12, 24)):
        make(side, min_path, 5_000 if quick else 50_000, 2)
    peaks = [resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(f"peak memory {peaks[0]:.0f} MiB, largest worker {peaks[1]:.0f} MiB")


if __name__ == "__main__":
    main()
