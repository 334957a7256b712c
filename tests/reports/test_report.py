"""Reports against synthetic stored cells whose answers are known by other means."""

import csv
import io
import json
import math
import statistics
from pathlib import Path

import pytest

from ponder.base import files
from ponder.base.errors import UserError
from ponder.reports import pages as report
from ponder.reports.findings import (
    NOT_RUN,
)
from ponder.reports.pages import gather, make, study_text
from ponder.reports.results import headline, results_text
from ponder.reports.tables import FIXED, MISSING, as_csv, entries, page_of
from ponder.reports.values import Quantity
from ponder.reports.verdicts import StudyReport
from ponder.studies import spec as study
from ponder.studies.fixed import Fixed, FixedAnswers
from ponder.studies.result import CellResult
from ponder.studies.store import Store
from tests.support.cells import NO, SHARES, YES, N, known, raw_result, some_right, two, write

# Tables ---------------------------------------------------------------------------------------------------------------


def test_numbers_agree_with_independent_arithmetic(tmp_path: Path) -> None:
    study_ = two()
    write(study_, tmp_path, known)
    found = {
        e.row: e for e in entries(gather(study_, "mini", tmp_path, False), page_of(study_)) if e.column == "Sudoku"
    }
    for variant in "ab":
        values = [SHARES[variant, seed] for seed in range(3)]
        ours = found[variant].ours
        assert ours is not None and ours.seeds == 3 and ours.examples == N
        assert ours.value == pytest.approx(statistics.mean(values)) and ours.sd == pytest.approx(
            statistics.stdev(values)
        )
    each = [SHARES["b", seed] - SHARES["a", seed] for seed in range(3)]
    gap = found["b"].difference
    assert gap is not None and gap.paired and found["a"].difference is None
    assert gap.value == pytest.approx(statistics.mean(each)) and gap.sd == pytest.approx(statistics.stdev(each))
    # The examples' part, counted by hand: b - a for each example, averaged over seeds.
    mean_of_each = [
        statistics.mean((i < round(SHARES["b", s] * N)) - (i < round(SHARES["a", s] * N)) for s in range(3))
        for i in range(N)
    ]
    n = N + 2
    variance = (sum(d * d for d in mean_of_each) + 1 - sum(mean_of_each) ** 2 / n) / n**2
    of_seeds = statistics.stdev(each) / math.sqrt(3)
    error = math.hypot(of_seeds, math.sqrt(variance))
    assert gap.error == pytest.approx(error, rel=1e-6)
    assert gap.freedom == pytest.approx(2 * (error / of_seeds) ** 4)  # two variants: nothing to pool
    assert gap.low is not None and gap.high is not None
    assert gap.high - gap.value == pytest.approx(gap.value - gap.low) and gap.below(gap.high) == pytest.approx(0.025)
    assert found["a"].paper == 98.41 and found["b"].paper is None


def test_life_ood_is_the_mean_of_five_splits(tmp_path: Path) -> None:
    shares = {"in_range": 0.9, "plus_1": 0.1, "plus_2": 0.2, "plus_3": 0.3, "plus_10": 0.4, "unseen": 0.8, "val": 0.0}
    study_ = study.load("life-dynamics")
    write(study_, tmp_path, lambda _, split: some_right(shares[split]))
    results = gather(study_, "mini", tmp_path, False)
    found = results.readings("ponder", Quantity(score="Life OOD"))[0]
    assert found.value == pytest.approx((0.1 + 0.2 + 0.3 + 0.4 + 0.8) / 5) and found.parts == 5
    by_row = {(e.row, e.column): e for e in entries(results, page_of(study_))}
    change = by_row["Life ID", "at the end"].difference
    assert (
        change is not None and change.paired and change.value == pytest.approx(1 / N)
    )  # one example more, see `stored`


