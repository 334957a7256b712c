"""`ponder serve`: real server processes and many clients."""

import asyncio
import json
import re
import shlex
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from html import unescape
from itertools import chain
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import uvicorn

from ponder.cli import main as cli
from ponder.inference.solver import Solver
from ponder.serve.metrics import SECONDS
from tests.support.serving import GOOD, Server, dial, metrics, post, serving, slots_in_use, wait_for

CLIENTS = 200


def right(puzzle: str, answer: list[list[int]]) -> bool:
    """Whether a filled 4x4 grid keeps the clues and the rules."""
    rows = [set(row) for row in answer]
    columns = [set(column) for column in zip(*answer, strict=True)]
    boxes = [{answer[r + i][c + j] for i in (0, 1) for j in (0, 1)} for r in (0, 2) for c in (0, 2)]
    kept = all(p in (".", str(a)) for p, a in zip(puzzle, chain(*answer), strict=True))
    return kept and all(unit == {1, 2, 3, 4} for unit in (*rows, *columns, *boxes))


@pytest.fixture(scope="module")
def narrow(endless: Path) -> Iterator[Server]:
    """Room for two, little time, a token."""
    words = ("--model", "sudoku-4x4", "--model", str(endless), "--slots", "1", "--queue", "1", "--timeout", "4")
    with serving(*words, token="s3cret") as running:
        yield running


@pytest.fixture(scope="module")
def guarded(narrow: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=narrow.url, timeout=60, headers={"Authorization": "Bearer s3cret"}) as client:
        yield client


def read_events(lines: Iterator[str]) -> Iterator[tuple[str, Any]]:
    """Server-sent events, as the standard has them."""
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def test_many_clients_each_get_their_own_answer_once_and_leave_nothing_behind(
    server: Server, http: httpx.Client
) -> None:
    domain = Solver("sudoku-4x4").domain
    puzzles = [domain.format(row) for row in domain.sample(5, CLIENTS)[0]]

    async def ask(client: httpx.AsyncClient, number: int) -> list[dict[str, Any]]:
        body = {"model": "sudoku-4x4", "puzzle": puzzles[number]}
        if number % 4:
            return [(await client.post("/v1/solve", json=body)).raise_for_status().json()]
        got = (await client.post("/v1/solve/stream", json=body)).raise_for_status().text
        return [data for name, data in read_events(iter(got.splitlines())) if name == "answer"]

    async def everyone() -> list[list[dict[str, Any]]]:
        limits = httpx.Limits(max_connections=CLIENTS)
        async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=limits) as client:
            return await asyncio.gather(*(ask(client, number) for number in range(CLIENTS)))

    before = metrics(http)
    for _ in range(3):
        for puzzle, answers in zip(puzzles, asyncio.run(everyone()), strict=True):
            assert [a["puzzle"] for a in answers] == [puzzle]
            assert answers[0]["verified"] == right(puzzle, answers[0]["answer"]["grid"])
    after = metrics(http)
    answered = sum(v - before.get(k, 0) for k, v in after.items() if k.startswith("ponder_puzzles_total"))
    assert answered == 3 * CLIENTS
    assert after['ponder_puzzles_total{model="sudoku-4x4",verified="yes",by="model"}'] > 2.5 * CLIENTS
    assert slots_in_use(http, "sudoku-4x4") == 0
    # They did share the model: far fewer turns than steps.
    steps, turns = (after[f'ponder_{what}_total{{model="sudoku-4x4"}}'] for what in ("steps", "turns"))
    assert turns < steps / 3


