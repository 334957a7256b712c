"""What the tests in a real browser share."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support import browser

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.support.page import Open


@pytest.fixture(scope="module")
def chromium() -> Iterator["Browser"]:
    from playwright.sync_api import sync_playwright  # not there on every machine: the tests that ask for it are skipped

    with sync_playwright() as playwright:
        instance = playwright.chromium.launch(executable_path=browser.CHROMIUM, args=list(browser.SWITCHES))
        yield instance
        instance.close()


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
