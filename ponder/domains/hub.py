"""CSV files of published datasets: found in the Hub's cache or fetched, and read strictly."""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from ponder.base import hub
from ponder.base.errors import UserError
from ponder.domains.contract import Bools, Domain, Ints, Progress, Tokens, silent

COMMA, NEWLINE, RETURN, QUOTE = b',\n\r"'
CHUNK_BYTES = 1 << 24
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
    """Consecutive rows of a CSV file: the bytes, and where each field of each row starts and ends."""

    path: Path
    first_line: int
    data: Tokens
    starts: dict[str, Ints]
    ends: dict[str, Ints]

    def __len__(self) -> int:
        return len(next(iter(self.starts.values())))

    def fail(self, row: int, reason: str) -> NoReturn:
        raise UserError(f"{self.path}, line {self.first_line + row}: {reason}")

    def text(self, column: str, width: int) -> Tokens:
        """A column whose fields are all `width` characters long, as [rows, width] character codes."""
        lengths = self.ends[column] - self.starts[column]
        wrong = np.flatnonzero(lengths != width)
        if len(wrong):
            self.fail(wrong[0], f"{column} has {lengths[wrong[0]]} characters, expected {width}")
        return np.lib.stride_tricks.sliding_window_view(self.data, width)[self.starts[column]]

    def tokens(self, column: str, width: int, codes: dict[str, int]) -> Tokens:
        """The same with each character replaced by its token."""
        table = np.full(256, 255, dtype=np.uint8)
        for char, token in codes.items():
            table[ord(char)] = token
        text = self.text(column, width)
        tokens = table[text]
        wrong = np.argwhere(tokens == 255)
        if len(wrong):
            row, place = wrong[0]
            allowed = "".join(codes)
            self.fail(row, f"{column} has {chr(text[row, place])!r} at character {place + 1}, allowed: {allowed!r}")
        return tokens

    def numbers(self, column: str) -> Ints:
        """A column of whole numbers, 0 or more."""
        starts, lengths = self.starts[column], self.ends[column] - self.starts[column]
        value = np.zeros(len(self), dtype=np.int64)
        good = (lengths > 0) & (lengths < 10)
        for place in range(int(lengths[good].max(initial=0))):
            inside = place < lengths
            digit = self.data[np.where(inside, starts + place, 0)].astype(np.int64) - ord("0")
            good &= ~inside | ((digit >= 0) & (digit <= 9))
            value = np.where(inside, value * 10 + digit, value)
        if not good.all():
            row = int(np.argmin(good))
            field = self.data[starts[row] : self.ends[column][row]].tobytes().decode("utf-8", "replace")
            self.fail(row, f"{column} is {field[:20]!r}, expected a whole number")
        return value


def read_csv_rows(path: Path, columns: Sequence[str], progress: Progress = silent) -> Iterator[CsvRows]:
    """The rows of a CSV file in pieces of some megabytes; every row must have exactly the given columns."""
    if not path.is_file():
        raise UserError(f"{path} does not exist; the folder should hold CSV files with columns {','.join(columns)}")
    total, done, line, rest = path.stat().st_size, 0, 2, b""
    with path.open("rb") as file:
        header = file.readline()
        done += len(header)
        names = header.decode("utf-8-sig", "replace").strip().replace('"', "")
        if names != ",".join(columns):
            raise UserError(f"{path}, line 1: columns are {names[:80]!r}, expected {','.join(columns)!r}")
        while block := file.read(CHUNK_BYTES):
            progress(f"reading {path.name}", done, total)
            done += len(block)
            whole, newline, tail = (rest + block).rpartition(b"\n")
            rest = tail
            if newline:
                rows = _cut(path, line, whole + newline, columns)
                yield rows
                line += len(rows)
    if rest:
        yield _cut(path, line, rest + b"\n", columns)
    progress(f"reading {path.name}", total, total)


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


def _cut(path: Path, first_line: int, block: bytes, columns: Sequence[str]) -> CsvRows:
    if QUOTE in block:
        block = _unquoted(path, first_line, block)
    data = np.frombuffer(block, dtype=np.uint8)
    line_ends = np.flatnonzero(data == NEWLINE)
    line_starts = np.concatenate([[0], line_ends[:-1] + 1])
    commas = np.flatnonzero(data == COMMA)
    before = np.searchsorted(commas, line_starts)
    counts = np.diff(np.append(before, len(commas))) + 1
    wrong = np.flatnonzero(counts != len(columns))
    if len(wrong):
        row = wrong[0]
        raise UserError(
            f"{path}, line {first_line + row}: {counts[row]} columns, expected {len(columns)} ({','.join(columns)}); "
            "the file is damaged or cut short"
        )
    inner = commas.reshape(len(line_ends), len(columns) - 1)
    has_return = data[np.maximum(line_ends - 1, 0)] == RETURN
    starts = np.column_stack([line_starts, inner + 1])
    ends = np.column_stack([inner, line_ends - has_return])
    return CsvRows(
        path,
        first_line,
        data,
        {name: starts[:, i] for i, name in enumerate(columns)},
        {name: ends[:, i] for i, name in enumerate(columns)},
    )


def _unquoted(path: Path, first_line: int, block: bytes) -> bytes:
    """The same rows without quotes, which are rare: a field that needs them is not one of ours."""
    lines = []
    for number, text in enumerate(block.decode("utf-8", "replace").splitlines(), first_line):
        try:
            (fields,) = csv.reader([text], strict=True)
        except (csv.Error, ValueError) as error:
            raise UserError(f"{path}, line {number}: {error}; the file is damaged or cut short") from error
        lines.append(",".join(field.replace(",", " ") for field in fields))
    return ("\n".join(lines) + "\n").encode()


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
