"""Parsed a language model's answer: any answer, written in any of the usual ways, comes back as it was."""

import json
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ponder.config.resolve import resolve
from ponder.domains.arithmetic.domain import Arithmetic
from ponder.domains.contract import Domain, Tokens
from ponder.domains.sudoku.domain import Sudoku
from ponder.llm.parse import LONGEST, read_answer, without_thinking

SMALL: dict[str, dict[str, Any]] = {
    "sudoku-mini": {},
    "sudoku-9x9-mini": {},
    "maze-mini": {"height": 5, "width": 6, "min_path": 4},
    "life-mini": {},
    "arithmetic-mini": {},
    "arc1-mini": {},
}


@cache
def puzzles(preset: str) -> tuple[Domain, list[tuple[Tokens, Tokens]]]:
    domain = resolve(preset, None, {"data": SMALL[preset]}).data.make()
    inputs, labels = domain.sample(0, 12)
    return domain, list(zip(inputs, labels, strict=True))


Rows = list[str]


def table(rows: Rows) -> str:
    head, *rest = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([head, "|" + "---|" * len(rows[0]), *rest])


def boxed_rows(rows: Rows) -> str:
    """As sudokus are drawn: rules between every two rows and columns."""
    drawn = [" | ".join(" ".join(row[i : i + 2]) for i in range(0, len(row), 2)) for row in rows]
    rule = "+".join("-" * 5 for _ in range(0, len(rows[0]), 2))
    return "\n".join(line for i, line in enumerate(drawn) for line in ([rule, line] if i and i % 2 == 0 else [line]))


def cells(rows: Rows) -> list[list[Any]]:
    return [[int(cell) if cell.isdigit() else cell for cell in row] for row in rows]


