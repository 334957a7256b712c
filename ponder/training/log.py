"""metrics.jsonl, the log of a run, and what can be said from it alone."""

import json
from pathlib import Path
from typing import Any

from ponder.base import files
from ponder.base.errors import UserError
from ponder.base.runtime import Runtime

TIMING = ("seconds", "update_seconds", "example_steps_per_second", "peak_fraction")
"""Fields of metrics.jsonl that depend on the machine's mood; all others repeat bit for bit."""


class Log:
    """metrics.jsonl: one row per line, appended by rank 0; rows after a restored checkpoint are dropped."""

    def __init__(self, path: Path, runtime: Runtime) -> None:
        self.path, self.runtime = path, runtime
        self.evaluated: set[int] = set()

    def cut_after(self, update: int) -> None:
        kept = [row for row in read_log(self.path) if row["update"] <= update]
        self.evaluated = {row["update"] for row in kept if row["kind"] == "eval"}
        self.runtime.barrier()
        if self.runtime.main and self.path.exists():
            files.write(self.path, "".join(json.dumps(row) + "\n" for row in kept))

    def has(self, kind: str, update: int) -> bool:
        return update in self.evaluated

    def write(self, row: dict[str, Any]) -> None:
        if row["kind"] == "eval":
            self.evaluated.add(row["update"])
        if self.runtime.main:
            try:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
            except OSError as error:
                raise UserError(
                    f"cannot write {self.path} ({error.strerror}): make room, then the same command goes on from the "
                    f"last checkpoint"
                ) from None


def read_log(path: Path) -> list[dict[str, Any]]:
    """All complete rows; a last line cut short by a crash is not one."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


def summary(rows: list[dict[str, Any]], select: str) -> dict[str, Any]:
    """Last, chosen on val, and peak (chosen on the split itself, so optimistic): labelled, never mixed up."""
    evals = [row for row in rows if row["kind"] == "eval"]
    trains = [row for row in rows if row["kind"] == "train"]
    chosen = max(evals, key=lambda row: (row["ema"]["val"][select], -row["update"]))
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
