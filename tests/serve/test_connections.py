"""Connections: many, idle, half open, cut, of other sites; and a server that is told to end."""

import json
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.support.serving import GOOD, Server, dial, metrics, post, serving, slots_in_use, wait_for


def read_all(raw: socket.socket) -> bytes:
    """What comes until the server closes the connection."""
    return b"".join(iter(lambda: raw.recv(65536), b""))


SOLVE = json.dumps({"model": "sudoku-4x4", "puzzle": GOOD}).encode()


ENDLESS = json.dumps({"model": "endless", "puzzle": GOOD}).encode()


def test_a_connection_without_a_request_ends(server: Server) -> None:
    """Whether it says nothing, or begins its headers and goes on to send a little; and one that has had its answer."""
    with dial(server) as silent, dial(server) as slow, dial(server) as answered:
        slow.sendall(b"GET /healthz HTTP/1.1\r\n")
        answered.sendall(b"HEAD /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        wait_for(lambda: answered.recv(15).startswith(b"HTTP/1.1 200"))
        answered.sendall(b"GET /")
        said = b""
        slow.settimeout(1)
        for number in range(60):
            try:
                said += slow.recv(65536)
                break
            except TimeoutError:
                slow.sendall(f"X-{number}: 1\r\n".encode())
        slow.settimeout(60)
        said += read_all(slow)
        assert said.startswith(b"HTTP/1.1 408") and b"within 10 seconds" in said
        assert read_all(silent) == b"" and b"HTTP/1.1 408" in read_all(answered)


def test_connections_are_bounded_and_the_idle_ones_go_first(endless: Path) -> None:
    with serving("--model", str(endless), "--connections", "20") as few:
        working = dial(few)
        working.sendall(post(ENDLESS))

        def slots() -> float:
            with httpx.Client(base_url=few.url, timeout=60) as client:
                return slots_in_use(client)

        wait_for(lambda: slots() == 1)
        held = [dial(few) for _ in range(100)]
        assert slots() == 1, "who has a request under way stays, and who brings one is let in"
        for raw in held[:80]:
            with suppress(ConnectionError):
                assert raw.recv(100)[:12] in (b"", b"HTTP/1.1 503")
        for raw in (working, *held):
            raw.close()


def test_a_client_that_vanishes_amid_its_body_is_no_failure(server: Server, http: httpx.Client) -> None:
    before = metrics(http)
    with dial(server) as raw:
        raw.sendall(post(SOLVE[:20], size=len(SOLVE)))
        time.sleep(0.1)
    key = 'ponder_requests_total{path="/v1/solve",status="499"}'
    wait_for(lambda: metrics(http).get(key, 0) == before.get(key, 0) + 1)
    assert {k: v for k, v in metrics(http).items() if 'status="500"' in k} == {}


@pytest.mark.parametrize("ending", ["half", "last"])
def test_who_sends_no_more_still_gets_the_answer(server: Server, ending: str) -> None:
    with dial(server) as raw:
        raw.sendall(post(SOLVE) if ending == "half" else post(SOLVE) + post(SOLVE))
        raw.shutdown(socket.SHUT_WR)
        said = read_all(raw)
    assert said.count(b'"verified":true') == (1 if ending == "half" else 2)


def test_no_page_of_another_site_can_ask(http: httpx.Client) -> None:
    """It can send text/plain without the browser asking first, and have its own name point to this machine."""
    content = '{"model": "sudoku-4x4", "puzzle": "1...............", "steps": 1}'
    for kind in (
        "text/plain; x=application/json",
        "text/plain",
        "application/jsonx",
        "multipart/form-data; a=json",
        "",
    ):
        for path in ("/v1/solve", "/v1/solve/stream", "/mcp"):
            assert http.post(path, content=content, headers={"Content-Type": kind}).status_code == 400, (kind, path)
    fine = {"Content-Type": "Application/JSON ; charset=utf-8"}
    assert http.post("/v1/solve", content=content, headers=fine).status_code == 200
    for path in ("/", "/v1/models", "/healthz", "/static/app.js", "/mcp", "/docs", "/nothing"):
        for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost@evil.example", "[::1"):
            response = http.get(path, headers={"Host": host})
            assert response.status_code == 421 and "--allow-host" in response.json()["error"], (path, host)
    for host in ("localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:9", "192.168.0.7:8000", socket.gethostname()):
        assert http.get("/v1/models", headers={"Host": host}).status_code == 200, host


def test_allowed_names_and_the_log() -> None:
    with serving("--model", "sudoku-4x4", "--allow-host", "Puzzles.example", "--log") as named:
        mine = {"Host": "puzzles.example", "Accept": "application/json, text/event-stream"}
        hello = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
        assert httpx.get(f"{named.url}/healthz", headers=mine).status_code == 200
        assert httpx.get(f"{named.url}/v1/models?a=b", headers={"Host": "other.example"}).status_code == 421
        assert httpx.post(f"{named.url}/mcp", json=hello, headers=mine).status_code == 200
        named.started.send(signal.SIGTERM)
        named.started.ended(30)
        where, *log = named.started.said.splitlines()
        assert where.startswith("serving") and [line.split()[2:6] for line in log] == [
            ["127.0.0.1", "GET", "/healthz", "200"],
            ["127.0.0.1", "GET", "/v1/models", "421"],
            ["127.0.0.1", "POST", "/mcp", "200"],
        ]


def test_told_to_end_it_answers_who_is_just_connecting() -> None:
    """Or refuses them: none is cut off."""
    with serving("--model", "sudoku-4x4") as ending:
        request = post(SOLVE)
        early = [dial(ending) for _ in range(10)]
        for raw in early:
            raw.sendall(request[:30])
        assert httpx.get(f"{ending.url}/healthz").status_code == 200  # by now it has them
        ending.started.send(signal.SIGSTOP)
        late = [dial(ending) for _ in range(20)]
        for raw in late[10:]:
            raw.sendall(request)
        ending.started.send(signal.SIGTERM)
        ending.started.send(signal.SIGCONT)
        time.sleep(0.2)
        for raw in early[5:]:
            raw.sendall(request[30:])
        for raw in late[:10]:
            raw.sendall(request)
        assert {read_all(raw)[:12] for raw in early[:5]} == {b"HTTP/1.1 503"}
        assert {read_all(raw)[:12] for raw in (*early[5:], *late)} <= {b"HTTP/1.1 200", b"HTTP/1.1 503"}
        assert ending.started.ended(30) in (0, -signal.SIGTERM)


def test_head_is_get_without_the_body(http: httpx.Client) -> None:
    for path in ("/", "/static/app.js", "/healthz", "/docs", "/openapi.json", "/v1/models", "/nothing"):
        head, get = http.head(path), http.get(path)
        assert head.status_code == get.status_code and head.content == b"", path
        assert head.headers["content-length"] == str(len(get.content)), path
