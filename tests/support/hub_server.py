"""The Hub's endpoint, as far as ponder uses it: repositories made, commits taken, files given by revision."""

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


class Repo:
    def __init__(self) -> None:
        self.commits: dict[str, dict[str, bytes]] = {}
        self.refs: dict[str, str] = {}

    def commit(self, files: dict[str, bytes], ref: str = "main") -> str:
        """The files on top of those that are there; the commit's name."""
        whole = {**self.at(ref), **files}
        oid = hashlib.sha1(repr((len(self.commits), sorted(whole.items()))).encode()).hexdigest()
        self.commits[oid], self.refs[ref] = whole, oid
        return oid

    def oid(self, revision: str) -> str:
        return self.refs.get(revision, revision)

    def at(self, revision: str) -> dict[str, bytes]:
        return self.commits.get(self.oid(revision), {})


class Hub(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repos: dict[str, Repo] = {}
        """OWNER/NAME, with datasets/ before it where it is one."""
        self.asked: list[str] = []
        self.lies: dict[str, bytes] = {}
        """File -> what is given in its place."""
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.asked.append(f"{self.command} {path}")
        match = re.fullmatch(r"/((?:datasets/)?[^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        repo = self.server.repos.get(match[1]) if match else None
        if match is None or repo is None:
            self.say(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        elif not repo.at(match[2]):
            self.say(404, {"error": "Revision not found"}, {"X-Error-Code": "RevisionNotFound"})
        elif match[3] not in repo.at(match[2]):
            self.say(404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound"})
        else:
            content = self.server.lies.get(match[3], repo.at(match[2])[match[3]])
            etag = hashlib.sha256(content).hexdigest()
            self.send(200, content, {"ETag": f'"{etag}"', "X-Repo-Commit": repo.oid(match[2])})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        path = urlsplit(self.path).path
        self.server.asked.append(f"POST {path}")
        match = re.fullmatch(r"/api/models/([^/]+/[^/]+)/(preupload|commit)/main", path)
        if "Authorization" not in self.headers:
            self.say(401, {"error": "Invalid username or password."})
        elif path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            self.server.repos.setdefault(name, Repo())
            self.say(200, {"url": f"{self.server.url}/{name}"})
        elif path == "/api/validate-yaml":
            self.say(200, {"errors": [], "warnings": []})
        elif match and match[2] == "preupload":
            plain = {"uploadMode": "regular", "shouldIgnore": False}
            self.say(200, {"files": [{"path": file["path"], **plain} for file in json.loads(body)["files"]]})
        elif match:
            lines = [json.loads(line) for line in body.splitlines()]
            added = {x["value"]["path"]: base64.b64decode(x["value"]["content"]) for x in lines if x["key"] == "file"}
            oid = self.server.repos[match[1]].commit(added)
            self.say(200, {"commitOid": oid, "commitUrl": f"{self.server.url}/{match[1]}/commit/{oid}"})
        else:
            self.say(404, {"error": f"no such path {path}"})

    def say(self, status: int, answer: Any, headers: dict[str, str] | None = None) -> None:
        self.send(status, json.dumps(answer).encode(), {"Content-Type": "application/json", **(headers or {})})

    def send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
