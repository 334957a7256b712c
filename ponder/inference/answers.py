"""What a puzzle gets: the answer, what the checker says of it, who gave it, and how it came about."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ponder.base.console import counted
from ponder.domains.contract import Bools, Domain, Json, Tokens
from ponder.domains.drawing import MUTED, WRONG
from ponder.inference import pictures
from ponder.inference.pictures import Frame, confident


@dataclass(frozen=True)
class Thought:
    """The answer after one ACT step."""

    step: int
    answer: Tokens
    changed: Bools
    """Which positions differ from the step before."""
    confidence: float
    """The halting head's probability that the answer is right."""
    valid: bool | None
    """What the checker says; None where there is none."""


@dataclass(frozen=True)
class SecondThought:
    """An answer that is accepted, of a try after the first."""

    answer: Tokens
    confidence: float
    tries: int
    """Which one it was."""
    steps: int
    """ACT steps of all tries after the first."""


@dataclass(frozen=True)
class Answer:
    """What a puzzle gets."""

    model: str
    domain: Domain = field(repr=False)
    inputs: Tokens = field(repr=False)
    tokens: Tokens = field(repr=False)
    verified: bool | None
    """What the checker says of it; None where there is none."""
    by: Literal["model", "exact"]
    """Who answered: the model, or the classical method that was asked for where the model fails the check."""
    note: str
    """What the asker should know: why the answer is refused, that none exists, or that several do; else empty."""
    steps: int
    confidence: float
    """The halting head's probability that the model's answer is right; NaN for a model without such a head."""
    trace: tuple[Thought, ...] = field(repr=False)
    """How the model came to its answer, step by step; of a search, what it did before that began."""
    tries: int = 0
    """Which try of a search gave the answer; 0: the plain run, or none of them."""

    @property
    def text(self) -> str:
        return self.domain.format_answer(self.inputs, self.tokens)

    @property
    def json(self) -> Json:
        return self.domain.answer_to_json(self.inputs, self.tokens)

    @property
    def mark(self) -> str:
        return {None: "?", True: "✓", False: "✗"}[self.verified]

    @property
    def verdict(self) -> str:
        """One line: whether this is a solution, and whose."""
        thought = f"{counted(self.steps, 'step')}{confident(self.confidence, ', ')}"
        if self.verified is None:
            head = f"not checked: {self.domain.name} has no checker; {self.model} after {thought}"
        elif not self.verified:
            head = f"not solved by {self.model} in {thought}"
        elif self.by == "exact":
            head = f"verified; from the exact solver, {self.model} failed in {thought}"
        else:
            head = f"verified; {self.model} after {thought}"
        return f"{head}: {self.note}" if self.note else head

    def as_data(self, trace: bool = True) -> dict[str, Any]:
        """All of it as plain data, for JSON."""
        out: dict[str, Any] = {
            "model": self.model,
            "domain": self.domain.name,
            "puzzle": self.domain.format(self.inputs),
            "answer": self.json,
            "text": self.text,
            "verified": self.verified,
            "by": self.by,
            "note": self.note,
            "steps": self.steps,
            "tries": self.tries,
            "confidence": _number(self.confidence),
        }
        if trace:
            out["trace"] = [as_data(thought, self.domain, self.inputs) for thought in self.trace]
        return out

    def __str__(self) -> str:
        return f"{self.domain.render(self.inputs, self.tokens).plain}\n{self.mark} {self.verdict}"

    def _repr_html_(self) -> str:
        """The steps as pictures, for a notebook."""
        return pictures.html(self.frames(), f"{self.mark} {self.verdict}")

    def svg(self) -> str:
        """The steps as an animated SVG."""
        return pictures.svg(self.frames(), f"{self.model}: {self.verdict}")

    def gif(self) -> bytes:
        """The steps as an animated GIF."""
        return pictures.gif(self.frames())

    def frames(self) -> list[Frame]:
        """The puzzle, the steps (those that change nothing are told, not drawn), and the verdict."""
        domain, inputs = self.domain, self.inputs
        out = [Frame("puzzle", self.model, pictures.sized(domain.svg(inputs)), math.nan, MUTED, pictures.FIRST)]
        since: list[int] = []
        before = domain.format_answer(inputs, inputs)
        for number, thought in enumerate(self.trace):
            # Counted in the text: a model may change its mind about positions that are no part of the answer.
            text = domain.format_answer(inputs, thought.answer)
            count = sum(new != old for new, old in zip(text, before, strict=False))
            before = text
            if number and not count and thought is not self.trace[-1]:
                since.append(thought.step)
                continue
            title = f"step {thought.step}" if not since else f"steps {since[0]}–{thought.step}"
            since = []
            drawing = pictures.sized(domain.svg(inputs, thought.answer, thought.changed))
            caption = f"{count} changed" if count else "nothing changed"
            out.append(Frame(title, caption, drawing, thought.confidence, MUTED, pictures.EACH))
        words = {None: "not checked", False: "not a solution", True: "verified"}[self.verified]
        title = f"{self.mark} {words}{', exact solver' if self.by == 'exact' else ''}"
        colour = {None: MUTED, False: WRONG, True: pictures.GOOD}[self.verified]
        final = pictures.sized(domain.svg(inputs, self.tokens))
        return [*out, Frame(title, self.verdict, final, math.nan, colour, pictures.LAST)]


def as_data(thought: Thought, domain: Domain, inputs: Tokens) -> dict[str, Any]:
    """A thought as plain data, for JSON."""
    return {
        "step": thought.step,
        "answer": domain.answer_to_json(inputs, thought.answer),
        "changed": [int(i) for i in np.flatnonzero(thought.changed)],
        "confidence": _number(thought.confidence),
        "valid": thought.valid,
    }


def _number(value: float) -> float | None:
    """JSON has no NaN."""
    return None if math.isnan(value) else round(value, 6)
