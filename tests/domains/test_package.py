"""A domain that is not ponder's own, installed into an environment of its own, goes the whole way."""

import asyncio
import json
import re
from itertools import groupby
from urllib.parse import urlencode
from xml.etree import ElementTree

import httpx
import pytest
from mcp import Client, StdioServerParameters

from tests.support import ROOT, browser
from tests.support.scratch import Scratch, served

PUZZLE = "1.../.2../..3./...4"
PUZZLES = "--data.train 300 --data.val 20 --data.test 30"
FEW = f"--train.updates 4 --train.batch 16 --train.eval_every 2 --train.save_every 2 --eval.examples 8 {PUZZLES}"


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Scratch:
    made = Scratch.make(tmp_path_factory.mktemp("scratch"))
    made.install(ROOT / "tests" / "support" / "latin")
    return made


@pytest.fixture(scope="module")
def trained(scratch: Scratch) -> Scratch:
    """With a run folder, `run`, of two processes."""
    scratch.ponder(f"train latin-mini {FEW} --processes 2 --out run")
    return scratch


def latin(text: str) -> bool:
    """Whether every row and column holds each digit once, and the clues of the puzzle are kept."""
    rows = text.split("/")
    kept = all(clue in (".", cell) for clue, cell in zip(PUZZLE, text, strict=True))
    return kept and all(sorted(unit) == list("1234") for unit in (*rows, *zip(*rows, strict=True)))


def test_it_is_listed_and_its_data_is_built_by_worker_processes(scratch: Scratch) -> None:
    out = scratch.ponder("domains", "presets latin-mini", "data build latin-mini --workers 2", "data show latin-mini")
    assert "latin-mini" in out and "Fill the square" in out and "size: 4" in out
    (folder,) = (scratch.folder / "data").glob("latin-*")
    verified = scratch.ponder(f"data verify {folder}", "cost latin-mini", "domain check latin")
    assert "labels accepted by the checker: train 200, val 200, test 200" in " ".join(verified.split())
    assert "latin keeps its contract" in verified


@pytest.fixture(scope="module")
def said(trained: Scratch) -> str:
    """What a run of it is asked for, in one process, which loads torch once."""
    return trained.ponder(
        *("eval run", "policies run --limit 8", "search run --limit 2 --restarts 2"),
        *(f"solve run {PUZZLE} --json", f"solve run {PUZZLE}"),
        f"solve run {PUZZLE} --svg thinking.svg --gif thinking.gif",
        *("zoo add run my-latin", f"solve latin {PUZZLE}", f"solve my-latin {PUZZLE}"),
    )


def test_a_run_of_it_is_evaluated_searched_and_compared(trained: Scratch, said: str) -> None:
    scores = json.loads((trained.folder / "run" / "eval" / "eval.json").read_text(encoding="utf-8"))
    assert "test" in json.dumps(scores) and "valid" in said.partition("\n{")[0]


def test_it_solves_as_text_json_and_pictures(trained: Scratch, said: str) -> None:
    (line,) = [line for line in said.splitlines() if line.startswith("{")]
    answer = json.loads(line)
    assert (
        answer["domain"] == "latin"
        and answer["puzzle"] == PUZZLE
        and answer["answer"]["grid"] == answer["text"].split("/")
    )
    assert answer["verified"] is latin(answer["text"])
    assert ElementTree.parse(trained.folder / "thinking.svg").getroot().tag.endswith("svg")
    assert (trained.folder / "thinking.gif").read_bytes()[:3] == b"GIF"


def test_it_is_put_to_language_models(scratch: Scratch) -> None:
    prompt = scratch.ponder("eval-llm --domain latin-mini --show-prompt")
    assert prompt.startswith("A Latin square is") and "4 rows of 4 cells with / between the rows" in prompt


STUDY = """\
title: Latin squares with and without a gate
asks: does the gate matter?
paper: null
factor: [model.gate]
baseline: gate
variants: {gate: {}, no-gate: {set: {model.gate: false}}}
scales: {mini: {tasks: [latin], seeds: [0]}}
"""


