"""ARC voting: predictions for the augmentations of a task become a ranking of answers, a submission and pass@k."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any

import numpy as np
import numpy.typing as npt

from ponder.base.errors import UserError
from ponder.domains.arc.augment import TURNS, UNDO, parse_name
from ponder.domains.arc.grids import COLOURS, FIRST, Grid, crop_sizes, side_of
from ponder.domains.contract import Json, Tokens

CHUNK = 2048
"""Predictions that are cropped at a time."""
ATTEMPTS = 2


@dataclass(frozen=True)
class Predictions:
    """What was predicted for augmented test inputs, a row each."""

    names: Sequence[str]
    """Of the augmentations."""
    inputs: Tokens
    predicted: Tokens
    confidence: npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Candidate:
    grid: Grid
    votes: int
    confidence: float
    """Mean over its votes."""


@dataclass(frozen=True)
class VoteScore:
    fractional: dict[int, float]
    """pass@k, a task counting by the share of its test inputs solved (published code)."""
    all_test_inputs: dict[int, float]
    """pass@k, a task counting when all its test inputs are solved (the paper)."""
    ranking: dict[str, list[list[Candidate]]]
    """By task and test input, the best first."""
    label_rank: dict[str, list[int | None]]
    """Where the right grid stands in each ranking, from 1; None where nothing predicted it."""
    submission: dict[str, list[dict[str, Json]]]
    """The two best grids of each test input; a missing second repeats the first, none at all is an empty list."""
    unmatched: int
    """Predictions that belong to no test input of the given tasks, and did not vote."""


_Key = tuple[tuple[int, ...], bytes]
"""A grid as something to look up: shape and colours."""


def score_votes(
    predictions: Predictions, tasks: Mapping[str, Mapping[str, Any]], ks: Sequence[int] = (1, 2)
) -> VoteScore:
    """Undo each augmentation, crop, find the test input it answers, and rank equal grids by votes, then confidence.

    `tasks` is in ARC's own form, {name: {"test": [{"input": rows, "output": rows}]}}. The order of the predictions does
    not matter: grids with the same votes and confidence are ranked by shape and colours.
    """
    if not tasks:
        raise UserError("there are no tasks to score; give at least one task with its test pairs")
    tests_by_input: dict[str, dict[_Key, list[int]]] = {}
    votes: dict[str, list[dict[_Key, list[float]]]] = {}
    for name, task in tasks.items():
        votes[name] = [{} for _ in task["test"]]
        tests_by_input[name] = {}
        for number, pair in enumerate(task["test"]):
            tests_by_input[name].setdefault(_key_of(pair["input"]), []).append(number)
    unmatched = 0
    for task_name, input_key, predicted_key, confidence in _restored(predictions):
        tests = tests_by_input.get(task_name, {}).get(input_key, [])
        unmatched += not tests
        for number in tests:
            votes[task_name][number].setdefault(predicted_key, []).append(confidence)

    ranking: dict[str, list[list[Candidate]]] = {}
    label_rank: dict[str, list[int | None]] = {}
    for name, task in tasks.items():
        ranking[name], label_rank[name] = [], []
        for pair, cast in zip(task["test"], votes[name], strict=True):
            ordered = sorted(cast, key=lambda key: (-len(cast[key]), -fsum(cast[key]) / len(cast[key]), key))
            grids = [np.frombuffer(cells, dtype=np.uint8).reshape(shape) for shape, cells in ordered]
            found = zip(grids, (cast[key] for key in ordered), strict=True)
            ranking[name].append([Candidate(grid, len(each), fsum(each) / len(each)) for grid, each in found])
            label = _key_of(pair["output"])
            label_rank[name].append(ordered.index(label) + 1 if label in cast else None)

    def solved(name: str, k: int) -> list[bool]:
        return [rank is not None and rank <= k for rank in label_rank[name]]

    return VoteScore(
        fractional={k: float(np.mean([np.mean(solved(name, k)) for name in tasks])) for k in ks},
        all_test_inputs={k: float(np.mean([all(solved(name, k)) for name in tasks])) for k in ks},
        ranking=ranking,
        label_rank=label_rank,
        submission={name: [_attempts(ranked) for ranked in ranking[name]] for name in tasks},
        unmatched=unmatched,
    )


def _attempts(ranked: Sequence[Candidate]) -> dict[str, Json]:
    grids = [candidate.grid.tolist() for candidate in ranked[:ATTEMPTS]]
    grids += (grids[:1] or [[]]) * (ATTEMPTS - len(grids))
    return {f"attempt_{number}": grid for number, grid in enumerate(grids, start=1)}


def _key_of(rows: Json) -> _Key:
    grid = np.array(rows, dtype=np.uint8, ndmin=2)
    return grid.shape, grid.tobytes()


def _restored(predictions: Predictions) -> Iterator[tuple[str, _Key, _Key, float]]:
    """(task, input grid, predicted grid, confidence), in the task's own orientation and colours."""
    side = side_of(predictions.inputs.shape[1])
    for start in range(0, len(predictions.names), CHUNK):
        some = slice(start, start + CHUNK)
        inputs, predicted = (t[some].reshape(-1, side, side) for t in (predictions.inputs, predictions.predicted))
        rows = zip(
            *(predictions.names[some], predictions.confidence[some].tolist()),
            *(inputs, crop_sizes(inputs).tolist(), predicted, crop_sizes(predicted).tolist()),
            strict=True,
        )
        for name, confidence, given, given_size, answer, answer_size in rows:
            task, augmentation = parse_name(name)
            undo = TURNS[UNDO[augmentation.turn]]
            table = bytes.maketrans(bytes(FIRST + colour for colour in augmentation.colours), bytes(range(COLOURS)))
            keys = []
            for canvas, (height, width) in ((given, given_size), (answer, answer_size)):
                grid = undo(canvas[:height, :width])
                keys.append((grid.shape, grid.tobytes().translate(table)))
            yield task, keys[0], keys[1], confidence
