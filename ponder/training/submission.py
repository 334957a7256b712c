"""From a challenges file of the ARC competition to a submission: fine-tune a trained model on the demonstrations,
answer every test input under every augmentation, vote.

A folder holds a copy of the challenges, the run (`run/`, which goes on where it was stopped), its data (`data/`),
`submission.json`, and `score.json` where solutions were given. Solutions are read when the submission is written.
"""

import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ponder import __version__, checkpoint, data
from ponder.base import files, runtime
from ponder.base.errors import UserError, at_least, disk_in_words
from ponder.base.runtime import Runtime
from ponder.config import resolve as configuration
from ponder.config.resolve import Config
from ponder.domains.arc.competition import (
    Submission,
    check_submission,
    read_challenges,
    read_solutions,
    solved,
    submission_for,
)
from ponder.domains.arc.domain import Arc
from ponder.domains.arc.sources import ArcEvaluation
from ponder.domains.contract import Progress, silent
from ponder.evaluation.arc import count_votes, predict
from ponder.evaluation.records import Settings
from ponder.evaluation.schema import Origin, Share, Stored
from ponder.evaluation.subject import origin
from ponder.inference.weights import Opened, open_weights
from ponder.training.loop import Limits, Outcome
from ponder.training.runs import train_in

CHALLENGES, SUBMISSION, SCORE, RUN, DATA = "challenges.json", "submission.json", "score.json", "run", "data"


@dataclass(frozen=True)
class SubmissionPlan:
    challenges: Path
    start: str
    out: Path
    solutions: Path | None = None
    seconds: float | None = None
    """Of fine-tuning; the votes come after it."""
    updates: int | None = None
    overrides: Mapping[str, Any] | None = None
    fresh: bool = False
    """Delete what the folder holds of an earlier submission."""

    def __post_init__(self) -> None:
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise UserError(f"--seconds {self.seconds:g} is no time: give more than 0, or leave it out")
        at_least(1, {"--updates": self.updates})


class SubmissionScore(Stored):
    """score.json: what the solutions say about a submission of two attempts."""

    version: int = 1
    protocol: str
    checkpoint: Origin
    start: Origin
    tasks: int
    left_out: int
    """Tasks with a grid that does not fit on the model's canvas; they count as not solved."""
    test_inputs: int
    updates: int
    seconds: float
    """Of the fine-tuning."""
    votes: int
    """Of all test inputs together."""
    test_inputs_solved: Share
    all_test_inputs: Share
    """Tasks all of whose test inputs are solved."""
    fractional: Share
    """Tasks by the share of their test inputs that are solved: the competition's score."""
    solved: dict[str, list[bool]]
    config: dict[str, Any]
    environment: dict[str, Any]
    command: str = ""


@dataclass(frozen=True)
class Submitted:
    submission: Submission
    outcome: Outcome
    left_out: int
    score: SubmissionScore | None


