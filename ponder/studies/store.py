"""Where cells lie: results that are kept (`results/cells/KEY.json`), runs that made them (`runs/cells/KEY`), and locks.

A result is written aside and renamed, so that one under its own name is whole. A cell is held by a lock on
`runs/cells/KEY.lock`, which the system releases when its holder dies, however it dies.
"""

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ponder.base.errors import UserError
from ponder.domains.contract import Bools
from ponder.studies.spec import After, Cell

State = Literal["done", "running", "failed", "left"]
STATES: tuple[State, ...] = ("done", "running", "failed", "left")
VERSION = 2
"""Of a stored result. Since 2 a key counts only what differs from the defaults."""


@dataclass(frozen=True)
class Store:
    root: Path = Path("results/cells")
    runs: Path = Path("runs/cells")

    def path(self, key: str) -> Path:
        return self.root / f"{key}.json"

    def folder(self, key: str) -> Path:
        return self.runs / key

    def log(self, key: str) -> Path:
        return self.runs / f"{key}.log"

    def lock(self, key: str) -> Path:
        return self.runs / f"{key}.lock"

    def _failure(self, key: str) -> Path:
        return self.runs / f"{key}.failed"

    def older(self) -> list[Path]:
        """Results of a ponder that gave them other names."""
        found = []
        for path in sorted(self.root.glob("*.json")):
            with path.open("rb") as file:
                if not file.read(16).startswith(b'{"version":'):
                    found.append(path)
        return found

    def stored(self, key: str) -> dict[str, Any] | None:
        """What is kept of a training, whatever was measured after it."""
        try:
            said = json.loads(self.path(key).read_text())
        except FileNotFoundError:
            return None
        except ValueError:
            said = None
        if not isinstance(said, dict) or not {"config", "after"} <= said.keys():
            raise UserError(f"{self.path(key)} is damaged: delete it and run the study again")
        return said

    def read(self, cell: Cell) -> dict[str, Any] | None:
        """The stored result; None where the cell is not trained, or not all it asks for is measured."""
        said = self.stored(cell.key)
        return said if said is not None and measured(said, cell.after) else None

    def write(self, key: str, said: Mapping[str, Any]) -> None:
        write_aside(self.path(key), json.dumps(said, separators=(",", ":")) + "\n")
        self.forgive(key)

    def failed(self, cell: Cell) -> str | None:
        """Why the last attempt failed, in one line."""
        try:
            return str(json.loads(self._failure(cell.key).read_text())["error"])
        except (FileNotFoundError, ValueError, KeyError):
            return None

    def fail(self, key: str, error: str) -> None:
        write_aside(self._failure(key), json.dumps({"error": error, "at": time.time()}) + "\n")

    def forgive(self, key: str) -> None:
        self._failure(key).unlink(missing_ok=True)

    def state(self, cell: Cell) -> State:
        if self.read(cell) is not None:
            return "done"
        if holder(self.lock(cell.key)) is not None:
            return "running"
        return "failed" if self.failed(cell) is not None else "left"


def measured(said: Mapping[str, Any], after: After) -> bool:
    """Whether a stored result holds all that is asked for."""
    there = said["after"]
    has_average = said["config"]["train"]["ema"] is not None
    wanted = [name for name in after.weights if name != "online" or has_average]
    deep = there["steps"] >= (after.steps or there["budget"])
    return deep and all(name in there for name in wanted) and (there["policies"] is not None or not after.policies)


def write_aside(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


# Yes and no of each example -------------------------------------------------------------------------------------------


def pack(bits: Bools) -> str:
    return np.packbits(bits).tobytes().hex()


def unpack(text: str, n: int) -> Bools:
    out: Bools = np.unpackbits(np.frombuffer(bytes.fromhex(text), np.uint8), count=n).astype(bool)
    return out


# Locks ----------------------------------------------------------------------------------------------------------------


@contextmanager
def locked(path: Path, patience: float = 0.0) -> Iterator[bool]:
    """Whether the lock is ours, for as long as the block lasts; waits up to `patience` seconds for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        until = time.monotonic() + patience
        while not (ours := _taken(file.fileno())) and time.monotonic() < until:
            time.sleep(0.05)
        if ours:
            file.truncate(0)
            file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
            file.flush()
        yield ours


def _taken(handle: int, kind: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def holder(path: Path) -> str | None:
    """Who holds the lock, as `pid 123 on host`; None where nobody who is alive does."""
    try:
        with path.open("r+") as file:
            if _taken(file.fileno(), fcntl.LOCK_SH):  # two who ask at once are not in each other's way
                return None
            try:
                said = json.loads(file.read())
            except ValueError:  # between taking the lock and signing it
                return "someone"
            return f"pid {said['pid']} on {said['host']}"
    except FileNotFoundError:
        return None
