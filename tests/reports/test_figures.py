"""The panels of figures, on a real axis: what they draw for values that are known."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from ponder.reports import figures
from ponder.reports.figures import HEIGHT, LETTERS, Panel, _bars, _height, _legend, _order, draw
from ponder.reports.pages import gather
from ponder.reports.tables import Entry, entries, page_of
from ponder.reports.values import StudyResults
from tests.support.cells import known, two, write

TITLES = {"a": "first", "b": "second"}


@pytest.fixture
def axis() -> Iterator[Any]:
    yield Figure().subplots()


@pytest.fixture
def found(tmp_path: Path) -> tuple[StudyResults, list[Entry]]:
    study = two()
    write(study, tmp_path, known)
    results = gather(study, "mini", tmp_path, False)
    return results, [e for e in entries(results, page_of(study)) if e.column == "Sudoku" and e.row in "ab"]


def with_values(found: list[Entry], values: Mapping[str, float], paper: float | None) -> list[Entry]:
    out = []
    for entry in found:
        assert entry.ours is not None
        out.append(replace(entry, ours=replace(entry.ours, value=values[entry.row]), paper=paper))
    return out


@pytest.mark.parametrize(
    "values, paper, bars",
    [({"a": 0.95, "b": 0.97}, None, False), ({"a": 0.95, "b": 0.2}, None, True), ({"a": 0.95, "b": 0.97}, 40.0, True)],
)
def test_bars_begin_at_zero_and_points_do_not(
    axis: Any, found: tuple[StudyResults, list[Entry]], values: dict[str, float], paper: float | None, bars: bool
) -> None:
    results, some = found
    _bars(axis, results, with_values(some, values, paper), Panel(kind="bars", columns=("Sudoku",)), TITLES)
    assert (len(axis.patches) == 2) == bars
    low, high = axis.get_ylim()
    assert (low <= 0) == bars and high - low >= 10
    assert {text.get_text() for text in axis.get_legend().get_texts()} >= {"first", "second"}


@pytest.mark.parametrize("paper", [None, 50.0])
def test_an_order_is_the_papers_or_where_it_has_none_ours(
    axis: Any, found: tuple[StudyResults, list[Entry]], paper: float | None
) -> None:
    results, some = found
    shown = with_values(some, {"a": 0.1, "b": 0.9}, None)
    if paper is not None:
        shown = [replace(e, paper=paper if e.row == "a" else paper - 10) for e in shown]
    _order(axis, results, shown, Panel(kind="order", column="Sudoku"), TITLES)
    assert [label.get_text() for label in axis.get_yticklabels()] == (
        ["second", "first"] if paper is None else ["first", "second"]
    )
    ranks = [text.get_text() for text in axis.texts]
    assert ranks == ([] if paper is None else ["1 / 2", "2 / 1", "rank: paper / ours"])


def test_a_recipe_that_the_paper_has_not_gets_no_rank_and_takes_none_away(
    axis: Any, found: tuple[StudyResults, list[Entry]]
) -> None:
    results, some = found
    shown = [replace(e, paper=50.0 if e.row == "a" else None) for e in with_values(some, {"a": 0.1, "b": 0.9}, None)]
    _order(axis, results, shown, Panel(kind="order", column="Sudoku"), TITLES)
    assert [text.get_text() for text in axis.texts] == ["1 / 1", "rank: paper / ours"]


@pytest.mark.parametrize("length", [5, 30, 60, 200])
def test_a_legend_is_no_wider_than_its_panel(axis: Any, length: int) -> None:
    for number in range(6):
        axis.plot([0, 1], label=f"{number}" * length)
    _legend(axis, below=True)
    across = axis.get_legend()._ncols
    assert 1 <= across <= 3 and (across == 1 or across * length < LETTERS)


def test_many_names_make_a_panel_taller(axis: Any) -> None:
    for number in range(14):
        axis.plot([0, 1], [0, number], label=f"a variant whose name takes half of the width: {number:03d}")
    _legend(axis, below=True)
    assert _height(axis) > HEIGHT + 1  # of fourteen lines, where three are in the height that all have
    side = Figure().subplots()
    side.set_yticks(range(14), [f"variant {i}" for i in range(14)])
    side.set_ylim(13.5, -0.5)
    assert _height(side) >= 14 * 0.3
    assert _height(Figure().subplots()) == HEIGHT


def test_a_task_that_the_scale_leaves_out_gets_no_panel(
    found: tuple[StudyResults, list[Entry]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, some = found
    assert {task for task, _, _ in results.cells} == {"sudoku"}
    drawn: list[str] = []
    monkeypatch.setitem(
        figures.DRAWERS, "training", lambda axis, results, found, panel, titles: drawn.append(panel.score)
    )
    panels = [Panel(kind="training", score=score) for score in ("Arithmetic ID", "Sudoku")]
    assert draw(results, some, panels, TITLES, tmp_path / "figure") and drawn == ["Sudoku"]
    assert not draw(results, some, panels[:1], TITLES, tmp_path / "figure")
    assert not (tmp_path / "figure.png").exists()
