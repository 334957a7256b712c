"""A model whose trajectories are known in advance, for the tests of engine and search."""

import numpy as np
import torch
from torch import Tensor, nn

from ponder.base import rng
from ponder.config.schema import ModelConfig
from ponder.domains.contract import Ints, Tokens
from ponder.model.reasoner import Carry, Step
from ponder.model.recurrence import States

NEVER = 10**6


class Stub(nn.Module):
    """Has the interface of a Reasoner. Puzzle i is right from step `first[i]` on, and before that wrong in one cell.

    With noise, a trajectory is right from a step on that its key alone decides (`wake`). The state of a slot counts
    what it has seen of its puzzle, so that a state that ends up with another puzzle is noticed at once.
    """

    def __init__(self, inputs: Tokens, labels: Tokens, first: Ints, vocab: int) -> None:
        super().__init__()
        self.config = ModelConfig(width=8, heads=1, layers=1, h_cycles=2, max_steps=8)
        self.tokens, self.vocab = inputs.shape[1], vocab
        self.register_buffer("embed", torch.zeros(vocab, 8))
        self.register_buffer("table", torch.zeros(1, 8))
        self.labels, self.first = torch.from_numpy(labels.astype(np.int64)), torch.from_numpy(first)
        self.known = {row.tobytes(): i for i, row in enumerate(inputs)}
        self.rows_run = 0
        self.largest = 0

    def start(self, key: Tensor, dtype: torch.dtype = torch.float32) -> Carry:
        return Carry(States(torch.zeros(len(key), 1, 1), torch.zeros(len(key), 1, 1)), torch.zeros_like(key), key)

    def forward(self, carry: Carry, inputs: Tensor, rows: Tensor, noise: float | None = None) -> Step:
        which = torch.tensor([self.known[row.tobytes()] for row in inputs.to(torch.uint8).numpy()])
        assert carry.states.h is not None
        assert torch.equal(carry.states.h[:, 0, 0], ((which + 1) * carry.steps).float()), "a state changed its puzzle"
        self.rows_run += len(inputs)
        self.largest = max(self.largest, len(inputs))
        step = carry.steps + 1
        right = step >= (self.wake(carry.key) if noise else self.first[which])
        answer = self.labels[which].clone()
        # The wrong cell moves at every first, second or third step: some wrong answers are stable for a while.
        cell = (which + step // (1 + which % 3)) % self.tokens
        spot = torch.arange(len(which))
        answer[spot, cell] = torch.where(right, answer[spot, cell], 1)
        # Confident where right, except that every fifth puzzle is sure of itself from the start.
        q_halt = torch.where(right | (which % 5 == 4), 2.0, -2.0) + 0.01 * step - 0.001 * which
        h = carry.states.h + (which + 1).float()[:, None, None]
        logits = nn.functional.one_hot(answer, self.vocab).float()
        return Step(Carry(States(h, carry.states.l), step, carry.key), logits, q_halt, torch.zeros_like(q_halt), None)

    @staticmethod
    def wake(key: Tensor) -> Tensor:
        """1, 2, ... for half of the keys, never for the others."""
        u = rng.uniform(key)
        return torch.where(u < 0.5, 1 + (u * 20).to(torch.int64), NEVER)


def solved(puzzle: Tokens, answer: Tokens, side: int) -> bool:
    """The rules of Sudoku (4x4 with 2x2 boxes), written as plainly as can be. Token 1 is empty, 2 and up are digits."""
    grid = answer.reshape(side, side)
    box = int(side**0.5)
    digits = set(range(2, side + 2))
    units = [grid[i] for i in range(side)] + [grid[:, i] for i in range(side)]
    units += [grid[r : r + box, c : c + box].ravel() for r in range(0, side, box) for c in range(0, side, box)]
    kept = all(p == 1 or p == a for p, a in zip(puzzle.tolist(), answer.tolist(), strict=True))
    return kept and all(set(unit.tolist()) == digits for unit in units)
