"""The MCP tools, asked by the official client: in this process, over stdio and over HTTP."""

import asyncio
import json
import re
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import httpx
import jsonschema  # type: ignore[import-untyped]
import pytest
from mcp import Client, StdioServerParameters
from mcp.types import CallToolResult, Tool

from ponder.inference.solver import Shelf
from ponder.serve.mcp import make_mcp
from ponder.serve.service import Service
from tests.support.folders import random_config, random_folder

Args = dict[str, Any]
SUDOKU = ["1...", "..2.", ".3..", "...4"]
"""From the issue. It has one solution."""


# Independent judges ---------------------------------------------------------------------------------------------------


def sudoku_is_right(given: list[str], grid: list[list[int]]) -> bool:
    boxes = [[grid[r + a][c + b] for a in (0, 1) for b in (0, 1)] for r in (0, 2) for c in (0, 2)]
    units = [*grid, *map(list, zip(*grid, strict=True)), *boxes]
    clues, cells = "".join(given), [cell for row in grid for cell in row]
    kept = all(clue in ".0" or int(clue) == cell for clue, cell in zip(clues, cells, strict=True))
    return kept and all(sorted(unit) == [1, 2, 3, 4] for unit in units)


def maze_is_right(given: list[str], grid: list[str]) -> bool:
    """Breadth-first distances in the given maze, and a walk over the marked cells alone."""

    def steps(rows: list[str], open_: str) -> int:
        cells = {(r, c): cell for r, row in enumerate(rows) for c, cell in enumerate(row)}
        start = next(place for place, cell in cells.items() if cell == "S")
        seen, queue = {start: 0}, deque([start])
        while queue:
            r, c = queue.popleft()
            for place in ((r + 1, c), (r - 1, c), (r, c + 1), (r, c - 1)):
                if cells.get(place, "#") in open_ and place not in seen:
                    seen[place] = seen[r, c] + 1
                    queue.append(place)
        return next((n for place, n in seen.items() if cells[place] == "G"), -1)

    shortest, marked = steps(given, ".SG"), "".join(grid).count("o")
    return [row.replace("o", ".") for row in grid] == given and steps(grid, "oSG") == shortest == marked + 1


def life_is_right(board: list[list[int]], steps: int, after: list[list[int]]) -> bool:
    alive = {(r, c) for r, row in enumerate(board) for c, cell in enumerate(row) if cell}
    inside = set(product(range(len(board)), range(len(board[0]))))
    for _ in range(steps):
        around = {
            p: sum((p[0] + a, p[1] + b) in alive for a, b in product((-1, 0, 1), repeat=2) if a or b) for p in inside
        }
        alive = {p for p in inside if around[p] == 3 or (p in alive and around[p] == 2)}
    return after == [[int((r, c) in alive) for c in range(len(board[0]))] for r in range(len(board))]


def operators_are_right(given: str, value: int, expression: str) -> bool:
    stack: list[int] = []
    for symbol in expression.split():
        if symbol.isdigit():
            stack.append(int(symbol))
            continue
        right, left = stack.pop(), stack.pop()
        results = {"+": left + right, "-": left - right, "*": left * right}
        if symbol == "/" and right and left % right == 0:
            results["/"] = left // right
        if symbol not in results:
            return False
        stack.append(results[symbol])
    return stack == [value] and re.sub(r"[-+*/]", "?", expression) == given


def right(tool: str, args: Args, said: Args) -> bool:
    if tool == "solve_sudoku":
        return sudoku_is_right(["".join(map(str, row)) for row in args["grid"]], said["grid"])
    if tool == "solve_maze":
        return maze_is_right(args["grid"], said["grid"])
    if tool == "simulate_life":
        return life_is_right(args["board"], args["steps"], said["board"])
    return operators_are_right(args["expression"], args["value"], said["expression"])


