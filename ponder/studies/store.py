"""Where cells lie: results that are kept (`results/cells/KEY.json`), runs that made them (`runs/cells/KEY`), and locks.

A result is written aside and renamed, so that one under its own name is whole. A cell is held by a lock on
`runs/cells/KEY.lock`, which the system releases when its holder dies, however it dies.
"""

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import ValidationError

from ponder.base.errors import UserError
from ponder.domains.contract import Bools
from ponder.studies.result import CellResult
from ponder.studies.spec import Cell

State = Literal["done", "running", "failed", "left"]
STATES: tuple[State, ...] = ("done", "running", "failed", "left")


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

    def stored(self, key: str) -> CellResult | None:
        """What is kept of a training, whatever was measured after it."""
        path = self.path(key)
        try:
            result = CellResult.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            why = ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))
            if first["loc"][:1] == ("config",):
                raise UserError(f"{path} has settings that this ponder does not know ({why}): move it away") from None
            raise UserError(f"{path} is damaged ({why}): delete it and run the study again") from None
        except UserError as error:  # its domain
            raise UserError(f"{path} has settings that this ponder does not know ({error}): move it away") from None
        if not key.startswith(result.config.key()):
            raise UserError(f"{path} has the name of another configuration: run `ponder study migrate`")
        return result

    def read(self, cell: Cell) -> CellResult | None:
        """The stored result; None where the cell is not trained, or not all it asks for is measured."""
        result = self.stored(cell.key)
        return result if result is not None and result.after.covers(cell) else None

    def write(self, result: CellResult) -> None:
        write_aside(self.path(result.key), result.model_dump_json() + "\n")
        self.forgive(result.key)

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
