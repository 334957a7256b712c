"""Everything that changes while training, and how a checkpoint holds it."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ponder import checkpoint
from ponder.base.errors import UserError
from ponder.base.runtime import Runtime
from ponder.config.resolve import Config
from ponder.domains.contract import Source
from ponder.inference.weights import open_weights
from ponder.model.reasoner import Reasoner
from ponder.training.optimisers import AdamAtan2, Average, PuzzleTable, Weights
from ponder.training.slots import Slots, restore_slots, saved_slots


@dataclass
class Run:
    """The model with its optimisers, averages and slots, and where the run stands."""

    config: Config
    model: Reasoner
    weights: Weights
    optimiser: AdamAtan2
    average: Average | None
    table: PuzzleTable
    slots: list[Slots]
    update: int = 0
    seconds: float = 0.0
    update_seconds: float = 0.0
    """In updates, without evaluations, checkpoints and the start: the processor's on a CPU (`Runtime.clock`)."""
    best: dict[str, Any] | None = None
    window: dict[str, float] | None = None
    """Sums since the last row of the log."""

    def averaged(self) -> tuple[Tensor, Tensor]:
        """The EMA weights and table; the online ones where there is no EMA."""
        if self.average is None:
            return self.weights.value, self.model.table
        return self.average.value, self.table.averaged(self.update)

    def begin_from(self, where: str) -> None:
        """Take the averaged weights of a trained model. Its puzzle table comes along where its rows mean the same."""
        opened = open_weights(where, "ema", self.model.table.device)
        held, here = opened.model.state_dict(), self.model.state_dict()
        for name in here.keys() - {"table"}:
            if name not in held or held[name].shape != here[name].shape:
                theirs = tuple(held[name].shape) if name in held else "missing"
                raise UserError(
                    f"train.start {where} does not fit this model: {name} is {theirs}, here {tuple(here[name].shape)}; "
                    f"give it the same model and the same puzzle's size"
                )
        self.weights.load(self.weights.value, held)
        data = None if opened.config is None else opened.config.data.stored()
        same = data == self.config.data.stored() or len(held["table"]) == len(here["table"]) == 1
        for name, buffer in self.model.kept_buffers().items():
            if name != "table" or same:
                buffer.copy_(held[name])
        if self.average is not None:
            self.average.value.copy_(self.weights.value)
        if self.table.ema is not None:
            self.table.ema.copy_(self.model.table)

    def save(self, folder: Path, runtime: Runtime, about: Mapping[str, Any], everything: bool = True) -> None:
        """Write a checkpoint. `about`: what it should say of its surroundings. `everything` adds what resuming needs to
        what evaluating needs."""
        part = checkpoint.aside(folder)
        try:
            self._save(folder, part, runtime, about, everything)
        except (OSError, UserError):
            if runtime.main:
                shutil.rmtree(part, ignore_errors=True)
            raise

    def _save(self, folder: Path, part: Path, runtime: Runtime, about: Mapping[str, Any], everything: bool) -> None:
        if runtime.main:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
        runtime.barrier()
        if everything:
            carried = [saved_slots(slots) for slots in self.slots]
            checkpoint.write_tensors(
                part, f"carry-{runtime.rank}", {k: torch.cat([c[k] for c in carried]) for k in carried[0]}
            )
        runtime.barrier()
        if runtime.main:
            buffers = {n: b for n, b in self.model.kept_buffers().items() if n != "table"}
            online = {**self.weights.named(self.weights.value), **buffers, "table": self.model.table}
            checkpoint.write_tensors(part, "weights", online)
            if self.average is not None:
                value, table = self.averaged()
                checkpoint.write_tensors(part, "ema", {**self.weights.named(value), **buffers, "table": table})
            if everything:
                named = {f"m.{k}": v for k, v in self.weights.named(self.optimiser.m).items()}
                named |= {f"v.{k}": v for k, v in self.weights.named(self.optimiser.v).items()}
                if self.table.ema is not None:
                    named |= {"table.ema": self.table.ema, "table.seen": self.table.seen}
                checkpoint.write_tensors(part, "optimiser", named)
            checkpoint.complete(folder, {**self._state(runtime), **about})
        runtime.barrier()

    def _state(self, runtime: Runtime) -> dict[str, Any]:
        return {
            "update": self.update,
            "seconds": self.seconds,
            "update_seconds": self.update_seconds,
            "best": self.best,
            "window": self.window,
            "ranks": runtime.world,
            "config": self.config.key(),
        }

    def load(self, saved: checkpoint.Checkpoint, source: Source) -> None:
        online = saved.tensors("weights")
        self.weights.load(self.weights.value, online)
        for name, buffer in self.model.kept_buffers().items():
            buffer.copy_(online[name])
        held = saved.tensors("optimiser")
        self.weights.load(self.optimiser.m, {k[2:]: v for k, v in held.items() if k.startswith("m.")})
        self.weights.load(self.optimiser.v, {k[2:]: v for k, v in held.items() if k.startswith("v.")})
        if self.average is not None:
            self.weights.load(self.average.value, saved.tensors("ema"))
        if self.table.ema is not None:
            self.table.ema.copy_(held["table.ema"])
            self.table.seen.copy_(held["table.seen"])
        self.update = self.optimiser.t = saved.state["update"]
        self.seconds, self.best, self.window = (saved.state[k] for k in ("seconds", "best", "window"))
        self.update_seconds = saved.state.get("update_seconds", self.seconds)
        files = [saved.tensors(f"carry-{rank}") for rank in range(saved.state["ranks"])]
        carried = {k: torch.cat([f[k] for f in files]) for k in files[0]}
        order = {int(slot): at for at, slot in enumerate(carried["ids"])}
        for slots in self.slots:
            at = torch.tensor([order[int(slot)] for slot in slots.ids])
            restore_slots(slots, {k: v[at] for k, v in carried.items()}, self.config, source)
