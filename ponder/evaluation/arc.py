"""The ARC protocol: predictions under many augmentations become votes, and votes become pass@k and a submission.

Votes are made and counted inside one call; nothing is kept from one evaluation to the next.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ponder.base import files, stats
from ponder.base.errors import UserError
from ponder.base.runtime import Runtime
from ponder.base.stats import Floats
from ponder.config.resolve import DataConfig
from ponder.data import Dataset
from ponder.domains.arc.augment import rows_from_identifiers
from ponder.domains.arc.competition import as_challenges
from ponder.domains.arc.domain import Arc
from ponder.domains.arc.sources import ArcEvaluation
from ponder.domains.arc.votes import Predictions, VoteScore, score_votes
from ponder.domains.contract import Bools, Domain, Ints, Json, Progress, Source, Tokens, silent
from ponder.evaluation.records import Records, Settings, evaluating, join, run_batch, run_split, shares
from ponder.evaluation.schema import ArcScore, PassAt, PassesAtStep, PassesByVotes, Share, VoteCounts
from ponder.model.reasoner import Reasoner

KS = (1, 2)
CURVE = (1, 10, 100, 1000)
IDENTIFIERS = "identifiers.json"


@dataclass(frozen=True)
class Predicted:
    """What a model predicts for augmented test inputs: canvases and confidence at each of some steps."""

    index: Ints
    inputs: Tokens
    answers: Mapping[int, Tokens]
    confidence: Mapping[int, npt.NDArray[np.float32]]
    records: Records


@dataclass(frozen=True)
class ArcOutcome:
    score: ArcScore
    submission: dict[str, list[dict[str, Json]]]


def count_votes(
    names: Sequence[str],
    inputs: Tokens,
    answers: Tokens,
    confidence: Floats,
    head: bool,
    tasks: Mapping[str, Mapping[str, Any]],
    ks: Sequence[int] = KS,
) -> VoteScore:
    """From canvases to pass@k. Votes are weighed by the halting probability; without a halting head, by the mean token
    log-probability as it is."""
    weight = stats.probability(confidence) if head else confidence.astype(np.float64)
    return score_votes(Predictions(names, inputs, answers, weight), tasks, ks)


def predict(
    model: Reasoner,
    domain: Domain,
    source: ArcEvaluation,
    how: Settings,
    here: Runtime,
    blank: bool = False,
    progress: Progress = silent,
) -> Predicted:
    """Canvases after the training budget and after the last step. `blank`: all under task id 0."""
    kept = sorted({min(model.config.max_steps, how.steps), how.steps})
    parts = []
    with evaluating(model):
        for index in shares(chosen_votes(source, how.limit), how.batch, here, progress):
            batch = source.fetch(index, np.zeros_like(index))
            if blank:
                batch = replace(batch, task_ids=np.zeros_like(batch.task_ids))
            records, seen = run_batch(model, domain, batch, index, how)
            answers, confidence = ({step: each[step - 1] for step in kept} for each in (seen.answers, seen.confidence))
            parts.append(Predicted(index, batch.inputs, answers, confidence, records))
    every = [part for rank in here.gather_objects(parts) for part in rank]
    index = np.concatenate([part.index for part in every])
    order = np.argsort(index, kind="stable")
    return Predicted(
        index[order],
        np.concatenate([part.inputs for part in every])[order],
        {step: np.concatenate([part.answers[step] for part in every])[order] for step in kept},
        {step: np.concatenate([part.confidence[step] for part in every])[order] for step in kept},
        join([part.records for part in every]),
    )


@dataclass(frozen=True)
class Voted:
    """All that voting needs, from all ranks."""

    source: ArcEvaluation
    budget: int
    plain: Predicted
    blank: Predicted


def run_votes(
    model: Reasoner, domain: Domain, source: ArcEvaluation, how: Settings, here: Runtime, progress: Progress = silent
) -> Voted:
    """Predictions at the training budget and at the last step; and at the budget with every task id replaced by 0."""
    budget = min(model.config.max_steps, how.steps)
    plain = predict(model, domain, source, how, here, progress=progress)
    blank = predict(model, domain, source, replace(how, steps=budget), here, blank=True, progress=progress)
    return Voted(source, budget, plain, blank)


def score_arc(voted: Voted, domain: Domain, head: bool) -> ArcOutcome:
    """pass@k, the votes-vs-accuracy curve, and the blank-id control."""
    source, budget, chosen = voted.source, voted.budget, voted.plain.index
    tasks, names, number = source.tasks(), source.test_names(chosen), source.number[chosen]

    def counted(predicted: Predicted, step: int, among: Bools | None = None) -> VoteScore:
        rows = np.arange(len(chosen)) if among is None else np.flatnonzero(among)
        return count_votes(
            [names[row] for row in rows],
            predicted.inputs[rows],
            predicted.answers[step][rows],
            predicted.confidence[step][rows],
            head,
            tasks,
        )

    scores = {step: counted(voted.plain, step) for step in voted.plain.answers}
    votes = np.bincount(source.pair[chosen], minlength=len(source.task))
    # The examples of a split come augmentation by augmentation, the task as it is first.
    by_votes = {count: counted(voted.plain, budget, number < count) for count in CURVE if count < votes.max()} | {
        int(votes.max()): scores[budget]
    }
    score = ArcScore(
        protocol=protocol(domain, len(tasks), votes, head, budget),
        tasks=len(tasks),
        test_inputs=len(votes),
        votes=VoteCounts(fewest=int(votes.min()), most=int(votes.max()), all=int(votes.sum())),
        at_step=[PassesAtStep(step=step, **passes(s, len(tasks))) for step, s in scores.items()],
        curve=[PassesByVotes(votes=count, **passes(s, len(tasks))) for count, s in by_votes.items()],
        blank_id=PassesAtStep(step=budget, **passes(counted(voted.blank, budget), len(tasks))),
        label_rank=scores[budget].label_rank,
        unmatched=scores[budget].unmatched,
    )
    return ArcOutcome(score, scores[budget].submission)


def chosen_votes(source: ArcEvaluation, limit: int | None) -> Ints:
    """All augmented test inputs, or the first `limit`: every test as it is, then under its first augmentation, ..."""
    tests = len(source.task)
    if limit is not None and limit < tests:
        raise UserError(f"--limit {limit} leaves test inputs without a vote: give at least {tests}, one for each")
    return np.arange(len(source) if limit is None else min(limit, len(source)))


def passes(score: VoteScore, tasks: int) -> dict[str, PassAt]:
    """pass@k in both readings, with intervals over tasks."""

    def shares(solved: Mapping[int, float]) -> PassAt:
        return PassAt(one=Share.of(solved[1], tasks), two=Share.of(solved[2], tasks))

    return {"all_test_inputs": shares(score.all_test_inputs), "fractional": shares(score.fractional)}


def protocol(domain: Domain, tasks: int, votes: Ints, head: bool, budget: int) -> str:
    few, many = int(votes.min()), int(votes.max())
    ranked = "halting probability" if head else "token log-probability"
    return (
        f"{domain.name}: {tasks} tasks, {len(votes)} test inputs, each answered under "
        f"{many if few == many else f'{few} to {many}'} augmentations, the task as it is among them; transductive: the "
        f"demonstrations of these tasks were trained on under the same task ids; answers after ACT step {budget}, "
        f"halting off; augmentation undone, cropped, equal grids ranked by votes, then mean {ranked}; pass@k: a task "
        f"counts when the k best grids hold the right one for all its test inputs (the paper's reading), or by the "
        f"share of its test inputs for which they do (fractional, the published code's); blank id: the same with every "
        f"task id replaced by 0"
    )


@dataclass(frozen=True)
class SplitRun:
    """One split under one model."""

    records: Records
    of: int
    """Examples that the split holds."""
    arc: ArcOutcome | None
    """Of the votes; None where nothing is voted on, and for all ranks but the first."""


def measure(
    model: Reasoner, domain: Domain, source: Source, how: Settings, here: Runtime, progress: Progress = silent
) -> SplitRun:
    """A split as it is meant to be measured: by votes where it holds augmented ARC tests."""
    if not isinstance(source, ArcEvaluation):
        return SplitRun(run_split(model, domain, source, how, here, progress), len(source), None)
    voted = run_votes(model, domain, source, how, here, progress)
    outcome = score_arc(voted, domain, model.config.head) if here.main else None
    return SplitRun(voted.plain.records, len(source), outcome)


def write_challenges(dataset: Dataset, folder: Path) -> str:
    """The tasks of val and test as the competition gives them: demonstrations and test inputs in one file, outputs in
    the other. Returns what was written, in words."""
    if not isinstance(dataset.domain, Arc):
        raise UserError(f"{dataset.path} holds {dataset.config.domain}; only ARC has challenges: name an ARC preset")
    sources = [dataset.source(split) for split in dataset.counts]
    held = {name for source in sources if isinstance(source, ArcEvaluation) for name in source.names}
    tasks = [task for task in dataset.domain.tasks if task.name in held]
    paths = folder / "challenges.json", folder / "solutions.json"
    for path, content in zip(paths, as_challenges(tasks), strict=True):
        files.write(path, json.dumps(content))
    return f"{len(tasks)} tasks, {sum(len(task.tests) for task in tasks)} test inputs: {paths[0]}, {paths[1]}"


# Published checkpoints ------------------------------------------------------------------------------------------------


def with_identifiers(data: DataConfig, folder: Path) -> DataConfig:
    """The data of an imported ARC checkpoint: the augmentations that its own identifiers.json names."""
    file = folder / IDENTIFIERS
    if not file.is_file():
        raise UserError(
            f"{folder} has no {IDENTIFIERS}, so nothing tells which row of its puzzle table is which task: import it "
            f"again with --identifiers"
        )
    return data.model_copy(update={"params": data.params.model_copy(update={"identifiers": str(file.resolve())})})


def arranged_table(table: torch.Tensor, folder: Path, dataset: Dataset, splits: Sequence[str]) -> torch.Tensor:
    """The rows of an imported puzzle table in the order of our task ids."""
    domain = dataset.domain
    assert isinstance(domain, Arc)
    published = rows_from_identifiers(files.read_json(folder / IDENTIFIERS))
    ours = domain.identifiers(dataset.config.seed)
    for split in splits:
        source = dataset.source(split)
        if isinstance(source, ArcEvaluation):
            ids, first = np.unique(source.ids[source.task[source.pair]] + source.number, return_index=True)
            names = source.test_names(first)
            if len(ours) <= ids[-1] or names != [ours[i] for i in ids]:
                raise UserError(
                    f"{dataset.path} was built from another {IDENTIFIERS} than the one now in {folder}: delete it and "
                    f"evaluate again"
                )
            lacking = [name for name in names if name not in published]
            if lacking:
                raise UserError(
                    f"{folder / IDENTIFIERS} does not name {len(lacking)} of the tasks of split {split}, such as "
                    f"{lacking[0]}: the checkpoint was trained on other tasks; choose another --domain or --split"
                )
    # Tasks that it was not trained on, and that are not evaluated, get the blank row.
    return table[torch.tensor([published.get(name, 0) for name in ours], device=table.device)]
