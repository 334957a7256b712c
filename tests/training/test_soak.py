"""The campaign of `make soak` in its short form: every kind of fault once."""

import pytest

from benchmarks import soak


def test_no_fault_loses_finished_work_or_changes_a_result() -> None:
    told: list[str] = []
    tally = soak.campaign(len(soak.FAULTS), seed=0, say=told.append)
    assert not told and all(each.total() == 1 and not each["wrong"] for each in tally.values())
    for kind in ("killed at a change of the disk", "full disk at a change", "two trainings at once"):
        assert tally[kind]["survived"] == 1


def test_the_campaign_sees_a_result_that_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    real = soak.end
    monkeypatch.setattr(soak, "end", lambda folder: (folder.name, real(folder)))
    assert all(each["wrong"] or each["refused"] for each in soak.campaign(len(soak.FAULTS), 0, lambda _: None).values())
