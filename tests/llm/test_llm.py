"""Language models as baselines: a real server process that errs to order, killing and resuming, the prompts."""

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pytest

from ponder import cli
from ponder.base.errors import UserError
from ponder.data import Dataset
from ponder.llm.client import Endpoint
from ponder.llm.prompt import questions
from ponder.llm.run import RESULT, TRANSCRIPT, LlmPlan, Transcript, evaluate
from tests.support import ROOT


class Server:
    """The process of llm_server.py."""

    def __init__(self) -> None:
        script = ROOT / "tests" / "support" / "llm_server.py"
        self.process = subprocess.Popen(
            [sys.executable, "-I", str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
        )
        assert self.process.stdout is not None
        self.address = f"http://127.0.0.1:{int(self.process.stdout.readline())}"
        self.url = f"{self.address}/v1"

    def post(self, path: str) -> None:
        urlopen(Request(self.address + path, data=b"{}", method="POST"), timeout=60).read()

    def stats(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(urlopen(f"{self.address}/stats", timeout=60).read())
        return answer

    def close(self) -> None:
        self.process.communicate()


@pytest.fixture(scope="module")
def process() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def server(process: Server) -> Server:
    process.post("/clear")
    return process


def ask(server: Server, dataset: Dataset, out: Path, model: str, limit: int = 4, **more: Any) -> dict[str, Any]:
    """Evaluate `limit` test puzzles; the plan's and the endpoint's fields may be given."""
    plan = {key: more.pop(key) for key in ("attempts", "price_in", "price_out", "parameters") if key in more}
    concurrency = more.pop("concurrency", 2)
    endpoint = Endpoint(server.url, **{"timeout": 60.0, "retries": 3, "backoff": 0.01, **more})
    asked = {"test": questions(dataset, "test", limit)}
    return evaluate(
        LlmPlan("sudoku-mini", model, **{"parameters": {}, **plan}), dataset, asked, endpoint, concurrency, out
    )


def all_text(out: Path) -> str:
    assert (out / TRANSCRIPT).is_file()
    return "".join(file.read_text(encoding="utf-8") for file in out.iterdir())


def rows(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / TRANSCRIPT).read_text(encoding="utf-8").splitlines()]


# Answers of all kinds -------------------------------------------------------------------------------------------------


def test_a_model_that_solves_scores_100_percent(server: Server, dataset: Dataset, tmp_path: Path) -> None:
    result = ask(server, dataset, tmp_path, "right", limit=10, price_in=2.0, price_out=30.0)
    score = result["splits"]["test"]
    assert score["n"] == 10 and score["exact"]["value"] == score["valid"]["value"] == 1
    # Wilson's interval for 10 of 10 is 1 / (1 + 1.96^2 / 10) to 1.
    assert score["exact"]["low"] == pytest.approx(1 / (1 + 1.96**2 / 10), abs=1e-3) and score["exact"]["high"] == 1
    assert result["tokens"] == {"in": 1000, "out": 70, "answers_counted": 10, "answers": 10}
    assert result["cost"]["total"] == pytest.approx((1000 * 2 + 70 * 30) / 1e6)
    assert result["complete"] and result["data_hash"] == dataset.hash and result["served_as"] == ["served-right"]
    assert json.loads((tmp_path / RESULT).read_text(encoding="utf-8")) == result
    text = (tmp_path / RESULT).read_text(encoding="utf-8") + (tmp_path / TRANSCRIPT).read_text(encoding="utf-8")
    assert "127.0.0.1" not in text and str(server.address.rpartition(":")[2]) not in (tmp_path / RESULT).read_text(
        encoding="utf-8"
    )


def test_wrong_and_unparseable_answers_are_counted_and_shown(
    server: Server, dataset: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = ask(server, dataset, tmp_path, "mixed", limit=30)
    score, intended = result["splits"]["test"], server.stats()["answers"]
    kinds = [kind for kinds in intended.values() for kind in kinds]
    assert len(kinds) == len(intended) == 30
    assert min(kinds.count(kind) for kind in ("right", "wrong", "prose")) > 3
    assert score["exact"]["value"] == score["valid"]["value"] == kinds.count("right") / 30
    assert score["unparseable"] == kinds.count("prose") and score["truncated"] == 0
    each = dict(zip(score["examples"]["index"], score["examples"]["exact"], strict=True))
    source = dataset.source("test")
    for index, exact in each.items():
        puzzle = dataset.domain.format(source.fetch(np.array([index]), np.array([0])).inputs[0])
        assert exact == (intended[puzzle] == ["right"])
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count("unparseable test ") == 3 and "beyond me. [/bold]" in shown
    assert f"and {kinds.count('prose') - 3} more" in shown
    for row in rows(tmp_path):
        assert (row["parsed"] is None) == ("beyond me" in row["answer"]) and bool(row["problem"]) == (not row["valid"])


@pytest.mark.parametrize("model", ["empty", "length", "thought"])
def test_an_answer_that_is_none_is_an_answer(server: Server, dataset: Dataset, tmp_path: Path, model: str) -> None:
    """Also where the server has only the thinking, because it cut the model off."""
    score = ask(server, dataset, tmp_path, model)["splits"]["test"]
    assert score["complete"] and score["exact"]["value"] == 0 and score["unparseable"] == 4
    assert score["truncated"] == (0 if model == "empty" else 4)
    assert set(server.stats()["requests"].values()) == {1}


@pytest.mark.parametrize("model", ["parts", "uncounted", "gzip"])
def test_servers_that_bend_the_protocol_are_understood(
    server: Server, dataset: Dataset, tmp_path: Path, model: str
) -> None:
    result = ask(server, dataset, tmp_path, model)
    assert result["splits"]["test"]["exact"]["value"] == 1
    assert result["tokens"]["answers_counted"] == (0 if model == "uncounted" else 4)


# Failures -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", ["500", "broken", "half", "error200", "reset", "null"])
def test_passing_trouble_is_retried(server: Server, dataset: Dataset, tmp_path: Path, trouble: str) -> None:
    result = ask(server, dataset, tmp_path, f"{trouble},{trouble},right")
    assert result["splits"]["test"]["exact"]["value"] == 1
    assert set(server.stats()["requests"].values()) == {3} and result["retries"] == 8


@pytest.mark.parametrize("count", ["infinity", "overflow", "nan", "minus", "digits"])
def test_what_is_no_number_of_tokens_is_not_counted(
    server: Server, dataset: Dataset, tmp_path: Path, count: str
) -> None:
    result = ask(server, dataset, tmp_path, count, price_in=1.0, price_out=1.0)
    assert result["splits"]["test"]["exact"]["value"] == 1
    assert result["tokens"] == {"in": 0, "out": 0, "answers_counted": 0, "answers": 4} and result["cost"]["total"] == 0


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("brackets", r"not a chat completion: \[\[\["),
        ("charset", "not a chat completion: neither JSON nor text"),
        ("codes", re.escape(r"\x1b]0;mine\x07\x1b[2Jgone \u202e\ud800")),
        ("many", "more than 8388608 bytes"),
        ("bomb", "unpacks to more than 8388608 bytes"),
    ],
)
def test_one_nasty_answer_ends_nothing(
    server: Server, dataset: Dataset, tmp_path: Path, kind: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is broken, no more of it is read than an answer may have, and nothing in it moves the terminal's cursor."""
    result = ask(server, dataset, tmp_path / "retried", f"{kind},right", limit=2)
    assert result["splits"]["test"]["exact"]["value"] == 1 and result["retries"] == 2
    with pytest.raises(UserError, match=says):
        ask(server, dataset, tmp_path / "never", kind, limit=3, retries=0, concurrency=1)
    assert all(char.isprintable() or char == "\n" for char in capsys.readouterr().out)


@pytest.mark.parametrize("kind", ["slow", "drip"])
def test_a_slow_answer_is_given_up_and_asked_for_again(
    server: Server, dataset: Dataset, tmp_path: Path, kind: str
) -> None:
    """Also where something arrives all the time, but no end."""
    result = ask(server, dataset, tmp_path, f"{kind},right", limit=2, timeout=1.0, retries=40)
    assert result["splits"]["test"]["exact"]["value"] == 1
    assert min(server.stats()["requests"].values()) >= 2 and server.stats()["outlasted"] == 0


@pytest.mark.parametrize("status", ["429", "503"])
def test_retry_after_is_honoured(server: Server, dataset: Dataset, tmp_path: Path, status: str) -> None:
    """429 says one second, 503 gives a date that is one to two seconds ahead."""
    ask(server, dataset, tmp_path, f"{status},right", limit=1)
    (refused, _, first), (again, _, second) = server.stats()["log"]
    assert (first, second) == (status, "right") and again - refused >= 0.95


def test_a_rate_limit_holds_up_all_questions(server: Server, dataset: Dataset, tmp_path: Path) -> None:
    """The first request is refused for a second; of the others only the one already under way may arrive in it."""
    ask(server, dataset, tmp_path, "limit", limit=5)
    times = sorted(when for when, _, _ in server.stats()["log"])
    assert len(times) == 6 and times[2] - times[0] >= 0.95


def test_a_question_without_an_answer_leaves_no_score(
    server: Server, dataset: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = ",".join(["500"] * 4 + ["right"])
    with pytest.raises(UserError, match="2 answers are missing"):
        ask(server, dataset, tmp_path, script, limit=2)
    score = json.loads((tmp_path / RESULT).read_text(encoding="utf-8"))["splits"]["test"]
    assert score["exact"] is None and score["valid"] is None and score["not_answered"] == 2 and not score["complete"]
    shown = " ".join(capsys.readouterr().out.split())
    assert "incomplete" in shown and "test: 2 answers are missing" in shown
    assert "not answered 2 times: HTTP 500: made-up error 500, key none, 4 tries" in shown
    assert [row["error"][:8] for row in rows(tmp_path)] == ["HTTP 500"] * 2
    result = ask(server, dataset, tmp_path, script, limit=2)
    assert result["complete"] and result["splits"]["test"]["exact"]["value"] == 1


def test_a_dead_endpoint_is_given_up_early(server: Server, dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"20 answers are missing \(the endpoint answered none of the last 3 questions"):
        ask(server, dataset, tmp_path, "500", limit=20, retries=0, concurrency=1)
    assert sum(server.stats()["requests"].values()) == 3


@pytest.mark.parametrize("status", ["400", "401", "404"])
def test_a_refusal_stops_with_the_servers_words(
    server: Server, dataset: Dataset, tmp_path: Path, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=rf"HTTP {status}: made-up error {status}, key \*\*\*") as error:
        ask(server, dataset, tmp_path, status, limit=20, key="sk-secret")
    assert "\n" not in str(error.value) and "sk-secret" not in str(error.value)
    assert sum(server.stats()["requests"].values()) <= 2 and server.stats()["keys"][0] == "Bearer sk-secret"
    assert "sk-secret" not in all_text(tmp_path)


def test_nobody_listens(dataset: Dataset, server: Server, tmp_path: Path) -> None:
    absent = Server()
    absent.close()
    with pytest.raises(UserError, match=r"3 answers are missing .*the connection failed"):
        ask(absent, dataset, tmp_path, "right", limit=3, retries=1)


# Concurrency and resuming ---------------------------------------------------------------------------------------------


def test_no_more_questions_at_once_than_allowed(server: Server, dataset: Dataset, tmp_path: Path) -> None:
    ask(server, dataset, tmp_path / "three", "pause", limit=12, concurrency=3)
    assert 2 <= server.stats()["most"] <= 3
    server.post("/clear")
    ask(server, dataset, tmp_path / "one", "pause", limit=4, concurrency=1)
    assert server.stats()["most"] == 1


def words(server: Server, data_dir: Path, out: Path, model: str, *more: str) -> list[str]:
    sizes = [f"--data.{key}={value}" for key, value in (("train", 300), ("val", 40), ("test", 50))]
    given = ["--domain", "sudoku-mini", *sizes, "--data-dir", str(data_dir), "--out", str(out), "--model", model]
    return ["eval-llm", *given, "--endpoint", server.url, "--concurrency", "3", "--limit", "12", *more]


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 300
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def start(arguments: list[str], says: Path | None = None) -> Any:
    """The command in a process of its own, forked so that it need not import torch again; `says` gets its stderr."""

    def run() -> None:
        if says is not None:
            sys.stderr = says.open("w", encoding="utf-8", buffering=1)
        os._exit(cli.main(arguments))

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    return process


def test_killed_and_resumed_no_answer_is_asked_for_twice(
    server: Server, dataset: Dataset, data_dir: Path, tmp_path: Path
) -> None:
    arguments = words(server, data_dir, tmp_path, "gate:5")
    process = start(arguments)
    until(lambda: (said := server.stats())["now"] == 3 and len(said["answers"]) == 5)  # at one moment
    until(lambda: len(rows(tmp_path)) == 5)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    until(lambda: server.stats()["now"] == 0)
    with (tmp_path / TRANSCRIPT).open("a", encoding="utf-8") as file:
        file.write('{"key": "0123", "answer": "ANSW')  # what a crash may leave
    server.post("/open")
    assert cli.main(arguments) == 0
    stats = server.stats()
    assert [len(kinds) for kinds in stats["answers"].values()] == [1] * 12, "each puzzle was answered once"
    assert sorted(stats["requests"].values()) == [1] * 9 + [2] * 3, "only those under way were asked for again"
    result = json.loads((tmp_path / RESULT).read_text(encoding="utf-8"))
    assert result["complete"] and result["splits"]["test"]["exact"]["value"] == 1 and len(rows(tmp_path)) == 12
    before = (tmp_path / TRANSCRIPT).read_bytes()
    assert cli.main(arguments) == 0 and sum(server.stats()["requests"].values()) == 15, "nothing left to ask"
    assert (tmp_path / TRANSCRIPT).read_bytes() == before
    assert cli.main([*arguments, "--limit", "20"]) == 0 and len(server.stats()["requests"]) == 20
    assert sum(server.stats()["requests"].values()) == 23, "a larger limit asks for the new ones only"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_waits_for_what_is_under_way(
    server: Server, dataset: Dataset, data_dir: Path, tmp_path: Path, number: signal.Signals
) -> None:
    arguments, says = words(server, data_dir, tmp_path / "out", "gate:5"), tmp_path / "stderr"
    process = start(arguments, says)
    until(lambda: (said := server.stats())["now"] == 3 and len(said["answers"]) == 5)  # at one moment
    os.kill(process.pid, number)
    until(lambda: "waiting for the questions under way" in says.read_text(encoding="utf-8"))
    server.post("/open")
    process.join()
    assert process.exitcode == 2 and len(rows(tmp_path / "out")) == 8
    assert cli.main(arguments) == 0
    assert (
        server.stats()["requests"] == dict.fromkeys(server.stats()["requests"], 1) and len(rows(tmp_path / "out")) == 12
    )


def test_a_folder_holds_one_evaluation_and_one_process(server: Server, dataset: Dataset, tmp_path: Path) -> None:
    ask(server, dataset, tmp_path, "right", limit=2)
    with pytest.raises(UserError, match="model 'right', now 'right,right'"):
        ask(server, dataset, tmp_path, "right,right", limit=2)
    with pytest.raises(UserError, match=r"parameters \{\}, now \{'temperature': 0.5\}"):
        ask(server, dataset, tmp_path, "right", limit=2, parameters={"temperature": 0.5})
    assert sum(server.stats()["requests"].values()) == 2
    with closing(Transcript(tmp_path / TRANSCRIPT)), pytest.raises(UserError, match="another process"):
        ask(server, dataset, tmp_path, "right", limit=2)


def test_an_answer_to_another_prompt_is_none(server: Server, dataset: Dataset, tmp_path: Path) -> None:
    """Should a later version word its prompts differently, its scores must not mix with old answers."""
    ask(server, dataset, tmp_path, "right", limit=2)
    asked = [replace(q, prompt=f"{q.prompt} Please.") for q in questions(dataset, "test", 2)]
    result = evaluate(LlmPlan("sudoku-mini", "right", {}), dataset, {"test": asked}, Endpoint(server.url), 1, tmp_path)
    assert result["tokens"]["answers"] == 2 and set(server.stats()["requests"].values()) == {2}


@pytest.mark.parametrize("line", ["{", "[" * 100_000], ids=["cut", "nested"])
def test_a_damaged_transcript_is_named(line: str, server: Server, dataset: Dataset, tmp_path: Path) -> None:
    ask(server, dataset, tmp_path, "right", limit=2)
    whole = (tmp_path / TRANSCRIPT).read_text(encoding="utf-8")
    (tmp_path / TRANSCRIPT).write_text(f"{line}\n{whole}", encoding="utf-8")
    with pytest.raises(UserError, match="damaged in line 1"):
        ask(server, dataset, tmp_path, "right", limit=2)


def test_old_answers_are_judged_anew(server: Server, dataset: Dataset, tmp_path: Path) -> None:
    """What counts is the raw answer, not an old verdict."""
    ask(server, dataset, tmp_path, "right", limit=2)
    lies = [{**row, "exact": False, "valid": False, "parsed": None} for row in rows(tmp_path)]
    (tmp_path / TRANSCRIPT).write_text("".join(json.dumps(row) + "\n" for row in lies), encoding="utf-8")
    assert ask(server, dataset, tmp_path, "right", limit=2)["splits"]["test"]["exact"]["value"] == 1


def test_attempts_make_pass_at_k(server: Server, dataset: Dataset, tmp_path: Path) -> None:
    """All first attempts are wrong, all second ones right."""
    result = ask(server, dataset, tmp_path, "wrong,right", limit=5, attempts=2, concurrency=1)
    score = result["splits"]["test"]
    assert score["valid"]["value"] == 0 and score["tasks"] == score["n"] == 5
    for reading in ("all_test_inputs", "fractional"):
        assert [score["passes"][reading][f"pass@{k}"]["value"] for k in (1, 2)] == [0, 1]


# The command ----------------------------------------------------------------------------------------------------------


def test_the_request_carries_what_was_given(
    server: Server, data_dir: Path, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-mine")
    more = ["--temperature", "0.7", "--max-tokens", "99", "--body", '{"top_p": 0.5}', "--api-key-env", "MY_KEY"]
    assert cli.main(words(server, data_dir, tmp_path, "right", *more)) == 0
    fields = {"model": "right", "temperature": 0.7, "max_tokens": 99, "top_p": 0.5}
    assert server.stats()["bodies"] == [fields] * 12 and server.stats()["keys"] == ["Bearer sk-mine"] * 12
    assert "sk-mine" not in all_text(tmp_path)
    assert all({**row["request"], "messages": 0} == {**fields, "messages": 0} for row in rows(tmp_path))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--split", "tset"], "unknown split of sudoku 'tset': did you mean 'test'"),
        (["--endpoint", "localhost:8000"], "is no address: write it as http://"),
        (["--endpoint", "http://[::1"], "is no address"),
        (["--body", "[1]"], "should be a JSON object"),
        (["--body", "[" * 100_000], "should be a JSON object"),
        (["--body", '{"messages": []}'], "should be a JSON object without"),
        (["--attempts", "2", "--temperature", "0"], "raise either"),
        (["--api-key-env", "NO_SUCH_VARIABLE"], "export it first"),
        (["--price-in", "1"], "give both"),
    ],
)
def test_user_errors_are_one_line(
    server: Server,
    data_dir: Path,
    dataset: Dataset,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    said: str,
) -> None:
    assert cli.main(words(server, data_dir, tmp_path, "right", *more)) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1 and not server.stats()["requests"]


def test_show_prompt_asks_nobody(data_dir: Path, dataset: Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--data.train=300", "--data.val=40", "--data.test=50"]
    assert cli.main(["eval-llm", "--show-prompt", "--domain", "sudoku-mini", *sizes, "--data-dir", str(data_dir)]) == 0
    first = questions(dataset, "test", 1)[0]
    assert capsys.readouterr().out == first.prompt + "\n"
    assert dataset.domain.format(first.inputs) in first.prompt and "ANSWER:" in first.prompt
