"""What the pages say can be typed: every command is read by its verb's parser, and those that take seconds are run with
less to do. The pages' first lines come first, so that a command finds what the one before it made."""

import json
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from ponder.cli import main
from ponder.commands import VERBS
from ponder.commands.completion import parser_of
from ponder.config.resolve import parse_overrides, resolve
from ponder.inference.solver import Shelf, Solver
from tests.support import ROOT

FIRST = ("README.md", "docs/tour.md")
PAGES = list(dict.fromkeys([*(ROOT / name for name in FIRST), *sorted((ROOT / "docs").glob("*.md"))]))
SMALL = "--data.train 200 --data.val 20 --data.test 20"
LESS = {
    "train": f"--max-updates 2 --train.eval_every 2 --train.save_every 2 --eval.examples 10 {SMALL}",
    "data": SMALL,
    "eval": "--limit 4 --steps 2",
    "policies": "--limit 4 --budget 2",
    "search": "--limit 2 --restarts 2 --steps 2",
    "trace": "--limit 2",
}
"""Verb -> what makes its work small."""
ELSEWHERE = {
    r"ponder (serve|mcp)\b": "goes on until it is stopped; tests/serve and test_wheel run them",
    r"ponder eval-llm .*--endpoint": "needs a server; tests/llm runs one",
    r"arc1-5x5-mini|ponder arc-submit": "takes minutes; tests/training/test_submission.py does a part",
    r"ponder (push|pull)|hf://": "needs the Hub; tests/zoo/test_travel.py has a stub of it",
    r"ponder import ": "needs a published checkpoint; test_import makes some",
    r"ponder (eval|solve) imported/": "needs a published checkpoint",
    r"torchrun ": "needs several processes; tests/training/test_launch starts them",
    r"--slurm|--scale paper": "needs a cluster or GPUs",
    r"ponder study (run|task)": "takes minutes; tests/studies runs studies at a smaller scale",
    r"ponder study report": "writes pages; tests/reports has its own",
    r"ponder study (show|status) my-noise": "a study of the page; tests/studies runs it",
    r"\brows\b|rows-mini": "a domain of the page; tests/domains/test_package.py types all of it",
    r"thin-trm": "a model of the page; test_bringing trains it",
    r"ponder zoo add": "measures thousands of examples; tests/zoo adds a model",
    r"ponder completion": "test_completion asks the shell",
    r"--train.trackers": "needs packages that are no part of ponder; tests/training/test_trackers runs them",
    r"ponder site": "needs npm; tests/serve/test_site.py",
    r"ponder cost all|ponder export": "half a minute; test_cost and test_export do a part",
    r"u000000300": "the checkpoint of a whole training",
}
"""Why a command is not run here."""


@dataclass(frozen=True)
class Example:
    page: str
    text: str

    @property
    def words(self) -> list[str]:
        """After `ponder`, with names for what the page leaves open."""
        names = {"RUN": "runs/sudoku-mini-s0", "RUN_A": "runs/sudoku-mini-s0", "RUN_B": "runs/no-gate"}
        after = self.text.partition("ponder ")[2].partition(" > ")[0]
        return [names.get(word, word) for word in shlex.split(after)]

    @property
    def smaller(self) -> list[str]:
        """With less to do."""
        verb, *words = self.words
        return [verb, *words, *([] if verb == "eval" and "--policy" in words else LESS.get(verb, "").split())]

    @property
    def why_not(self) -> str | None:
        return next((why for pattern, why in ELSEWHERE.items() if re.search(pattern, self.text)), None)


def examples() -> list[Example]:
    found = []
    for path in PAGES:
        text = path.read_text(encoding="utf-8").replace("\\\n", " ")
        for line in re.findall(r"^(?: {4})?((?:cat \S+ \| |torchrun .* -m )?ponder [a-z].*)$", text, flags=re.M):
            command = re.sub(r"\s+#\s.*", "", line)
            found += [Example(path.name, each.strip()) for each in command.split(";")]
    return list(dict.fromkeys(found))


EXAMPLES = examples()


def test_there_are_examples_and_every_reason_is_needed() -> None:
    assert len(EXAMPLES) > 60 and sum(each.why_not is None for each in EXAMPLES) > 20
    for pattern in ELSEWHERE:
        assert any(re.search(pattern, each.text) for each in EXAMPLES), f"no example is {pattern}"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: f"{each.page}: {each.text}")
def test_every_example_is_one_that_its_verb_reads(example: Example) -> None:
    verb, *words = example.words
    assert verb in VERBS
    if verb == "eval" and "--policy" in words:
        words = [word for word in words if word not in ("--policy", "all")]
    known, overrides = parser_of(verb).parse_known_args(words)
    changed = parse_overrides(overrides)
    preset = getattr(known, "preset", None)
    if verb in ("train", "presets") and preset and not re.search(r"\brows\b|thin-trm", example.text):
        resolve(preset, known.model, changed)  # refuses names and values that do not exist


def test_those_that_take_seconds_do_what_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    Path("runs/cells").mkdir(parents=True)
    puzzles = Path("puzzles.txt")
    puzzles.write_text("1... ..2. .3.. ...4\n...1 .... 2... .3..\n", encoding="utf-8")
    for example in EXAMPLES:
        if example.why_not is not None:
            continue
        verb, *words = example.words
        if example.text.startswith("cat "):
            monkeypatch.setattr("sys.stdin", puzzles.open(encoding="utf-8"))
        try:
            code = main(example.smaller)
        except SystemExit as end:
            code = int(end.code or 0)
        said = capsys.readouterr()
        unlearned = verb == "solve" and words[0].startswith("runs/")  # a model of two updates may answer wrongly
        random = "--random" in words  # and any model may fail on some puzzle
        assert code == 0 or (code == 1 and (unlearned or random)), f"{example}\n{said.out}\n{said.err}"
        assert "…" not in said.out, f"{example} does not fit 80 columns:\n{said.out}"
    assert Path("thinking.svg").is_file() and Path("thinking.gif").is_file() and Path("runs/no-gate").is_dir()
    shutil.rmtree(tmp_path, ignore_errors=True)


def test_the_puzzles_on_the_pages_are_solved() -> None:
    shelf = Shelf()
    rows = re.findall(r"^\| (\w+) \| `([^`]+)`", (ROOT / "docs" / "solvers.md").read_text(encoding="utf-8"), flags=re.M)
    asked = [(domain, text) for domain, text in rows if domain in ("sudoku", "maze", "life", "arithmetic")]
    assert len(asked) == 4
    for page in PAGES:
        for body in re.findall(r"--json '(\{.*?\})'", page.read_text(encoding="utf-8")):
            asked.append((json.loads(body)["model"], json.loads(body)["puzzle"]))
    assert len(asked) >= 6
    for wanted, puzzle in asked:
        solver, inputs = shelf.choose(wanted, puzzle)
        (answer,) = solver.solve_tokens([inputs])
        assert answer.verified, (wanted, puzzle, answer.note)


def test_the_python_of_the_readme_gives_what_it_says() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.S)
    *lines, last = block.strip().splitlines()
    shown, _, said = last.partition("  # ")
    scope: dict[str, object] = {}
    exec("\n".join(lines), scope)
    assert eval(shown, scope) == eval(said) and scope["Solver"] is Solver
