"""The best fixed answer: what is scored without looking at the puzzle, from a task's data alone.

Puzzles of one shape (the positions that are to be answered) get one answer, the one that is right most often, chosen on
the very examples it is judged on: no other constant does better among the answers that occur. A model that does no
better has learned nothing of the rule.
"""

from collections import Counter
from pathlib import Path

import numpy as np

from ponder.base import files
from ponder.base.errors import UserError
from ponder.data import Dataset
from ponder.domains.contract import Batch, Domain
from ponder.studies.result import Kept

CANDIDATES = 64
"""Answers tried for each shape, the most frequent ones first."""
EXAMPLES = 2000
"""At most so many of each split."""


class Fixed(Kept):
    n: int
    shapes: int
    exact: float
    valid: float


class FixedAnswers(Kept):
    """Split -> how often the best fixed answer is right there: `results/fixed/HASH.json` of a dataset."""

    version: int = 1
    data_hash: str
    splits: dict[str, Fixed]


def best_fixed(domain: Domain, batch: Batch) -> Fixed:
    asked = batch.labels != 0
    shapes: dict[bytes, list[int]] = {}
    for row, shape in enumerate(asked):
        shapes.setdefault(shape.tobytes(), []).append(row)
    exact = valid = 0
    for rows in shapes.values():
        inputs, labels = batch.inputs[rows], batch.labels[rows]
        counts = Counter(label.tobytes() for label in labels).most_common(CANDIDATES)
        exact += counts[0][1]
        best = 0
        for text, right in counts:
            if domain.checkable:
                answer = np.frombuffer(text, labels.dtype)
                same = (labels == answer).all(axis=1)
                right = int((same | domain.check(inputs, np.where(answer == 0, inputs, answer))).sum())
            best = max(best, right)
        valid += best
    n = len(asked)
    return Fixed(n=n, shapes=len(shapes), exact=exact / n, valid=valid / n)


def measure(dataset: Dataset) -> FixedAnswers | None:
    """Of every split but training; None where tasks are made of several examples and scored by votes."""
    if dataset.domain.grouped:
        return None
    splits = {}
    for split in dataset.counts:
        if split != "train":
            source = dataset.source(split)
            index = np.arange(min(len(source), EXAMPLES))
            splits[split] = best_fixed(dataset.domain, source.fetch(index, np.zeros_like(index)))
    return FixedAnswers(data_hash=dataset.hash, splits=splits)


def keep(dataset: Dataset, root: Path) -> FixedAnswers | None:
    """Measured once for each dataset and kept in `root`, which reports read."""
    stored = read(root, dataset.hash)
    if stored is None and (stored := measure(dataset)) is not None:
        files.write(root / f"{dataset.hash}.json", stored.model_dump_json() + "\n")
    return stored


def read(root: Path, data_hash: str) -> FixedAnswers | None:
    path = root / f"{data_hash}.json"
    try:
        return FixedAnswers.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError:
        raise UserError(f"{path} is damaged: delete it and run `ponder study task` of its task") from None