GRIDS: dict[str, Callable[[Rows], str]] = {
    "slashes": "/".join,
    "spaced slashes": lambda rows: " / ".join(rows),
    "spaced cells and slashes": lambda rows: " / ".join(" ".join(row) for row in rows),
    "lines": "\n".join,
    "spaced lines": lambda rows: "\n".join(" ".join(row) for row in rows),
    "indented lines": lambda rows: "\n".join("    " + row for row in rows),
    "lines apart": lambda rows: "\n\n".join(" ".join(row) for row in rows),
    "slashes at line ends": lambda rows: "/\n".join(rows),
    "commas": lambda rows: "\n".join(", ".join(row) for row in rows),
    "JSON": lambda rows: json.dumps(cells(rows)),
    "JSON over lines": lambda rows: json.dumps(cells(rows), indent=2),
    "JSON strings": lambda rows: json.dumps(rows) if len(rows[0]) > 1 else json.dumps(cells(rows)),
    "JSON object": lambda rows: json.dumps({"grid": cells(rows)}),
    "Python": lambda rows: str([list(row) for row in rows]),
    "a list a line": lambda rows: "\n".join(str(row) for row in cells(rows)) if len(rows) > 1 else str(cells(rows)),
    "table": table,
    "drawn": boxed_rows,
    "labelled": lambda rows: "\n".join(f"Row {i}: {' '.join(row)}" for i, row in enumerate(rows, 1)),
    "bold labels": lambda rows: "\n".join(f"**Row {i}:** {row}" for i, row in enumerate(rows, 1)),
    "LaTeX": lambda rows: (
        "\\begin{array}{"
        + "c" * len(rows[0])
        + "}\n"
        + " \\\\\n".join(" & ".join(row) for row in rows)
        + "\n\\end{array}"
    ),
}
EXPRESSIONS: dict[str, Callable[[str, str], str]] = {
    "spaced": lambda text, value: text,
    "compact": lambda text, value: text.replace(" ", ""),
    "with its value": lambda text, value: f"{text} = {value}",
    "typographic": lambda text, value: text.replace("*", "×").replace("/", "÷").replace("-", "−"),
    "LaTeX": lambda text, value: "$" + text.replace("*", "\\times").replace("/", "\\div") + "$",
    "escaped": lambda text, value: text.replace("*", "\\*"),
    "commas": lambda text, value: text.replace(" ", ", "),
    "JSON list": lambda text, value: json.dumps(text.split()),
    "JSON tokens": lambda text, value: json.dumps({"expression": text}),
    "operators": lambda text, value: json.dumps({"operators": [s for s in text.split() if not s.isdigit()]}),
}
WRAPPERS = {
    "as asked": "ANSWER: {}",
    "no space": "ANSWER:{}",
    "bold mark": "**ANSWER:** {}",
    "bold mark, colon outside": "**Answer**: {}",
    "below": "ANSWER:\n{}",
    "further below": "Final Answer:\n\n{}",
    "heading": "### Final Answer\n\n{}",
    "fenced": "ANSWER:\n```\n{}\n```",
    "fenced as text": "**Answer:**\n\n```text\n{}\n```\n",
    "said before the fence": "The final answer is: the following.\n```\n{}\n```\nAll rows and columns check out.",
    "mark in the fence": "```\nANSWER: {}\n```",
    "boxed": "$$\\boxed{{{}}}$$",
    "explained after": "ANSWER: {}\n\nThis follows from the rules, because 3 of 4 cells were given.",
    "no mark, last paragraph": "I looked at every row.\n\n{}",
    "no mark, fenced": "Here it is:\n```\n{}\n```\nAll rows and columns check out.",
    "alone": "{}",
}
ONE_LINE = {
    "bold": "**ANSWER: {}**",
    "bold answer": "ANSWER: **{}**",
    "code": "ANSWER: `{}`",
    "all code": "`ANSWER: {}`",
    "quoted": 'ANSWER: "{}"',
    "italic": "*ANSWER: {}*",
    "explained below": "ANSWER: {}\nThis follows from the rules.",
    "explained beside": "ANSWER: {} (the only one)",
}
BEFORE = [
    "",
    "<think>\nMaybe ANSWER: 1/2? No.\n</think>\n\n",
    "The tag was in the template. ANSWER: 12/34 </think>",
    "<thinking>Hmm.</thinking>Let us see.\n\n",
    "First try.\n\nANSWER: 99/99\n\nNo, that is wrong. Again.\n\n",
    "The puzzle is [[1, 2], [3, 4]], and {a} is free.\n\n",
]


@st.composite
def answers(draw: st.DrawFn, preset: str) -> tuple[Domain, Tokens, Tokens]:
    """A puzzle and any answer to it that has the right form: the right one, or with another symbol here and there."""
    domain, some = puzzles(preset)
    inputs, label = draw(st.sampled_from(some))
    answer = label.copy()
    allowed = np.unique(np.concatenate([label[label > 1] for _, label in some]))
    places = np.flatnonzero(label > 1)
    if preset == "life-mini":
        places, allowed = np.flatnonzero((label == 1) | (label == 2)), np.array([1, 2])
    for place in draw(st.lists(st.sampled_from(places.tolist()), max_size=4)):
        answer[place] = draw(st.sampled_from(allowed.tolist()))
    return domain, inputs, answer


def written(domain: Domain, inputs: Tokens, answer: Tokens, offset: int) -> Iterator[str]:
    """The answer in every style, each in every wrapper, what stands before in turn."""
    said = domain.format_answer(inputs, answer)
    if isinstance(domain, Arithmetic):
        value = domain.format(inputs).partition("= ")[2]
        texts = [style(said, value) for style in EXPRESSIONS.values()]
    else:
        rows = said.split("/")
        if isinstance(domain, Sudoku):
            rows = [said[i : i + domain.size] for i in range(0, len(said), domain.size)]
        texts = [style(rows) for style in GRIDS.values()]
    for text in texts:
        wrappers = WRAPPERS if "\n" in text or text[0] in "[{$" else WRAPPERS | ONE_LINE
        for wrapper in wrappers.values():
            offset += 1
            before = BEFORE[offset % len(BEFORE)]
            marked = "answer" in wrapper.lower() or "boxed" in wrapper
            yield (before if marked or "First try" not in before else "") + wrapper.format(text)


