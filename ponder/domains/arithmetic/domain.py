"""Arithmetic: find the operators of a reverse Polish expression whose operands and value are given."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
from rich.text import Text

from ponder.base.errors import UserError
from ponder.base.geometry import NO_GEOMETRY, Geometry, Relation, Tree
from ponder.config.schema import Vary
from ponder.domains.arithmetic.generate import (
    ADD,
    EQUALS,
    MASK,
    ZERO,
    ArithmeticParams,
    aligned,
    build,
    draw,
    encode,
    evaluate,
    matches,
    search,
)
from ponder.domains.contract import (
    PAD,
    Arrays,
    Bools,
    Domain,
    Ints,
    Json,
    Misfit,
    Params,
    Progress,
    Split,
    Tokens,
    Tool,
    Wording,
    silent,
)
from ponder.domains.drawing import ACCENT, HIGHLIGHT, INK, PAPER, svg_grid
from ponder.domains.spelling import line_in

VOCAB = (" ", "?", "+", "-", "*", "/", "=", *"0123456789")
SPELLINGS = str.maketrans("×xX·∗÷:−–", "*****//--")
"""Other ways people write the operators."""
_SAMPLE = 1 << 30
"""The first chunk of draws for `sample`; `build` stays below."""


class Arithmetic(Domain):
    name = "arithmetic"
    title = "Find the operators of a reverse Polish expression from its operands and its value"
    rules = (
        "The puzzle is an expression in reverse Polish notation and its value, as in `3 4 ? 5 ? = 17`. Each digit is a "
        "number of its own, put on a stack; each ? hides one of + - * /, which takes the last two numbers off the "
        "stack and puts back the result, the earlier number being the left one (`8 2 /` is 8 / 2). A division must "
        "leave no remainder. Find operators that give the value; numbers on the way may be negative. The answer is "
        "the expression with every ? replaced, as in `3 4 * 5 +`."
    )
    example = "3 4 ? 5 ? = 17"
    paper_examples = 900_000
    smoke: ClassVar[Mapping[str, Any]] = {"train": 200, "val": 16, "eval_size": 16}
    Params: ClassVar[type[Params]] = ArithmeticParams
    splits: Mapping[str, Split] = {
        "train": Split("train", "expressions to learn from"),
        "val": Split("val", "operand multisets carved from training, for choosing checkpoints"),
        "id": Split("test", "unseen operand multisets, values of the training range"),
        "ood": Split("ood", "unseen operand multisets, values above the training range"),
    }
    vocab = VOCAB
    params: ArithmeticParams

    def __init__(self, params: ArithmeticParams) -> None:
        super().__init__(params)
        self.seq_len = params.seq_len

    @property
    def geometry(self) -> Geometry:
        """Operators and what they take; and all hear the digits of the value, which have places of their own only where
        padding goes before the puzzle."""
        if self.params.align == "left":
            return NO_GEOMETRY
        everyone, last = (tuple(range(self.seq_len)),), self.seq_len - 1
        digits = ("ones", "tens", "hundreds")[: len(str(self.params.ood_high))]
        return Geometry(
            relations=tuple(Relation(name, ((last - place,),), everyone) for place, name in enumerate(digits)),
            tree=Tree(
                leaves=tuple(range(ZERO, len(VOCAB))),
                nodes=tuple(range(MASK, EQUALS)),
                end=EQUALS,
                most=self.params.max_operands - 1,
            ),
        )

    # From rules to arrays -------------------------------------------------------------------------------------------

    def build(self, seed: int, workers: int = 1, progress: Progress = silent) -> dict[str, Arrays]:
        return build(self.params, seed, workers, progress)

    def sample(self, seed: int, count: int) -> tuple[Tokens, Tokens]:
        in_range = self.params.model_copy(update={"ood_high": self.params.high})
        keys = codes = np.empty(0, dtype=np.int64)
        for chunk in range(_SAMPLE, _SAMPLE + 200):
            if len(keys) == count:
                break
            key, code = draw(in_range, seed, chunk, size=1000 + 8 * count)
            keys, codes = np.append(keys, key)[:count], np.append(codes, code)[:count]
        else:
            raise UserError(
                f"no arithmetic puzzles found with values {self.params.low} to {self.params.high} and at most "
                f"{self.params.max_operands} operands; widen the values or raise max_operands"
            )
        if self.params.labels == "canonical":
            codes, _ = search(keys)
        arrays = encode(self.params, keys, codes)
        return arrays["inputs"], arrays["labels"]

    # Text and JSON <-> tokens ---------------------------------------------------------------------------------------

    def parse(self, text: str) -> Tokens:
        expression, _, value = (part.strip() for part in text.partition("="))
        if not value:
            raise UserError(f"{text.strip()[:60]!r} has no value; write it after '=', as in {self.example!r}")
        if not (value.isascii() and value.isdigit() and len(value) < 10):
            raise UserError(f"the value {value[:60]!r} is no such number; allowed: 0 to {self._largest}")
        return self._encode("".join(expression.split()), int(value))

    def format(self, inputs: Tokens) -> str:
        return f"{self._expression(inputs, inputs)} = {self._value(inputs)}"

    def from_json(self, puzzle: Json) -> Tokens:
        if isinstance(puzzle, str):
            return self.parse(puzzle)
        parts = puzzle if isinstance(puzzle, dict) else {}
        expression, tokens, value = parts.get("expression"), parts.get("tokens"), parts.get("value")
        if isinstance(tokens, list):
            expression = " ".join(map(str, tokens))
        if set(parts) not in ({"expression", "value"}, {"tokens", "value"}) or not isinstance(expression, str):
            raise UserError(
                "an arithmetic puzzle is {'expression': '3 4 ? 5 ?', 'value': 17} or "
                f"{{'tokens': [3, 4, '?', 5, '?'], 'value': 17}}; got {str(puzzle)[:60]}"
            )
        if not isinstance(value, int) or isinstance(value, bool):
            raise UserError(f"the value {str(value)[:60]!r} is no such number; allowed: 0 to {self._largest}")
        return self._encode("".join(expression.split()), value)

    def to_json(self, inputs: Tokens) -> Json:
        return {"expression": self._expression(inputs, inputs), "value": self._value(inputs)}

    def parse_answer(self, inputs: Tokens, text: str) -> Tokens:
        expression, equals, value = text.translate(SPELLINGS).partition("=")
        if equals and value.strip() != str(self._value(inputs)):
            raise UserError(f"the answer ends in '= {value.strip()}', the puzzle in '= {self._value(inputs)}'")
        given = self._expression(inputs, inputs).split()
        symbols = list("".join(expression.split()))
        masked = np.flatnonzero(inputs == MASK)
        if all(symbol in "+-*/" for symbol in symbols):
            operators = symbols
        elif len(symbols) != len(given):
            raise UserError(f"the answer has {len(symbols)} symbols, the expression {len(given)}: {' '.join(given)}")
        else:
            operators = [symbol for symbol, old in zip(symbols, given, strict=True) if old == "?"]
            for position, (symbol, old) in enumerate(zip(symbols, given, strict=True), 1):
                if symbol not in ("+-*/" if old == "?" else old):
                    expected = "one of + - * /" if old == "?" else old
                    raise UserError(f"the answer has {symbol!r} at position {position}, expected {expected}")
        if len(operators) != len(masked):
            raise UserError(f"the answer has {len(operators)} operators, the puzzle needs {len(masked)}")
        answer = np.zeros(self.seq_len, dtype=np.uint8)
        answer[masked] = [VOCAB.index(operator) for operator in operators]
        return answer

    def format_answer(self, inputs: Tokens, answer: Tokens) -> str:
        return self._expression(inputs, answer)

    def answer_to_json(self, inputs: Tokens, answer: Tokens) -> Json:
        operators = [_symbol(token) for token in answer[inputs == MASK]]
        return {"expression": self._expression(inputs, answer), "operators": operators}

    @property
    def _largest(self) -> int:
        return int(10 ** len(str(self.params.ood_high)) - 1)

    def _encode(self, expression: str, value: int) -> Tokens:
        depth = 0
        for position, symbol in enumerate(expression, 1):
            if symbol in "+-*/×÷":
                raise UserError(f"the expression has {symbol!r} at position {position}; write ? for every operator")
            if symbol not in "?123456789":
                raise UserError(
                    f"the expression has {symbol!r} at position {position}; allowed: 1 to 9, ? for operators"
                )
            if symbol == "?" and depth < 2:
                raise UserError(f"the ? at position {position} has only {depth} number before it; it takes two")
            depth += -1 if symbol == "?" else 1
        operands = len(expression) - expression.count("?")
        fewest, most = self.params.min_operands, self.params.max_operands
        if not fewest <= operands <= most:
            raise UserError(f"the expression has {operands} operands; allowed: {fewest} to {most}")
        if depth != 1:
            raise UserError(f"the expression leaves {depth} numbers; {operands} operands need {operands - 1} times ?")
        if not 0 <= value <= self._largest:
            raise UserError(f"the value {value} is out of range; allowed: 0 to {self._largest}")
        inputs = np.zeros(self.seq_len, dtype=np.uint8)
        tokens = [VOCAB.index(symbol) for symbol in f"{expression}={value}"]
        inputs[: len(tokens)] = tokens
        placed: Tokens = aligned(self.params, inputs[None], inputs[None])[0]
        return placed

    def _expression(self, inputs: Tokens, answer: Tokens) -> str:
        return " ".join(map(_symbol, np.where(inputs == MASK, answer, inputs)[_span(inputs)]))

    def _value(self, inputs: Tokens) -> int:
        return int(_values(inputs[None])[0])

    # Judging --------------------------------------------------------------------------------------------------------

    def check(self, inputs: Tokens, answers: Tokens) -> Bools:
        result = evaluate(inputs, answers)
        accepted: Bools = (result.fault < 0) & (result.value == _values(inputs))
        return accepted

    def explain(self, inputs: Tokens, answer: Tokens) -> str:
        result = evaluate(inputs[None], answer[None])
        fault, left, right = int(result.fault[0]), int(result.left[0]), int(result.right[0])
        position = fault + 1 - _span(inputs).start
        if fault >= 0 and not ADD <= answer[fault] < EQUALS:
            return f"position {position} holds {_symbol(answer[fault])!r}, not an operator"
        if fault >= 0 and right == 0:
            return f"divides {left} by zero at position {position}"
        if fault >= 0:
            return f"divides {left} by {right} inexactly at position {position}"
        value, wanted = int(result.value[0]), self._value(inputs)
        return "" if value == wanted else f"evaluates to {value}, not {wanted}"

    def conflicts(self, inputs: Tokens) -> str:
        """Why a puzzle cannot have an answer; empty where it has one."""
        return "" if self.solutions(inputs, limit=1) else f"no operators give {self._value(inputs)}"

    def solutions(self, inputs: Tokens, limit: int = 2) -> list[Tokens]:
        expression = inputs[_span(inputs)]
        operators = np.flatnonzero(inputs == MASK)
        operands = expression[expression >= ZERO].astype(np.int64) - ZERO
        shape = "".join("?" if token == MASK else "d" for token in expression)
        codes = np.flatnonzero(matches(shape, operands[None], _values(inputs[None])))[:limit]
        answers = np.zeros((len(codes), self.seq_len), dtype=np.uint8)
        for i, position in enumerate(reversed(operators)):
            answers[:, position] = ADD + (codes >> 2 * i & 3)
        return list(answers)

    # For search -----------------------------------------------------------------------------------------------------

    @property
    def vary(self) -> Vary:
        return "likely"

    def open_cells(self, inputs: Tokens) -> tuple[Ints, Ints]:
        return np.flatnonzero(inputs == MASK), np.arange(ADD, EQUALS)

    # Looking at it --------------------------------------------------------------------------------------------------

    def render(self, inputs: Tokens, answer: Tokens | None = None) -> Text:
        text = Text()
        filled = inputs if answer is None else answer
        for symbol, token in zip(self._expression(inputs, filled).split(), inputs[_span(inputs)], strict=True):
            text.append(symbol, style="bold cyan" if token == MASK else "").append(" ")
        return text.append(f"= {self._value(inputs)}")

    def svg(self, inputs: Tokens, answer: Tokens | None = None, changed: Bools | None = None) -> str:
        filled = inputs if answer is None else np.where(inputs == MASK, answer, inputs)
        used = np.flatnonzero(inputs)

        def cell(row: int, column: int) -> tuple[str, str, str]:
            at = used[column]
            lit = changed is not None and bool(changed[at] and inputs[at] == MASK)
            ink = ACCENT if inputs[at] == MASK else INK
            return HIGHLIGHT if lit else PAPER, _symbol(filled[at]), ink

        return svg_grid(1, len(used), cell, label=self.format(inputs))

    # For language models --------------------------------------------------------------------------------------------

    def wording(self, inputs: Tokens) -> Wording:
        return Wording(f"Puzzle: {self.format(inputs)}", "the expression with every ? replaced, without = and value")

    def spellings(self, text: str) -> Iterator[str]:
        yield from line_in(text)

    @classmethod
    def tool(cls) -> Tool:
        return Tool(
            "recover_operators",
            "Find the operators (+ - * /) that give an expression its value; divisions leave no remainder.",
            {
                "expression": {
                    "type": "string",
                    "description": "Reverse Polish notation: numbers 1 to 9, and ? for each unknown operator, after "
                    "the two things it joins. (3 ? 4) ? 5 is written '3 4 ? 5 ?'.",
                },
                "value": {"type": ["integer", "null"], "description": "What the expression should evaluate to."},
            },
            {
                "expression": {
                    "type": "string",
                    "description": "The expression in reverse Polish notation with its operators.",
                },
                "operators": {
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "The operators alone, from left to right.",
                },
            },
            optional=("value",),
        )

    def takes(self) -> str:
        return f"expressions of {self.params.min_operands} to {self.params.max_operands} numbers, each 1 to 9"

    def read_call(self, arguments: Mapping[str, Any]) -> Json:
        expression, value = arguments["expression"], arguments["value"]
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
                f"{text.strip()[:60]!r} has operators between numbers; write reverse Polish notation, where each ? "
                "comes after the two things it joins: (3 ? 4) ? 5 is '3 4 ? 5 ?', and 3 ? (4 ? 5) is '3 4 5 ? ?'"
            )
        operands = sum(symbol.isdigit() for symbol in text)
        if far := max(self.params.min_operands - operands, operands - self.params.max_operands, 0):
            raise Misfit(f"{operands} numbers", far)
        return {"expression": text, "value": value}


def _symbol(token: int) -> str:
    """Anything a model may predict: what is no symbol, padding included, reads as not answered."""
    return VOCAB[token] if PAD < token < len(VOCAB) else "?"


def _span(inputs: Tokens) -> slice:
    """Where the expression stands: up to the equals sign, padding before it left out."""
    return slice(int(np.argmax(inputs != PAD)), int(np.argmax(inputs == EQUALS)))


def _values(inputs: Tokens) -> Ints:
    """The number after the equals sign."""
    value = np.zeros(len(inputs), dtype=np.int64)
    in_value = (np.cumsum(inputs == EQUALS, axis=1) > 0) & (inputs >= ZERO)
    for digit, here in zip(inputs.T.astype(np.int64) - ZERO, in_value.T, strict=True):
        value = np.where(here, 10 * value + digit, value)
    return value
