"""Sudoku: every row, column and box holds each digit once. Published CSVs, or generated 4x4, 6x6 and 9x9 boards."""

from collections.abc import Mapping
from math import ceil
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from ponder.base.errors import UserError
from ponder.base.geometry import Geometry, Relation
from ponder.domains.contract import (
    Arrays,
    Bools,
    Guided,
    Json,
    Params,
    Progress,
    Split,
    Symmetry,
    Tokens,
    Tool,
    Wording,
    rng_for,
    run_chunks,
    silent,
)
from ponder.domains.grid import GridDomain, row_wording, rows_schema
from ponder.domains.hub import COLUMNS, first_of_each, puzzle_keys, read_solved, train_and_test
from ponder.domains.sudoku.generate import (
    BOXES,
    EMPTY,
    FIRST,
    generate_chunk,
    guided,
    put_back,
    rate,
    shape_of,
    solve,
    unit_name,
)

REPO, REVISION = "sapientinc/sudoku-extreme", "58942f96baeb572ca3127e2a9e9c70f330783d6b"
CHUNK = {4: 500, 6: 200, 9: 50}
"""Puzzles of one piece of work, about a quarter of a second."""
SPLITS, SAMPLE, CARVE, EASE = range(4)
"""What random numbers are for."""


class SudokuParams(Params):
    size: Literal[4, 6, 9] = Field(default=9, description="side of the board; boxes are 2x2, 2x3 and 3x3")
    source: Literal["generate", "hub", "csv"] = Field(
        default="hub",
        description=f"generate puzzles, read {REPO} from the Hub, or read train.csv and test.csv in a folder",
    )
    folder: str | None = Field(default=None, description=f"folder of train.csv and test.csv ({','.join(COLUMNS)})")
    train: int = Field(default=100_000, ge=1, description="generated training puzzles")
    val: int = Field(default=2_000, ge=1, description="puzzles of the val split, carved from training")
    test: int = Field(default=10_000, ge=1, description="generated test puzzles")
    subsample: int | None = Field(
        default=None, ge=1, description="use only so many puzzles of train.csv, drawn by the seed"
    )
    min_rating: int = Field(default=0, ge=0, description="leave out puzzles rated lower (generated: guesses needed)")
    minimal: bool = Field(
        default=True, description="generated puzzles have no clue to spare; off: up to half are put back"
    )
    eased: float = Field(
        default=0.0, ge=0, le=1, description="share of the generated training puzzles that get any number of clues back"
    )

    @model_validator(mode="after")
    def _possible(self) -> "SudokuParams":
        if self.source == "hub" and self.size != 9:
            raise ValueError(f"{REPO} has 9x9 puzzles only, got size {self.size}; set source to generate or csv")
        if self.source == "csv" and self.folder is None:
            raise ValueError("source csv needs folder, where train.csv and test.csv are")
        if self.source == "generate" and self.subsample is not None:
            raise ValueError("subsample is for CSV files; with source generate, set train")
        return self


