"""Mazes against networkx: distances, numbers of shortest paths, and which answers are shortest paths."""

import itertools
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from ponder.base import hub
from ponder.base.errors import UserError
from ponder.domains.contract import Tokens
from ponder.domains.maze.domain import FREE, GOAL, PATH, START, WALL, Maze, MazeParams
from ponder.domains.maze.paths import MANY, count_shortest, lengths

Cells = set[tuple[int, int]]
patient = settings(deadline=None)


def maze(height: int = 8, width: int = 8, **params: Any) -> Maze:
    given = {"height": height, "width": width, "source": "generate", "min_path": 10} | params
    return Maze(MazeParams.model_validate(given))


def oracle(domain: Maze, inputs: Tokens) -> list[Cells]:
    """The free cells of every shortest path, by networkx."""
    grid = inputs.reshape(domain.height, domain.width)
    graph = nx.grid_2d_graph(*grid.shape)
    graph.remove_nodes_from([(int(r), int(c)) for r, c in np.argwhere(grid == WALL)])
    start, goal = (tuple(np.argwhere(grid == end)[0].tolist()) for end in (START, GOAL))
    if not nx.has_path(graph, start, goal):
        return []
    return [set(path) - {start, goal} for path in nx.all_shortest_paths(graph, start, goal)]


def marked_cells(domain: Maze, answer: Tokens) -> Cells:
    return {(int(r), int(c)) for r, c in np.argwhere(answer.reshape(domain.height, domain.width) == PATH)}


def with_path(domain: Maze, inputs: Tokens, cells: Cells) -> Tokens:
    answer = inputs.reshape(domain.height, domain.width).copy()
    for cell in cells:
        answer[cell] = PATH
    return answer.reshape(-1)


@st.composite
def random_mazes(draw: st.DrawFn, max_side: int = 7) -> tuple[Maze, Tokens]:
    """Any walls, any start and goal, often without a way between them."""
    height, width = draw(st.integers(3, max_side)), draw(st.integers(3, max_side))
    cells = height * width
    inputs = np.array(draw(st.lists(st.sampled_from([WALL, FREE, FREE]), min_size=cells, max_size=cells)), np.uint8)
    ends = draw(st.lists(st.integers(0, cells - 1), min_size=2, max_size=2, unique=True))
    inputs[ends] = START, GOAL
    return maze(height, width, min_path=1), inputs


@patient
@given(random_mazes())
def test_paths_agree_with_networkx(case: tuple[Maze, Tokens]) -> None:
    domain, inputs = case
    expected = oracle(domain, inputs)
    batch = domain._mazes(inputs[None])
    assert lengths(batch)[0] == (len(expected[0]) + 1 if expected else -1)
    assert count_shortest(batch)[0] == len(expected)
    solutions = domain.solutions(inputs, limit=10_000)
    assert sorted(map(sorted, expected)) == sorted(sorted(marked_cells(domain, s)) for s in solutions)
    assert domain.solutions(inputs, limit=2) == [] if not expected else len(domain.solutions(inputs, 1)) == 1
    assert domain.conflicts(inputs) == ("" if expected else "no path leads from S to G")
    if expected:
        assert (domain._labels(inputs[None])[0] == solutions[0]).all()


@patient
@given(random_mazes(max_side=4))
def test_check_accepts_shortest_paths_and_nothing_else(case: tuple[Maze, Tokens]) -> None:
    """Every way of marking cells, walls too, judged: the accepted ones are exactly networkx's paths."""
    domain, inputs = case
    cells = [(int(r), int(c)) for r, c in np.argwhere(inputs.reshape(domain.height, domain.width) <= FREE)]
    assume(len(cells) <= 10)
    subsets = [set(s) for size in range(len(cells) + 1) for s in itertools.combinations(cells, size)]
    answers = np.stack([with_path(domain, inputs, s) for s in subsets])
    accepted = domain.check(np.repeat(inputs[None], len(answers), 0), answers)
    paths = [s for s, good in zip(subsets, accepted, strict=True) if good]
    assert sorted(map(sorted, paths)) == sorted(map(sorted, oracle(domain, inputs)))


