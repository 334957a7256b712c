"""Studies: what a file may say, which cells it comes to, and what is kept of a cell."""

import io
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import pytest
import torch
import yaml
from rich.console import Console

from ponder.base import runtime
from ponder.base.errors import UserError
from ponder.config.resolve import differences, resolve
from ponder.config.schema import Select
from ponder.data import Dataset
from ponder.domains.maze.domain import Maze
from ponder.domains.sudoku.domain import Sudoku
from ponder.evaluation.subject import Subject
from ponder.inference.search import restart_keys
from ponder.inference.weights import Opened
from ponder.model import cost
from ponder.model.reasoner import Reasoner
from ponder.reports.pages import main_report
from ponder.reports.tables import page_of
from ponder.studies import cost as study_cost
from ponder.studies import spec as study
from ponder.studies.board import print_study
from ponder.studies.cell import one_training, run_cell, searches, thinned, together, with_first_times
from ponder.studies.result import CellResult, Measured
from ponder.studies.spec import After, Cell, chosen, plan
from ponder.studies.store import Store, pack, unpack
from ponder.training import curves
from ponder.training.loop import Limits
from tests.support import ROOT
from tests.support.cells import raw_result, result, some_right
from tests.support.stub import NEVER, Stub

TASKS = {
    "sudoku": {
        "mini": {"preset": "sudoku-mini", "model": "ponder", "set": {"train.updates": 30}},
        "paper": {"preset": "sudoku-paper"},
    }
}


def written(folder: Path, name: str = "depth", **changes: Any) -> study.Study:
    """A small study put into `folder`, with some of its entries replaced, and read back."""
    said: dict[str, Any] = {
        "title": "Depth",
        "asks": "Does the horizon matter?",
        "paper": None,
        "factor": ["model.h_horizon"],
        "baseline": "two",
        "variants": {"two": {}, "one": {"set": {"model.h_horizon": 1}}, "four": {"set": {"model.h_horizon": 4}}},
        "scales": {"mini": {"tasks": ["sudoku"], "seeds": [5, 3]}, "paper": {"tasks": ["sudoku"], "seeds": [0]}},
    }
    (folder / f"{name}.yaml").write_text(yaml.safe_dump({**said, **changes}, sort_keys=False), encoding="utf-8")
    return study.load(name)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(study, "STUDIES", tmp_path)
    (tmp_path / "_tasks.yaml").write_text(yaml.safe_dump(TASKS), encoding="utf-8")
    return tmp_path


# What a file may say --------------------------------------------------------------------------------------------------


def test_a_cell_is_its_preset_with_the_settings_of_task_variant_and_seed(folder: Path) -> None:
    cells = written(folder).cells("mini")
    assert [c.label for c in cells] == [f"depth/{v}/sudoku/s{s}" for s in (5, 3) for v in ("two", "one", "four")]
    for cell in cells:
        horizon = {"two": 2, "one": 1, "four": 4}[cell.variant]
        by_hand = {"seed": cell.seed, "train": {"updates": 30}, "model": {"h_horizon": horizon}}
        assert cell.config == resolve("sudoku-mini", "ponder", by_hand)
    assert len({c.key for c in cells}) == 6


def test_studies_in_the_working_directory_are_found_and_may_not_take_a_shipped_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shipped, own = study.names(), tmp_path / "studies"
    own.mkdir()
    mine = written(own, "my-depth")
    assert study.names() == sorted([*shipped, "my-depth"])
    assert mine.cells("mini")[0].label == "my-depth/two/sudoku/s5"
    assert study.find("my-depth/one/sudoku/s3", "mini").config.model.h_horizon == 1
    (own / "halting.yaml").write_text("title: mine", encoding="utf-8")
    with pytest.raises(UserError, match=r"halting\.yaml has the name of a study that comes with ponder: rename it"):
        study.names()


