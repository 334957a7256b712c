"""What is struck: each is a command that can be given again, and all of its end that repeats bit for bit."""

import json
import os
import random
import shutil
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from benchmarks.soak.blows import CALLS, child, count_calls, on_change, strace, traced, void
from ponder import checkpoint, data
from ponder.base import files, runtime
from ponder.base.errors import UserError
from ponder.base.runtime import Runtime
from ponder.config.resolve import Config, resolve
from ponder.inference.solver import Shelf, Solver
from ponder.inference.weights import open_weights, zoo_folders
from ponder.serve import http, server
from ponder.serve.service import Service
from ponder.studies.cell import run_cell
from ponder.studies.run import BUSY, Assignment, attempt_cell
from ponder.studies.spec import After, Cell
from ponder.studies.store import Store
from ponder.training import curves, rows
from ponder.training.log import TIMING, read_log
from ponder.training.loop import Limits
from ponder.training.runs import train_in
from ponder.zoo import cards, making, travel

HERE = Runtime(torch.device("cpu"))
NAMES = ("data", "training", "study", "zoo add", "pull", "serving")


def config(seed: int = 0) -> Config:
    small = {"width": 16, "heads": 2, "expansion": 1.0, "h_cycles": 1, "l_cycles": 1, "h_horizon": 1, "l_horizon": 1}
    train = {"batch": 16, "updates": 8, "warmup": 2, "log_every": 2, "eval_every": 4, "save_every": 2, "lr": 1e-3}
    sections: dict[str, Any] = {
        "seed": seed,
        "data": {"train": 200, "val": 20, "test": 20},
        "model": {**small, "max_steps": 2, "dropout": 0.1},
        "train": train,
        "eval": {"examples": 10, "batch": 16},
    }
    return resolve("sudoku-mini", "ponder", sections)


@dataclass
class Work:
    do: Callable[[Path], None]
    """The command, in a folder of its own."""
    end: Callable[[Path], Any]
    part: Callable[[Path, random.Random], None]
    """The command as far as it may have come when one of its files is damaged."""
    use: Callable[[Path], None]
    """The command that meets the damage."""
    kept: Callable[[Path], None] = lambda _: None
    """Raises where a blow took what was there before it."""
    prepare: Callable[[Path], None] = lambda _: None
    """What is in the folder before."""
    whole: Any = None
    changes: int = 0
    calls: Counter[str] = field(default_factory=Counter)

    def measure(self, place: Path, calls: bool) -> None:
        """Do it undisturbed: its end, its changes of the disk and, if asked for, its system calls."""
        counted, first = place / "changes", place / "undisturbed"
        self.prepare(first)

        def note(number: int, *_: object) -> None:
            counted.write_text(str(number), encoding="utf-8")

        known, used = set(sys.modules), place / "modules"

        def work() -> None:
            on_change(first, note)
            self.do(first)
            used.write_text("\n".join(name for name in sys.modules if name not in known), encoding="utf-8")

        well(work)
        for name in used.read_text(encoding="utf-8").splitlines():  # here, so that no other child has to
            with suppress(Exception):
                import_module(name)
        self.whole = self.end(first)
        parted = place / "parted"
        self.prepare(parted)
        parted.mkdir(exist_ok=True)
        well(lambda: self.part(parted, random.Random(0)))
        well(lambda: self.use(parted))
        assert self.end(parted) == self.whole, "in two parts it ends otherwise, without any damage"
        self.changes = int(counted.read_text(encoding="utf-8")) if counted.exists() else 0
        if calls:
            second, trace = place / "traced", place / "trace"
            self.prepare(second)
            ended = child(lambda: self.do(second), traced(CALLS, [], trace))
            assert ended.code == 0 and self.end(second) == self.whole, ended.said
            self.calls = count_calls(trace)


def well(work: Callable[[], object]) -> None:
    """Done in a process of its own, without a blow: one that has used torch's threads is not forked."""
    ended = child(work)
    assert ended.code == 0, ended.said


