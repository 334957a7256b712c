"""What the tests of the page share: a server with models that are wrong, the page opened, what its board shows.

Only where Playwright is installed.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from ponder.config.resolve import resolve
from ponder.domains import registry
from ponder.domains.skeleton import write_package
from tests.support import ROOT
from tests.support.browser import PATIENCE
from tests.support.folders import random_folder
from tests.support.serving import serving

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
WRONG = {"model": {"width": 16, "heads": 2, "max_steps": 2}}
Open = Callable[..., Page]


@contextmanager
def served(root: Path) -> Iterator[str]:
    """A server of shipped models and of random weights; `sort` is a domain of somebody else's, a line of symbols."""
    write_package("sort", root / "package", None, 8)
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(registry.FILES, "")  # gone again once the server has read it
            registry.use_file(str(root / "package" / "ponder_sort" / "__init__.py"))
            # Of a seed whose answers keep changing, and are wrong.
            folders = [random_folder(root / n, resolve(p, "ponder", WRONG), seed=3) for n, p in PRESETS.items()]
            models: list[str | Path] = ["sudoku-4x4", "sudoku-6x6", "life-5x5", *folders]
            words = [word for model in models for word in ("--model", model)]
            server = stack.enter_context(serving(*words, token=TOKEN))
        registry.brought.cache_clear()
        yield server.url


@contextmanager
def opener(chromium: Browser, server: str) -> Iterator[Open]:
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
        context.set_default_timeout(PATIENCE)
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
