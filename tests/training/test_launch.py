"""How a training shares the cores, and what becomes of a process that fails."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file

from ponder import checkpoint
from ponder.base import cores, native
from ponder.base.errors import UserError
from ponder.cli import main
from ponder.training import launch
from ponder.training.launch import Asked, Layout, choose
from tests.conftest import tiny
from tests.support.processes import Started, by_ranks, start

LONG = 10**9
WORDS = ["--data.train", "300", "--data.val", "40", "--data.test", "50", "--train.batch", "32", "--eval.examples", "40"]
TRAIN = ["train", "sudoku-mini", *WORDS]


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "usable", lambda: 2)


def test_processes_get_enough_slots_and_share_the_cores() -> None:
    config = tiny(train={"batch": 96, "updates": LONG})
    found = {allowed: launch.fitting(config, None, allowed) for allowed in range(1, 17)}
    assert found[1] == 1
    for allowed, processes in found.items():
        assert processes <= allowed and 96 % processes == 0
        assert processes == 1 or 96 // processes >= launch.SLOTS
        bigger = range(processes + 1, allowed + 1)
        assert not any(96 % n == 0 and 96 // n >= launch.SLOTS for n in bigger)


@pytest.mark.usefixtures("two")
def test_a_short_training_starts_no_processes_and_a_large_table_has_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny(train={"batch": 64, "updates": LONG})
    assert choose(config, 3, Asked()) == Layout(1, 2)
    assert choose(config, None, Asked()) == Layout(2, 1)
    monkeypatch.setattr(launch, "TABLE", 1)
    assert choose(config, None, Asked()) == Layout(1, 2)


@pytest.mark.usefixtures("two")
def test_threads_share_a_program_and_processes_what_is_none() -> None:
    width: dict[str, object] = {"width": 32, "heads": 2}
    config = tiny(model=width, train={"batch": 64, "updates": LONG})
    threads = Layout(2, 1) if native.library() is None else Layout(1, 2)
    assert choose(config, None, Asked()) == threads
    assert choose(config, None, Asked(processes=2)) == Layout(2, 1)
    assert choose(config, None, Asked(), Layout(2, 1)) == Layout(2, 1), "goes on as it began"
    with native.without():
        assert choose(config, None, Asked()) == Layout(2, 1)
    for graph in ({"winners": 2}, {"compile": "block"}, {"precision": "bfloat16"}):
        other = tiny(model=width, train={"batch": 64, "updates": LONG, **graph})
        assert choose(other, None, Asked()) == Layout(2, 1), graph


@pytest.mark.usefixtures("two")
def test_what_was_asked_for_wins_then_how_the_run_began() -> None:
    config = tiny(train={"batch": 64, "updates": LONG})
    assert choose(config, None, Asked(), Layout(4, 3)) == Layout(4, 3)
    assert choose(config, None, Asked(processes=1), Layout(4, 3)) == Layout(1, 2)
    assert choose(config, None, Asked(threads=5)) == Layout(2, 5)
    assert choose(config, 3, Asked(processes=2)) == Layout(2, 1)
    for wrong in ({"processes": 0}, {"threads": -1}):
        with pytest.raises(UserError, match="give at least 1"):
            Asked(**wrong)


def test_a_quota_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.read_text

    def quota(text: str) -> None:
        def read(path: Path, *args: object, **kwargs: object) -> str:
            return text if path.name == "cpu.max" else real(path)

        monkeypatch.setattr(Path, "read_text", read)

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    for text, expected in (("max 100000", 8), ("150000 100000", 1), ("400000 100000", 4), ("50000 100000", 1)):
        quota(text)
        assert cores.usable() == expected
    quota("max 100000")
    for said, expected in (("3", 3), ("12", 8), ("0", 1), ("many", 8)):
        monkeypatch.setenv("OMP_NUM_THREADS", said)
        assert cores.usable() == expected


def run(folder: Path, *words: str) -> Started:
    return start([*TRAIN, *words, "--out", "run"], folder / "said", folder=folder)


def stored(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "run/environment.json").read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the data, so that each run is about training alone."""
    folder = tmp_path_factory.mktemp("launch")
    assert main(["data", "build", "sudoku-mini", *WORDS[:6], "--data-dir", str(folder / "data")]) == 0
    return folder


def test_the_plain_command_goes_on_as_it_began_bit_for_bit(place: Path, tmp_path: Path) -> None:
    """Two processes, stopped and started again without a word about processes, end where an unbroken run does."""
    (tmp_path / "data").symlink_to(place / "data")
    short = ("--train.updates", "5", "--train.warmup", "1", "--train.eval_every", "5")
    first = run(tmp_path, *short, "--processes", "2", "--max-updates", "2")
    assert first.ended() == 0 and stored(tmp_path)["ranks"] == 2, first.said
    again = run(tmp_path, *short)
    assert again.ended() == 0 and "2 processes" in again.said, again.said
    unbroken = [*TRAIN, *short, "--data-dir", str(place / "data"), "--out", str(tmp_path / "whole")]
    by_ranks(unbroken, tmp_path / "unbroken", 2)
    ends = [checkpoint.newest(tmp_path / name / "checkpoints") for name in ("run", "whole")]
    first, second = (load_file(end.path / "weights.safetensors") for end in ends if end is not None)
    assert first.keys() == second.keys() and all((first[k] == second[k]).all() for k in first)


def test_a_mistake_is_told_once(place: Path, tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to(place / "data")
    refused = run(tmp_path, "--train.batch", "33", "--processes", "2")
    assert refused.ended() == 2
    about, *err = refused.said.splitlines()
    assert about.startswith("on 2 processes")
    assert len(err) == 1 and "cannot be shared by 2 ranks" in err[0]


def test_an_interrupt_saves_and_a_killed_process_is_named(place: Path, tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to(place / "data")
    config = ("--processes", "2", "--train.log_every", "1")
    going = run(tmp_path, *config)
    going.wait_for("^update 1 ")
    going.send(signal.SIGINT)
    assert going.ended() == 0 and "saved. Go on with" in going.said and "Traceback" not in going.said, going.said

    going = run(tmp_path, *config)
    going.wait_for("^update ")
    psutil.Process(going.pid).children()[-1].kill()
    assert going.ended() == 2 and "was killed (signal 9" in going.said and "Traceback" not in going.said, going.said


@pytest.mark.parametrize("through", ["ponder", "torchrun"])
def test_ranks_end_saved_when_their_launcher_is_killed(place: Path, tmp_path: Path, through: str) -> None:
    (tmp_path / "data").symlink_to(place / "data")
    train = ["-m", "ponder", *TRAIN, "--train.log_every", "1", "--out", "run"]
    started = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = [*started, *train] if through == "torchrun" else [*train, "--processes", "2"]
    going = subprocess.Popen([sys.executable, *words], cwd=tmp_path, stdout=subprocess.PIPE, encoding="utf-8")
    assert going.stdout is not None
    while not going.stdout.readline().startswith("update 1 "):
        assert going.poll() is None
    ranks = psutil.Process(going.pid).children()
    assert len(ranks) == 2
    going.kill()
    going.wait()
    alive = psutil.wait_procs(ranks, timeout=60)[1]
    for rank in alive:
        rank.kill()
    assert not alive
    assert "saved. Go on with" in going.stdout.read() and checkpoint.newest(tmp_path / "run/checkpoints") is not None
