"""The cores this process may use, and threads that leave room for others. Runs before torch loads, and without it."""

import importlib
import os
import platform
import re
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

BLAS_THREADS = "OPENBLAS_NUM_THREADS"


def usable() -> int:
    """Cores this process may use: those the scheduler and a container's quota allow, and no more than OMP_NUM_THREADS,
    with which people say how many they want used."""
    affinity = getattr(os, "sched_getaffinity", None)
    allowed = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    with suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="utf-8").split()
        allowed = min(allowed, max(1, int(quota) // int(period)))  # "max" is no number, and no limit
    with suppress(KeyError, ValueError):
        allowed = min(allowed, max(1, int(os.environ["OMP_NUM_THREADS"])))
    return allowed


@cache
def processor() -> str:
    """Maker and model, as far as the system tells: "AuthenticAMD AMD EPYC 9B45"."""
    with suppress(OSError):
        about = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        found = [re.search(rf"^{name}\s*:\s*(.+)$", about, re.MULTILINE) for name in ("vendor_id", "model name")]
        if said := " ".join(each[1] for each in found if each):
            return said
    return platform.processor()


def wait_quietly() -> None:
    """Threads that wait for each other sleep. As they come they spin, and where another process keeps one core busy
    all the others spin for the one that waits for it: 25 times slower on two cores (docs/performance.md)."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def numpy_on_one_thread() -> None:
    """Load NumPy with products on one thread, unless told otherwise. OpenBLAS's threads spin whatever they are told: a
    30x30 maze took three times as long with two of them on two busy cores, and no less on idle ones
    (docs/performance.md). The variable is read when it is loaded; torch, which may come later, is not to see it."""
    if "numpy" in sys.modules or BLAS_THREADS in os.environ:
        return
    os.environ[BLAS_THREADS] = "1"
    importlib.import_module("numpy")
    del os.environ[BLAS_THREADS]
