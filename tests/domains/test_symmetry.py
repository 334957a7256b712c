"""Symmetries on the fly: puzzles stay puzzles, every image is reached, and what is seen is a function of its key."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ponder.base.errors import UserError
from ponder.config.resolve import resolve
from ponder.data import folder_for
from ponder.domains.contract import Augmented, Domain, rng_for
from ponder.domains.life.domain import Life
from ponder.domains.life.generate import LifeParams
from ponder.domains.maze.domain import Maze, MazeParams
from ponder.domains.sudoku.domain import Sudoku, SudokuParams
from ponder.domains.sudoku.generate import solve


def sudoku(size: int) -> Sudoku:
    return Sudoku(SudokuParams.model_validate({"size": size, "source": "generate"}))


def maze(height: int, width: int) -> Maze:
    return Maze(MazeParams(source="generate", height=height, width=width, min_path=4))


DOMAINS: dict[str, Domain] = {
    "sudoku 4x4": sudoku(4),
    "sudoku 6x6": sudoku(6),
    "maze 5x5": maze(5, 5),
    "maze 4x6": maze(4, 6),
    "life": Life(LifeParams(min_side=3, max_side=5)),
}


@pytest.mark.parametrize("name", DOMAINS)
def test_the_image_of_an_answer_answers_the_image_of_its_puzzle(name: str) -> None:
    domain = DOMAINS[name]
    inputs, labels = domain.sample(0, 20)
    images = set()
    for number, (puzzle, answer) in enumerate(zip(inputs, labels, strict=True)):
        for draw in range(5):
            symmetry = domain.symmetry(puzzle, rng_for(number, draw))
            assert sorted(symmetry.order.tolist()) == list(range(domain.seq_len))
            image = symmetry(puzzle)
            assert domain.check(image[None], symmetry(answer)[None])[0]
            assert (domain.parse(domain.format(image)) == image).all()
            images.add(image.tobytes())
    assert len(images) > 30


@pytest.mark.parametrize(("name", "images"), [("maze 5x5", 8), ("maze 4x6", 4)])
def test_every_image_of_a_maze_is_reached_as_often(name: str, images: int) -> None:
    domain = DOMAINS[name]
    puzzle = domain.sample(3, 1)[0][0]
    seen: dict[bytes, int] = {}
    for draw in range(800):
        image = domain.symmetry(puzzle, rng_for(draw))(puzzle).tobytes()
        seen[image] = seen.get(image, 0) + 1
    assert len(seen) == images
    assert min(seen.values()) > 800 / images / 2


def test_an_image_of_a_sudoku_has_one_solution_again_and_transposes_only_square_boxes() -> None:
    for size, transposes in ((4, True), (6, False)):
        domain = sudoku(size)
        puzzle = domain.sample(1, 1)[0][0]
        cells = np.arange(size * size).reshape(size, size)
        columns_first = 0
        for draw in range(30):
            symmetry = domain.symmetry(puzzle, rng_for(draw))
            assert len(solve(size, symmetry(puzzle), 2)) == 1
            first = cells.ravel()[symmetry.order[:size]] // size
            columns_first += len(set(first.tolist())) == size
        assert (columns_first > 0) == transposes


def test_what_is_seen_depends_on_seed_example_and_epoch_alone() -> None:
    domain = sudoku(4)
    inputs, labels = domain.sample(0, 10)
    plain = domain.source("train", {"inputs": inputs, "labels": labels}, 0)

    def seen(seed: int, index: list[int], epoch: list[int]) -> Any:
        return Augmented(plain, domain, seed).fetch(np.array(index), np.array(epoch)).inputs

    assert (seen(0, [3, 5], [1, 2]) == seen(0, [5, 3], [2, 1])[::-1]).all()
    for other in (seen(1, [3], [1]), seen(0, [3], [2])):
        assert (other != seen(0, [3], [1])).any()


def test_the_files_are_the_same_and_the_training_is_another() -> None:
    plain, augmented = (resolve("sudoku-mini", None, {"data": {"augment": on}}) for on in (False, True))
    root = Path("data")
    assert folder_for(root, plain.data) == folder_for(root, augmented.data)
    assert plain.key() == resolve("sudoku-mini").key() != augmented.key()
    assert type(augmented).model_validate(augmented.flat()) == augmented


def test_a_domain_without_symmetries_says_so() -> None:
    domain = resolve("arithmetic-mini").data.make()
    with pytest.raises(UserError, match="arithmetic has no symmetries"):
        domain.symmetry(np.zeros(domain.seq_len, dtype=np.uint8), rng_for(0))
