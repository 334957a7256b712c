"""What a search tries next, and what it found. Without torch, for solvers that do without."""

import heapq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ponder.domains.contract import Bools, Domain, Ints, Tokens

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Found:
    """The answer of each puzzle and what it cost."""

    answers: Tokens
    restart: Ints
    """Which restart gave it; 0 is the plain run."""
    steps: Ints
    """The ACT step of that restart at which it did."""
    confidence: Floats
    """Its halting logit."""
    accepted: Bools
    """The checker's verdict; False everywhere where it was not asked."""
    compute: Ints
    """ACT steps of all restarts together; an answer that was only looked at counts as one."""


def suppositions(domain: Domain, puzzle: Tokens, logits: Floats, count: int) -> Tokens:
    """[at most `count`, tokens] the puzzle with one more cell given: the two likeliest symbols of the cell that the
    model is least sure about, then those of the next."""
    cells, symbols = domain.open_cells(puzzle)
    each = logits[np.ix_(cells, symbols)]
    likely = np.argsort(-each, axis=1, kind="stable")[:, :2]
    best = np.take_along_axis(each, likely, axis=1)
    unsure = np.argsort(best[:, 0] - best[:, -1], kind="stable")
    where, what = np.repeat(cells[unsure], likely.shape[1])[:count], symbols[likely[unsure]].ravel()[:count]
    tries = np.repeat(puzzle[None], len(where), axis=0)
    tries[np.arange(len(where)), where] = what
    return tries


def likeliest(domain: Domain, puzzle: Tokens, logits: Floats, count: int) -> Tokens:
    """[at most `count`, tokens] the answers that the model finds likeliest after its own, as if each cell were filled
    in by itself; of equals first the one that changes a later cell."""
    cells, symbols = domain.open_cells(puzzle)
    each = logits[np.ix_(cells, symbols)].astype(np.float64)
    ranked = np.argsort(-each, axis=1, kind="stable")
    price = each.max(axis=1, keepdims=True) - np.take_along_axis(each, ranked, axis=1)
    start = (0,) * len(cells)
    queue, seen, found = [(0.0, start)], {start}, list[tuple[int, ...]]()
    while queue and len(found) <= count + 1:  # its own may be among them, unless it is none of these at all
        _, ranks = heapq.heappop(queue)
        found.append(ranks)
        for cell, rank in enumerate(ranks):
            if rank + 1 < len(symbols):
                more = (*ranks[:cell], rank + 1, *ranks[cell + 1 :])
                if more not in seen:
                    seen.add(more)
                    heapq.heappush(queue, (float(sum(price[c, r] for c, r in enumerate(more))), more))
    own = logits.argmax(axis=1).astype(np.uint8)
    answers = np.repeat(own[None], len(found), axis=0)
    for row, ranks in enumerate(found):
        answers[row, cells] = symbols[ranked[np.arange(len(cells)), ranks]]
    others: Tokens = answers[(answers != own).any(axis=1)][:count]
    return others


def first_right(domain: Domain, puzzle: Tokens, answers: Tokens) -> int | None:
    """Which of the answers to a puzzle the checker accepts; the first of them."""
    accepted = domain.check(np.repeat(puzzle[None], len(answers), axis=0), answers)
    return int(accepted.argmax()) if accepted.any() else None
