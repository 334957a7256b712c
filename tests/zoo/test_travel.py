"""Models that travel: to a Hub (a stub of its endpoint) and back, by revision, hashed, and offline from the cache."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from ponder import Solver, cli, evaluate
from ponder.base.errors import UserError
from ponder.base.runtime import Runtime
from ponder.data import Dataset
from ponder.domains.sudoku.domain import REPO, REVISION, Sudoku, SudokuParams
from ponder.inference.solver import Shelf
from ponder.inference.weights import TRAVELS, ZOO, hub_address, zoo_folders
from ponder.training.loop import Limits
from ponder.training.runs import train_in
from tests.conftest import tiny
from tests.support import ROOT
from tests.support.hub_server import Hub, Repo

PUZZLE = "1... ..2. .3.. ...4"
ELSEWHERE = "http://127.0.0.1:1"
"""Where nobody answers."""


def use(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """An empty Hub, an empty cache and an empty zoo of a user who is logged in."""
    from huggingface_hub import constants

    server = Hub()
    use(monkeypatch, server.url)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", "hf_made_up")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def pushed(hub: Hub, capsys: pytest.CaptureFixture[str]) -> str:
    """The commit of ponder's 4x4 Sudoku as me/four."""
    assert cli.main(["push", "sudoku-4x4", "me/four"]) == 0
    found = re.search(r"hf://me/four@([0-9a-f]{40}) ", capsys.readouterr().out)
    assert found
    return found[1]


def package() -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in ZOO.rglob("*") if path.is_file() and "__pycache__" not in path.parts}


