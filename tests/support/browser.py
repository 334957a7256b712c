"""What the browser tests stand on: Debian's Chromium."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CHROMIUM = Path(os.environ.get("PONDER_CHROMIUM", "/usr/bin/chromium"))
PATIENCE = 60_000
"""Milliseconds; a test that fails takes this long."""
SWITCHES = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def missing() -> str:
    """Why the browser tests cannot run here; empty where they can."""
    try:
        import playwright.sync_api  # noqa: F401
    except ModuleNotFoundError:
        return "browser tests skipped: playwright is not installed"
    return (
        "" if CHROMIUM.exists() else f"browser tests skipped: there is no Chromium at {CHROMIUM} (apt install chromium)"
    )


@contextmanager
def launched() -> Iterator["Browser"]:
    """Chromium; what is expected of its pages may take as long as a busy machine needs."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        instance = playwright.chromium.launch(executable_path=CHROMIUM, args=list(SWITCHES))
        yield instance
        instance.close()
