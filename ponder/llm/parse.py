"""Reading a language model's answer: from whatever it wrote to tokens, or the reason why not.

The last marked answer counts ("ANSWER: ...", a heading "Answer", a JSON key "answer", a LaTeX box), also where an
earlier one would have been better. Without a mark, what stands at the end is read: a fenced block, JSON, the last
paragraph, the last line. Thinking blocks are never read.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

from ponder.base.errors import UserError
from ponder.domains.arithmetic.domain import Arithmetic
from ponder.domains.contract import Domain, Json, Tokens
from ponder.domains.maze.domain import Maze

LONGEST = 50_000
"""Characters looked at on either side of a mark; no answer of ours is longer, and models can run wild."""
TAGS = r"(?:think|thinking|thought|thoughts|reasoning)"
MARK = re.compile(
    r"(?<![A-Za-z])answer[*_`\"']{0,3}\s{0,3}(?:is|=|\([^)\n]{0,80}\))?\s{0,3}[*_`]{0,3}[:：](?:\*\*|__)?"
    r"|^[^\w\n]{0,8}(?-i:ANSWER)\b[*_`\"']{0,3}\s{0,3}[:：]?(?:\*\*|__)?"
    r"|^[^\w\n]{0,8}(?:final\s)?answer[^\w\n]{0,8}$"
    r"|\\boxed\s?(?=\{)",
    re.IGNORECASE | re.MULTILINE,
)
FENCE = re.compile(r"^[ \t]*(```|~~~)[^\n]*\n(.*?)(?:^[ \t]*\1|\Z)", re.DOTALL | re.MULTILINE)
FENCE_LINE = re.compile(r"^[ \t]*(?:```|~~~)[^\n]*$", re.MULTILINE)
ROW_LABEL = re.compile(r"^[^\w\n]{0,8}(?:row|line|r)\s?\d+[^\w\n]{0,3}?[:.)\-][*_]{0,2}\s*", re.IGNORECASE)
RULED = set("-+=:─━═┼┬┴├┤┌┐└┘╋╬")
BETWEEN = " \t\r,;|&│┃║"
"""What may stand between the cells of a row."""
AROUND = "`*\"'[]{}()<>$\\"
KEYS = ("answer", "final_answer", "solution", "output", "grid", "board", "result", "expression", "operators")
LATEX = {"times": "*", "cdot": "*", "ast": "*", "div": "/", "hline": "", "quad": " ", ",": " ", "*": "*"}
"""What LaTeX and Markdown write with a backslash."""


@dataclass(frozen=True)
class Reading:
    """`answer` is None where nothing could be read; `problem` then says why."""

    answer: Tokens | None
    problem: str = ""


def read_answer(domain: Domain, inputs: Tokens, text: str) -> Reading:
    """The answer to one puzzle in what a model wrote. Never fails."""
    if not text.strip():
        return Reading(None, "the answer is empty")
    spoken = without_thinking(text).strip()
    if not spoken:
        return Reading(None, "nothing follows the thinking")
    marks = [] if _is_json(spoken) else list(MARK.finditer(spoken))
    blocks = _marked(spoken, marks[-1]) if marks else _unmarked(spoken)
    problem, tried = "", set[str]()
    for candidate in (candidate for block in blocks for candidate in _spellings(domain, block)):
        if candidate not in tried:
            tried.add(candidate)
            try:
                return Reading(domain.parse_answer(inputs, candidate))
            except UserError as error:
                problem = problem or str(error)
    return Reading(None, problem if marks else "no answer is marked, and none stands at the end")


def without_thinking(text: str) -> str:
    """What follows the last closing tag (its opening one may be part of the chat template), up to an opening one."""
    spoken = re.split(rf"</{TAGS}>", text, flags=re.IGNORECASE)[-1]
    return re.split(rf"<{TAGS}>", spoken, maxsplit=1, flags=re.IGNORECASE)[0]


# Where the answer may stand -------------------------------------------------------------------------------------------


def _marked(text: str, mark: re.Match[str]) -> Iterator[str]:
    """What follows a mark, all rows of it first: the first row of a grid alone can look like a smaller grid."""
    rest = text[mark.end() : mark.end() + LONGEST]
    if mark.group().startswith("\\boxed"):
        yield _in_braces(rest)
        return
    rest = rest.strip(" \t\r\n")
    fenced = FENCE.match(rest)
    if fenced:
        yield fenced.group(2)
        return
    lines = rest.split("\n")
    yield "\n".join(takewhile(_no_prose, lines))
    yield re.split(r"\n[ \t]*\n", rest, maxsplit=1)[0]
    yield lines[0]
    if later := FENCE.search(rest):
        yield later.group(2)


def _unmarked(text: str) -> Iterator[str]:
    """What stands at the end, before what stands elsewhere: the puzzle itself may have been repeated first."""
    end = text[-LONGEST:]
    lines = end.split("\n")
    yield "\n".join([*takewhile(_no_prose, reversed(lines))][::-1])
    if fences := FENCE.findall(end):
        yield fences[-1][1]
    yield re.split(r"\n[ \t]*\n", end)[-1]
    yield lines[-1]
    yield end


def _no_prose(line: str) -> bool:
    """Whether a line may be cells alone: no letter but those that stand for cells, and no fence."""
    return not FENCE_LINE.match(line) and not re.search(r"[^\W\d_SGoOxX]", ROW_LABEL.sub("", line))


def _in_braces(text: str) -> str:
    depth = 0
    for place, char in enumerate(text):
        depth += (char == "{") - (char == "}")
        if depth == 0:
            return text[1:place]
    return text[1:]


# How it may be spelled ------------------------------------------------------------------------------------------------


def _spellings(domain: Domain, block: str) -> Iterator[str]:
    """The ways to read a block that a domain's own parser is then asked about, the likeliest first."""
    lines = isinstance(domain, Arithmetic)
    for value in _json_values(block):
        yield from _from_json(value, " " if lines else "/")
    plain = _without_latex(block)
    if lines:
        yield from _line(plain)
    else:
        rows = _rows(plain)
        yield rows
        yield rows.removesuffix(".")
        yield _rows(plain.partition("(")[0])
        if isinstance(domain, Maze):
            yield block.strip("\r\n")  # a space may be a free cell


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


def _rows(text: str) -> str:
    """A grid as rows with `/` between them: tables, spaces, commas, quotes, rules and row labels taken away."""
    rows: list[list[str]] = []
    for line in re.split(r"[/\n]", FENCE_LINE.sub("", text)):
        cells = ROW_LABEL.sub("", line).partition(":")[0].translate(dict.fromkeys(map(ord, AROUND)))
        groups = cells.translate(dict.fromkeys(map(ord, BETWEEN), " ")).split()
        if groups and not set("".join(groups)) <= RULED:
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


# JSON -----------------------------------------------------------------------------------------------------------------


def _is_json(text: str) -> bool:
    """Whether all of it is one JSON object, in which no word is a mark."""
    try:
        return isinstance(json.loads(FENCE_LINE.sub("", text)), dict)
    except (ValueError, RecursionError):
        return False


def _json_values(block: str) -> list[Json]:
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


def _from_json(value: Json, between: str) -> Iterator[str]:
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
