"""A language model's row of the main table, filled by one command through what llama.cpp's server really said.

`llama_cpp.json` holds two exchanges, recorded on 2026-11-17 between `ponder eval-llm` and llama.cpp's server (as
xllamacpp 2026.10.11549 brings it), which served a model of random weights: an answer that was cut off, and one that a
grammar kept to the form. Only the prompts, which tests/llm/test_llm.py pins, were left out.
"""

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ponder import cli
from ponder.data import Dataset, folder_for
from ponder.reports.pages import gather
from ponder.reports.tables import entries, llm_tasks, page_of
from ponder.studies import spec
from ponder.studies.result import CellResult
from ponder.studies.store import Store
from tests.support.cells import N, raw_result
from tests.support.llm_server import solve

RECORDED = json.loads((Path(__file__).parent / "llama_cpp.json").read_text(encoding="utf-8"))
CUT, KEPT = RECORDED
SOLVES = "solves-sudoku"
"""A model by this name has right answers put into llama.cpp's words where it is asked about a 4x4 sudoku."""


class Replay(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    asked: list[dict[str, Any]]

    def log_message(self, *args: object) -> None:
        pass

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        (message,) = request.pop("messages")
        self.asked.append(request)
        name = request.pop("model")
        known = [each for each in RECORDED if each["request"] == {**request, "model": each["request"]["model"]}]
        status, said = (
            (200, known[0]["response"]) if known else (400, {"error": {"message": f"not recorded: {request}"}})
        )
        puzzle = re.search(r"Puzzle: ([.1-4]{16})\n", message["content"])
        if known and name == SOLVES and puzzle:
            said = json.loads(json.dumps(said))
            said["choices"][0]["message"]["content"] = f"ANSWER: {solve(puzzle[1])}"
        body = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def endpoint() -> Iterator[str]:
    Replay.asked = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Replay) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        server.shutdown()
        thread.join()


def test_one_command_fills_the_row_of_the_main_table(endpoint: str, tmp_path: Path) -> None:
    study, results = spec.load("main-results"), tmp_path / "results"
    words = ["--study", "main-results", "--scale", "smoke", "--endpoint", endpoint, "--limit", "1"]
    words += ["--max-tokens", str(CUT["request"]["max_tokens"]), "--data-dir", str(tmp_path / "data")]
    for model in ("random-llama", SOLVES):
        assert cli.main(["eval-llm", *words, "--model", model, "--results", str(results / "llm")]) == 0
    wanted = {task.task: task for task in llm_tasks(study, "smoke")}
    assert {task.task: task.attempts for task in llm_tasks(study, "paper")}["arc1"] == 2
    assert {task.attempts for task in wanted.values()} == {1}
    assert wanted["life"].splits == ("in_range", "plus_1", "plus_2", "plus_3", "plus_10", "unseen")

    # The trainings of the study, on the data that the language model was asked about.
    store = Store(results / "cells")
    for cell in study.cells("smoke"):
        if cell.variant == study.baseline:
            data_hash = Dataset.open(folder_for(tmp_path / "data", cell.config.data)).hash
            raw = raw_result(cell, lambda *_: np.zeros(N, dtype=np.bool_))
            store.write(CellResult.model_validate({**raw, "data_hash": data_hash}))
    found = entries(gather(study, "smoke", results, llm=True), page_of(study))
    rows = {(each.row, each.column): each.ours for each in found}
    for column in ("Arithmetic ID", "Life OOD", "Maze", "Sudoku"):
        garbage, right = rows["random-llama", column], rows[SOLVES, column]
        assert garbage is not None and right is not None
        assert garbage.value == 0 and right.value == (1 if column == "Sudoku" else 0), column

    # What is stored says what llama.cpp said.
    said = json.loads((results / "llm" / "random-llama-sudoku-smoke" / "llm.json").read_text(encoding="utf-8"))
    usage = CUT["response"]["usage"]
    assert said["splits"]["test"]["truncated"] == said["splits"]["test"]["unparseable"] == 1
    assert (said["tokens"]["in"], said["tokens"]["out"]) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert said["served_as"] == [CUT["response"]["model"]]

    # Answers that are there are not asked for again.
    before = len(Replay.asked)
    assert cli.main(["eval-llm", *words, "--model", SOLVES, "--results", str(results / "llm")]) == 0
    assert len(Replay.asked) == before


def test_an_answer_that_a_grammar_kept_to_the_form_is_read(endpoint: str, tmp_path: Path) -> None:
    more = {key: value for key, value in KEPT["request"].items() if key != "model"}
    words = ["--temperature", str(more.pop("temperature")), "--max-tokens", str(more.pop("max_tokens"))]
    words += ["--body", json.dumps(more), "--domain", "sudoku-mini", "--data.train", "5", "--limit", "2"]
    words += ["--endpoint", endpoint, "--model", "random-llama", "--data-dir", str(tmp_path), "--split", "test"]
    assert cli.main(["eval-llm", *words, "--out", str(tmp_path / "out")]) == 0
    lines = (tmp_path / "out" / "transcript.jsonl").read_text(encoding="utf-8").splitlines()
    for row in map(json.loads, lines):
        assert row["parsed"] == row["answer"].removeprefix("ANSWER: ").replace("/", "") and not row["valid"]
        assert row["finish"] == "stop" and row["problem"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "either --domain PRESET or --study NAME"),
        (["--domain", "sudoku-mini", "--study", "main-results"], "either --domain PRESET or --study NAME"),
        (["--study", "halting"], "no rows for language models"),
        (["--study", "main-results", "--split", "test"], "leave out --split"),
        (["--study", "main-results", "--show-prompt"], "name one instead of --study"),
    ],
)
def test_what_a_study_cannot_be_asked(words: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["eval-llm", *words, "--endpoint", "http://127.0.0.1:9/v1", "--model", "m"]) == 2
    said = capsys.readouterr().err
    assert problem in said and said.count("\n") == 1