def test_stream_shows_every_step_as_it_is_done(http: httpx.Client) -> None:
    alone = Solver("sudoku-4x4").solve(GOOD)
    body = {"model": "endless", "puzzle": GOOD, "steps": 5, "fallback": "exact"}
    with http.stream("POST", "/v1/solve/stream", json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        events = list(read_events(response.iter_lines()))
    assert [name for name, _ in events] == ["step"] * 5 + ["answer"]
    shown = [[int(c) for c in GOOD.replace(".", "0")]]
    for number, (_, step) in enumerate(events[:-1], start=1):
        shown.append([*chain(*step["answer"]["grid"])])
        changed = [i for i in range(16) if shown[-1][i] != shown[-2][i]]
        assert (step["step"], step["valid"]) == (number, False)
        assert set(changed) <= set(step["changed"])
        # An untrained model may also go from one thing that is no digit to another.
        assert all(shown[-1][i] not in (1, 2, 3, 4) for i in set(step["changed"]) - set(changed))
    answer = events[-1][1]
    assert (answer["steps"], answer["by"], answer["verified"]) == (5, "exact", True)
    assert right(GOOD, answer["answer"]["grid"]) and "trace" not in answer
    whole = http.post("/v1/solve", json={"model": "sudoku", "puzzle": GOOD, "trace": True}).json()
    assert whole == json.loads(json.dumps(alone.as_data()))


@pytest.mark.parametrize(
    ("content", "status", "says"),
    [
        ('{"model": "sudoku", "puzzle"', 400, "the body: Invalid JSON"),
        ('{"model": "sudoku"}', 400, "puzzle: Field required"),
        ('{"model": "sudoku", "puzzle": "1", "stesp": 3}', 400, "stesp: Extra inputs are not permitted"),
        ('{"model": "sudoku", "puzzle": "1", "steps": "3"}', 400, "steps: Input should be a valid integer"),
        ("[" * 5000, 400, "the body: Invalid JSON"),
        ('{"model": "sudoku-4y4", "puzzle": "1"}', 404, "did you mean 'sudoku-4x4'?"),
        ('{"model": "sudoku", "puzzle": "11.............."}', 422, "row 1 holds 1 twice"),
        ('{"model": "sudoku-4x4", "puzzle": "123"}', 422, "has 3 cells, expected 16"),
        ('{"model": "sudoku-4x4", "puzzle": "\\ud800..............."}', 400, "the body: Invalid JSON"),
        ('{"model": "sudoku-4x4", "puzzle": {"grid": [[1e400]]}}', 422, ""),
        ('{"model": "sudoku-4x4", "puzzle": {"grid": [[%s, 0, 0, 0]]}}' % ("9" * 4000), 422, ""),
        ('{"model": "sudoku-4x4", "puzzle": null}', 422, ""),
        ('{"model": "sudoku-4x4", "puzzle": "1...............", "steps": 0}', 422, "takes 1 to 16"),
        ('{"model": "sudoku-4x4", "puzzle": "1...............", "steps": 17}', 422, "takes 1 to 16"),
    ],
)
def test_bad_requests_get_a_line_that_helps(http: httpx.Client, content: str, status: int, says: str) -> None:
    for path in ("/v1/solve", "/v1/solve/stream"):
        response = http.post(path, content=content, headers={"Content-Type": "application/json"})
        assert response.status_code == status, response.text
        assert list(response.json()) == ["error"]
        assert says in response.json()["error"] and "\n" not in response.json()["error"]


def test_other_errors_are_json_too(http: httpx.Client) -> None:
    plain = http.post("/v1/solve", content='{"model": "sudoku", "puzzle": "1"}', headers={"Content-Type": "text/plain"})
    assert plain.status_code == 400 and "Content-Type: application/json" in plain.json()["error"]
    assert http.get("/v1/nothing").json() == {"error": "there is no /v1/nothing: see /docs"}
    assert http.get("/v1/solve").status_code == 405
    assert http.get("/v1/models/sudoku-4y4/random").status_code == 404
    assert http.get("/v1/models/sudoku-4x4/random?seed=-1").status_code == 400


def test_models_and_random_puzzles(http: httpx.Client) -> None:
    models = {m["name"]: m for m in http.get("/v1/models").json()["models"]}
    assert list(models) == ["sudoku-4x4", "endless"]
    told, solver = models["sudoku-4x4"], Solver("sudoku-4x4")
    assert told["budget"] == solver.steps == 4 * told["max_steps"]
    assert told["params"]["size"] == 4 and told["domain"] == "sudoku"
    np.testing.assert_array_equal(solver.read(told["example"]), solver.read(told["example_json"]))
    first, again, other = (http.get(f"/v1/models/sudoku-4x4/random?seed={seed}").json() for seed in (1, 1, 2))
    assert first == again != other
    np.testing.assert_array_equal(solver.read(first["puzzle"]), solver.read(first["json"]))


def test_a_client_that_leaves_frees_its_slot(http: httpx.Client, server: Server) -> None:
    body, gone = {"model": "endless", "puzzle": GOOD}, 'ponder_requests_total{path="/v1/solve",status="499"}'
    before = metrics(http).get(gone, 0)
    with http.stream("POST", "/v1/solve/stream", json=body) as response:
        lines = response.iter_lines()  # kept: when it is collected, httpx closes the connection
        next(lines)
        assert slots_in_use(http) == 1
    wait_for(lambda: slots_in_use(http) == 0)
    host, port = server.url.removeprefix("http://").split(":")
    content = json.dumps(body)
    with socket.create_connection((host, int(port))) as raw:  # without streaming, too
        head = f"POST /v1/solve HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        raw.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n{content}".encode())
        wait_for(lambda: slots_in_use(http) == 1)
    wait_for(lambda: slots_in_use(http) == 0)
    assert metrics(http)[gone] == before + 1


