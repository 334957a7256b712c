"""What is read from a stored training, and how two of them are compared."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ponder.reports import pages as report
from ponder.reports.findings import (
    CONFIRMED,
    CONTRARY,
    Finding,
    judge,
)
from ponder.reports.llms import LlmSplit
from ponder.reports.pages import gather, make
from ponder.reports.tables import entries
from ponder.reports.values import Clock, Quantity, compare, read
from ponder.studies.fixed import Fixed, FixedAnswers
from ponder.studies.result import CellResult
from ponder.studies.spec import After, Cell
from ponder.studies.store import Store, pack
from tests.support.cells import SHARES, N, known, raw_result, result, some_right, two, write


def test_pairing_narrows_the_interval_and_needs_the_same_examples(tmp_path: Path) -> None:
    study_ = two(scales={"mini": {"tasks": ["sudoku"], "seeds": [0]}})
    write(study_, tmp_path, known)
    results = gather(study_, "mini", tmp_path, False)
    of = Quantity(score="Sudoku")
    a, b = results.readings("a", of), results.readings("b", of)
    paired = compare(b, a)
    other = {seed: type(r)(r.value, r.n, r.parts, r.bits, ("other data",)) for seed, r in a.items()}
    unpaired = compare(b, other)
    assert paired is not None and unpaired is not None and paired.paired and not unpaired.paired
    assert paired.low is not None and unpaired.low is not None and paired.low > unpaired.low
    assert paired.sd is None and paired.value == pytest.approx(0.21)


def test_last_chosen_and_peak_are_told_apart(tmp_path: Path) -> None:
    cell = two().cells("mini")[0]
    kept = result(cell, known, curve=[0.1, 0.3, 0.9, 0.6])

    def value(**of: Any) -> float:
        found = read(kept, Quantity(score="Sudoku", **of))
        assert found is not None
        return found.value

    assert value() == SHARES["a", 0]
    assert value(checkpoint="chosen") == 0.3 and value(checkpoint="peak") == 0.9
    assert value(checkpoint="end_of_curve") == 0.6 and value(checkpoint="peak", show="update") == 30
    assert value(way=1) == pytest.approx(SHARES["a", 0] / 4)
    assert read(kept, Quantity(score="Sudoku", way=99)) is None
    assert read(kept, Quantity(score="Maze")) is not None  # the split has the same name
    assert read(kept, Quantity(score="Life ID")) is None


def test_equal_wall_clock_reads_both_curves_at_the_smallest_common_total(tmp_path: Path) -> None:
    study_ = two(
        measure={"columns": [{"label": "Sudoku", "score": "Sudoku"}], "equal": ["seconds", "updates"]},
        findings=[
            {
                "id": at,
                "claim": at,
                "tests": [{"a": "b", "b": "a", "of": {"score": "Sudoku"}, "is": "greater", "at": at}],
            }
            for at in ("seconds", "updates")
        ],
    )
    store = Store(tmp_path / "cells")
    for cell in study_.cells("mini"):
        slow = cell.variant == "b"  # twice as slow, and better at each update
        curve = [0.2, 0.4, 0.6, 0.8] if slow else [0.1, 0.3, 0.5, 0.7]
        store.write(result(cell, known, 200.0 if slow else 100.0, curve))
    made = make(study_, "mini", tmp_path)
    by_clock = {axis: {e.row: e for e in entries(made.results, made.page, axis)} for axis in ("seconds", "update")}
    # a ends after 100 s at 0.7; b is at its second of four evaluations then.
    assert by_clock["seconds"]["b"].ours.value == pytest.approx(0.4)  # type: ignore[union-attr]
    assert by_clock["seconds"]["a"].ours.value == pytest.approx(0.7)  # type: ignore[union-attr]
    assert by_clock["seconds"]["b"].difference.value == pytest.approx(-0.3)  # type: ignore[union-attr]
    # Both end after 40 updates: there counts what was measured after training.
    gap = sum(SHARES["b", seed] - SHARES["a", seed] for seed in range(3)) / 3
    assert by_clock["update"]["b"].difference.value == pytest.approx(gap)  # type: ignore[union-attr]
    kept = result(study_.cells("mini")[0], known, 100.0, [0.1, 0.3, 0.5, 0.7])
    between = read(kept, Quantity(score="Sudoku"), Clock("seconds", 60.0))
    assert between is not None and between.value == pytest.approx(0.38)
    assert read(kept, Quantity(score="Sudoku"), Clock("seconds", 20.0)) is None
    assert "At equal processor time" in report.study_text(made) and "Sudoku 100)" in report.study_text(made)
    assert [v.verdict for v in made.verdicts] == [CONTRARY, CONFIRMED]
    ended = read(kept, Quantity(score="Sudoku"), Clock("update", 40.0))
    assert ended is not None and (ended.value, ended.n) == (SHARES["a", 0], N) and ended.bits is not None
    before = read(kept, Quantity(score="Sudoku"), Clock("update", 35.0))
    assert before is not None and before.value == pytest.approx(0.6) and before.bits is None
    assert "other side" in made.verdicts[0].compared[0].decision.why


def test_a_variant_that_is_still_in_training_does_not_spoil_the_pool(tmp_path: Path) -> None:
    rates = {"a": 1e-3, "b": 2e-3, "c": 3e-3, "d": 4e-3}
    study_ = two(factor=["train.lr"], variants={name: {"set": {"train.lr": rate}} for name, rate in rates.items()})

    def answers(cell: Cell, split: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
        return some_right(0.5 + 0.07 * cell.seed * (cell.variant == "c") + 0.01 * cell.seed)

    found = []
    for place, skip in (
        ("three", lambda cell: cell.variant == "d"),
        ("begun", lambda c: c.variant == "d" and c.seed > 0),
    ):
        write(study_, tmp_path / place, answers, skip)
        results = gather(study_, "mini", tmp_path / place, False)
        found.append(results.compare(("a", Quantity(score="Sudoku")), ("b", Quantity(score="Sudoku"))))
    assert found[0] is not None and found[0].pooled == 3 and found[0] == found[1]


def test_evaluations_do_not_count_as_training_time(tmp_path: Path) -> None:
    raw = raw_result(two().cells("mini")[0], known, 100.0, [0.1, 0.3, 0.5, 0.7])
    for row in raw["curve"]:
        row["update_seconds"] = row["seconds"] / 2
    found = read(CellResult.model_validate(raw), Quantity(score="Sudoku"), Clock("seconds", 50.0))
    assert found is not None and found.value == pytest.approx(0.7)


def test_the_end_is_the_last_step_that_the_study_asks_for_however_deep_another_one_looked(tmp_path: Path) -> None:
    asked = two(after={"steps": 6})
    deeper = two(after={"steps": 9})
    write(deeper, tmp_path, known)
    results = gather(asked, "mini", tmp_path, False)
    of = Quantity(score="Sudoku", way="end")
    stored = results.stored("sudoku", "a")
    sixth = {seed: cell.after.ema.splits["test"].valid[5] for seed, cell in stored.items() if cell.after.ema}
    assert {seed: found.value for seed, found in results.readings("a", of).items()} == sixth
    assert all(cell.after.steps == 9 for cell in stored.values())
    last = gather(deeper, "mini", tmp_path, False).readings("a", of)
    assert all(found.value > sixth[seed] and found.bits is not None for seed, found in last.items())
    gained = results.readings("a", of.model_copy(update={"minus": "budget"}))
    at_budget = results.readings("a", Quantity(score="Sudoku"))
    for seed, found in gained.items():
        assert found.value == pytest.approx(sixth[seed] - at_budget[seed].value)


def test_arc_votes_are_read_at_the_budget_and_at_the_end() -> None:
    def voted(step: int, value: float) -> dict[str, Any]:
        return {"step": step, "all_test_inputs": {"pass@2": {"value": value}}}

    raw = raw_result(two().cells("mini")[0], known)
    raw["after"] |= {"budget": 4, "steps": 9, "online": None}
    raw["after"]["ema"]["splits"]["test"]["arc"] = {"tasks": 20, "at_step": [voted(4, 0.25), voted(9, 0.5)]}
    kept = CellResult.model_validate(raw)

    def value(**of: Any) -> float | None:
        found = read(kept, Quantity(score="ARC-AGI-1 pass@2", **of))
        return None if found is None else found.value

    assert (value(), value(way="end")) == (0.25, 0.5)
    assert value(checkpoint="peak") is value(way="best_step") is value(weights="online") is None


def test_what_a_language_model_solved_of_arc_is_a_share_of_tasks_and_not_of_their_tests() -> None:
    whole = LlmSplit.model_validate(
        {
            "n": 30,
            "complete": True,
            "exact": {"value": 0.5},
            "passes": {"all_test_inputs": {"pass@1": {"value": 0.25}}},
            "tasks": 20,
        }
    )
    assert (whole.share("pass@1"), whole.share("exact")) == ((0.25, 20), (0.5, 30))
    assert whole.share("pass@2") is whole.share("valid") is None


def test_a_search_is_read_by_rule_and_split_and_compared_example_by_example(tmp_path: Path) -> None:
    shares = {"residual 4x1": 0.9, "confidence 4x1": 0.7, "checker 1x4": 0.8}

    def stored(cell: Cell) -> CellResult:
        raw = raw_result(cell, known)
        for point in raw["after"]["search"]["results"]:
            right = some_right(shares.get(point["policy"], 0.2) - cell.seed * 0.01)
            point |= {"valid": {"value": float(right.mean())}, "bits": pack(right), "mean_steps": 4.0 + cell.seed}
        return CellResult.model_validate(raw)

    study_ = two()
    one = stored(study_.cells("mini")[0])
    for way, share in shares.items():
        found = read(one, Quantity(score="Sudoku", way=f"search {way}"))
        assert found is not None and found.value == pytest.approx(share) and found.n == N and found.bits is not None
        assert found.bits[0].mean() == pytest.approx(share)
    steps = read(one, Quantity(score="Sudoku", way="search residual 4x1", show="step"))
    assert steps is not None and (steps.value, steps.n) == (4.0, None)
    assert read(one, Quantity(score="Life ID", way="search residual 4x1")) is None  # another split
    assert read(one, Quantity(score="Maze", way="search residual 4x1", metric="exact")) is None  # answers not unique
    assert read(one, Quantity(score="Sudoku", way="search residual 4x1", weights="online")) is None
    for bad in ("search luck 4x1", "search residual 3x1", "residual 4x1"):
        with pytest.raises(ValueError, match="way"):
            Quantity(score="Sudoku", way=bad)
    for cell in study_.cells("mini"):
        Store(tmp_path / "cells").write(stored(cell))
    results = gather(study_, "mini", tmp_path, False)
    a, b, plain = (
        ("a", Quantity(score="Sudoku", way=w)) for w in ("search residual 4x1", "search confidence 4x1", "budget")
    )
    gap, over = results.compare(a, b), results.compare(a, plain)
    assert gap is not None and gap.paired and gap.value == pytest.approx(0.2) and gap.seeds == 3
    assert over is not None and over.paired  # with the plain run as well: the examples are the same
    test = {"a": {"way": a[1].way}, "b": {"way": b[1].way}, "of": {"score": "Sudoku"}, "is": "greater"}
    (made,) = judge([Finding.model_validate({"id": "x", "claim": "x", "tests": [test]})], results)
    assert made.verdict == CONFIRMED and "search by residual, 4x1 minus search by confidence, 4x1" in (
        made.compared[0].words
    )
    raw = raw_result(study_.cells("mini")[0], known)
    del raw["after"]["search"], raw["after"]["trace"]
    older = CellResult.model_validate(raw)
    assert read(older, a[1]) is None and read(older, Quantity(field="residual")) is None


def test_a_gain_is_the_difference_of_two_ways_and_has_no_fixed_answer(tmp_path: Path) -> None:
    cell = replace(two().cells("mini")[0], after=After(steps=9))
    kept = result(cell, known)
    gain = Quantity(score="Sudoku", way="end", minus="budget")
    found = read(kept, gain)
    assert found is not None and found.value == pytest.approx(1 / N) and found.n is None  # see `raw_result`
    back = read(kept, Quantity(score="Sudoku", way="budget", minus="end"))
    assert back is not None and back.value == -found.value
    assert read(kept, Quantity(score="Sudoku", way="end", minus=99)) is None
    write(two(), tmp_path, known)
    results = gather(two(), "mini", tmp_path, False)
    fixed = {"sudoku": FixedAnswers(data_hash="", splits={"test": Fixed(n=70, shapes=1, exact=0.1, valid=0.1)})}
    some = type(results)(results.study, "mini", results.cells, {}, {}, fixed)
    assert some.constant(gain) is None and some.constant(Quantity(score="Sudoku", way="end")) is not None


def test_the_peak_of_a_curve_can_be_read_at_the_most_confident_step() -> None:
    raw = raw_result(two().cells("mini")[0], known, curve=[0.1, 0.3, 0.9, 0.6])
    for row, value in zip(raw["curve"], [0.2, 0.95, 0.5, 0.4], strict=True):
        row["ema"]["test"]["best_full"] = value
    kept = CellResult.model_validate(raw)
    peak = read(kept, Quantity(score="Sudoku", checkpoint="peak", way="best_full"))
    at = read(kept, Quantity(score="Sudoku", checkpoint="peak", way="best_full", show="update"))
    assert peak is not None and peak.value == 0.95 and at is not None and at.value == 20
    # Where several answers are right, only exact ones were counted there.
    assert read(kept, Quantity(score="Maze", checkpoint="peak", way="best_full")) is None
    exact = read(kept, Quantity(score="Maze", checkpoint="peak", way="best_full", metric="exact"))
    assert exact is not None and exact.value == 0.95
