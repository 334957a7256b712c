"""Whether a domain keeps its contract, tried on puzzles of its own: for those who write one."""

import json
from collections.abc import Callable, Iterator
from xml.etree import ElementTree

import numpy as np

from ponder.base.errors import UserError
from ponder.domains.contract import PAD, Domain, Tokens, rng_for

WILD = 31
"""What random numbers are for: answers that a model may give before it has learnt anything."""


def problems(domain: Domain, count: int = 20, seed: int = 0) -> list[str]:
    """What is wrong with a domain, a line each; empty where nothing was found."""
    found: list[str] = []
    for trial in (_arrays, _texts, _verdicts, _pictures, _words):
        try:
            found += trial(domain, count, seed)
        except Exception as error:  # whatever it is, it is the domain's
            found.append(f"{trial.__name__.strip('_')}: {type(error).__name__}: {error}")
    return list(dict.fromkeys(found))


def _arrays(domain: Domain, count: int, seed: int) -> Iterator[str]:
    inputs, labels = domain.sample(seed, count)
    for name, array in (("inputs", inputs), ("labels", labels)):
        if array.shape != (count, domain.seq_len):
            yield f"{name} have the shape {array.shape}, expected {(count, domain.seq_len)}"
        if array.max() >= len(domain.vocab):
            yield f"{name} hold token {array.max()}, the vocabulary ends at {len(domain.vocab) - 1}"
    if np.array_equal(inputs, labels):
        yield "the puzzles are their own answers"
    if not np.array_equal(inputs, domain.sample(seed, count)[0]):
        yield "the same seed gives other puzzles: draw from the given generator alone"
    if np.array_equal(inputs, domain.sample(seed + 1, count)[0]):
        yield "another seed gives the same puzzles"


def _texts(domain: Domain, count: int, seed: int) -> Iterator[str]:
    for inputs, label in zip(*domain.sample(seed, count), strict=True):
        for name, back in (
            ("parse(format(puzzle))", domain.parse(domain.format(inputs))),
            ("from_json(to_json(puzzle))", domain.from_json(json.loads(json.dumps(domain.to_json(inputs))))),
        ):
            if not np.array_equal(back, inputs):
                yield f"{name} is another puzzle than {domain.format(inputs)!r}"
        text = domain.format_answer(inputs, label)
        if not _same(domain.parse_answer(inputs, text), label):
            yield f"parse_answer(format_answer(label)) is another answer than {text!r}"
        json.dumps(domain.answer_to_json(inputs, label))


def _verdicts(domain: Domain, count: int, seed: int) -> Iterator[str]:
    inputs, labels = domain.sample(seed, count)
    for puzzle, wild in zip(inputs, _wild(domain, count, seed), strict=True):
        domain.format_answer(puzzle, wild), domain.answer_to_json(puzzle, wild)
    if not domain.checkable:
        return
    for puzzle, label, right in zip(inputs, labels, domain.check(inputs, labels), strict=True):
        if not right or domain.explain(puzzle, label):
            yield f"check refuses the label of {domain.format(puzzle)!r}: {domain.explain(puzzle, label)}"
        if domain.conflicts(puzzle):
            yield f"conflicts finds fault with {domain.format(puzzle)!r}: {domain.conflicts(puzzle)}"
        if domain.exact and not domain.check(puzzle[None], domain.solutions(puzzle, 1)[0][None])[0]:
            yield f"check refuses the first of the solutions of {domain.format(puzzle)!r}"
    wild = _wild(domain, count, seed)
    if domain.check(inputs, wild).all():
        yield "check accepts random symbols for answers"
    for puzzle, answer, right in zip(inputs, wild, domain.check(inputs, wild), strict=True):
        if right == bool(domain.explain(puzzle, answer)):
            yield f"explain and check disagree on {domain.format(puzzle)!r}"


def _pictures(domain: Domain, count: int, seed: int) -> Iterator[str]:
    for inputs, answer in zip(domain.sample(seed, count)[0], _wild(domain, count, seed), strict=True):
        domain.render(inputs), domain.render(inputs, answer)
        for drawing in (domain.svg(inputs), domain.svg(inputs, answer, answer != inputs)):
            if not ElementTree.fromstring(drawing).tag.endswith("svg"):
                yield "svg draws something else than an <svg>"


def _words(domain: Domain, count: int, seed: int) -> Iterator[str]:
    for inputs, label in zip(*domain.sample(seed, count), strict=True):
        own, (puzzle, answer) = domain.own(inputs, label)
        own.wording(puzzle)
        text = own.format_answer(puzzle, answer)
        if not any(_reads(own.parse_answer, puzzle, answer, spelled) for spelled in own.spellings(text)):
            yield f"none of the spellings of {text!r} is read as that answer"
        if domain.tool() is not None and not np.array_equal(
            domain.from_json(domain.read_call(domain.to_json(inputs))), inputs
        ):
            yield f"a tool's call with {domain.to_json(inputs)} is another puzzle"


def _reads(read: Callable[[Tokens, str], Tokens], puzzle: Tokens, answer: Tokens, text: str) -> bool:
    try:
        return _same(read(puzzle, text), answer)
    except UserError:
        return False


def _same(answer: Tokens, label: Tokens) -> bool:
    """Whether an answer is the label wherever that says something."""
    return bool(((answer == label) | (label == PAD)).all())


def _wild(domain: Domain, count: int, seed: int) -> Tokens:
    drawn = rng_for(seed, WILD).integers(0, len(domain.vocab), (count, domain.seq_len))
    return drawn.astype(np.uint8)
