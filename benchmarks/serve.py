"""Continuous batching against one request at a time: `python benchmarks/serve.py [MODEL ...] [--quick] [--save]`.

Two real servers (`ponder serve`), one with many slots and one with a single slot, take turns with the same puzzles from
the same number of clients. Each client has one connection and asks for its next puzzle when it has the answer to the
last, so that a slow server has full queues and the latency shows it. Every answer is checked to be of its own puzzle.
The best of several rounds counts, because other work may disturb any one of them; the server's CPU time for a puzzle,
which other work changes less, stands beside it.

Each round lasts about as long as it is told to, by puzzles counted out from a first try, and at least until every
client has an answer. `--save` keeps the rows of other zoo models if they are of this machine, so that a slow model can
be measured by itself. All zoo models but `maze-30x30` take about six minutes.

`--steps` measures something else: the CPU time of one ACT step for one board, alone and in batches, without a server.
What a batch saves there, times the cores that both servers do not use alike, is about what batching can give.

Goal: 5 times as many puzzles a second.
"""

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from ponder.base import runtime
from ponder.base.errors import UserError
from ponder.inference.solver import Solver
from ponder.inference.weights import open_weights, zoo_names
from ponder.serve.service import SLOTS

RESULT = Path(__file__).resolve().parents[1] / "results" / "bench_serve.json"
GOAL = 5.0


@dataclass(frozen=True)
class Round:
    slots: int
    n: int
    """Puzzles."""
    per_second: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float
    """CPU time of the server for one puzzle."""


@dataclass(frozen=True)
class Row:
    model: str
    sha256: str
    clients: int
    continuous: Round
    single: Round
    ratio: float
    cpu_ratio: float
    reached: bool
    grown_mb: float
    """Resident memory after the last round over that after the first, of the server with all slots."""


@dataclass(frozen=True)
class Server:
    port: int
    process: psutil.Process


@contextmanager
def serving(model: str, slots: int, threads: int | None) -> Iterator[Server]:
    words = [sys.executable, "-m", "ponder", "serve", "--port", "0", "--model", model, "--slots", str(slots)]
    words += ["--queue", "100000", "--timeout", "600", *(["--threads", str(threads)] if threads else [])]
    env = {k: v for k, v in os.environ.items() if k != "PONDER_TOKEN"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, encoding="utf-8", env=env) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"http://[^:]+:(\d+)", line)
            if found is None:
                raise UserError(f"the server did not start: {line.strip() or 'it said nothing'}")
            yield Server(int(found[1]), psutil.Process(process.pid))
        finally:
            process.terminate()


