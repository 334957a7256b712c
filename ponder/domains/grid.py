"""Domains whose puzzles are symbols on a grid or in a line: all that the contract asks for but rules and generator.

Also what other boards use of it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isqrt
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel
from rich.text import Text

from ponder.base.errors import UserError
from ponder.base.geometry import Geometry, Relation
from ponder.config.schema import Vary
from ponder.domains import spelling
from ponder.domains.contract import PAD, Bools, Domain, Ints, Json, Misfit, Tokens, Tool, Wording
from ponder.domains.drawing import ACCENT, HIGHLIGHT, INK, PAPER, WRONG, svg_grid


def turned(height: int, width: int, rng: np.random.Generator) -> Ints:
    """The cells of a grid in the order of one of its images: mirrored and, where it is a square, turned."""
    cells = np.arange(height * width).reshape(height, width)
    down, across, over = rng.integers(2, size=3)
    cells = cells[:: -1 if down else 1, :: -1 if across else 1]
    return (cells.T if over and height == width else cells).ravel()


def size_of(puzzle: str | Json) -> tuple[int, int] | None:
    """Rows and columns of a grid, as text or JSON; None where its rows differ. One run of cells is a square."""
    if isinstance(puzzle, dict):
        puzzle = puzzle.get("grid")
    if isinstance(puzzle, str):
        puzzle = list(puzzle.replace("/", " ").split())
        if len(puzzle) == 1 and (side := isqrt(len(str(puzzle[0])))) ** 2 == len(str(puzzle[0])):
            return side, side
    rows = puzzle if isinstance(puzzle, list) else []
    lengths = {len(row) for row in rows if isinstance(row, str | list)}
    return (len(rows), lengths.pop()) if len(lengths) == 1 else None


BLANK = "."
BLANKS = dict.fromkeys(("", " ", "_", "-", "*", "?", "x", "X", "none", "None", "null"), BLANK)
"""How else language models write an empty cell."""


class GridDomain(Domain):
    """Puzzles on a grid: every cell holds one symbol, in the puzzle and in the answer.

    Where `.` is among the symbols, it is a cell to fill in, and all others are given: they stay as they are.
    """

    marks: ClassVar[str] = ""
    """Symbols that only answers have."""
    also: ClassVar[Mapping[str, str]] = {"_": BLANK, "None": BLANK}
    """Other ways to write a symbol of the puzzle; None is JSON's null."""
    legend: ClassVar[Mapping[str, str]] = {}
    """Symbol -> what it stands for, where that needs saying."""
    between: ClassVar[str] = "/"
    """What stands between the rows of a puzzle's text."""
    apart: ClassVar[str] = " /\t\n"
    """What may, and so is no symbol."""
    boxes: tuple[int, int] | None = None
    """Rows and columns of the boxes that bold lines set apart in a drawing."""

    def __init__(self, params: BaseModel, height: int, width: int, symbols: str) -> None:
        """The first symbol is token 1, and so on."""
        super().__init__(params)
        if len(set(symbols)) < len(symbols) or set(symbols) & set(self.apart):
            raise ValueError(f"the symbols {symbols!r} should differ, and none be one of {self.apart!r}")
        self.height, self.width, self.seq_len = height, width, height * width
        self.vocab = (" ", *symbols)
        self.answer_codes = {symbol: token for token, symbol in enumerate(symbols, 1)}
        own = {symbol: token for symbol, token in self.answer_codes.items() if symbol not in self.marks}
        self.codes = own | {other: own[symbol] for other, symbol in self.also.items() if symbol in own} | own
        self.blank = own.get(BLANK, PAD)

    @property
    def sides(self) -> str:
        return f"{self.height}x{self.width}"

    @property
    def geometry(self) -> Geometry:
        """The cells beside; each direction has weights of its own, so that a cell knows who said what."""
        steps = {"above": (-1, 0), "left": (0, -1), "right": (0, 1), "below": (1, 0)}
        return Geometry(
            tuple(Relation.neighbours(name, self.height, self.width, [step]) for name, step in steps.items())
        )

    # For checkers ---------------------------------------------------------------------------------------------------

    def given(self, inputs: Tokens) -> Bools:
        """Which cells of puzzles must stay as they are."""
        return np.asarray((inputs != PAD) & (inputs != self.blank) & (self.blank != PAD), dtype=np.bool_)

    def filled(self, inputs: Tokens, answers: Tokens) -> Bools:
        """Which answers [n, seq_len] keep what is given and hold a symbol, no blank, in every other cell."""
        held = (answers != PAD) & (answers != self.blank) & (answers < len(self.vocab))
        good: Bools = (((inputs == answers) & held) | (held & ~self.given(inputs)) | (inputs == PAD)).all(axis=1)
        return good

    # For search -----------------------------------------------------------------------------------------------------

    @property
    def vary(self) -> Vary:
        return "suppose" if self.blank != PAD and not self.marks else "noise"

    def open_cells(self, inputs: Tokens) -> tuple[Ints, Ints]:
        symbols = [token for token in self.answer_codes.values() if token != self.blank]
        return np.flatnonzero(inputs == self.blank), np.array(symbols)

    # Text and JSON <-> tokens ---------------------------------------------------------------------------------------

    @property
    def _what(self) -> str:
        return f"the {self.name}"

    def symbol(self, token: int) -> str:
        """A model may predict anything: what is no symbol reads as a question mark."""
        return self.vocab[token] if PAD < token < len(self.vocab) else "?"

    def rows(self, tokens: Tokens) -> list[str]:
        return ["".join(map(self.symbol, row)) for row in tokens.reshape(self.height, self.width).tolist()]

    def parse(self, text: str) -> Tokens:
        return self.encode(self.cut(text), self.codes)

    def cut(self, text: str) -> Sequence[str]:
        """Text as rows: lines, or groups with spaces or slashes between them, or one run of all cells."""
        groups = text.replace("/", " ").split()
        if len(groups) == self.height and all(len(group) == self.width for group in groups):
            return groups
        flat = "".join(groups)
        if len(flat) != self.seq_len:
            raise UserError(
                f"{self._what} has {len(flat)} cells, expected {self.seq_len} ({self.height} rows of {self.width}); "
                f"write them as one line or as {self.height} rows"
            )
        return [flat[at : at + self.width] for at in range(0, self.seq_len, self.width)]

    def encode(self, rows: Sequence[Sequence[str]], codes: Mapping[str, int]) -> Tokens:
        if len(rows) != self.height:
            raise UserError(
                f"{self._what} has {len(rows)} rows, expected {self.height} rows of {self.width} cells; "
                "separate rows by / or line breaks"
            )
        for r, row in enumerate(rows):
            if len(row) != self.width:
                raise UserError(f"row {r + 1} of {self._what} has {len(row)} cells, expected {self.width}")
        check_cells(rows, self._what, lambda cell: cell in codes, self._allowed(codes))
        return np.array([codes[cell] for row in rows for cell in row], dtype=np.uint8)

    def _allowed(self, codes: Mapping[str, int]) -> str:
        if self.legend:
            return ", ".join(f"{symbol} ({word})" for symbol, word in self.legend.items() if symbol in codes)
        return " ".join(symbol for symbol in codes if len(symbol) == 1)

    def place(self, cell: int) -> str:
        return f"row {cell // self.width + 1}, column {cell % self.width + 1}"

    def format(self, inputs: Tokens) -> str:
        return self.between.join(self.rows(inputs))

    def from_json(self, puzzle: Json) -> Tokens:
        if isinstance(puzzle, dict):
            if set(puzzle) != {"grid"}:
                raise UserError(f'{self._what} is {{"grid": [row, ...]}}; got keys {sorted(map(str, puzzle))}')
            puzzle = puzzle["grid"]
        if isinstance(puzzle, str):
            return self.parse(puzzle)
        if isinstance(puzzle, list):
            puzzle = [list(row) if isinstance(row, str) else row for row in puzzle]
        rows = json_rows(puzzle, f"{self._what}'s grid")
        return self.encode([[str(cell) for cell in row] for row in rows], self.codes)

    def to_json(self, inputs: Tokens) -> Json:
        return {"grid": self.rows(inputs)}

    def parse_answer(self, inputs: Tokens, text: str) -> Tokens:
        return self.encode(self.cut(text), self.codes | self.answer_codes)

    def format_answer(self, inputs: Tokens, answer: Tokens) -> str:
        return self.format(answer)

    def answer_to_json(self, inputs: Tokens, answer: Tokens) -> Json:
        return self.to_json(answer)

    # Judging --------------------------------------------------------------------------------------------------------

    def explain(self, inputs: Tokens, answer: Tokens) -> str:
        if self.check(inputs[None], answer[None])[0]:
            return ""
        given = self.given(inputs)
        for cell, (before, after) in enumerate(zip(inputs.tolist(), answer.tolist(), strict=True)):
            if given[cell] and before != after:
                return f"{self.place(cell)}: the given {self.symbol(before)} became {self.symbol(after)}"
            if before != PAD and self.symbol(after) == "?":
                return f"{self.place(cell)} holds no symbol"
            if before != PAD and after == self.blank:
                return f"{self.place(cell)} is empty"
        return self.conflicts(answer) or "the rules do not accept it"

    # Looking at it --------------------------------------------------------------------------------------------------

    def shape(self, inputs: Tokens) -> tuple[int, int]:
        """Rows and columns of one puzzle."""
        return self.height, self.width

    def render(self, inputs: Tokens, answer: Tokens | None = None) -> Text:
        height, width = self.shape(inputs)
        high, wide = self.boxes or (height, width)
        given, shown = self.given(inputs), inputs if answer is None else answer
        rule = "┼".join("─" * (2 * wide + 1) for _ in range(width // wide))
        text = Text()
        for cell in range(height * width):
            r, c = divmod(cell, width)
            if c == 0 and r:
                text.append("\n" + (f"{rule}\n" if r % high == 0 else ""))
            text.append(" │ " if c and c % wide == 0 else " ", style="dim")
            kept = "bold" if inputs[cell] == shown[cell] else "bold red"
            free = "dim" if shown[cell] == self.blank else "" if answer is None else "green"
            text.append(self.symbol(int(shown[cell])), style=kept if given[cell] else free)
        return text

    def svg(self, inputs: Tokens, answer: Tokens | None = None, changed: Bools | None = None) -> str:
        height, width = self.shape(inputs)
        given, shown = self.given(inputs), inputs if answer is None else answer

        def cell(r: int, c: int) -> tuple[str, str, str]:
            i = r * width + c
            fill = HIGHLIGHT if changed is not None and changed[i] else PAPER
            symbol = "" if shown[i] == self.blank else self.symbol(int(shown[i]))
            kept = INK if inputs[i] == shown[i] else WRONG
            return fill, symbol, kept if given[i] or answer is None else ACCENT

        size = max(10, min(32, 480 // max(height, width)))
        text = self.format(inputs) if answer is None else self.format_answer(inputs, answer)
        return svg_grid(height, width, cell, size=size, thick=self.boxes, label=f"{self.name} {text}")

    def board(self) -> Json:
        symbols = "".join(symbol for symbol in self.vocab[1:] if symbol not in self.marks)
        return {
            "rows": self.height,
            "columns": self.width,
            "symbols": symbols,
            "also": {other: symbol for other, symbol in self.also.items() if len(other) == 1},
            "between": self.between,
            "boxes": self.boxes,
        }

    # For language models --------------------------------------------------------------------------------------------

    def wording(self, inputs: Tokens) -> Wording:
        return row_wording(
            self.format(inputs),
            self.rows(inputs),
            f"the whole grid, {self.height} rows of {self.width} cells with / between the rows",
        )

    def spellings(self, text: str) -> Iterator[str]:
        yield from spelling.rows_in(text, "".join(self.vocab[1:]))

    @classmethod
    def tool(cls) -> Tool | None:
        return Tool(
            tool_name(cls.name),
            cls.rules,
            {"grid": rows_schema(["string"], "Rows as strings, top to bottom, one symbol for each cell.")},
            {"grid": {"type": "array", "items": {"type": "string"}, "description": "The answer, row by row."}},
        )

    def takes(self) -> str:
        return f"{self.height}x{self.width} grids ({self.height} rows, {self.width} columns)"

    def mended(self) -> Mapping[str, str]:
        """How else language models write a cell -> the cell."""
        blanks = BLANKS if self.blank != PAD else {}
        return {other: cell for other, cell in {**blanks, **self.also}.items() if other not in self.answer_codes}

    def read_call(self, arguments: Mapping[str, Any]) -> Json:
        rows = spelling.cells_of(arguments["grid"], f"{self._what}'s grid", self.mended())
        fit_size(rows, self.height, self.width)
        return {"grid": rows}


class SequenceDomain(GridDomain):
    """Puzzles in a line of up to `length` symbols. An answer has as many symbols as its puzzle."""

    apart = " \t\n"

    def __init__(self, params: BaseModel, length: int, symbols: str) -> None:
        super().__init__(params, 1, length, symbols)

    def rows(self, tokens: Tokens) -> list[str]:
        return ["".join(map(self.symbol, tokens[tokens != PAD].tolist()))]

    def cut(self, text: str) -> Sequence[str]:
        return ["".join(text.split())]

    def encode(self, rows: Sequence[Sequence[str]], codes: Mapping[str, int]) -> Tokens:
        (row,) = rows
        if not 1 <= len(row) <= self.seq_len:
            raise UserError(f"{self._what} has {len(row)} symbols; allowed: 1 to {self.seq_len}")
        for i, symbol in enumerate(row):
            if symbol not in codes:
                raise UserError(f"{self._what} has {symbol[:20]!r} at {self.place(i)}; allowed: {self._allowed(codes)}")
        tokens = np.zeros(self.seq_len, dtype=np.uint8)
        tokens[: len(row)] = [codes[symbol] for symbol in row]
        return tokens

    def place(self, cell: int) -> str:
        return f"position {cell + 1}"

    def from_json(self, puzzle: Json) -> Tokens:
        if isinstance(puzzle, dict):
            if set(puzzle) != {"sequence"}:
                raise UserError(f'{self._what} is {{"sequence": "..."}}; got keys {sorted(map(str, puzzle))}')
            puzzle = puzzle["sequence"]
        if isinstance(puzzle, list):
            return self.encode([[str(symbol) for symbol in puzzle]], self.codes)
        if not isinstance(puzzle, str):
            raise UserError(f"{self._what} should be a string or a list of symbols; got {str(puzzle)[:60]!r}")
        return self.parse(puzzle)

    def to_json(self, inputs: Tokens) -> Json:
        return {"sequence": self.format(inputs)}

    def parse_answer(self, inputs: Tokens, text: str) -> Tokens:
        answer, length = super().parse_answer(inputs, text), int((inputs != PAD).sum())
        if (answer != PAD).sum() != length:
            raise UserError(f"the answer has {(answer != PAD).sum()} symbols, expected {length} as in the puzzle")
        return answer

    def format_answer(self, inputs: Tokens, answer: Tokens) -> str:
        return "".join(map(self.symbol, answer[inputs != PAD].tolist()))

    def answer_to_json(self, inputs: Tokens, answer: Tokens) -> Json:
        return {"sequence": self.format_answer(inputs, answer)}

    def shape(self, inputs: Tokens) -> tuple[int, int]:
        return 1, int((inputs != PAD).sum())

    def board(self) -> Json:
        return {**super().board(), "sequence": True}

    def wording(self, inputs: Tokens) -> Wording:
        length = self.shape(inputs)[1]
        return row_wording(self.format(inputs), self.rows(inputs), f"the answer, {length} symbols in one line")

    def spellings(self, text: str) -> Iterator[str]:
        yield from spelling.line_in(text)

    @classmethod
    def tool(cls) -> Tool | None:
        line = {"type": "string", "description": "The symbols in one string."}
        return Tool(tool_name(cls.name), cls.rules, {"sequence": line}, {"sequence": line})

    def takes(self) -> str:
        return f"sequences of up to {self.seq_len} symbols"

    def read_call(self, arguments: Mapping[str, Any]) -> Json:
        puzzle = arguments["sequence"]
        symbols = [str(symbol) for symbol in puzzle] if isinstance(puzzle, list) else list("".join(str(puzzle).split()))
        if len(symbols) > self.seq_len:
            raise Misfit(f"{len(symbols)} symbols", len(symbols) - self.seq_len)
        mended = self.mended()
        return {"sequence": [mended.get(symbol, symbol) for symbol in symbols]}


# For language models --------------------------------------------------------------------------------------------------


def row_wording(text: str, rows: Sequence[Sequence[object]], answer: str) -> Wording:
    """A board twice: tokenizers would merge cells that have no space between them."""
    return Wording(f"Puzzle: {text}\nThe same, a row on each line:\n{spaced_rows(rows)}", answer)


def spaced_rows(rows: Sequence[Sequence[object]]) -> str:
    return "\n".join(" ".join(map(str, row)) for row in rows)


def tool_name(domain: str) -> str:
    return f"solve_{domain.replace('-', '_')}"


def rows_schema(cells: Sequence[str], about: str) -> Json:
    """The JSON schema of a grid, which may come as lists of cells, as strings or as a drawing."""
    lists = {"type": "array", "items": {"type": "array", "items": {"type": list(cells)}}}
    strings = {"type": "array", "items": {"type": "string"}}
    return {"description": about, "anyOf": [lists, strings, {"type": "string"}]}


def fit_size(rows: Sequence[Sequence[str]], height: int, width: int) -> None:
    far = abs(len(rows) - height) + abs(len(rows[0]) - width)
    if far:
        raise Misfit(f"{len(rows)}x{len(rows[0])} cells (rows x columns)", far)


# Reading --------------------------------------------------------------------------------------------------------------


def short(value: object) -> str:
    """What somebody gave, as Python writes it, for an error."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def check_cells(rows: Sequence[Sequence[Any]], what: str, good: Callable[[Any], bool], allowed: str) -> None:
    """Refuse the first cell of a grid that is not good."""
    for r, row in enumerate(rows, 1):
        for c, cell in enumerate(row, 1):
            if not good(cell):
                raise UserError(f"{what} has {short(cell)} in row {r}, column {c}; allowed: {allowed}")


def json_rows(value: Json, what: str) -> list[list[Json]]:
    """A JSON value that should be a rectangular list of lists."""
    if not isinstance(value, list) or not value or not all(isinstance(r, list) and r for r in value):
        raise UserError(f"{what} should be a list of rows, each a list of cells; got {str(value)[:60]!r}")
    widths = {len(r) for r in value}
    if len(widths) > 1:
        raise UserError(f"{what} has rows of different lengths {sorted(widths)}; all rows must be equally long")
    return value
