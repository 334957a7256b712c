"""What every request passes through: the host it names, the token, the limits of its body, the headers of its answer,
the metrics and the log."""

import asyncio
import hmac
import json
import logging
import socket
import time
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ponder.serve.metrics import Metrics
from ponder.serve.pages import POLICY, policy_text

log = logging.getLogger("ponder.requests")

BODY = 256 * 1024
"""Bytes. The largest puzzles, ARC tasks as JSON, take a few ten thousand."""
PATIENCE = 20.0
"""Seconds within which a body must have arrived."""

GONE = 499
"""Whoever has gone hears nothing of this; it is for the metrics."""

PUBLIC = ("/", "/static", "/healthz", "/docs", "/openapi.json")
"""Needs no token: a browser cannot send one before it has the page, and nothing of it is secret."""
PATHS = ("/v1/solve/stream", "/v1/solve", "/v1/models", "/metrics", "/mcp", *PUBLIC[1:])
"""What requests are counted by, the longest first; all others are one."""

HEADERS = {
    "Content-Security-Policy": policy_text(POLICY),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


def json_response(data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """JSON in ASCII: what a client sent may come back in an error, and not every string can be written as UTF-8."""
    return Response(json.dumps(data, separators=(",", ":")), status, headers, "application/json")


class Guard:
    def __init__(
        self, app: ASGIApp, metrics: Metrics, token: str | None, body_limit: int, hosts: Sequence[str] = ()
    ) -> None:
        self.app, self.metrics, self.body_limit = app, metrics, body_limit
        self.secret = None if token is None else f"Bearer {token}".encode()
        self.hosts = {socket.gethostname().lower(), *(host.lower() for host in hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), GONE
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
            elif replay is not None:
                # uvicorn still knows that it was HEAD, and keeps the body to itself.
                plain = {**scope, "method": "GET"} if scope["method"] == "HEAD" and path != "/mcp" else scope
                await self.app(plain, replay, send_on)
        except BaseException:
            status = 500
            raise
        finally:
            seconds = time.perf_counter() - began
            self.metrics.requests.add(path, str(status))
            self.metrics.seconds.add(path, seconds)
            client = scope["client"][0] if scope["client"] else "-"
            where = scope["raw_path"].decode("ascii", "backslashreplace")
            log.info("%s %s %s %d %.0f ms", client, scope["method"], where, status, 1000 * seconds)

    async def _admit(self, scope: Scope, receive: Receive, path: str) -> tuple[Response | None, Receive | None]:
        """Why the request is refused, if it is; and its body, read to the end, for those who want it. Neither where the
        client went away while it sent its body."""
        headers = Headers(scope=scope)
        if not self._ours(headers.get("host")):
            line = "this server does not go by that name: use its address, or start it with --allow-host NAME"
            return json_response({"error": line}, 421), receive
        if self.secret is not None and path not in PUBLIC:
            given = headers.get("authorization", "").encode("latin-1")
            if not hmac.compare_digest(given, self.secret):
                line = "this server wants its token: send the header 'Authorization: Bearer TOKEN'"
                return json_response({"error": line}, 401, {"WWW-Authenticate": "Bearer"}), receive
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if scope["method"] == "POST" and kind != "application/json":  # nor can another site's page send this unasked
            line = "the body should be JSON, sent with the header 'Content-Type: application/json'"
            return json_response({"error": line}, 400), receive
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
            return json_response({"error": line}, 413), receive
        if gone:
            return None, None
        first: Message | None = {"type": "http.request", "body": b"".join(parts), "more_body": False}

        async def replay() -> Message:
            nonlocal first
            if first is None:
                return await receive()
            message, first = first, None
            return message

        return None, replay

    def _ours(self, host: str | None) -> bool:
        """Whether this server may be called so. A page of another site can have its name point here, and is then free
        to read what we answer; what it cannot do is be at an address."""
        if not host:
            return True
        try:
            name = urlsplit(f"//{host}").hostname or ""
            return name == "localhost" or name.endswith(".localhost") or name in self.hosts or bool(ip_address(name))
        except ValueError:
            return False
