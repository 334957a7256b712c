"""Model folders with random weights: they open like trained ones, and answer nonsense."""

import json
from pathlib import Path
from typing import Any

import torch

from ponder import checkpoint
from ponder.config.resolve import Config, resolve
from ponder.model.published import weights_of
from ponder.model.reasoner import Reasoner

SMALL: dict[str, Any] = {"width": 16, "heads": 2, "expansion": 1.0, "layers": 1, "max_steps": 2}
ONE_CYCLE = {"h_cycles": 1, "l_cycles": 1, "h_horizon": 1, "l_horizon": 1}


def random_config(preset: str, data: dict[str, Any] | None = None, **model: Any) -> Config:
    return resolve(preset, "ponder", {"data": data or {}, "model": {**SMALL, **ONE_CYCLE, **model}})


def random_folder(folder: Path, config: Config, task_ids: int = 1, seed: int = 0) -> Path:
    """Every tensor is random, the halting head and the puzzle table too."""
    domain = config.data.make()
    torch.manual_seed(seed)
    model = Reasoner(config.model, len(domain.vocab), domain.seq_len, task_ids, domain.geometry)
    with torch.no_grad():
        model.table.normal_()
        if model.q_head is not None:
            model.q_head.weight.normal_()
    folder.mkdir(parents=True)
    checkpoint.write_tensors(folder, "weights", weights_of(model))
    (folder / "config.json").write_text(json.dumps(config.flat()), encoding="utf-8")
    return folder
