"""`ponder` in processes of their own that start at once: forked from one that has imported what they need."""

import os
import re
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path

FORKING = get_context("forkserver")
FORKING.set_forkserver_preload(
    ["ponder.cli", "ponder.training.launch", "ponder.training.runs", "ponder.commands.serve"]
)


@dataclass(frozen=True)
class Started:
    process: ForkServerProcess
    file: Path
    """Where what it prints goes."""

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    @property
    def said(self) -> str:
        return self.file.read_text(encoding="utf-8")

    def wait_for(self, pattern: str) -> str:
        """What it says of this form, once it has."""
        while (found := re.search(pattern, self.said, flags=re.M)) is None:
            assert self.process.is_alive(), self.said
            time.sleep(0.02)
        return found[0]

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def ended(self, seconds: float = 240) -> int:
        """The code it ends with by then."""
        self.process.join(seconds)
        self.process.kill()
        self.process.join()
        assert self.process.exitcode is not None
        return self.process.exitcode


def start(
    words: Sequence[str], said: Path, environment: Mapping[str, str] | None = None, folder: Path | None = None
) -> Started:
    """`ponder WORDS` in a folder, with these variables beside those of this process."""
    said.write_bytes(b"")
    variables = {**os.environ, **(environment or {})}
    process = FORKING.Process(target=_ponder, args=(list(words), said.resolve(), variables, folder or Path.cwd()))
    process.start()
    return Started(process, said)


def _ponder(words: list[str], said: Path, environment: dict[str, str], folder: Path) -> None:
    from ponder.cli import main

    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    with said.open("ab") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    sys.exit(main(words))


def start_ranks(words: Sequence[str], said: Path, count: int) -> list[Started]:
    """As `torchrun` would."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1]), "WORLD_SIZE": str(count)}
    return [
        start(words, said.with_suffix(f".{rank}"), {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(count)
    ]


def by_ranks(words: Sequence[str], said: Path, count: int) -> str:
    """All of it, without the seconds that `torchrun` takes; what they say."""
    ranks = start_ranks(words, said, count)
    codes = [rank.ended() for rank in ranks]
    text = "".join(rank.said for rank in ranks)
    assert codes == [0] * count, text[-2000:]
    return text