async def ask(server: Server, model: str, puzzles: Sequence[str]) -> list[float]:
    """One client: puzzle after puzzle over one connection. A plain socket, to leave the CPU to the server."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    latencies = []
    for puzzle in puzzles:
        began = time.perf_counter()
        body = json.dumps({"model": model, "puzzle": puzzle}).encode()
        head = "POST /v1/solve HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: "
        writer.write(f"{head}{len(body)}\r\n\r\n".encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", answer, re.IGNORECASE)
        assert answer.startswith(b"HTTP/1.1 200") and length, answer
        said = json.loads(await reader.readexactly(int(length[1])))
        assert said["puzzle"] == puzzle, (said, puzzle)
        latencies.append(time.perf_counter() - began)
    writer.close()
    return latencies


def measure(server: Server, slots: int, model: str, shares: Sequence[Sequence[str]]) -> Round:
    async def everyone() -> list[list[float]]:
        return await asyncio.gather(*(ask(server, model, share) for share in shares))

    began, used = time.perf_counter(), _cpu(server)
    latencies = np.concatenate(asyncio.run(everyone()))
    seconds, n = time.perf_counter() - began, len(latencies)
    p50, p99 = np.percentile(latencies, [50, 99]) * 1e3
    cpu = (_cpu(server) - used) / n * 1e3
    return Round(slots, n, round(n / seconds, 1), round(float(p50), 1), round(float(p99), 1), round(cpu, 2))


def _cpu(server: Server) -> float:
    times = server.process.cpu_times()
    return float(times.user + times.system)


def compare(model: str, clients: int, seconds: float, slots: int, rounds: int, threads: int | None) -> Row:
    opened = open_weights(model)
    domain = Solver(model).domain
    puzzles = [domain.format(row) for row in domain.sample(0, 4 * clients)[0]]
    best: dict[int, Round] = {}
    memory: list[int] = []
    with serving(model, slots, threads) as many, serving(model, 1, threads) as one:
        shares: dict[int, list[list[str]]] = {}
        for server, count in ((many, slots), (one, 1)):
            first = measure(server, count, model, [[puzzle] for puzzle in puzzles[: 2 * count + 8]])  # allocates too
            each = max(1, round(first.per_second * seconds / clients))
            shares[count] = [[puzzles[(i + k * clients) % len(puzzles)] for k in range(each)] for i in range(clients)]
        for _ in range(rounds):
            for server, count in ((many, slots), (one, 1)):
                got = measure(server, count, model, shares[count])
                best[count] = max(best.get(count, got), got, key=lambda r: r.per_second)
            memory.append(many.process.memory_info().rss)
    ratio = best[slots].per_second / best[1].per_second
    return Row(
        model=opened.name,
        sha256=opened.sha256,
        clients=clients,
        continuous=best[slots],
        single=best[1],
        ratio=round(ratio, 2),
        cpu_ratio=round(best[1].cpu_ms / best[slots].cpu_ms, 2),
        reached=ratio >= GOAL,
        grown_mb=round((memory[-1] - memory[0]) / 1e6, 1),
    )


def step_times(model: str) -> dict[str, float]:
    """Milliseconds of CPU of one ACT step, for one board of a batch: one thread, the least of several."""
    opened = open_weights(model)
    boards = Solver(model).domain.sample(0, SLOTS)[0]
    found = {}
    for batch in (2**n for n in range(SLOTS.bit_length())):
        key, inputs = torch.zeros(batch, dtype=torch.int64), torch.from_numpy(boards[:batch]).long()
        carry, rows, spent = opened.model.start(key), opened.model.table[key], []
        with torch.no_grad():
            for _ in range(3 + 2 * SLOTS // batch):
                began = time.process_time()
                opened.model(carry, inputs, rows)
                spent.append((time.process_time() - began) / batch * 1e3)
        found[str(batch)] = round(min(spent), 3)
    return found


def show(row: Row) -> str:
    lines = [f"{row.model}, {row.clients} clients:"]
    for name, r in (("continuous batching", row.continuous), ("one at a time", row.single)):
        lines.append(
            f"  {name:<20} {r.slots:>3} slots, {r.n:>5} puzzles: "
            f"{r.per_second:7.1f} puzzles a second, latency p50 {r.p50_ms:7.1f} ms, "
            f"p99 {r.p99_ms:7.1f} ms, server CPU {r.cpu_ms:6.2f} ms a puzzle"
        )
    verdict = "reached" if row.reached else "MISSED"
    ratios = f"{row.ratio:.2f} times (goal {GOAL:g}: {verdict}); CPU {row.cpu_ratio:.2f} times"
    return "\n".join([*lines, f"  {ratios}; memory grew by {row.grown_mb:.1f} MB"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="default: all of the zoo")
    parser.add_argument("--quick", action="store_true", help="one round of about a second")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=8.0, help="of a round, about")
    parser.add_argument("--slots", type=int, default=SLOTS)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, help="of torch")
    parser.add_argument("--steps", action="store_true", help="ACT steps alone and in batches instead")
    parser.add_argument("--save", action="store_true", help=f"write {RESULT.name}")
    options = parser.parse_args()
    if options.steps:
        runtime.start("cpu")
        torch.set_num_threads(1)
        times = {name: step_times(name) for name in options.models or zoo_names()}
        for name, each in times.items():
            print(name, "  ".join(f"{batch}: {ms:.2f} ms" for batch, ms in each.items()), flush=True)
        if options.save:
            stored = json.loads(RESULT.read_text(encoding="utf-8"))
            stored["steps"] = stored.get("steps", {}) | times
            RESULT.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
        return
    seconds, rounds = (1.0, 1) if options.quick else (options.seconds, options.rounds)
    rows: list[Row] = []
    try:
        for model in options.models or zoo_names():
            rows.append(compare(model, options.clients, seconds, options.slots, rounds, options.threads))
            print(show(rows[-1]), flush=True)
    except UserError as error:
        raise SystemExit(str(error)) from None
    if options.save:
        environment = runtime.environment()
        measured = {row["model"]: row for row in kept(environment)} | {row.model: asdict(row) for row in rows}
        said = {"goal": GOAL, "environment": environment, "rows": [measured[name] for name in sorted(measured)]}
        if RESULT.exists():
            said["steps"] = json.loads(RESULT.read_text(encoding="utf-8")).get("steps", {})
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")


def kept(environment: dict[str, Any]) -> list[dict[str, Any]]:
    """Stored rows of models that the zoo still has, if all but the commit is as it was."""
    if not RESULT.exists():
        return []
    before = json.loads(RESULT.read_text(encoding="utf-8"))
    if before["environment"] | {"commit": None} != environment | {"commit": None}:
        return []
    return [row for row in before["rows"] if row["model"] in zoo_names()]


if __name__ == "__main__":
    main()