@pytest.mark.parametrize("preset", sorted(SMALL))
@given(choices=st.data())
@settings(max_examples=6, deadline=None)
def test_any_answer_in_any_form_comes_back(preset: str, choices: st.DataObject) -> None:
    domain, inputs, answer = choices.draw(answers(preset))
    for text in written(domain, inputs, answer, choices.draw(st.integers(0, 5))):
        reading = read_answer(domain, inputs, text)
        assert reading.answer is not None, f"{reading.problem}\n{text}"
        assert domain.format_answer(inputs, reading.answer) == domain.format_answer(inputs, answer), text
        if domain.checkable:
            assert domain.check(inputs[None], reading.answer[None]) == domain.check(inputs[None], answer[None])


@pytest.mark.parametrize("preset", sorted(SMALL))
@given(text=st.text(alphabet="ANSWERanswer:[]{}()*_`|/\\\n .,-+=#SGoO0123456789?<think></think>\"'", max_size=200))
@settings(max_examples=60, deadline=None)
def test_no_text_breaks_it(preset: str, text: str) -> None:
    domain, some = puzzles(preset)
    inputs, _ = some[0]
    reading = read_answer(domain, inputs, text)
    assert (reading.answer is None) == bool(reading.problem)
    if reading.answer is not None:
        assert reading.answer.shape == inputs.shape and reading.answer.max() < len(domain.vocab)


@pytest.mark.parametrize("preset", sorted(SMALL))
def test_the_last_marked_answer_counts(preset: str) -> None:
    domain, some = puzzles(preset)
    (inputs, right), wrong = some[0], some[0][1].copy()
    place = np.flatnonzero(right > (0 if preset == "life-mini" else 1))[0]
    wrong[place] = (1 if preset == "life-mini" else 3) if right[place] == 2 else 2
    first, last = (domain.format_answer(inputs, answer) for answer in (right, wrong))
    assert first != last
    read = read_answer(domain, inputs, f"ANSWER: {first}\nOr rather:\nANSWER: {last}").answer
    assert read is not None and domain.format_answer(inputs, read) == last
    assert read_answer(domain, inputs, f"ANSWER: {first}\n\nNo.\n\nANSWER: I do not know").answer is None
    assert read_answer(domain, inputs, f"<think>ANSWER: {first}</think>\nI do not know.").answer is None
    assert (
        read_answer(domain, inputs, f"<think>It may be that ANSWER: {first}").problem == "nothing follows the thinking"
    )


@pytest.mark.parametrize("preset", sorted(SMALL))
def test_what_holds_no_answer_is_not_read(preset: str) -> None:
    domain, some = puzzles(preset)
    for text in ("", "  \n", "I cannot do it.", "ANSWER:", "ANSWER: none", "{}", "[]", '{"answer": null}', "```\n```"):
        reading = read_answer(domain, some[0][0], text)
        assert reading.answer is None and reading.problem, text


def test_thinking_is_taken_away() -> None:
    assert without_thinking("<think>a</think>b<think>c</think>d") == "d"
    assert (
        without_thinking("a</Think>b") == "b"
        and without_thinking("b<reasoning>c") == "b"
        and without_thinking("b") == "b"
    )


def test_of_long_nonsense_a_bounded_part_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    domain, some = puzzles("maze-mini")
    sizes: list[int] = []
    spellings = domain.spellings

    def counted(text: str) -> Iterator[str]:
        sizes.append(len(text))
        return spellings(text)

    monkeypatch.setattr(domain, "spellings", counted)
    for text in ("." * 300_000, "[" * 100_000, "answer " * 50_000, "ANSWER: " + "#./\n" * 80_000, "```\n" * 50_000):
        sizes.clear()
        assert read_answer(domain, some[0][0], text).answer is None
        assert sizes and max(sizes) <= LONGEST and len(sizes) <= 5, (
            "what is tried at the end of a text, or after a mark"
        )
