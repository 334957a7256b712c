"""Pages without other hosts: the files of the web page, and the description of the API."""

import hashlib
import json
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

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


def docs_page(schema: dict[str, Any]) -> str:
    """/openapi.json for people."""
    parts = []
    for path, methods in schema["paths"].items():
        for method, about in methods.items():
            parts.append(f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{escape(about['summary'])}</p>")
            rows = [(p["name"], p.get("schema", {}), p.get("required", False)) for p in about.get("parameters", [])]
            if "requestBody" in about:
                body = about["requestBody"]["content"]["application/json"]["schema"]
                rows += [(name, field, name in body["required"]) for name, field in body["properties"].items()]
            if rows:
                parts.append("<table><tr><th>field<th>type<th>default<th>meaning</tr>")
                for name, field, required in rows:
                    kinds = [f.get("const", f.get("type", "")) for f in field.get("anyOf", [field])]
                    default = "required" if required else json.dumps(field.get("default"))
                    cells = (name, " or ".join(k or "any" for k in kinds), default, field.get("description", ""))
                    parts.append("<tr>" + "".join(f"<td>{escape(cell)}" for cell in cells) + "</tr>")
                parts.append("</table>")
            codes = {code: r["description"] for code, r in about["responses"].items() if code != "200"}
            parts += [f"<p><b>{code}</b> {escape(text)}</p>" for code, text in sorted(codes.items())]
    title, about = escape(schema["info"]["title"]), escape(schema["info"]["description"])
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{title} API</title><h1>{title} API</h1><p>{about} Errors are <code>{{&quot;error&quot;: &quot;one "
        'line&quot;}</code>. The same for machines: <a href="/openapi.json">/openapi.json</a>.</p>'
        f"{''.join(parts)}</html>"
    )
