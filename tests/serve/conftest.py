"""What the tests of the server and of its page share."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.conftest import tiny
from tests.support import browser
from tests.support.folders import random_folder
from tests.support.serving import Server, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.support.page import Open


@pytest.fixture(scope="module")
def chromium() -> Iterator["Browser"]:
    with browser.launched() as instance:
        yield instance


@pytest.fixture(scope="package")
def page_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from tests.support import page

    with page.served(tmp_path_factory.mktemp("models")) as url:
        yield url


@pytest.fixture
def open_page(chromium: "Browser", page_server: str) -> Iterator["Open"]:
    from tests.support import page

    with page.opener(chromium, page_server) as opened:
        yield opened


@pytest.fixture(scope="package")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 4x4 sudokus that never gets one right, and so takes the whole budget of steps."""
    return random_folder(tmp_path_factory.mktemp("models") / "endless", tiny(model={"max_steps": 100_000}))


@pytest.fixture(scope="package")
def server(endless: Path) -> Iterator[Server]:
    with serving("--model", "sudoku-4x4", "--model", str(endless), "--slots", "16") as running:
        yield running


@pytest.fixture(scope="package")
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client
