"""`ponder doctor` knows every extra, and says what to install where one is missing."""

import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

import pytest

from ponder.base import errors, source
from ponder.cli import main
from ponder.commands import doctor
from ponder.training.trackers import TRACKERS
from tests.support import ROOT


def _plain(name: str) -> str:
    return re.split(r"[<>=\[;]", name)[0].lower().replace("_", "-")


def test_it_knows_the_extras_and_the_modules_they_bring() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    bring = {name: {_plain(each) for each in extras[name]} for name in doctor.EXTRAS}
    assert set(extras) - {"all", "test", "docs", "trackers"} == set(bring)
    distributions = packages_distributions()
    for extra, (_, modules) in doctor.EXTRAS.items():
        assert bring[extra] == {_plain(distributions[module][0]) for module in modules}
    assert set(doctor.TRACKERS) == set(TRACKERS)


def test_it_says_what_is_here_and_how_to_get_what_is_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr(doctor, "find_spec", lambda name: None if name == "onnxscript" else find_spec(name))
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in out and "cpu" in out and "free disk" in out
    assert "missing (onnxscript)" in out and "-e '.[onnx]'" in out and "make browser" in out
    assert "'.[llm]'" not in out


def test_hints_name_the_checkout_or_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert str(errors.needs_extra("x", "serve")).endswith(f"pip install -c constraints.txt -e '.[serve]' in {ROOT}")
    monkeypatch.setattr(source, "ROOT", tmp_path)
    assert str(errors.needs_extra("x", "serve")).endswith("pip install 'ponder[serve]'")
