"""Reports against synthetic stored cells whose answers are known by other means."""

import csv
import io
import json
import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ponder.base import files
from ponder.base.errors import UserError
from ponder.base.stats import Estimate
from ponder.reports import pages as report
from ponder.reports.figures import panels_of
from ponder.reports.findings import (
    CONFIRMED,
    CONTRARY,
    NOT_RUN,
    NOT_TESTABLE,
    UNDECIDED,
    Finding,
    Judgement,
    decide,
    judge,
)
from ponder.reports.pages import gather, main_report, make, study_text
from ponder.reports.results import headline, results_text
from ponder.reports.tables import FIXED, MISSING, as_csv, columns_of, entries, page_of
from ponder.reports.values import Clock, Quantity, compare, read, scores
from ponder.reports.verdicts import StudyReport, which_text
from ponder.studies import spec as study
from ponder.studies.candidate import read_all
from ponder.studies.fixed import Fixed, FixedAnswers
from ponder.studies.result import CellResult
from ponder.studies.spec import After, Cell, Study
from ponder.studies.store import Store, pack
from tests.support import ROOT
from tests.support.cells import Answers, N, raw_result, result, some_right


def write(study_: Study, results: Path, answers: Answers, skip: Callable[[Cell], bool] = lambda _: False) -> None:
    store = Store(results / "cells")
    for cell in study_.cells("mini"):
        if not skip(cell):
            store.write(result(cell, answers))


def two(**fields: Any) -> Study:
    """A study of two variants on Sudoku, three seeds."""
    said = {
        "name": "two",
        "title": "Two",
        "asks": "which?",
        "paper": None,
        "factor": ["model.halting"],
        "baseline": "a",
        "variants": {"a": {"set": {"model.halting": "halt"}}, "b": {"set": {"model.halting": "halt+continue"}}},
        "scales": {"mini": {"tasks": ["sudoku"], "seeds": [0, 1, 2]}},
        "measure": {"columns": [{"label": "Sudoku", "score": "Sudoku"}]},
        "paper_numbers": {"a": {"Sudoku": 98.41}},
    }
    return Study.model_validate({**said, **fields})


SHARES = {("a", 0): 0.50, ("a", 1): 0.60, ("a", 2): 0.52, ("b", 0): 0.71, ("b", 1): 0.80, ("b", 2): 0.75}


