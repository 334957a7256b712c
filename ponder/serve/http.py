"""The solvers over HTTP, with the web page at `/` and the tools for language models at `/mcp`."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Annotated, Any, TypeVar

from ponder import __version__
from ponder.base.errors import UserError, needs_extra
from ponder.inference.answers import Answer, as_data
from ponder.serve.service import Busy, Failed, Late, Service, Unknown

try:
    from fastapi import FastAPI, Query, Request, Response
    from fastapi.exceptions import RequestValidationError
    from pydantic import ValidationError
    from starlette.exceptions import HTTPException
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route
    from starlette.types import Receive, Scope, Send

    from ponder.serve.fields import AnswerBody, HealthBody, ModelsBody, PuzzleBody, SolveRequest, StepEvent
    from ponder.serve.guard import BODY, GONE, Guard, json_response
    from ponder.serve.mcp import LOOPBACK, mounted
    from ponder.serve.pages import Example, about_model, docs_page, page_files
except ModuleNotFoundError:
    raise needs_extra("ponder serve", "serve") from None

T = TypeVar("T")


ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"description": "the body is not what it should be"},
    401: {"description": "the token is missing or wrong"},
    404: {"description": "there is no such model"},
    413: {"description": "the body is too long"},
    422: {"description": "the puzzle cannot be read, or has no solution at first sight"},
    503: {"description": "too many puzzles are under way; Retry-After says when to come back"},
    504: {"description": "no answer within the time allowed"},
}


STREAM = "`step` events with these fields, then one `answer` as of /v1/solve; or `error`, if it comes to nothing"


def make_app(
    service: Service,
    token: str | None = None,
    body_limit: int = BODY,
    host: str = LOOPBACK,
    hosts: Sequence[str] = (),
    ready: Callable[[], None] = lambda: None,
) -> FastAPI:
    """The application for a server on `host`, also called `hosts`; it runs the service while it runs itself, and calls
    `ready` then."""
    mcp, mcp_running = mounted(service, host, hosts)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with service, mcp_running:
            ready()
            yield

    app = FastAPI(
        title="ponder",
        version=__version__,
        description="Recursive reasoning models as puzzle solvers. Every answer says whether the checker accepts it.",
        docs_url=None,  # FastAPI's pages load scripts from other hosts
        redoc_url=None,
        lifespan=lifespan,
    )
    app.add_middleware(Guard, metrics=service.metrics, token=token, body_limit=body_limit, hosts=(host, *hosts))
    about = [about_model(service.shelf[name]) for name in service.shelf.names]
    files = page_files()
    example = {"model": about[0]["name"], "puzzle": about[0]["example"], "steps": min(2, about[0]["budget"])}
    body = {"application/json": {"schema": SolveRequest.model_json_schema(), "example": example}}
    takes = {"requestBody": {"required": True, "content": body}}
    examples: dict[str, Example] = {}

    @app.post("/v1/solve", response_model=AnswerBody, responses=ERRORS, summary="Solve a puzzle", openapi_extra=takes)
    async def solve(request: Request) -> Response:
        wanted = await _read(request)
        work = service.solve(wanted.model, wanted.puzzle, wanted.fallback, wanted.steps, wanted.search)
        answer = await _while_there(request.receive, work)
        return Response(status_code=GONE) if answer is None else json_response(answer.as_data(trace=wanted.trace))

    @app.post(
        "/v1/solve/stream",
        status_code=200,  # FastAPI would look for it in the class
        response_class=Events,
        responses={200: {"model": StepEvent, "description": STREAM}, **ERRORS},
        summary="Solve a puzzle, one server-sent event per ACT step",
        openapi_extra=takes,
    )
    async def stream(request: Request) -> Response:
        wanted = await _read(request)
        solver, inputs = service.read(wanted.model, wanted.puzzle)
        items = service.stream(solver.trained, wanted.puzzle, wanted.fallback, wanted.steps, wanted.search)

        async def events() -> AsyncIterator[tuple[str, Any]]:
            async with aclosing(items):
                try:
                    async for item in items:
                        if isinstance(item, Answer):
                            name, data, seen = "answer", item.as_data(trace=False), (inputs, item.tokens)
                        else:
                            name, data, seen = "step", as_data(item, solver.domain, inputs), (inputs, item.answer)
                        yield name, data | ({"svg": solver.domain.svg(*seen)} if wanted.picture else {})
                except (Late, Failed) as error:
                    yield "error", {"error": str(error)}

        return Events(events())

    @app.get(
        "/v1/models", response_model=ModelsBody, summary="The models, their puzzles and what they were measured at"
    )
    async def models() -> Response:
        return json_response({"models": about})

    @app.get(
        "/v1/models/{name}/random",
        response_model=PuzzleBody,
        summary="A random puzzle of a model, the same for the same seed",
        responses={"4XX": {"description": "there is no such model (404), or the seed is no number from 0 on (400)"}},
    )
    async def random(name: str, seed: Annotated[int, Query(ge=0, lt=2**63)] = 0) -> Response:
        if name not in service.desks:
            service.read(name, None)  # says what there is instead
        solver = service.shelf[name]
        inputs = (await asyncio.to_thread(solver.domain.sample, seed, 1))[0][0]
        return json_response({"puzzle": solver.domain.format(inputs), "json": solver.domain.to_json(inputs)})

    @app.get("/healthz", response_model=HealthBody, summary="Whether the server works")
    async def healthz() -> Response:
        alive = service.alive
        return json_response(
            {"ok": alive, "models": service.shelf.names, "version": __version__}, 200 if alive else 503
        )

    @app.get("/metrics", response_class=PlainTextResponse, summary="Counters in Prometheus' text format")
    async def metrics() -> Response:
        gauges = {
            "ponder_queue_length": ("Puzzles that wait for a slot.", service.waiting),
            "ponder_slots_in_use": ("Puzzles that hold a slot.", service.seated),
            "ponder_slots": ("Slots there are.", dict.fromkeys(service.desks, service.slots)),
        }
        return Response(service.metrics.text(gauges), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> Response:
        if not examples:
            with suppress(Busy, Late, Failed):  # then without, this time
                examples.update(await _examples(service, example))
        return Response(docs_page(app.openapi(), examples, request.url.netloc), media_type="text/html")

    @app.get("/", include_in_schema=False)
    @app.get("/static/{name:path}", include_in_schema=False)
    async def page(request: Request, name: str = "index.html") -> Response:
        if name not in files:
            raise HTTPException(404)
        file = files[name]
        headers = {"ETag": file.etag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=headers)
        return Response(file.content, media_type=file.kind, headers=headers)

    app.router.routes.append(Route("/mcp", mcp))
    _handle_errors(app)
    return app


async def _examples(service: Service, wanted: Mapping[str, Any]) -> dict[str, Example]:
    """Requests to each path, and what this server answers them."""
    solver, inputs = service.read(wanted["model"], wanted["puzzle"])
    items = [item async for item in service.stream(solver.trained, wanted["puzzle"], None, wanted["steps"])]
    *thoughts, answer = items
    assert isinstance(answer, Answer)
    found = answer.as_data(trace=False)
    steps = [as_data(item, solver.domain, inputs) for item in thoughts if not isinstance(item, Answer)]
    events = [_event("step", step) for step in steps] + [_event("answer", found)]
    body = json.dumps(wanted)
    return {
        "/v1/solve": Example("/v1/solve", body, json.dumps(found)),
        "/v1/solve/stream": Example("/v1/solve/stream", body, "".join(events)),
        "/v1/models/{name}/random": Example(f"/v1/models/{solver.name}/random?seed=1"),
        "/v1/models": Example("/v1/models"),
        "/healthz": Example("/healthz"),
        "/metrics": Example("/metrics"),
    }


async def _read(request: Request) -> SolveRequest:
    """The body of a request. Read here, since FastAPI's own way takes a third of a request's time."""
    try:
        return SolveRequest.model_validate_json(await request.body())
    except ValidationError as error:
        raise HTTPException(400, _first(error.errors())) from None


def _first(problems: Sequence[Any]) -> str:
    """What is wrong with a request, in one line."""
    first = problems[0]
    where = ".".join(str(part) for part in first["loc"] if part != "body")
    return f"{where or 'the body'}: {first['msg']}"


async def _while_there(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of the work, or None where the client goes away before it is done."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working, gone = asyncio.create_task(work), asyncio.create_task(watch())
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        gone.cancel()


def _event(name: str, data: Any) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


class Events(Response):
    """Server-sent events, until they end or nobody listens."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[tuple[str, Any]]) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self.events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def work() -> None:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async with aclosing(self.events):  # type: ignore[type-var]
                async for name, data in self.events:
                    await send({"type": "http.response.body", "body": _event(name, data).encode(), "more_body": True})
            await send({"type": "http.response.body", "body": b""})

        await _while_there(receive, work())


