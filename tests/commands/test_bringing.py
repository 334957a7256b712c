"""docs/models.md and docs/policies.md, done as they say: the file of switches, the switch of one's own, the policy."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ponder.cli import main
from ponder.config.resolve import resolve
from tests.support import ROOT

MODELS = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
POLICIES = (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")
FEW = "--data.train 200 --data.val 20 --data.test 20"
SHORT = f"--max-updates 2 --train.eval_every 2 --eval.examples 10 {FEW}"


def block(page: str, language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", page, flags=re.S)
    return str(found)


def test_a_file_of_switches_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("thin-trm.yaml").write_text(block(MODELS, "yaml"), encoding="utf-8")
    mine, base = resolve("sudoku-mini", "thin-trm.yaml"), resolve("sudoku-mini", "trm")
    assert mine.model.name == "thin-trm" and (mine.model.gate, mine.model.l_cycles) == (True, 2)
    as_before = {"name": "trm", "h_cycles": 3, "l_cycles": 6, "l_horizon": 6, "gate": False}
    assert mine.model.model_copy(update=as_before) == base.model
    assert mine.train == base.train.model_copy(update={"ema": 0.98})
    (line,) = re.findall(r"^ponder (train sudoku-mini --model thin\S+ --out \S+)", MODELS, flags=re.M)
    assert main([*line.split(), *SHORT.split()]) == 0 and Path("runs/thin/checkpoints").is_dir()


def test_a_switch_of_ones_own_is_there_and_changes_nothing_while_it_is_off(tmp_path: Path) -> None:
    if shutil.which("git") is None:
        pytest.skip("no git here")
    shutil.copytree(ROOT / "ponder", tmp_path / "ponder", ignore=shutil.ignore_patterns("__pycache__", "zoo"))
    shutil.copytree(ROOT / "ponder" / "zoo", tmp_path / "ponder" / "zoo", ignore=shutil.ignore_patterns("*-*"))
    patch = tmp_path / "cap.diff"
    patch.write_text(block(MODELS, "diff"), encoding="utf-8")
    subprocess.run(["git", "apply", "-C1", patch.name], cwd=tmp_path, check=True)  # at these lines, wherever they are
    check = """
import torch
from ponder.config.resolve import resolve
from ponder.model.reasoner import Reasoner

plain, capped = resolve("sudoku-mini"), resolve("sudoku-mini", None, {"model": {"cap": 0.01}})
print(plain.key(), capped.key() != plain.key())
logits = []
for config in (plain, capped):
    torch.manual_seed(0)
    model = Reasoner(config.model, 6, 16, 1).eval()
    step = model(model.start(torch.zeros(1, dtype=torch.int64)), torch.ones(1, 16, dtype=torch.int64), model.table[:1])
    logits.append(step.logits)
print(bool(torch.equal(logits[1], 0.01 * torch.tanh(logits[0] / 0.01))), bool(logits[0].abs().max() > 0.01))
"""
    done = subprocess.run(
        [sys.executable, "-c", check],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.stdout.split() == [resolve("sudoku-mini").key(), "True", "True", "True"], done.stderr


def test_a_policy_of_ones_own_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = block(POLICIES, "python")
    assert "sudoku-6x6" in code and "limit=500" in code
    exec(code.replace("sudoku-6x6", "sudoku-4x4").replace("limit=500", "limit=20"), {"__name__": "page"})
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.endswith("steps")]
    assert [row[0] for row in rows] == ["full", "halt", "stable", "logit"]
    full, _, stable, mine = (float(row[-2]) for row in rows)
    assert full == 16 and stable <= mine < full
