"""The campaign of `make soak` in its short form: every kind of fault once, a few inputs of every kind."""

import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.soak import clients, faults, fuzz, record
from benchmarks.soak.works import Work, works

WORKS = ("data", "training", "zoo add")
NEEDS_STRACE = {kind for kind in faults.FAULTS if "system call" in kind}


USUAL = os.environ["XDG_DATA_HOME"]


@pytest.fixture(autouse=True)
def elsewhere() -> Iterator[None]:
    """What is struck lives in folders of its own: tests that come after in this process look where they did before."""
    yield
    os.environ["XDG_DATA_HOME"] = USUAL


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("soak").resolve()


@pytest.fixture(scope="module")
def made(place: Path) -> dict[str, Work]:
    return works(place, WORKS, calls=False)


def test_no_fault_loses_finished_work_or_changes_a_result(made: dict[str, Work], place: Path) -> None:
    for number in range(len(faults.FAULTS)):
        kind, name, verdict, said = faults.strike(made, place, 0, number)
        damaged = kind in ("a bit of a file flipped", "a file cut short")
        allowed = {"missed"} if kind in NEEDS_STRACE else {"survived", "refused"} if damaged else {"survived"}
        assert verdict in allowed, (kind, name, verdict, said)


def test_a_server_that_is_struck_answers_as_before_or_names_what_is_damaged(place: Path) -> None:
    """It changes no disk, so that most blows never fall."""
    served = works(place / "served", ("serving",), calls=False)
    found = [faults.strike(served, place, 0, number) for number in range(len(faults.FAULTS))]
    fell = {kind: verdict for kind, _, verdict, _ in found if verdict != "missed"}
    assert fell.keys() == {"a bit of a file flipped", "a file cut short", "two at once", "the clock jumps"}
    assert fell["two at once"] == fell["the clock jumps"] == "survived" and "wrong" not in fell.values(), found


def test_a_study_that_is_damaged_on_its_way_is_one_that_ends_as_the_whole_does(place: Path) -> None:
    """Else a sound end counts as wrong. Every work is measured in one part and in two."""
    studied = works(place / "studied", ("study",), calls=False)["study"]
    rng = random.Random(0)
    verdict = faults.spoilt(lambda file, _: None)(studied, place / "studied" / "untouched", rng, [])
    assert verdict == "survived"


def test_the_campaign_sees_an_end_that_differs(
    made: dict[str, Work], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = {"data": made["data"]}
    monkeypatch.setattr(data["data"], "end", lambda folder: folder.name)
    for number, kind in enumerate(faults.FAULTS):
        verdict = faults.strike(data, place, 1, number)[2]
        assert verdict == ("missed" if kind in NEEDS_STRACE else "wrong") or "file" in kind, kind


@pytest.mark.parametrize("kind", fuzz.KINDS)
def test_what_nobody_should_give_is_taken_or_refused(kind: str, made: dict[str, Work], place: Path) -> None:
    sound = place / "sound"
    if not sound.exists():
        fuzz.sound(sound)
    found = fuzz.batch(kind, sound, 0, 10, most=5 if kind == "command lines" else 40)
    assert not found.said and found.counts["tried"] > 0
    assert (found.counts["refused"] > 0) == (kind != "answers of language models")  # which never fail


def test_a_command_that_writes_bytes_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path(os.devnull).open(encoding="utf-8") as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        fuzz.command(["mcp"])


def test_runs_add_up_and_the_page_is_made_of_them() -> None:
    one = record.Run(0, "abc", 900)
    one.add_fault("a bit of a file flipped", "data", "refused")
    one.add_fault("two at once", "zoo add", "survived")
    one.add_fuzz("overrides", Counter(tried=1000, refused=990))
    page = record.page(record.Record([one, one]))
    assert "| two at once | 0 | 2 | 2 | 0 | 0 |" in page and "| all 4 | 2 | 2 | 2 | 2 | 0 |" in page
    assert "| overrides | 2,000 | 1,980 | 0 | 0 |" in page and "2 runs, 0.5 hours" in page and one.failures == 0
    one.add_fuzz("overrides", Counter(tried=1, hangs=1))
    one.add_fault("two at once", "data", "wrong")
    assert one.failures == 2


def test_a_failure_stays_in_the_table_until_a_later_run_finds_none_and_in_the_record_for_ever(tmp_path: Path) -> None:
    sound, failed, fuzzed = record.Run(0, "a"), record.Run(1, "b"), record.Run(2, "c")
    sound.add_fault("two at once", "data", "survived")
    failed.add_fault("two at once", "data", "wrong")
    fuzzed.add_fuzz("overrides", Counter(tried=7))
    whole = record.Record([sound, failed, fuzzed])
    assert whole.split("faults") == ([], [sound, failed]) and whole.split("fuzz") == ([], [fuzzed])
    assert "The newest found 1 failures, which are not mended." in " ".join(record.page(whole).split())
    whole.runs.append(sound)
    assert whole.split("faults") == ([sound, failed], [sound])
    whole.write(tmp_path / "soak.json")
    assert record.Record.read(tmp_path / "soak.json") == whole
    page = record.page(whole)
    assert "| all 1 | 1 | 1 | 0 | 0 |" in page
    assert "Of 2 faults before (by seed 0, 1) 1 ended wrong" in " ".join(page.split())
    assert "not mended" not in page


def test_memory_that_grows_is_told_from_a_warm_up() -> None:
    warm = clients.memory([(t, 100 + min(t, 30)) for t in range(200)], 200)
    leak = clients.memory([(t, 100 + t / 60) for t in range(200)], 200)
    assert (warm["megabytes after warm-up"], warm["megabytes at the end"], warm["megabytes a minute"]) == (130, 130, 0)
    assert leak["megabytes a minute"] == 1 and leak["megabytes at half time"] == 101.7 and len(leak["megabytes"]) == 20
