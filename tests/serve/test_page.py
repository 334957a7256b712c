"""The web page in a real browser, against a real server process."""

import re
from urllib.parse import urlencode

import httpx
import pytest

from ponder.inference.solver import Solver
from tests.support import browser

if reason := browser.missing():
    pytest.skip(reason, allow_module_level=True)

from playwright.sync_api import Route, expect

from tests.support.page import PAGE, SUDOKU, TOKEN, Open, answered, board, expect_puzzle, is_solution, shown


def test_solve_by_typing(open_page: Open) -> None:
    page = open_page("sudoku-4x4")
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
    page = open_page("sudoku-4x4")
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


def test_slider_shows_every_step(open_page: Open, page_server: str) -> None:
    said = answered(page_server, "sudoku-wrong", steps=8)
    answers = [[str(digit or "?") for row in thought["answer"]["grid"] for digit in row] for thought in said["trace"]]
    assert len(answers) == 8 and any(a != b for a, b in zip(answers[1:], answers, strict=False))
    page = open_page("sudoku-wrong")
    page.locator(".options summary").click()
    page.get_by_label("Steps at most").fill("8")
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
    page.locator(".options summary").click()
    page.get_by_label("Steps at most").fill("8")
    page.clock.install(time=0)
    page.clock.pause_at(1000)  # from here on it is later only when the test says so
    page.get_by_role("button", name="Solve").click()
    expect(page.locator(".bar")).to_have_count(9)  # all eight steps have come
    page.clock.run_for(2000)
    expect(page.locator("#headline")).to_have_text(re.compile("Thinking: step"))
    page.get_by_role("button", name="Pause").click()
    at = page.get_by_role("slider").input_value()
    page.clock.run_for(60_000)
    assert page.get_by_role("slider").input_value() == at and at not in ("0", "8")
    expect(page.locator("#detail")).to_have_text("The checker does not accept this yet.")
    page.get_by_role("button", name="Play").click()
    page.clock.run_for(60_000)
    expect(page.locator("#headline")).to_have_text("Not correct")


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


def test_links_that_lead_nowhere(open_page: Open, page_server: str) -> None:
    page = open_page()
    name = "<img src=x onerror=alert(1)>"
    page.goto(f"{page_server}/#{urlencode({'model': name, 'puzzle': SUDOKU})}")
    expect(page.locator("#verdict.error")).to_contain_text(f"no model “{name}”")
    expect(page.locator("#verdict img")).to_have_count(0)
    page.goto(f"{page_server}/#{urlencode({'model': 'sudoku-4x4', 'puzzle': '123'})}")
    expect(page.locator("#verdict.error")).to_contain_text("this text has 3")


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


def test_what_gets_into_the_page_cannot_run(open_page: Open, page_server: str) -> None:
    """Every way to run or load what is not a file of this server is refused by the browser, and said so."""
    policy = httpx.get(page_server).headers["content-security-policy"]
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
