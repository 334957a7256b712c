"""Solvers as people use them: answers that say what they are worth, the command line, and the pictures."""

import io
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from PIL import Image, ImageColor
from rich.console import Console

from ponder import Answer, Solver, cli
from ponder.base.errors import UserError
from ponder.commands import solve
from ponder.config.resolve import resolve
from ponder.domains.drawing import HIGHLIGHT
from ponder.inference.pictures import gif
from ponder.inference.solver import Shelf, Unsolvable
from tests.support import ROOT
from tests.support.folders import random_folder

EASY = "1... ..2. .3.. ...4"
IMPOSSIBLE = "12.. ..3. ...4 ...."
"""No two clues clash, and yet nothing is left for row 1, column 4."""
AMBIGUOUS = "1... .... .... ...."
SMALL = {"width": 16, "heads": 2, "expansion": 1.0, "layers": 1, "h_cycles": 1, "l_cycles": 1, "max_steps": 2}
SMALL |= {"h_horizon": 1, "l_horizon": 1, "noise": 0.0}
PRESETS = {"sudoku": "sudoku-mini", "maze": "maze-mini", "life": "life-mini", "arithmetic": "arithmetic-mini"}


@pytest.fixture(scope="module")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Domain -> folder of a model with random weights: wrong nearly always."""
    root = tmp_path_factory.mktemp("untrained")
    configs = {name: resolve(preset, "ponder", {"model": SMALL}) for name, preset in PRESETS.items()}
    return {name: random_folder(root / f"fresh-{name}", config) for name, config in configs.items()}


def puzzles(solver: Solver, count: int, seed: int = 5) -> list[str]:
    return [solver.domain.format(row) for row in solver.domain.sample(seed, count)[0]]


def is_solved_sudoku(puzzle: str, text: str, size: int, box: tuple[int, int]) -> bool:
    """The rules, written down again."""
    puzzle = re.sub(r"\s", "", puzzle)
    grid = [[text[r * size + c] for c in range(size)] for r in range(size)]
    units = [*grid, *map(list, zip(*grid, strict=True))]
    for r in range(0, size, box[0]):
        for c in range(0, size, box[1]):
            units.append([grid[r + i][c + j] for i in range(box[0]) for j in range(box[1])])
    digits = {str(d + 1) for d in range(size)}
    return all(set(u) == digits for u in units) and all(a in (".", b) for a, b in zip(puzzle, text, strict=True))


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of `ponder solve ARGS`."""
    try:
        code = cli.main(["solve", *args])
    except SystemExit as end:
        code = int(end.code or 0)
    said = capsys.readouterr()
    return code, said.out, said.err


# Answers --------------------------------------------------------------------------------------------------------------


def test_the_example_of_the_readme_is_solved() -> None:
    answer = Solver("sudoku-4x4").solve(EASY)
    assert answer.verified is True and answer.by == "model" and answer.note == ""
    assert is_solved_sudoku(EASY, answer.text, 4, (2, 2))
    assert answer.json == {"grid": [[int(d) for d in answer.text[4 * r : 4 * r + 4]] for r in range(4)]}
    assert answer.steps == len(answer.trace) == answer.trace[-1].step
    assert str(answer).endswith(f"✓ {answer.verdict}") and 0 <= answer.confidence <= 1


