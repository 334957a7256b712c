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
        inputs = self.tokens(puzzle)
        yield from self.think(inputs)

    @torch.no_grad()
    def think(self, inputs: Tokens, until_valid: bool = True) -> Iterator[Thought]:
        model, device = self.opened.model, self.opened.model.embed.device
        x = torch.from_numpy(inputs[None].astype(np.int64)).to(device)
        carry = model.start(torch.zeros(1, dtype=torch.int64, device=device))
        before = inputs
        for step in range(1, (self.steps if model.config.states else 1) + 1):
            out = model(carry, x, model.table[:1])
            carry = out.carry
            answer = out.logits[0].argmax(dim=-1).to(torch.uint8).cpu().numpy()
            confidence = float(torch.sigmoid(out.q_halt[0])) if out.q_halt is not None else float("nan")
            valid = bool(self.domain.check(inputs[None], answer[None])[0]) if self.domain.checkable else None
            yield Thought(step, answer, answer != before, confidence, valid)
            before = answer
            if until_valid and valid:
                return


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
