"""Questions to an OpenAI-compatible server, each asked until it is answered: time-outs, retries, rate limits.

Plain httpx instead of a vendor's client: retries, the total time of a request and what counts as an answer are decided
here and nowhere else, and a server that bends the protocol a little is still understood.
"""

import asyncio
import json
import random
import signal
import sys
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ponder.base.console import printable
from ponder.base.errors import UserError, needs_extra
from ponder.llm.prompt import LlmJob

if TYPE_CHECKING:
    import httpx

PATH = "/chat/completions"
LONGEST_BACKOFF = 60.0
LONGEST_WAIT = 600.0
"""A server that asks for more patience than this is taken as not answering."""
LONGEST_BODY = 8 * 2**20
"""Bytes of a response that are read, as sent and as unpacked. A million tokens of thinking take half of it."""


@dataclass(frozen=True)
class Endpoint:
    url: str
    key: str | None = None
    timeout: float = 600.0
    retries: int = 6
    backoff: float = 1.0
    """Seconds before the first repetition; doubled for each further one, less up to half at random."""


@dataclass(frozen=True)
class Reply:
    text: str
    reasoning: str
    """Thinking that the server keeps apart from the answer. Never read as an answer."""
    finish: str
    served: str
    """The model's name according to the server."""
    tokens_in: int | None
    tokens_out: int | None
    """Thinking included, as servers bill it."""
    seconds: float
    tries: int


class Unanswered(Exception):
    """Given up on a question after all retries."""


class Stopped(Exception):
    """Not asked (again), because the whole evaluation is being stopped."""


class Broken(Exception):
    """A response that is none, or an error that may pass. `wait` is how long the server asks to leave it alone."""

    def __init__(self, problem: str, wait: float = 0.0) -> None:
        super().__init__(problem)
        self.wait = wait


def load_httpx() -> ModuleType:
    try:
        import httpx
    except ImportError:
        raise needs_extra("eval-llm", "llm") from None
    return httpx


def chat_url(endpoint: str) -> str:
    """Where to post, from `http://host:port/v1` or the full address."""
    wrong = UserError(f"--endpoint {endpoint!r} is no address: write it as http://localhost:8000/v1")
    try:
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            raise wrong
    except ValueError:
        raise wrong from None
    path = parts.path.rstrip("/")
    return parts._replace(path=path if path.endswith(PATH) else path + PATH).geturl()


class Client:
    """Asks one server. A rate limit met by one question holds up all of them."""

    def __init__(self, endpoint: Endpoint, connections: int, stop: asyncio.Event) -> None:
        self.httpx = load_httpx()
        self.endpoint, self.url, self.stop = endpoint, chat_url(endpoint.url), stop
        self.not_before = 0.0
        self.http: httpx.AsyncClient = self.httpx.AsyncClient(
            # Nothing packed is asked for: a few bytes of it may unpack to more than the machine has.
            headers={"Accept-Encoding": "identity"}
            | ({"Authorization": f"Bearer {endpoint.key}"} if endpoint.key else {}),
            timeout=self.httpx.Timeout(endpoint.timeout),
            limits=self.httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
            trust_env=not _here(self.url),  # a proxy cannot reach a server on this machine
        )

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.http.aclose()

    async def ask(self, request: dict[str, Any]) -> Reply:
        """The answer. Raises Unanswered after all retries, UserError where the server refuses, Stopped when told to."""
        problem = ""
        for tries in range(1, self.endpoint.retries + 2):
            await self._pause(tries)
            began = time.monotonic()
            try:
                async with (
                    asyncio.timeout(self.endpoint.timeout),
                    self.http.stream("POST", self.url, json=request) as response,
                ):
                    body = await _body(response)
                return self._reply(response, body, time.monotonic() - began, tries)
            except (TimeoutError, self.httpx.TimeoutException):
                problem = f"no answer within {self.endpoint.timeout:g} s"
            except self.httpx.RequestError as error:
                problem = f"the connection failed ({_short(str(error)) or type(error).__name__})"
            except Broken as error:
                problem = str(error)
                if error.wait > LONGEST_WAIT:
                    raise Unanswered(f"{problem}; asks to wait {error.wait:.0f} s") from None
                self.not_before = max(self.not_before, time.monotonic() + error.wait)
        raise Unanswered(f"{problem}, {self.endpoint.retries + 1} tries")

    async def _pause(self, tries: int) -> None:
        """Sleep before a try: the backoff, and for as long as the server wants to be left alone."""
        until = time.monotonic()
        if tries > 1:
            until += min(LONGEST_BACKOFF, self.endpoint.backoff * 2 ** (tries - 2)) * random.uniform(0.5, 1)
        while not self.stop.is_set():
            left = max(until, self.not_before) - time.monotonic()
            if left <= 0:
                return
            try:
                await asyncio.wait_for(self.stop.wait(), left)
            except TimeoutError:
                continue
        raise Stopped

    def _reply(self, response: "httpx.Response", body: bytes, seconds: float, tries: int) -> Reply:
        status = response.status_code
        if status in (408, 429) or status >= 500:
            wait = _retry_after(response.headers.get("Retry-After"))
            raise Broken(f"HTTP {status}: {self._message(body)}", wait)
        if not 200 <= status < 300:
            hint = {
                401: "; name the variable that holds the key with --api-key-env",
                403: "; name the variable that holds the key with --api-key-env",
                404: "; --endpoint usually ends in /v1, and --model must be one the server has",
            }.get(status, "")
            raise UserError(f"the server refused the request, HTTP {status}: {self._message(body)}{hint}")
        try:
            data = json.loads(body)
            choice = data["choices"][0]
            message, usage = choice["message"], data.get("usage") or {}
            content, finish = message.get("content"), str(choice.get("finish_reason") or "")
            if content is None and finish != "length":  # cut off while it thought: that is all the model has to say
                raise Broken("the answer has no content")
            return Reply(
                text=_text(content),
                reasoning=_text(message.get("reasoning_content") or message.get("reasoning")),
                finish=finish,
                served=str(data.get("model") or ""),
                tokens_in=_count(usage.get("prompt_tokens")),
                tokens_out=_count(usage.get("completion_tokens")),
                seconds=seconds,
                tries=tries,
            )
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
            raise Broken(f"not a chat completion: {self._message(body)}") from None

    def _message(self, body: bytes) -> str:
        """What the server says in its own words, on one line, without the key should it repeat it."""
        try:
            data = json.loads(body)
            for key in ("error", "message", "detail"):
                if isinstance(data, dict) and data.get(key):
                    data = data[key]
            text = data if isinstance(data, str) else str(data)
        except (ValueError, RecursionError):
            text = body.decode(errors="replace")
        if self.endpoint.key:
            text = text.replace(self.endpoint.key, "***")
        return _short(text) or "(no message)"


