"""Where cells lie: results that are kept (`results/cells/KEY.json`), runs that made them (`runs/cells/KEY`), and locks.

A result is written aside and renamed, so that one under its own name is whole. A cell is held by a lock on
`runs/cells/KEY.lock`, which the system releases when its holder dies, however it dies.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ponder.base import files
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
            said = files.read_json(self.path(key))
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
        files.write(self.path(key), json.dumps(said, separators=(",", ":")) + "\n")
        self.forgive(key)

    def failed(self, cell: Cell) -> str | None:
        """Why the last attempt failed, in one line."""
        try:
            return str(files.read_json(self._failure(cell.key))["error"])
        except (FileNotFoundError, ValueError, KeyError):
            return None

    def fail(self, key: str, error: str) -> None:
        files.write(self._failure(key), json.dumps({"error": error, "at": time.time()}) + "\n")

    def forgive(self, key: str) -> None:
        self._failure(key).unlink(missing_ok=True)

    def state(self, cell: Cell) -> State:
        if self.read(cell) is not None:
            return "done"
        if files.holder(self.lock(cell.key)) is not None:
            return "running"
        return "failed" if self.failed(cell) is not None else "left"


def measured(said: Mapping[str, Any], after: After) -> bool:
    """Whether a stored result holds all that is asked for."""
    there = said["after"]
    has_average = said["config"]["train"]["ema"] is not None
    wanted = [name for name in after.weights if name != "online" or has_average]
    deep = there["steps"] >= (after.steps or there["budget"])
    return deep and all(name in there for name in wanted) and (there["policies"] is not None or not after.policies)


# Yes and no of each example -------------------------------------------------------------------------------------------


def pack(bits: Bools) -> str:
    return np.packbits(bits).tobytes().hex()


def unpack(text: str, n: int) -> Bools:
    out: Bools = np.unpackbits(np.frombuffer(bytes.fromhex(text), np.uint8), count=n).astype(bool)
    return out