# Talking to the tools -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Service:
    """A trained 4x4 Sudoku model, and random weights for the other domains."""
    root = tmp_path_factory.mktemp("models")
    configs = {
        "maze-5x5": random_config("maze-mini", {"height": 5, "width": 5, "min_path": 5}),
        "life-small": random_config("life-mini", {"min_side": 2}),
        "operators": random_config("arithmetic-mini"),
    }
    folders = [str(random_folder(root / name, config)) for name, config in configs.items()]
    return Service(Shelf(["sudoku-4x4", *folders]))


def call(service: Service, *calls: tuple[str, Args]) -> list[CallToolResult]:
    async def run() -> list[CallToolResult]:
        async with service, Client(make_mcp(service)) as client:
            return [await client.call_tool(tool, args) for tool, args in calls]

    return asyncio.run(run())


def text(result: CallToolResult) -> str:
    (block,) = result.content
    assert block.type == "text"
    return block.text


def data(result: CallToolResult) -> Args:
    assert not result.is_error, text(result)
    assert isinstance(result.structured_content, dict)
    return result.structured_content


async def listed(client: Client) -> dict[str, Tool]:
    return {tool.name: tool for tool in (await client.list_tools()).tools}


def test_every_tool_answers_its_own_example_and_what_it_calls_verified_is_right(service: Service) -> None:
    async def run() -> tuple[dict[str, Tool], Args, list[tuple[str, Args, CallToolResult]]]:
        async with service, Client(make_mcp(service)) as client:
            tools, about = await listed(client), data(await client.call_tool("list_solvers", {}))
            calls = [(s["tool"], {**s["example"], **f}) for s in about["solvers"] for f in ({}, {"fallback": "exact"})]
            return tools, about, [(tool, args, await client.call_tool(tool, args)) for tool, args in calls]

    tools, about, results = asyncio.run(run())
    assert set(tools) == {"solve_sudoku", "solve_maze", "simulate_life", "recover_operators", "list_solvers"}
    assert about["unavailable"] == [] and about["solvers"][0]["name"] == "sudoku-4x4"
    for solver in about["solvers"]:
        about_tool = tools[solver["tool"]].description or ""
        assert solver["takes"] in about_tool and json.dumps(solver["example"]) in about_tool
    for tool, args, result in results:
        jsonschema.validate(args, tools[tool].input_schema)
        jsonschema.validate(data(result), tools[tool].output_schema)
        said = data(result)
        assert said["verified"] is right(tool, args, said)
        assert said["check"].startswith("Checked: correct." if said["verified"] else "NOT verified: ")
        assert text(result).startswith(said["check"])
        if "fallback" in args:
            assert said["verified"] and (said["answered_by"] == "exact") == (tool != "solve_sudoku")
        elif tool != "solve_sudoku":
            assert not said["verified"] and said["answered_by"] == "model" and "fallback='exact'" in said["check"]


def test_only_what_is_on_the_shelf_has_a_tool() -> None:
    async def run() -> tuple[set[str], Args]:
        service = Service(Shelf(["sudoku-4x4"]))
        async with service, Client(make_mcp(service)) as client:
            return set(await listed(client)), data(await client.call_tool("list_solvers", {}))

    tools, about = asyncio.run(run())
    assert tools == {"solve_sudoku", "list_solvers"}
    assert about["unavailable"] == ["recover_operators", "simulate_life", "solve_maze"]
    assert "misses" in about["solvers"][0]["limits"]