# Many questions at once -----------------------------------------------------------------------------------------------


async def ask_all(
    jobs: Sequence[LlmJob], endpoint: Endpoint, concurrency: int, record: Callable[[LlmJob, Reply | Unanswered], None]
) -> str:
    """Ask all jobs, at most `concurrency` at once. Returns why it stopped early; empty where it did not.

    On the first Ctrl-C (or SIGTERM), and where the server refuses a request, nothing new is asked but what is under way
    is waited for: it has been paid for.
    """
    stop, todo = asyncio.Event(), deque(jobs)
    why, failed = "", 0

    def halt(reason: str) -> None:
        nonlocal why
        why = why or reason
        stop.set()

    async def worker(client: Client) -> None:
        nonlocal failed
        while todo and not stop.is_set():
            job = todo.popleft()
            try:
                record(job, await client.ask(dict(job.request)))
                failed = 0
            except Stopped:
                return
            except Unanswered as error:
                record(job, error)
                failed += 1
                if failed >= max(3, concurrency):
                    halt(f"the endpoint answered none of the last {failed} questions ({error})")
            except UserError as error:
                halt(str(error))

    with _signals(asyncio.get_running_loop(), halt):
        async with Client(endpoint, concurrency, stop) as client, asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(jobs))):
                group.create_task(worker(client))
    return why


@contextmanager
def _signals(loop: asyncio.AbstractEventLoop, halt: Callable[[str], None]) -> Iterator[None]:
    """The first signal halts; a second one has its usual effect."""
    numbers = (signal.SIGINT, signal.SIGTERM)

    def first() -> None:
        for number in numbers:
            loop.remove_signal_handler(number)
        print("waiting for the questions under way; once more to drop them", file=sys.stderr)
        halt("interrupted")

    with suppress(NotImplementedError, ValueError, RuntimeError):  # not on Windows, not outside the main thread
        for number in numbers:
            loop.add_signal_handler(number, first)
    try:
        yield
    finally:
        with suppress(NotImplementedError, ValueError, RuntimeError):
            for number in numbers:
                loop.remove_signal_handler(number)


# Small things ---------------------------------------------------------------------------------------------------------


def _here(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _retry_after(header: str | None) -> float:
    """Seconds, given as such or as a date."""
    try:
        return max(0.0, float(header or 0))
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(header or "") - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return 0.0


async def _body(response: "httpx.Response") -> bytes:
    """What the server sent, unpacked where it packed it all the same."""
    parts, size = [], 0
    async for part in response.aiter_raw():
        parts.append(part)
        size += len(part)
        if size > LONGEST_BODY:
            raise Broken(f"the response has more than {LONGEST_BODY} bytes")
    body, packed = b"".join(parts), response.headers.get("Content-Encoding", "identity").strip().lower()
    if packed == "identity":
        return body
    if packed not in ("gzip", "deflate"):
        raise Broken(f"the response is packed as {_short(packed, 30)}, which was not asked for")
    unpacking = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        body = unpacking.decompress(body, LONGEST_BODY)
    except zlib.error:
        raise Broken(f"the response is not the {packed} it says it is") from None
    if not unpacking.eof:
        raise Broken(f"the response unpacks to more than {LONGEST_BODY} bytes, or is cut short")
    return body


def _text(content: Any) -> str:
    """Content is a string, null, or a list of parts."""
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


def _count(value: Any) -> int | None:
    """A number of tokens; None for what can be none (servers have said NaN, Infinity, -1 and 1e999)."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if number and 0 <= value < 2**53 else None


def _short(text: str, length: int = 300) -> str:
    line = printable(" ".join(text[: 10 * length].split()))
    return line if len(line) <= length else f"{line[: length - 3]}..."