def known(cell: Cell, split: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return some_right(SHARES[cell.variant, cell.seed])


# Decisions ------------------------------------------------------------------------------------------------------------


def around(low: float, high: float) -> Estimate:
    """What has this 95% interval, of normal errors."""
    return Estimate((low + high) / 2, 3, 0.1, low, high, error=(high - low) / (2 * 1.959964))


@pytest.mark.parametrize(
    ("low", "high", "claimed", "margin", "outcome"),
    [
        (0.01, 0.2, "greater", 0.0, "holds"),
        (-0.01, 0.2, "greater", 0.0, "undecided"),
        (-0.3, -0.2, "greater", 0.0, "contrary"),
        (0.01, 0.2, "greater", 0.05, "undecided"),
        (0.01, 0.04, "greater", 0.05, "contrary"),
        (-0.2, -0.01, "less", 0.0, "holds"),
        (-0.2, 0.01, "less", 0.0, "undecided"),
        (0.1, 0.2, "less", 0.0, "contrary"),
        (-0.01, 0.01, "within", 0.02, "holds"),
        (-0.01, 0.03, "within", 0.02, "undecided"),
        (-0.03, 0.01, "within", 0.02, "undecided"),
        (0.03, 0.04, "within", 0.02, "contrary"),
        (-0.04, -0.03, "within", 0.02, "contrary"),
        (-0.6, -0.5, "within", 0.02, "contrary"),  # a collapse is no tie
        (-0.01, 0.5, "greater", -0.02, "holds"),  # a loss of so much is allowed
        (-0.03, 0.5, "greater", -0.02, "undecided"),
        (-0.5, -0.03, "greater", -0.02, "contrary"),
        (-0.5, 0.04, "less", -0.05, "holds"),
        (0.06, 0.5, "less", -0.05, "contrary"),
    ],
)
def test_decisions(low: float, high: float, claimed: str, margin: float, outcome: str) -> None:
    found = decide(around(low, high), claimed, margin)
    assert found.outcome == outcome and bool(found.why) is (outcome != "holds")
    assert (found.holds <= 0.025) == (outcome == "holds") and (found.turned <= 0.025) == (outcome == "contrary")
    assert decide(None, claimed, margin).outcome is None
    assert decide(Estimate(0.1, 1, None, None, None), claimed, margin).outcome is None


def test_not_confirmed_says_on_which_side() -> None:
    assert "includes 0, the mean is not as claimed" in decide(around(-0.1, 0.1), "greater", 0).why
    assert "includes 0, the mean is as claimed" in decide(around(-0.2, 0.1), "less", 0).why
    assert "includes the margin, the mean is as claimed" in decide(around(0.1, 0.5), "greater", 0.2).why
    assert "other side" in decide(around(-0.3, -0.1), "greater", 0).why
    assert "other side" in decide(around(0.1, 0.3), "less", 0).why
    assert "below the margin" in decide(around(0.0, 0.02), "greater", 0.1).why
    assert "a fall, not a tie" in decide(around(-0.6, -0.5), "within", 0.02).why


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
    assert by_clock["update"]["b"].difference.value == pytest.approx(0.1)  # type: ignore[union-attr]
    kept = result(study_.cells("mini")[0], known, 100.0, [0.1, 0.3, 0.5, 0.7])
    between = read(kept, Quantity(score="Sudoku"), Clock("seconds", 60.0))
    assert between is not None and between.value == pytest.approx(0.38)
    assert read(kept, Quantity(score="Sudoku"), Clock("seconds", 20.0)) is None
    assert "At equal processor time" in report.study_text(made) and "Sudoku 100)" in report.study_text(made)
    assert [v.verdict for v in made.verdicts] == [CONTRARY, UNDECIDED]
    assert "other side" in made.verdicts[0].compared[0].decision.why


def test_evaluations_do_not_count_as_training_time(tmp_path: Path) -> None:
    raw = raw_result(two().cells("mini")[0], known, 100.0, [0.1, 0.3, 0.5, 0.7])
    for row in raw["curve"]:
        row["update_seconds"] = row["seconds"] / 2
    found = read(CellResult.model_validate(raw), Quantity(score="Sudoku"), Clock("seconds", 50.0))
    assert found is not None and found.value == pytest.approx(0.7)


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


# Verdicts -------------------------------------------------------------------------------------------------------------


def verdict_of(tmp_path: Path, tests: list[Mapping[str, Any]], **fields: Any) -> tuple[str, str]:
    study_ = two()
    write(study_, tmp_path, known)
    finding = Finding.model_validate({"id": "x", "claim": "x", "tests": tests, **fields})
    (made,) = judge([finding], gather(study_, "mini", tmp_path, False))
    return made.verdict, made.why


YES = {"a": "b", "b": "a", "of": {"score": "Sudoku"}, "is": "greater"}
NO = {"a": "a", "b": "b", "of": {"score": "Sudoku"}, "is": "greater"}


def test_verdicts_follow_the_rule_both_ways(tmp_path: Path) -> None:
    elsewhere = {"a": "b", "b": "a", "of": {"score": "Maze"}, "is": "greater"}
    assert verdict_of(tmp_path, [YES]) == (CONFIRMED, "")
    assert verdict_of(tmp_path, [NO]) == (CONTRARY, "")
    assert verdict_of(tmp_path, [{**YES, "margin": 19}])[0] == UNDECIDED
    assert verdict_of(tmp_path, [YES, NO]) == (CONTRARY, "1 holds, 1 contrary")
    # A collapse of 20 points is no tie, and equality needs both sides.
    assert verdict_of(tmp_path, [{**NO, "is": "within", "margin": 5}])[0] == CONTRARY
    assert verdict_of(tmp_path, [{**NO, "is": "within", "margin": 40}])[0] == CONFIRMED
    # A claim about a task that is not there is not half confirmed by the rest.
    assert verdict_of(tmp_path, [elsewhere])[0] == NOT_TESTABLE
    assert verdict_of(tmp_path, [elsewhere, YES])[0] == NOT_TESTABLE
    assert verdict_of(tmp_path, [YES], not_testable={"mini": "too small"}) == (NOT_TESTABLE, "too small")
    # The gradient norm is 1 + seed for both: no difference, no spread, so it includes 0.
    assert verdict_of(tmp_path, [{**YES, "of": {"field": "grad_norm"}}])[0] == UNDECIDED
    # Three seeds cannot tell such spreads apart.
    assert verdict_of(tmp_path, [{**YES, "spread": True}])[0] == UNDECIDED
    with pytest.raises(UserError, match="allowed: a, b"):
        verdict_of(tmp_path, [{**YES, "a": "c"}])
    with pytest.raises(ValueError, match="at least 1 item"):
        verdict_of(tmp_path, [])


def test_one_of_many_comparisons_turns_nothing_round_and_a_study_is_one_family(tmp_path: Path) -> None:
    """The p-values by hand: Holm over findings, Bonferroni over what may turn one of them round."""
    study_ = two()
    write(study_, tmp_path, known)
    results = gather(study_, "mini", tmp_path, False)

    def judged(*findings: list[Mapping[str, Any]]) -> list[tuple[str, Any]]:
        said = [Finding.model_validate({"id": f"{i}", "claim": "x", "tests": t}) for i, t in enumerate(findings)]
        return [(j.verdict, j.chance) for j in judge(said, results)]

    gap = results.compare(("b", Quantity(score="Sudoku")), ("a", Quantity(score="Sudoku")))
    assert gap is not None
    p = gap.above(0.0)
    assert judged([YES]) == [(CONFIRMED, pytest.approx(2 * p))]
    assert judged([NO, NO, NO]) == [(CONTRARY, pytest.approx(6 * p))]
    weak = {**YES, "margin": 100 * (gap.value - 2.2 * (gap.error or 0))}  # holds alone at about 2%
    flat = {**YES, "is": "within", "margin": 20}
    alone, family = judged([weak]), judged([weak], [flat], [flat], [flat], [flat])
    assert alone[0][0] == CONFIRMED and family[0][0] == UNDECIDED
    assert family[0][1] == pytest.approx(5 * alone[0][1])
    (made, *_) = judge([Finding.model_validate({"id": "w", "claim": "x", "tests": [weak]})] * 5, results)
    assert "confirmed if it were the only one of 5 findings" in made.why


def test_a_claim_may_name_a_number(tmp_path: Path) -> None:
    above = {"a": "b", "of": {"score": "Sudoku"}, "is": "greater", "than": 40}
    assert verdict_of(tmp_path, [above]) == (CONFIRMED, "")
    assert verdict_of(tmp_path, [{**above, "than": 74}])[0] == UNDECIDED
    assert verdict_of(tmp_path, [{**above, "is": "less", "than": 99}]) == (CONFIRMED, "")


@pytest.mark.parametrize("of", [{"field": "grad_norm"}, {"score": "Sudoku"}])
def test_one_seed_gives_no_verdict(tmp_path: Path, of: dict[str, str]) -> None:
    study_ = two(scales={"mini": {"tasks": ["sudoku"], "seeds": [0]}})
    write(study_, tmp_path, known)
    finding = Finding.model_validate({"id": "x", "claim": "x", "tests": [{**YES, "of": of}]})
    (made,) = judge([finding], gather(study_, "mini", tmp_path, False))
    assert (made.verdict, made.why, made.chance) == (NOT_TESTABLE, "one seed", None)


def five(tmp_path: Path, residual: Callable[[Cell, int], float], count: int = 5, **fields: Any) -> Study:
    """A study of several variants whose accuracy rises from the first to the last: a residual for each training."""
    names = [f"v{i}" for i in range(count)]
    rank = {"a": {"field": "residual"}, "b": {"score": "Sudoku"}, "rank": True}
    study_ = two(
        factor=["train.clip"], baseline="v0", paper_numbers=None, variants={
            name: {"set": {"train.clip": 1.0 + i}} for i, name in enumerate(names)
        },
        findings=[{"id": i, "claim": i, "tests": [{**rank, "is": i}]} for i in ("less", "greater")],
        measure={"columns": [{"label": "Sudoku", "score": "Sudoku"}, {"label": "residual", "field": "residual"}]},
        figure=[{"kind": "scatter", "columns": ["residual", "Sudoku"], "log": True}], **fields,
    )  # fmt: skip
    for cell in study_.cells("mini"):
        place = names.index(cell.variant)
        raw = raw_result(cell, lambda *_, place=place: some_right(0.2 + 0.1 * place))
        raw["after"]["trace"]["residual"][-1] = {"low": 0.0, "median": residual(cell, place), "high": 9.0}
        Store(tmp_path / "cells").write(CellResult.model_validate(raw))
    return study_


def test_a_rank_finding_goes_by_whole_variants(tmp_path: Path) -> None:
    def verdicts(folder: Path, *args: Any, **fields: Any) -> list[Judgement]:
        study_ = five(folder, *args, **fields)
        return judge(page_of(study_).findings, gather(study_, "mini", folder, False))

    made = make(five(tmp_path / "a", lambda cell, place: 10.0 - place + 0.1 * cell.seed), "mini", tmp_path / "a")
    less, greater = made.verdicts
    assert (less.verdict, greater.verdict) == (CONFIRMED, CONTRARY)
    compared = less.compared[0]
    assert compared.estimate is not None and compared.estimate.value < -0.9 and compared.estimate.seeds == 3
    # One of the 120 orders of five variants is as good; fifteen trainings as points would give one in 15!.
    assert less.chance == pytest.approx(2 * 2 / 120) and len(compared.needed) == 15
    text = study_text(made)
    assert "rank correlation of residual at the training budget with Sudoku, valid, over 5 variants: -0.9" in text
    assert made.drawn and (tmp_path / "a" / "studies" / "two.png").stat().st_size > 10_000
    # Four variants cannot decide: 2 / 24. Nor can what differs between seeds and not between variants.
    assert {v.verdict for v in verdicts(tmp_path / "b", lambda cell, place: 10.0 - place, 4)} == {UNDECIDED}
    assert {v.verdict for v in verdicts(tmp_path / "c", lambda cell, place: cell.seed)} == {UNDECIDED}
    for count, residual in ((2, lambda cell, place: place), (5, lambda cell, place: 1.0)):
        (first, _) = verdicts(tmp_path / f"d{count}", residual, count)
        assert first.verdict == NOT_TESTABLE and "fewer than three variants" in first.why
    one = {"mini": {"tasks": ["sudoku"], "seeds": [0]}}
    (first, _) = verdicts(tmp_path / "e", lambda cell, place: place, scales=one)
    assert (first.verdict, first.why) == (NOT_TESTABLE, "one seed")
    lost = next((tmp_path / "a" / "cells").glob("*.json"))
    lost.unlink()
    (again, _) = judge(made.page.findings, gather(made.results.study, "mini", tmp_path / "a", False))
    assert again.verdict == NOT_RUN and "14 of the 15" in again.why


def test_every_verdict_says_what_it_could_have_seen(tmp_path: Path) -> None:
    said = [
        {"id": "more", "claim": "more", "tests": [YES]},
        {"id": "same", "claim": "same", "tests": [{**YES, "is": "within"}]},
    ]
    study_ = two(findings=said)
    write(study_, tmp_path, known)
    made = make(study_, "mini", tmp_path)
    text = study_text(made)
    found = made.verdicts[0].compared[0].estimate
    assert found is not None
    more, same = found.visible(), found.visible(same=True)
    assert more is not None and same is not None and same > more > 0
    assert f"; {100 * more:.2f} was to be seen" in text
    assert f"equality was to be seen within {100 * same:.2f}" in text


def test_the_ranked_protocol_is_said_read_and_carries_the_papers_numbers(tmp_path: Path) -> None:
    columns = [{"label": "Sudoku", "score": "Sudoku"}]
    study_ = two(
        measure={"columns": columns, "ranks": "best_full"}, findings=[{"id": "x", "claim": "x", "tests": [YES]}]
    )
    for cell in study_.cells("mini"):
        raw = raw_result(cell, known)
        # At the most confident step `b` is worse, while at the training budget it is better.
        raw["after"]["ema"]["splits"]["test"]["best_full"]["valid"] = 0.9 - SHARES[cell.variant, cell.seed] / 2
        Store(tmp_path / "cells").write(CellResult.model_validate(raw))
    made = make(study_, "mini", tmp_path)
    assert made.verdicts[0].verdict == CONTRARY and "most confident step" in study_text(made)
    by = {(e.row, e.column): e for e in made.entries}
    assert by["a", "Sudoku, best_full"].paper == 98.41 and by["a", "Sudoku"].paper is None
    plain = {(e.row, e.column): e for e in make(two(), "mini", tmp_path).entries}
    assert plain["a", "Sudoku"].paper == 98.41 and plain["a", "Sudoku, best_full"].paper is None


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
    findings = [{"id": i, "claim": f"claim {i}.", "tests": [t], "source": s} for i, t, s in said]
    study_ = two(
        findings=[*findings, {"id": "arc", "claim": "claim arc.", "tests": [YES], "not_testable": {"mini": "too few"}}]
    )
    write(study_, tmp_path, known)
    text = results_text([make(study_, "mini", tmp_path)], "mini", "results")
    parts = {part.split("\n")[0]: part for part in text.split("\n## ")}
    assert "Of 4 findings of the paper 1 hold here, 1 come out the other way, and 2 could not be told" in text
    assert "claim yes." in parts["What holds at this size"] and "claim no." in parts["What does not"]
    told = parts["What could not be told, and why"]
    assert "too small to be seen**: 1 finding (Two 1)" in told and "**Too few**: 1 finding (Two 1)" in told
    assert "claim mine." in parts["What is new"] and "claim mine." not in parts["What holds at this size"]


def test_physical_batch_says_which_mode_shows_the_gap(tmp_path: Path) -> None:
    study_ = study.load("physical-batch")
    assert "not known yet" in which_text(make(study_, "mini", tmp_path / "empty"))
    write(study_, tmp_path, lambda cell, _: some_right(0.3 if cell.variant == "trajectory-4" else 0.8))
    said = which_text(make(study_, "mini", tmp_path))
    assert "trajectory (independent: not confirmed: undecided; trajectory: confirmed)" in said


# What is committed ----------------------------------------------------------------------------------------------------


def test_results_md_follows_from_the_stored_trainings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever changes a study or adds a result has to report again: `ponder study report all --write README.md`."""
    root = ROOT
    if not (root / "RESULTS.md").is_file():
        pytest.skip("not in a checkout")
    monkeypatch.chdir(root)
    monkeypatch.setattr(report, "draw", lambda results, *_: results.done > 0)
    reports = [make(study_, "mini", Path("results")) for study_ in study.load_all(["all"], "mini")]
    assert results_text(reports, "mini", "results") == Path("RESULTS.md").read_text(encoding="utf-8")
    assert headline(reports) in Path("README.md").read_text(encoding="utf-8")
    keys = {cell.key for each in reports for cell in each.results.study.cells("mini")}
    tried = {key for each in read_all(Path("results/tasks")) for recipe in each.recipes.values() for key in recipe.keys}
    stored_keys = {path.stem for path in Path("results/cells").glob("*.json")}
    assert stored_keys and stored_keys <= keys | tried, "a stored training that no study or candidate asks for"


# The studies of this project ------------------------------------------------------------------------------------------

NAMES = [
    "main-results",
    "gradient-path",
    "physical-batch",
    "hierarchy",
    "stabilization",
    "capacity",
    "test-time-scaling",
    "life-dynamics",
    "joint-training",
    "halting",
    "arithmetic-labels",
    "depth-curriculum",
    "newer-ideas",
    "search-at-equal-compute",
    "stability-inside",
]
MEASURED_AGAIN = ("search-at-equal-compute", "stability-inside")


def test_all_studies_are_there() -> None:
    assert sorted(NAMES) == study.names()


@pytest.mark.parametrize("name", NAMES)
def test_study_is_valid_at_both_scales(name: str) -> None:
    study_ = study.load(name)
    page = page_of(study_)
    assert panels_of(name, page.figure, {label: c.label for c, label in columns_of(page) if label})
    for scale in ("mini", "paper"):
        cells = study_.cells(scale)
        trained = {name for name, about in study_.variants.items() if about.only.get(scale, ("all",))}
        assert {cell.variant for cell in cells} == trained
        for cell in cells:
            domain = cell.config.data.make()
            for score in scores().values():
                assert score.task != cell.task or set(score.splits) <= set(domain.splits)
        results = gather(study_, scale, Path("nowhere"), False)
        assert {judged.verdict for judged in judge(page.findings, results)} <= {NOT_RUN, NOT_TESTABLE}
    assert page.findings


def test_three_seeds_or_more_where_promised_and_one_elsewhere() -> None:
    three = {"gradient-path", "physical-batch", "stabilization", "hierarchy", "halting", "newer-ideas", *MEASURED_AGAIN}
    for name in NAMES:
        plan = study.load(name).scale("mini")
        assert len(plan.seeds) >= 3 if name in three else len(plan.seeds) == 1
        assert name not in three or len(plan.tasks) <= 2


def test_cells_that_coincide_are_one_training() -> None:
    keys = {
        name: {(c.task, c.variant, c.seed): c.key for c in study.load(name).cells("mini")}
        for name in (
            "gradient-path",
            "physical-batch",
            "arithmetic-labels",
            "hierarchy",
            "stabilization",
            "test-time-scaling",
        )
    }
    mixed = keys["gradient-path"]["arithmetic", "KL2-KH2", 0]
    assert mixed == keys["physical-batch"]["arithmetic", "one-batch", 0]
    assert mixed == keys["arithmetic-labels"]["arithmetic", "canonical", 0]
    assert mixed == keys["test-time-scaling"]["arithmetic", "ponder", 0]
    # These two put sizes of their own on the task: dropout, and two layers.
    plain = keys["test-time-scaling"]["sudoku", "ponder", 0]
    assert len({plain, keys["stabilization"]["sudoku", "noise", 0], keys["hierarchy"]["sudoku", "shared", 0]}) == 3
    assert keys["gradient-path"]["arithmetic", "KL2-KH2", 2] == keys["physical-batch"]["arithmetic", "one-batch", 2]


def test_two_studies_measure_trainings_of_others_and_train_none() -> None:
    others = {c.key for name in NAMES if name not in MEASURED_AGAIN for c in study.load(name).cells("mini")}
    for name in MEASURED_AGAIN:
        assert {c.key for c in study.load(name).cells("mini")} <= others


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


def test_reports_of_every_kind_are_written_and_repeat(tmp_path: Path) -> None:
    names = ["gradient-path", "stabilization", "life-dynamics", "halting", *MEASURED_AGAIN]
    for name in names:
        write(study.load(name), tmp_path, lambda cell, split: some_right(0.4 + 0.1 * cell.seed + 0.01 * len(split)))
    written = main_report(names, "mini", tmp_path)
    before = {path: path.read_bytes() for path in written}
    assert {p.suffix for p in written} == {".md", ".csv", ".png", ".svg"} and len(written) == 24
    for path, data in before.items():
        assert len(data) > 300
        if path.suffix == ".md":
            assert "not run yet" not in data.decode() and MISSING not in data.decode()
    again = main_report(names[2:3], "mini", tmp_path)
    assert all(path.read_bytes() == before[path] for path in again)


def test_results_md_links_what_exists_and_counts_every_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = Path("page.md")
    with pytest.raises(UserError, match=r"cannot read page\.md"):
        main_report(["all"], "mini", Path("results"), page=page)
    with pytest.raises(UserError, match="report all"):
        main_report(["halting"], "mini", Path("results"), page=page)
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n", encoding="utf-8")
    written = main_report(["all"], "mini", Path("results"), page=page)
    text = Path("RESULTS.md").read_text(encoding="utf-8")
    assert Path("RESULTS.md") in written
    shown = page.read_text(encoding="utf-8")
    every = [make(each, "mini", Path("results")) for each in study.load_all(["all"], "mini")]
    assert shown == f"before\n{report.BEGIN}\n{headline(every)}\n{report.END}\nafter\n"
    links = [part.split(")")[0] for part in text.split("](")[1:]]
    assert links and all(Path(link).is_file() for link in links)
    claims = [f for name in NAMES for f in page_of(study.load(name)).findings]
    assert all(f.claim in text for f in claims)
    tables = [line for line in text.splitlines() if line.startswith(("| findings of", "| questions"))]
    assert sum(int(cell) for line in tables for cell in line.split("|")[2:-1]) == len(claims)
    assert "confirmed at mini scale" not in text


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
