"""How a claim is judged: what a difference decides, and what the verdicts of a study make of it."""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ponder.base.errors import UserError
from ponder.base.stats import Estimate
from ponder.reports.findings import (
    ABSENT,
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
from ponder.reports.pages import gather, make, study_text
from ponder.reports.tables import page_of
from ponder.reports.values import Quantity
from ponder.reports.verdicts import which_text
from ponder.studies import spec as study
from ponder.studies.result import CellResult
from ponder.studies.spec import Cell, Study
from ponder.studies.store import Store
from tests.support.cells import NO, SHARES, YES, known, raw_result, some_right, two, write

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


@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [
        (-0.01, 0.015, "absent"),
        (-0.09, 0.015, "absent"),
        (-0.01, 0.025, "undecided"),
        (0.001, 0.015, "holds"),  # small, but there
        (-0.03, -0.01, "contrary"),
    ],
)
def test_a_difference_that_would_matter_can_be_ruled_out(low: float, high: float, outcome: str) -> None:
    for claimed, found in (("greater", around(low, high)), ("less", around(-high, -low))):
        decision = decide(found, claimed, 0.0, matters=0.02)
        assert decision.outcome == outcome and ("2 points" in decision.why) is (outcome == "absent")
        assert decide(found, claimed, 0.0).outcome != "absent"


@pytest.mark.parametrize("truth", [-0.03, -0.01, 0.0, 0.01, 0.0199, 0.02, 0.03])
def test_wherever_the_truth_lies_one_decision_in_twenty_is_false_at_most(truth: float) -> None:
    """More, less and absent are three tests of one estimate, yet no more of them are false than of two."""
    draws, error = 20_000, 0.008
    values = np.random.default_rng(0).normal(truth, error, draws)
    half = 1.959964 * error
    found = Counter(decide(around(v - half, v + half), "greater", 0.0, matters=0.02).outcome for v in values)
    false = found["holds"] * (truth <= 0) + found["contrary"] * (truth >= 0) + found["absent"] * (truth >= 0.02)
    assert false / draws <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / draws)
    assert found["absent"] > 0


# Verdicts -------------------------------------------------------------------------------------------------------------


def verdict_of(tmp_path: Path, tests: list[Mapping[str, Any]], **fields: Any) -> tuple[str, str]:
    study_ = two()
    write(study_, tmp_path, known)
    finding = Finding.model_validate({"id": "x", "claim": "x", "tests": tests, **fields})
    (made,) = judge([finding], gather(study_, "mini", tmp_path, False))
    return made.verdict, made.why


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


def test_a_claim_is_absent_where_what_matters_is_ruled_out_and_there_was_room_for_it(tmp_path: Path) -> None:
    def verdict(share: float, folder: str, tests: list[Mapping[str, Any]], **fields: Any) -> Judgement:
        page = {"findings": [{"id": "x", "claim": "x", "tests": tests}], "paper": "sec", **fields}
        study_ = two(**page)
        write(study_, tmp_path / folder, lambda cell, split: some_right(share))
        (made,) = make(study_, "mini", tmp_path / folder).verdicts
        return made

    # The same answers in all trainings: 2 points are two standard errors of the examples away and more.
    assert verdict(0.7, "room", [YES]).verdict == ABSENT
    assert verdict(0.7, "room", [{**YES, "is": "less"}]).verdict == ABSENT
    assert verdict(0.7, "room", [{**YES, "margin": 5}]).verdict == CONTRARY  # a margin of its own says what is meant
    assert verdict(0.97, "ceiling", [YES]).verdict == UNDECIDED
    assert verdict(0.97, "ceiling", [{**YES, "is": "less"}]).verdict == ABSENT
    assert verdict(0.03, "floor", [{**YES, "is": "less"}]).verdict == UNDECIDED
    # The paper claims a tenth of a point: 2 points ruled out are nothing against it; of 3 points they are the less.
    little, much = ({"a": {"Sudoku": 90.0}, "b": {"Sudoku": 90.0 + more}} for more in (0.1, 3.0))
    assert verdict(0.7, "room", [YES], paper_numbers=little).verdict == UNDECIDED
    assert verdict(0.7, "room", [YES], paper_numbers=much).verdict == ABSENT
    # Read twice, a verdict is half as sure.
    once, again = verdict(0.7, "room", [YES]), verdict(0.7, "room", [YES], looks=2)
    assert again.chance == pytest.approx(2 * (once.chance or 0))


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


def test_physical_batch_says_which_mode_shows_the_gap(tmp_path: Path) -> None:
    study_ = study.load("physical-batch")
    assert "not known yet" in which_text(make(study_, "mini", tmp_path / "empty"))
    write(study_, tmp_path, lambda cell, _: some_right(0.3 if cell.variant == "trajectory-4" else 0.8))
    said = which_text(make(study_, "mini", tmp_path))
    assert "trajectory (independent: not confirmed: absent; trajectory: confirmed)" in said
