"""Models in which nothing has a size, put to boards that they were not trained on."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mcp import Client

from ponder.base.errors import UserError
from ponder.domains.grid import size_of
from ponder.domains.maze.domain import Maze
from ponder.inference import plain
from ponder.inference.solver import LARGEST, SIZES, Shelf, Solver
from ponder.inference.weights import open_weights
from ponder.model.reasoner import Reasoner
from ponder.serve.mcp import make_mcp
from ponder.serve.service import GUESTS, Busy, Service
from tests.support.folders import random_config, random_folder
from tests.support.rounding import FORMULA

GRID: dict[str, Any] = {
    "mixer": "relations",
    "positions": "none",
    "states": 1,
    "gate": False,
    "bound": None,
    "post_norm": False,
    "halting": "halt",
    "key_mask": False,
}
SMALL = {"height": 4, "width": 4, "min_path": 3}


def maze(height: int, width: int) -> str:
    """A room without walls, from corner to corner."""
    cells = [["."] * width for _ in range(height)]
    cells[0][0], cells[-1][-1] = "S", "G"
    return "/".join("".join(row) for row in cells)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return random_folder(tmp_path / "small", random_config("maze-mini", SMALL, **GRID))


@pytest.mark.parametrize(
    ("puzzle", "size"),
    [
        ("ab/cd/ef", (3, 2)),
        ("ab cd", (2, 2)),
        ("abcdefghi", (3, 3)),
        ("abcde", (1, 5)),
        (["abc", "def"], (2, 3)),
        ({"grid": [["a", "b"], ["c", "d"], ["e", "f"]]}, (3, 2)),
        ("ab/c", None),
        ("", None),
        ({"other": 1}, None),
        ([1, 2], None),
        (7, None),
    ],
)
def test_the_size_of_a_grid(puzzle: Any, size: tuple[int, int] | None) -> None:
    assert size_of(puzzle) == size


def test_another_size_is_thought_about_by_the_same_weights(folder: Path) -> None:
    """As a model does that was made for that size and got the weights."""
    solver, inputs = Shelf([str(folder)]).choose("small", maze(3, 6))
    assert (solver.name, solver.trained, solver.domain.sides) == ("small at 3x6", "small", "3x6")
    opened = open_weights(folder)
    domain = Maze(opened.domain.params.model_copy(update={"height": 3, "width": 6}))  # type: ignore[union-attr]
    model = Reasoner(opened.model.config, len(domain.vocab), 18, 1, domain.geometry).eval()
    model.load_state_dict(opened.model.state_dict())
    with torch.no_grad():
        step = model(model.start(torch.zeros(1, dtype=torch.int64)), torch.tensor(inputs[None]).long(), model.table)
    first = next(iter(solver.think(inputs)))
    assert np.array_equal(first.answer, step.logits[0].argmax(-1).numpy())
    answer = solver.solve_tokens([inputs])[0]
    assert answer.note.startswith("trained on 4x4 only") and answer.text.count("/") == 2
    small = Shelf([str(folder)]).choose("small", maze(4, 4))[0]
    assert small.name == "small" and not small.note  # its own size


def test_without_torch_too(folder: Path) -> None:
    solver = Solver(folder)
    domain = solver.domain.resized(maze(5, 3))
    assert domain is not None
    bigger = solver.at(domain)
    tensors = {name: tensor.double().numpy() for name, tensor in solver.opened.model.state_dict().items()}
    model = bigger.opened.model.double()
    assert model.q_head is not None
    model.q_head.float()
    inputs = bigger.read(maze(5, 3))
    step = plain.Plain(bigger.config, domain, tensors)
    mine = step(step.start(), inputs)
    with torch.no_grad():
        carry = model.start(torch.zeros(1, dtype=torch.int64), torch.float64)
        other = model(carry, torch.tensor(inputs[None]).long(), model.table)
    assert np.allclose(mine.logits, other.logits[0].numpy(), atol=FORMULA)


def test_what_has_a_size_keeps_it(tmp_path: Path, folder: Path) -> None:
    for name, changes in {"mlp": {"mixer": "mlp"}, "learned": {"positions": "learned"}}.items():
        other = random_folder(tmp_path / name, random_config("maze-mini", SMALL, **{**GRID, **changes}))
        with pytest.raises(UserError, match=r"expected 4 rows of 4|expected 16"):
            Shelf([str(other)]).choose(name, maze(5, 5))
    shelf = Shelf([str(folder)])
    side = int(LARGEST**0.5) + 1
    for puzzle in (maze(side, side), maze(2, 9), "S.../..G", "SG/ab/cd/e"):
        with pytest.raises(UserError, match="expected"):
            shelf.choose("small", puzzle)
    with pytest.raises(UserError, match="'x' in row 1, column 2; allowed"):  # what is wrong, not the size
        shelf.choose("small", "Sx.../....G/.....")


def test_life_takes_squares(tmp_path: Path) -> None:
    life = {"min_side": 4, "max_side": 4, "max_steps": 8}
    model = {**GRID, "halting": "asked"}
    shelf = Shelf([str(random_folder(tmp_path / "life", random_config("life-mini", life, **model)))])
    solver, inputs = shelf.choose("life", ".O... .O... .O... ..... .....:02")
    assert solver.name == "life at 5x5" and solver.domain.format(inputs).endswith(":02")
    same, again = shelf.choose("life", {"board": [[0, 1, 0, 0, 0]] * 3 + [[0] * 5] * 2, "steps": 2})
    assert same is solver and np.array_equal(inputs, again)
    for board in (".O./...:02", "O:02"):
        with pytest.raises(UserError, match="allowed: 4 to 4"):
            shelf.choose("life", board)


def test_a_shelf_remembers_a_few_sizes(folder: Path) -> None:
    shelf = Shelf([str(folder)])
    first = shelf.choose("small", maze(3, 3))[0]
    assert shelf.choose("small", maze(3, 3))[0] is first
    for width in range(5, 5 + SIZES):
        shelf.choose("small", maze(3, width))
    assert len(shelf.sizes) == SIZES and shelf.names == ["small"]
    assert shelf.choose("small", maze(3, 3))[0] is not first


def test_the_nearest_model_takes_it(tmp_path: Path) -> None:
    models = [
        str(
            random_folder(
                tmp_path / f"side-{side}", random_config("maze-mini", {**SMALL, "height": side, "width": side}, **GRID)
            )
        )
        for side in (4, 12)
    ]
    for order in (models, models[::-1]):
        shelf = Shelf(order)
        chosen = {side: shelf.choose("maze", maze(side, side))[0].trained for side in (3, 4, 5, 6, 8, 11, 12, 20)}
        near = {3: 4, 4: 4, 5: 4, 6: 12, 8: 12, 11: 12, 12: 12, 20: 12}  # 6 is nearer to 4, which learned of less
        assert chosen == {side: f"side-{trained}" for side, trained in near.items()}


def test_a_server_takes_any_size(folder: Path) -> None:
    """Each gets what it would get alone; an idle size makes room for a new one, and all count as the one model."""
    alone = Shelf([str(folder)])

    async def run() -> None:
        async with Service(Shelf([str(folder)]), slots=2) as service:
            for width in range(3, 3 + 2 * GUESTS):
                answer = await service.solve("maze", maze(3, width))
                solver, inputs = alone.choose("small", maze(3, width))
                assert answer.text == solver.solve_tokens([inputs])[0].text
                assert answer.model == f"small at 3x{width}"
            assert len(service.guests) == GUESTS
            assert list(service.seated) == list(service.waiting) == list(service.desks) == ["small"]
            for desk in service.guests.values():
                desk.under_way += 1
            with pytest.raises(Busy, match=f"boards of {GUESTS} sizes are being solved"):
                await service.solve("maze", maze(9, 9))
            for desk in service.guests.values():
                desk.under_way -= 1
            many = [service.solve("maze", maze(5, width)) for width in (5, 6, 5, 6, 5)]
            assert [a.model.split()[-1] for a in await asyncio.gather(*many)] == ["5x5", "5x6", "5x5", "5x6", "5x5"]

    asyncio.run(run())


def test_a_tool_takes_any_size(folder: Path) -> None:
    async def run() -> list[Any]:
        service = Service(Shelf([str(folder)]))
        async with service, Client(make_mcp(service)) as client:
            told = [tool.description for tool in (await client.list_tools()).tools if tool.name == "solve_maze"]
            grids = maze(3, 5).split("/"), ["S.", "G"]
            return [*told, *[await client.call_tool("solve_maze", {"grid": grid}) for grid in grids]]

    about, taken, refused = asyncio.run(run())
    assert "other sizes, on which nothing was trained" in about
    assert taken.structured_content["model"] == "small at 3x5" and len(taken.structured_content["grid"]) == 3
    assert refused.is_error
