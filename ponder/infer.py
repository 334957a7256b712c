"""Solver: a puzzle in, a stream of ACT steps out. And opening whatever holds trained weights."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch

from ponder import checkpoint
from ponder import config as configuration
from ponder.config import Config, ModelConfig
from ponder.domains.base import Bools, Domain, Json, Tokens
from ponder.engine import SLOTS, Checker, Engine, Full, Seen
from ponder.errors import UserError, unknown
from ponder.model.reasoner import Reasoner

ZOO = Path(__file__).parent / "zoo"


@dataclass(frozen=True)
class Opened:
    """Trained weights, ready to run. An imported checkpoint has no configuration of ours, and so no domain."""

    name: str
    path: Path
    model: Reasoner
    config: Config | None
    domain: Domain | None
    update: int | None
    sha256: str


def zoo_names() -> list[str]:
    return sorted(p.parent.name for p in ZOO.glob("*/config.json"))


def open_weights(where: str | Path, weights: str = "ema", device: torch.device | None = None) -> Opened:
    """A zoo name, a run folder (its best checkpoint, else the newest), a checkpoint in one, or an imported folder."""
    path = Path(where)
    if not path.exists():
        if str(where) not in zoo_names():
            raise unknown("model", where, zoo_names()) if "/" not in str(where) else UserError(f"there is no {where}")
        path = ZOO / str(where)
    run, saved = _locate(path)
    said = json.loads((run / "config.json").read_text())
    if saved is not None:
        chosen = "ema" if weights == "ema" and saved.has("ema") else "weights"
        tensors, sha256 = saved.tensors(chosen), saved.state["files"][f"{chosen}.safetensors"]
    else:
        from safetensors.torch import load_file

        file = run / "weights.safetensors"
        tensors, sha256 = load_file(file), checkpoint.sha256(file)
    if said.get("kind") == "imported":
        config, domain = None, None
        model = Reasoner(ModelConfig.model_validate(said["model"]), said["vocab"], said["tokens"], said["task_ids"])
    else:
        config = configuration.from_flat(said)
        domain = config.data.make()
        model = Reasoner(config.model, len(domain.vocab), domain.seq_len, len(tensors["table"]))
    missing = model.load_state_dict(tensors, strict=False)
    shared = [k for k in missing.missing_keys if not k.startswith("high.") or model.high is not model.low]
    if shared or missing.unexpected_keys:
        raise UserError(f"{path} does not fit its own configuration: {(shared + missing.unexpected_keys)[0]}")
    model.eval().requires_grad_(False)
    if device is not None:
        model = model.to(device)
    return Opened(path.name, path, model, config, domain, saved.state["update"] if saved else None, sha256)


def _locate(path: Path) -> tuple[Path, checkpoint.Checkpoint | None]:
    """(folder with config.json, checkpoint): the second is None where the weights lie beside the configuration."""
    if (path / "config.json").is_file():
        if (path / "weights.safetensors").is_file():
            return path, None
        if (path / "best").is_dir():
            return path, checkpoint.read(path / "best")
        saved = checkpoint.newest(path / "checkpoints")
        if saved is None:
            raise UserError(f"{path} holds no checkpoint yet: train it first")
        return path, saved
    if (path / checkpoint.STATE).is_file():
        run = path.parent if (path.parent / "config.json").is_file() else path.parent.parent
        return run, checkpoint.read(path)
    raise UserError(f"{path} is neither a run folder, a checkpoint, an imported model nor a zoo name")


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


class Solver:
    """A trained model as a function from puzzles to answers."""

    def __init__(
        self,
        model: str | Path,
        steps: int | None = None,
        device: str = "cpu",
        fallback: Literal["exact"] | None = None,
    ) -> None:
        self.opened = open_weights(model, device=torch.device(device))
        if self.opened.domain is None:
            raise UserError(f"{model} was imported and names no domain: evaluate it with `ponder eval --domain`")
        if fallback not in (None, "exact"):
            raise UserError(f"fallback {fallback!r} is unknown: give 'exact', or leave it out")
        self.name = self.opened.name
        self.domain: Domain = self.opened.domain
        self.steps = steps or 4 * self.opened.model.config.max_steps
        self.fallback = fallback

    def read(self, puzzle: str | Json) -> Tokens:
        """The puzzle as tokens. Raises UserError where it is malformed or breaks the rules at first sight."""
        inputs = self.domain.parse(puzzle) if isinstance(puzzle, str) else self.domain.from_json(puzzle)
        wrong = self.domain.conflicts(inputs)
        if wrong:
            raise UserError(f"this puzzle has no solution: {wrong}")
        return inputs

    def stream(self, puzzle: str | Json) -> Iterator[Thought]:
        """One item per ACT step, until the checker accepts or the budget ends."""
        yield from self.think(self.read(puzzle))

    def think(self, inputs: Tokens) -> Iterator[Thought]:
        engine = self.engine(slots=1)
        engine.admit(inputs)
        before = inputs
        while not engine.idle:
            seen, _ = engine.advance()
            yield self.thought(seen, 0, before)
            before = seen.answers[0]

    def solve(self, puzzle: str | Json) -> Answer:
        """The answer that `stream` ends with."""
        return self.solve_many([puzzle])[0]

    def solve_many(self, puzzles: Sequence[str | Json]) -> list[Answer]:
        """The answers of many puzzles, which share the machine; each gets what it would get alone."""
        if not puzzles:
            return []
        inputs = np.stack([self.read(puzzle) for puzzle in puzzles])
        traces: list[list[Thought]] = [[] for _ in puzzles]

        def watch(seen: Seen) -> None:
            for row, ticket in enumerate(seen.tickets):
                trace = traces[ticket]
                trace.append(self.thought(seen, row, trace[-1].answer if trace else inputs[ticket]))

        self.engine(SLOTS).run(inputs, watch=watch)
        return [self.answer(*each) for each in zip(inputs, traces, strict=True)]

    # The parts of `solve`, for those who run the engine themselves (`ponder serve` batches the puzzles of many clients)

    def engine(self, slots: int) -> Engine:
        policy = Checker() if self.domain.checkable else Full()
        return Engine(self.opened.model, self.domain, slots, policy, self.steps)

    def thought(self, seen: Seen, row: int, before: Tokens) -> Thought:
        head = self.opened.model.config.halting != "none"
        confidence = float(torch.sigmoid(torch.tensor(seen.q_halt[row]))) if head else float("nan")
        valid = None if seen.accepted is None else bool(seen.accepted[row])
        answer = seen.answers[row]
        return Thought(int(seen.steps[row]), answer, answer != before, confidence, valid)

    def answer(self, inputs: Tokens, trace: Sequence[Thought], fallback: str | None = None) -> Answer:
        """The last thought as an answer, or the exact one where that is refused and `fallback` (or the solver's) asks
        for it; and what there is to say about it."""
        last = trace[-1]
        tokens, verified, by, note = last.answer, last.valid, "model", ""
        if self.domain.checkable:
            known = self.domain.solutions(inputs, limit=2)
            if not verified and known and (fallback or self.fallback) == "exact":
                tokens, verified, by = known[0], True, "exact"
            if not known:
                note = "this puzzle has no solution"
            elif not verified:
                note = f"the model's answer is wrong: {self.domain.explain(inputs, last.answer)}"
            if len(known) > 1:
                note = "; ".join([*([note] if note else []), "several solutions exist, this is one of them"])
        return Answer(
            model=self.name,
            domain=self.domain,
            inputs=inputs,
            tokens=tokens,
            verified=verified,
            by=cast(Literal["model", "exact"], by),
            note=note,
            steps=last.step,
            confidence=last.confidence,
            trace=tuple(trace),
        )


class Shelf:
    """The solvers at hand, opened when first asked for: the zoo's, or the models (names, run folders) one lists."""

    def __init__(self, models: Sequence[str] | None = None, device: str = "cpu") -> None:
        self.places = {Path(m).name: m for m in (zoo_names() if models is None else models)}
        self.device = device
        self.opened: dict[str, Solver] = {}
        if not self.places:
            raise UserError("there is no model: train one and name its run folder")

    @property
    def names(self) -> list[str]:
        return list(self.places)

    def __getitem__(self, name: str) -> Solver:
        if name not in self.places:
            raise unknown("model", name, self.places)
        if name not in self.opened:
            self.opened[name] = Solver(self.places[name], device=self.device)
        return self.opened[name]

    def choose(self, wanted: str, puzzle: str | Json) -> tuple[Solver, Tokens]:
        """The model of that name, or the first of that domain that reads the puzzle; and the puzzle as it reads it."""
        if wanted in self.places:
            return self[wanted], self[wanted].read(puzzle)
        solvers = [s for s in map(self.__getitem__, self.places) if s.domain.name == wanted]
        if not solvers:
            domains = {self[name].domain.name for name in self.places}
            raise unknown("model or domain", wanted, [*self.places, *sorted(domains)])
        refusals = []
        for solver in solvers:
            try:
                return solver, solver.read(puzzle)
            except UserError as error:
                refusals.append(f"{solver.name}: {error}")
        raise UserError("; ".join(refusals) if len(refusals) > 1 else refusals[0].partition(": ")[2])


def _number(value: float) -> float | None:
    """JSON has no NaN."""
    return None if math.isnan(value) else round(value, 6)


def as_data(thought: Thought, domain: Domain, inputs: Tokens) -> dict[str, Any]:
    """A thought as plain data, for JSON."""
    return {
        "step": thought.step,
        "answer": domain.answer_to_json(inputs, thought.answer),
        "changed": [int(i) for i in np.flatnonzero(thought.changed)],
        "confidence": _number(thought.confidence),
        "valid": thought.valid,
    }
