"""The web page in a real browser, against a real server process."""

import json
import os
import re
from collections.abc import Callable, Iterator
from itertools import chain
from math import ceil
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from ponder.config.resolve import resolve
from ponder.domains import registry
from ponder.domains.skeleton import write_package
from ponder.inference.solver import Solver
from ponder.inference.weights import ZOO
from tests.support import ROOT, browser

if reason := browser.missing():
    pytest.skip(reason, allow_module_level=True)

from playwright.sync_api import Browser, BrowserContext, Page, Route, expect

PAGE = ROOT / "ponder" / "serve" / "page"
TOKEN = "sesame"
DESKTOP = {"width": 1280, "height": 800}
SUDOKU = "1.....2..3.....4"
PUZZLES = {
    "sudoku-4x4": SUDOKU,
    "sudoku-wrong": SUDOKU,
    "maze-wrong": "S..#.../.#.#.#./.#...#./.#####./......./.#####./......G",
    "life-wrong": "...../..O../..O../..O../.....:03",
    "arithmetic-wrong": "3 4 ? 5 ? = 17",
    "joint-wrong": "arithmetic: 3 4 ? 5 ? = 17",
    "sort-wrong": "31415",
}
PRESETS = {
    "sudoku-wrong": "sudoku-mini",
    "maze-wrong": "maze-mini",
    "life-wrong": "life-mini",
    "arithmetic-wrong": "arithmetic-mini",
    "joint-wrong": "joint-mini",
    "sort-wrong": "sort-mini",
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Models of random weights; `sort` is a domain of somebody else's, a line of symbols."""
    root = tmp_path_factory.mktemp("models")
    write_package("sort", root / "package", None, 8)
    registry.use_file(str(root / "package" / "ponder_sort" / "__init__.py"))
    yield {name: browser.untrained(preset, root / name) for name, preset in PRESETS.items()}
    del os.environ[registry.FILES]
    registry.brought.cache_clear()


@pytest.fixture(scope="module")
def server(folders: dict[str, Path]) -> Iterator[str]:
    with browser.served("sudoku-4x4", "sudoku-6x6", "life-5x5", *folders.values(), token=TOKEN) as url:
        yield url


Open = Callable[..., Page]


@pytest.fixture
def open_page(chromium: Browser, server: str) -> Iterator[Open]:
    """Opens pages, and fails the test if one of them complains, or asks another host for anything."""
    contexts: list[BrowserContext] = []
    complaints: list[str] = []

    def complain(kind: str, text: str) -> None:
        # Chromium notes every answer of 400 and more: that the page deals with these is what the tests look at.
        if kind in ("error", "warning") and "Failed to load resource" not in text:
            complaints.append(text)

    def opened(
        model: str | None = None,
        puzzle: str | None = None,
        token: str | None = TOKEN,
        watch: bool = True,
        **settings: Any,
    ) -> Page:
        context = chromium.new_context(**{"reduced_motion": "reduce", "viewport": DESKTOP, **settings})
        context.set_default_timeout(15_000)
        contexts.append(context)
        if token is not None:
            context.add_init_script(f"sessionStorage.setItem('ponder-token', '{token}')")
        page = context.new_page()
        if watch:
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("console", lambda message: complain(message.type, message.text))
            page.on("request", lambda asked: None if asked.url.startswith(server) else complaints.append(asked.url))
        link = "" if model is None else "#" + urlencode({"model": model, "puzzle": puzzle or PUZZLES[model]})
        page.goto(f"{server}/{link}")
        if token is not None:
            expect(page.locator("#headline")).to_have_text("Ready when you are")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


def board(page: Page) -> list[str]:
    return page.locator(".board").last.locator(".cell").all_inner_texts()


def shown(page: Page) -> str:
    """The 4x4 sudoku on the board, as text."""
    return "".join(cell or "." for cell in board(page))


def expect_puzzle(page: Page, puzzle: str) -> None:
    """That the page's link holds this puzzle, now or in a moment."""
    expect(page).to_have_url(re.compile(re.escape(urlencode({"puzzle": puzzle})) + "$"))


def answered(server: str, model: str, **options: Any) -> dict[str, Any]:
    body = {"model": model, "puzzle": PUZZLES[model], "trace": True, **options}
    said = httpx.post(f"{server}/v1/solve", json=body, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=30)
    data: dict[str, Any] = said.json()
    return data


def is_solution(given: str, cells: list[str]) -> bool:
    """By the rules of a 4x4 sudoku, written down once more."""
    rows = [cells[i : i + 4] for i in range(0, 16, 4)]
    columns = [list(column) for column in zip(*rows, strict=True)]
    boxes = [[rows[r + i][c + j] for i in (0, 1) for j in (0, 1)] for r in (0, 2) for c in (0, 2)]
    kept = all(clue in (".", cell) for clue, cell in zip(given, cells, strict=True))
    return kept and all(sorted(unit) == ["1", "2", "3", "4"] for unit in (*rows, *columns, *boxes))


def clashes(digits: list[int]) -> set[int]:
    """Where a 4x4 grid holds a digit twice in a row, a column or a box."""
    units = [
        *([4 * r + c for c in range(4)] for r in range(4)),
        *([4 * r + c for r in range(4)] for c in range(4)),
        *([4 * (r + i) + c + j for i in (0, 1) for j in (0, 1)] for r in (0, 2) for c in (0, 2)),
    ]
    return {i for unit in units for i in unit if digits[i] and [digits[j] for j in unit].count(digits[i]) > 1}


def test_solve_by_typing(open_page: Open) -> None:
    page = open_page()
    page.get_by_role("button", name="Clear").click()
    expect(page.locator(".cell").first).to_have_text("")
    for i, digit in enumerate(SUDOKU):
        if digit != ".":
            page.locator(".cell").nth(i).click()
            page.keyboard.press(digit)
    expect_puzzle(page, SUDOKU)
    page.get_by_role("button", name="Solve").click()
    expect(page.locator("#headline")).to_have_text("Checked: correct")
    assert is_solution(SUDOKU, board(page))
    # The next digit belongs to a new puzzle, of which nothing has been said.
    page.locator(".cell").nth(1).click()
    page.keyboard.press("3")
    expect(page.locator("#headline")).to_have_text("Ready when you are")
    expect(page.locator("#player")).to_be_hidden()
    expect_puzzle(page, "13....2..3.....4")
    assert shown(page) == "13....2..3.....4"


def test_random_puzzles(open_page: Open) -> None:
    page = open_page()
    domain = Solver("sudoku-4x4").domain
    seen = set()
    for _ in range(3):
        page.get_by_role("button", name="Random").click()
        expect(page.locator("#headline")).to_have_text("Ready when you are")
        puzzle = shown(page)
        expect_puzzle(page, puzzle)
        assert len(domain.solutions(domain.parse(puzzle))) == 1
        seen.add(puzzle)
    assert len(seen) > 1


def test_slider_shows_every_step(open_page: Open, server: str) -> None:
    said = answered(server, "sudoku-wrong")
    answers = [[str(digit or "?") for row in thought["answer"]["grid"] for digit in row] for thought in said["trace"]]
    assert len(answers) == 8 and any(a != b for a, b in zip(answers[1:], answers, strict=False))
    page = open_page("sudoku-wrong")
    page.get_by_role("button", name="Solve").click()
    expect(page.locator("#headline")).to_have_text("Not correct")
    slider = page.get_by_role("slider")
    assert slider.get_attribute("max") == "8" and slider.input_value() == "8"
    expect(page.locator(".bar.halt")).to_have_count(1)
    expect(page.locator("#halting")).to_contain_text("Halted after 8 steps: the step budget was spent")
    for step, (thought, cells) in enumerate(zip(said["trace"], answers, strict=True), 1):
        slider.fill(str(step))
        expect(page.locator("#where")).to_have_text(f"Step {step} of 8")
        assert board(page) == cells
        marked = page.locator(".cell.changed").evaluate_all("cells => cells.map((cell) => Number(cell.dataset.index))")
        assert marked == ([] if step == 1 else [i for i in range(16) if cells[i] != answers[step - 2][i]])
        said_so = float(page.locator("#meter").get_attribute("aria-valuenow") or "nan")
        assert said_so == pytest.approx(thought["confidence"], abs=1e-5)
        assert "correct" not in page.locator("#verdict").inner_text().replace("Not correct", "")
    slider.fill("0")
    assert shown(page) == SUDOKU


def test_play_and_pause(open_page: Open) -> None:
    page = open_page("sudoku-wrong", reduced_motion="no-preference")
    page.get_by_role("button", name="Solve").click()
    expect(page.locator("#headline")).to_have_text(re.compile("Thinking: step"))
    page.get_by_role("button", name="Pause").click()
    at = page.get_by_role("slider").input_value()
    page.wait_for_timeout(1000)
    assert page.get_by_role("slider").input_value() == at != "8"
    expect(page.locator("#detail")).to_have_text("The checker does not accept this yet.")
    page.get_by_role("button", name="Play").click()
    expect(page.locator("#headline")).to_have_text("Not correct")


@pytest.mark.parametrize("model", ["sudoku-wrong", "maze-wrong", "life-wrong", "arithmetic-wrong"])
def test_wrong_is_never_shown_as_right(open_page: Open, server: str, model: str) -> None:
    said = answered(server, model)
    assert said["verified"] is False, "random weights were right: choose another puzzle"
    page = open_page(model)
    page.get_by_role("button", name="Solve").click()
    expect(page.locator("#headline")).to_have_text("Not correct")
    expect(page.locator("#verdict")).to_have_class(re.compile(r"\bbad\b"))
    note = said["note"][1:]
    expect(page.locator("#detail")).to_contain_text(note.replace("step", "generation") if "life" in model else note)
    marked = page.locator(".board").last.locator(".cell.wrong")
    places = marked.evaluate_all("cells => cells.map((cell) => Number(cell.dataset.index))")
    if model == "sudoku-wrong":
        assert set(places) == clashes([digit for row in said["answer"]["grid"] for digit in row])
    elif model == "life-wrong":
        blinker = [int(i in (11, 12, 13)) for i in range(25)]
        assert places == [i for i, cell in enumerate(chain(*said["answer"]["board"])) if cell != blinker[i]] != []
    elif model == "maze-wrong":
        trail = {i for i, cell in enumerate("".join(said["answer"]["grid"])) if cell == "o"}
        assert set(places) <= trail and bool(places) == bool(trail)
    else:
        expect(page.locator(".formula")).to_contain_text("≠ 17")
    page.locator(".options summary").click()
    page.get_by_label("Let an exact solver answer").check()
    page.get_by_role("button", name="Solve").click()
    expect(page.locator("#headline")).to_have_text("Answered by exact solver")
    expect(page.locator("#where")).to_have_text("Exact solver")
    expect(page.locator(".wrong")).to_have_count(0)
    exact = answered(server, model, fallback="exact")["answer"]
    if model == "sudoku-wrong":
        assert is_solution(SUDOKU, board(page))
    elif model == "maze-wrong":
        dots = [i for i, cell in enumerate("".join(exact["grid"])) if cell == "o"]
        path = page.locator(".cell.path")
        assert [int(cell.get_attribute("data-index") or -1) for cell in path.all()] == dots and dots
    elif model == "life-wrong":
        # A blinker after an odd number of steps lies on its side.
        alive = page.locator(".board.after .cell.alive")
        assert [cell.get_attribute("data-index") for cell in alive.all()] == ["11", "12", "13"]
    else:
        expect(page.locator(".formula")).to_have_text("(3 × 4) + 5 = 17")
    page.get_by_role("slider").press("ArrowLeft")
    expect(page.locator("#headline")).to_have_text(f"After step {said['steps']}")
    expect(page.locator("#detail")).to_have_text("The checker does not accept this yet.")


def test_a_budget_of_steps(open_page: Open) -> None:
    page = open_page("sudoku-wrong")
    page.locator(".options summary").click()
    page.get_by_label("Steps at most").fill("3")
    page.get_by_role("button", name="Solve").click()
    expect(page.locator("#where")).to_have_text("Step 3 of 3")


def test_errors(open_page: Open) -> None:
    page = open_page("sudoku-4x4", "11....2..3.....4")
    page.get_by_role("button", name="Solve").click()
    expect(page.locator("#verdict.error")).to_contain_text("row 1 holds 1 twice")
    expect(page.locator("#player")).to_be_hidden()
    page.get_by_role("button", name="Paste").click()
    for text, complaint in (("12", "has 16 cells, this text has 2"), ("1.....2..3.....7", "“7” in row 4, column 4")):
        page.get_by_label("The puzzle as text").fill(text)
        page.get_by_role("button", name="Use it").click()
        expect(page.locator("#verdict.error")).to_contain_text(complaint)
    page.get_by_label("The puzzle as text").fill("1 . | . .\n. . | 2 .\n----+----\n. 3 | . .\n. . | . 4")
    page.get_by_role("button", name="Use it").click()
    expect(page.locator("#headline")).to_have_text("Ready when you are")
    expect_puzzle(page, SUDOKU)
    page.route(
        "**/v1/solve/stream",
        lambda route: route.fulfill(status=503, headers={"Retry-After": "7"}, json={"error": "full"}),
    )
    page.get_by_role("button", name="Solve").click()
    expect(page.locator("#verdict.error")).to_contain_text("Full (try again in 7 s)")
    page.route("**/v1/solve/stream", lambda route: route.abort())
    page.get_by_role("button", name="Solve").click()
    expect(page.locator("#verdict.error")).to_contain_text("The server does not answer")
    page.route("**/v1/solve/stream", lambda route: route.fulfill(content_type="text/event-stream", body="event: st"))
    page.get_by_role("button", name="Solve").click()
    expect(page.locator("#verdict.error")).to_contain_text("The connection broke before the answer came")
    expect(page.get_by_role("button", name="Solve")).to_be_enabled()


def test_clashes_are_marked_while_typing(open_page: Open) -> None:
    page = open_page("sudoku-4x4")
    cells = [int(c) for c in SUDOKU.replace(".", "0")]
    for index, digit in ((3, 1), (5, 1), (15, 2), (3, 0), (12, 3)):
        page.locator(".cell").nth(index).click()
        page.keyboard.press(str(digit))
        cells[index] = digit
        marked = page.locator(".cell.wrong").evaluate_all("cells => cells.map((cell) => Number(cell.dataset.index))")
        assert set(marked) == clashes(cells)
        expect(page.locator("#detail")).to_contain_text("clash" if marked else "Enter a puzzle")


def test_enter_solves(open_page: Open) -> None:
    """From a cell, a field, or where nothing has the focus; and it neither paints nor toggles."""
    for model, field in (("sudoku-4x4", ".cell"), ("life-wrong", ".cell"), ("maze-wrong", ".cell"), ("sort-wrong", "")):
        page = open_page(model)
        if field:
            page.locator(field).nth(2).focus()
        with page.expect_request("**/v1/solve/stream") as sent:
            page.keyboard.press("Enter")
        asked = sent.value.post_data_json
        assert asked is not None and asked["puzzle"] == PUZZLES[model]
    page = open_page("arithmetic-wrong")
    page.get_by_label("Value").fill("27")
    with page.expect_request("**/v1/solve/stream") as sent:
        page.keyboard.press("Enter")
    asked = sent.value.post_data_json
    assert asked is not None and asked["puzzle"] == "3 4 ? 5 ? = 27"


def test_a_size_that_no_model_has(open_page: Open) -> None:
    page = open_page("sudoku-4x4")
    page.get_by_role("button", name="Paste").click()
    page.get_by_label("The puzzle as text").fill("." * 81)
    page.get_by_role("button", name="Use it").click()
    expect(page.locator("#verdict.error")).to_contain_text("there are models for 4×4, 6×6")
    page.get_by_label("The puzzle as text").fill("1" + "." * 35)
    page.get_by_role("button", name="Use it").click()
    expect(page.get_by_label("Model", exact=True)).to_have_value("sudoku-6x6")


def test_words_and_colours_explain_themselves(open_page: Open) -> None:
    page = open_page("life-wrong")
    page.locator(".rules summary").click()
    said = " ".join(page.locator(selector).inner_text() for selector in ("#view", "#rules", "#paste-hint"))
    assert "generation" in said and not re.search(r"\bsteps?\b", said)
    page.get_by_role("button", name="Solve").click()
    expect(page.locator("#detail")).to_contain_text("after 3 generations")
    page = open_page("sudoku-wrong")
    expect(page.locator("#colours li")).to_have_count(0)
    page.get_by_role("button", name="Solve").click()
    expect(page.locator("#headline")).to_have_text("Not correct")
    for step in range(1, 9):
        page.get_by_role("slider").fill(str(step))
        told = set(page.locator("#colours i").evaluate_all("all => all.map((i) => i.className.split(' ')[1])"))
        looks = set(" ".join(page.locator(".cell").evaluate_all("all => all.map((cell) => cell.className)")).split())
        assert told == looks & {"given", "filled", "changed", "spoilt", "wrong"} and "filled" in told
    expect(page.locator("#player .hint").first).to_contain_text("as high as the model's confidence")
    page = open_page("sudoku-4x4")
    page.locator("#chart summary").click()
    expect(page.locator(".splits li")).to_contain_text("test held-out puzzles")


def test_the_confidence_bar_fills_its_track(open_page: Open, server: str) -> None:
    page = open_page("sudoku-4x4")
    page.get_by_role("button", name="Solve").click()
    expect(page.locator("#headline")).to_have_text("Checked: correct")
    measure = """(track) => { const [fill, box] = [getComputedStyle(track, "::before"), track.getBoundingClientRect()];
        return [parseFloat(fill.width) / box.width, parseFloat(fill.height) / box.height]; }"""
    wide, high = page.locator("#meter").evaluate(measure)
    confidence = answered(server, "sudoku-4x4")["confidence"]
    assert high == pytest.approx(1, abs=0.01) and wide == pytest.approx(confidence, abs=0.01)


def test_links_that_lead_nowhere(open_page: Open, server: str) -> None:
    page = open_page()
    name = "<img src=x onerror=alert(1)>"
    page.goto(f"{server}/#{urlencode({'model': name, 'puzzle': SUDOKU})}")
    expect(page.locator("#verdict.error")).to_contain_text(f"no model “{name}”")
    expect(page.locator("#verdict img")).to_have_count(0)
    page.goto(f"{server}/#{urlencode({'model': 'sudoku-4x4', 'puzzle': '123'})}")
    expect(page.locator("#verdict.error")).to_contain_text("this text has 3")


def test_keyboard_only(open_page: Open) -> None:
    page = open_page()

    def tab_to(selector: str) -> None:
        for _ in range(30):
            page.keyboard.press("Tab")
            focused = page.locator(f"{selector}:focus")
            if focused.count():
                assert focused.evaluate("e => getComputedStyle(e).outlineStyle") != "none", f"{selector}: focus unseen"
                return
        raise AssertionError(f"Tab does not reach {selector}")

    tab_to("#clear")
    page.keyboard.press("Enter")
    page.keyboard.press("Shift+Tab")
    for _ in range(12):
        if page.locator(".cell:focus").count():
            break
        page.keyboard.press("Shift+Tab")
    page.keyboard.press("Home")
    for row, line in enumerate(("1...", "..2.", ".3..", "...4")):
        for digit in line:
            page.keyboard.press(digit)
            page.keyboard.press("ArrowRight")
        page.keyboard.press("Home")
        if row < 3:
            page.keyboard.press("ArrowDown")
    expect_puzzle(page, SUDOKU)
    tab_to("#solve")
    page.keyboard.press("Enter")
    expect(page.locator("#headline")).to_have_text("Checked: correct")
    tab_to("#slider")
    page.keyboard.press("Home")
    expect(page.locator("#where")).to_have_text("The puzzle")
    page.keyboard.press("End")
    expect(page.locator("#headline")).to_have_text("Checked: correct")


def test_drawing_a_maze(open_page: Open) -> None:
    page = open_page("maze-wrong")
    page.get_by_role("button", name="Clear").click()
    cell = page.locator(".cell").nth
    cell(8).hover()  # a stroke of the mouse, to the right
    page.mouse.down()
    for index in (9, 10):
        cell(index).hover()
    page.mouse.up()
    page.get_by_label("Goal", exact=True).check()
    cell(20).click()
    cell(44).click()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("s")
    rows = [".......", ".###...", ".......", ".......", ".......", ".......", ".SG...."]
    expect_puzzle(page, "/".join(rows))


def test_toggling_life(open_page: Open) -> None:
    page = open_page("life-wrong")
    page.locator(".board").first.locator(".cell").nth(0).click()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Space")
    page.locator(".board").first.locator(".cell").nth(12).click()
    page.get_by_label("Generations ahead").fill("5")
    expect_puzzle(page, "OO.../..O../...../..O../.....:05")


def test_asking_beyond_the_trained_horizon_says_so(open_page: Open) -> None:
    trained = ceil(resolve("life-mini").data.flat()["max_steps"] / 2)
    page = open_page("life-wrong")
    for asked, words in ((trained, ""), (trained + 1, f"It was trained on {trained} generations at most.")):
        page.get_by_label("Generations ahead").fill(str(asked))
        expect(page.locator("#view .hint")).to_have_text(words)
    page = open_page("life-5x5", PUZZLES["life-wrong"])
    accuracy = json.loads((ZOO / "life-5x5" / "card.json").read_text(encoding="utf-8"))["accuracy"]
    for beyond, split in ((1, "plus_1"), (2, "plus_2"), (9, "plus_3"), (10, "plus_10"), (40, "plus_10")):
        page.get_by_label("Generations ahead").fill(str(trained + beyond))
        score = accuracy[split]
        ahead = int(split.removeprefix("plus_"))
        words = f"{ahead} generation{'s' * (ahead > 1)} beyond its training it was right on "
        words += f"{100 * score['valid']['value']:.1f}% of {score['n']:,} test boards."
        expect(page.locator("#view .hint")).to_contain_text(words)


def test_typing_arithmetic(open_page: Open) -> None:
    page = open_page("arithmetic-wrong")
    page.get_by_label("Operands").fill("8 2 ? 1 3 ? ?")
    page.get_by_label("Value").fill("2")
    expect(page.locator(".formula")).to_have_text("(8 ? 2) ? (1 ? 3) = 2")
    with page.expect_request("**/v1/solve/stream") as sent:
        page.get_by_role("button", name="Solve").click()
    asked = sent.value.post_data_json
    assert asked is not None and asked["puzzle"] == "8 2 ? 1 3 ? ? = 2"
    page.get_by_label("Operands").fill("8 2")
    page.get_by_role("button", name="Solve").click()
    expect(page.locator("#verdict.error")).to_contain_text("2 operands")


@pytest.mark.parametrize("model", list(PUZZLES))
def test_links_bring_the_puzzle_back(open_page: Open, model: str) -> None:
    page = open_page(model)
    with page.expect_request("**/v1/solve/stream") as sent:
        page.get_by_role("button", name="Solve").click()
    asked = sent.value.post_data_json
    assert asked is not None and (asked["model"], asked["puzzle"]) == (model, PUZZLES[model])
    assert page.get_by_label("Model", exact=True).input_value() == model
    assert page.locator("input[name=domain]:checked").get_attribute("value") == model.partition("-")[0]


def test_what_comes_late_does_not_undo_the_next_deed(open_page: Open) -> None:
    page = open_page("sudoku-4x4")
    held: list[Route] = []
    page.route("**/random?*", lambda route: held.append(route))
    with page.expect_request("**/random?*"):
        page.get_by_role("button", name="Random").click()
    page.locator(".cell").nth(1).click()
    page.keyboard.press("3")
    with page.expect_response("**/random?*"):
        held[0].continue_()
    page.wait_for_timeout(100)
    assert shown(page) == "13....2..3.....4"
    page.route("**/v1/solve/stream", lambda route: held.append(route))
    page.get_by_role("button", name="Solve").click()
    page.locator(".cell").nth(1).click()
    page.keyboard.press("2")
    expect(page.locator("#headline")).to_have_text("Ready when you are")
    expect(page.locator("#solve")).to_have_text("Solve")
    assert shown(page) == "12....2..3.....4"


def test_no_sideways_scrolling(open_page: Open) -> None:
    page = open_page(viewport={"width": 360, "height": 740}, has_touch=True)

    def fits() -> bool:
        return bool(page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))

    for domain in ("maze", "life", "arithmetic", "sudoku"):
        page.locator(f"input[name=domain][value={domain}]").check()
        expect(page.locator("#headline")).to_have_text("Ready when you are")
        expect(page).to_have_url(re.compile(f"model={domain}"))
        assert fits(), domain
        page.locator("#solve").tap()
        expect(page.locator("#headline")).to_have_text(re.compile("correct"))
        assert fits(), domain
        small = [
            box
            for box in (b.bounding_box() for b in page.locator(".actions button").all())
            if box and box["height"] < 40
        ]
        assert not small


