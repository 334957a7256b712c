"""The best fixed answer, against counting by hand."""

from collections import Counter
from pathlib import Path

import numpy as np

from ponder.config.resolve import resolve
from ponder.data import Dataset, build
from ponder.domains.arithmetic.domain import Arithmetic
from ponder.domains.arithmetic.generate import ArithmeticParams
from ponder.domains.contract import Batch
from ponder.studies import fixed


def test_each_shape_gets_the_answer_that_most_of_its_puzzles_accept() -> None:
    """Every assignment that is a label somewhere is tried on each puzzle of its shape by evaluating the text."""
    domain = Arithmetic(ArithmeticParams(max_operands=3))
    said = {"2 2 ? 1 ? = 5": "*+", "1 1 ? 3 ? = 5": "++", "2 2 ? 4 ? = 8": "++", "4 2 ? 3 ? = 3": "--"}
    said |= {"4 2 3 ? ? = 24": "**", "6 2 3 ? ? = 36": "**", "9 1 2 ? ? = 12": "++"}
    inputs = np.stack([domain.parse(text) for text in said])
    labels = np.zeros_like(inputs)
    for row, signs in enumerate(said.values()):
        labels[row, np.flatnonzero(inputs[row] == domain.vocab.index("?"))] = [domain.vocab.index(s) for s in signs]
    found = fixed.best_fixed(domain, Batch(inputs, labels, np.zeros(len(inputs), dtype=np.int64)))
    best = 0
    for some in (list(said)[:4], list(said)[4:]):
        best += max(sum(_right(text, signs) for text in some) for signs in {said[text] for text in some})
    assert (found.n, found.shapes) == (7, 2)
    assert best == 3 + 2 and found.valid == best / 7  # 2 2 + 1 + and 1 1 + 3 + and 2 2 + 4 +, though labelled otherwise
    assert found.exact == (2 + 2) / 7


def _right(puzzle: str, signs: str) -> bool:
    stack: list[int] = []
    expression, value = puzzle.split(" = ")
    left = iter(signs)
    for word in expression.split():
        if word == "?":
            b, a, sign = stack.pop(), stack.pop(), next(left)
            stack.append({"+": a + b, "-": a - b, "*": a * b}[sign])
        else:
            stack.append(int(word))
    return stack == [int(value)]


def test_where_answers_are_unique_it_is_the_most_frequent_label_and_is_kept_once(tmp_path: Path) -> None:
    config = resolve("sudoku-mini", None, {"data": {"train": 20, "val": 50, "test": 300}})
    dataset = Dataset.open(build(config.data, tmp_path / "data"))
    labels = dataset.arrays("test")["labels"]
    most = Counter(label.tobytes() for label in labels).most_common(1)[0][1]
    kept = fixed.keep(dataset, tmp_path / "fixed")
    assert kept is not None and set(kept.splits) == {"val", "test"}
    assert kept.splits["test"].exact == kept.splits["test"].valid == most / 300
    assert fixed.read(tmp_path / "fixed", dataset.hash) == kept == fixed.keep(dataset, tmp_path / "fixed")
    assert fixed.read(tmp_path / "fixed", "other") is None