@pytest.mark.parametrize(
    ("height", "width", "min_path", "count"), [(4, 4, 4, 60), (8, 8, 14, 150), (5, 11, 12, 60), (30, 30, 111, 12)]
)
def test_generated_mazes_have_one_long_shortest_path(height: int, width: int, min_path: int, count: int) -> None:
    domain = maze(height, width, min_path=min_path)
    inputs, labels = domain.sample(0, count)
    assert inputs.shape == labels.shape == (count, height * width)
    assert domain.check(inputs, labels).all()
    for puzzle, label in zip(inputs, labels, strict=True):
        assert (puzzle == START).sum() == (puzzle == GOAL).sum() == 1
        assert oracle(domain, puzzle) == [marked_cells(domain, label)]
        assert (label == PATH).sum() + 1 >= min_path
    assert not domain.check(inputs, inputs).any()


def test_a_share_of_the_training_mazes_starts_on_the_path_and_nothing_else_changes() -> None:
    plain, eased = (
        maze(7, 7, min_path=9, train=200, val=10, test=10, eased=share).build(seed=3) for share in (0.0, 0.5)
    )
    for split in ("val", "test"):
        assert all(np.array_equal(plain[split][name], eased[split][name]) for name in plain[split])
    before, after = plain["train"], eased["train"]
    moved = (before["inputs"] != after["inputs"]).any(axis=1)
    assert 70 < moved.sum() < 130
    assert np.array_equal(before["inputs"] == WALL, after["inputs"] == WALL)
    assert np.array_equal(before["inputs"] == GOAL, after["inputs"] == GOAL)
    on_path = (before["labels"] == PATH) | (before["labels"] == START)
    for inputs, label, path in zip(after["inputs"], after["labels"], on_path, strict=True):
        assert path[inputs == START].all() and ((label == PATH) <= path).all()
    lengths = (after["labels"] == PATH).sum(axis=1)[moved]
    assert set(range(7)) <= set(lengths.tolist()), "from any cell of it"
    domain = maze(7, 7, min_path=1)
    assert domain.check(after["inputs"], after["labels"]).all()


def test_without_unique_there_are_mazes_with_several_paths_and_each_is_valid() -> None:
    domain = maze(unique=False)
    inputs, labels = domain.sample(0, 100)
    assert domain.check(inputs, labels).all()
    several = 0
    for puzzle, label in zip(inputs, labels, strict=True):
        paths = oracle(domain, puzzle)
        assert marked_cells(domain, label) in paths
        answers = np.stack([with_path(domain, puzzle, path) for path in paths])
        assert domain.check(np.repeat(puzzle[None], len(answers), 0), answers).all()
        assert (answers == label).all(1).sum() == 1
        several += len(paths) > 1
    assert several > 30


def test_generated_mazes_are_not_solved_by_filling_dead_ends() -> None:
    """Real decoys: after every dead end is walled up, most mazes still offer more than the path."""
    domain = maze(min_path=14)
    inputs, labels = domain.sample(1, 200)
    trivial = 0
    for puzzle, label in zip(inputs, labels, strict=True):
        graph = nx.grid_2d_graph(8, 8)
        grid = puzzle.reshape(8, 8)
        graph.remove_nodes_from([cell for cell in graph if grid[cell] == WALL])
        while ends := [cell for cell in graph if graph.degree(cell) <= 1 and grid[cell] == FREE]:
            graph.remove_nodes_from(ends)
        start = tuple(np.argwhere(grid == START)[0].tolist())
        trivial += len(nx.node_connected_component(graph, start)) == (label == PATH).sum() + 2
    assert trivial < 20


def test_path_counts_stop_before_they_overflow() -> None:
    domain = maze(40, 40, min_path=1)
    inputs = np.full(1600, FREE, np.uint8)
    inputs[[0, -1]] = START, GOAL
    assert count_shortest(domain._mazes(inputs[None]))[0] == MANY
    assert len(domain.solutions(inputs, 3)) == 3


