"""The cores this process may use, and threads that leave room for others. Runs before torch loads, and without it."""

import os
from contextlib import suppress
from pathlib import Path


def usable() -> int:
    """Cores this process may run on: what the scheduler, and a container's quota, allow."""
    affinity = getattr(os, "sched_getaffinity", None)
    allowed = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    with suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="utf-8").split()
        allowed = min(allowed, max(1, int(quota) // int(period)))  # "max" is no number, and no limit
    return allowed


def wait_quietly() -> None:
    """Threads that wait for each other sleep. As they come they spin, and where another process keeps one core busy
    all the others spin for the one that waits for it: 25 times slower on two cores (docs/performance.md)."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