def test_a_sudoku_may_be_written_in_many_ways(service: Service) -> None:
    numbers = [[0 if cell == "." else int(cell) for cell in row] for row in SUDOKU]
    drawing = "+-----+-----+\n| 1 . | . . |\n| . . | 2 . |\n+-----+-----+\n| . 3 | . . |\n| . . | . 4 |\n+-----+-----+"
    forms: list[Any] = [
        numbers,
        [[cell or None for cell in row] for row in numbers],
        [[str(cell or "") for cell in row] for row in numbers],
        [cell for row in numbers for cell in row],
        SUDOKU,
        " ".join(SUDOKU),
        "/".join(SUDOKU),
        "".join(SUDOKU),
        "".join(SUDOKU).replace(".", "0"),
        "\n".join(" ".join(row) for row in SUDOKU),
        drawing,
        json.dumps(numbers),
        {"grid": numbers},
    ]
    results = call(service, *(("solve_sudoku", {"grid": form}) for form in forms))
    for form, result in zip(forms, results, strict=True):
        said = data(result)
        assert said["verified"] and said["answered_by"] == "model", form
        assert sudoku_is_right(SUDOKU, said["grid"]), form


def test_other_puzzles_may_be_written_in_many_ways(service: Service) -> None:
    maze = ["S.#..", "#.#.#", "#...#", "###.#", "###.G"]
    mazes: list[Any] = [
        [list(row) for row in maze],
        "\n".join(maze),
        "/".join(maze),
        [row.replace(".", " ") for row in maze],
        [" ".join(row) for row in maze],
        [[{"#": 1, ".": 0}.get(cell, cell) for cell in row] for row in maze],
        [row.replace("G", "E") for row in maze],
    ]
    for result in call(service, *(("solve_maze", {"grid": form, "fallback": "exact"}) for form in mazes)):
        assert data(result)["verified"] and maze_is_right(maze, data(result)["grid"])
    blinker = [[0, 0, 0], [1, 1, 1], [0, 0, 0]]
    boards: list[Any] = ["... OOO ...", ["...", "###", "..."], [[False] * 3, [True] * 3, [False] * 3], ".../OOO/..."]
    asked = [("simulate_life", {"board": b, "steps": 3, "fallback": "exact"}) for b in [blinker, *boards]]
    assert [data(result)["board"] for result in call(service, *asked)] == [[[0, 1, 0]] * 3] * 5
    said: list[Args] = [{"expression": "3 4 ? 5 ? = 17"}, {"expression": [3, 4, "?", 5, "?"], "value": 17}]
    for result in call(service, *(("recover_operators", {**args, "fallback": "exact"}) for args in said)):
        assert operators_are_right("3 4 ? 5 ?", 17, data(result)["expression"])


BAD: list[tuple[str, Args, str]] = [
    ("solve_sudoku", {"grid": [[0] * 9] * 9}, r"9x9 cells.* no solver here takes.*Available: 4x4 grids"),
    ("solve_sudoku", {"grid": ["11..", "....", "....", "...."]}, "row 1 holds 1 twice"),
    ("solve_sudoku", {"grid": ["1...", "....", "...", "...."]}, "row 3 .* has 3 cells and row 1 has 4"),
    ("solve_sudoku", {"grid": ["1...", "..7.", "....", "...."]}, "'7' in row 2, column 3"),
    ("solve_sudoku", {"grid": 17}, "should be a list of rows"),
    ("solve_sudoku", {"puzzle": SUDOKU}, "unknown argument of solve_sudoku 'puzzle': allowed: fallback, grid"),
    ("solve_sudoku", {}, "solve_sudoku lacks 'grid'"),
    ("solve_sudoku", {"grid": SUDOKU, "fallbak": "exact"}, "did you mean 'fallback'"),
    ("solve_sudoku", {"grid": SUDOKU, "fallback": "sat"}, "fallback 'sat' is unknown: give 'exact'"),
    ("solve_sudokus", {"grid": SUDOKU}, "did you mean 'solve_sudoku'"),
    ("solve_maze", {"grid": ["S....", ".....", ".....", ".....", "....."]}, "no goal; write G"),
    ("solve_maze", {"grid": ["S#..G", "##...", ".....", ".....", "....."]}, "no path leads from S to G"),
    ("solve_maze", {"grid": ["S.G", "...", "..."]}, "3x3 cells.*Available: 5x5"),
    ("simulate_life", {"board": [[0, 2], [0, 0]], "steps": 1}, "'2' in row 1, column 2"),
    ("simulate_life", {"board": [[0, 1], [0, 0]], "steps": 0}, "0 steps; allowed: 1 to 99"),
    ("simulate_life", {"board": [[0, 1], [0, 0]], "steps": "two"}, "'two'"),
    (
        "recover_operators",
        {"expression": "3 ? 4 ? 5", "value": 17},
        r"reverse Polish.*\(3 \? 4\) \? 5 is '3 4 \? 5 \?'",
    ),
    ("recover_operators", {"expression": "3 4 ? 5 ?"}, "value=17"),
    ("recover_operators", {"expression": "1 1 ? 1 ?", "value": 99}, "no operators give 99"),
    ("recover_operators", {"expression": "1 1 ?" + " 1 ?" * 8, "value": 1}, "10 numbers.*Available: expressions of"),
]


