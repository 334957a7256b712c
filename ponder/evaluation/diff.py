"""What differs between two evaluated runs: in configuration, and example by example in score."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from ponder.base import files
from ponder.base.console import plain_table
from ponder.base.errors import UserError
from ponder.base.stats import Z95, paired
from ponder.config import resolve as configuration
from ponder.config.resolve import differences
from ponder.evaluation.records import Records, answered, load_records, mean_share
from ponder.evaluation.run import RESULT
from ponder.evaluation.schema import EvalResult, Share, SplitResult, read_eval

SHOWN = (("exact", "final"), ("valid", "final"), ("token", "final"), ("exact", "best_full"))


@dataclass(frozen=True)
class Evaluation:
    folder: Path
    result: EvalResult

    @property
    def scores(self) -> Mapping[str, SplitResult]:
        return self.result.main

    def records(self, split: str) -> Records:
        """What a split's examples did, up to the training budget where it was reached."""
        stored = self.scores[split].records
        assert stored is not None
        file = self.folder / stored.file
        if not file.is_file() or files.sha256(file) != stored.sha256:
            raise UserError(f"{file} is missing or not the one {RESULT} speaks of: run `ponder eval` again")
        return load_records(file).first(self.result.budget)


@dataclass(frozen=True)
class Difference:
    """B minus A on the same examples."""

    split: str
    measure: str
    n: int
    a: float
    b: float
    difference: Share
    only_a: int | None
    """How many A has right and B wrong; None for what is not right or wrong."""
    only_b: int | None


def read(folder: Path) -> Evaluation:
    """An evaluation folder, or the run folder it is in."""
    for place in (folder, folder / "eval"):
        if (place / RESULT).is_file():
            return Evaluation(place, read_eval(place / RESULT))
    raise UserError(f"{folder} holds no evaluation (no {RESULT}): run `ponder eval {folder}` first")


def compare(a: Evaluation, b: Evaluation) -> list[Difference]:
    one, other = (f"{e.result.data.config['domain']} {e.result.data.hash}" for e in (a, b))
    if one != other:
        raise UserError(
            f"{a.folder} was evaluated on data {one}, {b.folder} on {other}: scores on different examples cannot be "
            f"paired; evaluate both on the same data with `ponder eval --domain PRESET`"
        )
    splits = [split for split in a.scores if split in b.scores and a.scores[split].records is not None]
    if not splits:
        raise UserError(
            f"no split was evaluated in both: {a.folder} has {', '.join(a.scores)}; "
            f"{b.folder} has {', '.join(b.scores)}"
        )
    rows = []
    for split in splits:
        rows += _compare_split(split, a, b)
    for name, score in a.scores.items():
        if score.splits is not None and name in b.scores:
            for measure in dict.fromkeys(row.measure for row in rows):
                parts = [row for row in rows if row.split in score.splits and row.measure == measure]
                rows.append(_mean_row(name, parts))
    return rows


def _compare_split(split: str, a: Evaluation, b: Evaluation) -> list[Difference]:
    records_a, records_b = a.records(split), b.records(split)
    common, at_a, at_b = np.intersect1d(records_a.index, records_b.index, assume_unique=True, return_indices=True)
    if not len(common):
        raise UserError(f"{a.folder} and {b.folder} have no example of {split} in common: give both the same --limit")
    records_a, records_b = records_a.at(at_a), records_b.at(at_b)
    rows = []
    for measure, way in SHOWN:
        name = measure if way == "final" else way
        rows.append(_row(split, name, *(answered(r, measure, way) for r in (records_a, records_b))))
    arc_a, arc_b = (e.scores[split].arc for e in (a, b))
    if arc_a is not None and arc_b is not None:
        for k in (1, 2):
            rows.append(_row(split, f"pass@{k}", *(_solved(arc.label_rank, k) for arc in (arc_a, arc_b))))
    return rows


def _solved(label_rank: Mapping[str, Sequence[int | None]], k: int) -> npt.NDArray[np.bool_]:
    return np.array([all(r is not None and r <= k for r in label_rank[task]) for task in sorted(label_rank)])


def _row(split: str, measure: str, a: npt.NDArray[Any], b: npt.NDArray[Any]) -> Difference:
    means = float(a.mean()), float(b.mean())
    if a.dtype == bool:
        return Difference(
            split, measure, len(a), *means, Share(**paired(b, a)), int((a & ~b).sum()), int((b & ~a).sum())
        )
    each = b.astype(np.float64) - a
    half = Z95 * float(each.std(ddof=1)) / len(each) ** 0.5 if len(each) > 1 else 1.0
    middle = float(each.mean())
    difference = Share(value=middle, low=middle - half, high=middle + half)
    return Difference(split, measure, len(a), *means, difference, None, None)


def _mean_row(name: str, parts: Sequence[Difference]) -> Difference:
    """The unweighted mean over splits, taken as independent."""
    a, b = (float(np.mean([getattr(part, side) for part in parts])) for side in ("a", "b"))
    counts = [
        None if any(c is None for c in side) else sum(c for c in side if c is not None)
        for side in ([p.only_a for p in parts], [p.only_b for p in parts])
    ]
    difference = mean_share([part.difference for part in parts])
    return Difference(name, parts[0].measure, sum(p.n for p in parts), a, b, difference, counts[0], counts[1])


def changed_settings(a: Evaluation, b: Evaluation) -> dict[str, tuple[Any, Any]]:
    """Dotted key -> the two values. An imported model has no configuration but its architecture."""
    one, other = a.result.config, b.result.config
    if one is not None and other is not None:
        return differences(configuration.from_flat(one), configuration.from_flat(other))
    models = [{f"model.{k}": v for k, v in e.result.model.items() if k != "name"} for e in (a, b)]
    return {k: (models[0][k], models[1][k]) for k in models[0] if models[0][k] != models[1].get(k)}


def print_differences(a: Evaluation, b: Evaluation, console: Console) -> None:
    rows = compare(a, b)
    changed = changed_settings(a, b)
    for letter, each in (("A", a), ("B", b)):
        weights, sha256 = next(iter(each.result.weights.items()))
        at = each.result.checkpoint
        update = "" if at.update is None else f", update {at.update}"
        console.print(f"[bold]{letter}[/] {each.folder}: {weights} weights {sha256[:12]}{update}")
    table = plain_table(*(("setting", "A", "B") if changed else ("the configurations are the same",)))
    for key, values in changed.items():
        table.add_row(key, *(str(value) for value in values))
    console.print(table)
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    for column in ("split", "measure", "n", "A %", "B %", "B - A", "95% interval", "only A", "only B"):
        table.add_column(column, justify="left" if column in ("split", "measure") else "right", no_wrap=True)
    for row in rows:
        value, low, high = row.difference.percents()
        sure = "bold" if low > 0 or high < 0 else "dim"
        table.add_row(
            row.split,
            row.measure,
            f"{row.n:,}",
            f"{100 * row.a:.1f}",
            f"{100 * row.b:.1f}",
            f"[{sure}]{value:+.1f}[/]",
            f"{low:+.1f} to {high:+.1f}",
            *("" if count is None else f"{count:,}" for count in (row.only_a, row.only_b)),
        )
    console.print(table)
    console.print(
        f"[dim]on the same examples of data {a.result.data.hash}, each at its training budget (A "
        f"{a.result.budget}, B {b.result.budget} ACT steps); B - A in points; only A: A right, B wrong; "
        f"best_full: exact at the most confident step; pass@k: tasks with all test inputs solved[/]"
    )
