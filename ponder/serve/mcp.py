"""The solvers as tools for language models: `ponder mcp` over stdio, and at /mcp in `ponder serve`.

A tool exists for each kind of puzzle that a model on the shelf can solve. Every answer says whether it was checked, and
every refusal how to mend the call.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, WithJsonSchema

from ponder import __version__
from ponder.base import files
from ponder.base.errors import UserError, needs_extra
from ponder.domains.contract import Json
from ponder.inference.answers import Answer
from ponder.inference.solver import Solver
from ponder.serve.mcp_read import Puzzle, distance, fits, read_arithmetic, read_life, read_maze, read_sudoku, takes
from ponder.serve.service import Busy, Late, Service

try:
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.server.streamable_http_manager import StreamableHTTPASGIApp
    from mcp.types import CallToolResult, TextContent, ToolAnnotations
except ImportError:
    raise needs_extra("the MCP server", "serve") from None

TOOLS = {
    "sudoku": "solve_sudoku",
    "maze": "solve_maze",
    "life": "simulate_life",
    "arithmetic": "recover_operators",
}
INSTRUCTIONS = (
    "Small trained networks that solve puzzles. Every answer is checked against the rules of its puzzle: pass it on as "
    "correct only where `verified` is true, and otherwise say that it was not. `list_solvers` says what can be solved."
)
LOOPBACK = "127.0.0.1"

# What the tools are given and give back, in words for a language model -----------------------------------------------

Fallback = Annotated[
    Literal["exact"] | None,
    Field(description="'exact': where the network's answer fails the check, a classical solver answers instead."),
]


def _grid(cells: list[str], about: str) -> WithJsonSchema:
    """The schema of a grid. Any JSON is let through, so that the refusal can be in words rather than pydantic's."""
    lists = {"type": "array", "items": {"type": "array", "items": {"type": cells}}}
    strings = {"type": "array", "items": {"type": "string"}}
    return WithJsonSchema({"description": about, "anyOf": [lists, strings, {"type": "string"}]})


SUDOKU = _grid(
    ["integer", "null"],
    "Rows of cells: digits, with 0 or null for an empty cell; or rows as strings, with '.' for an empty cell.",
)
MAZE = _grid(["string"], "Rows as strings, top to bottom: # wall, . free cell, exactly one S (start) and one G (goal).")
LIFE = _grid(["integer"], "Rows of cells, 1 alive and 0 dead; or rows as strings of O and '.'.")
STEPS = WithJsonSchema({"description": "How many steps to run, 1 to 99.", "type": "integer"})
EXPRESSION = WithJsonSchema(
    {
        "description": "Reverse Polish notation: numbers 1 to 9, and ? for each unknown operator, after the two things "
        "it joins. (3 ? 4) ? 5 is written '3 4 ? 5 ?'.",
        "type": "string",
    }
)
Value = Annotated[int | None, Field(description="What the expression should evaluate to.")]


class Checked(BaseModel):
    """An answer and how far to trust it."""

    verified: bool = Field(description="Whether the checker, which knows the rules, accepted the answer.")
    check: str = Field(description="The same as a sentence, with the reason where the answer was refused.")
    answered_by: Literal["model", "exact"] = Field(description="The network, or the classical solver of the fallback.")
    model: str = Field(description="Which solver was asked.")
    steps: int = Field(description="How many steps the network thought.")
    confidence: float | None = Field(description="The network's own probability that its answer is right, 0 to 1.")


class SudokuAnswer(Checked):
    grid: list[list[int]] = Field(description="The filled grid, row by row.")


class MazeAnswer(Checked):
    grid: list[str] = Field(description="The maze, row by row, with o on every free cell of the path.")


class LifeAnswer(Checked):
    board: list[list[int | None]] = Field(description="The board after the steps: 1 alive, 0 dead.")


class OperatorsAnswer(Checked):
    expression: str = Field(description="The expression in reverse Polish notation with its operators.")
    operators: list[str] = Field(description="The operators alone, from left to right.")


class About(BaseModel):
    name: str
    tool: str | None = Field(description="Which tool asks this solver; null where none does.")
    domain: str
    takes: str = Field(description="Which puzzles it can solve.")
    limits: str | None = Field(description="How often it fails and where, as measured; null where nobody did.")
    example: dict[str, Any] = Field(description="Arguments of the tool that make a good call.")


class Solvers(BaseModel):
    solvers: list[About]
    unavailable: list[str] = Field(description="Tools that do not exist here, because no model for them is installed.")


def sentence(answer: Answer) -> str:
    """How far to trust an answer, for someone who may pass it on."""
    note = answer.note[:1].upper() + answer.note[1:] + "." if answer.note else ""
    if answer.verified and answer.by == "exact":
        return f"Checked: correct. Found by a classical solver, since the network failed. {note}".strip()
    if answer.verified:
        return f"Checked: correct. {note}".strip()
    more = "" if answer.by == "exact" else " Where an answer exists, fallback='exact' finds it."
    return f"NOT verified: {note or 'the checker refused it.'} Do not pass it on as a solution.{more}"


# The server -----------------------------------------------------------------------------------------------------------