def test_page_has_safe_headers_and_asks_no_other_host(http: httpx.Client, server: Server) -> None:
    index = http.get("/")
    assert index.status_code == 200 and index.headers["content-type"] == "text/html; charset=utf-8"
    policy = index.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "*" not in policy
    assert index.headers["x-content-type-options"] == "nosniff"
    assert http.get("/", headers={"If-None-Match": index.headers["etag"]}).status_code == 304
    linked = {f"/{name.lstrip('/')}" for name in re.findall(r'(?:src|href)="([^"#]+)"', index.text)}
    assert any(name.endswith(".js") for name in linked) and any(name.endswith(".css") for name in linked)
    for name in (*linked, "/docs", "/openapi.json"):
        response = http.get(name)
        assert response.status_code == 200, name
        hosts = set(re.findall(r"https?://[^/\s\"'<>]+", response.text)) - {"http://www.w3.org"}
        assert not hosts, (name, hosts)
    host, port = server.url.removeprefix("http://").split(":")
    for path in ("/static/../http.py", "/static/%2e%2e/http.py", "/static//etc/passwd", "/static/..%2fhttp.py"):
        with socket.create_connection((host, int(port))) as raw:  # httpx would tidy the path
            raw.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            assert raw.recv(100).startswith(b"HTTP/1.1 404"), path


def test_docs_and_metrics_are_complete(http: httpx.Client) -> None:
    schema, docs = http.get("/openapi.json").json(), http.get("/docs").text
    for path in ("/v1/solve", "/v1/solve/stream", "/v1/models", "/v1/models/{name}/random", "/healthz", "/metrics"):
        assert path in schema["paths"] and path in docs
    assert "fallback" in json.dumps(schema["paths"]["/v1/solve"]["post"]["requestBody"])
    assert http.get("/healthz").json()["ok"] is True
    sample = re.compile(r'[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? [0-9.e+-]+')
    lines = http.get("/metrics").text.splitlines()
    assert all(re.fullmatch(sample, line) or re.fullmatch(r"# (HELP|TYPE) \S+ .+", line) for line in lines)
    counts = [int(line.split()[-1]) for line in lines if line.startswith('ponder_request_seconds_bucket{path="/docs"')]
    assert len(counts) == len(SECONDS) + 1 and counts == sorted(counts) and counts[-1] >= 1


def test_the_documented_fields_and_examples_are_real(http: httpx.Client) -> None:
    schema, docs = http.get("/openapi.json").json(), http.get("/docs").text

    def documented(path: str, method: str = "get") -> tuple[set[str], set[str]]:
        """All fields of an answer, and those that are always there."""
        (content,) = schema["paths"][path][method]["responses"]["200"]["content"].values()
        fields = schema["components"]["schemas"][content["schema"]["$ref"].rpartition("/")[2]]
        assert set(re.findall(r"<td>([a-z_]+)", docs)) >= set(fields["properties"])
        return set(fields["properties"]), set(fields["required"])

    body = {"model": "sudoku-4x4", "puzzle": GOOD, "steps": 2, "trace": True, "picture": True}
    answer = http.post("/v1/solve", json=body).json()
    assert set(answer) == documented("/v1/solve", "post")[0]
    first, *_ = read_events(iter(http.post("/v1/solve/stream", json=body).text.splitlines()))
    assert set(first[1]) == documented("/v1/solve/stream", "post")[0] >= set(answer["trace"][0])
    assert set(answer["trace"][0]) == documented("/v1/solve/stream", "post")[1]
    for path in ("/v1/models", "/healthz", "/v1/models/{name}/random"):
        assert set(http.get(path.format(name="endless")).json()) == documented(path)[0]
    listed = http.get("/v1/models").json()["models"][0]
    assert set(listed) == set(schema["components"]["schemas"]["ModelBody"]["properties"])
    shown = [unescape(text) for text in re.findall(r"<pre class=plain>(.*?)</pre>", docs, re.DOTALL)]
    requests = [shlex.split(text) for text in shown if text.startswith("curl ")]
    assert {words[-1].partition("/")[2] for words in requests} >= {"v1/solve", "v1/solve/stream", "healthz"}
    for words in requests:
        url = f"http://{words[-1]}"
        given = words[words.index("--json") + 1] if "--json" in words else None
        said = http.get(url) if given is None else http.post(url, json=json.loads(given))
        assert said.status_code == 200
        if given is not None and "stream" not in url:
            assert said.json() in [json.loads(text) for text in shown if text.startswith("{")]
        elif given is not None:
            assert said.text in shown


