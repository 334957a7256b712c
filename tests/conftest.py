"""Shared fixtures: a tiny dataset and a configuration that trains in a second."""

import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch

from ponder import data
from ponder.base.runtime import matmul_peak
from ponder.config.resolve import Config, resolve
from ponder.data import Dataset
from ponder.training import curves, rows
from tests import THREADS


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was not tested here, in one line."""
    reports = terminalreporter.stats.get("skipped", [])
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in reports)
    if reasons:
        terminalreporter.write_line("not tested: " + "; ".join(f"{reason} ({n})" for reason, n in reasons.items()))


torch.set_num_threads(int(THREADS))
hypothesis.settings.register_profile("any machine", deadline=None)  # a busy one is slow now and then
hypothesis.settings.load_profile("any machine")
# Models and domains of whoever runs the tests are not looked at.
os.environ["XDG_DATA_HOME"] = str(Path(tempfile.gettempdir()) / "no-data-of-any-user")
os.environ.pop("PONDER_DOMAINS", None)


def tiny(**overrides: dict[str, object]) -> Config:
    """A 4x4 Sudoku run of a few updates, every stabiliser on."""
    base: dict[str, dict[str, object]] = {
        "data": {"train": 300, "val": 40, "test": 50},
        "model": {
            "width": 16,
            "heads": 2,
            "expansion": 1.0,
            "h_cycles": 2,
            "l_cycles": 1,
            "h_horizon": 1,
            "l_horizon": 1,
            "dropout": 0.1,
            "state_dropout": 0.1,
            "noise": 0.01,
            "max_steps": 3,
        },
        "train": {
            "batch": 16,
            "updates": 24,
            "warmup": 2,
            "log_every": 4,
            "eval_every": 8,
            "save_every": 4,
            "lr": 1e-3,
        },
        "eval": {"examples": 20, "batch": 16},
    }
    for section, values in overrides.items():
        base[section] = {**base[section], **values}
    return resolve("sudoku-mini", "ponder", base)


DRAW = curves.draw_curves
"""With all that takes time."""


def sketched(*args: Any) -> None:
    """curves.png, with all that is put into the figure, but not rendered."""
    from matplotlib.figure import Figure

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", lambda self, file, **_: file.write(b"not rendered"))
        DRAW(*args)


@pytest.fixture(scope="session", autouse=True)
def quick_ends() -> Iterator[None]:
    """Without what takes longer than the training of a test: the measured peak is that of a moment, and curves are
    rendered where a test is about them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "matmul_peak", partial(matmul_peak, seconds=0.005))
        patch.setattr(curves, "draw_curves", sketched)
        yield


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="session")
def dataset(data_dir: Path) -> Dataset:
    return Dataset.open(data.build(tiny().data, data_dir))
