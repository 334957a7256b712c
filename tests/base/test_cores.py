"""The processor, its products, and threads that leave room for others. `cores.usable` is tested where trainings share
the cores."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ponder.base import cores, runtime
from tests.model.test_products import within_rounding

SOLVE = """
import os, sys
import ponder.cli
assert "numpy" not in sys.modules, "loaded before anybody could say how many threads it gets"
ponder.cli.main(["solve", "sudoku-4x4", "1..............4"])
import numpy as np
product = np.ones((900, 900)) @ np.ones((900, 900))
assert "torch" not in sys.modules
print("threads:", len(os.listdir("/proc/self/task")), os.environ.get("OPENBLAS_NUM_THREADS"))
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts the threads of a process as Linux lists them")
@pytest.mark.parametrize("wanted", [None, "2"])
def test_solving_without_torch_takes_one_thread_unless_told_otherwise(wanted: str | None) -> None:
    """The threads of NumPy's products spin, so that a busy neighbour would hold up a large board."""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("NUM_THREADS")}
    told = {} if wanted is None else {"OPENBLAS_NUM_THREADS": wanted}
    words = [sys.executable, "-c", SOLVE]
    done = subprocess.run(words, env={**environment, **told}, capture_output=True, encoding="utf-8", check=True)
    threads, _, variable = done.stdout.rpartition("threads: ")[2].strip().partition(" ")
    assert variable == str(wanted)
    assert threads == "1" or wanted is not None


@pytest.mark.parametrize(
    ("processor", "capability", "lags"),
    [
        ("AuthenticAMD AMD EPYC 9B45", "AVX512", True),
        ("AuthenticAMD AMD EPYC 7B13", "AVX2", False),
        ("GenuineIntel Intel(R) Xeon(R) CPU @ 2.60GHz", "AVX512", False),
        ("Intel64 Family 6 Model 158 Stepping 10, GenuineIntel", "AVX512", False),
    ],
)
def test_mkl_lags_where_it_leaves_avx512_unused(
    processor: str, capability: str, lags: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "processor", lambda: processor)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    assert runtime.mkl_lags() == (lags and runtime.ONEDNN is not None)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    assert not runtime.mkl_lags()


def test_the_peak_is_that_of_the_faster_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways compute the same product, and the rate is the better of theirs, however slow the other is."""
    a, b = torch.randn(40, 16), torch.randn(24, 16)
    ways = runtime.products(a, b)
    assert len(ways) == 1 + (runtime.ONEDNN is not None)
    for way in ways:
        within_rounding(way(), a, b)
    clock = iter(range(10**9))
    monkeypatch.setattr("ponder.base.runtime.time.perf_counter", lambda: next(clock) / 1000)

    def slow() -> torch.Tensor:
        for _ in range(50):
            next(clock)
        return a

    monkeypatch.setattr(runtime, "products", lambda a, b: [slow, lambda: a])
    assert runtime.matmul_peak((1000, 1, 1), torch.device("cpu"), seconds=1.0) == pytest.approx(4 * 2 * 1000 / 0.001)
