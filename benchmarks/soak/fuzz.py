"""Inputs that nobody should give: ours, broken at random, to everything that reads. Each is taken, or refused in one
line; anything else is a traceback, and what takes a minute hangs."""

import asyncio
import contextlib
import io
import json
import os
import random
import re
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.soak.works import config, trained
from ponder import checkpoint, data
from ponder.base import files
from ponder.base.errors import UserError, disk_in_words
from ponder.config.resolve import from_flat, parse_overrides, preset_names, resolve
from ponder.domains.contract import Domain
from ponder.inference.weights import ZOO, open_weights
from ponder.llm.parse import read_answer
from ponder.studies.store import Store
from ponder.training.log import read_log
from ponder.zoo.cards import read_card

HANG = 60
"""Seconds after which an input counts as one that hangs."""
WORKING = 3
"""Seconds that a command line may work which nothing is wrong with."""
Try = Callable[[random.Random], object]


class Hangs(BaseException):
    pass


@dataclass(frozen=True)
class Place:
    """What the readers read, undamaged, and a folder to damage it in."""

    sound: Path
    here: Path

    def file(self, name: str, content: bytes) -> Path:
        path = self.here / name
        path.write_bytes(content)
        return path


# Breaking things ------------------------------------------------------------------------------------------------------

NASTY: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 10**400, 1e308, -1e-308, float("inf"), float("nan"), "", " ", "0",
    "x" * 5000, "\x00", "\ud800", "\u202e", "../..", "[]", [], {}, [[]], [[[[]]]], {"": ""}, [None], [{}], -0.0, "NaN",
]  # fmt: skip
WORDS = [
    b"", b"\x00", b"\xff\xfe", b"\n", b"\r\n", b"{", b"}", b"[", b"]", b'"', b"'", b",", b":", b"-", b"0", b"1e999",
    b"NaN", b"null", b"true", b"!!python/object:os.system", b"&a *a", b"<<: *a", b"\\", b"%s", b"../", b"[" * 3000,
    b"9" * 5000, b"answer:", b"ANSWER:", b"```", b"\\boxed{", b"<think>", b"</think>", "\u0661\u0662".encode(),
    "\U0001f600".encode(), b"\x1b[31m", b"=", b"--",
]  # fmt: skip