def test_a_bad_call_is_told_how_to_do_better(service: Service) -> None:
    for (tool, args, words), result in zip(BAD, call(service, *((t, a) for t, a, _ in BAD)), strict=True):
        said = text(result)
        assert result.is_error and re.search(words, said), (tool, args, said)
        assert (
            "Traceback" not in said and "pydantic" not in said and "validation error" not in said and "\n" not in said
        )


def test_no_solution_and_several_are_told(service: Service) -> None:
    none, several = call(
        service,
        ("solve_sudoku", {"grid": ["123.", "...4", "....", "...."], "fallback": "exact"}),
        ("solve_sudoku", {"grid": ["1...", "....", "....", "...."], "fallback": "exact"}),
    )
    assert not data(none)["verified"] and data(none)["check"].startswith("NOT verified: This puzzle has no solution.")
    assert data(several)["verified"] and "everal solutions exist" in data(several)["check"]


def test_a_tool_that_takes_too_long_says_that_the_call_was_fine() -> None:
    (late,) = call(Service(Shelf(["sudoku-4x4"]), timeout=1e-6), ("solve_sudoku", {"grid": SUDOKU}))
    assert late.is_error and "Nothing is wrong with the call" in text(late)


# Other processes ------------------------------------------------------------------------------------------------------


async def converse(client: Client) -> None:
    """What every transport must carry: the tools, a right answer, a refusal."""
    tools = await listed(client)
    assert set(tools) == {"solve_sudoku", "list_solvers"}
    assert "4x4" in (tools["solve_sudoku"].description or "")
    good = await client.call_tool("solve_sudoku", {"grid": SUDOKU})
    assert data(good)["verified"] and sudoku_is_right(SUDOKU, data(good)["grid"])
    bad = await client.call_tool("solve_sudoku", {"grid": ["11..", "....", "....", "...."]})
    assert bad.is_error and "row 1 holds 1 twice" in text(bad)


def test_over_stdio() -> None:
    async def run() -> None:
        args = ["-m", "ponder", "mcp", "--model", "sudoku-4x4"]
        async with Client(StdioServerParameters(command=sys.executable, args=args)) as client:
            await converse(client)

    asyncio.run(run())


@contextmanager
def serving() -> Iterator[str]:
    args = [sys.executable, "-m", "ponder", "serve", "--model", "sudoku-4x4", "--port", "0"]
    with subprocess.Popen(args, stdout=subprocess.PIPE, encoding="utf-8") as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"http://\S+", line)
            assert found is not None, line
            yield found[0]
        finally:
            process.terminate()


def test_over_http() -> None:
    async def run(url: str) -> None:
        async with Client(url) as client:
            await converse(client)

    with serving() as url:
        asyncio.run(run(f"{url}/mcp"))
        hello = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
        headers = {"Accept": "application/json, text/event-stream", "Host": "evil.example"}
        statuses = [httpx.post(f"{url}/mcp{end}", json=hello, headers=headers).status_code for end in ("", "/")]
        assert 421 in statuses and 200 not in statuses
