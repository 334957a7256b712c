"""`ponder site`: what it writes, and what it says where it cannot. test_site_page.py opens it in a browser."""

import json
import shutil
from pathlib import Path

import pytest

from ponder.cli import main
from ponder.domains import registry
from ponder.domains.skeleton import write_package
from ponder.serve.site import PARTS, VERSION
from tests.support import ROOT
from tests.support.folders import random_config, random_folder

pytest.importorskip("onnxruntime")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder that looks like the npm package."""
    dist = tmp_path / "package" / "dist"
    dist.mkdir(parents=True)
    for part, _ in PARTS.values():
        (dist / part).write_bytes(part.encode())
    return dist.parent


def test_what_it_writes_and_what_it_leaves_alone(
    tmp_path: Path, package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = random_folder(tmp_path / "tiny", random_config("sudoku-mini", mixer="mlp", positions="none"))
    out = tmp_path / "www"
    for name in ("static/local.js", "CNAME", "models/gone.onnx"):  # an earlier site, on a host of somebody's
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("old", encoding="utf-8")
    assert main(["site", str(out), "--model", str(model), "--ort", str(package)]) == 0
    assert f"wrote {out}" in capsys.readouterr().out
    assert (out / "CNAME").read_text(encoding="utf-8") == "old"
    assert [path.name for path in (out / "models").iterdir()] == ["tiny.onnx"]
    assert {path.name: path.read_text(encoding="utf-8") for path in (out / "ort").iterdir()} == {
        name: part for name, (part, _) in PARTS.items()
    }
    page = ROOT / "ponder" / "serve" / "page"
    for path in page.rglob("*.*"):  # the very files that the server sends
        if path.name != "index.html":
            assert (out / "static" / path.relative_to(page)).read_bytes() == path.read_bytes()
    (about,) = json.loads((out / "models.json").read_text(encoding="utf-8"))
    assert about["name"] == "tiny" and len(set(about["puzzles"])) > 100
    html = (out / "index.html").read_text(encoding="utf-8")
    changed = set(html.splitlines()) ^ set((page / "index.html").read_text(encoding="utf-8").splitlines())
    assert len(changed) == 3 and sum("Content-Security-Policy" in line for line in changed) == 1
    for path in out.rglob("*.*"):
        content = path.read_bytes()
        assert str(ROOT).encode() not in content and str(tmp_path).encode() not in content, f"{path} names a folder"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["full"], "full exists and is no site of ponder"),
        (["www", "--ort", "full"], "full does not hold ort.wasm.bundle.min.mjs and"),
        (["www"], "there is no npm to fetch it"),
        (["www", "--ort", "package", "--model", "lines"], "its domain, lines, has no checker in the browser"),
        (["www", "--ort", "package", "--model", "sudoku-4x5"], "did you mean 'sudoku-4x4'"),
    ],
)
def test_mistakes_get_one_line(
    args: list[str],
    words: str,
    tmp_path: Path,
    package: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    if "lines" in args:  # a module of this name is loaded once in a process
        write_package("lines", tmp_path / "domain", None, 8)
        monkeypatch.setenv(registry.FILES, "")
        registry.use_file(str(tmp_path / "domain" / "ponder_lines" / "__init__.py"))
        random_folder(tmp_path / "lines", random_config("lines-mini"))
    try:
        assert main(["site", *args]) == 2
    finally:
        registry.brought.cache_clear()
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1
    assert not (tmp_path / "www").exists()


def test_npm_that_fails_or_brings_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing of it is kept: the next command asks again."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    npm = tmp_path / "npm"
    monkeypatch.setattr(shutil, "which", lambda name: str(npm))
    packing = f"mkdir -p package/dist && cd package/dist && touch {' '.join(part for part, _ in PARTS.values())}"
    for script, words in (
        ("echo the network is down >&2; exit 1", "(the network is down)"),
        (f"{packing} && cd ../.. && tar czf it.tgz package", "the sha256 differs"),
    ):
        npm.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        npm.chmod(0o755)
        assert main(["site", str(tmp_path / "www")]) == 2
        said = capsys.readouterr().err
        assert words in said and VERSION in said and said.count("\n") == 1
        assert not (tmp_path / "cache").exists() and not (tmp_path / "www").exists()