def spoil(content: bytes, rng: random.Random) -> bytes:
    """A few bytes changed, cut, doubled, moved, or a word that means something put in."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        a = rng.randint(0, len(content))
        b = min(len(content), a + rng.choice((1, 1, 2, 8, 64, 1000)))
        part, way = content[a:b], rng.randrange(6)
        if way == 0 and part:
            part = bytes([part[0] ^ (1 << rng.randrange(8))]) + part[1:]
        elif way == 1:
            part = b""
        elif way == 2:
            part = part * rng.choice((2, 3, 50))
        elif way == 3:
            part = bytes(rng.randrange(256) for _ in range(rng.choice((1, 2, 8))))
        elif way == 4:
            part = rng.choice(WORDS)
        else:
            c = rng.randint(0, len(content))
            part = content[c : c + len(part)]
        content = content[:a] + part + content[b:]
    return content


def spoil_text(text: str, rng: random.Random) -> str:
    return spoil(text.encode("utf-8", "surrogatepass"), rng).decode("utf-8", "replace")


def spoil_value(value: Any, rng: random.Random) -> Any:
    """The same with one of its parts exchanged, dropped, doubled or given another name."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        way = rng.randrange(8)
        if way == 0:
            return {k: v for k, v in value.items() if k != key}
        if way == 1:
            return {**value, str(rng.choice(NASTY)): value[key]}
        return {**value, key: spoil_value(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.9:
        at, way = rng.randrange(len(value)), rng.randrange(8)
        if way == 0:
            return value[:at] + value[at + 1 :]
        if way == 1:
            return value[:at] + [value[at]] * rng.choice((2, 50)) + value[at:]
        return [*value[:at], spoil_value(value[at], rng), *value[at + 1 :]]
    if isinstance(value, str) and rng.random() < 0.5:
        return spoil_text(value, rng)
    if isinstance(value, int | float) and rng.random() < 0.5:
        return value * rng.choice((-1, 2, 1000, 0.5, 10**9)) if abs(value) < 1e100 else 0
    return rng.choice(NASTY)


def spoil_json(value: Any, rng: random.Random) -> bytes:
    text = json.dumps(spoil_value(value, rng)).encode()
    return spoil(text, rng) if rng.random() < 0.3 else text


# What reads -----------------------------------------------------------------------------------------------------------


def domains() -> list[tuple[Domain, list[Any]]]:
    """One domain of every kind, with puzzles of its own."""
    names = ("sudoku-4x4-mini", "sudoku-mini", "maze-mini", "life-mini", "arithmetic-mini", "joint-mini")
    out = []
    for name in names:
        if name in preset_names():
            domain = resolve(name).data.make()
            out.append((domain, list(domain.sample(0, 4)[0])))
    return out


def puzzle_texts(_: Place) -> Try:
    made = [(domain, domain.format(puzzle)) for domain, puzzles in domains() for puzzle in puzzles]

    def one(rng: random.Random) -> object:
        domain, text = rng.choice(made)
        return domain.parse(spoil_text(text, rng))

    return one


def puzzle_values(_: Place) -> Try:
    made = [(domain, json.loads(json.dumps(domain.to_json(p)))) for domain, puzzles in domains() for p in puzzles]

    def one(rng: random.Random) -> object:
        domain, value = rng.choice(made)
        return domain.from_json(spoil_value(value, rng))

    return one


def answers(_: Place) -> Try:
    """Of language models: reading one never fails."""
    forms = ("ANSWER: {}", "<think>{}</think>\n**Answer:**\n```\n{}\n```", '{{"answer": "{}"}}', "\\boxed{{{}}}", "{}")
    made = [(domain, puzzle, domain.format(puzzle)) for domain, puzzles in domains() for puzzle in puzzles]

    def one(rng: random.Random) -> object:
        domain, puzzle, text = rng.choice(made)
        return read_answer(domain, puzzle, spoil_text(rng.choice(forms).format(*[text] * 2), rng))

    return one


def overrides(_: Place) -> Try:
    words = ["--train.lr", "1e-3", "--model.layers", "2", "--train.updates=10", "--eval.splits", "[val]", "--seed", "3"]
    presets = [name for name in preset_names() if name.endswith("-mini")]

    def one(rng: random.Random) -> object:
        given = [spoil_text(word, rng) if rng.random() < 0.4 else word for word in words]
        rng.shuffle(given) if rng.random() < 0.2 else None
        return resolve(rng.choice(presets), None, parse_overrides(given[rng.choice((0, 0, 1, 2)) :]))

    return one


def configurations(_: Place) -> Try:
    flat = [resolve(name).flat() for name in preset_names() if name.endswith("-mini")]

    def one(rng: random.Random) -> object:
        value = spoil_value(rng.choice(flat), rng)
        return from_flat(value if isinstance(value, dict) else {"preset": value})

    return one


def yaml_files(place: Place) -> Try:
    folder = Path(data.__file__).parent / "presets"
    made = [path.read_bytes() for path in sorted(folder.glob("*-mini.yaml"))]
    return lambda rng: resolve(str(place.file("mine.yaml", spoil(rng.choice(made), rng))))


def logs(place: Place) -> Try:
    made = (place.sound / "run/metrics.jsonl").read_bytes()
    return lambda rng: read_log(place.file("metrics.jsonl", spoil(made, rng)))


def cards(place: Place) -> Try:
    made = json.loads((ZOO / "sudoku-4x4/card.json").read_bytes())

    def one(rng: random.Random) -> object:
        place.file("card.json", spoil_json(made, rng))
        return read_card(place.here)

    return one


def results(place: Place) -> Try:
    """Of studies, without the seal that would refuse them all."""
    kept = min((Path(__file__).parents[2] / "results/cells").glob("*.json"), key=lambda path: path.stat().st_size)
    made = json.loads(kept.read_bytes())
    made.pop(files.SEAL, None)

    def one(rng: random.Random) -> object:
        place.file(kept.name, spoil_json(made, rng))
        return Store(place.here, place.here).stored(kept.stem)

    return one


def states(place: Place) -> Try:
    """Of checkpoints, their own hash made right again."""
    saved = checkpoint.listed(place.sound / "run/checkpoints")[-1]
    made = json.loads((saved / checkpoint.STATE).read_bytes())
    made.pop(checkpoint.OWN, None)

    def one(rng: random.Random) -> object:
        place.file(checkpoint.STATE, spoil_json(made, rng))
        return checkpoint.read(place.here)

    return one


def models(place: Place) -> Try:
    """Configuration or weights, the bytes before the tensors in particular."""
    sound = {name: (place.sound / "model" / name).read_bytes() for name in ("config.json", "weights.safetensors")}
    head = 8 + int.from_bytes(sound["weights.safetensors"][:8], "little")

    def one(rng: random.Random) -> object:
        for name, content in sound.items():
            place.file(name, content)
        if rng.random() < 0.5:
            place.file("config.json", spoil_json(json.loads(sound["config.json"]), rng))
        else:
            weights = sound["weights.safetensors"]
            place.file("weights.safetensors", spoil(weights[:head], rng) + weights[head:])
        return open_weights(place.here)

    return one


def datasets(place: Place) -> Try:
    sound = data.folder_for(place.sound / "data", config().data)
    made = json.loads((sound / data.MANIFEST).read_bytes())
    arrays = sorted(sound.glob("*.npy"))

    def one(rng: random.Random) -> object:
        for path in arrays:
            target = place.here / path.name
            target.unlink(missing_ok=True)
            target.symlink_to(path)
        place.file(data.MANIFEST, (sound / data.MANIFEST).read_bytes())
        if rng.random() < 0.5:
            place.file(data.MANIFEST, spoil_json(made, rng))
        else:
            path = rng.choice(arrays)
            (place.here / path.name).unlink()
            content = path.read_bytes()
            place.file(path.name, spoil(content[:128], rng) + content[128:])
        dataset = data.Dataset.open(place.here)
        return [dataset.examples(split, np.arange(min(2, dataset.counts[split]))) for split in dataset.counts]

    return one


LINES = """
solve sudoku-4x4 1.....2..3.....4
solve sudoku-4x4 --random --seed 3 --steps 2
zoo sudoku-4x4 --json
zoo
presets sudoku-mini
presets
cost sudoku-mini --model.layers 3
domains
data build sudoku-mini --data.train 30 --workers 1
data verify data/x
train sudoku-mini --train.lr 1e-3 --out run --max-updates 1 --threads 1
train --resume run
runs run
eval sudoku-4x4 --examples 5
study list
study show halting --smoke
study run halting --only s0 --dry-run
study status
study cost halting --gpu H100
diff run run
trace sudoku-4x4 --random
search sudoku-4x4 --examples 4
policies sudoku-4x4 --examples 4
completion bash
watch run
import file.pt out
export sudoku-4x4 out.onnx
push run owner/name
pull owner/name --name x
domain new mine
serve --model sudoku-4x4 --port 0
eval-llm sudoku-mini --endpoint http://127.0.0.1:1 --model x
doctor
--version
mcp
""".strip().splitlines()


def command_lines(place: Place) -> Try:
    """Each for as long as a mistake would take to be found. Work that is then under way was rightly asked for."""
    os.environ |= {"XDG_DATA_HOME": str(place.here), "HF_HOME": str(place.here), "HF_HUB_OFFLINE": "1"}
    os.chdir(place.here)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)

    def one(rng: random.Random) -> None:
        words = rng.choice(LINES).split()
        for _ in range(rng.choice((1, 1, 2, 3))):
            at, way = rng.randint(0, len(words) - 1), rng.randrange(5)
            if way == 0 and len(words) > 1:
                del words[at]
            elif way == 1:
                words.insert(at, rng.choice(rng.choice(LINES).split()))
            elif way == 2:
                words.insert(at, rng.choice(WORDS).decode("utf-8", "replace"))
            else:
                words[at] = spoil_text(words[at], rng)
        words = [word for word in words if not word.startswith("/") and "\x00" not in word]
        signal.setitimer(signal.ITIMER_REAL, WORKING)
        with contextlib.suppress(Hangs):
            command(words)

    return one


def command(words: list[str]) -> None:
    from ponder.cli import main

    heard, shown = io.StringIO(), io.TextIOWrapper(io.BytesIO(), encoding="utf-8")  # a server writes bytes, too
    try:
        with contextlib.redirect_stderr(heard), contextlib.redirect_stdout(shown):
            code: object = main(words)
    except SystemExit as end:
        code = end.code
    if "Traceback" in heard.getvalue() or code not in (0, 1, 2, 130, None):
        raise RuntimeError(f"code {code}: {heard.getvalue()[-300:]}")
    if code == 2:
        raise UserError("refused")


def requests(_: Place) -> Try:
    """To every path of the server, in its own process; the MCP one by JSON-RPC."""
    import httpx

    from ponder.inference.solver import Shelf
    from ponder.serve.http import make_app
    from ponder.serve.service import Service

    app = make_app(Service(Shelf(("sudoku-4x4",)), slots=4))
    loop = asyncio.new_event_loop()
    running = contextlib.AsyncExitStack()
    loop.run_until_complete(running.enter_async_context(app.router.lifespan_context(app)))
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")
    solve = {"model": "sudoku-4x4", "puzzle": "1.....2..3.....4", "fallback": None, "trace": False, "steps": 2}
    call = {"name": "solve_sudoku", "arguments": {"grid": [[1, 0, 0, 0], [0, 0, 2, 0], [0, 3, 0, 0], [0, 0, 0, 4]]}}
    begin = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    spoken = [("tools/call", call), ("tools/list", {}), ("initialize", begin), ("ping", {}), ("resources/list", {})]
    paths = ["/v1/solve"] * 4 + [
        "/v1/solve/stream",
        "/mcp",
        "/mcp",
        "/mcp",
        "/v1/models/sudoku-4x4/random?seed=1",
        "/healthz",
    ]

    def one(rng: random.Random) -> object:
        path = rng.choice(paths)
        method, params = rng.choice(spoken)
        whole = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params} if path == "/mcp" else solve
        body = spoil_json(whole, rng) if rng.random() < 0.8 else spoil(json.dumps(whole).encode(), rng)
        kind = "application/json" if rng.random() < 0.9 else spoil_text("application/json", rng)
        headers = {"Content-Type": re.sub(r"[^\x20-\x7e]", "?", kind), "Accept": "application/json, text/event-stream"}
        verb = rng.choice(("GET", "PUT", "HEAD", "OPTIONS", "DELETE", "X")) if rng.random() < 0.05 else "POST"
        if "random" in path or path == "/healthz":
            verb, path = "GET", re.sub(r"[^\x21-\x7e]", "%00", spoil_text(path, rng)[:2000])
            path = path if path.startswith("/") else "/" + path
        if path.startswith("/mcp") and verb == "GET":
            verb = "POST"  # a stream that lasts
        try:
            request = client.build_request(verb, "http://127.0.0.1" + path, content=body, headers=headers)
        except httpx.InvalidURL:
            return None
        assert running  # for as long as there are requests
        answer = loop.run_until_complete(client.send(request))
        if answer.status_code >= 500 and answer.status_code not in (503, 504):
            raise RuntimeError(f"{verb} {path[:60]} {body[:300]!r}: {answer.status_code} {answer.text[:300]}")
        if answer.status_code >= 400:
            raise UserError("refused")
        return None

    return one


