"""The rule for study tasks, on trainings whose numbers are known."""

from pathlib import Path

import pytest

from ponder.base.errors import UserError
from ponder.cli import main
from ponder.studies import candidate
from ponder.studies.fixed import Fixed, FixedAnswers
from ponder.studies.result import CellResult
from ponder.studies.spec import Cell, load
from ponder.studies.store import Store
from tests.support.cells import raw_result, some_right

ENDS = {"dense": 0.2, "hrm": 0.5, "ponder": 0.9}
FIXED = FixedAnswers(
    data_hash="x", splits={s: Fixed(n=9, shapes=1, exact=0.1, valid=0.3) for s in ("id", "ood", "val", "test")}
)


def trained(cell: Cell, ends: dict[str, float], rise: float = 0.0, ood: float = 0.5) -> CellResult:
    end = ends[cell.variant]
    curve = [end - rise] * 8 + [end] * 2
    raw = raw_result(cell, lambda _, split: some_right(ood if split == "ood" else end), curve=curve)
    return CellResult.model_validate(raw)


def judged(task: str, ends: dict[str, float] = ENDS, rise: float = 0.0, ood: float = 0.5) -> candidate.Tried:
    cells = candidate.study_of(task, {}, [0]).cells("mini")
    return candidate.judge("x", {}, cells, {c.key: trained(c, ends, rise, ood) for c in cells}, FIXED)


def test_a_candidate_is_the_main_results_task_with_changes() -> None:
    mine = {c.variant: c.key for c in candidate.study_of("sudoku", {}, [0]).cells("mini")}
    main_keys = {c.variant: c.key for c in load("main-results").cells("mini") if c.task == "sudoku" and c.seed == 0}
    assert mine == {name: main_keys[name] for name in candidate.RECIPES}
    changed = candidate.study_of("sudoku", {"data": {"size": 6}, "train": {"updates": 7}}, [0, 1]).cells("mini")
    assert len(changed) == 6 and {c.config.data.flat()["size"] for c in changed} == {6}
    assert {c.config.train.updates for c in changed} == {7} and not {c.key for c in changed} & set(mine.values())


@pytest.mark.parametrize(
    ("task", "ends", "rise", "ood", "broken"),
    [
        ("sudoku", ENDS, 0.0, 0.0, None),
        ("arithmetic", ENDS, 0.0, 0.5, None),
        ("sudoku", {**ENDS, "dense": 0.4}, 0.0, 0.0, "dense under"),
        ("sudoku", {**ENDS, "ponder": 0.8}, 0.0, 0.0, "best recursive"),
        ("sudoku", {**ENDS, "hrm": 0.85, "ponder": 0.1}, 0.0, 0.0, None),  # any recursive one will do
        ("arithmetic", ENDS, 0.0, 0.3, "fixed answer"),
        ("sudoku", ENDS, 0.05, 0.0, "flat"),
        ("sudoku", ENDS, -0.05, 0.0, "flat"),  # a fall is not flat either
        ("sudoku", ENDS, 0.02, 0.0, None),
    ],
)
def test_each_clause_of_the_rule_can_break_it(
    task: str, ends: dict[str, float], rise: float, ood: float, broken: str | None
) -> None:
    tried = judged(task, ends, rise, ood)
    failing = [clause.says for clause in tried.rule if not clause.holds]
    assert tried.holds is (broken is None)
    assert len(failing) == (broken is not None) and all(broken and broken in says for says in failing)
    assert ("fixed" in " ".join(c.says for c in tried.rule)) is (task == "arithmetic")


def test_what_was_tried_is_kept_and_shown_and_nothing_is_trained_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["study", "task", "sudoku", "--read", "--train.updates", "9", "--name", "mine"]
    with pytest.raises(SystemExit):
        raise SystemExit(main(words))
    assert "dense, hrm, ponder on sudoku are not trained: leave out --read" in capsys.readouterr().err
    cells = candidate.study_of("sudoku", {"train": {"updates": 9}}, [0]).cells("mini")
    for cell in cells:
        Store().write(trained(cell, ENDS))
    assert not main(words)
    said = capsys.readouterr().out
    assert "| mine | `sudoku` --train.updates 9 | 20.0% (20.0%)" in said and "| holds |" in said
    (kept,) = candidate.read_all(Path("results/tasks"))
    assert kept.holds and kept.recipes["ponder"].keys == [cells[-1].key]
    assert kept.recipes["hrm"].curve[-1] == 0.5 and "| mine |" in Path("results/tasks/README.md").read_text("utf-8")
    assert not main(["study", "task"]) and "| mine |" in capsys.readouterr().out
    Path("results/tasks/mine.json").write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match="damaged"):
        candidate.read_all(Path("results/tasks"))
