"""The examples of a split put into words: the one prompt that each domain has (docs/llm.md shows them all)."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ponder.base.errors import UserError
from ponder.data import Dataset
from ponder.domains.contract import Domain, Tokens, rng_for

ORDER = 21
"""What random numbers are for: which examples of a split come first."""


@dataclass(frozen=True)
class Question:
    split: str
    index: int
    """Of the example in its split, the same number `ponder eval` records."""
    task: str
    """Test inputs of one ARC task share it; every other example is a task of its own."""
    domain: Domain
    inputs: Tokens
    label: Tokens
    prompt: str


def questions(dataset: Dataset, split: str, limit: int | None) -> list[Question]:
    """`limit` examples of a split in a fixed random order: a larger limit asks the same ones and more.

    ARC: the test inputs as they are (no augmentations), as many whole tasks as it takes.
    """
    domain, source = dataset.domain, dataset.source(split)
    if len(source) == 0:
        raise UserError(f"split {split!r} holds no examples: choose another --split")
    tasks = domain.tasks_of(split, source)
    names = list(tasks)
    chosen: list[tuple[str, int]] = []
    for place in rng_for(dataset.config.seed, ORDER).permutation(len(names)):
        if limit is not None and len(chosen) >= limit:
            break
        chosen += [(names[place], i) for i in tasks[names[place]]]
    rows = np.array([i for _, i in chosen], dtype=np.int64)
    batch = source.fetch(rows, np.zeros_like(rows))
    out = []
    for (task, i), *example in zip(chosen, batch.inputs, batch.labels, strict=True):
        own, (inputs, label) = domain.own(*example)
        out.append(Question(split, i, task, own, inputs, label, prompt(own, inputs, domain.shown(task))))
    return out


def prompt(domain: Domain, inputs: Tokens, shown: str = "") -> str:
    """All that a language model is told (docs/llm.md): the rules, the puzzle, how to write the answer."""
    words = domain.wording(inputs)
    return (
        f"{domain.rules}\n\n{shown}{words.puzzle}\n\n"
        "Think first if you like. Then write one last line that begins with ANSWER: and holds nothing but "
        f"{words.answer}."
    )


# Requests -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """One request: attempt `attempt` at a question."""

    question: Question
    attempt: int
    request: Mapping[str, Any]
    key: str
    """A hash of data, example, attempt and the whole request: what makes an answer this job's answer."""


def jobs_of(
    asked: Sequence[Question], data_hash: str, model: str, parameters: Mapping[str, Any], attempts: int
) -> list[Job]:
    jobs = []
    for attempt in range(attempts):
        for q in asked:
            request = {"model": model, "messages": [{"role": "user", "content": q.prompt}], **parameters}
            identity = json.dumps([data_hash, q.split, q.index, attempt, request], sort_keys=True)
            jobs.append(Job(q, attempt, request, hashlib.sha256(identity.encode()).hexdigest()[:20]))
    return jobs
