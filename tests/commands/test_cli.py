"""The commands as a user types them: what they show, and what a mistake gets."""

import subprocess
import sys
from pathlib import Path

import pytest

from ponder.cli import main
from ponder.commands import VERBS
from tests.conftest import tiny
from tests.support import ROOT

TINY_DATA = [f"--data.{k}={v}" for k, v in tiny().flat()["data"].items() if k in ("train", "val", "test")]


def ponder(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(list(words))
    out = capsys.readouterr()
    return code, out.out, out.err


def test_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = ponder(capsys, "--help")
    assert code == 0 and all(name in out and verb.about in out for name, verb in VERBS.items())


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_of_its_own(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main([verb, "--help"])
    assert ended.value.code == 0 and f"usage: ponder {verb} " in capsys.readouterr().out


def test_help_answers_without_loading_torch() -> None:
    verbs = ("quickstart", "zoo", "domains", "presets", "data", "train", "cost", "eval-llm", "import")
    code = (
        "import sys\nfrom ponder.cli import main\n"
        f"for words in [['--help'], *([verb, '--help'] for verb in {verbs})]:\n"
        "    try: main(words)\n    except SystemExit: pass\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_domains_and_presets_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = ponder(capsys, "domains")
    assert all(name in out for name in ("sudoku", "maze", "life", "arithmetic", "arc1", "arc2", "joint"))
    _, out, _ = ponder(capsys, "presets")
    assert "sudoku-mini" in out and "sudoku-paper" in out and "trm-mlp" in out
    _, out, _ = ponder(capsys, "presets", "life-paper", "--model", "hrm", "--train.lr", "0.5")
    assert "batch: 768" in out and "lr: 0.5" in out


def test_build_show_verify(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    where = ["--data-dir", str(tmp_path)]
    code, out, _ = ponder(capsys, "data", "build", "sudoku-mini", *where, *TINY_DATA)
    assert code == 0 and "train" in out and "300" in out
    code, out, _ = ponder(capsys, "data", "show", "sudoku-mini", *where, *TINY_DATA, "--split", "test", "--index", "3")
    assert code == 0 and "answer" in out
    (folder,) = tmp_path.iterdir()
    code, out, _ = ponder(capsys, "data", "verify", str(folder))
    assert code == 0 and "match their hashes" in out
    svg = tmp_path / "x.svg"
    ponder(capsys, "data", "show", str(folder), "--svg", str(svg))
    assert svg.read_text(encoding="utf-8").startswith("<svg")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "did you mean 'train'"),
        (["train"], "which preset"),
        (["train", "sudoku-mimi"], "did you mean 'sudoku-mini'"),
        (["train", "sudoku-mini", "--model", "hmr"], "did you mean 'hrm'"),
        (["train", "--resume", "nowhere"], "not a run folder"),
        (["data", "verify", "nowhere"], "holds no dataset"),
        (["train", "sudoku-mini", "--seed", "99999999999999999999"], "less than 4294967296"),
        (["study", "run", "halting", "--max-seconds", "-3"], "--max-seconds -3"),
        (["study", "run", "halting", "--slurm", "partition=gpu", "--workers", "2"], "--slurm settles"),
        (["study", "report", "halting", "--results", "nowhere/cells"], "no folder nowhere/cells"),
        (["data", "build", "sudoku-mini", "--data.size", "5"], "data.size"),
        (["presets", "nothing"], "unknown preset"),
    ],
)
def test_mistakes_get_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = ponder(capsys, *words)
    assert code == 2 and message in err and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_showing_an_example_outside_the_split_says_which_exist(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["data", "show", "sudoku-mini", "--data-dir", str(tmp_path), *TINY_DATA]
    code, _, err = ponder(capsys, *words, "--split", "val", "--index", "40")
    assert code == 2 and "0 to 39" in err
    code, _, err = ponder(capsys, *words, "--split", "tset")
    assert code == 2 and "allowed: test, train, val" in err


def test_a_study_whose_cells_are_stored_says_how_to_run_it_anew(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["--results", str(ROOT / "results" / "cells"), "--runs", str(tmp_path), "--data-dir", str(tmp_path)]
    code, out, _ = ponder(capsys, "study", "run", "stabilization", *words, "--max-seconds", "1")
    assert code == 0 and "already; to run it anew: --results elsewhere" in out


def test_offline_the_hub_reader_names_what_works(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = ponder(capsys, "data", "build", "sudoku-paper", "--data-dir", str(tmp_path / "d"))
    if code == 0:
        pytest.skip("the Hub, or its cache, is reachable here")
    assert "--data.source" in err and err.count("\n") == 1
    assert not (tmp_path / "d").exists() or list((tmp_path / "d").iterdir()) == []


def test_train_and_resume_from_the_command_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["--model.width=16", "--model.heads=2", "--train.batch=16", "--train.updates=20", "--train.eval_every=20",
             "--train.warmup=1", "--train.ema=0.5", "--eval.examples=10", *TINY_DATA]  # fmt: skip
    code, out, _ = ponder(capsys, "train", "sudoku-mini", *small, "--max-updates", "8")
    assert code == 0 and "ponder train --resume runs/sudoku-mini-s0" in out
    code, out, _ = ponder(capsys, "train", "--resume", "runs/sudoku-mini-s0")
    assert code == 0 and "finished: 20 updates" in out and "chosen on val" in out
    code, _, err = ponder(capsys, "train", "sudoku-mini", *small, "--train.lr", "1")
    assert code == 2 and "another configuration (train.lr" in err
