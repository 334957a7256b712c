"""The server's connections: how long and how many they may be, and that each request gets an answer.

uvicorn and h11 do the work. What they leave open is closed here, in their own classes: a connection without a request
has a limit in time and number; a client that has closed its sending half gets its answer; so does one that is just
connecting when the server is told to end.
"""

import asyncio
import json
import socket
from contextlib import suppress
from ipaddress import ip_address

from ponder.base.errors import UserError, at_least, needs_extra

try:
    import h11
    import uvicorn
    from starlette.types import ASGIApp
    from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol
    from uvicorn.server import ServerState
except ModuleNotFoundError:
    raise needs_extra("ponder serve", "serve") from None

CONNECTIONS = 800
"""Of the 1,024 files that a process may have open on most systems."""
HEADERS = 10.0
"""Seconds within which the headers of a request must have arrived, and what is left of a body that was refused."""
GRACE = 0.5
"""Seconds for a request on its way when the server is told to end."""
PROBE = 0.5
"""Seconds between two looks whether a client that sends no more still listens."""
DISCARDED = 16 * 2**20
"""Bytes of a refused body that are read, so that the client comes to read why."""


class State(ServerState):
    ending = False


class Connection(H11Protocol):
    server_state: State

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.discarded = 0
        self.half = False
        """Whether the client has closed its sending half."""
        self.timer: asyncio.TimerHandle | None = None
        self._wait(GRACE if self.server_state.ending else HEADERS)
        self.limit_concurrency = None  # uvicorn would refuse requests and keep the connections that have none
        if len(self.connections) > self.limit:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.timer is not None:
            self.timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.conn.our_state is h11.DONE:  # answered before all of the body was there
            self.discarded += len(data)
            if self.discarded > DISCARDED:
                self.transport.close()
                return
        super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        if (self.server_state.ending or self.half) and not self.idle:
            self.cycle.keep_alive = bool(self.conn.trailing_data[0])  # for another request that has come already

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.discarded = 0
        self._wait(HEADERS)

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more. Where its request is whole, it may still listen."""
        if self.idle or self.cycle.more_body:
            return False
        self.half = True
        self.handle_events()
        self._probe()
        return True

    def shutdown(self) -> None:
        if self.idle:
            self._wait(GRACE)
        else:
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "this is not HTTP as it should be")

    # Ours ---------------------------------------------------------------------------------------------------------

    @property
    def limit(self) -> int:
        return self.config.limit_concurrency or CONNECTIONS

    @property
    def idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _wait(self, seconds: float) -> None:
        """Wait so long for the next request, from now on."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer = self.loop.call_later(seconds, self._give_up)

    def _give_up(self) -> None:
        if not self.idle or self.transport.is_closing():
            return
        if not self.conn.trailing_data[0]:
            self.transport.close()
        elif self.server_state.ending:
            self._refuse(503, "this server is shutting down")
        else:
            self._refuse(408, f"the headers did not arrive within {HEADERS:g} seconds")

    def _make_room(self) -> None:
        """Let the connection go that has waited longest without a request; this one where all have one."""
        alive = [each for each in self.connections if isinstance(each, Connection) and not each.transport.is_closing()]
        if len(alive) > self.limit:
            idle = [each for each in alive if each is not self and each.idle and each.timer is not None]
            gone = min(idle, key=lambda each: each.timer.when(), default=self)  # type: ignore[union-attr]
            gone._refuse(503, f"this server has {self.limit} connections, and room for no more")

    def _refuse(self, status: int, line: str) -> None:
        """A last word that is not the application's, where one can still be said."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps({"error": line}).encode()
            headers = [
                ("Content-Type", "application/json"),
                ("Content-Length", str(len(body))),
                ("Connection", "close"),
            ]
            said = h11.Response(status_code=status, headers=headers, reason=STATUS_PHRASES[status])
            for event in (said, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _probe(self) -> None:
        """Write something now and then until the answer is there: a client that has gone altogether does not take it,
        and its puzzle need not be solved."""
        if self.transport.is_closing() or self.cycle.response_started:
            return
        if self.scope["http_version"] == "1.1":
            still = h11.InformationalResponse(status_code=102, headers=[], reason=b"Processing")
            self.transport.write(self.conn.send(still) or b"")
        self.loop.call_later(PROBE, self._probe)


class Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.server_state: State = State()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.server_state.ending = True
        late: list[socket.socket] = []
        for listening in sockets or []:
            with suppress(OSError):  # until nobody is left whom the system has let in already
                while True:
                    late.append(listening.accept()[0])
        letting_in = asyncio.create_task(self._let_in(late))
        await super().shutdown(sockets)
        await letting_in

    async def _let_in(self, late: list[socket.socket]) -> None:
        loop = asyncio.get_running_loop()

        def connection() -> Connection:
            return Connection(self.config, self.server_state, self.lifespan.state, loop)

        for each in late:
            each.setblocking(False)
            await loop.connect_accepted_socket(connection, each)


def run(app: ASGIApp, listening: socket.socket, timeout: float, connections: int = CONNECTIONS) -> bool:
    """Serve until a signal ends it; whether it ever started. Puzzles under way have `timeout` seconds then."""
    at_least(1, {"connections": connections})
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=connections,
        timeout_graceful_shutdown=int(timeout) + 5,
    )
    server = Server(config)
    server.run(sockets=[listening])
    return server.started


def loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections from now on, so that whoever reads the address can use it at once."""
    if not 0 <= port < 65536:
        raise UserError(f"port {port} does not exist: give 1 to 65535, or 0 for any free one")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(2048)
    except OSError as error:
        raise UserError(f"cannot listen at {host} port {port}: {error}; give another --host or --port") from None
    return listening