def test_tasks_and_scores_of_the_working_directory_are_added_and_may_not_take_a_shipped_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "studies"
    own.mkdir()
    changes = {"data": {"train": 5000}, "train.lr": 0.25}
    tasks = {"tiny": {"mini": {"preset": "maze-mini", "model": "ponder", "set": changes}}}
    (own / "_tasks.yaml").write_text(yaml.safe_dump(tasks), encoding="utf-8")
    (own / "_scores.yaml").write_text("Tiny: {task: tiny, splits: [test]}", encoding="utf-8")
    mine = written(own, "mine", scales={"mini": {"tasks": ["tiny", "sudoku"], "seeds": [0]}})
    assert study.names().count("mine") == 1 and "_tasks" not in study.names()
    by_task = {cell.task: cell.config for cell in mine.cells("mini")}
    assert by_task["tiny"].train.lr == 0.25 and by_task["tiny"].data.flat()["train"] == 5000
    smoke = {cell.task: cell.config.data.flat() for cell in mine.cells("smoke")}
    assert smoke["tiny"].items() >= Maze.smoke.items() and smoke["sudoku"].items() >= Sudoku.smoke.items()
    assert [c.label for c in page_of(mine).measure.columns] == ["Sudoku", "Tiny"]
    (own / "_tasks.yaml").write_text(yaml.safe_dump({**tasks, "maze": tasks["tiny"]}), encoding="utf-8")
    with pytest.raises(UserError, match=r"_tasks\.yaml has 'maze', a name that comes with ponder: rename it"):
        mine.cells("mini")


def test_a_joint_study_is_made_small_by_its_parts() -> None:
    parts = study.load("joint-training").cells("smoke")[0].config.data.flat()["parts"]
    assert parts["sudoku"].items() >= Sudoku.smoke.items() and parts["maze"].items() >= Maze.smoke.items()


def test_all_are_those_of_the_scale_and_threads_are_part_of_a_key(folder: Path) -> None:
    both, mini = written(folder), written(folder, "mini-only", scales={"mini": {"tasks": ["sudoku"], "seeds": [0]}})
    assert [s.name for s in study.load_all(["all"])] == ["depth", "mini-only"]
    assert [s.name for s in study.load_all(["mini-only", "all"], "mini")] == ["mini-only", "depth"]
    assert study.load_all(["all"], "paper") == [both] and not mini.has("paper")
    more = {"mini": {"tasks": ["sudoku"], "seeds": [5, 3], "threads": 4}}
    keys = [{cell.key for cell in s.cells("mini")} for s in (both, written(folder, scales=more))]
    assert len(keys[0] | keys[1]) == 12


def test_settings_may_be_dotted_or_nested_and_later_ones_win(folder: Path) -> None:
    tasks = {
        "sudoku": {"mini": {"preset": "sudoku-mini", "model": "ponder", "set": {"train": {"updates": 30, "lr": 0.5}}}}
    }
    (folder / "_tasks.yaml").write_text(yaml.safe_dump(tasks), encoding="utf-8")
    changed = {"tasks": [{"task": "sudoku", "set": {"train.lr": 0.25}}], "seeds": [0]}
    for cell in written(folder, scales={"mini": changed}).cells("mini"):
        assert (cell.config.train.updates, cell.config.train.lr) == (30, 0.25)


def test_a_variant_that_changes_more_than_its_factor_is_refused_by_name(folder: Path) -> None:
    one = {"set": {"model.h_horizon": 1, "train.lr": 0.5}}
    bad = written(folder, variants={"two": {}, "one": one})
    for scale in study.SCALES:
        with pytest.raises(UserError, match=r"'one'.*train\.lr .*-> 0\.5.*not its factor"):
            bad.cells(scale)
    allowed = written(folder, variants={"two": {}, "one": one}, factor=["model.h_horizon", "train.lr"])
    assert len(allowed.cells("mini")) == 4
    # A section covers its keys, and only its own: `train.l` is no section.
    assert written(folder, variants={"two": {}, "one": one}, factor=["model", "train"]).cells("mini")
    with pytest.raises(UserError, match=r"train\.lr"):
        written(folder, variants={"two": {}, "one": one}, factor=["model", "train.l"]).cells("mini")


