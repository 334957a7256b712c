"""The solvers as tools for language models: `ponder mcp` over stdio, and at /mcp in `ponder serve`.

A tool exists for each kind of puzzle that a model on the shelf can solve. Every answer says whether it was checked, and
every refusal how to mend the call.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from inspect import Parameter, Signature
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, WithJsonSchema, create_model

from ponder import __version__
from ponder.base import files
from ponder.base.errors import UserError, needs_extra, unknown
from ponder.domains import registry
from ponder.domains.contract import Json, Misfit, Tool
from ponder.inference.answers import Answer
from ponder.inference.solver import Solver, nearest
from ponder.serve.service import Busy, Late, Service

try:
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.server.streamable_http_manager import StreamableHTTPASGIApp
    from mcp.server.transport_security import TransportSecuritySettings
    from mcp.types import CallToolResult, TextContent, ToolAnnotations
except ImportError:
    raise needs_extra("the MCP server", "serve") from None

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


class Checked(BaseModel):
    """An answer and how far to trust it."""

    verified: bool = Field(description="Whether the checker, which knows the rules, accepted the answer.")
    check: str = Field(description="The same as a sentence, with the reason where the answer was refused.")
    answered_by: Literal["model", "exact"] = Field(description="The network, or the classical solver of the fallback.")
    model: str = Field(description="Which solver was asked.")
    steps: int = Field(description="How many steps the network thought.")
    confidence: float | None = Field(description="The network's own probability that its answer is right, 0 to 1.")


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
    found = answer.by == "exact" or not answer.domain.exact
    more = "" if found else " Where an answer exists, fallback='exact' finds it."
    return f"NOT verified: {note or 'the checker refused it.'} Do not pass it on as a solution.{more}"


# The server -----------------------------------------------------------------------------------------------------------


class _Server(MCPServer):
    """One that refuses calls of the wrong form in our words, before pydantic does in its own."""

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        schemas = {tool.name: tool.input_schema for tool in await self.list_tools()}
        try:
            if name not in schemas:
                raise unknown("tool", name, schemas)
            _right_form(name, arguments, schemas[name])
        except UserError as error:
            raise ToolError(str(error)) from None
        return await super().call_tool(name, arguments, context)


def _right_form(tool: str, arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> None:
    known = schema.get("properties", {})
    for name in arguments:
        if name not in known:
            raise unknown(f"argument of {tool}", name, known)
    for name in schema.get("required", []):
        if name not in arguments:
            raise UserError(f"{tool} lacks {name!r}: give it; it takes {', '.join(known)}")
    if arguments.get("fallback") not in (None, "exact"):
        raise UserError(f"fallback {arguments['fallback']!r} is unknown: give 'exact', or leave it out")


def make_mcp(service: Service) -> MCPServer:
    """The tools of one service, which must be running (`async with service`) while they are called."""
    able: dict[str, list[Solver]] = {}
    for solver in service.shelf.solvers:
        able.setdefault(solver.domain.name, []).append(solver)
    tools = {name: tool for name, domain in registry.every().items() if (tool := domain.tool())}
    server: MCPServer = _Server(
        "ponder", title="ponder", version=__version__, instructions=INSTRUCTIONS, log_level="WARNING"
    )

    async def list_solvers() -> Solvers:
        return Solvers(
            solvers=[
                About(
                    name=solver.name,
                    tool=tools[solver.domain.name].name if solver.domain.name in tools else None,
                    domain=solver.domain.name,
                    takes=solver.domain.takes(),
                    limits=_limits(solver),
                    example=_example(solver),
                )
                for some in able.values()
                for solver in some
            ],
            unavailable=[tool.name for name, tool in tools.items() if name not in able],
        )

    hints = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
    for name, tool in tools.items():
        if name in able:
            about = _description(tool, able[name])
            server.add_tool(_function(service, tool, able[name]), tool.name, description=about, annotations=hints)
    server.add_tool(
        list_solvers,
        description="Which puzzles can be solved here: each solver, its tool, the sizes it takes and an example call.",
        annotations=hints,
    )
    return server


def _function(service: Service, tool: Tool, able: Sequence[Solver]) -> Callable[..., Any]:
    """The tool as a function whose signature has the arguments and the answer in it, for MCPServer to read.

    Any JSON is let through, so that the refusal can be in words rather than pydantic's."""
    fields: dict[str, Any] = {key: (Annotated[Any, WithJsonSchema(about)], ...) for key, about in tool.answer.items()}
    kind = create_model(f"{tool.name}_answer", __base__=Checked, **fields)

    async def call(fallback: str | None, **arguments: Any) -> CallToolResult:
        try:
            solver, puzzle = _fitting(able, arguments)
            found = await service.solve(solver.name, puzzle, fallback=fallback)
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

    keyword = Parameter.KEYWORD_ONLY
    parameters = [
        Parameter(
            name,
            keyword,
            default=None if name in tool.optional else Parameter.empty,
            annotation=Annotated[Any, WithJsonSchema(about)],
        )
        for name, about in tool.arguments.items()
    ]
    parameters.append(Parameter("fallback", keyword, default=None, annotation=Fallback))
    call.__signature__ = Signature(parameters, return_annotation=Annotated[CallToolResult, kind])  # type: ignore[attr-defined]
    call.__name__ = tool.name
    return call


