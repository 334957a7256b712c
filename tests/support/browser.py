"""What the browser tests stand on: Debian's Chromium."""

import os
from pathlib import Path

CHROMIUM = Path(os.environ.get("PONDER_CHROMIUM", "/usr/bin/chromium"))
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
