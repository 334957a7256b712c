"""Tokens mix through the rules of the puzzle: rows, boxes, neighbours."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ponder.base.errors import UserError
from ponder.base.geometry import Geometry, Lists, Told, Tree
from ponder.config.schema import ModelConfig
from ponder.model import kernels
from ponder.model.kernels import plain_only
from ponder.model.products import Swi, SwiGLU, plain_norm, rms_norm


class Relations(nn.Module):
    """Tokens mix through the groups they belong to: what a group's tokens add up to is transformed and told to all.

    The mean of all tokens is told to all as well, where a halting head listens to it: what takes the steps that a
    puzzle asks for hears its neighbours only. Nothing in it depends on the number of cells or symbols. Where symbols
    are exchangeable, a cell has one position for each of them: groups are then of one symbol's positions, and the
    symbols of a cell are one more group. Where puzzles are trees, each node hears what it takes and what takes it, all
    at once.
    """

    gather: Tensor
    tell: Tensor

    def __init__(self, config: ModelConfig, length: int, geometry: Geometry) -> None:
        super().__init__()
        if not geometry.relations:
            raise UserError(
                "mixer relations needs a domain that has relations (sudoku, maze, life, arithmetic with data.align "
                "right); set model.mixer"
            )
        self.prefix = config.prefix
        self.symbols = len(geometry.symbols) if config.symbols == "equivariant" else 1
        self.tokens = tokens = (length - config.prefix) // self.symbols
        told = geometry.told(tokens)
        self.counts = told.counts
        self.register_buffer("gather", torch.tensor(told.gather), persistent=False)
        self.register_buffer("tell", torch.tensor(told.tell), persistent=False)
        self.ends = Ends.of(self.prefix, self.symbols, told)
        self.board = kernels.Board.of(self.prefix, self.symbols, [*self.counts.values()], told.gather, told.tell)
        kinds = [*self.counts]
        kinds += ["symbols"] if self.symbols > 1 else []
        kinds += ["mean"] if config.halting != "asked" else []
        self.kinds = nn.ModuleDict({kind: SwiGLU(config.width, config) for kind in kinds})
        self.nodes = 0
        if geometry.tree is not None:
            self.nodes = geometry.tree.most
            self.kinds["tree"] = SwiGLU(config.width, config, hears=LINKS)

    def weights(self, batch: int | None) -> dict[str, Swi]:
        rows = {kind: count * self.symbols for kind, count in self.counts.items()}
        rows |= {"symbols": self.tokens, "mean": 1, "tree": self.nodes}
        return {
            kind: mlp.weights(None if batch is None else batch * rows[kind])  # type: ignore[operator]
            for kind, mlp in self.kinds.items()
        }

    def forward(self, x: Tensor, weights: dict[str, Swi], links: Tensor | None = None) -> Tensor:
        plain = plain_only(x)
        heard = self.heard(x) if plain else Heard(*_Hear.apply(x, self.ends))  # type: ignore[no-untyped-call]
        parts = heard.groups.split(list(self.counts.values()), dim=1)
        answers = torch.cat(
            [self.kinds[k](part, weights[k]) for k, part in zip(self.counts, parts, strict=True)], dim=1
        )
        cells = None if heard.cells is None else self.kinds["symbols"](heard.cells, weights["symbols"])
        everything: Tensor = torch.zeros_like(heard.mean)
        if "mean" in weights:
            everything = self.kinds["mean"](heard.mean, weights["mean"])
        ends = (answers, cells, everything)
        out: Tensor = self.told(*ends) if plain else _Tell.apply(*ends, self.ends)  # type: ignore[no-untyped-call]
        return out if links is None else out + self.along(x, links, weights["tree"])

    def joined(self, x: Tensor, weights: dict[str, Swi], links: Tensor | None, dropped: Tensor | None) -> Tensor:
        """The norm of x plus what its positions are told times `dropped`."""
        kinds = [swi for swi in weights.values() if isinstance(swi, kernels.Swi)]
        if self.nodes or self.board is None or len(kinds) < len(weights) or kernels.served(x) is None:
            return rms_norm(x, self(x, weights, links), dropped)

        def plain(x: Tensor, *both: Tensor) -> Tensor:
            pairs = zip(both[::2], both[1::2], strict=True)
            parts = {kind: self.kinds[kind].plainly(*pair) for kind, pair in zip(weights, pairs, strict=True)}  # type: ignore[operator]
            return plain_norm(x, self(x, parts), dropped)

        return kernels.relations(x, self.board, kinds, dropped, plain)

    def along(self, x: Tensor, links: Tensor, weights: Swi) -> Tensor:
        """[B, positions, width] what nodes hear from each other; nothing is told to all else."""
        batch, length, width = x.shape
        links = links + self.prefix
        rows = (links + (length + 1) * torch.arange(batch, device=x.device)[:, None, None]).flatten(1)
        more = F.pad(x, (0, 0, 0, 1)).flatten(0, 1)  # with a row of zeros for what is not there
        heard = more.index_select(0, rows.flatten()).view(batch, LINKS, self.nodes, width)
        told = self.kinds["tree"](heard.transpose(1, 2).flatten(2), weights)
        out = torch.zeros_like(more).index_add(0, rows[:, : self.nodes].flatten(), told.flatten(0, 1))
        return out.view(batch, length + 1, width)[:, :-1]

    # The two ends in operations that compilers, exporters and other devices know

    def heard(self, x: Tensor) -> "Heard":
        batch, _, width = x.shape
        body = x[:, self.prefix :].reshape(batch, self.tokens, self.symbols * width)
        groups = torch.matmul(self.gather.to(x.dtype), body).view(batch, -1, self.symbols, width)
        cells = None
        if self.symbols > 1:
            cells = body.view(batch, self.tokens, self.symbols, width).sum(dim=2) * self.symbols**-0.5
        return Heard(groups, cells, x.mean(dim=1, keepdim=True))

    def told(self, answers: Tensor, cells: Tensor | None, everything: Tensor) -> Tensor:
        batch, _, symbols, width = answers.shape
        mixed = torch.matmul(self.tell.to(answers.dtype), answers.view(batch, -1, symbols * width))
        mixed = mixed.view(batch, self.tokens, symbols, width)
        if cells is not None:
            mixed = mixed + cells[:, :, None]
        return F.pad(mixed.view(batch, -1, width), (0, 0, self.prefix, 0)) + everything


LINKS = 5
"""What a node of a tree hears: itself, the two that it takes, and what takes it, as the first or as the second."""


class Links(nn.Module):
    """`Tree.links` of a batch, in operations that compilers, exporters and other devices know."""

    role: Tensor

    def __init__(self, vocab: int, tree: Tree) -> None:
        super().__init__()
        self.end, self.most = tree.end, tree.most
        role = torch.zeros(vocab, dtype=torch.int64)  # what a token adds to what is there to be taken
        role[list(tree.leaves)], role[list(tree.nodes)] = 1, -1
        self.register_buffer("role", role, persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """[B, tokens] -> [B, 5, most]"""
        none = inputs.shape[1]
        place = torch.arange(none, device=inputs.device)
        added = self.role[inputs] * ((inputs == self.end).cumsum(dim=1) == 0)
        there = added.cumsum(dim=1)
        itself = torch.where(added < 0, place, none).sort(dim=1).values[:, : self.most]
        real = itself < none
        second = torch.where(real & (itself > 0), itself - 1, none)
        # What it takes first is the last thing before it that left as much to be taken as it does itself.
        left = there.gather(1, itself.clamp(max=none - 1))
        ends = (there[:, None] == left[..., None]) & (added != 0)[:, None] & (place < itself[..., None])
        first = torch.where(ends & real[..., None], place, -1).amax(dim=2)
        first = torch.where(first < 0, none, first)
        above = [
            torch.where(taken[:, None] == itself[..., None], itself[:, None], none).amin(dim=2)
            for taken in (first, second)
        ]
        return torch.stack([itself, first, second, *above], dim=1)


@dataclass(frozen=True)
class Heard:
    groups: Tensor
    """[B, groups, symbols, width] what each group's tokens add up to."""
    cells: Tensor | None
    """[B, cells, width] the same of a cell's symbols, where it has several."""
    mean: Tensor
    """[B, 1, width] and everything on average, however large the board."""