def test_a_finger_is_enough(open_page: Open) -> None:
    page = open_page(viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    page.locator("#clear").tap()
    for i, digit in enumerate(SUDOKU):
        if digit != ".":
            page.locator(".cell").nth(i).tap()
            page.get_by_role("button", name=f"Put {digit} into").tap()
    expect_puzzle(page, SUDOKU)
    page.locator("#solve").tap()
    expect(page.locator("#headline")).to_have_text("Checked: correct")
    expect(page.locator("#headline")).to_be_in_viewport()


def test_accuracy_against_compute(open_page: Open) -> None:
    page = open_page("sudoku-wrong")
    expect(page.locator("#chart")).to_contain_text("without a card")
    shares = [0.5, 0.75, 0.75, 0.9, 0.95, 0.95, 0.96, 0.97]
    card = {"by_step": [{"step": i, "valid": share} for i, share in enumerate(shares, 1)]}

    def with_card(route: Route) -> None:
        models = route.fetch().json()["models"]
        route.fulfill(json={"models": [{**model, "card": card} for model in models]})

    page.route("**/v1/models", with_card)
    page.reload()
    expect(page.locator("#chart .dot")).to_have_count(8)
    page.get_by_role("button", name="Solve").click()
    expect(page.locator("#chart text.taken")).to_have_text("this puzzle: 8 steps")
    expect(page.locator("#chart figcaption")).to_contain_text("50.0% after 1 step, 97.0% after 8 steps")
    heights = [float(dot.get_attribute("cy") or "nan") for dot in page.locator("#chart .dot").all()]
    slopes = {(a - b) / (q - p) for a, b, p, q in zip(heights, heights[1:], shares, shares[1:], strict=False) if p != q}
    assert max(slopes) == pytest.approx(min(slopes)) and min(slopes) > 0
    taken = page.locator("#chart line.taken").get_attribute("x1")
    assert taken == page.locator("#chart .dot").nth(7).get_attribute("cx")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out(open_page: Open, scheme: str) -> None:
    """Contrast of at least 4.5 to 1, and a name for everything one can operate."""
    page = open_page("sudoku-wrong", color_scheme=scheme)
    selectors = ["#headline", "#detail", "#about", "#solve", "#random", ".cell.given", "figcaption", "footer p", "h2"]
    assert {s: c for s in selectors if (c := _contrast(page, s)) < 4.5} == {}
    page.get_by_role("button", name="Solve").click()
    expect(page.locator("#headline")).to_have_text("Not correct")
    selectors = [
        "#headline",
        "#detail",
        "#where",
        "#halting",
        ".cell.filled",
        ".cell.changed",
        ".changes",
        ".cell.spoilt",
    ]
    assert {s: c for s in selectors if page.locator(s).count() and (c := _contrast(page, s)) < 4.5} == {}
    nameless = """() => [...document.querySelectorAll("button, input, select, textarea")].filter((e) =>
        !e.labels?.length && !e.ariaLabel && !(e.tagName === "BUTTON" && e.textContent.trim())).map((e) => e.id)"""
    assert page.evaluate(nameless) == []


def _contrast(page: Page, selector: str) -> float:
    """The WCAG ratio of an element's text to what it stands on."""
    read = """(e) => { const colours = [getComputedStyle(e).color];
        for (; e; e = e.parentElement) colours.push(getComputedStyle(e).backgroundColor); return colours; }"""
    colours = [[float(x) for x in re.findall(r"[\d.]+", c)] for c in page.locator(selector).first.evaluate(read)]
    ground = next(c for c in colours[1:] if len(c) == 3 or c[3] == 1)
    light = sorted(_luminance(c) + 0.05 for c in (colours[0], ground))
    return light[1] / light[0]


def _luminance(colour: list[float]) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (x / 255 for x in colour[:3])]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_token(open_page: Open) -> None:
    page = open_page(token=None)
    for attempt in ("guess", TOKEN):
        expect(page.get_by_role("dialog")).to_be_visible()
        page.get_by_label("Bearer token").fill(attempt)
        page.keyboard.press("Enter")
    expect(page.locator("#headline")).to_have_text("Ready when you are")
    page.reload()
    expect(page.locator("#headline")).to_have_text("Ready when you are")
    page.get_by_role("button", name="Solve").click()
    expect(page.locator("#headline")).to_have_text("Checked: correct")
    assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]


