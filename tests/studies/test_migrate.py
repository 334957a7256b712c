"""Results of an older ponder are found again under the names they have now."""

import json
from pathlib import Path
from typing import Any

import pytest

from ponder.cli import main
from ponder.studies import spec as study
from ponder.studies.migrate import migrate
from ponder.studies.spec import Cell
from ponder.studies.store import Store


def older(store: Store, name: str, cell: Cell, label: str, steps: int) -> dict[str, Any]:
    """A result as it was stored before keys were relative to the defaults, when the model's name was in them."""
    config = cell.config.flat()
    config["model"]["name"] = label
    after = {"steps": steps, "budget": 4, "examples": 1000, "ema": {}, "policies": None}
    result = {"key": name, "label": label, "config": config, "curve": [0.1, 1e-7], "after": after}
    store.root.mkdir(parents=True, exist_ok=True)
    (store.root / f"{name}.json").write_text(json.dumps(result, separators=(",", ":")), encoding="utf-8")
    folder = store.folder(name)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    store.log(name).write_text(f"log of {name}", encoding="utf-8")
    return result


def found(path: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return read


def test_results_and_runs_get_the_names_that_studies_look_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(tmp_path / "results", tmp_path / "runs")
    first, second = [c for c in study.load("stabilization").cells("mini") if c.task == "sudoku"][:2]
    kept = older(store, "aaaaaaaaaaaa", first, "a/one/sudoku/s0", 24)
    less = older(store, "bbbbbbbbbbbb", first, "b/two/sudoku/s0", 4)
    four = older(store, "cccccccccccc-t4", second, "c/three/sudoku/s0", 4)
    (store.root / "dddddddddddd.json").write_text("{", encoding="utf-8")
    where = ["--results", str(store.root), "--runs", str(store.runs)]
    assert main(["study", "status", "stabilization", *where]) == 2
    assert (
        "3 more are of an older ponder, or no stored training: run `ponder study migrate` once"
        in capsys.readouterr().err
    )

    assert main(["study", "migrate", *where]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "dddddddddddd.json cannot be read" in lines[0]
    assert "b/two/sudoku/s0 is the same training as a/one/sudoku/s0" in lines[1]
    assert found(store.path(first.key)) == {"version": 2, **kept, "key": first.key}
    assert found(store.path(f"{second.key}-t4")) == {"version": 2, **four, "key": f"{second.key}-t4"}
    assert [found(store.root / "old" / f"{each['key']}.json") for each in (kept, less, four)] == [kept, less, four]
    assert {path.name for path in store.runs.iterdir()} >= {first.key, f"{second.key}-t4", "bbbbbbbbbbbb"}
    assert store.log(first.key).read_text(encoding="utf-8") == "log of aaaaaaaaaaaa"
    assert [path.name for path in store.older()] == ["dddddddddddd.json"]

    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    assert list(migrate(store))[-1].startswith("0 results")
    assert {p: p.read_bytes() for p in tmp_path.rglob("*.*")} == before


def test_the_folder_around_the_stored_trainings_is_not_taken_for_theirs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "results" / "cells").mkdir(parents=True)
    (tmp_path / "results" / "bench.json").write_text("{}", encoding="utf-8")
    where = ["--results", str(tmp_path / "results"), "--runs", str(tmp_path / "runs")]
    for words in (["run", "halting", "--dry-run"], ["status"], ["report", "halting"], ["migrate"]):
        assert main(["study", *words, *where]) == 2
        told = capsys.readouterr().err
        assert (
            f"--results {tmp_path / 'results' / 'cells'}" in told
            and "older ponder" not in told
            and told.count("\n") == 1
        )
