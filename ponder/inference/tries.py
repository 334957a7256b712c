"""What a search tries next, and what it found. Without torch, for solvers that do without."""

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
    """ACT steps of all restarts together."""


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
