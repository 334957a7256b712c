"""What every request passes through: the token, the limits of its body, the headers of its answer, the metrics."""

import asyncio
import hmac
import json
import time
from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ponder.serve.metrics import Metrics

BODY = 256 * 1024
"""Bytes. The largest puzzles, ARC tasks as JSON, take a few ten thousand."""
PATIENCE = 20.0
"""Seconds within which a body must have arrived."""

PUBLIC = ("/", "/static", "/healthz", "/docs", "/openapi.json")
"""Needs no token: a browser cannot send one before it has the page, and nothing of it is secret."""
PATHS = (
    "/v1/solve/stream",
    "/v1/solve",
    "/v1/models",
    "/metrics",
    "/healthz",
    "/static",
    "/mcp",
    "/docs",
    "/openapi.json",
)

HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def json_response(data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """JSON in ASCII: what a client sent may come back in an error, and not every string can be written as UTF-8."""
    return Response(json.dumps(data, separators=(",", ":")), status, headers, "application/json")


class Guard:
    def __init__(self, app: ASGIApp, metrics: Metrics, token: str | None, body_limit: int) -> None:
        self.app, self.metrics, self.body_limit = app, metrics, body_limit
        self.secret = None if token is None else f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500
        path = next((p for p in PATHS if scope["path"] == p or scope["path"].startswith(p + "/")), None)
        path = path or ("/" if scope["path"] == "/" else "other")

        async def send_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(raw=message["headers"])
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            refusal, replay = await self._admit(scope, receive, path)
            if refusal is not None:
                await refusal(scope, receive, send_on)
            else:
                await self.app(scope, replay, send_on)
        finally:
            self.metrics.requests.add(path, str(status))
            self.metrics.seconds.add(path, time.perf_counter() - began)

    async def _admit(self, scope: Scope, receive: Receive, path: str) -> tuple[Response | None, Receive]:
        """Why the request is refused, if it is; and its body, read to the end, for those who want it."""
        headers = Headers(scope=scope)
        if self.secret is not None and path not in PUBLIC:
            given = headers.get("authorization", "").encode("latin-1")
            if not hmac.compare_digest(given, self.secret):
                line = "this server wants its token: send the header 'Authorization: Bearer TOKEN'"
                return json_response(
                    {"error": line}, 401, {"WWW-Authenticate": "Bearer", "Connection": "close"}
                ), receive
        if "content-length" not in headers and "transfer-encoding" not in headers:
            return None, receive
        parts: list[bytes] = []
        size, more, gone = int(headers.get("content-length", "0")), True, False
        if size <= self.body_limit:
            size = 0
            try:
                async with asyncio.timeout(PATIENCE):
                    while more and not gone and size <= self.body_limit:
                        message = await receive()
                        gone = message["type"] == "http.disconnect"
                        parts.append(message.get("body", b""))
                        size += len(parts[-1])
                        more = message.get("more_body", False)
            except TimeoutError:
                line = f"the body did not arrive within {PATIENCE:g} seconds"
                return json_response({"error": line}, 408, {"Connection": "close"}), receive
        if size > self.body_limit:
            line = f"the body is too long: at most {self.body_limit} bytes are read"
            return json_response({"error": line}, 413, {"Connection": "close"}), receive
        first: Message | None = {"type": "http.request", "body": b"".join(parts), "more_body": False}
        if gone:
            first = {"type": "http.disconnect"}

        async def replay() -> Message:
            nonlocal first
            if first is None:
                return await receive()
            message, first = first, None
            return message

        return None, replay
