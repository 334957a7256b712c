"""A small server that speaks OpenAI's chat completions and misbehaves to order. Standard library only, its own process.

The model's name is a script: `500,slow,right` answers the first request for a prompt with an error, lets the second
wait and solves the puzzle at the third and all later ones. Puzzles are 4x4 sudokus, found in the prompt and solved
here, so that a right answer also shows that the prompt says all there is to know.
"""

import gzip
import json
import re
import socket
import struct
import sys
import threading
import time
import zlib
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import permutations, product
from typing import Any

PATIENCE = 30.0
"""Seconds for which a slow answer is not given; a client should have gone away by then."""
ODD_COUNTS = {"infinity": "Infinity", "overflow": "1e999", "nan": "NaN", "minus": "-1", "digits": "9" * 4000}
"""What a server may say that it counted."""


def solve(puzzle: str) -> str:
    """The first filling that fits: each row a permutation, no column and no box twice the same digit."""
    fitting = [
        [
            p
            for p in permutations("1234")
            if all(c in (".", d) for c, d in zip(puzzle[4 * r : 4 * r + 4], p, strict=True))
        ]
        for r in range(4)
    ]
    for rows in product(*fitting):
        columns = all(len(set(column)) == 4 for column in zip(*rows, strict=True))
        boxes = [rows[r][c : c + 2] + rows[r + 1][c : c + 2] for r in (0, 2) for c in (0, 2)]
        if columns and all(len(set(box)) == 4 for box in boxes):
            return "/".join("".join(row) for row in rows)
    raise ValueError(puzzle)


