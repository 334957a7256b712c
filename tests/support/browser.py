"""What the browser tests stand on: a real server process, models with random weights, and Debian's Chromium."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import save_file

from ponder.config.resolve import resolve
from ponder.model.reasoner import Reasoner

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


def untrained(preset: str, folder: Path) -> Path:
    """A model of random weights, as a folder that `--model` takes: it answers nearly everything wrong."""
    torch.manual_seed(3)  # one whose answers keep changing
    config = resolve(preset, "ponder", {"model": {"width": 16, "heads": 2, "max_steps": 2}})
    domain = config.data.make()
    model = Reasoner(config.model, len(domain.vocab), domain.seq_len, 1)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config.flat()), encoding="utf-8")
    save_file({k: v.detach().clone() for k, v in model.state_dict().items()}, folder / "weights.safetensors")
    return folder


@contextmanager
def served(*models: str | Path, token: str | None = None) -> Iterator[str]:
    """`ponder serve` in a process of its own; its address."""
    command = [sys.executable, "-m", "ponder", "serve", "--port", "0", "--threads", "1"]
    for model in models:
        command += ["--model", str(model)]
    environment = {k: v for k, v in os.environ.items() if k != "PONDER_TOKEN"}
    if token is not None:
        environment["PONDER_TOKEN"] = token
    process = subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8", env=environment)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found is not None, f"the server said {line!r}"
        yield found[0]
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        finally:
            process.stdout.close()