def test_another_model_is_a_change_like_any_other(folder: Path) -> None:
    variants = {"two": {}, "hrm": {"model": "hrm"}}
    with pytest.raises(UserError, match="'hrm'"):
        written(folder, variants=variants).cells("mini")
    cells = written(folder, variants=variants, factor=["model", "train"]).cells("mini")
    assert cells[1].config == resolve("sudoku-mini", "hrm", {"seed": 5, "train": {"updates": 30}})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"variants": {"two": {}, "same": {"set": {"model.h_horizon": 2}}}}, "'two' and 'same' are the same"),
        ({"variants": {"two": {}, "wrong": {"set": {"model.h_horizn": 1}}}}, r"'wrong'.*did you mean 'h_horizon'"),
        ({"variants": {"two": {}, "deep": {"set": {"model.h_horizon": 9}}}}, r"'deep'.*exceeds the cycles"),
        ({"variants": {"two": {"from": "one"}, "one": {"from": "two"}}}, "circle"),
        ({"variants": {"two": {"from": "three"}}}, "not a variant"),
        ({"scales": {"mini": {"tasks": ["sudoko"], "seeds": [0]}}}, "did you mean 'sudoku'"),
        ({"baseline": "tow"}, "did you mean 'two'"),
        ({"factors": ["model"]}, "did you mean 'factor'"),
        ({"after": {"step": 3}}, "did you mean 'steps'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(folder: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as error:
        written(folder, **changes).cells("mini")
    assert "\n" not in str(error.value)


def test_from_adds_up_and_at_holds_at_one_scale(folder: Path) -> None:
    cells = written(
        folder,
        factor=["model.gate", "train.clip", "model.dropout"],
        baseline="base",
        variants={
            "base": {"set": {"model.gate": False, "train.clip": None}},
            "gate": {"from": "base", "set": {"model.gate": True}},
            "clip": {"from": "gate", "set": {"train.clip": 1.0}},
            "dropout": {"from": "clip", "at": {"mini": {"model.dropout": 0.2}, "paper": {"model.dropout": 0.3}}},
        },
    )
    for scale, dropout in (("mini", 0.2), ("paper", 0.3)):
        by = {c.variant: c.config for c in cells.cells(scale)}
        assert [(by[v].model.gate, by[v].train.clip) for v in by] == [
            (False, None),
            (True, None),
            (True, 1.0),
            (True, 1.0),
        ]
        assert by["dropout"].model.dropout == dropout != by["clip"].model.dropout


# What to run ----------------------------------------------------------------------------------------------------------


def test_trainings_that_studies_share_are_one_job_and_first_seeds_come_first(folder: Path) -> None:
    a = written(folder, "a", after={"steps": 8})
    b = written(folder, "b", after={"weights": ["online"], "policies": True, "trace": True}, variants={"two": {}})
    jobs = plan([*a.cells("mini"), *b.cells("mini")])
    assert [job.labels for job in jobs] == [
        labels
        for s in (5, 3)
        for labels in (
            [f"a/two/sudoku/s{s}", f"b/two/sudoku/s{s}"],
            [f"a/one/sudoku/s{s}"],
            [f"a/four/sudoku/s{s}"],
        )
    ]
    both = one_training(jobs[0].cells)
    assert both.after == After(steps=8, weights=("ema", "online"), policies=True, trace=True)
    with pytest.raises(UserError, match="not the same training"):
        one_training([jobs[0].cells[0], jobs[1].cells[0]])


def test_only_keeps_what_fits(folder: Path) -> None:
    cells = written(folder).cells("mini")
    assert {c.label for c in chosen(cells, ["one", "t*/*/s3"])} == {
        "depth/one/sudoku/s5",
        "depth/one/sudoku/s3",
        "depth/two/sudoku/s3",
    }
    assert {c.seed for c in chosen(cells, ["s5"])} == {5}
    with pytest.raises(UserError, match="fits no cell"):
        chosen(cells, ["s7"])


# What is kept ---------------------------------------------------------------------------------------------------------


def test_bits_survive_and_windows_keep_means_maxima_and_ends() -> None:
    bits = np.random.default_rng(0).random(1003) < 0.3
    assert (unpack(pack(bits), 1003) == bits).all() and len(pack(bits)) == 2 * 126
    rows = [
        {"kind": "train", "update": 10 * i, "seconds": i, "grad_norm": float(i), "grad_norm_max": float(-i), "lr": 1.0}
        | {"peak_fraction": 0.5}
        for i in range(1, 121)
    ]
    thin = thinned(rows)
    assert set(thin) == {"update", "seconds", "grad_norm", "grad_norm_max", "lr"}
    assert thin["update"] == [20.0 * i for i in range(1, 61)]
    assert thin["grad_norm"] == [2 * i - 0.5 for i in range(1, 61)]
    assert thin["grad_norm_max"] == [-(2 * i - 1) for i in range(1, 61)]
    assert thinned(rows[:7])["grad_norm"] == [float(i) for i in range(1, 8)]


def test_a_result_is_whole_only_if_all_that_is_asked_for_was_measured(folder: Path) -> None:
    cell = written(folder).cells("mini")[0]
    there = Measured.model_validate({"steps": 8, "budget": 4, "examples": 1000, "ema": {"update": 1, "splits": {}}})

    def covers(**asked: Any) -> bool:
        return there.covers(replace(cell, after=After(**asked)))

    assert covers() and covers(steps=8) and there.covers(replace(cell, scale="smoke"))
    assert not covers(steps=9) and not covers(weights=("online",)) and not covers(policies=True)
    assert not covers(search=True) and not covers(trace=True)
    assert not there.covers(replace(cell, scale="paper"))  # which asks for more examples
    cell = replace(cell, config=resolve("sudoku-mini", None, {"train": {"ema": None}}))
    assert covers(weights=("ema", "online"))  # there is nothing but the plain weights
    assert together([After(), After(steps=3)], budget=4).steps == 4


def test_results_are_written_whole_and_a_damaged_one_is_named(tmp_path: Path, folder: Path) -> None:
    cell = written(folder).cells("mini")[0]
    store = Store(tmp_path / "results", tmp_path / "runs")
    assert store.read(cell) is None and store.state(cell) == "left"
    store.fail(cell.key, "it burnt")
    assert store.failed(cell) == "it burnt" and store.state(cell) == "failed"
    kept = result(cell, lambda *_: some_right(0.5))
    store.write(kept)
    assert store.read(cell) == kept and store.state(cell) == "done" and store.failed(cell) is None
    assert [p.name for p in store.root.iterdir()] == [f"{cell.key}.json"]
    whole = store.path(cell.key).read_text(encoding="utf-8")
    lacking = whole.replace('"budget":4', '"bud":4')
    for damaged, why in (("{", "EOF"), ("{}", "key"), ("[]", "object"), (lacking, "after.budget")):
        store.path(cell.key).write_text(damaged, encoding="utf-8")
        with pytest.raises(UserError, match=rf"{cell.key}\.json is damaged \(.*{why}.*\): delete it") as error:
            store.read(cell)
        assert "\n" not in str(error.value)
    store.path(cell.key).write_text(whole.replace('"seconds":', '"seconds":1', 1), encoding="utf-8")
    with pytest.raises(UserError, match=rf"{cell.key}\.json was changed after it was written: delete it"):
        store.read(cell)
    for changed, words in (("lr", "another configuration: run `ponder study migrate`"), ("lrr", "lrr.*move it away")):
        raw = json.loads(whole)
        raw["config"]["train"][changed] = 0.5
        store.path(cell.key).write_text(json.dumps(raw), encoding="utf-8")
        with pytest.raises(UserError, match=words):
            store.read(cell)


def test_what_a_later_or_an_older_ponder_stored_is_read(tmp_path: Path, folder: Path) -> None:
    """Fields that this one does not know are passed over; what was not stored yet means as before."""
    raw = raw_result(written(folder).cells("mini")[0], lambda *_: some_right(0.5))
    del raw["after"]["online"], raw["after"]["policies"]
    more = {**raw, "later": 1, "summary": {**raw["summary"], "peak": {}}}
    more["curve"] = [{k: v for k, v in row.items() if k != "online"} for row in raw["curve"]]
    found = CellResult.model_validate(more)
    assert found.version == 2 and found.after.policies is None and found.curve[0].update_seconds is None
    assert found.curve[0].online == {} and found.after_seconds == 0
    assert CellResult.model_validate_json(found.model_dump_json()) == found


# The studies of this project ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", study.names())
def test_every_variant_is_valid_at_every_scale(name: str) -> None:
    each = study.load(name)
    for scale in study.SCALES:
        cells, form = each.cells(scale), study.form(scale)
        assert {c.variant for c in cells} == {v for v, about in each.variants.items() if about.only.get(form, ("all",))}
        assert {c.config.scale for c in cells} == {form}
    last = cells[-1]
    assert study.find(last.label, "paper") == last


LISTS = """
import sys
from ponder.cli import main
for words in (["list"], ["show", "halting"], ["status", "halting"], ["report", "halting", "--results", sys.argv[1]]):
    assert main(["study", *words]) == 0
sys.exit("torch is loaded" if "torch" in sys.modules else 0)
"""


@pytest.mark.parametrize("name", study.names())
def test_a_study_is_shown_in_80_columns_with_every_variant_also_one_that_is_not_trained(name: str) -> None:
    shown, out = study.load(name), io.StringIO()
    print_study(shown, "mini", Store(Path("nowhere"), Path("nowhere")), Console(file=out, width=80))
    lines = out.getvalue().splitlines()
    assert shown.title in lines[0] and max(map(len, lines)) <= 80
    assert set(shown.variants) <= {line.split()[0] for line in lines if line.strip()}


def test_lists_and_reports_load_no_torch(tmp_path: Path) -> None:
    (tmp_path / "cells").mkdir()
    command = [sys.executable, "-c", LISTS, str(tmp_path / "cells")]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


@pytest.fixture(scope="module")
def quick() -> Iterator[None]:
    """Without what takes seconds and is tested elsewhere: counting FLOPs and drawing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cost, "flops", lambda *_: cost.Work(1, 1, 1))
        patch.setattr(curves, "draw_curves", lambda *_: None)
        yield


@pytest.fixture(scope="module")
def smoked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("smoke")


def run_smoke(cells: list[Cell], smoked: Path) -> None:
    store, here = Store(smoked / "results", smoked / "runs"), runtime.start("cpu")
    for job in plan(cells):
        cell = one_training(job.cells)
        assert run_cell(cell, store, smoked / "data", here, Limits())
        kept = store.read(cell)
        assert kept is not None and store.path(cell.key).stat().st_size < 60_000
        check_stored(kept, cell)


@pytest.mark.parametrize("name", study.names())
def test_the_smoke_form_runs(name: str, quick: None, smoked: Path) -> None:
    """The baseline and the last variant on the first task."""
    each = study.load(name)
    cells = each.cells("smoke")
    run_smoke([c for c in cells if c.task == cells[0].task and c.variant in (each.baseline, cells[-1].variant)], smoked)


@pytest.mark.slow
@pytest.mark.parametrize("name", study.names())
def test_all_of_the_smoke_form_runs(name: str, quick: None, smoked: Path) -> None:
    run_smoke(study.load(name).cells("smoke"), smoked)


def to_the_report(name: str, cells: list[Cell], smoked: Path) -> str:
    run_smoke(cells, smoked)
    out = smoked / name
    main_report([name], "paper-smoke", out, Store(smoked / "results", smoked / "runs"))
    return (out / "studies" / f"{name}-paper-smoke.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["main-results", "capacity"])
def test_the_papers_form_runs_to_its_report_when_it_is_shrunk(name: str, quick: None, smoked: Path) -> None:
    """The baseline on the first task, and the last variant on Sudoku."""
    each = study.load(name)
    cells = each.cells("paper-smoke")
    last = [c for c in cells if c.task == "sudoku"][-1]
    text = to_the_report(name, [next(c for c in cells if c.variant == each.baseline), last], smoked)
    assert f" of {len(cells)} trainings are there" in text and "| missing" in text


@pytest.mark.slow
@pytest.mark.parametrize("name", study.names())
def test_all_of_the_papers_form_runs_to_its_report_when_it_is_shrunk(name: str, quick: None, smoked: Path) -> None:
    cells = study.load(name).cells("paper-smoke")
    text = to_the_report(name, cells, smoked)
    assert f"{len(cells)} of {len(cells)} trainings" in text and "| missing" not in text


@pytest.mark.parametrize("name", study.names())
def test_shrinking_keeps_what_the_paper_form_is_about(name: str) -> None:
    """Data, width, heads and lengths shrink; every switch of the model and the optimiser stays the paper's."""
    each = study.load(name)
    whole = {(c.task, c.variant): c.config for c in each.cells("paper")}
    small = {(c.task, c.variant): c.config for c in each.cells("paper-smoke")}
    assert set(whole) == set(small)
    for place, config in small.items():
        changed = {key for key in differences(whole[place], config) if not key.startswith(("data.", "eval."))}
        sizes = {"model.width", "model.heads", "model.max_steps"}
        sizes |= {
            f"train.{k}" for k in ("batch", "updates", "epochs", "warmup", "log_every", "eval_every", "save_every")
        }
        assert changed - {"seed"} <= sizes
        assert config.model.width <= 32 and config.data.flat().get("source") != "hub"


def check_stored(kept: CellResult, cell: Cell) -> None:
    """Whatever is said twice agrees."""
    budget, steps = cell.config.model.max_steps, 1 if cell.config.model.states == 0 else kept.after.steps
    last, averaged = kept.curve[-1], cell.config.train.ema is not None
    assert kept.updates == last.update == 4 and len(kept.curve) == 1
    assert bool(last.online) == averaged and last.update_seconds is not None
    for profiles, name in ((kept.after.ema, "ema"), (kept.after.online, "online")):
        assert profiles is not None or name not in cell.after.weights or (name == "online" and not averaged)
        for split in profiles.splits.values() if profiles else ():
            for measure in ("exact", "valid", "token"):
                assert len(getattr(split, measure)) == steps
            for bits, at in ((split.bits, min(budget, steps) - 1), (split.bits_end, -1), (split.bits_full, None)):
                assert bits is not None or split.arc is not None  # too many votes to keep each
                for measure in ("exact", "valid") if bits else ():
                    mean = unpack(getattr(bits, measure), split.n).mean()
                    said = getattr(split.best_full, measure) if at is None else getattr(split, measure)[at]
                    assert mean == pytest.approx(said, abs=1e-6)
            assert (split.halting is None) == (cell.config.model.halting in ("none", "asked"))  # nothing learned
    assert kept.after.policies is not None or not cell.after.policies
    assert kept.after.search is not None or not cell.after.search  # another study may have asked for more
    for point in kept.after.search.results if kept.after.search else ():
        assert point.bits is not None and kept.after.search is not None
        assert unpack(point.bits, kept.after.search.n).mean() == pytest.approx(point.valid.value, abs=1e-6)
        most = math.prod(map(int, point.policy.split()[1].split("x"))) * budget
        assert point.mean_steps == most if point.policy.startswith("residual") else 0 < point.mean_steps <= most
    trace = kept.after.trace
    assert trace is not None or not cell.after.trace
    if trace is not None:
        assert len(trace.right) == len(trace.residual) == len(trace.stretch) == budget
        assert sum(trace.table.values()) == trace.n <= 8 and trace.residual[-1].median > 0


def test_what_another_study_asks_later_is_added_without_training_again(quick: None, smoked: Path) -> None:
    store, here = Store(smoked / "results", smoked / "runs"), runtime.start("cpu")
    cell = next(c for c in study.load("stabilization").cells("smoke") if c.task == "sudoku")
    run_cell(cell, store, smoked / "data", here, Limits())
    before = store.stored(cell.key)
    assert before is not None
    log = store.folder(cell.key) / "metrics.jsonl"
    rows = log.read_text(encoding="utf-8")
    asked = After(steps=before.after.steps + 3, weights=("online",), policies=True, search=True, trace=True)
    more = replace(cell, after=asked)
    assert store.read(more) is None
    assert run_cell(more, store, smoked / "data", here, Limits())
    after = store.read(more)
    assert after is not None and store.read(cell) == after and log.read_text(encoding="utf-8") == rows
    for key in ("curve", "train", "summary", "config"):
        assert getattr(after, key) == getattr(before, key)
    assert after.after.ema is not None and after.after.online is not None and before.after.ema is not None
    for split, now in after.after.ema.splits.items():
        then = before.after.ema.splits[split]
        assert now.exact[: len(then.exact)] == then.exact and now.bits == then.bits
    assert after.after.policies is not None
    assert {each.policy for each in after.after.policies.results} >= {"full", "stable 1"}
    check_stored(after, more)
    # Had it been trained again for this, elsewhere: the times of before stay, unless it came out another training.
    slow = [point.model_copy(update={"seconds": 9 * point.seconds}) for point in before.curve]
    elsewhere = after.model_copy(update={"seconds": 9 * before.seconds, "curve": slow, "environment": {"cores": 99}})
    assert with_first_times(elsewhere, before) == after
    other = {**after.train, "loss": [loss + 1e-6 for loss in after.train["loss"]]}
    changed = elsewhere.model_copy(update={"train": other})
    assert with_first_times(changed, before) == changed


def test_searches_of_a_model_whose_trajectories_are_known(dataset: Dataset) -> None:
    """Which puzzles each rule solves with each split, and what it takes, from the script alone (tests/support/stub.py):
    without noise puzzle i is right from step `first[i]` on, with noise from a step that its key decides."""
    n, numbers = 40, 3 * np.arange(40)
    batch = dataset.source("test").fetch(np.arange(n), np.zeros(n, dtype=np.int64))
    first = np.where(np.arange(n) % 3 == 0, NEVER, 1 + np.arange(n) % 11)
    model = cast(Reasoner, Stub(batch.inputs, batch.labels, first, len(dataset.domain.vocab)))
    opened = Opened("stub", Path("stub"), model, None, dataset.domain, None, "")
    found = searches(Subject(opened, dataset.domain, "test", numbers, batch, dataset.hash))
    points = {point["policy"]: point for point in found["results"]}
    assert len(points) == 20 and (found["split"], found["n"], found["budget"]) == ("test", n, 8)
    sure = np.arange(n) % 5 == 4  # of itself from the first step on, so that restart 0 has the word
    for (restarts, depth), rule in product(((1, 8), (1, 32), (2, 16), (4, 8)), get_args(Select)):
        wake = Stub.wake(torch.from_numpy(restart_keys(0, numbers, restarts))).numpy()
        wake[:, 0] = first
        earliest, ends = wake.min(axis=1), np.full(n, depth)
        right = earliest <= depth
        if rule in ("residual", "energy"):  # equal for all restarts
            right = first <= depth
        elif rule == "confidence":
            right = np.where(sure, first, earliest) <= depth
        elif rule == "first-halt":
            right, ends = np.where(sure, first == 1, right), np.where(sure, 1, np.minimum(earliest, depth))
        else:
            ends = np.minimum(earliest, depth)
        point = points[f"{rule} {restarts}x{depth // 8}"]
        assert (unpack(point["bits"], n) == right).all() and 0 < right.sum() < n
        assert point["valid"]["value"] == right.mean() and point["mean_steps"] == restarts * ends.mean()


# Cost -----------------------------------------------------------------------------------------------------------------


def test_gpu_hours_follow_from_flops_and_shared_trainings_are_paid_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost, "flops", lambda *_: cost.Work(parameters=1, inference=10, training=1000))
    a, b = written(folder, "a"), written(folder, "b", variants={"two": {}})
    cell = a.cells("paper")[0]
    updates = -(-2000 * 3_829_994 // 4096)
    evaluations = -(-updates // 46750) * 2 * 2 * 1000  # two sets of weights, val and test, 1000 examples
    assert study_cost.flops(cell.config) == updates * 4096 * 1000 + evaluations * 16 * 10
    assert study_cost.bill([*a.cells("paper"), *b.cells("paper")]) == study_cost.bill(a.cells("paper"))
    said = study_cost.table([a, b], "A100", 0.5)
    hours = 3 * study_cost.flops(cell.config) / (312e12 * 0.5 * 3600)
    assert f"| a | 3 | {3 * study_cost.flops(cell.config) / 1e18:,.1f} | {hours:,.0f} |" in said
    assert "| together | 3 |" in said
    page = folder / "page.md"
    page.write_text(f"before\n{study_cost.BEGIN}\nold\n{study_cost.END}\nafter\n", encoding="utf-8")
    for _ in range(2):  # the second time changes nothing
        study_cost.print_costs([a, b], "A100", 0.5, page)
        assert page.read_text(encoding="utf-8") == f"before\n{study_cost.BEGIN}\n\n{said}\n\n{study_cost.END}\nafter\n"
    page.write_text("no place", encoding="utf-8")
    with pytest.raises(UserError, match="lacks the lines"):
        study_cost.print_costs([a], "A100", 0.5, page)
    assert page.read_text(encoding="utf-8") == "no place"
    for gpu, share, words in (("H200", 0.5, "allowed"), ("H100", 0.0, "more than 0")):
        with pytest.raises(UserError, match=words):
            study_cost.table([a], gpu, share)
