"""The package as a stranger gets it: an sdist without what a working folder gathers, and a wheel made of it that is
enough, in an environment where no checkout is."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from ponder import __version__
from tests.commands.test_examples import EXAMPLES
from tests.support import ROOT
from tests.support.scratch import Scratch, served

LEFT_OUT = (".ci", ".github", ".dockerignore")
"""Tracked, and for the forge alone."""
PAGES = ("README.md", "tour.md")
GATHERED = ("runs/one/metrics.jsonl", "data/maze/train.npy", "train.log", "tmp/notes.md", "docs/build.log")


@dataclass(frozen=True)
class Built:
    tracked: set[str]
    commit: str
    sdist: Path
    wheel: Path


def _git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=tests", "-c", "user.email=tests@localhost"]
    done = subprocess.run(
        ["git", *who, *words], cwd=folder, capture_output=True, encoding="utf-8", check=True, env=_clean()
    )
    return done.stdout


def _clean() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH" and not name.startswith("GIT_")}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """From a checkout in which somebody has worked."""
    if shutil.which("git") is None or not (ROOT / ".gitignore").is_file():
        pytest.skip("no git here")
    checkout = tmp_path_factory.mktemp("checkout")
    names = ("data", "runs", "build", "dist", "site", "tmp", ".*cache", ".git", ".venv*", ".hypothesis", "__pycache__")
    shutil.copytree(ROOT, checkout, ignore=shutil.ignore_patterns(*names, "*.egg-info"), dirs_exist_ok=True)
    shutil.copytree(
        ROOT / "ponder", checkout / "ponder", ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True
    )
    _git(checkout, "init", "--quiet")
    _git(checkout, "add", "--all")
    _git(checkout, "commit", "--quiet", "--message", "all")
    for name in GATHERED:
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text("x", encoding="utf-8")
    out = checkout / "dist"
    build = [sys.executable, "-m", "build", "--no-isolation", "--skip-dependency-check", "--outdir", str(out)]
    done = subprocess.run([*build, str(checkout)], capture_output=True, encoding="utf-8", check=False, env=_clean())
    assert done.returncode == 0, done.stdout + done.stderr
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    commit = _git(checkout, "rev-parse", "--short=12", "HEAD").strip()
    return Built(set(_git(checkout, "ls-files").split()), commit, sdist, wheel)


def test_the_sdist_is_complete_and_holds_nothing_that_was_gathered(built: Built) -> None:
    with tarfile.open(built.sdist) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    expected = {name for name in built.tracked if not name.startswith(LEFT_OUT)}
    assert len(expected) > 400
    assert names == expected | {"PKG-INFO", "ponder/COMMIT"}


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Scratch:
    made = Scratch.make(tmp_path_factory.mktemp("installed"), with_ponder=False)
    made.install(built.wheel, "--ignore-installed")
    return made


def test_it_is_the_installed_one_and_knows_its_commit(installed: Scratch, built: Built) -> None:
    where = installed.run("-c", "import ponder; print(ponder.__file__)").stdout
    assert where.startswith(str(installed.python.parents[1]))
    assert installed.ponder("--version") == f"ponder {__version__}, commit {built.commit}\n"
    assert "installed package" in installed.ponder("doctor")


def test_it_does_what_the_readme_and_the_tour_say(installed: Scratch) -> None:
    """In order: data, training, evaluation, comparison, search; elsewhere than in a checkout."""
    lines = [shlex.join(each.smaller) for each in EXAMPLES if each.page in PAGES and each.why_not is None]
    assert {line.split()[0] for line in lines} >= {
        "solve",
        "zoo",
        "data",
        "train",
        "eval",
        "diff",
        "policies",
        "search",
    }
    out = installed.ponder(*lines)
    assert "verified" in out and "stopped after update 2" in out and "sudoku-6x6" in out
    assert (installed.folder / "runs" / "no-gate" / "eval" / "eval.json").is_file()


def test_it_serves_with_its_page(installed: Scratch) -> None:
    with served(installed, "--model", "sudoku-4x4") as url:
        page = httpx.get(url, timeout=60)
        assert page.status_code == 200
        assets = re.findall(r'(?:src|href)="(static/[^"]+)"', page.text)
        assert {asset.rpartition(".")[2] for asset in assets} >= {"js", "css"}
        for asset in assets:
            assert httpx.get(f"{url}/{asset}", timeout=60).status_code == 200
        asked = {"model": "sudoku", "puzzle": "1... ..2. .3.. ...4"}
        assert httpx.post(f"{url}/v1/solve", json=asked, timeout=60).json()["verified"] is True


def test_a_missing_extra_is_named_by_the_package_and_pip_finds_it_so(installed: Scratch) -> None:
    code = "import sys; sys.modules['fastapi'] = None; from ponder.cli import main; sys.exit(main(['serve']))"
    said = installed.run("-c", code, code=2).stderr
    assert said == "ponder: ponder serve needs an extra: pip install 'ponder[serve]'\n"
    installed.pip("install", "--no-index", "ponder[serve]")  # all that it brings is here: the name is enough
