"""Tokens mix through the rules of the puzzle: rows, boxes, neighbours."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ponder.base.errors import UserError
from ponder.base.geometry import Geometry
from ponder.config.schema import ModelConfig
from ponder.model.products import SwiGLU, SwiWeights


class Relations(nn.Module):
    """Tokens mix through the groups they belong to: what a group's tokens add up to is transformed and told to all.

    Nothing in it depends on the number of cells or symbols. Where symbols are exchangeable, a cell has one position
    for each of them: groups are then of one symbol's positions, and the symbols of a cell are one more group.
    """

    gather: Tensor
    tell: Tensor

    def __init__(self, config: ModelConfig, length: int, geometry: Geometry) -> None:
        super().__init__()
        if not geometry.relations:
            raise UserError("mixer relations needs a domain that has relations (sudoku, maze, life); set model.mixer")
        self.prefix = config.prefix
        self.symbols = len(geometry.symbols) if config.symbols == "equivariant" else 1
        self.tokens = tokens = (length - config.prefix) // self.symbols
        told = geometry.told(tokens)
        self.counts = told.counts
        self.register_buffer("gather", torch.tensor(told.gather), persistent=False)
        self.register_buffer("tell", torch.tensor(told.tell), persistent=False)
        kinds = [*self.counts, *(["symbols"] if self.symbols > 1 else []), "all"]
        self.kinds = nn.ModuleDict({kind: SwiGLU(config.width, config) for kind in kinds})

    def weights(self, batch: int | None) -> dict[str, SwiWeights]:
        rows = {kind: count * self.symbols for kind, count in self.counts.items()} | {"symbols": self.tokens, "all": 1}
        return {
            kind: mlp.weights(None if batch is None else batch * rows[kind])  # type: ignore[operator]
            for kind, mlp in self.kinds.items()
        }

    def forward(self, x: Tensor, weights: dict[str, SwiWeights]) -> Tensor:
        batch, length, width = x.shape
        body = x[:, self.prefix :].reshape(batch, self.tokens, self.symbols * width)
        groups = torch.matmul(self.gather.to(x.dtype), body).view(batch, -1, self.symbols, width)
        parts = groups.split(list(self.counts.values()), dim=1)
        answers = [self.kinds[kind](part, weights[kind]) for kind, part in zip(self.counts, parts, strict=True)]
        mixed = torch.matmul(self.tell.to(x.dtype), torch.cat(answers, dim=1).view(batch, -1, self.symbols * width))
        mixed = mixed.view(batch, self.tokens, self.symbols, width)
        if self.symbols > 1:
            cells = body.view(mixed.shape).sum(dim=2) * self.symbols**-0.5
            mixed = mixed + self.kinds["symbols"](cells, weights["symbols"])[:, :, None]
        everything: Tensor = self.kinds["all"](x.sum(dim=1, keepdim=True) * length**-0.5, weights["all"])
        return F.pad(mixed.view(batch, -1, width), (0, 0, self.prefix, 0)) + everything
