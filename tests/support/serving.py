"""`ponder serve` in a process of its own, and what it says of itself."""

import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.support.processes import Started, start

GOOD = "1.....2..3.....4"
"""A 4x4 sudoku with one solution."""


@dataclass(frozen=True)
class Server:
    url: str
    started: Started


@contextmanager
def serving(*words: str | Path, token: str = "") -> Iterator[Server]:
    """The server, once it has said where it is."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["serve", "--port", "0", "--threads", "1", *map(str, words)]
        started = start(command, Path(folder) / "said", {"PONDER_TOKEN": token})
        try:
            yield Server(started.wait_for(r"http://\S+(?=\s)"), started)
        finally:
            started.ended(0)


def metrics(client: httpx.Client) -> dict[str, float]:
    lines = client.get("/metrics").text.splitlines()
    return {key: float(value) for key, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def wait_for(what: Callable[[], bool], seconds: float = 30) -> None:
    ends = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.02)


def slots_in_use(client: httpx.Client, model: str = "endless") -> float:
    return metrics(client)[f'ponder_slots_in_use{{model="{model}"}}']


def dial(server: Server) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=60)


def post(content: bytes, headers: str = "Content-Type: application/json", size: int | None = None) -> bytes:
    length = len(content) if size is None else size
    return (
        f"POST /v1/solve HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}\r\nContent-Length: {length}\r\n\r\n".encode()
        + content
    )