@disk_in_words()
def submit(
    plan: SubmissionPlan, here: Runtime, quiet: bool = False, progress: Progress = silent, command: str = ""
) -> Submitted | None:
    """Write the folder; None where the training was interrupted before its limit. Ranks share the work."""
    # Everything that can be wrong is found here, before anything is trained
    tasks = read_challenges(plan.challenges)
    solutions = None if plan.solutions is None else read_solutions(plan.solutions, tasks)
    opened = open_weights(plan.start)
    config = fine_tuning(opened, plan)
    if here.main:
        _keep_challenges(plan)
    here.barrier()

    outcome = train_in(config, plan.out / RUN, plan.out / DATA, here, Limits(plan.seconds), quiet, plan.fresh)
    if not outcome.finished and outcome.reason == "interrupted":
        return None

    saved = checkpoint.newest(plan.out / RUN / "checkpoints")
    assert saved is not None
    tuned = open_weights(saved.path, "ema", here.device)
    dataset = data.Dataset.open(data.folder_for(plan.out / DATA, config.data))
    source = dataset.source("test")
    assert isinstance(source, ArcEvaluation)
    precision = runtime.precision_for(config.train.precision, here.device)
    how = Settings(tuned.model.config.max_steps, config.eval.batch, None, precision)
    voted = predict(tuned.model, dataset.domain, source, how, here, progress=progress)
    if not here.main:
        return None
    names, step = source.test_names(voted.index), how.steps
    ranking = count_votes(
        names, voted.inputs, voted.answers[step], voted.confidence[step], tuned.model.config.head, source.tasks()
    ).ranking
    submission = submission_for(ranking, tasks)
    text = json.dumps(submission)
    check_submission(json.loads(text), tasks)
    files.write(plan.out / SUBMISSION, text)
    score, left_out = None, len(tasks) - len(ranking)
    if solutions is not None:
        right = solved(submission, solutions)
        shares, inputs = [float(np.mean(each)) for each in right.values()], sum(map(len, right.values()))
        score = SubmissionScore(
            protocol=f"the competition's: two attempts at each test input; fine-tuned on the demonstrations of these "
            f"tasks; {config.data.params.model_dump()['augmentations'] + 1} augmentations at most, answers after ACT "
            f"step {step}, ranked by votes",
            checkpoint=origin(tuned),
            start=origin(opened),
            tasks=len(tasks),
            left_out=left_out,
            test_inputs=inputs,
            updates=outcome.update,
            seconds=saved.state["seconds"],
            votes=len(voted.index),
            test_inputs_solved=Share.of(sum(map(sum, right.values())) / inputs, inputs),
            all_test_inputs=Share.of(float(np.mean([share == 1 for share in shares])), len(tasks)),
            fractional=Share.of(float(np.mean(shares)), len(tasks)),
            solved=right,
            config=config.flat(),
            environment={"ponder": __version__, **runtime.environment()},
            command=command,
        )
        files.write_json(plan.out / SCORE, score.as_data())
    else:
        (plan.out / SCORE).unlink(missing_ok=True)  # of an earlier submission
    return Submitted(submission, outcome, left_out, score)


def fine_tuning(opened: Opened, plan: SubmissionPlan) -> Config:
    """The recipe the model was trained by, on the challenges: as many updates unless told otherwise, one evaluation
    at the end."""
    if not isinstance(opened.domain, Arc) or opened.data is None:
        what = "that does not say what it is for" if opened.domain is None else f"for {opened.domain.name}"
        raise UserError(f"--start {plan.start} is a model {what}: give one that was trained on ARC")
    if opened.config is not None:
        flat = opened.config.flat()
    else:
        model = opened.model.config.model_dump(mode="json")
        flat = {"preset": "imported", "scale": "paper", "model": model, "train": {"updates": 10_000}}
    held = {"challenges": str((plan.out / CHALLENGES).resolve()), "tasks": None, "identifiers": None}
    flat["data"] = {**opened.data.flat(), **held}
    updates = {} if plan.updates is None else {"updates": plan.updates, "epochs": None}
    flat = configuration.merge(flat, {"train": {"start": plan.start, **updates}, "eval": {"splits": ["val"]}})
    config = configuration.from_flat(configuration.merge(flat, plan.overrides or {}))
    if config.train.updates is None:
        raise UserError(f"{plan.start} was trained for a number of epochs, which mean other tasks: give --updates N")
    once = {"eval_every": config.train.updates}
    return config.model_copy(update={"preset": "arc-submit", "train": config.train.model_copy(update=once)})


def _keep_challenges(plan: SubmissionPlan) -> None:
    """A copy, so that the folder explains itself and its data are of these very tasks."""
    given, kept = files.read(plan.challenges), plan.out / CHALLENGES
    if not kept.exists() and plan.out.exists() and (not plan.out.is_dir() or any(plan.out.iterdir())):
        raise UserError(f"{plan.out} exists and holds no submission: choose another --out")
    if kept.exists() and not plan.fresh:
        if files.read(kept) != given:
            raise UserError(f"{plan.out} is about other challenges: choose another --out, or --fresh to delete it")
        return
    shutil.rmtree(plan.out / DATA, ignore_errors=True)
    files.write(kept, given)