def _description(tool: Tool, able: Sequence[Solver]) -> str:
    return (
        f"{tool.does} A small trained network answers, and a checker says whether the answer is right (`verified`). "
        f"Takes: {_sizes(able)}; nothing else. Example arguments: {json.dumps(_example(able[0]))}"
    )


def _sizes(able: Sequence[Solver]) -> str:
    other = ["other sizes, on which nothing was trained"] if any(solver.any_size for solver in able) else []
    return "; ".join(dict.fromkeys([*(solver.domain.takes() for solver in able), *other]))


def _limits(solver: Solver) -> str | None:
    card = solver.opened.path / "card.json"
    return files.read_json(card)["limits"] if card.is_file() else None


def _example(solver: Solver) -> Json:
    domain = solver.domain
    return domain.to_json(domain.sample(0, 1)[0][0])


def _fitting(able: Sequence[Solver], arguments: Mapping[str, Any]) -> tuple[Solver, Json]:
    """The first solver for a puzzle of that size, and the puzzle."""
    misfits: list[tuple[int, str, Solver]] = []
    for solver in able:
        try:
            return solver, solver.domain.read_call(arguments)
        except Misfit as error:
            misfits.append((error.distance, error.size, solver))
    if (found := nearest(able, dict(arguments))) is not None:
        return found[0], found[1].read_call(arguments)
    _, size, closest = min(misfits, key=lambda each: each[0])
    others = "" if len(able) == 1 else f"; the nearest is {closest.domain.takes()}"
    raise UserError(f"this puzzle has {size}, which no solver here takes. Available: {_sizes(able)}{others}")


def _drawn(answer: Json) -> str:
    """An answer as text: what its first key holds."""
    value = next(iter(answer.values()))
    if isinstance(value, str):
        return value
    rows = ([row] if isinstance(row, str) else ("?" if cell is None else str(cell) for cell in row) for row in value)
    return "\n".join(" ".join(row) for row in rows)


# Ways to run it -------------------------------------------------------------------------------------------------------


def mounted(
    service: Service, host: str = LOOPBACK, hosts: Sequence[str] = ()
) -> tuple[StreamableHTTPASGIApp, AbstractAsyncContextManager[None]]:
    """(the application, what must be entered while it runs), for a server on `host`.

    Where that is the loopback, requests that name another host or come from its pages are refused, `hosts` aside: a web
    page could have sent them. No session is kept between calls, since none of them needs one.
    """
    server = make_mcp(service)
    names = [f"{name}{port}" for name in (LOOPBACK, "localhost", "[::1]", *hosts) for port in ("", ":*")]
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=host in (LOOPBACK, "localhost", "::1"),
        allowed_hosts=names,
        allowed_origins=[f"{scheme}://{name}" for scheme in ("http", "https") for name in names],
    )
    server.streamable_http_app(stateless_http=True, json_response=True, transport_security=security)
    return StreamableHTTPASGIApp(server.session_manager), server.session_manager.run()


async def over_stdio(service: Service) -> None:
    async with service:
        await make_mcp(service).run_stdio_async()
