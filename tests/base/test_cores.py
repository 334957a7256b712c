"""Threads that leave room for others. `cores.usable` is tested where trainings share the cores."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