def test_it_is_studied(scratch: Scratch) -> None:
    studies = scratch.folder / "studies"
    studies.mkdir()
    words = FEW.replace("--", "").split()
    settings = ", ".join(f"{key}: {value}" for key, value in zip(words[::2], words[1::2], strict=True))
    (studies / "_tasks.yaml").write_text(
        f"latin:\n  mini: {{preset: latin-mini, set: {{{settings}}}}}\n", encoding="utf-8"
    )
    (studies / "latin-gate.yaml").write_text(STUDY, encoding="utf-8")
    scratch.ponder("study run latin-gate", "study status latin-gate")
    cells = [
        json.loads(path.read_text(encoding="utf-8")) for path in (scratch.folder / "results" / "cells").glob("*.json")
    ]
    assert len(cells) == 2 and "latin-gate" in json.dumps(cells)


@pytest.mark.usefixtures("said")
def test_a_zoo_model_of_it_is_the_users_own(trained: Scratch) -> None:
    assert (trained.folder / "share" / "ponder" / "zoo" / "my-latin" / "card.json").is_file()
    assert not (ROOT / "ponder" / "zoo" / "my-latin").exists()


def test_it_is_served_with_a_board_on_the_page(trained: Scratch) -> None:
    if reason := browser.missing():
        pytest.skip(reason)
    from playwright.sync_api import expect

    with served(trained, "--model", "run") as url, browser.launched() as chromium:
        said = httpx.post(f"{url}/v1/solve", json={"model": "latin", "puzzle": PUZZLE}, timeout=60).json()
        assert said["verified"] is latin(said["text"])
        page = chromium.new_context(reduced_motion="reduce").new_page()
        page.goto(url)
        expect(page.locator("#headline")).to_have_text("Ready when you are")
        expect(page.locator("#domains")).to_have_text("Latin")
        page.get_by_role("button", name="Clear").click()
        for i, symbol in enumerate(PUZZLE.replace("/", "")):
            if symbol != ".":
                page.locator(".cell").nth(i).click()
                page.keyboard.press(symbol)
        expect(page).to_have_url(re.compile(re.escape(urlencode({"puzzle": PUZZLE})) + "$"))
        page.get_by_role("button", name="Solve").click()
        expect(page.locator("#headline")).to_have_text("Checked: correct" if said["verified"] else "Not correct")
        assert page.locator(".cell").all_inner_texts() == list(said["text"].replace("/", ""))
        expect(page.locator("#fallback")).to_be_disabled()


def test_it_is_a_tool_for_language_models(trained: Scratch) -> None:
    async def run() -> None:
        server = StdioServerParameters(
            command=str(trained.python),
            args=["-m", "ponder", "mcp", "--model", "run"],
            cwd=trained.folder,
            env=trained.environment,
        )
        async with Client(server) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert set(tools) == {"solve_latin", "list_solvers"} and "4x4 grids" in str(
                tools["solve_latin"].description
            )
            drawing = "\n".join(" ".join(row) for row in PUZZLE.split("/"))
            for grid in (
                PUZZLE.split("/"),
                drawing,
                [[None if c == "." else int(c) for c in row] for row in PUZZLE.split("/")],
            ):
                result = await client.call_tool("solve_latin", {"grid": grid})
                data = result.structured_content
                assert isinstance(data, dict) and data["verified"] is latin("/".join(data["grid"]))
            bad = await client.call_tool("solve_latin", {"grid": ["12", "21"]})
            assert bad.is_error and "2x2 cells" in str(bad.content)

    asyncio.run(run())


def test_the_page_of_the_manual_holds(scratch: Scratch) -> None:
    """docs/domains.md: every command of its first block, in order, with fewer puzzles."""
    block = (ROOT / "docs" / "domains.md").read_text(encoding="utf-8").partition("```sh\n")[2].partition("```")[0]
    lines = [line.partition("#")[0].split() for line in block.splitlines()]
    assert len(lines) >= 8
    (training,) = [words for words in lines if words[:2] == ["ponder", "train"]]
    training += PUZZLES.split()
    for program, group in groupby(lines, key=lambda words: words[0]):
        given = [words[1:] for words in group]
        if program == "ponder":
            scratch.ponder(*(" ".join(words) for words in given))
        for words in given:
            if program == "pip":
                assert words[0] == "install"
                scratch.install(*reversed(words[1:]))
            elif program == "pytest":
                scratch.run("-m", "pytest", "-q", "-p", "no:cacheprovider", *words)
            else:
                assert program == "ponder"
    assert (scratch.folder / "thinking.svg").is_file()
