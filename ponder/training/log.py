"""metrics.jsonl, the log of a run, and what can be said from it alone."""

import hashlib
import json
from pathlib import Path
from typing import Any

from ponder.base import files
from ponder.base.errors import UserError
from ponder.base.runtime import Runtime
from ponder.checkpoint import RESTORE, Checkpoint

TIMING = ("seconds", "update_seconds", "example_steps_per_second", "peak_fraction")
"""Fields of metrics.jsonl that depend on the machine's mood; all others repeat bit for bit."""


class Log:
    """metrics.jsonl: one row per line, appended by rank 0. A checkpoint knows the rows before it by number and hash."""

    def __init__(self, path: Path, runtime: Runtime) -> None:
        self.path, self.runtime = path, runtime
        self.evaluated: set[int] = set()
        """The updates that have a row of scores."""
        self.rows, self.hash = 0, hashlib.sha256()

    def go_on(self, saved: Checkpoint | None) -> None:
        """Take up what a checkpoint covers, whole or not at all; what was written after it goes."""
        content = files.read(self.path, None) if self.path.exists() else b""
        kept = b"" if saved is None else self._covered(content, saved)
        self.evaluated = {row["update"] for row in _read(self.path, kept) if row["kind"] == "eval"}
        self.rows = kept.count(b"\n")
        self.hash.update(kept)
        self.runtime.barrier()
        if self.runtime.main and kept != content:
            files.write(self.path, kept)

    def _covered(self, content: bytes, saved: Checkpoint) -> bytes:
        if "log" not in saved.state:  # by an older ponder
            lines = content[: content.rfind(b"\n") + 1].splitlines(keepends=True)
            rows = _read(self.path, b"".join(lines))
            return b"".join(n for n, row in zip(lines, rows, strict=True) if row["update"] <= saved.state["update"])
        rows, known = saved.state["log"]["rows"], saved.state["log"]["sha256"]
        kept = b"".join(line + b"\n" for line in content.split(b"\n")[:-1][:rows])
        found = kept.count(b"\n")
        if hashlib.sha256(kept).hexdigest() != known:
            what = f"has {found} whole rows, not the {rows}" if found < rows else f"was changed in the {rows} rows"
            raise UserError(f"{self.path} {what} that {saved.path} covers: {RESTORE}")
        return kept

    def covered(self) -> dict[str, Any]:
        """What a checkpoint that is written now covers. The rows are on the disk before it is."""
        if self.runtime.main and self.rows:
            files.to_disk(self.path)
        return {"rows": self.rows, "sha256": self.hash.hexdigest()}

    def write(self, row: dict[str, Any]) -> None:
        if row["kind"] == "eval":
            self.evaluated.add(row["update"])
        line = json.dumps(row) + "\n"
        if self.runtime.main:
            files.append(self.path, line)
        self.rows += 1
        self.hash.update(line.encode())


def read_log(path: Path) -> list[dict[str, Any]]:
    """All rows; a last line cut short by a crash is not one."""
    return _read(path, files.read(path, None)) if path.exists() else []


def _read(path: Path, content: bytes) -> list[dict[str, Any]]:
    rows, lines = list[dict[str, Any]](), content.split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            row = files.parse_json(line)
            if not isinstance(row, dict):
                raise ValueError("a row has names")
        except ValueError:
            if number < len(lines):
                raise UserError(f"{path} is damaged in line {number}: {RESTORE}") from None
        else:
            rows.append(row)
    return rows


def summary(rows: list[dict[str, Any]], select: str) -> dict[str, Any]:
    """Last, chosen on val, and peak (chosen on the split itself, so optimistic): labelled, never mixed up."""
    evals = [row for row in rows if row["kind"] == "eval"]
    trains = [row for row in rows if row["kind"] == "train"]
    chosen = max(evals, key=lambda row: (row["ema"]["val"][select], row["update"]))
    splits = list(evals[-1]["ema"])
    peak = {
        split: max(
            ({"update": row["update"], **row["ema"][split]} for row in evals), key=lambda s: (s["exact"], -s["update"])
        )
        for split in splits
    }
    return {
        "updates": evals[-1]["update"],
        "seconds": evals[-1]["seconds"],
        "n": evals[-1]["n"],
        "last": {"update": evals[-1]["update"], **{k: evals[-1][k] for k in ("ema", "online") if k in evals[-1]}},
        "chosen_on_val": {"update": chosen["update"], **{k: chosen[k] for k in ("ema", "online") if k in chosen}},
        "peak": peak,
        "mean_grad_norm": sum(r["grad_norm"] for r in trains) / max(1, len(trains)),
    }
