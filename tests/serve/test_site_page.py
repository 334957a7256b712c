"""The page of `ponder site` in a real browser, from a host that knows nothing of it: the answers are the Solver's, and
the rules judge as the domains do."""

import functools
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest

from ponder.base.errors import UserError
from ponder.cli import main
from ponder.domains.contract import Domain
from ponder.domains.registry import find
from ponder.inference.solver import Solver
from ponder.inference.weights import zoo_names
from ponder.serve.site import RULED, runtime_parts
from tests.support import ROOT, browser
from tests.support.rounding import DRAWS, PART, SLACK, nudged

if reason := browser.missing():
    pytest.skip(reason, allow_module_level=True)
pytest.importorskip("onnxruntime")

from playwright.sync_api import Browser, Page, expect

SOME = ("life-8x8", "sudoku-9x9", "arithmetic-3-5")
"""Without a server there is most to get wrong: steps that are asked for, symbols that are exchangeable, trees."""

MORE = {"life-8x8": ["/".join(["OO......"] * 2 + ["........"] * 6) + ":05"]}
"""Right from the first step on, and asked for five."""
LAST_DIGIT = 2e-6
"""Confidences are rounded to six digits, on both sides."""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None:
        """The tests say enough."""


@contextmanager
def hosted(folder: Path) -> Iterator[str]:
    """The folder at an address, with no headers but those of any static host."""
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def write(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    def written(*models: str) -> Path:
        try:
            runtime_parts(None)
        except UserError as error:
            pytest.skip(f"static site skipped: {error}")
        out = tmp_path_factory.mktemp("site") / "www"
        assert main(["site", str(out), *(word for model in models for word in ("--model", model))]) == 0
        return out

    return written


@pytest.fixture(scope="module")
def site(write: Callable[..., Path]) -> Iterator[str]:
    with hosted(write(*SOME)) as url:
        yield url


@contextmanager
def opened(chromium: Browser, url: str, link: str = "", **settings: Any) -> Iterator[Page]:
    """A page that must not complain, and must ask nobody else for anything."""
    context = chromium.new_context(**{"reduced_motion": "reduce", **settings})
    context.set_default_timeout(60_000)
    complaints: list[str] = []
    page = context.new_page()
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("request", lambda asked: None if asked.url.startswith(url) else complaints.append(asked.url))
    page.goto(f"{url}/{link}")
    yield page
    context.close()
    assert complaints == []


SOLVE = """async ([name, puzzles, fallback, steps]) => {
    const { Local } = await import(new URL("static/local.js", document.baseURI));
    const local = new Local();
    await local.models();
    const out = [];
    for (const puzzle of puzzles) {
        const trace = [];
        const body = { model: name, puzzle, fallback, steps };
        out.push({ ...(await local.solve(body, (step) => trace.push(step), new AbortController().signal)), trace });
    }
    return out;
}"""


def answers_alike(page: Page, name: str, count: int, steps: int | None = None) -> None:
    """That the browser answers like the Solver, step by step, wherever rounding cannot be why it does not: where nudges
    of all weights, larger than rounding, change no answer on the way."""
    solver = Solver(name, steps=steps, search=None if steps is None else 0)
    inputs = [*solver.domain.sample(11, count)[0], *map(solver.domain.parse, MORE.get(name, []))]
    here = page.evaluate(SOLVE, [name, [solver.domain.format(each) for each in inputs], None, steps])
    plain = [answer.as_data(trace=True) for answer in solver.solve_tokens(inputs)]
    nudges = []
    for draw in range(DRAWS):
        with nudged(solver.opened.model.state_dict().values(), draw, SLACK * PART):
            nudges.append([answer.as_data(trace=True) for answer in solver.solve_tokens(inputs)])
    compared = 0
    for theirs, wanted, *moved in zip(here, plain, *nudges, strict=True):
        if any((answers(each), each["note"]) != (answers(wanted), wanted["note"]) for each in moved):
            continue
        compared += 1
        assert answers(theirs) == answers(wanted)
        for key in ("answer", "text", "verified", "by", "note", "steps", "tries"):
            assert theirs[key] == wanted[key], f"{key} of {wanted['puzzle']}"
        sure = [[step["confidence"] for step in each["trace"]] for each in (theirs, wanted, *moved)]
        if None in sure[1]:
            assert sure[0] == sure[1]
        else:
            off = np.abs(np.array(sure[2:]) - sure[1]).max(axis=0) + LAST_DIGIT
            assert (np.abs(np.array(sure[0]) - sure[1]) <= off).all()
    assert compared > count / 2, f"rounding left {compared} of {count} to compare: choose other puzzles"


def answers(answered: dict[str, Any]) -> list[tuple[int, Any, bool]]:
    return [(step["step"], step["answer"], step["valid"]) for step in answered["trace"]]


@pytest.mark.parametrize("name", SOME)
def test_the_same_answers_as_the_solver(chromium: Browser, site: str, name: str) -> None:
    with opened(chromium, site) as page:
        answers_alike(page, name, 5, steps=8)


def test_a_refused_puzzle_is_supposed_about(chromium: Browser, site: str) -> None:
    solver = Solver("sudoku-9x9", search=None)
    found = [each for each in solver.solve_tokens(list(solver.domain.sample(12, 60)[0])) if each.tries]
    puzzle = solver.domain.format(min(found, key=lambda each: each.tries).inputs)
    with opened(chromium, site, "#" + urlencode({"model": "sudoku-9x9", "puzzle": puzzle})) as page:
        page.get_by_role("button", name="Solve").click()
        expect(page.locator("#headline")).to_have_text("Checked: correct")
        expect(page.locator("#detail")).to_contain_text("ound by supposing one more cell (try")
        expect(page.locator("#where")).to_have_text("Found by a search")
        expect(page.locator("#halting")).to_contain_text("and others were tried")
        page.get_by_role("slider").fill(str(solver.patience))
        expect(page.locator("#verdict")).not_to_contain_text("correct")
        (answer,) = page.evaluate(SOLVE, ["sudoku-9x9", [puzzle], None, solver.patience])
        assert not answer["verified"] and answer["tries"] == 0, "whoever gives a number of steps gets no more"


def test_likely_answers_are_looked_through_as_by_the_solver(chromium: Browser, site: str) -> None:
    solver = Solver("arithmetic-3-5", search=None)
    found = [each for each in solver.solve_tokens(list(solver.domain.sample(11, 200)[0])) if each.tries]
    assert len({each.tries for each in found}) > 2, "choose other puzzles"
    with opened(chromium, site) as page:
        here = page.evaluate(
            SOLVE, ["arithmetic-3-5", [solver.domain.format(each.inputs) for each in found], None, None]
        )
    assert all(each["verified"] for each in here)
    alike = [(a["text"], a["tries"], a["note"]) == (b.text, b.tries, b.note) for a, b in zip(here, found, strict=True)]
    assert sum(alike) > len(alike) / 2  # rounding may turn the order of two that are as likely


@pytest.mark.slow
def test_the_same_answers_as_the_solver_from_every_model(chromium: Browser, write: Callable[..., Path]) -> None:
    with hosted(write()) as url, opened(chromium, url) as page:
        for name in zoo_names():
            answers_alike(page, name, 30)


def test_a_visit_with_a_phone(chromium: Browser, site: str) -> None:
    phone: dict[str, Any] = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
    with opened(chromium, site, **phone) as page:
        expect(page.locator("#headline")).to_have_text("Ready when you are")
        for name in ("life", "sudoku"):
            page.locator(f"input[name=domain][value={name}]").check()
            page.locator("#random").tap()
            expect(page.locator("#headline")).to_have_text("Ready when you are")
            page.locator("#solve").tap()
            words = "Checked: correct" if name == "life" else re.compile("[Cc]orrect")
            expect(page.locator("#headline")).to_have_text(words, timeout=60_000)
            assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert not page.locator(".server").first.is_visible() and page.locator(".browser").first.is_visible()


def test_what_cannot_be_solved_is_said_in_the_words_of_the_server(chromium: Browser, site: str) -> None:
    solver = Solver("sudoku-9x9", fallback="exact", steps=2)
    clash, empty = "11" + "." * 79, "12345678." + "." * 17 + "9" + "." * 54
    with pytest.raises(UserError) as refused:
        solver.solve(clash)
    with opened(chromium, site, "#" + urlencode({"model": "sudoku-9x9", "puzzle": clash})) as page:
        page.get_by_role("button", name="Solve").click()
        expect(page.locator("#verdict.error")).to_contain_text(str(refused.value)[1:])
        (answer,) = page.evaluate(SOLVE, ["sudoku-9x9", [empty], "exact", 2])
        wanted = solver.solve(empty)
        assert (answer["verified"], answer["by"], answer["note"]) == (wanted.verified, wanted.by, wanted.note)
        assert "no solution" in answer["note"]


# The rules, without a network -----------------------------------------------------------------------------------------

JUDGE = """async ([domain, model, puzzles]) => {
    const [rules] = Object.values(await import(`/rules/${domain}.js`)).filter((each) => each.prototype?.check);
    const judge = new rules(model);
    return puzzles.map(({ text, answers }) => {
        const inputs = judge.read(text);
        const judged = answers.map((answer) => {
            const valid = judge.check(inputs, answer);
            const why = valid ? "" : judge.explain(inputs, answer);
            return [valid, why, judge.text(inputs, answer), judge.json(inputs, answer)];
        });
        return [inputs, judge.conflicts(inputs), judge.solutions(inputs, 2), judged];
    });
}"""
BOARDS: dict[str, list[dict[str, Any]]] = {
    "sudoku": [{"size": 4}, {"size": 6}, {"size": 9}],
    "maze": [{"height": 7, "width": 7, "min_path": 6}, {"height": 4, "width": 6, "min_path": 3, "unique": False}],
    "life": [
        {"min_side": 3, "max_side": 5, "boundary": "torus", "max_steps": 8},
        {"min_side": 8, "max_side": 8, "max_steps": 24},
    ],
    "arithmetic": [{"max_operands": 4, "align": "right"}, {"min_operands": 5, "max_operands": 6, "align": "left"}],
}


def puzzles_of(domain: Domain, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Puzzles with right answers, answers a little wrong, and nonsense."""
    out = []
    inputs = domain.sample(5, 8)[0]
    if domain.name == "sudoku":
        inputs[4:][rng.random((4, domain.seq_len)) < 0.3] = 1  # clues gone: several solutions
    for each in inputs:
        right = domain.solutions(each, 2)
        answers = [*right, each.copy()]
        for many in (1, 1, 2, 4, domain.seq_len):
            wrong = right[0].copy()
            wrong[rng.integers(domain.seq_len, size=many)] = rng.integers(len(domain.vocab), size=many)
            answers.append(wrong)
        if domain.name == "maze":  # paths that are broken, too long, or have company
            free = np.flatnonzero(each == 2)
            for many in (1, 2, len(free)):
                drawn = right[0].copy()
                drawn[rng.permutation(free)[:many]] = rng.integers(2, size=many) * 3 + 2
                answers.append(drawn)
            answers.append(np.where(each == 2, np.uint8(5), each))
        if domain.name == "arithmetic":  # operators where they belong, whatever they come to
            for _ in range(8):
                answers.append(np.where(each == 1, rng.integers(2, 6, size=domain.seq_len), 0).astype(np.uint8))
        out.append({"inputs": each, "answers": answers})
    return out


def test_every_domain_with_rules_in_the_browser_is_judged_here() -> None:
    assert set(BOARDS) == RULED


@pytest.mark.parametrize("name", BOARDS)
def test_the_rules_judge_as_the_domain_does(chromium: Browser, name: str) -> None:
    rng = np.random.default_rng(3)
    with hosted(ROOT / "ponder" / "serve" / "page") as url, chromium.new_page() as page:
        page.goto(f"{url}/dom.js")
        for params in BOARDS[name]:
            cls = find(name)
            domain = cls(cls.Params(**({"source": "generate"} if name in ("sudoku", "maze") else {}), **params))
            puzzles = puzzles_of(domain, rng)
            shape = {"vocabulary": domain.vocab, "inputs": {"tokens": {"shape": [1, domain.seq_len]}}}
            model = {"board": domain.board(), "params": domain.params.model_dump(mode="json"), "graph": shape}
            asked = [
                {"text": domain.format(each["inputs"]), "answers": [a.tolist() for a in each["answers"]]}
                for each in puzzles
            ]
            seen = set()
            said = page.evaluate(JUDGE, [name, model, asked])
            for each, (read, conflicts, solutions, judged) in zip(puzzles, said, strict=True):
                inputs = each["inputs"]
                assert read == inputs.tolist() and conflicts == domain.conflicts(inputs) == ""
                exact = domain.solutions(inputs, 2)
                assert len(solutions) == len(exact) and len({tuple(s) for s in solutions}) == len(exact)
                assert domain.check(np.stack([inputs] * len(exact)), np.array(solutions, dtype=np.uint8)).all()
                if len(exact) == 1 or name in ("maze", "arithmetic"):
                    assert solutions == [answer.tolist() for answer in exact]
                for answer, (valid, why, text, data) in zip(each["answers"], judged, strict=True):
                    assert valid == domain.check(inputs[None], answer[None])[0]
                    assert why == domain.explain(inputs, answer)
                    assert text == domain.format_answer(inputs, answer)
                    assert data == domain.answer_to_json(inputs, answer)
                    seen.add(valid)
            assert seen == {True, False}
