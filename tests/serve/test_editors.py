"""The page, domain by domain: how a puzzle is put in, and what is shown of its answer."""

import json
import re
from itertools import chain
from math import ceil

import pytest

from ponder.config.resolve import resolve
from ponder.inference.weights import ZOO
from tests.support import browser

if reason := browser.missing():
    pytest.skip(reason, allow_module_level=True)

from playwright.sync_api import expect

from tests.support.page import PUZZLES, SUDOKU, Open, answered, board, clashes, expect_puzzle, is_solution


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


def test_a_size_that_no_model_has(open_page: Open) -> None:
    page = open_page("sudoku-4x4")
    page.get_by_role("button", name="Paste").click()
    page.get_by_label("The puzzle as text").fill("." * 81)
    page.get_by_role("button", name="Use it").click()
    expect(page.locator("#verdict.error")).to_contain_text("there are models for 4×4, 6×6")
    page.get_by_label("The puzzle as text").fill("1" + "." * 35)
    page.get_by_role("button", name="Use it").click()
    expect(page.get_by_label("Model", exact=True)).to_have_value("sudoku-6x6")


def test_a_board_of_any_size(open_page: Open) -> None:
    """Asked for, or pasted: for models in which nothing has a size."""
    page = open_page("maze-wrong")
    expect(page.locator("#sides")).to_be_hidden()
    page = open_page("life-5x5", PUZZLES["life-wrong"])
    cells, rows = page.locator(".board").first.locator(".cell"), page.get_by_label("rows of the board")
    rows.fill("7")
    rows.press("Enter")
    expect(cells).to_have_count(49)
    expect(page.get_by_label("columns of the board")).to_have_value("7")  # its boards are square
    for index in (16, 23, 30):  # a blinker
        cells.nth(index).click()
    expect_puzzle(page, "......./......./..O..../..O..../..O..../......./.......:01")
    page.get_by_role("button", name="Solve").click()
    expect(page.locator("#verdict.good")).to_contain_text("Trained on 5x5 only")
    page.get_by_role("button", name="Paste").click()
    for text, side in ((".OO./O..O/.OO./....:02", 4), (PUZZLES["life-wrong"], 5)):
        page.get_by_label("The puzzle as text").fill(text)
        page.get_by_role("button", name="Use it").click()
        expect(rows).to_have_value(str(side))
        expect(cells).to_have_count(side**2)
        expect_puzzle(page, text)
    rows.fill("99")
    rows.press("Enter")
    expect(rows).to_have_value("32")


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
    card, config = (json.loads((ZOO / "life-5x5" / n).read_text("utf-8")) for n in ("card.json", "config.json"))
    accuracy, trained = card["accuracy"], ceil(config["data"]["max_steps"] / 2)
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


def test_a_line_of_symbols_is_typed_and_its_answer_shown(open_page: Open, page_server: str) -> None:
    page = open_page("sort-wrong")
    assert board(page) == list("31415")
    page.get_by_label("Up to 8 of 0 1 2 3 4 5 6 7 8 9").fill("2 7 1")
    assert board(page) == list("271")
    expect_puzzle(page, "271")
    page.get_by_label("Up to 8").fill(PUZZLES["sort-wrong"])
    page.get_by_role("button", name="Solve").click()
    expect(page.locator("#headline")).to_have_text("Not correct")
    assert board(page) == list(answered(page_server, "sort-wrong")["text"])
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


@pytest.mark.parametrize("model", list(PUZZLES))
def test_links_bring_the_puzzle_back(open_page: Open, model: str) -> None:
    page = open_page(model)
    with page.expect_request("**/v1/solve/stream") as sent:
        page.get_by_role("button", name="Solve").click()
    asked = sent.value.post_data_json
    assert asked is not None and (asked["model"], asked["puzzle"]) == (model, PUZZLES[model])
    assert page.get_by_label("Model", exact=True).input_value() == model
    assert page.locator("input[name=domain]:checked").get_attribute("value") == model.partition("-")[0]


@pytest.mark.parametrize("model", ["sudoku-wrong", "maze-wrong", "life-wrong", "arithmetic-wrong"])
def test_wrong_is_never_shown_as_right(open_page: Open, page_server: str, model: str) -> None:
    said = answered(page_server, model)
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
    exact = answered(page_server, model, fallback="exact")["answer"]
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
