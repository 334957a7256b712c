"""How language models write grids and lines of symbols: in replies, and in the arguments of tools.

A reply is cut into candidates that a domain's own parser is then asked about, the likeliest first: tables, JSON, LaTeX,
quotes, rules and row labels are taken away, nothing is guessed or completed. Only the spelling is mended here; whether
it is a puzzle or an answer, the domain says.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ponder.base.errors import UserError

FENCE_LINE = re.compile(r"^[ \t]*(?:```|~~~)[^\n]*$", re.MULTILINE)
ROW_LABEL = re.compile(r"^[^\w\n]{0,8}(?:row|line|r)\s?\d+[^\w\n]{0,3}?[:.)\-][*_]{0,2}\s*", re.IGNORECASE)
RULED = set("-+=:─━═┼┬┴├┤┌┐└┘╋╬")
BETWEEN = " \t\r,;|&│┃║"
"""What may stand between the cells of a row."""
AROUND = "`*\"'[]{}()<>$\\"
KEYS = (
    "answer",
    "final_answer",
    "solution",
    "output",
    "grid",
    "board",
    "result",
    "sequence",
    "expression",
    "operators",
)
"""Of a JSON object that holds an answer, the likeliest first."""
LATEX = {"times": "*", "cdot": "*", "ast": "*", "div": "/", "hline": "", "quad": " ", ",": " ", "*": "*"}
"""What LaTeX and Markdown write with a backslash."""
RULE = re.compile(r"[\s\-+=|─━═│┼╋┌┐└┘├┤┬┴]+")
"""A line that only draws the boxes."""


# Replies --------------------------------------------------------------------------------------------------------------


def rows_in(block: str, cells: str = "") -> Iterator[str]:
    """The ways to read a block as a grid, its rows with `/` between them. What is among `cells` is never taken away."""
    for value in _json_values(block):
        yield from _from_json(value, "/")
    plain = _without_latex(block)
    rows = _rows(plain, cells)
    yield rows
    yield rows.removesuffix(".")
    yield _rows(plain.partition("(")[0], cells)


def line_in(block: str) -> Iterator[str]:
    """The ways to read a block as one line of symbols."""
    for value in _json_values(block):
        yield from _from_json(value, " ")
    yield from _line(_without_latex(block))


def _line(text: str) -> Iterator[str]:
    """One line of symbols, among them `*`, which may also be emphasis: as it stands before anything is taken away."""
    quotes = "`\"'[]{}()<>$. \t\n"
    text = FENCE_LINE.sub("", text).replace(",", " ").strip()
    yield text
    text = text.strip(quotes)
    yield text
    for mark in ("***", "**", "*"):
        yield text.removeprefix(mark).removesuffix(mark).strip(quotes)
    if start := re.match(r"[0-9\s+\-*/×÷·∗−–]+", text):
        yield start.group()


def _rows(text: str, cells: str = "") -> str:
    """A grid as rows with `/` between them: tables, spaces, commas, quotes, rules and row labels taken away."""
    gone = dict.fromkeys(map(ord, set(AROUND) - set(cells))) | dict.fromkeys(map(ord, set(BETWEEN) - set(cells)), " ")
    rows: list[list[str]] = []
    for line in re.split(r"[/\n]", FENCE_LINE.sub("", text)):
        row = ROW_LABEL.sub("", line)
        groups = (row if ":" in cells else row.partition(":")[0]).translate(gone).split()
        if groups and not set("".join(groups)) <= RULED - set(cells):
            rows.append(groups)
    if len(rows) == 1 and len(rows[0][0]) > 1 and len({len(group) for group in rows[0]}) == 1:
        return "/".join(rows[0])
    return "/".join("".join(groups) for groups in rows)


def _without_latex(text: str) -> str:
    if "\\" not in text:
        return text
    text = re.sub(r"\\(?:begin|end)\{\w+\*?\}(?:\{[^}]*\})?", "", text)
    for command, symbol in LATEX.items():
        text = text.replace(f"\\{command}", symbol)
    text = re.sub(r"\\(?:text|texttt|mathtt|mathrm|mathbf)\{([^}]*)\}", r"\1", text)
    return text.replace("\\\\", "\n").replace("\\n", "\n").replace("\\ ", " ")


def _json_values(block: str) -> list[Any]:
    """The JSON values in a text, the last first; Python's quotes are understood too."""
    for text in (block, block.replace("'", '"')):
        decoder, values, place = json.JSONDecoder(), [], 0
        starts = re.compile(r"[\[{]|^\s*\"", re.ASCII)
        while found := starts.search(text, place):
            try:
                value, place = decoder.raw_decode(text, found.end() - 1)
                values.append(value)
            except RecursionError:
                return []  # no answer nests that deep
            except ValueError:
                place = found.end()
        if values:
            rows = [value for value in values if isinstance(value, list)]
            return [*([rows] if 1 < len(rows) == len(values) else []), *values[::-1]]
    return []


def _from_json(value: Any, between: str) -> Iterator[str]:
    """The answers a JSON value may hold, as text."""
    if isinstance(value, str):
        yield from _line(value) if between == " " else (_rows(value),)
    elif isinstance(value, dict):
        for key in KEYS:
            if key in value:
                yield from _from_json(value[key], between)
    elif isinstance(value, list) and value:
        if all(isinstance(row, list) for row in value):
            yield between.join("".join(map(str, row)) for row in value)
        elif not any(isinstance(row, list | dict) for row in value):
            rows = ["".join(str(row).split()) for row in value]
            yield "".join(rows) if all(len(row) == 1 for row in rows) else between.join(rows)


# Arguments ------------------------------------------------------------------------------------------------------------


def cells_of(value: Any, what: str, mended: Mapping[str, str], spaces: bool = False) -> list[list[str]]:
    """The rows of a grid that a language model sent, as lists of lists, lists of strings, one list or a drawing; all
    equally long. `mended`: other spelling -> cell; `spaces`: a space inside a row may be a cell."""
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
    return [[mended.get(cell, cell) for cell in row] for row in texts]


def _lines(text: str) -> list[str]:
    """The lines of a drawing, without those that only draw boxes; or the groups of a single line."""
    lines = [line.rstrip("\r") for line in text.strip("\n").replace("/", "\n").split("\n")]
    kept = [re.sub(r"[|│]", "", line) for line in lines if line.strip() and not RULE.fullmatch(line)]
    return kept[0].split() if len(kept) == 1 else kept


def _spaced(row: str) -> bool:
    """Whether there is a space between every two cells, and none for a cell."""
    row = row.strip()
    return set(row[1::2]) == {" "} and " " not in row[::2]