def works(place: Path, wanted: Sequence[str] = NAMES, calls: bool = True) -> dict[str, Work]:
    """Measured, with what they share below `place`."""
    data_dir, run = place / "data", place / "trained"
    trained(run, data_dir)
    make: dict[str, Callable[[], Work]] = {
        "data": building,
        "training": lambda: training(data_dir),
        "study": lambda: study(data_dir),
        "zoo add": lambda: adding(data_dir, run),
        "pull": lambda: pulling(data_dir, run),
        "serving": lambda: serving(data_dir, run),
    }
    out = {name: make[name]() for name in wanted}
    calls = calls and strace()
    for name, work in out.items():
        work.measure(place / name, calls)
    return out


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    }


# Data -----------------------------------------------------------------------------------------------------------------


def building() -> Work:
    def do(folder: Path) -> None:
        data.verify(data.build(config().data, folder))

    return Work(do, bytes_of, lambda folder, _: do(folder), do)


# Training -------------------------------------------------------------------------------------------------------------


def hurry() -> None:
    """Leave out what takes this process longer than all the rest, and no other file would be written with it: drawing
    the curves, measuring the machine, asking git."""

    def write(rows: object, path: Path, title: str) -> None:
        files.write(path, title)

    curves.draw_curves = write
    rows.matmul_peak = lambda *_: 1.0  # type: ignore[attr-defined]
    making.timed = lambda *_: None
    runtime.commit = lambda: None  # type: ignore[attr-defined]


def trained(folder: Path, data_dir: Path) -> None:
    data.build(config().data, data_dir)
    well(lambda: train(folder, data_dir))


def train(folder: Path, data_dir: Path, limits: Limits | None = None) -> None:
    hurry()
    train_in(config(), folder, data_dir, HERE, limits or Limits(), quiet=True)


def training(data_dir: Path) -> Work:
    def do(folder: Path) -> None:
        train(folder, data_dir)

    def part(folder: Path, rng: random.Random) -> None:
        train(folder, data_dir, Limits(updates=rng.randint(3, 7)))

    return Work(do, end_of_training, part, do)