KINDS: dict[str, Callable[[Place], Try]] = {
    "puzzles as text": puzzle_texts,
    "puzzles as JSON": puzzle_values,
    "answers of language models": answers,
    "overrides": overrides,
    "configurations": configurations,
    "YAML files": yaml_files,
    "training logs": logs,
    "cards": cards,
    "stored results": results,
    "states of checkpoints": states,
    "models": models,
    "datasets": datasets,
    "command lines": command_lines,
    "HTTP and MCP": requests,
}


# A batch --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    counts: Counter[str]
    """tried, refused, tracebacks, hangs."""
    said: list[str]


def batch(kind: str, sound: Path, seed: int, seconds: float, most: int = 10**9) -> Batch:
    """As many inputs of a kind as there is time for, in a process of their own."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ours)
        with tempfile.TemporaryDirectory(prefix="ponder-fuzz-") as here, os.fdopen(theirs, "w") as out:
            try:
                found = _batch(kind, Place(sound, Path(here).resolve()), seed, seconds, most)
                out.write(json.dumps([found.counts, found.said]))
                out.flush()
            finally:
                os.chdir("/")
                shutil.rmtree(here, ignore_errors=True)
                os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as back:
        text = back.read()
    os.waitpid(pid, 0)
    if not text:
        return Batch(Counter(tried=1, tracebacks=1), [f"{kind}, seed {seed}: its process died"])
    counts, said = json.loads(text)
    return Batch(Counter(counts), said)


def _batch(kind: str, place: Place, seed: int, seconds: float, most: int) -> Batch:
    def hang(*_: object) -> None:
        raise Hangs

    signal.signal(signal.SIGALRM, hang)
    one, counts, said = KINDS[kind](place), Counter[str](), list[str]()
    until = time.monotonic() + seconds
    for number in _while(until, most):
        counts["tried"] += 1
        try:
            signal.setitimer(signal.ITIMER_REAL, HANG)
            with disk_in_words():
                one(random.Random(f"{kind} {seed} {number}"))
        except UserError as error:
            counts["refused"] += 1
            if "\n" in str(error):
                counts["tracebacks"] += 1
                said.append(f"{kind}, seed {seed}, input {number}: more than a line: {str(error)[:300]!r}")
        except Hangs:
            counts["hangs"] += 1
            said.append(f"{kind}, seed {seed}, input {number}: hangs")
        except BaseException as error:
            counts["tracebacks"] += 1
            said.append(f"{kind}, seed {seed}, input {number}: {type(error).__name__}: {str(error)[:600]}")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    return Batch(counts, said[:20])


def _while(until: float, most: int) -> Iterator[int]:
    number = 0
    while number < most and (time.monotonic() < until or number == 0):
        yield number
        number += 1


def sound(place: Path) -> Path:
    """A folder with one of each that is read: a dataset, a run, a model."""
    trained(place / "run", place / "data")
    shutil.copytree(ZOO / "sudoku-4x4", place / "model")
    return place