def test_half_finished_study_shows_missing_as_missing(tmp_path: Path) -> None:
    finding = {
        "id": "x",
        "claim": "b beats a",
        "tests": [{"a": "b", "b": "a", "of": {"score": "Sudoku"}, "is": "greater"}],
    }
    study_ = two(findings=[finding])
    write(study_, tmp_path, known, skip=lambda c: c.variant == "b" and c.seed != 1)
    made = make(study_, "mini", tmp_path)
    text = report.study_text(made)
    assert "4 of 6 trainings" in text and "1 of 3 seeds" in text and "b, sudoku, seed 0" in text
    assert made.verdicts[0].verdict == NOT_RUN and "4 of the 6" in made.verdicts[0].why
    row = next(e for e in made.entries if (e.row, e.column) == ("b", "Sudoku"))
    assert row.ours is not None and row.ours.seeds == 1 and row.ours.value == SHARES["b", 1]
    assert row.difference is not None and row.difference.value == pytest.approx(SHARES["b", 1] - SHARES["a", 1])

    nothing = make(study_, "mini", tmp_path / "empty")
    assert nothing.verdicts[0].verdict == NOT_RUN and not nothing.drawn
    assert report.study_text(nothing).count(f"| {MISSING}") >= 2
    for line in csv.DictReader(io.StringIO(as_csv(nothing.results, nothing.entries))):
        assert line["value"] == line["sd"] == line["difference_value"] == ""


def test_failed_cells_are_named_with_their_error(tmp_path: Path) -> None:
    study_ = two()
    write(study_, tmp_path, known, skip=lambda c: c.seed == 2)
    results = gather(study_, "mini", tmp_path, False)
    place = ("sudoku", "b", 2)
    failed = type(results)(results.study, results.scale, results.cells, {place: "it burned"}, {})
    made = StudyReport(failed, page_of(study_), entries(failed, page_of(study_)), [], False, "two")
    assert "b, sudoku, seed 2: failed: it burned" in report.study_text(made)


def test_a_field_is_given_for_each_task_and_what_a_cell_lacks_is_not_called_missing(tmp_path: Path) -> None:
    columns = [{"label": "norm", "field": "grad_norm"}, {"label": "halting", "score": "Sudoku", "way": "halting"}]
    study_ = two(
        measure={"columns": columns}, paper_numbers=None, scales={"mini": {"tasks": ["sudoku", "maze"], "seeds": [0]}}
    )
    for cell in study_.cells("mini"):
        raw = raw_result(cell, known)
        raw["summary"]["mean_grad_norm"] = {"sudoku": 1.5, "maze": 2.5}[cell.task]
        raw["after"]["ema"]["splits"]["test"]["halting"] = None
        if cell.variant == "a":
            Store(tmp_path / "cells").write(CellResult.model_validate(raw))
    text = study_text(make(study_, "mini", tmp_path))
    assert "| a | 1.5 | 2.5 | n/a |" in text and "| b | missing | missing | missing |" in text


def test_the_best_fixed_answer_stands_in_every_table(tmp_path: Path) -> None:
    study_ = two()
    write(study_, tmp_path, known)
    store = Store(tmp_path / "cells")
    one = store.read(study_.cells("mini")[0])
    assert one is not None
    assert FIXED not in {e.row for e in make(study_, "mini", tmp_path).entries}
    splits = {"test": Fixed(n=70, shapes=1, exact=0.125, valid=0.25)}
    files.write(
        store.fixed / f"{one.data_hash}.json", FixedAnswers(data_hash=one.data_hash, splits=splits).model_dump_json()
    )
    made = make(study_, "mini", tmp_path)
    found = {e.column: e.ours for e in made.entries if e.row == FIXED}
    assert {c: e.value for c, e in found.items() if e} == {"Sudoku": 0.25, "Sudoku, best_full": 0.25}
    assert f"| {FIXED} | 25.0 | 25.0 |" in study_text(made)


def test_the_first_page_says_what_holds_what_does_not_and_what_cannot_be_told(tmp_path: Path) -> None:
    same = {**YES, "is": "within", "margin": 19}
    said = [("yes", YES, "paper"), ("no", NO, "paper"), ("open", same, "paper"), ("mine", YES, "beyond")]
    counts = "1 comes out the other way, for 0 the claimed difference is ruled out, and 2 could not be told"
    findings = [{"id": i, "claim": f"claim {i}.", "tests": [t], "source": s} for i, t, s in said]
    study_ = two(
        findings=[*findings, {"id": "arc", "claim": "claim arc.", "tests": [YES], "not_testable": {"mini": "too few"}}]
    )
    write(study_, tmp_path, known)
    made = make(study_, "mini", tmp_path)
    shown = headline([made])
    assert f"**Of the paper's 4 findings, 1 holds at this size, {counts}.**" in shown
    assert "\n- Holds: claim yes.\n- The other way round: claim no.\n" in shown and "claim open." not in shown
    text = results_text([made], "mini", "results")
    parts = {part.split("\n")[0]: part for part in text.split("\n## ")}
    assert f"Of 4 findings of the paper 1 holds here, {counts}." in text
    assert "claim yes." in parts["What holds at this size"] and "claim no." in parts["What does not"]
    told = parts["What could not be told, and why"]
    assert "too small to be seen**: 1 finding (Two 1)" in told and "**Too few**: 1 finding (Two 1)" in told
    assert "claim mine." in parts["What is new"] and "claim mine." not in parts["What holds at this size"]