# The same two ends on a CPU -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sums:
    """y = M x along the tokens [B, tokens, ...]."""

    matrix: Tensor | None
    lists: Tensor | None
    """[terms, rows] the tokens that each row adds up, in the place of M where it is mostly zeros."""
    scale: float
    same: bool
    """Whether M is the identity."""

    @staticmethod
    def by(matrix: npt.NDArray[np.float32]) -> "Sums":
        same = len(matrix) == matrix.shape[1] and bool((matrix == np.eye(len(matrix))).all())
        if lists := Lists.of(matrix):
            return Sums(None, torch.tensor(lists.columns), lists.scale, same)
        return Sums(torch.tensor(matrix), None, 1.0, same)

    def __call__(self, x: Tensor) -> Tensor:
        flat = x.flatten(2)
        if self.same:
            out = flat.contiguous()
        elif self.matrix is not None:
            out = torch.matmul(self.matrix.to(x.dtype), flat)
        else:
            assert self.lists is not None
            more = F.pad(flat, (0, 0, 0, 1))
            out = more.index_select(1, self.lists[0])
            for each in self.lists[1:]:
                out = out.add_(more.index_select(1, each))
            out = out.mul_(self.scale)
        return out.view(len(x), -1, *x.shape[2:])


@dataclass(frozen=True)
class Ends:
    """How positions become groups and groups positions. The backward pass of either is the other's kind of sum."""

    prefix: int
    symbols: int
    gather: Sums
    tell: Sums
    gather_back: Sums
    tell_back: Sums

    @staticmethod
    def of(prefix: int, symbols: int, told: Told) -> "Ends":
        both = (told.gather, told.tell)
        return Ends(prefix, symbols, *(Sums.by(m) for m in both), *(Sums.by(m.T) for m in both))

    def split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The prefix, and the rest as [B, cells, symbols, width]."""
        return x[:, : self.prefix], x[:, self.prefix :].unflatten(1, (-1, self.symbols))

    def add_up(self, x: Tensor) -> tuple[Tensor | None, Tensor]:
        """What the symbols of each cell come to, [B, cells, width], and all positions, [B, 1, width]."""
        first, body = self.split(x)
        cells = body.sum(dim=2) if self.symbols > 1 else None
        everything = body.sum(dim=(1, 2)) if cells is None else cells.sum(dim=1)
        return cells, (everything + first.sum(dim=1))[:, None]

    def join(self, everything: Tensor, cells: Tensor, body: Tensor) -> Tensor:
        """The first at every position of the prefix, the second added to all symbols of a cell (or of all cells)."""
        batch, tokens, symbols, width = body.shape
        if torch.is_grad_enabled():  # a backward pass that is differentiated in its turn
            whole = (body + cells[:, :, None]).flatten(1, 2)
            return torch.cat((everything.expand(-1, self.prefix, -1), whole), dim=1)
        out = body.new_empty(batch, self.prefix + tokens * symbols, width)
        out[:, : self.prefix] = everything
        torch.add(body, cells[:, :, None], out=out[:, self.prefix :].view(body.shape))
        return out


class _Hear(torch.autograd.Function):
    """Relations.heard in one pass over the positions for each sum, and one in the backward pass for all of them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ends: Ends) -> tuple[Tensor, Tensor | None, Tensor]:
        ctx.ends, ctx.by_cell, ctx.by_all = ends, ends.symbols**-0.5, 1 / x.shape[1]
        cells, everything = ends.add_up(x)
        groups = ends.gather(ends.split(x)[1])
        return groups, None if cells is None else cells.mul_(ctx.by_cell), everything.mul_(ctx.by_all)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        groups, cells, everything = grads
        everything = everything * ctx.by_all
        each = everything if cells is None else everything + cells * ctx.by_cell
        return ctx.ends.join(everything, each, ctx.ends.gather_back(groups)), None


class _Tell(torch.autograd.Function):
    """Relations.told, likewise."""

    @staticmethod
    def forward(ctx: Any, answers: Tensor, cells: Tensor | None, everything: Tensor, ends: Ends) -> Tensor:
        ctx.ends = ends
        return ends.join(everything, everything if cells is None else cells + everything, ends.tell(answers))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, Tensor, None]:
        cells, everything = ctx.ends.add_up(grads[0])
        return ctx.ends.tell_back(ctx.ends.split(grads[0])[1]), cells, everything, None
