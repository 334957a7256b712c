"""What a language model may send for a puzzle, as the domain's own JSON.

Grids come as lists of lists, lists of strings, flat lists or drawings in one string; blanks and walls in many
spellings. Only the spelling is mended here: whether the puzzle is one, the domain says.
"""

import math
import re
from dataclasses import dataclass
from typing import Any

from ponder.base.errors import UserError
from ponder.domains.contract import Domain, Json

BLANKS = dict.fromkeys(("", " ", "_", "-", "*", "?", "x", "X", "none", "None", "null"), ".")
MAZE = {"0": ".", "1": "#", "s": "S", "g": "G", "E": "G", "e": "G", "█": "#", "■": "#", "X": "#", "x": "#", "": "."}
LIFE = dict.fromkeys((".", "_", "-", " ", "", "·", "□", "False", "false"), "0") | dict.fromkeys(
    ("O", "o", "X", "x", "#", "*", "█", "■", "True", "true"), "1"
)
RULE = re.compile(r"[\s\-+=|─━═│┼╋┌┐└┘├┤┬┴]+")
"""A line that only draws the boxes."""


@dataclass(frozen=True)
class Size:
    """What decides which model can take a puzzle: rows and columns, or the number of operands."""

    rows: int
    columns: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}"


@dataclass(frozen=True)
class Puzzle:
    json: Json
    size: Size


def read_sudoku(grid: Any) -> Puzzle:
    rows = [[BLANKS.get(cell, cell) for cell in row] for row in _rows(grid, "the sudoku's grid", spaces=False)]
    return Puzzle({"grid": rows}, Size(len(rows), len(rows[0])))


def read_maze(grid: Any) -> Puzzle:
    rows = [[MAZE.get(cell, cell) for cell in row] for row in _rows(grid, "the maze's grid", spaces=True)]
    return Puzzle({"grid": rows}, Size(len(rows), len(rows[0])))


def read_life(board: Any, steps: Any) -> Puzzle:
    rows = [[LIFE.get(cell, cell) for cell in row] for row in _rows(board, "the board", spaces=False)]
    for r, row in enumerate(rows, 1):
        for c, cell in enumerate(row, 1):
            if cell not in ("0", "1"):
                raise UserError(f"the board has {cell[:20]!r} in row {r}, column {c}; allowed: 0 (dead), 1 (alive)")
    return Puzzle(
        {"board": [[int(cell) for cell in row] for row in rows], "steps": steps}, Size(len(rows), len(rows[0]))
    )


def read_arithmetic(expression: Any, value: int | None) -> Puzzle:
    text = " ".join(map(str, expression)) if isinstance(expression, list) else str(expression)
    text, equals, after = text.partition("=")
    if equals and after.strip().isdecimal() and value in (None, int(after)):
        value = int(after)
    elif equals and after.strip():
        raise UserError(f"the expression ends in '= {after.strip()[:20]}', but value is {value}; give value alone")
    if value is None:
        raise UserError("the value that the expression should have is missing: give value, as in value=17")
    if re.match(r"[\s(]*\d[\s)]*\?[\s(]*\d", text):
        raise UserError(
            f"{text.strip()[:60]!r} has operators between numbers; write reverse Polish notation, where each ? comes "
            "after the two things it joins: (3 ? 4) ? 5 is '3 4 ? 5 ?', and 3 ? (4 ? 5) is '3 4 5 ? ?'"
        )
    operands = sum(symbol.isdigit() for symbol in text)
    return Puzzle({"expression": text, "value": value}, Size(operands, 1))


def _rows(value: Any, what: str, spaces: bool) -> list[list[str]]:
    """Rows of cells, all equally long. `spaces`: a space inside a row may be a cell."""
    if isinstance(value, dict) and len(value) == 1:
        (value,) = value.values()
    if isinstance(value, str):
        value = _lines(value)
    if not isinstance(value, list) or not value:
        raise UserError(f"{what} should be a list of rows, each a list of cells; got {str(value)[:60]!r}")
    if not any(isinstance(row, list | str) and len(row) > 1 for row in value):
        value = [value]  # all cells in one list
    value = [row.replace(",", " ").strip("[]") if isinstance(row, str) else row for row in value]
    apart = not spaces or all(_spaced(row) for row in value if isinstance(row, str))
    rows = [list("".join(row.split()) if apart else row) if isinstance(row, str) else row for row in value]
    for number, row in enumerate(rows, 1):
        if not isinstance(row, list):
            raise UserError(f"row {number} of {what} is {str(row)[:40]!r}; write a list of cells, or a string of them")
    texts = [["." if cell is None else str(cell).strip() for cell in row] for row in rows]
    side = math.isqrt(len(texts[0]))
    if len(texts) == 1 and side > 1 and side * side == len(texts[0]):
        (run,) = texts
        texts = [run[at : at + side] for at in range(0, len(run), side)]
    for number, row in enumerate(texts, 1):
        if len(row) != len(texts[0]) or not row:
            raise UserError(
                f"row {number} of {what} has {len(row)} cells and row 1 has {len(texts[0])}; "
                "all rows must be equally long"
            )
    return texts


def _lines(text: str) -> list[str]:
    """The lines of a drawing, without those that only draw boxes; or the groups of a single line."""
    lines = [line.rstrip("\r") for line in text.strip("\n").replace("/", "\n").split("\n")]
    kept = [re.sub(r"[|│]", "", line) for line in lines if line.strip() and not RULE.fullmatch(line)]
    return kept[0].split() if len(kept) == 1 else kept


def _spaced(row: str) -> bool:
    """Whether there is a space between every two cells, and none for a cell."""
    row = row.strip()
    return set(row[1::2]) == {" "} and " " not in row[::2]


# Which puzzles a model takes -----------------------------------------------------------------------------------------


def takes(domain: Domain) -> str:
    """In words for a schema."""
    p = domain.params
    if domain.name == "sudoku":
        boxes = {4: "boxes of 2x2", 6: "boxes of 2 rows by 3 columns", 9: "boxes of 3x3"}[p.size]
        return f"{p.size}x{p.size} grids (digits 1 to {p.size}, {boxes})"
    if domain.name == "maze":
        return f"{p.height}x{p.width} grids ({p.height} rows, {p.width} columns)"
    if domain.name == "life":
        side = f"{p.min_side} to {p.max_side}" if p.min_side < p.max_side else str(p.max_side)
        edges = "cells outside are dead" if p.boundary == "dead" else "opposite edges touch"
        return f"boards of {side} rows and {side} columns ({edges}), trained on up to {p.max_steps} steps"
    if domain.name == "arithmetic":
        return f"expressions of {p.min_operands} to {p.max_operands} numbers, each 1 to 9"
    return domain.title


def fits(domain: Domain, size: Size) -> bool:
    return distance(domain, size) == 0


def distance(domain: Domain, size: Size) -> int:
    """How far a size is from what the domain takes, in rows and columns."""
    p = domain.params
    if domain.name in ("sudoku", "maze"):
        rows, columns = (p.size, p.size) if domain.name == "sudoku" else (p.height, p.width)
        return _outside(size.rows, rows, rows) + _outside(size.columns, columns, columns)
    if domain.name == "life":
        return sum(_outside(side, p.min_side, p.max_side) for side in (size.rows, size.columns))
    return _outside(size.rows, p.min_operands, p.max_operands)


def _outside(value: int, low: int, high: int) -> int:
    return max(low - value, value - high, 0)