def test_a_study_that_declares_no_columns_gets_the_scores_of_its_tasks(tmp_path: Path) -> None:
    study_ = two(measure=None, paper_numbers=None, scales={"mini": {"tasks": ["sudoku", "life"], "seeds": [0]}})
    assert [c.score for c in page_of(study_).measure.columns if c.score] == [
        *("Life ID", "Life OOD", "Life +1", "Life +2", "Life +3", "Life +10", "Life unseen", "Sudoku")
    ]
    write(study_, tmp_path, lambda cell, split: some_right(0.5))
    text = study_text(make(study_, "mini", tmp_path, None))
    assert "paper" not in text.split("## All numbers")[0] and "| Sudoku | 50.0 | 50.0 |" in text


SAYS = {"id": "x", "claim": "x"}


def test_mistakes_in_report_fields_are_named_before_anything_is_written(tmp_path: Path) -> None:
    for bad, match in (
        ({"measure": {"columns": [{"label": "x", "scor": "Sudoku"}]}}, "scor"),
        ({"measure": {"columns": [{"label": "x", "score": "Sudoko"}]}}, "Sudoku"),
        ({"measure": {"columns": [{"label": "x"}]}}, "score and field"),
        ({"paper_numbers": {"c": {"Sudoku": 1}}}, "'c'"),
        ({"paper_numbers": {"a": {"Maze": 1}}}, "Maze"),
        ({"findings": [{"id": "x", "claim": "x", "tests": [{"a": "a", "b": "b", "is": "larger"}]}]}, "larger"),
        ({"findings": [{**SAYS, "tests": [{"a": "a", "b": "c", "of": {"score": "Sudoku"}, "is": "less"}]}]}, "'c'"),
        ({"findings": [{**SAYS, "tests": [{"a": "a", "b": "b", "of": {"scor": "Sudoku"}, "is": "less"}]}]}, "score"),
        ({"figure": [{"kind": "bars", "columns": ["Sudokus"]}]}, "'Sudoku'"),
        ({"findings": [{**SAYS, "tests": [{"of": {"score": "Sudoku"}, "is": "within", "rank": True}]}]}, "`rank`"),
        ({"figure": [{"kind": "scatter", "columns": ["Sudoku"]}]}, "two columns"),
    ):
        with pytest.raises(UserError, match=match):
            make(two(**bad), "mini", tmp_path)
    assert not any(tmp_path.iterdir())


# Files ----------------------------------------------------------------------------------------------------------------


def test_language_models_fill_their_columns_from_stored_results(tmp_path: Path) -> None:
    study_ = study.load("main-results")
    write(study_, tmp_path, lambda *_: some_right(0.5), skip=lambda c: c.task != "sudoku")
    data_hash = next(c for c in gather(study_, "mini", tmp_path, False).cells.values() if c).data_hash
    share = {"value": 0.25, "low": 0.1, "high": 0.4}
    said = {
        "model": "some-llm",
        "data_hash": data_hash,
        "splits": {"test": {"n": 40, "complete": True, "valid": share}},
    }
    folder = tmp_path / "llm" / "one"
    folder.mkdir(parents=True)
    (folder / "llm.json").write_text(json.dumps(said), encoding="utf-8")
    failed = {**said, "model": "unreachable", "splits": {"test": {"n": 0, "complete": False}}}
    (tmp_path / "llm" / "two").mkdir()
    (tmp_path / "llm" / "two" / "llm.json").write_text(json.dumps(failed), encoding="utf-8")
    found = entries(gather(study_, "mini", tmp_path, True), page_of(study_))
    at = {(e.row, e.column): e.ours for e in found}
    assert not any(row == "unreachable" for row, _ in at)
    ours = at["some-llm", "Sudoku"]
    assert ours is not None and ours.value == 0.25 and ours.examples == 40
    assert at["some-llm", "Maze"] is None and ("Qwen3.6-27B", "Sudoku") not in at
