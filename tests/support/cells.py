"""Stored cells whose numbers are known by other means, and a study of two variants that has such cells."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np

from ponder.config.schema import Select
from ponder.studies.result import CellResult
from ponder.studies.spec import SEARCHES, Cell, Study
from ponder.studies.store import Store, pack

N = 200
Answers = Callable[[Cell, str], np.ndarray[Any, np.dtype[np.bool_]]]


def raw_result(
    cell: Cell, answers: Answers, seconds: float = 100.0, curve: list[float] | None = None
) -> dict[str, Any]:
    """A cell as the runner stores it, as JSON: `answers` says which examples of a split are right at the training
    budget. At the last forced step one wrong example more is right. The curve of every split is `curve`, or rises."""
    domain = cell.config.data.make()
    splits = {name: info for name, info in domain.splits.items() if info.role != "train"}
    budget = cell.config.model.max_steps
    steps = max(cell.after.steps or budget, budget)
    right = {name: answers(cell, name) for name in splits}
    means = {name: float(bits.mean()) for name, bits in right.items()}

    def measured(name: str) -> dict[str, Any]:
        bits = right[name]
        end = bits.copy()
        end[np.flatnonzero(~end)[:1]] = True
        by_step = [means[name] * min(1, k / budget) for k in range(1, steps)] + [float(end.mean())]
        if steps == budget:
            by_step[-1], end = means[name], bits
        by_step[budget - 1] = means[name]
        both = {"exact": pack(bits), "valid": pack(bits)}
        return {
            "role": splits[name].role,
            "n": N,
            "of": N,
            "exact": by_step,
            "valid": by_step,
            "token": by_step,
            "best_full": {"exact": means[name], "valid": means[name], "token": means[name]},
            "halting": {"exact": means[name], "valid": means[name], "token": means[name], "mean_step": 2.0},
            "bits": both,
            "bits_end": {"exact": pack(end), "valid": pack(end)},
            "bits_full": both,
        }

    def evaluation(place: int, of: int) -> dict[str, Any]:
        scored = {}
        for name in splits:
            value = means[name] * (place + 1) / of if curve is None else curve[place]
            scored[name] = {"exact": value, "valid": value, "token": value, "best_full": value}
        return {"update": 10 * (place + 1), "seconds": seconds * (place + 1) / of, "ema": scored, "online": scored}

    count = len(curve or range(4))
    rows = [evaluation(place, count) for place in range(count)]
    policies = [{"policy": "full", "mean_steps": 4.0, "valid": {"value": 0.5}, "exact": {"value": 0.5}}]
    share = {"value": float(some_right(0.5).mean())}
    searches = [
        {"policy": f"{rule} {restarts}x{depth}", "mean_steps": 8.0, "valid": share, "bits": pack(some_right(0.5))}
        for rule in get_args(Select)
        for restarts, depth in SEARCHES
    ]
    seen = {"low": 0.0, "median": 0.5 + cell.seed, "high": 9.0}
    table = {"settled_right": 8, "settled_wrong": 2, "moving_right": 20, "moving_wrong": 2}
    trace = {"split": "test", "n": 32, "settled": 0.01, "right": [0.5] * budget, "table": table}
    weights = {"update": rows[-1]["update"], "splits": {name: measured(name) for name in splits}}
    return {
        "key": cell.key,
        "label": cell.label,
        "config": cell.config.flat(),
        "data_hash": f"hash of {cell.task} {cell.config.data.flat().get('labels')}",
        "environment": {"threads": 1},
        "updates": rows[-1]["update"],
        "seconds": seconds,
        "n": dict.fromkeys(splits, 50),
        "curve": rows,
        "train": {},
        "summary": {"chosen_on_val": {"update": 20}, "mean_grad_norm": 1.0 + cell.seed},
        "cost": {"parameters": 1234},
        "after": {
            "steps": steps,
            "budget": budget,
            "examples": 1000,
            "ema": weights,
            "online": weights,
            "policies": {"split": "test", "n": N, "budget": budget, "results": policies},
            "search": {"split": "test", "n": N, "budget": budget, "results": searches},
            "trace": {**trace, "residual": [seen] * budget, "stretch": [seen] * budget},
        },
    }


def result(cell: Cell, answers: Answers, seconds: float = 100.0, curve: list[float] | None = None) -> CellResult:
    return CellResult.model_validate(raw_result(cell, answers, seconds, curve))


def some_right(share: float) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.arange(N) < round(share * N)


def write(study_: Study, results: Path, answers: Answers, skip: Callable[[Cell], bool] = lambda _: False) -> None:
    store = Store(results / "cells")
    for cell in study_.cells("mini"):
        if not skip(cell):
            store.write(result(cell, answers))


def two(**fields: Any) -> Study:
    """A study of two variants on Sudoku, three seeds."""
    said = {
        "name": "two",
        "title": "Two",
        "asks": "which?",
        "paper": None,
        "factor": ["model.halting"],
        "baseline": "a",
        "variants": {"a": {"set": {"model.halting": "halt"}}, "b": {"set": {"model.halting": "halt+continue"}}},
        "scales": {"mini": {"tasks": ["sudoku"], "seeds": [0, 1, 2]}},
        "measure": {"columns": [{"label": "Sudoku", "score": "Sudoku"}]},
        "paper_numbers": {"a": {"Sudoku": 98.41}},
    }
    return Study.model_validate({**said, **fields})


SHARES = {("a", 0): 0.50, ("a", 1): 0.60, ("a", 2): 0.52, ("b", 0): 0.71, ("b", 1): 0.80, ("b", 2): 0.75}


def known(cell: Cell, split: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return some_right(SHARES[cell.variant, cell.seed])


YES = {"a": "b", "b": "a", "of": {"score": "Sudoku"}, "is": "greater"}


NO = {"a": "a", "b": "b", "of": {"score": "Sudoku"}, "is": "greater"}
