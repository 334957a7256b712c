"""Reading a language model's answer: from whatever it wrote to tokens, or the reason why not.

The last marked answer counts ("ANSWER: ...", a heading "Answer", a JSON key "answer", a LaTeX box), also where an
earlier one would have been better. Without a mark, what stands at the end is read: a fenced block, JSON, the last
paragraph, the last line. Thinking blocks are never read.
"""

import json
import re
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import takewhile

from ponder.base.errors import UserError
from ponder.domains.contract import Domain, Tokens
from ponder.domains.spelling import FENCE_LINE, ROW_LABEL

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
    letters = {*"oOxX", *"".join(domain.vocab)}
    blocks = _marked(spoken, marks[-1], letters) if marks else _unmarked(spoken, letters)
    problem, tried = "", set[str]()
    for candidate in (candidate for block in blocks for candidate in domain.spellings(block)):
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


def _marked(text: str, mark: re.Match[str], letters: AbstractSet[str]) -> Iterator[str]:
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
    yield "\n".join(takewhile(lambda line: _no_prose(line, letters), lines))
    yield re.split(r"\n[ \t]*\n", rest, maxsplit=1)[0]
    yield lines[0]
    if later := FENCE.search(rest):
        yield later.group(2)


def _unmarked(text: str, letters: AbstractSet[str]) -> Iterator[str]:
    """What stands at the end, before what stands elsewhere: the puzzle itself may have been repeated first."""
    end = text[-LONGEST:]
    lines = end.split("\n")
    yield "\n".join([*takewhile(lambda line: _no_prose(line, letters), reversed(lines))][::-1])
    if fences := FENCE.findall(end):
        yield fences[-1][1]
    yield re.split(r"\n[ \t]*\n", end)[-1]
    yield lines[-1]
    yield end


def _no_prose(line: str, letters: AbstractSet[str]) -> bool:
    """Whether a line may be cells alone: no letter but those that stand for cells, and no fence."""
    prose = (char.isalnum() and not char.isdecimal() and char not in letters for char in ROW_LABEL.sub("", line))
    return not FENCE_LINE.match(line) and not any(prose)


def _in_braces(text: str) -> str:
    depth = 0
    for place, char in enumerate(text):
        depth += (char == "{") - (char == "}")
        if depth == 0:
            return text[1:place]
    return text[1:]


def _is_json(text: str) -> bool:
    """Whether all of it is one JSON object, in which no word is a mark."""
    try:
        return isinstance(json.loads(FENCE_LINE.sub("", text)), dict)
    except (ValueError, RecursionError):
        return False
