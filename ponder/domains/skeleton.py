"""A package to start a domain of one's own from: a small puzzle that trains as it stands, a preset and a test."""

import re
from pathlib import Path

from ponder.base.errors import UserError
from ponder.domains.registry import BUILT_IN, GROUP

PYPROJECT = f"""\
[build-system]
requires = ["setuptools>=70.1"]
build-backend = "setuptools.build_meta"

[project]
name = "PACKAGE"
version = "0.1.0"
dependencies = ["ponder"]

[project.entry-points."{GROUP}"]
NAME = "MODULE:CLASS"

[tool.setuptools]
packages = ["MODULE"]

[tool.setuptools.package-data]
MODULE = ["presets/*.yaml"]
"""

GRID = '''\
"""NAME: what the puzzle is. For now: find the symbol that each row of a HEIGHTxWIDTH grid lacks."""

import numpy as np
from ponder.domains import Bools, GridDomain, Sizes, Tokens

SYMBOLS = ".123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
BLANK, FIRST = 1, 2  # tokens: 0 is padding, then the symbols in their order


class CLASS(GridDomain):
    name = "NAME"
    title = "Fill in the symbol that each row lacks"
    rules = (
        "A grid of HEIGHT rows. Every row holds each of the symbols LEGEND exactly once, but one cell of each row is "
        "empty, written as a dot. Fill in the symbols that are missing; the others stay. Rows are separated by /."
    )
    Params = Sizes  # extend it to have parameters of your own

    def __init__(self, params: Sizes) -> None:
        super().__init__(params, height=HEIGHT, width=WIDTH, symbols=SYMBOLS[: 1 + WIDTH])

    def generate(self, rng: np.random.Generator, count: int) -> tuple[Tokens, Tokens]:
        labels = FIRST + rng.random((count, self.height, self.width)).argsort(axis=2)
        inputs = labels.copy()
        np.put_along_axis(inputs, rng.integers(self.width, size=(count, self.height, 1)), BLANK, axis=2)
        return inputs.reshape(count, -1), labels.reshape(count, -1)

    def check(self, inputs: Tokens, answers: Tokens) -> Bools:
        rows = np.sort(answers.reshape(-1, self.height, self.width), axis=2)
        return self.filled(inputs, answers) & (rows == FIRST + np.arange(self.width)).all(axis=(1, 2))
'''

SEQUENCE = '''\
"""NAME: what the puzzle is. For now: put up to LENGTH digits in order."""

import numpy as np
from ponder.domains import PAD, Bools, SequenceDomain, Sizes, Tokens

ZERO = 1  # the token of 0: token 0 is padding, then the symbols in their order


class CLASS(SequenceDomain):
    name = "NAME"
    title = "Put the digits in order"
    rules = "A line of digits. Write the same digits in ascending order, as often as they were given."
    Params = Sizes  # extend it to have parameters of your own

    def __init__(self, params: Sizes) -> None:
        super().__init__(params, length=LENGTH, symbols="0123456789")

    def generate(self, rng: np.random.Generator, count: int) -> tuple[Tokens, Tokens]:
        digits = rng.integers(ZERO, ZERO + 10, size=(count, self.seq_len))
        used = np.arange(self.seq_len) < rng.integers(2, self.seq_len + 1, size=(count, 1))
        return np.where(used, digits, PAD), self._ordered(np.where(used, digits, PAD))

    def check(self, inputs: Tokens, answers: Tokens) -> Bools:
        return ((answers == self._ordered(inputs)) | (inputs == PAD)).all(axis=1)

    @staticmethod
    def _ordered(inputs: Tokens) -> Tokens:
        last = np.where(inputs == PAD, 255, inputs)
        return np.where(inputs == PAD, PAD, np.sort(last, axis=1))
'''

PRESET = """\
about: the smallest CLASS that trains in a few minutes on two CPU cores
scale: mini
data: {domain: NAME, train: 20000, val: 500, test: 1000}
model: {width: 64, heads: 4, layers: 1, positions: learned, noise: 0.005, max_steps: 4, halting: halt}
train: {batch: 128, updates: 800, lr: 2.0e-3, lr_min_ratio: 0.1, warmup: 40, ema: 0.985, eval_every: 100}
eval: {examples: 500, select: valid}
"""

TEST = '''\
"""NAME keeps ponder's contract, and its checker knows right from wrong."""

from MODULE import CLASS
from ponder.domains.conform import problems


def test_the_contract() -> None:
    assert problems(CLASS(CLASS.Params())) == []


def test_the_checker() -> None:
    domain = CLASS(CLASS.Params())
    puzzle = domain.parse("PUZZLE")
    for answer, right in (("RIGHT", True), ("WRONG", False)):
        assert domain.check(puzzle[None], domain.parse_answer(puzzle, answer)[None])[0] == right
'''

README = """\
# PACKAGE

    pip install -e .          # from now on ponder knows the domain NAME
    pytest
    ponder data show NAME-mini
    ponder train NAME-mini
    ponder solve runs/NAME-mini-s0 --random
    ponder serve --model runs/NAME-mini-s0
"""


def write_package(name: str, folder: Path, grid: tuple[int, int] | None, length: int) -> list[Path]:
    """Write the files of a package; on a grid of (height, width) cells or, where that is None, in a line."""
    if not re.fullmatch(r"[a-z][a-z0-9]*([_-][a-z0-9]+)*", name):
        raise UserError(
            f"{name!r} is no name for a domain: use small letters, digits and single hyphens: latin-squares"
        )
    if name in BUILT_IN:
        raise UserError(f"{name} is a domain of ponder's own: choose another name")
    if grid is not None and not (grid[0] >= 1 and 2 <= grid[1] <= 35):
        raise UserError(f"a grid of {grid[0]}x{grid[1]} is too much for the first puzzle: up to 35 columns, as in 4x4")
    if not 2 <= length <= 1000:
        raise UserError(f"a sequence of {length} is out of range: give 2 to 1000 symbols")
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty: give another --out")
    module = f"ponder_{name.replace('-', '_')}"
    height, width = grid or (1, length)
    symbols = "123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[:width]
    rows = [symbols[r % width :] + symbols[: r % width] for r in range(height)]
    wrong = [rows[0][:-1] + rows[0][0], *rows[1:]] if grid else ["10"]
    words = {
        "PACKAGE": module.replace("_", "-"),
        "MODULE": module,
        "CLASS": "".join(part.capitalize() for part in re.split("[-_]", name)),
        "NAME": name,
        "HEIGHT": str(height),
        "WIDTH": str(width),
        "LENGTH": str(length),
        "LEGEND": f"{symbols[0]} to {symbols[-1]}",
        "PUZZLE": "/".join(row[:-1] + "." for row in rows) if grid else "10",
        "RIGHT": "/".join(rows) if grid else "01",
        "WRONG": "/".join(wrong),
    }
    files = {
        "pyproject.toml": PYPROJECT,
        "README.md": README,
        f"{module}/__init__.py": GRID if grid else SEQUENCE,
        f"{module}/presets/{name}-mini.yaml": PRESET,
        f"tests/test_{module}.py": TEST,
    }
    for path, text in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(re.sub("|".join(words), lambda found: words[found[0]], text), encoding="utf-8")
    return [folder / path for path in files]