def _handle_errors(app: FastAPI) -> None:
    """Every error is {"error": one line}."""

    def answer(status: int, headers: Mapping[str, str] | None = None) -> Callable[[Request, Any], Awaitable[Response]]:
        async def handler(request: Request, error: Exception) -> Response:
            return json_response({"error": str(error)}, status, headers)

        return handler

    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return json_response({"error": _first(error.errors())}, 400)

    async def http(request: Request, error: HTTPException) -> Response:
        line = f"there is no {request.url.path}: see /docs" if error.status_code == 404 else str(error.detail)
        return json_response({"error": line}, error.status_code, error.headers)

    async def broken(request: Request, error: Exception) -> Response:
        return json_response({"error": "the server failed at this request; its log says where"}, 500)

    app.add_exception_handler(RequestValidationError, invalid)  # type: ignore[arg-type]
    app.add_exception_handler(HTTPException, http)  # type: ignore[arg-type]
    app.add_exception_handler(UserError, answer(422))
    app.add_exception_handler(Unknown, answer(404))
    app.add_exception_handler(Busy, answer(503, {"Retry-After": "1"}))
    app.add_exception_handler(Late, answer(504))
    app.add_exception_handler(Failed, answer(500))
    app.add_exception_handler(Exception, broken)  # and uvicorn logs the traceback
