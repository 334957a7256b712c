"""The page can be read and used by everybody: narrow screens, fingers, keys, contrast, words that explain it."""

import re

import pytest

from tests.support import browser

if reason := browser.missing():
    pytest.skip(reason, allow_module_level=True)

from playwright.sync_api import Page, Route, expect

from tests.support.page import SUDOKU, Open, answered, expect_puzzle


def test_keyboard_only(open_page: Open) -> None:
    page = open_page("sudoku-4x4")

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
    page = open_page("sudoku-4x4", viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    page.locator("#clear").tap()
    for i, digit in enumerate(SUDOKU):
        if digit != ".":
            page.locator(".cell").nth(i).tap()
            page.get_by_role("button", name=f"Put {digit} into").tap()
    expect_puzzle(page, SUDOKU)
    page.locator("#solve").tap()
    expect(page.locator("#headline")).to_have_text("Checked: correct")
    expect(page.locator("#headline")).to_be_in_viewport()


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


def test_the_confidence_bar_fills_its_track(open_page: Open, page_server: str) -> None:
    page = open_page("sudoku-4x4")
    page.get_by_role("button", name="Solve").click()
    expect(page.locator("#headline")).to_have_text("Checked: correct")
    measure = """(track) => { const [fill, box] = [getComputedStyle(track, "::before"), track.getBoundingClientRect()];
        return [parseFloat(fill.width) / box.width, parseFloat(fill.height) / box.height]; }"""
    wide, high = page.locator("#meter").evaluate(measure)
    confidence = answered(page_server, "sudoku-4x4")["confidence"]
    assert high == pytest.approx(1, abs=0.01) and wide == pytest.approx(confidence, abs=0.01)


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
    page.locator(".options summary").click()
    page.get_by_label("Steps at most").fill("8")
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
