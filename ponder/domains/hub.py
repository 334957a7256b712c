"""CSV files of published datasets: found in the Hub's cache or fetched, and read strictly."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import NoReturn, TextIO

import numpy as np
import numpy.typing as npt

from ponder.base import hub
from ponder.base.errors import UserError
from ponder.domains.contract import Bools, Domain, Ints, Progress, Tokens

ROWS = 1 << 16
"""Read at a time."""
COLUMNS = ("source", "question", "answer", "rating")
"""Of the published datasets."""


def train_and_test(source: str, folder: str | None, repo: str, revision: str) -> tuple[Path, Path]:
    """train.csv and test.csv: of a folder, or of a dataset repository at a commit, fetched unless they are cached."""
    names = ("train.csv", "test.csv")
    if source == "hub":
        instead = "use a local copy: --data.source csv --data.folder DIR, or the generator: --data.source generate"
        found = hub.cached("dataset", repo, revision, names) or hub.fetched("dataset", repo, revision, names, instead)
        return found[names[0]], found[names[1]]
    place = Path(folder or "").expanduser()
    return place / names[0], place / names[1]


@dataclass(frozen=True)
class CsvRows:
    """Consecutive rows of a CSV file, by columns."""

    path: Path
    first_line: int
    columns: Mapping[str, Sequence[str]]

    def fail(self, row: int, reason: str) -> NoReturn:
        raise UserError(f"{self.path}, line {self.first_line + row}: {reason}")

    def tokens(self, column: str, width: int, codes: dict[str, int]) -> Tokens:
        """A column whose fields are all `width` characters long, as [rows, width] tokens."""
        fields = self.columns[column]
        for row, field in enumerate(fields):
            if len(field) != width:
                self.fail(row, f"{column} has {len(field)} characters, expected {width}")
        table = np.full(256, 255, dtype=np.uint8)
        for char, token in codes.items():
            table[ord(char)] = token
        characters = np.frombuffer("".join(fields).encode("latin-1", "replace"), dtype=np.uint8)
        tokens = table[characters].reshape(len(fields), width)
        for row, place in np.argwhere(tokens == 255)[:1].tolist():
            allowed = "".join(codes)
            self.fail(row, f"{column} has {fields[row][place]!r} at character {place + 1}, allowed: {allowed!r}")
        return tokens

    def numbers(self, column: str) -> Ints:
        """A column of whole numbers, 0 or more."""
        fields = self.columns[column]
        for row, field in enumerate(fields):
            if not (field.isascii() and field.isdecimal() and len(field) < 10):
                self.fail(row, f"{column} is {field[:20]!r}, expected a whole number")
        return np.array([int(field) for field in fields], dtype=np.int64)


def read_csv_rows(path: Path, columns: Sequence[str], progress: Progress) -> Iterator[CsvRows]:
    """The rows of a CSV file, so many at a time; every row must have exactly the given columns."""
    if not path.is_file():
        raise UserError(f"{path} does not exist; the folder should hold CSV files with columns {','.join(columns)}")
    total = path.stat().st_size
    with path.open("rb") as file, TextIOWrapper(file, "utf-8-sig", "replace", newline="") as text:
        rows = _rows(path, text, columns)
        line = 2
        while some := list(islice(rows, ROWS)):
            progress(f"reading {path.name}", file.tell(), total)
            yield CsvRows(path, line, dict(zip(columns, zip(*some, strict=True), strict=True)))
            line += len(some)
    progress(f"reading {path.name}", total, total)


def _rows(path: Path, file: TextIO, columns: Sequence[str]) -> Iterator[list[str]]:
    """The rows after the header."""
    reader, line = csv.reader(file, strict=True), 0
    try:
        names = ",".join(next(reader, []))
        if names != ",".join(columns):
            raise UserError(f"{path}, line 1: columns are {names[:80]!r}, expected {','.join(columns)!r}")
        for line, fields in enumerate(reader, 2):
            if len(fields) != len(columns):
                raise UserError(
                    f"{path}, line {line}: {len(fields)} columns, expected {len(columns)} ({','.join(columns)}); "
                    "the file is damaged or cut short"
                )
            yield fields
    except csv.Error as error:
        raise UserError(f"{path}, line {max(line, 1) + 1}: {error}; the file is damaged or cut short") from error


def read_solved(
    path: Path, domain: Domain, clues: dict[str, int], answers: dict[str, int], progress: Progress
) -> Iterator[tuple[CsvRows, Tokens, Tokens]]:
    """The rows of a published file as puzzles and answers, each of which must solve its question."""
    for rows in read_csv_rows(path, COLUMNS, progress):
        inputs = rows.tokens("question", domain.seq_len, clues)
        labels = rows.tokens("answer", domain.seq_len, answers)
        for row in np.flatnonzero(~domain.check(inputs, labels))[:1]:
            rows.fail(row, f"the answer does not solve the question: {domain.explain(inputs[row], labels[row])}")
        yield rows, inputs, labels


def first_of_each(keys: npt.NDArray[np.uint64]) -> Bools:
    """Marks every key where it comes for the first time."""
    once = np.zeros(len(keys), dtype=np.bool_)
    once[np.unique(keys, return_index=True)[1]] = True
    return once


def puzzle_keys(inputs: Tokens) -> npt.NDArray[np.uint64]:
    """A 64-bit fingerprint of each row, to find equal puzzles among millions."""
    weights = np.random.Generator(np.random.PCG64(0)).bytes(8 * inputs.shape[1])
    keys = np.zeros(len(inputs), dtype=np.uint64)
    for column, weight in zip(inputs.T, np.frombuffer(weights, dtype="<u8"), strict=True):
        keys += column.astype(np.uint64) * weight
    return keys
