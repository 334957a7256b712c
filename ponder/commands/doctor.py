"""`ponder doctor`: what this machine has, and what to install for what."""

import argparse
import os
import platform
import shutil
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ponder.base.errors import install_extra

EXTRAS = {
    "serve": ("ponder serve, ponder mcp", ("fastapi", "uvicorn", "mcp")),
    "llm": ("ponder eval-llm", ("httpx",)),
    "pictures": ("GIFs of ponder solve", ("PIL",)),
    "onnx": ("ponder export, ponder site", ("onnx", "onnxscript", "onnxruntime")),
    "slurm": ("ponder study run --slurm", ("submitit",)),
}
"""Extra -> what it is for, and the modules it brings."""
TRACKERS = ("tensorboard", "wandb", "trackio", "mlflow", "clearml")
LITTLE_DISK = 2e9


class Finding(NamedTuple):
    what: str
    here: str
    advice: str = ""


def main(args: Sequence[str]) -> None:
    argparse.ArgumentParser(
        prog="ponder doctor", description="What this machine has, and what to install for what is missing."
    ).parse_args(args)
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for what, here, advice in findings():
        table.add_row(what, Text(here, style="yellow" if advice else ""))
        if advice:
            table.add_row("", Text(f"-> {advice}"))
    Console(highlight=False).print(table)


def findings() -> Iterator[Finding]:
    yield from _software()
    yield from _machine()
    for extra, (use, modules) in EXTRAS.items():
        missing = [module for module in modules if find_spec(module) is None]
        here = f"missing ({', '.join(missing)})" if missing else "installed"
        yield Finding(f"extra {extra}", f"{here}, for {use}", install_extra(extra) if missing else "")
    there = [name for name in TRACKERS if find_spec(name) is not None]
    yield Finding(
        "trackers",
        ", ".join(there) or "none; the run folder's own log needs none",
        "" if there else "pip install wandb (or another of " + ", ".join(t for t in TRACKERS if t != "wandb") + ")",
    )


def _software() -> Iterator[Finding]:
    from ponder import __version__
    from ponder.base import source

    where = source.folder()
    yield Finding("ponder", f"{__version__}, commit {source.commit() or 'unknown'}, {where or 'installed package'}")
    yield Finding("Python", f"{platform.python_version()} on {platform.platform(terse=True)}")
    git = shutil.which("git")
    yield Finding(
        "git", git or "missing", "" if git else "install git: run folders then name the commit they came from"
    )
    browser = shutil.which("chromium")
    yield Finding(
        "chromium",
        browser or "missing, for the tests of the web page alone",
        "" if browser else "make browser, or your system's package chromium",
    )


def _machine() -> Iterator[Finding]:
    import torch

    from ponder.base import cores, native, runtime

    device = runtime.best_device()
    build = "CPU build" if torch.version.cuda is None else f"CUDA {torch.version.cuda} build"
    name = torch.cuda.get_device_name() if device == "cuda" else {"mps": "Apple GPU", "cpu": platform.machine()}[device]
    idle = device == "cpu" and torch.version.cuda is not None
    advice = "the build for CUDA finds no GPU: look at nvidia-smi, or install the CPU build (README)" if idle else ""
    yield Finding("device", f"{device} ({name}), torch {torch.__version__}, {build}", advice)
    asked = os.environ.get("OMP_NUM_THREADS")
    yield Finding(
        "cores", f"{cores.usable()} usable of {os.cpu_count()}" + (f", OMP_NUM_THREADS={asked}" * bool(asked))
    )
    yield Finding("processor", cores.processor() or platform.machine())
    why = native.missing()
    yield Finding(
        "kernels",
        f"our own, for {native.state()}" if why is None else f"torch's operations alone, which are slower: {why}",
        "install a C compiler (gcc or clang): the first run then compiles them" if why and "compile" in why else "",
    )
    yield Finding("threads", f"{torch.get_num_threads()} of torch; `ponder train` chooses its own")
    free = shutil.disk_usage(Path.cwd()).free
    low = "the mini presets fit; clear some space before a paper preset" if free < LITTLE_DISK else ""
    yield Finding("free disk", f"{free / 1e9:.1f} GB here", low)