def failing(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(list(words)) == 2
    err = capsys.readouterr().err
    assert err.startswith("ponder: ") and err.count("\n") == 1
    return err


def test_what_is_pushed_says_what_it_is(hub: Hub, pushed: str) -> None:
    stored = hub.repos["me/four"].at(pushed)
    assert stored.keys() == {*TRAVELS, "README.md"}
    assert all(stored[name] == (ZOO / "sudoku-4x4" / name).read_bytes() for name in TRAVELS if name != "card.json")
    own, card = json.loads((ZOO / "sudoku-4x4" / "card.json").read_bytes()), json.loads(stored["card.json"])
    assert card.keys() == own.keys() | {"files", "seal"} and all(card[key] == own[key] for key in own)
    assert card["files"]["weights.safetensors"] == own["sha256"]
    _, meta, text = stored["README.md"].decode().split("---\n", 2)
    metrics = yaml.safe_load(meta)["model-index"][0]["results"][0]["metrics"]
    assert {m["name"]: m["value"] for m in metrics} == {
        k: own["accuracy"]["test"][k]["value"] for k in ("exact", "valid", "solved")
    }
    assert "hf://me/four" in text and own["command"] in text and own["limits"] in text and "2,000" in text


def test_a_solver_takes_an_address_and_nothing_is_asked_twice(hub: Hub, pushed: str) -> None:
    before, own = package(), Solver("sudoku-4x4").solve(PUZZLE)
    for address in ("hf://me/four", f"hf://me/four@{pushed}"):
        answer = Solver(address).solve(PUZZLE)
        assert answer.model == address.rpartition("/")[2]
        assert answer.as_data(trace=True) == {**own.as_data(trace=True), "model": answer.model}
    got = [line for line in hub.asked if line.startswith("GET")]
    assert len(got) == len(set(got)) == 3 and not any("README" in line for line in got)
    asked = len(hub.asked)
    Solver("hf://me/four")
    assert len(hub.asked) == asked and package() == before
    assert Shelf(["hf://me/four"]).choose("four", PUZZLE)[0].name == "four"


def test_a_run_is_pushed_with_a_card_of_its_own(hub: Hub, tmp_path: Path, data_dir: Path, dataset: Dataset) -> None:
    config = tiny(train={"updates": 4, "eval_every": 4})
    train_in(config, tmp_path / "run", data_dir, Runtime(torch.device("cpu")), Limits(), quiet=True)
    words = ["push", str(tmp_path / "run"), "me/run", "--limits", "a toy", "--data-dir", str(data_dir)]
    assert cli.main(words) == 0
    solver = Solver("hf://me/run")
    assert solver.solve(PUZZLE).text == Solver(tmp_path / "run").solve(PUZZLE).text
    card = json.loads((solver.opened.path / "card.json").read_text(encoding="utf-8"))
    assert card["limits"] == "a toy" and card["accuracy"]["test"]["n"] == dataset.counts["test"]


def test_offline_from_the_cache(hub: Hub, pushed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Solver("hf://me/four").solve(PUZZLE)
    use(monkeypatch, ELSEWHERE)
    assert Solver("hf://me/four").solve(PUZZLE).as_data() == first.as_data()
    assert Solver(f"hf://me/four@{pushed}").solve(PUZZLE).verified
    with pytest.raises(UserError, match="me/other is not in the Hub's cache and the Hub cannot be reached"):
        Solver("hf://me/other")


def test_a_revision_stays_what_it_was(hub: Hub, pushed: str, capsys: pytest.CaptureFixture[str]) -> None:
    Solver("hf://me/four")
    assert cli.main(["push", "sudoku-6x6", "me/four"]) == 0
    newer = hub.repos["me/four"].refs["main"]
    assert newer != pushed
    assert len(Solver(f"hf://me/four@{pushed}").domain.vocab) == 6
    assert len(Solver(f"hf://me/four@{newer}").domain.vocab) == 8
    assert len(Solver("hf://me/four").domain.vocab) == 6  # as it was fetched; `ponder pull` asks for the newest
    assert cli.main(["pull", "me/four"]) == 0
    assert len(Solver("hf://me/four").domain.vocab) == len(Solver("four").domain.vocab) == 8


def test_pull_puts_a_model_into_the_users_zoo(
    hub: Hub, pushed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = package()
    assert cli.main(["pull", f"me/four@{pushed}", "--name", "mine"]) == 0
    assert pushed in capsys.readouterr().out
    folder = tmp_path / "share" / "ponder" / "zoo" / "mine"
    assert zoo_folders()["mine"] == folder and sorted(p.name for p in folder.iterdir()) == sorted(TRAVELS)
    card = json.loads((folder / "card.json").read_text(encoding="utf-8"))
    assert card["name"] == "mine" and card["origin"] == {"repo": "me/four", "commit": pushed}
    assert cli.main(["solve", "mine", PUZZLE]) == 0 and cli.main(["zoo"]) == 0 and "mine" in capsys.readouterr().out
    assert cli.main(["push", "mine", "me/again"]) == 0
    assert "origin" not in json.loads(hub.repos["me/again"].at("main")["card.json"])
    use(monkeypatch, ELSEWHERE)
    assert cli.main(["pull", f"me/four@{pushed}", "--name", "mine"]) == 0
    assert "cannot be reached" in capsys.readouterr().err
    assert package() == before


def test_pull_replaces_no_model_of_another_origin(hub: Hub, pushed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["push", "sudoku-6x6", "you/four"]) == cli.main(["pull", "you/four"]) == 0
    assert "did not come from me/four" in failing(capsys, "pull", "me/four")
    assert "comes with ponder" in failing(capsys, "pull", "me/four", "--name", "sudoku-4x4")
    assert "no name for the zoo" in failing(capsys, "pull", "me/four", "--name", "../four")
    assert len(Solver("four").domain.vocab) == 8


@pytest.mark.parametrize("file", ["weights.safetensors", "config.json"])
def test_what_is_not_what_its_card_says_is_refused(hub: Hub, pushed: str, file: str) -> None:
    content = hub.repos["me/four"].at(pushed)[file]
    hub.lies[file] = (
        content.replace(b"a", b"b", 1) if file == "config.json" else content[:-1] + bytes([content[-1] ^ 1])
    )
    assert hub.lies[file] != content
    with pytest.raises(UserError, match=f"{file} of me/four@{pushed} is not what its card says") as error:
        Solver("hf://me/four")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", TRAVELS)
def test_a_cache_that_was_damaged_is_noticed_and_mended_where_the_hub_is(
    hub: Hub, pushed: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a power cut leaves a file that was not synced."""
    sound = Solver("hf://me/four").opened
    path = sound.path / name
    os.truncate(path, path.stat().st_size // 2)
    with monkeypatch.context() as away:
        use(away, ELSEWHERE)
        with pytest.raises(UserError, match=r"the sha256 differs|is damaged"):
            Solver("hf://me/four")
    assert Solver("hf://me/four").opened.sha256 == sound.sha256
    assert path.read_bytes() == hub.repos["me/four"].at(pushed)[name]


@pytest.mark.parametrize(
    ("tamper", "says"),
    [
        ({"card.json": b"{}"}, "has no sha256 in its card"),
        ({"card.json": b"[" * 100_000}, "is damaged"),
        ({"config.json": b" " * (2**20 + 1)}, "config.json of me/four has 1048577 bytes, at most 1048576"),
    ],
)
def test_a_strangers_files_are_judged_before_they_are_used(
    hub: Hub, pushed: str, tamper: dict[str, bytes], says: str
) -> None:
    hub.repos["me/four"].commit(tamper)
    with pytest.raises(UserError, match=says) as error:
        Solver("hf://me/four")
    assert "\n" not in str(error.value)
    if "bytes" in says:
        assert not any(line.startswith("GET") for line in hub.asked)


def test_a_strangers_words_do_nothing_to_the_terminal(
    hub: Hub, pushed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    card = json.loads(hub.repos["me/four"].at(pushed)["card.json"])
    words = {"title": "\x1b]0;mine\x07[/bold][link=x]", "limits": "\x1b[2J[/nothing]"}
    del card["seal"]
    hub.repos["me/four"].commit({"card.json": json.dumps({**card, **words}).encode()})
    assert cli.main(["pull", "me/four"]) == cli.main(["zoo", "four"]) == cli.main(["zoo"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\x07" not in out and "[/nothing]" in out


def test_errors_are_one_line(hub: Hub, pushed: str, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    assert "me/none could not be fetched" in failing(capsys, "pull", "me/none")
    assert "could not be fetched" in failing(capsys, "pull", "me/four@v9")
    assert "is no address on the Hub" in failing(capsys, "pull", "four")
    assert "should be OWNER/NAME" in failing(capsys, "push", "sudoku-4x4", "me/four@v1")
    assert "is not a run folder" in failing(capsys, "push", "sudoku-5x5", "me/five")
    monkeypatch.setenv("HF_TOKEN", "")
    assert "hf auth login" in failing(capsys, "push", "sudoku-4x4", "me/four")
    use(monkeypatch, ELSEWHERE)
    assert "cannot be reached" in failing(capsys, "push", "sudoku-4x4", "me/four")


@pytest.mark.parametrize(
    "text", ["", "four", "hf://", "me/four/x", "me/../four", "me/four@", "me/four@a/b", "https://x/y", "me four/x"]
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(UserError, match="is no address"):
        hub_address(text)


def test_evaluation_writes_nothing_into_the_cache(
    hub: Hub, pushed: str, tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cached = Solver("hf://me/four").opened.path
    config = tiny()
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump({"extends": "sudoku-mini", "data": config.data.flat()}), "utf-8")
    done = evaluate("hf://me/four", device="cpu", domain="tiny.yaml", data_dir=data_dir, splits=("test",), limit=4)
    assert done.folder.resolve() == tmp_path / "eval-four"
    assert sorted(p.name for p in cached.iterdir()) == sorted(TRAVELS)


def test_a_data_set_is_taken_at_its_commit(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    domain = Sudoku(SudokuParams(val=1))
    inputs, labels = domain.sample(0, 4)

    def rows(which: slice) -> bytes:
        texts = [
            (domain.format(i), domain.format_answer(i, a)) for i, a in zip(inputs[which], labels[which], strict=True)
        ]
        return "".join(["source,question,answer,rating\n", *(f"x,{q},{a},0\n" for q, a in texts)]).encode()

    repo = hub.repos.setdefault(f"datasets/{REPO}", Repo())
    repo.commits[REVISION] = {"train.csv": rows(slice(0, 3)), "test.csv": rows(slice(3, 4))}
    repo.refs["main"] = repo.commit({"train.csv": b"changed since\n"})
    built = domain.build(seed=0)
    assert built["test"]["inputs"].tolist() == inputs[3:].tolist()
    use(monkeypatch, ELSEWHERE)
    assert domain.build(seed=0)["train"]["inputs"].tolist() == built["train"]["inputs"].tolist()


def test_by_the_variables_that_people_set(hub: Hub, pushed: str, tmp_path: Path) -> None:
    """In processes of their own: HF_ENDPOINT says where the Hub is, XDG_CACHE_HOME where its files are kept."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    env |= {"HF_ENDPOINT": hub.url, "XDG_CACHE_HOME": str(tmp_path / "xdg"), "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-m", "ponder", "solve", f"hf://me/four@{pushed}", PUZZLE, "--json"]
    answers = []
    for offline in ("", "1"):
        done = subprocess.run(
            words, env={**env, "HF_HUB_OFFLINE": offline}, capture_output=True, encoding="utf-8", check=True
        )
        answers.append(json.loads(done.stdout))
    assert answers[0] == answers[1] and answers[0]["verified"]
    assert list((tmp_path / "xdg").rglob(f"snapshots/{pushed}/weights.safetensors"))
    shutil.rmtree(tmp_path / "xdg")
    gone = subprocess.run(words, env={**env, "HF_HUB_OFFLINE": "1"}, capture_output=True, encoding="utf-8")
    assert gone.returncode == 2 and "is not in the Hub's cache" in gone.stderr