def make_mcp(service: Service) -> MCPServer:
    """The tools of one service, which must be running (`async with service`) while they are called."""
    solvers = [service.shelf[name] for name in service.shelf.names]
    examples = {solver.name: _example(solver) for solver in solvers}
    server: MCPServer = MCPServer(
        "ponder", title="ponder", version=__version__, instructions=INSTRUCTIONS, log_level="WARNING"
    )

    async def ask(domain: str, read: Callable[[], Puzzle], fallback: str | None, kind: type[Checked]) -> CallToolResult:
        able = [solver for solver in solvers if solver.domain.name == domain]
        try:
            puzzle = read()
            found = await service.solve(_fitting(able, puzzle).name, puzzle.json, fallback=fallback)
        except UserError as error:
            raise ToolError(str(error)) from None
        except (Busy, Late) as error:
            raise ToolError(f"{error}. Nothing is wrong with the call: wait some seconds and make it again") from None
        data = kind(
            verified=bool(found.verified),
            check=sentence(found),
            answered_by=found.by,
            model=found.model,
            steps=found.steps,
            confidence=found.as_data(trace=False)["confidence"],
            **found.json,
        )
        text = f"{data.check}\n\n{_drawn(found.json)}"
        return CallToolResult(
            content=[TextContent(type="text", text=text)], structured_content=data.model_dump(mode="json")
        )

    async def solve_sudoku(
        grid: Annotated[Any, SUDOKU], fallback: Fallback = None
    ) -> Annotated[CallToolResult, SudokuAnswer]:
        return await ask("sudoku", lambda: read_sudoku(grid), fallback, SudokuAnswer)

    async def solve_maze(
        grid: Annotated[Any, MAZE], fallback: Fallback = None
    ) -> Annotated[CallToolResult, MazeAnswer]:
        return await ask("maze", lambda: read_maze(grid), fallback, MazeAnswer)

    async def simulate_life(
        board: Annotated[Any, LIFE], steps: Annotated[Any, STEPS], fallback: Fallback = None
    ) -> Annotated[CallToolResult, LifeAnswer]:
        return await ask("life", lambda: read_life(board, steps), fallback, LifeAnswer)

    async def recover_operators(
        expression: Annotated[Any, EXPRESSION], value: Value = None, fallback: Fallback = None
    ) -> Annotated[CallToolResult, OperatorsAnswer]:
        return await ask("arithmetic", lambda: read_arithmetic(expression, value), fallback, OperatorsAnswer)

    async def list_solvers() -> Solvers:
        have = {solver.domain.name for solver in solvers}
        return Solvers(
            solvers=[
                About(
                    name=solver.name,
                    tool=TOOLS.get(solver.domain.name),
                    domain=solver.domain.name,
                    takes=takes(solver.domain),
                    limits=_limits(solver),
                    example=examples[solver.name],
                )
                for solver in solvers
            ],
            unavailable=[tool for domain, tool in TOOLS.items() if domain not in have],
        )

    hints = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
    for tool in (solve_sudoku, solve_maze, simulate_life, recover_operators):
        able = [solver for solver in solvers if TOOLS.get(solver.domain.name) == tool.__name__]
        if able:
            server.add_tool(tool, description=_description(able, examples[able[0].name]), annotations=hints)
    server.add_tool(
        list_solvers,
        description="Which puzzles can be solved here: each solver, its tool, the sizes it takes and an example call.",
        annotations=hints,
    )
    return server


def _description(able: Sequence[Solver], example: Json) -> str:
    what = {
        "sudoku": "Solve a Sudoku: fill the empty cells so that every row, column and box holds each digit once.",
        "maze": "Find a shortest path through a maze from S to G, stepping up, down, left or right between walls.",
        "life": "Run Conway's Game of Life (B3/S23) for a number of steps.",
        "arithmetic": "Find the operators (+ - * /) that give an expression its value; divisions leave no remainder.",
    }[able[0].domain.name]
    sizes = "; ".join(dict.fromkeys(takes(solver.domain) for solver in able))
    return (
        f"{what} A small trained network answers, and a checker says whether the answer is right (`verified`). "
        f"Takes: {sizes}; nothing else. Example arguments: {json.dumps(example)}"
    )


def _limits(solver: Solver) -> str | None:
    card = solver.opened.path / "card.json"
    return files.read_json(card)["limits"] if card.is_file() else None


def _example(solver: Solver) -> Json:
    domain = solver.domain
    return domain.to_json(domain.sample(0, 1)[0][0])


def _fitting(able: Sequence[Solver], puzzle: Puzzle) -> Solver:
    """The first solver for a puzzle of that size."""
    for solver in able:
        if fits(solver.domain, puzzle.size):
            return solver
    domain = able[0].domain.name
    given = f"{puzzle.size.rows} numbers" if domain == "arithmetic" else f"{puzzle.size} cells (rows x columns)"
    nearest = min(able, key=lambda solver: distance(solver.domain, puzzle.size))
    others = "" if len(able) == 1 else f"; the nearest is {takes(nearest.domain)}"
    sizes = "; ".join(dict.fromkeys(takes(solver.domain) for solver in able))
    raise UserError(f"this puzzle has {given}, which no solver here takes. Available: {sizes}{others}")


def _drawn(data: Json) -> str:
    """An answer as text."""
    if "expression" in data:
        return str(data["expression"])
    rows = data.get("grid") or data.get("board")
    return "\n".join(row if isinstance(row, str) else " ".join(map(_cell, row)) for row in rows)


def _cell(value: int | None) -> str:
    return "?" if value is None else str(value)


# Ways to run it -------------------------------------------------------------------------------------------------------


def mounted(service: Service, host: str = LOOPBACK) -> tuple[StreamableHTTPASGIApp, AbstractAsyncContextManager[None]]:
    """(the application, what must be entered while it runs), for a server on `host`.

    Where that is the loopback, requests that name another host are refused: a web page could have sent them. No session
    is kept between calls, since none of them needs one.
    """
    server = make_mcp(service)
    server.streamable_http_app(stateless_http=True, json_response=True, host=host)
    return StreamableHTTPASGIApp(server.session_manager), server.session_manager.run()


async def over_stdio(service: Service) -> None:
    async with service:
        await make_mcp(service).run_stdio_async()
