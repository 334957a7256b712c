"""Solver: a puzzle in, a stream of ACT steps out. And opening whatever holds trained weights."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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

    tokens: Tokens
    text: str
    json: Json
    verified: bool | None
    """What the checker says of it; None where there is none."""
    steps: int
    confidence: float
    """The halting head's probability that the answer is right."""
    trace: tuple[Thought, ...]
    """How it came about, step by step."""


class Solver:
    """A trained model as a function from puzzles to answers."""

    def __init__(self, model: str | Path, steps: int | None = None, device: str = "cpu") -> None:
        self.opened = open_weights(model, device=torch.device(device))
        if self.opened.domain is None:
            raise UserError(f"{model} was imported and names no domain: evaluate it with `ponder eval --domain`")
        self.domain: Domain = self.opened.domain
        self.steps = steps or 4 * self.opened.model.config.max_steps

    def tokens(self, puzzle: str | Json) -> Tokens:
        return self.domain.parse(puzzle) if isinstance(puzzle, str) else self.domain.from_json(puzzle)

    def stream(self, puzzle: str | Json) -> Iterator[Thought]:
        """One item per ACT step, until the checker accepts or the budget ends."""
        yield from self.think(self.tokens(puzzle))

    def think(self, inputs: Tokens) -> Iterator[Thought]:
        engine = self._engine(slots=1)
        engine.admit(inputs)
        before = inputs
        while not engine.idle:
            seen, _ = engine.advance()
            yield self._thought(seen, 0, before)
            before = seen.answers[0]

    def solve(self, puzzle: str | Json) -> Answer:
        """The answer that `stream` ends with."""
        return self.solve_many([puzzle])[0]

    def solve_many(self, puzzles: Sequence[str | Json]) -> list[Answer]:
        """The answers of many puzzles, which share the machine; each gets what it would get alone."""
        if not puzzles:
            return []
        inputs = np.stack([self.tokens(puzzle) for puzzle in puzzles])
        traces: list[list[Thought]] = [[] for _ in puzzles]

        def watch(seen: Seen) -> None:
            for row, ticket in enumerate(seen.tickets):
                trace = traces[ticket]
                trace.append(self._thought(seen, row, trace[-1].answer if trace else inputs[ticket]))

        self._engine(SLOTS).run(inputs, watch=watch)
        return [self._answer(*each) for each in zip(inputs, traces, strict=True)]

    def _engine(self, slots: int) -> Engine:
        policy = Checker() if self.domain.checkable else Full()
        return Engine(self.opened.model, self.domain, slots, policy, self.steps)

    def _thought(self, seen: Seen, row: int, before: Tokens) -> Thought:
        head = self.opened.model.config.halting != "none"
        confidence = float(torch.sigmoid(torch.tensor(seen.q_halt[row]))) if head else float("nan")
        valid = None if seen.accepted is None else bool(seen.accepted[row])
        answer = seen.answers[row]
        return Thought(int(seen.steps[row]), answer, answer != before, confidence, valid)

    def _answer(self, inputs: Tokens, trace: list[Thought]) -> Answer:
        last = trace[-1]
        text, data = self.domain.format_answer(inputs, last.answer), self.domain.answer_to_json(inputs, last.answer)
        return Answer(last.answer, text, data, last.valid, last.step, last.confidence, tuple(trace))


def average_exact_by_step(exact: Bools) -> Sequence[float]:
    return [float(v) for v in exact.mean(axis=0)]


def as_data(thought: Thought, domain: Domain, inputs: Tokens) -> dict[str, Any]:
    """A thought as plain data, for JSON."""
    return {
        "step": thought.step,
        "answer": domain.answer_to_json(inputs, thought.answer),
        "changed": [int(i) for i in np.flatnonzero(thought.changed)],
        "confidence": thought.confidence,
        "valid": thought.valid,
    }
