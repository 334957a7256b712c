"""The functions for scripts and notebooks: what they give is what the commands write."""

import json
import os
import subprocess
import sys
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import ponder
from ponder.cli import main
from ponder.config.resolve import Config
from ponder.config.resolve import resolve as resolve_command
from tests.conftest import tiny
from tests.support import ROOT
from tools import notebook

SHORT = tiny(train={"updates": 8})
NOTEBOOK = json.loads(notebook.NOTEBOOK.read_text(encoding="utf-8"))


def test_importing_ponder_loads_no_torch_and_every_name_is_there() -> None:
    code = "import sys, ponder; assert 'torch' not in sys.modules; [getattr(ponder, name) for name in ponder.__all__]"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="tarin"):
        ponder.tarin  # noqa: B018


@pytest.mark.parametrize(
    ("config", "recipe", "nested"),
    [
        (ponder.resolve("maze-mini"), None, {}),
        (ponder.resolve("maze-mini", "trm", seed=3), "trm", {"seed": 3}),
        (ponder.resolve("maze-mini", "trm", {"model.layers": 2}), "trm", {"model": {"layers": 2}}),
        (ponder.resolve("maze-mini", {"gate": False}, {"seed": 2}), None, {"model": {"gate": False}, "seed": 2}),
        (ponder.resolve("maze-mini", None, {"train.clip": 2}, train={"lr": 1}), None, {"train": {"lr": 1, "clip": 2}}),
    ],
)
def test_resolve_takes_sections_dotted_names_and_a_recipe(
    config: Config, recipe: str | None, nested: dict[str, Any]
) -> None:
    assert config == resolve_command("maze-mini", recipe, nested)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, data_dir: Path) -> Any:
    rows: list[dict[str, Any]] = []
    out = tmp_path_factory.mktemp("runs") / "a"
    return ponder.train(SHORT, out, callback=rows.append, data_dir=data_dir, device="cpu", quiet=True), rows


def test_the_callback_gets_every_row_of_the_log(trained: Any) -> None:
    run, rows = trained
    assert run.log == rows and {row["kind"] for row in rows} == {"train", "eval"}
    assert run.outcome.finished and run.outcome.update == 8
    assert run.result == json.loads((run.folder / "result.json").read_text(encoding="utf-8"))


def test_a_run_that_was_stopped_goes_on_and_has_no_result_before_its_end(tmp_path: Path, data_dir: Path) -> None:
    options: dict[str, Any] = {"data_dir": data_dir, "device": "cpu", "quiet": True}
    first = ponder.train(SHORT, tmp_path / "run", limits=ponder.Limits(updates=3), **options)
    assert (first.outcome.finished, first.outcome.update, first.result) == (False, 3, None)
    assert ponder.train(SHORT, tmp_path / "run", **options).result is not None


def test_training_in_a_thread(tmp_path: Path, data_dir: Path) -> None:
    done: list[Any] = []
    options: dict[str, Any] = {"data_dir": data_dir, "device": "cpu", "quiet": True, "limits": ponder.Limits(updates=1)}
    thread = Thread(target=lambda: done.append(ponder.train(SHORT, tmp_path / "run", **options)))
    thread.start()
    thread.join()
    assert done[0].outcome.update == 1


def test_evaluate_and_compare_say_what_the_commands_say(
    trained: Any, tmp_path: Path, data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = trained
    mine = ponder.evaluate(run, device="cpu", splits=("test",), steps=2, data_dir=data_dir, out=tmp_path / "mine")
    other = tmp_path / "command"
    words = ["--split", "test", "--steps", "3", "--data-dir", str(data_dir), "--out", str(other)]
    assert main(["eval", str(run.folder), *words]) == 0
    capsys.readouterr()
    comparison = ponder.compare(mine, other)
    assert comparison.settings == {} and {row.split for row in comparison.differences} == {"test"}
    comparison.show()
    shown = capsys.readouterr().out
    assert main(["diff", str(mine.folder), str(other)]) == 0
    assert shown == capsys.readouterr().out and "the configurations are the same" in shown


def test_mistakes_are_user_errors(trained: Any, tmp_path: Path) -> None:
    with pytest.raises(ponder.UserError, match="did you mean 'lr'"):
        ponder.resolve("sudoku-mini", None, {"train.lrr": 1})
    with pytest.raises(ponder.UserError, match="did you mean 'splits'"):
        ponder.evaluate(trained[0], split="test")
    with pytest.raises(ponder.UserError, match="another configuration"):
        ponder.train(tiny(), trained[0].folder, quiet=True, device="cpu", data_dir=tmp_path)
    with pytest.raises(ponder.UserError, match="holds no evaluation"):
        ponder.compare(trained[0], tmp_path)


def test_a_plain_script_builds_its_data(tmp_path: Path) -> None:
    """Without `if __name__ == "__main__"`: processes that import it anew would run it again."""
    script = tmp_path / "script.py"
    script.write_text(
        'import ponder\nconfig = ponder.resolve("sudoku-mini", model={"width": 16}, data={"train": 3000})\n'
        'run = ponder.train(config, "runs/x", limits=ponder.Limits(updates=1), device="cpu")\n',
        encoding="utf-8",
    )
    subprocess.run([sys.executable, str(script)], cwd=tmp_path, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert (tmp_path / "runs/x/config.json").is_file()


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cells = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
    shown = [[each["output_type"] for each in cell["outputs"]] for cell in cells]
    names = notebook.run(NOTEBOOK)
    assert shown == [[each["output_type"] for each in cell["outputs"]] for cell in cells], "outputs are stored"
    assert names["comparison"].settings == {"model.max_steps": (1, 4)}
    assert all(run.outcome.finished for run in names["runs"].values())
