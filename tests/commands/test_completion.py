"""A shell completes what there is: asked of bash itself."""

import shutil
import subprocess
from pathlib import Path

import pytest

from ponder.cli import main
from ponder.commands import VERBS
from ponder.config.resolve import model_names, preset_names

ASK = """\
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($#-1)); _shtab_ponder; printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("bash") is None:
        pytest.skip("no bash here")
    path = tmp_path_factory.mktemp("completion") / "ponder"
    with path.open("w", encoding="utf-8") as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", file)
        assert main(["completion", "bash"]) == 0
    return path


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("", set(VERBS)),
        ("train ", set(preset_names())),
        ("train sudoku-mini --model h", {"hrm"}),
        ("presets --model ", {name for name in model_names() if not name.endswith("-mini")}),
        ("train sudoku-mini --model.ga", {"--model.gate"}),
        ("train sudoku-mini --model.gate ", {"true", "false"}),
        ("train maze-mini --data.sou", {"--data.source"}),
        ("solve sudoku-", {"sudoku-4x4", "sudoku-6x6", "sudoku-9x9"}),
        ("study run gradient", {"gradient-path"}),
        ("study r", {"run", "report"}),
        ("eval-llm --domain life-m", {"life-mini"}),
        ("completion ", {"bash", "zsh"}),
    ],
)
def test_bash_offers_the_names_that_exist(script: Path, tmp_path: Path, words: str, offered: set[str]) -> None:
    asked = ["bash", "-c", ASK, "ask", str(script), *f"ponder {words}".split(" ")]
    done = subprocess.run(asked, cwd=tmp_path, capture_output=True, encoding="utf-8", check=True)
    assert set(done.stdout.split()) == offered, done.stderr


def test_zsh_gets_a_script_that_knows_them_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["completion", "zsh"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("#compdef ponder")
    assert all(name in out for name in (*VERBS, *preset_names(), "--model.gate", "--data.source"))
    if zsh := shutil.which("zsh"):
        (tmp_path / "_ponder").write_text(out, encoding="utf-8")
        subprocess.run([zsh, "-n", tmp_path / "_ponder"], check=True)