class Sudoku(GridDomain):
    name = "sudoku"
    title = "Fill the grid so that every row, column and box holds each digit once"
    rules = (
        "A sudoku is a square grid, some of whose cells hold a digit. Fill the empty cells so that every row, every "
        "column and every box holds each digit exactly once; the given digits stay. A 9x9 grid has the digits 1 to 9 "
        "and boxes of 3 rows by 3 columns, a 6x6 grid the digits 1 to 6 and boxes of 2 rows by 3 columns, a 4x4 grid "
        "the digits 1 to 4 and boxes of 2 by 2. A puzzle is written row by row, with a dot for an empty cell; the "
        "answer likewise, with a digit in every cell."
    )
    example = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
    published = (" ", ".", *"123456789")
    paper_examples = 3_829_994
    smoke: ClassVar[Mapping[str, Any]] = {"train": 200, "val": 16, "test": 16}
    Params: ClassVar[type[Params]] = SudokuParams
    splits: Mapping[str, Split] = {
        "train": Split("train", "puzzles to learn from"),
        "val": Split("val", "puzzles carved from training, for choosing checkpoints"),
        "test": Split("test", "held-out puzzles"),
    }
    params: SudokuParams

    between = ""
    also: ClassVar[Mapping[str, str]] = {"0": ".", **GridDomain.also}

    def __init__(self, params: SudokuParams) -> None:
        self.size: int = params.size
        super().__init__(params, self.size, self.size, "." + "123456789"[: self.size])
        self.boxes = BOXES[self.size]
        self.units = shape_of(self.size).units

    @property
    def geometry(self) -> Geometry:
        rows, columns, boxes = np.split(self.units, 3)
        relations = (Relation.units("line", [*rows, *columns]), Relation.units("box", boxes))
        return Geometry(relations, tuple(range(FIRST, FIRST + self.size)))

    def symmetry(self, inputs: Tokens, rng: np.random.Generator) -> Symmetry:
        """Digits renamed, rows moved within their band, bands moved, columns likewise, and the board transposed."""
        high, wide = BOXES[self.size]
        lines = [
            np.concatenate([band * depth + rng.permutation(depth) for band in rng.permutation(self.size // depth)])
            for depth in (high, wide)
        ]
        cells = np.arange(self.seq_len).reshape(self.size, self.size)[np.ix_(*lines)]
        if high == wide and rng.integers(2):
            cells = cells.T
        rename = np.arange(len(self.vocab), dtype=np.uint8)
        rename[FIRST:] = FIRST + rng.permutation(self.size)
        return Symmetry(cells.ravel(), rename)

    # From rules to arrays -------------------------------------------------------------------------------------------

    def build(self, seed: int, workers: int = 1, progress: Progress = silent) -> dict[str, Arrays]:
        if self.params.source == "generate":
            built = self.shared_out(**self._generate(self.generated, seed, SPLITS, workers, progress))
            self._ease(built["train"], seed)
            return built
        return self._from_csvs(seed, progress)

    def _generate(self, count: int, seed: int, use: int, workers: int, progress: Progress) -> Arrays:
        """The first `count` different puzzles, rated high enough, of an endless row of chunks."""
        p, size = self.params, self.size
        per_chunk = CHUNK[size]
        found: dict[bytes, tuple[Tokens, int]] = {}
        chunk, made, share = 0, 0, 1.0
        while len(found) < count:
            before, drawn = len(found), 0
            wanted = min((count - before) / share, max(count, 4 * made), 100_000)
            end = chunk + ceil(wanted / per_chunk)
            jobs = [(size, p.minimal, seed, use, i, per_chunk) for i in range(chunk, end)]
            for piece in run_chunks(generate_chunk, jobs, workers, progress, "making sudokus"):
                drawn += len(piece["inputs"])
                for puzzle, answer, rating in zip(piece["inputs"], piece["labels"], piece["rating"], strict=True):
                    if rating >= p.min_rating:
                        found.setdefault(puzzle.tobytes(), (answer, int(rating)))
            new = len(found) - before
            chunk, made, share = end, made + drawn, max(new, 0.5) / max(drawn, 1)
            if len(found) < count and (drawn == 0 or (drawn >= 5_000 and share < 0.001)):
                raise UserError(
                    f"{count} different {size}x{size} sudokus rated {p.min_rating} or more were asked for, {made} were "
                    f"made and only {len(found)} fit; ask for fewer (train, val, test) or lower min_rating"
                )
        kept = list(found.items())[:count]
        return {
            "inputs": np.frombuffer(bytearray().join(key for key, _ in kept), dtype=np.uint8).reshape(count, -1),
            "labels": np.stack([answer for _, (answer, _) in kept]),
            "rating": np.array([rating for _, (_, rating) in kept], dtype=np.int16),
        }

    def _ease(self, train: Arrays, seed: int) -> None:
        """Puts clues back into a share of the training puzzles; those to be judged on stay as they are."""
        inputs, rng = train["inputs"], rng_for(seed, EASE)
        for i in np.flatnonzero(rng.random(len(inputs)) < self.params.eased):
            put_back(inputs[i], train["labels"][i], rng, 1.0)
            train["rating"][i] = rate(self.size, inputs[i])

    def sample(self, seed: int, count: int) -> tuple[Tokens, Tokens]:
        arrays = self._generate(count, seed, SAMPLE, 1, silent)
        return arrays["inputs"], arrays["labels"]

    def _from_csvs(self, seed: int, progress: Progress) -> dict[str, Arrays]:
        p = self.params
        train_file, test_file = train_and_test(p.source, p.folder, REPO, REVISION)
        test, rest = self._read(test_file, progress), self._read(train_file, progress)
        # The rest: every puzzle once, and none that is tested on.
        keys = puzzle_keys(rest["inputs"])
        index = np.flatnonzero(first_of_each(keys) & ~np.isin(keys, puzzle_keys(test["inputs"])))
        if len(index) <= p.val:
            raise UserError(
                f"{train_file} has {len(index)} puzzles with rating {p.min_rating} or more, too few to carve "
                f"{p.val} for val; set a smaller val or min_rating"
            )
        index = rng_for(seed, CARVE).permutation(index)
        wanted = len(index) - p.val if p.subsample is None else p.subsample
        if wanted > len(index) - p.val:
            there = f"the {len(index) - p.val} training puzzles there are"
            raise UserError(f"subsample {wanted} is more than {there}; set a smaller one, or none for all")
        parts = {"train": index[p.val : p.val + wanted], "val": index[: p.val]}
        return {
            **{split: {name: array[np.sort(part)] for name, array in rest.items()} for split, part in parts.items()},
            "test": test,
        }

    def _read(self, path: Path, progress: Progress) -> Arrays:
        clues = {symbol: token for symbol, token in self.codes.items() if len(symbol) == 1}
        digits = {symbol: token for symbol, token in clues.items() if token >= FIRST}
        pieces: dict[str, list[Any]] = {"inputs": [], "labels": [], "rating": []}
        for rows, inputs, labels in read_solved(path, self, clues, digits, progress):
            rating = rows.numbers("rating")
            hard = rating >= self.params.min_rating
            pieces["inputs"].append(inputs[hard])
            pieces["labels"].append(labels[hard])
            pieces["rating"].append(np.minimum(rating[hard], np.iinfo(np.int16).max).astype(np.int16))
        if not any(map(len, pieces["rating"])):
            raise UserError(f"{path} has no puzzle with rating {self.params.min_rating} or more; lower min_rating")
        return {name: np.concatenate(pieces.pop(name)) for name in list(pieces)}

    # Text and JSON <-> tokens ---------------------------------------------------------------------------------------

    @property
    def _what(self) -> str:
        return f"the {self.size}x{self.size} sudoku"

    def to_json(self, inputs: Tokens) -> Json:
        digits = np.where((inputs >= FIRST) & (inputs < FIRST + self.size), inputs.astype(int) - EMPTY, 0)
        return {"grid": digits.reshape(self.size, self.size).tolist()}

    # Judging --------------------------------------------------------------------------------------------------------

    def check(self, inputs: Tokens, answers: Tokens) -> Bools:
        good: Bools = ((inputs < FIRST) | (inputs == answers)).all(axis=1)
        # A unit that holds each digit once is one whose digits, as bits, give all ones.
        bits = np.zeros(256, dtype=np.uint16)
        bits[FIRST : FIRST + self.size] = 1 << np.arange(self.size)
        held = bits[answers]
        for unit in self.units:
            good &= np.bitwise_or.reduce(held[:, unit], axis=1) == (1 << self.size) - 1
        return good

    def conflicts(self, inputs: Tokens) -> str:
        """Which unit repeats a digit, so that a puzzle cannot have an answer; empty where none does."""
        for i, unit in enumerate(self.units):
            counts = np.bincount(inputs[unit], minlength=256)[FIRST:]
            if counts.max() > 1:
                digit = int(np.argmax(counts > 1))
                times = "twice" if counts[digit] == 2 else f"{counts[digit]} times"
                return f"{unit_name(self.size, i)} holds {digit + 1} {times}"
        return ""

    def solutions(self, inputs: Tokens, limit: int = 2) -> list[Tokens]:
        return solve(self.size, inputs, limit)

    def guided(self, inputs: Tokens, logits: npt.NDArray[np.float32] | None) -> Guided:
        return Guided(*guided(self.size, inputs, logits))

    # For language models --------------------------------------------------------------------------------------------

    def wording(self, inputs: Tokens) -> Wording:
        size = self.size
        answer = f"the filled grid, {size} rows of {size} digits with / between the rows"
        return row_wording(self.format(inputs), self.rows(inputs), answer)

    @classmethod
    def tool(cls) -> Tool:
        digits = {"type": "array", "items": {"type": "integer"}}
        return Tool(
            "solve_sudoku",
            "Solve a Sudoku: fill the empty cells so that every row, column and box holds each digit once.",
            {
                "grid": rows_schema(
                    ["integer", "null"],
                    "Rows of cells: digits, with 0 or null for an empty cell; or rows as strings, with '.' for an "
                    "empty cell.",
                )
            },
            {"grid": {"type": "array", "items": digits, "description": "The filled grid, row by row."}},
        )

    def takes(self) -> str:
        high, wide = BOXES[self.size]
        boxes = f"{high}x{wide}" if high == wide else f"{high} rows by {wide} columns"
        return f"{self.size}x{self.size} grids (digits 1 to {self.size}, boxes of {boxes})"
