"""`ponder` in processes of their own that start at once: forked from one that has imported what a training needs."""

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path

FORKING = get_context("forkserver")
FORKING.set_forkserver_preload(
    ["ponder.cli", "ponder.commands.train", "ponder.training.launch", "ponder.training.runs"]
)


def start(
    words: Sequence[str], said: Path, environment: Mapping[str, str] | None = None, folder: Path | None = None
) -> ForkServerProcess:
    """`ponder WORDS` in a folder, with these variables beside those of this process; what it prints goes into a file,
    which is there and empty at first."""
    said.write_bytes(b"")
    variables = {**os.environ, **(environment or {})}
    process = FORKING.Process(target=_ponder, args=(list(words), said.resolve(), variables, folder or Path.cwd()))
    process.start()
    return process


def _ponder(words: list[str], said: Path, environment: dict[str, str], folder: Path) -> None:
    from ponder.cli import main

    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    with said.open("ab") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    sys.exit(main(words))


def start_ranks(words: Sequence[str], said: Path, count: int) -> list[ForkServerProcess]:
    """As `torchrun` would; what rank 1 prints goes into `said`.1, and so on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1]), "WORLD_SIZE": str(count)}
    return [
        start(words, said.with_suffix(f".{rank}"), {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(count)
    ]
