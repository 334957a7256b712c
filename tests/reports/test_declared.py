"""The studies of this project: their files are sound, and RESULTS.md follows from what is stored."""

from pathlib import Path

import pytest

from ponder.base.errors import UserError
from ponder.reports import pages as report
from ponder.reports.figures import panels_of
from ponder.reports.findings import (
    NOT_RUN,
    NOT_TESTABLE,
    judge,
)
from ponder.reports.pages import gather, main_report, make
from ponder.reports.results import headline, results_text
from ponder.reports.tables import MISSING, columns_of, page_of
from ponder.reports.values import scores
from ponder.studies import spec as study
from ponder.studies.candidate import read_all
from tests.support import ROOT
from tests.support.cells import some_right, write

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
    "bound",
    "depth-beyond",
    "learning-rates",
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
                whole = cell.variant == study_.baseline or name != "joint-training"  # which takes domains out
                assert score.task != cell.task or not whole or set(score.splits) <= set(domain.splits)
        results = gather(study_, scale, Path("nowhere"), False)
        assert {judged.verdict for judged in judge(page.findings, results)} <= {NOT_RUN, NOT_TESTABLE}
    assert page.findings


def test_three_seeds_or_more_where_promised_and_one_elsewhere() -> None:
    three = {"gradient-path", "physical-batch", "stabilization", "hierarchy", "halting", "newer-ideas", *MEASURED_AGAIN}
    three |= {"arithmetic-labels", "capacity", "depth-curriculum", "life-dynamics", "test-time-scaling"}
    three |= {"bound", "depth-beyond", "joint-training", "learning-rates"}
    for name in NAMES:
        plan = study.load(name).scale("mini")
        least = 2 if name == "stability-inside" else 3  # which compares thirty variants, not seeds
        assert len(plan.seeds) >= least if name in three else len(plan.seeds) == 1
        assert name not in three or len(plan.tasks) <= 3 or len(study.load(name).variants) == 1


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


def test_two_studies_measure_trainings_of_others_and_train_none_but_for_seeds_of_their_own() -> None:
    others = {c.key for name in NAMES if name not in MEASURED_AGAIN for c in study.load(name).cells("mini")}
    first = study.load("newer-ideas").scale("mini").seeds
    for name in MEASURED_AGAIN:
        shared = {c.key for c in study.load(name).cells("mini") if c.seed in first}
        assert shared and shared <= others


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
