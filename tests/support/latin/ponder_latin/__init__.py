"""Latin squares: a domain for ponder, in full."""

import numpy as np
from pydantic import Field

from ponder.domains import Bools, GridDomain, Sizes, Tokens


class LatinParams(Sizes):
    size: int = Field(default=4, ge=2, le=9, description="side of the square")
    holes: float = Field(default=0.4, gt=0, lt=1, description="share of cells to fill in")


class Latin(GridDomain):
    name = "latin"
    title = "Fill the square so that every row and column holds each digit once"
    rules = (
        "A Latin square is a grid in which every row and every column holds each of the digits, from 1 up to its side, "
        "exactly once. Fill the empty cells, written as dots; the given digits stay. Rows are separated by /."
    )
    Params = LatinParams
    params: LatinParams

    def __init__(self, params: LatinParams) -> None:
        super().__init__(params, params.size, params.size, "." + "123456789"[: params.size])

    def generate(self, rng: np.random.Generator, count: int) -> tuple[Tokens, Tokens]:
        size = self.params.size
        rows, columns, digits = rng.random((3, count, size)).argsort(axis=2)
        cells = (rows[:, :, None] + columns[:, None, :]) % size
        labels = 2 + np.take_along_axis(digits, cells.reshape(count, -1), axis=1)
        return np.where(rng.random(labels.shape) < self.params.holes, 1, labels), labels

    def check(self, inputs: Tokens, answers: Tokens) -> Bools:
        grids = answers.reshape(-1, self.height, self.width)
        good = self.filled(inputs, answers)
        for axis in (1, 2):
            ordered = np.moveaxis(np.sort(grids, axis=axis), axis, -1)
            good &= (ordered == np.arange(2, 2 + self.width)).all(axis=(1, 2))
        return good
