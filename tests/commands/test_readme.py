"""What the README and the tour say can be typed."""

import re
from pathlib import Path

import pytest

from ponder.cli import main
from ponder.commands import VERBS
from ponder.config.resolve import model_names, preset_names
from tests.support import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
TOUR = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^(?:ponder|torchrun .* -m ponder) (.+?)(?:\s+#.*)?$", README + TOUR, flags=re.M)


def test_commands_name_verbs_presets_and_models_that_exist() -> None:
    assert len(COMMANDS) >= 20
    for command in COMMANDS:
        verb, *words = command.split()
        assert verb in VERBS, command
        for word in words:
            if re.fullmatch(r"\w+(-\w+)*-(mini|paper)", word):
                assert word in preset_names(), command
        if verb == "train" and "--model" in words:
            assert words[words.index("--model") + 1] in model_names(), command


def test_files_it_points_to_exist() -> None:
    targets = [each for each in re.findall(r"\]\(([^)#]+)[^)]*\)", README) if ":" not in each]
    assert targets and all((ROOT / target).exists() for target in targets), targets


def test_no_path_of_a_machine_and_no_registry_is_named() -> None:
    """Checked over everything that is tracked and is text."""
    machine = re.compile(r"(?<![\w./])/(?:work|farm|root)/|py" + r"pi\.org|files\.python" + r"hosted|registry\.npm")
    assert machine.search("see " + "/work" + "/x")
    for path in ROOT.rglob("*"):
        inside = path.relative_to(ROOT).parts
        if path.suffix in (".py", ".md", ".yaml", ".toml", ".txt", ".json") and not inside[0].startswith(
            (".", "runs", "data")
        ):
            assert not machine.search(path.read_text(encoding="utf-8")), path


def test_quickstart_trains_and_shows_a_puzzle_being_solved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["quickstart", "--seconds", "1"]) == 0
    out = capsys.readouterr().out
    assert "What thinking longer buys" in out and "step 8" in out and "Next" in out
    told = [line.split()[1] for line in out.split("Next")[1].splitlines() if line.strip().startswith("ponder")]
    assert told and set(told) <= set(VERBS)