def test_the_python_of_the_guide_runs(capsys: pytest.CaptureFixture[str]) -> None:
    guide = (ROOT / "docs" / "solvers.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    names: dict[str, Any] = {}
    exec(block, names)
    told = re.search(r"# ('\d+', True, 'model')", block)
    assert told is not None and repr((names["answer"].text, names["answer"].verified, names["answer"].by)) == (
        f"({told[1]})"
    )
    assert all(answer.verified for answer in names["answers"]) and "✓ verified" in capsys.readouterr().out


def test_many_puzzles_get_what_each_gets_alone_and_what_the_stream_ends_with() -> None:
    solver = Solver("sudoku-6x6")
    asked = puzzles(solver, 6)
    for puzzle, answer in zip(asked, solver.solve_many(asked), strict=True):
        assert answer.verified == is_solved_sudoku(puzzle, answer.text, 6, (2, 3))
        alone = list(solver.stream(puzzle))
        assert [t.step for t in alone] == list(range(1, answer.steps + 1))
        assert (alone[-1].answer == answer.tokens).all()
        before = solver.domain.parse(puzzle)
        for thought in alone:
            assert (thought.changed == (thought.answer != before)).all()
            before = thought.answer
        assert not any(t.valid for t in alone[:-1])


@pytest.mark.parametrize("name", PRESETS)
def test_a_wrong_answer_is_never_shown_as_right(name: str, untrained: dict[str, Path]) -> None:
    solver = Solver(untrained[name], steps=2)
    inputs, labels = solver.domain.sample(3, 12)
    refused = 0
    for row, label, answer in zip(inputs, labels, solver.solve_tokens(list(inputs)), strict=True):
        if answer.verified:  # by luck: then it is right indeed
            assert solver.domain.check(row[None], answer.tokens[None])[0]
            continue
        refused += 1
        assert answer.by == "model" and not (answer.tokens == label)[label != 0].all()
        reason = solver.domain.explain(row, answer.tokens)
        assert reason and reason in answer.note and answer.verdict.startswith("not solved")
        for shown in (str(answer), answer._repr_html_(), answer.svg()):
            assert "✗" in shown and "✓" not in shown and "verified" not in shown
        assert answer.as_data()["verified"] is False
    assert refused > 6


@pytest.mark.parametrize("name", PRESETS)
def test_the_exact_solver_answers_on_request_and_says_so(name: str, untrained: dict[str, Path]) -> None:
    solver = Solver(untrained[name], steps=2, fallback="exact")
    inputs, _ = solver.domain.sample(3, 6)
    answers = solver.solve_tokens(list(inputs))
    assert all(answer.verified for answer in answers)
    helped = [(row, answer) for row, answer in zip(inputs, answers, strict=True) if answer.by == "exact"]
    assert helped
    for row, answer in helped:
        assert solver.domain.check(row[None], answer.tokens[None])[0]
        assert answer.trace[-1].valid is False and "the model's answer is wrong" in answer.note
        assert "exact solver" in str(answer) and "exact solver" in answer._repr_html_()
        assert answer.as_data(trace=False)["by"] == "exact"


def test_fallback_invents_nothing_where_there_is_no_solution() -> None:
    answer = Solver("sudoku-4x4", fallback="exact").solve(IMPOSSIBLE)
    assert (answer.verified, answer.by, answer.note) == (False, "model", "this puzzle has no solution")


def test_several_solutions_are_told(untrained: dict[str, Path]) -> None:
    answer = Solver("sudoku-4x4").solve(AMBIGUOUS)
    assert answer.verified and answer.note == "several solutions exist, this is one of them"
    wrong = Solver(untrained["sudoku"], steps=1).solve(AMBIGUOUS)
    assert wrong.verified is False and "several solutions exist" in wrong.note and "one of them" not in wrong.note


@pytest.mark.parametrize(
    ("name", "puzzle", "words"),
    [
        ("sudoku", "11.. .... .... ....", "row 1 holds 1 twice"),
        ("sudoku", "1... ..2. .3.. ...5", "'5' in row 4, column 4"),
        ("sudoku", "1... ..2.", "8 cells, expected 16"),
        ("maze", "S", "expected"),
        ("life", "...../..O../..O../..O../.....", "has no ':'"),
        ("arithmetic", "3 4 ? 5 ?", "has no value"),
        ("arithmetic", "1 1 ? 1 ? = 97", "no operators give 97"),
    ],
)
def test_a_bad_puzzle_is_refused_in_one_helpful_line(
    name: str, puzzle: str, words: str, untrained: dict[str, Path]
) -> None:
    with pytest.raises(UserError, match=re.escape(words)) as caught:
        Solver(untrained[name]).solve(puzzle)
    assert "\n" not in str(caught.value)


def test_a_maze_without_a_way_is_unsolvable(untrained: dict[str, Path]) -> None:
    solver = Solver(untrained["maze"])
    grid = solver.domain.to_json(solver.domain.sample(0, 1)[0][0])["grid"]
    walled = ["".join("#" if cell == "." else cell for cell in row) for row in grid]
    with pytest.raises(Unsolvable, match="no path leads from S to G"):
        solver.solve({"grid": walled})


def test_what_a_solver_cannot_be_is_refused() -> None:
    for wrong, words in (({"steps": 0}, "steps 0"), ({"fallback": "magic"}, "'magic'")):
        with pytest.raises(UserError, match=words):
            Solver("sudoku-4x4", **wrong)
    with pytest.raises(UserError, match="did you mean 'sudoku-4x4'"):
        Solver("sudoku-4x5")


def test_a_domain_name_finds_the_model_that_reads_the_puzzle() -> None:
    shelf = Shelf(["sudoku-4x4", "sudoku-6x6"])
    assert shelf.choose("sudoku", EASY)[0].name == "sudoku-4x4"
    assert shelf.choose("sudoku", "." * 36)[0].name == "sudoku-6x6"
    with pytest.raises(UserError, match=r"sudoku-4x4: .*sudoku-6x6: "):
        shelf.choose("sudoku", "....")
    with pytest.raises(Unsolvable) as caught:
        shelf.choose("sudoku", "11.............." + "." * 20)
    assert "row 1 holds 1 twice" in str(caught.value) and "4x4" not in str(caught.value)


# The command line -----------------------------------------------------------------------------------------------------


def test_one_puzzle_in_each_spelling(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([EASY], EASY.split(), ["--steps", "4", "1.....2..3.....4"], ['{"grid": "1.....2..3.....4"}']):
        code, out, err = run(capsys, "sudoku", *words)
        assert (code, err) == (0, "") and "✓ verified" in out and "sudoku-4x4" in out


def test_json_lines_parse_keep_their_order_and_tell_errors(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    grid = {"grid": [[1, 0, 0, 0], [0, 0, 2, 0], [0, 3, 0, 0], [0, 0, 0, 4]]}
    file = tmp_path / "puzzles.txt"
    file.write_text(f"{EASY}\n\n{'.' * 36}\nnonsense\n{json.dumps(grid)}\n11..............\n", encoding="utf-8")
    code, out, err = run(capsys, "sudoku", "--file", str(file), "--json")
    assert code == 1 and err == ""
    first, second, third, fourth, fifth = map(json.loads, out.splitlines())
    assert first["text"] == fourth["text"] and first["verified"] and first["puzzle"] == EASY.replace(" ", "")
    assert second["model"] == "sudoku-6x6" and "trace" not in second
    assert third["puzzle"] == "nonsense" and "expected 16" in third["error"]
    assert fifth["error"].endswith("row 1 holds 1 twice")


def test_stdin_and_the_trace(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{EASY}\n{EASY}\n"))
    code, out, _ = run(capsys, "sudoku", "-", "--json", "--trace")
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and len(lines) == 2 and lines[0] == lines[1]
    assert [step["step"] for step in lines[0]["trace"]] == list(range(1, lines[0]["steps"] + 1))
    assert lines[0]["trace"][-1]["answer"] == lines[0]["answer"]


def test_exit_code_and_fallback(capsys: pytest.CaptureFixture[str], untrained: dict[str, Path]) -> None:
    model = str(untrained["sudoku"])
    code, out, _ = run(capsys, model, EASY)
    assert code == 1 and "✗ not solved" in out and "✓" not in out
    code, out, _ = run(capsys, model, EASY, EASY, "--fallback", "exact")
    assert code == 0 and out.count("from the exact solver") == 2 and "✗" not in out
    code, out, err = run(capsys, "sudoku", "11..............")
    assert code == 1 and out == "" and "row 1 holds 1 twice" in err


def test_steps_bound_the_thinking(capsys: pytest.CaptureFixture[str], untrained: dict[str, Path]) -> None:
    code, out, _ = run(capsys, str(untrained["sudoku"]), EASY, "--json", "--steps", "3")
    assert code == 1 and json.loads(out)["steps"] == 3


def test_a_random_puzzle_repeats_with_its_seed(capsys: pytest.CaptureFixture[str]) -> None:
    said = [json.loads(run(capsys, "sudoku-4x4", "--random", seed, "--json")[1]) for seed in ("7", "7", "8")]
    assert said[0] == said[1] != said[2]
    _, out, err = run(capsys, "sudoku-4x4", "--random", "--json")
    seed = err.split()[-1]
    assert json.loads(run(capsys, "sudoku-4x4", "--random", seed, "--json")[1]) == json.loads(out)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["sudoku"], "no puzzle"),
        (["sudoku-4x5", EASY], "did you mean 'sudoku-4x4'"),
        (["sudoku", "--file", "nowhere.txt"], "cannot read nowhere.txt"),
        (["sudoku", EASY, "--watch", "--json"], "exclude each other"),
        (["sudoku", EASY, EASY, "--gif", "x.gif"], "draws one puzzle"),
        (["sudoku", EASY, "--steps", "0"], "steps 0"),
        (["sudoku", EASY, "--svg", "no/such/folder.svg"], "cannot write"),
    ],
)
def test_misuse_is_one_line(args: Sequence[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, *args)
    assert code == 2 and words in err and err.count("\n") == 1


def test_watching_is_a_plain_sequence_in_a_pipe_and_redrawn_on_a_terminal(
    capsys: pytest.CaptureFixture[str], untrained: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(solve, "PAUSE", 0.0)
    code, out, _ = run(capsys, str(untrained["sudoku"]), EASY, "--watch", "--steps", "3")
    assert code == 1 and "\x1b" not in out
    assert [line.split("  ")[0] for line in out.splitlines() if line.startswith(("puzzle", "step"))] == [
        "puzzle",
        "step 1",
        "step 2",
        "step 3",
    ]
    screen = io.StringIO()
    shelf, wanted = solve.open_shelf(str(untrained["sudoku"]), steps=3)
    answer = solve.watch(Console(file=screen, force_terminal=True, width=80), shelf, wanted, EASY)
    assert isinstance(answer, Answer) and answer.steps == 3
    assert "\x1b[1A" in screen.getvalue() and "step 3" in screen.getvalue()


# Search ---------------------------------------------------------------------------------------------------------------


def test_a_search_finds_answers_that_the_first_trajectory_misses(capsys: pytest.CaptureFixture[str]) -> None:
    plain, searching = Solver("sudoku-6x6", steps=2), Solver("sudoku-6x6", steps=2, search=8)
    asked = puzzles(plain, 60)
    missed = [puzzle for puzzle, answer in zip(asked, plain.solve_many(asked), strict=True) if not answer.verified]
    found = [answer for answer in searching.solve_many(missed) if answer.verified]
    assert missed and found
    for answer in found:
        assert is_solved_sudoku(plain.domain.format(answer.inputs), answer.text, 6, (2, 3))
        assert re.fullmatch(r"found by supposing one more cell \(try [1-8], \d+ more ACT steps\)", answer.note)
    puzzle = plain.domain.format(found[0].inputs)
    code, out, _ = run(capsys, "sudoku-6x6", puzzle, "--steps", "2", "--search", "8")
    assert code == 0 and "found by supposing" in out
    assert run(capsys, "sudoku-6x6", puzzle, "--steps", "2", "--search", "-1")[0] == 2
    with pytest.raises(UserError, match="no verified search in life"):
        Solver("life-5x5", search=2)


# Pictures -------------------------------------------------------------------------------------------------------------


def test_a_confidence_of_next_to_nothing_can_be_painted(untrained: dict[str, Path]) -> None:
    answer = Solver(untrained["sudoku"], steps=2).solve(EASY)
    for confidence in (0.0, 1e-6, 1e-3, 1.0):
        shown = [replace(frame, confidence=confidence) for frame in answer.frames()]
        assert gif(shown)[:6] == b"GIF89a"


@pytest.mark.parametrize("name", PRESETS)
def test_a_gif_shows_every_step_and_marks_what_changed(name: str, untrained: dict[str, Path]) -> None:
    solver = Solver(untrained[name], steps=2)
    answer = solver.solve_tokens(list(solver.domain.sample(1, 1)[0]))[0]
    shown = answer.frames()
    image = Image.open(io.BytesIO(answer.gif()))
    lit = []
    for number in range(getattr(image, "n_frames", 1)):
        image.seek(number)
        counts = {colour: count for count, colour in image.convert("RGB").getcolors(1 << 24) or ()}
        lit.append(counts.get(ImageColor.getrgb(HIGHLIGHT), 0) > 50)
        assert len(counts) > 3
    assert len(lit) == len(shown) >= 3
    assert not lit[0] and lit[1] and not lit[-1]


def test_pictures_stand_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    gif, svg = tmp_path / "a.gif", tmp_path / "a.svg"
    assert run(capsys, "sudoku", EASY, "--gif", str(gif), "--svg", str(svg))[0] == 0
    assert gif.read_bytes()[:6] == b"GIF89a"
    text = svg.read_text(encoding="utf-8")
    tree = ElementTree.fromstring(text)
    animated = [node for node in tree if node.get("class", "").startswith("f")]
    assert len(animated) == 3 and all(f"@keyframes f{n}{{" in text for n in range(3))
    assert "prefers-reduced-motion" in text and "prefers-color-scheme:dark" in text
    page = Solver("sudoku-4x4").solve(EASY)._repr_html_()
    for drawn in (text, page):
        assert not re.search(r"<script|href|src=|url\(|@import", drawn)
        assert set(re.findall(r"https?://[^\"' ]*", drawn)) == {"http://www.w3.org/2000/svg"}
    assert page.count("<svg") == 3 and "✓ verified" in page


def test_steps_that_change_nothing_are_told_not_drawn() -> None:
    answer = Solver("sudoku-4x4").solve(IMPOSSIBLE)
    shown = answer.frames()
    drawn = sum(bool(t.changed.any()) for t in answer.trace)
    assert len(shown) <= drawn + 3 < len(answer.trace)
    assert shown[-2].title.endswith(str(answer.steps))


def test_what_changed_is_counted_where_it_is_part_of_the_answer(untrained: dict[str, Path]) -> None:
    solver = Solver(untrained["arithmetic"], steps=2)
    answer = solver.solve("3 4 ? 5 ? = 17")
    assert answer.trace[0].changed.sum() > 2
    first = answer.frames()[1]
    assert first.caption == f"{first.drawing.count(HIGHLIGHT)} changed" and 1 <= first.drawing.count(HIGHLIGHT) <= 2


def test_names_are_escaped(tmp_path: Path, untrained: dict[str, Path]) -> None:
    odd = tmp_path / "<b>&'"
    odd.symlink_to(untrained["sudoku"])
    answer = Solver(odd, steps=1).solve(EASY)
    assert "<b>&'" not in answer._repr_html_() and "&lt;b&gt;&amp;" in answer._repr_html_()
    ElementTree.fromstring(answer.svg())


@pytest.mark.parametrize(
    "tag", ['<?xml version="1.0"?>\n<svg viewBox="0 0 70 90"', '<svg width="100%" viewBox="0 0 70 90"', "<svg"]
)
def test_a_picture_that_does_not_say_its_size_is_drawn(
    tag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A domain of somebody else's may draw so."""
    drawing = f'{tag} xmlns="http://www.w3.org/2000/svg"><circle r="9"/></svg>'
    monkeypatch.setattr("ponder.domains.sudoku.domain.Sudoku.svg", lambda *_: drawing)
    assert run(capsys, "sudoku", EASY, "--svg", str(tmp_path / "it.svg"))[0] == 0
    drawn = ElementTree.parse(tmp_path / "it.svg").getroot()
    inner = {child.get("width") for child in drawn.iter() if len(child) == 1 and child[0].tag.endswith("circle")}
    assert inner == {"70" if "viewBox" in tag else "260"}
    code, _, err = run(capsys, "sudoku", EASY, "--gif", str(tmp_path / "it.gif"))
    assert code == 2 and "<circle>" in err and err.count("\n") == 1
