"""A real server whose clients come and go: many at once, some of which leave in the middle of a request or an answer.

Each that stays must get one answer, to its own puzzle; nothing may come after it; the server's memory stays.
"""

import asyncio
import json
import random
import re
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from benchmarks.serve import Server, serving
from ponder.inference.solver import Solver

MODEL = "sudoku-4x4"
PATIENCE = 120.0
"""Seconds after which an answer counts as lost."""
LEAVES = 0.3
"""Share of the requests whose client leaves before it has the answer."""


async def client(server: Server, puzzles: Sequence[str], rng: random.Random, until: float, count: Counter[str]) -> None:
    while time.monotonic() < until:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        try:
            for _ in range(rng.randint(1, 20)):
                if not await _request(reader, writer, rng.choice(puzzles), rng, count) or time.monotonic() >= until:
                    break
            else:
                writer.write_eof()
                more = await asyncio.wait_for(reader.read(1), PATIENCE)
                count["answered twice"] += len(more)
        except (ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            count["lost"] += 1
        finally:
            writer.transport.abort() if rng.random() < 0.5 else writer.close()


async def _request(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, puzzle: str, rng: random.Random, count: Counter[str]
) -> bool:
    """One puzzle; whether the client stayed."""
    body = json.dumps({"model": MODEL, "puzzle": puzzle}).encode()
    head = "POST /v1/solve HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: "
    whole = f"{head}{len(body)}\r\n\r\n".encode() + body
    count["requests"] += 1
    if rng.random() < LEAVES:
        count["left"] += 1
        writer.write(whole[: rng.choice((rng.randint(0, len(whole)), len(whole)))])
        await asyncio.sleep(rng.random() * 0.1)
        return False
    writer.write(whole)
    answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
    length = re.search(rb"content-length: (\d+)", answer, re.IGNORECASE)
    said = json.loads(await reader.readexactly(int(length[1]) if length else 0))
    if answer.startswith(b"HTTP/1.1 200") and said["puzzle"] == puzzle:
        count["answered"] += 1
    else:
        count["wrong"] += 1
    return True


def load(clients: int, seconds: float, seed: int) -> dict[str, Any]:
    """What `clients` at once see in so many seconds, and the server's resident memory meanwhile."""
    domain = Solver(MODEL).domain
    puzzles = [domain.format(row) for row in domain.sample(seed, 500)[0]]
    count = Counter[str](requests=0, answered=0, left=0, lost=0, wrong=0, **{"answered twice": 0})
    sizes: list[tuple[float, float]] = []

    async def everyone(server: Server) -> None:
        until = time.monotonic() + seconds

        async def watch() -> None:
            while time.monotonic() < until:
                sizes.append((time.monotonic() - until + seconds, server.process.memory_info().rss / 1e6))
                await asyncio.sleep(seconds / 200)

        many = (client(server, puzzles, random.Random(f"{seed} {i}"), until, count) for i in range(clients))
        await asyncio.gather(watch(), *many)

    with serving(MODEL, 64, 1) as server:
        asyncio.run(everyone(server))
    return {"clients": clients, "seconds": round(seconds), **count, **memory(sizes, seconds)}


def memory(sizes: Sequence[tuple[float, float]], seconds: float) -> dict[str, Any]:
    """Of (second, megabytes): the medians of the second and last quarter of the time, of the tenth in its middle and of
    all twentieths, and the slope of the second half. A warm-up ends; a leak goes on."""

    def median(begin: float, end: float) -> float:
        return round(statistics.median(mb for t, mb in sizes if begin * seconds <= t <= end * seconds), 1)

    half = [(t, mb) for t, mb in sizes if t >= seconds / 2]
    slope = statistics.linear_regression([t for t, _ in half], [mb for _, mb in half]).slope
    return {
        "megabytes after warm-up": median(0.25, 0.5),
        "megabytes at half time": median(0.45, 0.55),
        "megabytes at the end": median(0.75, 1),
        "megabytes a minute": round(60 * slope, 2),
        "megabytes": [median(i / 20, (i + 1) / 20) for i in range(20)],
    }


def described(seconds: float, seed: int) -> Counter[str]:
    """Requests made from the server's own description of itself, by schemathesis where it is installed: how many were
    tried and refused, and how many the server failed at."""
    import hypothesis
    import schemathesis

    count, until = Counter[str](), time.monotonic() + seconds
    every = list(hypothesis.HealthCheck)
    with serving(MODEL, 16, 1) as server:
        schema = schemathesis.openapi.from_url(f"http://127.0.0.1:{server.port}/openapi.json")
        made = [each.ok().as_strategy() for each in schema.get_all_operations()]
        for turn in range(10**9):
            if turn and time.monotonic() >= until:
                return count

            @hypothesis.seed(hash((seed, turn)))
            @hypothesis.settings(max_examples=20, database=None, deadline=None, suppress_health_check=every)
            @hypothesis.given(case=made[turn % len(made)])
            def ask(case: Any) -> None:
                status = case.call(timeout=60).status_code
                count["tried"] += 1
                count["refused"] += 400 <= status < 500
                count["tracebacks"] += status == 500

            ask()
    return count
