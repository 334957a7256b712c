"""Where cells lie: results that are kept (`results/cells/KEY.json`), runs that made them (`runs/cells/KEY`), and locks.

A result is written aside and renamed, so that one under its own name is whole. A cell is held by a lock on
`runs/cells/KEY.lock`, which the system releases when its holder dies, however it dies.
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import ValidationError

from ponder.base import files
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

    @property
    def fixed(self) -> Path:
        """What the best fixed answer scores on each dataset (`fixed.py`)."""
        return self.root.parent / "fixed"

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
            content = path.read_bytes()
            result = CellResult.model_validate_json(content)
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
        if not files.intact(json.loads(content)):
            raise UserError(f"{path} was changed after it was written: delete it and run the study again")
        return result

    def read(self, cell: Cell) -> CellResult | None:
        """The stored result; None where the cell is not trained, or not all it asks for is measured."""
        result = self.stored(cell.key)
        return result if result is not None and result.after.covers(cell) else None

    def write(self, result: CellResult) -> None:
        whole = files.sealed(json.loads(result.model_dump_json()))
        files.write(self.path(result.key), json.dumps(whole, separators=(",", ":")) + "\n")
        self.forgive(result.key)

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


# Yes and no of each example -------------------------------------------------------------------------------------------


def pack(bits: Bools) -> str:
    return np.packbits(bits).tobytes().hex()


def unpack(text: str, n: int) -> Bools:
    out: Bools = np.unpackbits(np.frombuffer(bytes.fromhex(text), np.uint8), count=n).astype(bool)
    return out