@patient
@given(st.integers(0, 49), st.data())
def test_any_change_of_a_label_is_refused_and_explained(index: int, data: st.DataObject) -> None:
    domain = maze()
    inputs, labels = (part[index] for part in SAMPLE)
    answer = labels.copy()
    for cell in data.draw(st.sets(st.integers(0, 63), min_size=1, max_size=4)):
        answer[cell] = (int(labels[cell]) + data.draw(st.integers(1, 255))) % 256
    assert not domain.check(inputs[None], answer[None])[0]
    assert domain.explain(inputs, answer)
    assert len(domain.format_answer(inputs, answer)) == 71
    domain.answer_to_json(inputs, answer)


SAMPLE = maze().sample(5, 50)

SMALL = maze(4, 5, min_path=1)
PUZZLE = "S..#./.#.#./.#.../...#G"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("S..#./o#.#./o#ooo/ooo#G", "not shortest: 9 steps where 7 suffice"),
        ("Soo#./.#o#./.#ooo/...#G", ""),
        ("Soo#./.#o#./.#oo./...#G", "the path is broken: from S it ends at row 3, column 4"),
        ("S..#./.#.#./.#.../...#G", "the path is broken: from S it ends at row 1, column 1"),
        ("Sooo./.#.#./.#.../...#G", "row 1, column 4: wall became path"),
        ("Soo../.#o#./.#ooo/...#G", "row 1, column 4: wall became free cell"),
        ("Soo#./.#o#./.#ooo/...#o", "row 4, column 5: goal became path"),
        ("Soo##/.#o#./.#ooo/...#G", "row 1, column 5: free cell became wall"),
        ("Soo#o/.#o#./.#ooo/...#G", "marked cells off the path: 1, the first in row 1, column 5"),
        ("Soo#o/.#o#o/.#ooo/...#G", "marked cells off the path: 2, the first in row 1, column 5"),
    ],
)
def test_explain_names_the_place(answer: str, reason: str) -> None:
    inputs = SMALL.parse(PUZZLE)
    tokens = SMALL.parse_answer(inputs, answer)
    assert SMALL.explain(inputs, tokens) == reason
    assert SMALL.check(inputs[None], tokens[None])[0] == (reason == "")


def test_explain_tells_a_detour_and_a_maze_without_a_way() -> None:
    domain = maze(3, 5, min_path=1)
    inputs = domain.parse("S...G/.###./.....")
    assert domain.explain(inputs, domain.parse_answer(inputs, "S...G/o###o/ooooo")) == (
        "not shortest: 8 steps where 4 suffice"
    )
    shut = domain.parse("S.#.G/.##../..#..")
    assert domain.solutions(shut) == []
    assert domain.explain(shut, shut) == domain.conflicts(shut) == "no path leads from S to G"
    assert not domain.check(shut[None], shut[None])[0]


def test_start_beside_goal_needs_no_mark() -> None:
    domain = maze(3, 3, min_path=1)
    inputs = domain.parse("SG./.../...")
    assert domain.check(inputs[None], inputs[None])[0]
    assert (domain.solutions(inputs)[0] == inputs).all()