def test_full_queue_and_time_limit(guarded: httpx.Client) -> None:
    body = {"model": "endless", "puzzle": GOOD}
    statuses: list[tuple[int, dict[str, str]]] = []

    def ask() -> None:
        response = guarded.post("/v1/solve", json=body)
        statuses.append((response.status_code, dict(response.headers)))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(status for status, _ in statuses) == {504: 2, 503: 2}
    assert all(int(headers["retry-after"]) > 0 for status, headers in statuses if status == 503)
    with guarded.stream("POST", "/v1/solve/stream", json=body) as response:
        *_, (name, last) = read_events(response.iter_lines())
    assert name == "error" and "no answer within 4 seconds" in last["error"]
    wait_for(lambda: slots_in_use(guarded) == 0)
    assert guarded.post("/v1/solve", json={"model": "sudoku-4x4", "puzzle": GOOD}).status_code == 200


def test_token(narrow: Server) -> None:
    body = {"model": "sudoku-4x4", "puzzle": GOOD}
    for headers, status in (
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "s3cret"}, 401),
        ({"Authorization": "Bearer s3cret"}, 200),
    ):
        assert httpx.post(f"{narrow.url}/v1/solve", json=body, headers=headers, timeout=60).status_code == status
    closed, open_ = ("/v1/models", "/metrics", "/mcp"), ("/healthz", "/", "/docs", "/openapi.json")
    for path, status in [*((path, 401) for path in closed), *((path, 200) for path in open_)]:
        assert httpx.get(narrow.url + path).status_code == status, path


def test_long_bodies_are_not_read(narrow: Server, guarded: httpx.Client) -> None:
    sent = 0

    def chunks() -> Iterator[bytes]:
        nonlocal sent
        while sent < 50_000_000:
            sent += 65536
            yield b" " * 65536

    for size in (300_000, 10_000_000):
        with dial(narrow) as raw:  # which sends all before it reads
            raw.sendall(post(b" " * size, "Content-Type: application/json\r\nAuthorization: Bearer s3cret"))
            said = b""
            while not said.partition(b"\r\n\r\n")[2]:  # the body may come after the headers
                more = raw.recv(65536)
                assert more
                said += more
        assert said.startswith(b"HTTP/1.1 413") and b"at most 262144 bytes" in said
    with suppress(httpx.WriteError):  # the server has answered long ago, and does not wait for the end
        guarded.post("/v1/solve", content=chunks(), headers={"Content-Type": "application/json"})
    assert 0 < sent < 40_000_000
    assert metrics(guarded)['ponder_requests_total{path="/v1/solve",status="413"}'] == 3


def test_shutdown_finishes_what_is_under_way(endless: Path) -> None:
    events: list[tuple[str, Any]] = []
    body = {"model": "endless", "puzzle": GOOD, "steps": 60}
    with serving("--model", endless, "--timeout", "600") as ending:
        with httpx.stream("POST", f"{ending.url}/v1/solve/stream", json=body, timeout=600) as response:
            for event in read_events(response.iter_lines()):
                events.append(event)
                if len(events) == 1:
                    ending.started.send(signal.SIGTERM)
        assert [name for name, _ in events] == ["step"] * 60 + ["answer"]
        assert ending.started.ended(60) in (0, -signal.SIGTERM)
        with pytest.raises(httpx.ConnectError):
            httpx.get(ending.url + "/healthz")


def test_refuses_to_be_open_by_accident(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PONDER_TOKEN", raising=False)
    monkeypatch.setattr(uvicorn.Server, "run", lambda *_, **__: pytest.fail("it serves"))
    for words, says in (
        (["--host", "0.0.0.0"], "set PONDER_TOKEN, or give --open"),
        (["--threads", "0"], "threads 0 is too small"),
        (["--port", "0", "--slots", "0"], "slots 0 is too small"),
        (["--port", "0", "--timeout", "0"], "timeout 0 is too small"),
        (["--port", "0", "--model", "sudoku-4y4"], "did you mean 'sudoku-4x4'"),
        (["--port", "99999"], "port 99999 does not exist"),
    ):
        assert cli(["serve", *words]) == 2
        assert says in capsys.readouterr().err