def end_of_training(folder: Path) -> Any:
    """The rows, the result and every tensor of the last checkpoint and of the best."""
    logged = [{k: v for k, v in row.items() if k not in TIMING} for row in read_log(folder / "metrics.jsonl")]
    result = json.loads((folder / "result.json").read_bytes())
    scores = {k: result[k] for k in ("key", "data_hash", "updates", "n", "last", "chosen_on_val", "peak")}
    saved = [checkpoint.listed(folder / "checkpoints")[-1], folder / "best"]
    tensors = {
        f"{path.name}/{file.name}/{name}": tensor.numpy().tobytes()
        for path in saved
        for file in sorted(checkpoint.read(path).path.glob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }
    return logged, scores, tensors


# A study --------------------------------------------------------------------------------------------------------------

CELLS = [Cell("soak", "smoke", "sudoku", "base", seed, config(seed), After(), 1) for seed in (0, 1)]


def study(data_dir: Path) -> Work:
    """Two cells, one after the other, as workers run them."""

    def do(folder: Path) -> None:
        hurry()
        store = store_in(folder)
        for cell in CELLS:
            work = Assignment((cell.label,), cell.scale, store, data_dir, "cpu")
            code = attempt_cell(cell, work)
            if code == BUSY:
                raise UserError("another process has the cell")
            if code:
                raise UserError(store.failed(cell) or "no reason was written down")

    def kept(folder: Path) -> None:
        for cell in CELLS:
            store_in(folder).read(cell)

    def part(folder: Path, rng: random.Random) -> None:
        hurry()
        store = store_in(folder)
        attempt_cell(CELLS[0], Assignment((CELLS[0].label,), "smoke", store, data_dir, "cpu"))
        run_cell(CELLS[1], store, data_dir, HERE, Limits(updates=5))

    return Work(do, end_of_study, part, do, kept)


def store_in(folder: Path) -> Store:
    return Store(folder / "results/cells", folder / "runs")


def end_of_study(folder: Path) -> Any:
    return [untimed(json.loads(store_in(folder).path(cell.key).read_bytes())) for cell in CELLS]


def untimed(value: Any) -> Any:
    """Without what depends on the machine's mood."""
    if isinstance(value, Mapping):
        moods = (*TIMING, "after_seconds", "environment", "seal")
        return {key: untimed(each) for key, each in value.items() if key not in moods}
    return [untimed(each) for each in value] if isinstance(value, list) else value


# The zoo --------------------------------------------------------------------------------------------------------------

NAME = "tiny"


def adding(data_dir: Path, run: Path) -> Work:
    """A run takes the place of another one of that name."""
    other, before = run.with_name("other"), run.with_name("before")

    def make() -> None:
        hurry()
        train_in(config(1), other, data_dir, HERE, Limits(), quiet=True)
        making.add(other, NAME, "", data_dir, zoo_in(before))

    def do(folder: Path) -> None:
        hurry()
        making.add(run, NAME, "", data_dir, zoo_in(folder))

    well(make)
    return Work(do, end_of_zoo, lambda folder, _: do(folder), read_zoo, read_zoo, copies(before))


def copies(before: Path) -> Callable[[Path], None]:
    return lambda folder: void(shutil.copytree(before, folder))


def pulling(data_dir: Path, run: Path) -> Work:
    """A model from a Hub (a stub of its endpoint)."""
    from tests.support.hub_server import Hub, Repo

    made = run.with_name("pushed")
    well(lambda: making.add(run, NAME, "", data_dir, zoo_in(made)))
    hub = Hub()
    hub.repos["soak/tiny"] = Repo()
    hub.repos["soak/tiny"].commit({path.name: path.read_bytes() for path in (made / "ponder/zoo" / NAME).iterdir()})

    def do(folder: Path) -> None:
        from huggingface_hub import constants

        for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
            os.environ.pop(name, None)
        constants.ENDPOINT = hub.url
        constants.HUGGINGFACE_CO_URL_TEMPLATE = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        constants.HF_HUB_CACHE = str(folder / "cache")
        zoo_in(folder)
        travel.pull("soak/tiny", NAME)

    return Work(do, end_of_zoo, lambda folder, _: do(folder), read_zoo)


def zoo_in(folder: Path) -> Path:
    os.environ["XDG_DATA_HOME"] = str(folder)
    return folder / "ponder/zoo"


def read_zoo(folder: Path) -> None:
    """A model of that name is there, and is whole."""
    zoo_in(folder)
    if NAME not in zoo_folders():
        raise FileNotFoundError("the model that was there is gone")
    cards.read_card(zoo_folders()[NAME])
    open_weights(NAME)


def end_of_zoo(folder: Path) -> Any:
    """All that is read of it: the bytes of a card may say the same in other ones."""
    read_zoo(folder)
    found = bytes_of(zoo_folders()[NAME])
    card = json.loads(found.pop(cards.CARD))
    card.pop("fallback", None)  # milliseconds
    return found, {name: card.get(name) for name in (*cards.Card.model_fields, "title", "sha256", "files")}


# Serving --------------------------------------------------------------------------------------------------------------


def serving(data_dir: Path, run: Path) -> Work:
    """A server, whose client gets to every puzzle what the solver says that is asked directly. It changes no disk."""
    before, answers = run.with_name("served"), run.with_name("answers.json")

    def make() -> None:
        making.add(run, NAME, "", data_dir, zoo_in(before))
        solver = Solver(NAME)
        puzzles = [solver.domain.format(row) for row in solver.domain.sample(0, 4)[0]]
        files.write_json(answers, [(puzzle, solver.solve(puzzle).text) for puzzle in puzzles])

    def do(folder: Path) -> None:
        zoo_in(folder)
        listening, wrong = server.listen("127.0.0.1", 0), list[object]()

        def ask() -> None:
            try:
                connection = HTTPConnection("127.0.0.1", listening.getsockname()[1], timeout=60)
                for puzzle, text in files.read_json(answers):
                    asked = json.dumps({"model": NAME, "puzzle": puzzle})
                    connection.request("POST", "/v1/solve", asked, {"Content-Type": "application/json"})
                    said = json.loads(connection.getresponse().read())
                    wrong.extend([(puzzle, text, said)] * (said.get("text") != text))
            except Exception as error:
                wrong.append(error)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)

        client = threading.Thread(target=ask)
        app = http.make_app(Service(Shelf((NAME,)), slots=2), ready=client.start)
        signal.signal(signal.SIGTERM, lambda *_: None)  # uvicorn's own handler gives it back at the end
        server.run(app, listening, timeout=60)
        client.join()
        assert not wrong, wrong

    well(make)
    return Work(do, lambda _: None, lambda *_: None, do, prepare=copies(before))
