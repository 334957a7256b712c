"""ARC as its competition gives and takes it: challenges in, a submission of two attempts out, scored by solutions.

challenges   {task: {"train": [{"input": rows, "output": rows}, ...], "test": [{"input": rows}, ...]}}
solutions    {task: [rows, ...]}
submission   {task: [{"attempt_1": rows, "attempt_2": rows}, ...]}
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ponder.base import files
from ponder.base.errors import UserError
from ponder.domains.arc.augment import Augmentation, parse_name
from ponder.domains.arc.grids import Grid, grid_from_json
from ponder.domains.arc.tasks import ArcTask, Pair
from ponder.domains.arc.votes import ATTEMPTS, Candidate
from ponder.domains.contract import Json
from ponder.domains.grid import short

LARGEST = (30, 30)
NAMES = tuple(f"attempt_{number}" for number in range(1, ATTEMPTS + 1))
NOTHING: Json = [[0]]
"""What is answered where there is nothing to say: an attempt must be a grid."""
UNKNOWN = np.zeros((0, 0), dtype=np.uint8)
"""The output of a test input, which nobody tells."""

Submission = Mapping[str, Sequence[Mapping[str, Json]]]


def read_challenges(path: Path) -> list[ArcTask]:
    """The tasks of a challenges file, by name. Outputs of test inputs, where it has them, are not looked at."""
    tasks = []
    for name, task in sorted(_object(path, "challenges").items()):
        if parse_name(name) != (name, Augmentation()):
            raise UserError(f"{path}: task {name!r} has the name of an augmentation: give it another")
        if not isinstance(task, dict) or not {"train", "test"} <= task.keys():
            raise UserError(f"{path}: task {name} should have the keys train and test, got {short(task)}")
        demos, tests = (
            _pairs(task[role], role == "train", f"{path}: {role} of task {name}") for role in ("train", "test")
        )
        tasks.append(ArcTask(name, "evaluation", demos, tests))
    return tasks


def _pairs(value: Any, shown: bool, what: str) -> tuple[Pair, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(pair, dict) for pair in value):
        raise UserError(f"{what} should be a list of pairs of grids, got {short(value)}")
    out = []
    for number, pair in enumerate(value, 1):
        for key in ("input", "output") if shown else ("input",):
            if key not in pair:
                raise UserError(f"{what}, pair {number} has no {key}: it has {short(sorted(pair))}")
        grids = [
            grid_from_json(pair[key], LARGEST, f"{what}, {key} {number}") for key in ("input", "output")[: 1 + shown]
        ]
        out.append(Pair(grids[0], grids[1] if shown else UNKNOWN))
    return tuple(out)


def read_solutions(path: Path, tasks: Sequence[ArcTask]) -> dict[str, list[Grid]]:
    """The outputs of every test input of these tasks."""
    found = _object(path, "solutions")
    out = {}
    for task in tasks:
        grids = found.get(task.name)
        if not isinstance(grids, list) or len(grids) != len(task.tests):
            got = f"{len(grids)} grids" if isinstance(grids, list) else "none"
            raise UserError(f"{path}: task {task.name} has {len(task.tests)} test inputs and {got} as their solutions")
        out[task.name] = [
            grid_from_json(grid, LARGEST, f"{path}: solution {number} of task {task.name}")
            for number, grid in enumerate(grids, 1)
        ]
    return out


def as_challenges(tasks: Sequence[ArcTask]) -> tuple[Json, Json]:
    """Challenges and solutions, as they would be written for these tasks."""
    challenges: dict[str, Json] = {
        task.name: {
            "train": [{"input": pair.input.tolist(), "output": pair.output.tolist()} for pair in task.demos],
            "test": [{"input": pair.input.tolist()} for pair in task.tests],
        }
        for task in tasks
    }
    return challenges, {task.name: [pair.output.tolist() for pair in task.tests] for task in tasks}


def _object(path: Path, what: str) -> dict[str, Any]:
    try:
        found = files.read_object(path, f"give a {what} file of the competition")
    except OSError as error:
        raise UserError(f"cannot read the {what} {path}: {error.strerror}") from None
    if not found:
        raise UserError(f"{path} holds no tasks: give a {what} file of the competition")
    return found


# Out ------------------------------------------------------------------------------------------------------------------


def attempts(ranked: Sequence[Candidate]) -> dict[str, Json]:
    """The two best grids; a missing second repeats the first."""
    grids = [candidate.grid.tolist() for candidate in ranked if candidate.grid.size][:ATTEMPTS]
    grids += (grids[:1] or [NOTHING]) * (ATTEMPTS - len(grids))
    return dict(zip(NAMES, grids, strict=True))


def submission_for(ranking: Mapping[str, Sequence[Sequence[Candidate]]], tasks: Sequence[ArcTask]) -> Submission:
    """An answer to every test input of every task, also of those that no model was asked about."""
    return {
        task.name: [attempts(ranked) for ranked in ranking.get(task.name, [()] * len(task.tests))] for task in tasks
    }


def check_submission(submission: Json, tasks: Sequence[ArcTask]) -> None:
    """Refuses what the competition would: tasks, test inputs or attempts missing or too many, and what is no grid."""
    if not isinstance(submission, dict) or submission.keys() != {task.name for task in tasks}:
        raise UserError(f"a submission holds the {len(tasks)} tasks of its challenges by name, got {short(submission)}")
    for task in tasks:
        answers = submission[task.name]
        if not isinstance(answers, list) or len(answers) != len(task.tests):
            raise UserError(f"the submission should answer the {len(task.tests)} test inputs of task {task.name}")
        for number, answer in enumerate(answers, 1):
            if not isinstance(answer, dict) or answer.keys() != set(NAMES):
                raise UserError(f"answer {number} of task {task.name} should have {' and '.join(NAMES)}")
            for name in NAMES:
                grid_from_json(answer[name], LARGEST, f"{name} of answer {number} of task {task.name}")


def solved(submission: Submission, solutions: Mapping[str, Sequence[Grid]]) -> dict[str, list[bool]]:
    """Task -> for each test input whether one of the attempts is its output."""
    return {
        name: [
            any(answer[attempt] == grid.tolist() for attempt in NAMES)
            for answer, grid in zip(submission[name], grids, strict=True)
        ]
        for name, grids in solutions.items()
    }