def test_the_files_name_no_other_host() -> None:
    assert {path.suffix for path in PAGE.iterdir()} >= {".html", ".js", ".css"}
    for path in PAGE.rglob("*.*"):
        text = path.read_text(encoding="utf-8")
        assert set(re.findall(r"https?://[^\s\"']+", text)) <= {"http://www.w3.org/2000/svg"}, path.name
    html = (PAGE / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"\sstyle=|\son\w+=|<style|<script>", html)


def test_what_gets_into_the_page_cannot_run(open_page: Open, server: str) -> None:
    """Every way to run or load what is not a file of this server is refused by the browser, and said so."""
    policy = httpx.get(server).headers["content-security-policy"]
    rules = {rule.split()[0]: rule.split()[1:] for rule in policy.split("; ")}
    assert rules.pop("img-src") == ["'self'", "data:", "blob:"]
    assert {word for words in rules.values() for word in words} == {"'none'", "'self'", "'script'"}
    assert {name for name, words in rules.items() if words == ["'self'"]} == {"script-src", "style-src", "connect-src"}
    page = open_page("sudoku-4x4", watch=False)
    page.evaluate("""() => {
        window.refused = [];
        addEventListener("securitypolicyviolation", (event) => refused.push(event.effectiveDirective));
        window.put = (tag, attributes, text = "") => {
            const element = document.createElement(tag);
            for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
            element.append(text);
            document.body.append(element);
            return element;
        };
    }""")
    strings = "require-trusted-types-for"
    for attempt, rule in (
        ('put("script", {src: "data:text/javascript,ran = true"})', strings),
        ('put("script", {}, "ran = true")', strings),
        ('put("a", {onclick: "ran = true"}).click()', strings),
        ('document.body.insertAdjacentHTML("beforeend", "<img src=x onerror=ran=true>")', strings),
        ('put("p", {style: "display: none"})', "style-src-attr"),
        ('put("style", {}, "body { display: none }")', "style-src-elem"),
        ('put("img", {src: "http://other.invalid/x.png"})', "img-src"),
        ('fetch("http://other.invalid/")', "connect-src"),
        ('put("iframe", {src: "/docs"})', "frame-src"),
        ('put("base", {href: "http://other.invalid"})', "base-uri"),
    ):
        page.evaluate(f"async () => {{ refused.length = 0; try {{ await {attempt} }} catch {{}} }}")
        for _ in range(100):
            if page.evaluate("refused.length"):
                break
            page.wait_for_timeout(20)
        assert page.evaluate("refused[0]") == rule, attempt
    assert page.evaluate("window.ran") is None


def test_a_line_of_symbols_is_typed_and_its_answer_shown(open_page: Open, server: str) -> None:
    page = open_page("sort-wrong")
    assert board(page) == list("31415")
    page.get_by_label("Up to 8 of 0 1 2 3 4 5 6 7 8 9").fill("2 7 1")
    assert board(page) == list("271")
    expect_puzzle(page, "271")
    page.get_by_label("Up to 8").fill(PUZZLES["sort-wrong"])
    page.get_by_role("button", name="Solve").click()
    expect(page.locator("#headline")).to_have_text("Not correct")
    assert board(page) == list(answered(server, "sort-wrong")["text"])
    expect(page.locator("#fallback")).to_be_disabled()


def test_a_domain_without_a_board_is_shown_as_its_own_picture(open_page: Open) -> None:
    page = open_page("joint-wrong")
    picture = page.locator("img.picture")
    expect(picture).to_be_hidden()
    page.get_by_role("button", name="Solve").click()
    expect(page.locator("#headline")).to_have_text("Not correct")
    expect(picture).to_be_visible()
    assert picture.evaluate("img => img.naturalWidth") > 0
    page.get_by_role("button", name="Clear").click()
    expect(picture).to_be_hidden()
