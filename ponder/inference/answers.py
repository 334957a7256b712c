"""What a puzzle gets: the answer, what the checker says of it, who gave it, and how it came about."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ponder.domains.contract import Bools, Domain, Json, Tokens


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
    """How the model came to its answer, step by step."""

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
        thought = f"{_times(self.steps, 'step')}{said_confidence(self.confidence, ', ')}"
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
        said: dict[str, Any] = {
            "model": self.model,
            "domain": self.domain.name,
            "puzzle": self.domain.format(self.inputs),
            "answer": self.json,
            "text": self.text,
            "verified": self.verified,
            "by": self.by,
            "note": self.note,
            "steps": self.steps,
            "confidence": _number(self.confidence),
        }
        if trace:
            said["trace"] = [as_data(thought, self.domain, self.inputs) for thought in self.trace]
        return said

    def __str__(self) -> str:
        return f"{self.domain.render(self.inputs, self.tokens).plain}\n{self.mark} {self.verdict}"

    def _repr_html_(self) -> str:
        """The steps as pictures, for a notebook."""
        from ponder.inference.pictures import html

        return html(self)


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


def _times(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def said_confidence(confidence: float, before: str = "") -> str:
    """`83% confident`, and nothing for a model without a halting head."""
    return "" if math.isnan(confidence) else f"{before}{confidence:.0%} confident"
