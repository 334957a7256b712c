"""Sudoku for tests, and its rules written apart from the code under test."""

from functools import lru_cache
from typing import Any

import numpy as np

from ponder.domains.contract import Tokens
from ponder.domains.sudoku.domain import Sudoku, SudokuParams

SIZES = (4, 6, 9)
BOX = {4: (2, 2), 6: (2, 3), 9: (3, 3)}


def made(size: int, **changes: Any) -> Sudoku:
    params: dict[str, Any] = {"size": size, "source": "generate", "train": 60, "val": 10, "test": 20}
    return Sudoku(SudokuParams(**params | changes))


@lru_cache
def peers(size: int) -> list[set[int]]:
    """For each cell the others in its row, column and box; written apart from the code under test."""
    h, w = BOX[size]
    cells = [(r, c) for r in range(size) for c in range(size)]
    return [
        {
            r * size + c
            for r, c in cells
            if (r, c) != (a, b) and (r == a or c == b or (r // h == a // h and c // w == b // w))
        }
        for a, b in cells
    ]


def count_solutions(size: int, grid: list[int], limit: int = 2) -> int:
    """Brute force; 0 is an empty cell."""
    near = peers(size)

    def go(left: list[int]) -> int:
        if not left:
            return 1
        options = [(set(range(1, size + 1)) - {grid[p] for p in near[cell]}, cell) for cell in left]
        values, cell = min(options, key=lambda option: len(option[0]))
        total = 0
        for value in values:
            grid[cell] = value
            total += go([other for other in left if other != cell])
            grid[cell] = 0
            if total >= limit:
                break
        return total

    return go([cell for cell, digit in enumerate(grid) if digit == 0])


def digits(tokens: Tokens) -> list[int]:
    return [int(token) - 1 for token in tokens]


def needless_clues(size: int, puzzle: Tokens) -> list[int]:
    grid, found = digits(puzzle), []
    for cell in np.flatnonzero(puzzle > 1):
        kept, grid[cell] = grid[cell], 0
        if count_solutions(size, grid) == 1:
            found.append(int(cell))
        grid[cell] = kept
    return found


def plainly_right(size: int, puzzle: Tokens, answer: Tokens) -> bool:
    near, grid = peers(size), digits(answer)
    return (
        all(1 <= digit <= size for digit in grid)
        and all(grid[p] != grid[cell] for cell in range(size**2) for p in near[cell])
        and all(clue in (0, digit) for clue, digit in zip(digits(puzzle), grid, strict=True))
    )