class Book:
    """What the server remembers, for the tests to ask."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.gate = threading.Event()
        self.clear()

    def clear(self) -> None:
        self.requests: dict[str, int] = {}
        """Puzzle -> requests received."""
        self.answers: dict[str, list[str]] = {}
        """Puzzle -> what was answered, where the client was still there to hear it."""
        self.log: list[tuple[float, str, str]] = []
        self.bodies: list[Any] = []
        self.keys: list[str | None] = []
        self.now = self.most = 0
        self.outlasted = 0
        """Clients that waited longer than the server had patience."""
        self.gate.clear()

    def stats(self) -> dict[str, Any]:
        with self.lock:
            names = ("requests", "answers", "log", "bodies", "keys", "now", "most", "outlasted")
            return {name: getattr(self, name) for name in names}


BOOK = Book()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.send(200, json.dumps(BOOK.stats()))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/open":
            BOOK.gate.set()
            self.send(200, "{}")
        elif self.path == "/clear":
            with BOOK.lock:
                BOOK.clear()
            self.send(200, "{}")
        elif self.path == "/v1/chat/completions":
            self.chat(json.loads(body))
        else:
            self.send(404, json.dumps({"error": {"message": f"no such path {self.path}"}}))

    def chat(self, request: dict[str, Any]) -> None:
        found = re.search(r"Puzzle: ([.1-4]{16})", request["messages"][-1]["content"])
        puzzle = found.group(1) if found else "?"
        script = request["model"].split(",")
        with BOOK.lock:
            seen = BOOK.requests[puzzle] = BOOK.requests.get(puzzle, 0) + 1
            what = script[min(seen, len(script)) - 1]
            BOOK.log.append((time.monotonic(), puzzle, what))
            BOOK.bodies.append({key: value for key, value in request.items() if key != "messages"})
            BOOK.keys.append(self.headers.get("Authorization"))
            BOOK.now += 1
            BOOK.most = max(BOOK.most, BOOK.now)
            number = sum(BOOK.requests.values())
        try:
            self.act(what, puzzle, request, number)
        finally:
            with BOOK.lock:
                BOOK.now -= 1

    def act(self, what: str, puzzle: str, request: dict[str, Any], number: int) -> None:
        what, _, count = what.partition(":")
        if what == "mixed":
            what = ("right", "wrong", "prose")[zlib.crc32(puzzle.encode()) % 3]
        if what == "gate":
            if number > int(count):
                self.wait_for_gate()
            what = "right"
        if what == "limit":
            what = "429" if number == 1 else "pause"
        if what == "pause":
            time.sleep(0.1)
            what = "right"
        if what.isdigit():
            headers = {"429": {"Retry-After": "1"}, "503": {"Retry-After": formatdate(time.time() + 2, usegmt=True)}}
            message = f"made-up error {what},\nkey {self.headers.get('Authorization', 'none').removeprefix('Bearer ')}"
            self.send(int(what), json.dumps({"error": {"message": message}}), headers.get(what, {}))
        elif what == "slow":
            until = time.monotonic() + PATIENCE
            while not self.client_gone() and time.monotonic() < until:
                time.sleep(0.02)
            BOOK.outlasted += time.monotonic() >= until
            self.close_connection = True
        elif what == "drip":
            self.send(200, "{", {"Content-Length": "9999"})
            until = time.monotonic() + PATIENCE
            while time.monotonic() < until:
                self.wfile.write(b" ")
                time.sleep(0.05)
            BOOK.outlasted += 1
        elif what == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.close_connection = True
        elif what == "half":
            self.send(200, self.completion(puzzle, "right", request)[:-40], {"Content-Length": "9999"})
            self.close_connection = True
        elif what == "broken":
            self.send(200, self.completion(puzzle, "right", request)[:-40])
        elif what == "error200":
            self.send(200, json.dumps({"error": {"message": "upstream is away"}}))
        elif what == "brackets":
            self.send(200, "[" * 100_000)
        elif what == "charset":
            self.send(200, "neither JSON nor text", {"Content-Type": "text/plain; charset=undefined"})
        elif what == "codes":
            self.send(200, json.dumps({"error": {"message": "\x1b]0;mine\x07\x1b[2Jgone \u202e\ud800"}}))
        elif what == "many":
            self.send(200, " " * 10_000_000 + self.completion(puzzle, "right", request))
        elif what == "bomb":
            self.send(200, gzip.compress(b" " * 2**26, 1), {"Content-Encoding": "gzip"})
        elif what == "gzip":
            packed = gzip.compress(self.completion(puzzle, "right", request).encode())
            self.send(200, packed, {"Content-Encoding": "gzip"})
        else:
            self.send(200, self.completion(puzzle, what, request))
            with BOOK.lock:
                BOOK.answers.setdefault(puzzle, []).append(what)

    def completion(self, puzzle: str, what: str, request: dict[str, Any]) -> str:
        solved = solve(puzzle) if puzzle != "?" else ""
        rows = solved.split("/")
        content: Any = {
            "right": f"<think>ANSWER: {puzzle}?</think>Column by column, I find:\n\n**ANSWER:** `{solved}`",
            "wrong": "ANSWER: " + "/".join([rows[0], rows[0], *rows[2:]]),
            "prose": "I am sorry, this sudoku is beyond me. [/bold]",
            "empty": "",
            "null": None,
            "parts": [{"type": "text", "text": "ANSWER: "}, {"type": "text", "text": solved}],
            "length": "<think>Let us see, the first row",
        }.get(what, f"ANSWER: {solved}")
        data: dict[str, Any] = {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "model": "served-" + request["model"][:8],
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": content, "reasoning_content": "It seems that..."},
                    "finish_reason": "length" if what == "length" else "stop",
                }
            ],
            "usage": {"prompt_tokens": 100, "completion_tokens": 7, "total_tokens": 107},
        }
        if what == "thought":
            data["choices"][0] |= {"message": {"content": None}, "finish_reason": "length"}
        if what == "uncounted":
            del data["usage"]
        for name, said in ODD_COUNTS.items():
            if what == name:
                return json.dumps(data).replace('"completion_tokens": 7', f'"completion_tokens": {said}')
        return json.dumps(data)

    def wait_for_gate(self) -> None:
        while not BOOK.gate.wait(0.02):
            if self.client_gone():
                raise ConnectionResetError

    def client_gone(self) -> bool:
        try:
            waiting: bytes = self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            return waiting == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def send(self, status: int, body: str | bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body.encode() if isinstance(body, str) else body)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # clients that go away are what this is about


if __name__ == "__main__":
    server = Server(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    # The tests hold the other end of this pipe: when they end, however they end, so does the server.
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()