@patient
@given(random_mazes(), st.sampled_from("._ "), st.sampled_from(["/", "\n", "\r\n", ""]))
def test_text_and_json_round_trips(case: tuple[Maze, Tokens], blank: str, between: str) -> None:
    domain, inputs = case
    assert (domain.parse(domain.format(inputs)) == inputs).all()
    assert "\n" not in domain.format(inputs)
    assert (domain.from_json(domain.to_json(inputs)) == inputs).all()
    rows = domain.to_json(inputs)["grid"]
    assert (domain.from_json([list(row) for row in rows]) == inputs).all()
    assert (domain.parse(between.join(rows).replace(".", blank)) == inputs).all()
    assert (domain.parse(" ".join(rows)) == inputs).all()
    for answer in domain.solutions(inputs):
        assert (domain.parse_answer(inputs, domain.format_answer(inputs, answer)) == answer).all()
        assert domain.answer_to_json(inputs, answer) == {"grid": domain.format_answer(inputs, answer).split("/")}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("..#/.../..G", "the maze has no start; write S in one cell"),
        ("S.G/..G/...", "the maze has 2 goals (G), the first two in row 1, column 3 and row 2, column 3; keep one"),
        ("S.G/../...", "row 2 of the maze has 2 cells, expected 3"),
        ("S.G/...", "the maze has 2 rows, expected 3 rows of 3 cells; separate rows by / or line breaks"),
        ("S.G/.x./...", "the maze has 'x' in row 2, column 2; allowed: # (wall), . (free), S (start), G (goal)"),
        ("SoG/.../...", "the maze has 'o' in row 1, column 2; allowed: # (wall), . (free), S (start), G (goal)"),
        ("", "the maze has 0 rows, expected 3 rows of 3 cells; separate rows by / or line breaks"),
    ],
)
def test_bad_text(text: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        maze(3, 3, min_path=1).parse(text)
    assert str(error.value) == message


@pytest.mark.parametrize(
    "puzzle",
    [
        {"maze": ["S.G", "...", "..."]},
        {"grid": ["S.G", "..", "..."]},
        {"grid": [["S", ".", "G"], [".", 7, "."], [".", ".", "."]]},
        {"grid": [["S", ".", "G"], [".", None, "."], [".", ".", "."]]},
        {"grid": ["S..", "...", "..."]},
        {"grid": []},
        {"grid": ["S.G", 3, "..."]},
        17,
        None,
    ],
)
def test_bad_json(puzzle: Any) -> None:
    with pytest.raises(UserError):
        maze(3, 3, min_path=1).from_json(puzzle)


def test_the_example_is_a_maze_of_the_default_size() -> None:
    domain = Maze(MazeParams())
    inputs = domain.parse(Maze.example)
    assert domain.seq_len == 900 and len(domain.vocab) == 6
    assert len(domain.solutions(inputs)) == 1
    assert (domain.solutions(inputs)[0] == PATH).sum() >= 110


def images(domain: Maze, inputs: Tokens) -> list[Tokens]:
    """A maze and its rotations and mirror images, as far as they have the same shape."""
    grid = inputs.reshape(domain.height, domain.width)
    turned = [np.rot90(side, k) for side in (grid, grid.T) for k in range(4)]
    return [side.reshape(-1) for side in turned if side.shape == grid.shape]


def test_build_is_the_same_for_any_number_of_workers() -> None:
    domain = maze(train=4000, val=200, test=200)
    one, two = domain.build(seed=7, workers=1), domain.build(seed=7, workers=2)
    assert list(one) == list(domain.splits)
    for split, arrays in one.items():
        assert {name: a.tobytes() for name, a in arrays.items()} == {n: a.tobytes() for n, a in two[split].items()}
        assert arrays["inputs"].dtype == arrays["labels"].dtype == np.uint8
        assert len(arrays["inputs"]) == getattr(domain.params, split)
        assert domain.check(arrays["inputs"], arrays["labels"]).all()
    assert (domain.build(seed=8)["test"]["inputs"] != one["test"]["inputs"]).any()
    fewer = maze(train=100, val=200, test=200).build(seed=7)
    assert (fewer["test"]["inputs"] == one["test"]["inputs"]).all()
    assert (fewer["val"]["inputs"] == one["val"]["inputs"]).all()


@pytest.mark.parametrize(("height", "width"), [(4, 4), (3, 5)])
def test_no_maze_nor_an_image_of_it_comes_twice(height: int, width: int) -> None:
    domain = maze(height, width, min_path=4, train=500, val=50, test=50)
    seen: set[bytes] = set()
    for arrays in domain.build(seed=0).values():
        for puzzle in arrays["inputs"]:
            assert puzzle.tobytes() not in seen
            seen |= {image.tobytes() for image in images(domain, puzzle)}


def test_progress_is_reported() -> None:
    calls: list[tuple[str, int, int]] = []
    maze(train=50, val=5, test=5).build(seed=0, progress=lambda *call: calls.append(call))
    assert calls and calls[-1][1] == calls[-1][2]


def test_what_cannot_be_made_is_said() -> None:
    with pytest.raises(UserError, match=r"only 0 different 6x6 mazes with a shortest path of 34 steps or more"):
        maze(6, 6, min_path=34).sample(0, 1)
    with pytest.raises(UserError, match=r"different 3x3 mazes .* 3000 were asked for"):
        maze(3, 3, min_path=2, train=2_998, val=1, test=1).build(seed=0)


@pytest.mark.parametrize(
    "params",
    [
        {"height": 8},
        {"source": "csv"},
        {"source": "generate", "subsample": 5},
        {"source": "generate", "height": 8, "width": 8},
        {"source": "generate", "min_path": 0},
        {"source": "generate", "heigth": 8},
        {"source": "generate", "height": 2},
    ],
)
def test_impossible_parameters(params: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        MazeParams(**params)


def write_csv(path: Path, domain: Maze, inputs: Tokens, labels: Tokens) -> None:
    lines = ["source,question,answer,rating"]
    for puzzle, label in zip(inputs, labels, strict=True):
        question, answer = (domain.format(part).replace("/", "").replace(".", " ") for part in (puzzle, label))
        lines.append(f"made,{question},{answer},{(label == PATH).sum() + 1}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """40 mazes in train.csv, one twice, one that is in test.csv too, one whose mirror image is; 12 in test.csv."""
    domain = maze()
    inputs, labels = domain.sample(0, 50)
    mirrored = [part[49:].reshape(1, 8, 8)[:, :, ::-1].reshape(1, 64) for part in (inputs, labels)]
    train = [
        np.concatenate([part[:38], part[:1], part[48:49], m])
        for part, m in zip((inputs, labels), mirrored, strict=True)
    ]
    write_csv(tmp_path / "train.csv", domain, *train)
    write_csv(tmp_path / "test.csv", domain, inputs[38:], labels[38:])
    return tmp_path


def test_csv_files_become_splits(folder: Path) -> None:
    domain = maze(source="csv", folder=str(folder), val=8)
    inputs, labels = maze().sample(0, 50)
    built = domain.build(seed=3)
    assert {split: len(arrays["inputs"]) for split, arrays in built.items()} == {"train": 30, "val": 8, "test": 12}
    assert (built["test"]["inputs"] == inputs[38:]).all() and (built["test"]["labels"] == labels[38:]).all()
    pairs = {
        (x.tobytes(), y.tobytes())
        for split in ("train", "val")
        for x, y in zip(built[split]["inputs"], built[split]["labels"], strict=True)
    }
    assert pairs == {(x.tobytes(), y.tobytes()) for x, y in zip(inputs[:38], labels[:38], strict=True)}
    fewer = maze(source="csv", folder=str(folder), val=8, subsample=5).build(seed=3)
    assert len(fewer["train"]["inputs"]) == 5
    assert (fewer["val"]["inputs"] == built["val"]["inputs"]).all()
    assert {x.tobytes() for x in fewer["train"]["inputs"]} < {x.tobytes() for x in built["train"]["inputs"]}
    assert (domain.build(seed=4)["val"]["inputs"] != built["val"]["inputs"]).any()


def test_val_may_be_generated_so_that_all_of_train_is_trained_on(folder: Path) -> None:
    carved = maze(source="csv", folder=str(folder), val=8).build(seed=3)
    domain = maze(source="csv", folder=str(folder), val=8, val_from="generator")
    built = domain.build(seed=3)
    assert len(built["train"]["inputs"]) == len(carved["train"]["inputs"]) + 8 and len(built["val"]["inputs"]) == 8
    assert domain.check(built["val"]["inputs"], built["val"]["labels"]).all()
    keys = {split: set(domain._keys(arrays["inputs"]).tolist()) for split, arrays in built.items()}
    assert not keys["val"] & (keys["train"] | keys["test"])


def test_images_of_a_maze_in_a_csv_file_stay_in_one_split(folder: Path) -> None:
    domain = maze(source="csv", folder=str(folder), val=3)
    inputs, labels = maze().sample(1, 10)
    turned = [np.stack([image for puzzle in part for image in images(domain, puzzle)]) for part in (inputs, labels)]
    write_csv(folder / "train.csv", domain, *turned)
    built = domain.build(seed=0)
    judged = {image.tobytes() for puzzle in built["val"]["inputs"] for image in images(domain, puzzle)}
    assert len(built["val"]["inputs"]) == 3 and len(judged) in (8, 16, 24)
    assert len(built["train"]["inputs"]) == 80 - len(judged)
    assert not judged & {puzzle.tobytes() for puzzle in built["train"]["inputs"]}


def test_the_hub_is_asked_for_the_published_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def fake(kind: str, repo: str, revision: str, names: Sequence[str]) -> dict[str, Path]:
        asked.append((repo, len(revision)))
        return {name: folder / name for name in names}

    domain = Maze(MazeParams(val=1))
    inputs, labels = maze(30, 30, min_path=40).sample(0, 4)
    write_csv(folder / "train.csv", domain, inputs[:3], labels[:3])
    write_csv(folder / "test.csv", domain, inputs[3:], labels[3:])
    monkeypatch.setattr(hub, "cached", fake)
    built = domain.build(seed=0)
    assert asked == [("sapientinc/maze-30x30-hard-1k", 40)]
    assert {split: len(arrays["inputs"]) for split, arrays in built.items()} == {"train": 2, "val": 1, "test": 1}


def test_bad_csv_files(folder: Path) -> None:
    path = folder / "train.csv"
    good = path.read_text(encoding="utf-8")
    lines = good.splitlines()

    def fails(text: str, message: str) -> None:
        path.write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match=message):
            maze(source="csv", folder=str(folder), val=8).build(seed=0)

    fails(good[:2000], r"train.csv, line \d+: .* columns, expected 4|characters, expected 64")
    fails("\n".join([*lines[:4], lines[4].replace("S", "X", 1)]), r"line 5: question has 'X' at character")
    source, question, answer, rating = lines[2].split(",")
    fails("\n".join([lines[0], lines[1], f"{source},{question},{question},{rating}"]), "line 3: .*the path is broken")
    fails("\n".join([lines[0], ",".join([source, question.replace("S", " "), answer, rating])]), r"line 2: .*became")
    fails(
        "\n".join([lines[0], ",".join([source, question.replace("S", " "), answer.replace("S", " "), rating])]),
        r"line 2: .*no start",
    )
    fails(lines[0] + "\n", "no mazes")
    fails("question,answer\n", "line 1")
    fails("\n".join(lines[:6]), "too few")
    path.unlink()
    with pytest.raises(UserError, match="does not exist"):
        maze(source="csv", folder=str(folder)).build(seed=0)


def test_render_and_svg() -> None:
    domain = SMALL
    inputs = domain.parse(PUZZLE)
    answer = domain.solutions(inputs)[0]
    assert [len(line) for line in domain.render(inputs).plain.split("\n")] == [12] * 6
    assert domain.render(inputs).plain.count("▒▒") == 0
    assert domain.render(inputs, answer).plain.count("▒▒") == 6
    assert any("cyan" in str(span.style) for span in domain.render(inputs, answer).spans)
    wrong = np.full_like(answer, 255)
    assert domain.render(inputs, wrong).plain.count("??") == 20
    for drawn in (domain.svg(inputs), domain.svg(inputs, answer, answer == PATH), domain.svg(inputs, wrong)):
        ElementTree.fromstring(drawn)
    assert domain.svg(inputs, answer).count("●") == 6
