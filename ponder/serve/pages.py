"""Pages without other hosts: the files of the web page, and the description of the API."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from shlex import quote
from typing import Any

from ponder.base.errors import UserError
from ponder.base.files import read_json
from ponder.inference.solver import Solver

PAGE = Path(__file__).parent / "page"
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".json": "application/json",
    ".woff2": "font/woff2",
}


POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "connect-src": "'self'",
    "img-src": "'self' data: blob:",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
    "require-trusted-types-for": "'script'",
    "trusted-types": "'none'",
}
"""What a browser may load and run for the page: its own files, and nothing that got into it."""


def policy_text(policy: Mapping[str, str]) -> str:
    return "; ".join(f"{name} {words}" for name, words in policy.items())


@dataclass(frozen=True)
class File:
    content: bytes
    kind: str
    etag: str


def page_files(folder: Path = PAGE) -> dict[str, File]:
    """Every file of the page by its name. What is not in here cannot be asked for, whatever the path looks like."""
    return {
        path.relative_to(folder).as_posix(): File(
            content := path.read_bytes(), KINDS[path.suffix], f'"{hashlib.sha256(content).hexdigest()[:20]}"'
        )
        for path in sorted(folder.rglob("*"))
        if path.suffix in KINDS and path.is_file()
    }


def about_model(solver: Solver) -> dict[str, Any]:
    """What /v1/models says of a model."""
    domain = solver.domain
    try:
        solver.read(domain.example)
        example = domain.example
    except UserError:  # it is made for the domain's default parameters
        example = domain.format(domain.sample(0, 1)[0][0])
    card = solver.opened.path / "card.json"
    return {
        "name": solver.name,
        "domain": domain.name,
        "title": domain.title,
        "rules": domain.rules,
        "example": example,
        "example_json": domain.to_json(domain.parse(example)),
        "checkable": domain.checkable,
        "exact": domain.exact,
        "board": domain.board(),
        "parameters": sum(p.numel() for p in solver.opened.model.parameters()),
        "halting": solver.opened.model.config.halting,
        "max_steps": solver.opened.model.config.max_steps,
        "budget": solver.steps,
        "search": solver.search,
        "params": domain.params.model_dump(mode="json"),
        "any_size": solver.any_size,
        "card": read_json(card) if card.is_file() else None,
    }


@dataclass(frozen=True)
class Example:
    path: str
    body: str | None = None
    answer: str | None = None


def docs_page(schema: dict[str, Any], examples: Mapping[str, Example], host: str) -> str:
    """/openapi.json for people, with requests to try and what they give."""
    parts = []
    for path, methods in schema["paths"].items():
        for method, about in methods.items():
            parts.append(f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{escape(about['summary'])}</p>")
            rows = [(p["name"], p.get("schema", {}), p.get("required", False)) for p in about.get("parameters", [])]
            if "requestBody" in about:
                rows += _fields(about["requestBody"]["content"]["application/json"]["schema"], schema)
            if rows:
                cells = [(n, _kind(f), "required" if must else json.dumps(f.get("default")), f) for n, f, must in rows]
                parts.append(_table("You send", ("field", "type", "default"), cells))
            good = about["responses"]["200"]
            contents = [content["schema"] for content in good.get("content", {}).values() if "schema" in content]
            if fields := [field for content in contents for field in _fields(content, schema)]:
                parts.append(_table("You get", ("field", "type"), [(n, _kind(f), f) for n, f, _ in fields]))
            if good["description"] != "Successful Response":
                parts.append(f"<p>{escape(good['description'])}</p>")
            if (example := examples.get(path)) is not None:
                parts.append(_tried(example, host))
            codes = {code: r["description"] for code, r in about["responses"].items() if code != "200"}
            parts += [f"<p><b>{code}</b> {escape(text)}</p>" for code, text in sorted(codes.items())]
    title, about = escape(schema["info"]["title"]), escape(schema["info"]["description"])
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f'<title>{title} API</title><link rel="stylesheet" href="/static/style.css"><body class="docs">'
        f"<h1>{title} API</h1><p>{about} Errors are <code>{{&quot;error&quot;: &quot;one "
        'line&quot;}</code>. The same for machines: <a href="/openapi.json">/openapi.json</a>. '
        f'<a href="/">The web page</a></p>{"".join(parts)}</body></html>'
    )


Field = tuple[str, dict[str, Any], bool]


def _fields(schema: dict[str, Any], whole: dict[str, Any]) -> list[Field]:
    """(name, description, whether it must be there) of an object's fields, those of the objects in a list too."""
    if "$ref" in schema:
        schema = whole["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    out: list[Field] = []
    for name, field in schema.get("properties", {}).items():
        out.append((name, field, name in schema.get("required", [])))
        for kind in field.get("anyOf", [field]):
            inner = _fields(kind["items"], whole) if isinstance(kind.get("items"), dict) else []
            out += [(f"{name}[].{each}", about, must) for each, about, must in inner]
    return out


def _kind(field: dict[str, Any]) -> str:
    kinds = [f.get("const", f.get("type", "")) for f in field.get("anyOf", [field])]
    return " or ".join(field.get("enum", [kind or "any" for kind in kinds]))


def _table(title: str, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """The last cell of a row is the field itself, of which the description is shown."""
    head = "".join(f"<th>{name}" for name in (*names, "meaning"))
    lines = [(*map(str, row[:-1]), row[-1].get("description", "")) for row in rows]
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}" for cell in line) + "</tr>" for line in lines)
    return f"<h3>{title}</h3><div class=wide><table><tr>{head}</tr>{body}</table></div>"


def _tried(example: Example, host: str) -> str:
    sent = (
        ""
        if example.body is None
        else f"{'-N ' if example.path.endswith('stream') else ''}--json {quote(example.body)} "
    )
    got = "" if example.answer is None else f"<pre class=plain>{escape(example.answer)}</pre>"
    return f"<h3>Example</h3><pre class=plain>curl {escape(sent)}{escape(quote(host + example.path))}</pre>{got}"
