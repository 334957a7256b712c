"""ARC evaluation: from canvases to pass@k, the curve over votes, the blank-id control, published puzzle tables."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ponder.base.errors import UserError
from ponder.base.runtime import Runtime
from ponder.config.resolve import Config, resolve
from ponder.config.schema import ModelConfig
from ponder.data import Dataset, build
from ponder.domains.arc.augment import parse_name
from ponder.domains.arc.domain import Arc
from ponder.domains.arc.grids import crop, encode
from ponder.domains.arc.sources import ArcEvaluation
from ponder.domains.contract import Tokens
from ponder.evaluation.arc import chosen_votes, count_votes, predict, run_votes, score_arc
from ponder.evaluation.records import Settings, load_records
from ponder.evaluation.run import run
from ponder.evaluation.schema import ArcScore, VoteCounts
from ponder.evaluation.subject import EvalRequest, choose_data
from ponder.inference.weights import open_weights
from ponder.model.published import write_folder as write_imported
from ponder.model.reasoner import Carry, Reasoner, Step
from ponder.model.recurrence import States
from tests.support import golden
from tests.support.arc import numbers_of, undone
from tests.support.rounding import Said, sayings
from tests.support.runs import made_model, made_run

HERE = Runtime(torch.device("cpu"))
SMALL: dict[str, dict[str, Any]] = {
    "data": {"canvas": 10, "tasks": 8, "augmentations": 11, "val_tasks": 2, "conceptarc": "none"},
    "model": {"width": 16, "heads": 2, "expansion": 1.0, "h_cycles": 1, "l_cycles": 1, "h_horizon": 1, "l_horizon": 1,
              "max_steps": 2},
}  # fmt: skip


@cache
def small() -> Config:
    return resolve("arc1-mini", None, SMALL)


@pytest.fixture(scope="session")
def arc_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("arc")


@pytest.fixture(scope="session")
def arc_data(arc_dir: Path) -> Dataset:
    return Dataset.open(build(small().data, arc_dir))


def source_of(dataset: Dataset, split: str = "test") -> ArcEvaluation:
    source = dataset.source(split)
    assert isinstance(source, ArcEvaluation)
    return source


def val_sayings(model: Reasoner, arc_data: Dataset) -> list[Said]:
    source = source_of(arc_data, "val")
    index = np.arange(len(source))
    batch = source.fetch(index, index)
    inputs, task_ids = (torch.from_numpy(array.astype(np.int64)) for array in (batch.inputs, batch.task_ids))
    return sayings(model, inputs, task_ids, 2)


@pytest.fixture(scope="session")
def seed(arc_data: Dataset) -> int:
    """Of a run folder whose averaged weights leave no vote on val to rounding, and still say something."""
    for seed in range(22, 60):  # the first is one here, and a processor would have to round strangely to refuse it
        said = val_sayings(made_model(small(), seed + 100).eval(), arc_data)
        first, second = (s.logits.argmax(dim=-1) for s in said)
        if all(s.answers.all() for s in said) and len(second.unique()) > 3 and not torch.equal(first, second):
            return seed
    raise AssertionError("every seed has a tie")


# From canvas to pass@k ------------------------------------------------------------------------------------------------


def test_votes_equal_the_published_evaluator() -> None:
    stored, published = golden.arc_votes()
    score = count_votes(
        stored["name"].tolist(), stored["input"], stored["prediction"], stored["halt_logit"], True, published["tasks"],
        ks=(1, 2, 5, 10),
    )  # fmt: skip
    assert score.fractional == {int(k.split("@")[1]): v for k, v in published["fractional"].items()}
    for key, value in published["all_test_inputs"].items():
        assert score.all_test_inputs[int(key.split("@")[1])] == value
    assert score.submission == published["submission"]


def canvas(name: str, rows: list[list[int]]) -> Tokens:
    return encode(parse_name(name)[1].apply(np.array(rows, dtype=np.uint8)), 6)


def test_a_case_counted_by_hand() -> None:
    """Task `two`: the first input is right by votes, the second only as second candidate, by confidence."""
    tasks = {
        "two": {"test": [{"input": [[1, 2]], "output": [[2, 1]]}, {"input": [[3], [4]], "output": [[4], [3]]}]},
        "one": {"test": [{"input": [[5, 5], [0, 6]], "output": [[6]]}]},
    }
    cast = [
        ("two|||t1|||0987654321", [[1, 2]], [[2, 1]], -3.0),
        ("two|||t6|||0123456789", [[1, 2]], [[2, 1]], -3.0),
        ("two", [[1, 2]], [[9]], 3.0),
        ("two|||t7|||0132456789", [[3], [4]], [[4], [3]], 0.5),
        ("two|||t2|||0132456789", [[3], [4]], [[7]], 0.6),
        ("one|||t3|||0123456798", [[5, 5], [0, 6]], [[6]], -9.0),
    ]
    names = [name for name, *_ in cast]
    inputs, answers = (np.stack([canvas(c[0], c[i]) for c in cast]) for i in (1, 2))  # type: ignore[arg-type]
    logits = np.array([c[3] for c in cast])
    score = count_votes(names, inputs, answers, logits, True, tasks)
    assert score.all_test_inputs == {1: 0.5, 2: 1.0} and score.fractional == {1: 0.75, 2: 1.0}
    assert score.submission["two"][1] == {"attempt_1": [[7]], "attempt_2": [[4], [3]]}
    assert score.ranking["one"][0][0].confidence == pytest.approx(1 / (1 + np.exp(9)))
    assert count_votes(names, inputs, answers, logits, False, tasks).ranking["one"][0][0].confidence == -9


# Through a model whose answers are known ------------------------------------------------------------------------------


class Known(nn.Module):
    """The interface of a Reasoner. The task id says which augmentation an input is; the blank id says nothing.

    At step 1 it is right for task ids of tasks as they are and, of the others, for those in `knows`; from step 2 on it
    is right wherever it has an id. Where it is wrong it gives one and the same grid, in the task's own colours.
    """

    def __init__(self, source: ArcEvaluation, knows: set[int]) -> None:
        super().__init__()
        self.config = ModelConfig(width=8, heads=1, max_steps=1)
        every = source.fetch(np.arange(len(source)), np.zeros(len(source), dtype=np.int64))
        self.answer = {
            (int(i), row.tobytes()): label
            for i, row, label in zip(every.task_ids, every.inputs, every.labels, strict=True)
        }
        self.original = set(source.ids.tolist())
        self.knows = knows
        self.embed = torch.zeros(1, dtype=torch.float64)  # which no kernel reads
        self.register_buffer("table", torch.arange(int(every.task_ids.max()) + 1)[:, None].repeat(1, 8).float())

    def start(self, key: Tensor, dtype: torch.dtype = torch.float32) -> Carry:
        return Carry(States(None, None), torch.zeros_like(key), key)

    def forward(self, carry: Carry, inputs: Tensor, rows: Tensor, noise: float | None = None) -> Step:
        given = inputs.to(torch.uint8).numpy()
        wrong = encode(np.zeros((1, 1), dtype=np.uint8), 10)  # colour 0 stays under every augmentation
        out = []
        for row, number, step in zip(given, rows[:, 0].long().tolist(), carry.steps.tolist(), strict=True):
            right = number > 0 and (step > 0 or number in self.original or number in self.knows)
            out.append(self.answer[number, row.tobytes()] if right else wrong)
        logits = nn.functional.one_hot(torch.from_numpy(np.stack(out).astype(np.int64)), 12).float()
        q = torch.zeros(len(out))
        return Step(Carry(carry.states, carry.steps + 1, carry.key), logits, q, q, None)


def known_score(source: ArcEvaluation, domain: Arc, knows: set[int], limit: int | None = None) -> ArcScore:
    model: Any = Known(source, knows)
    return score_arc(run_votes(model, domain, source, Settings(2, 7, limit), HERE), domain, head=True).score


def test_votes_budget_curve_and_blank_id(arc_data: Dataset) -> None:
    source, domain = source_of(arc_data), arc_data.domain
    assert isinstance(domain, Arc)
    score = known_score(source, domain, set())
    value = {at.step: at.all_test_inputs.one.value for at in score.at_step}
    assert value == {1: 0.0, 2: 1.0}  # after the budget of 1 step one view of 12 is right, after 2 steps all are
    second = score.at_step[0].all_test_inputs.two.value
    assert second == 1.0  # the wrong grid first, the right one second
    assert score.blank_id.all_test_inputs.two.value == 0.0
    votes = [point.votes for point in score.curve]
    assert votes == [1, 10, 12] == [*votes[:-1], score.votes.most]
    assert [point.fractional.one.value for point in score.curve] == [1.0, 0.0, 0.0]
    assert (score.tasks, score.test_inputs) == (8, len(source.task)) and score.unmatched == 0
    for word in ("transductive", "12 augmentations", "ACT step 1", "pass@k", "all its test inputs", "fractional"):
        assert word in score.protocol


def test_votes_do_not_survive(arc_data: Dataset) -> None:
    """A model that knows nothing is not helped by one that was evaluated before."""
    source, domain = source_of(arc_data), arc_data.domain
    assert isinstance(domain, Arc)
    everything = set(range(domain.task_ids))
    full = known_score(source, domain, everything)
    assert full.at_step[0].all_test_inputs.one.value == 1.0
    again = known_score(source, domain, set())
    assert again.at_step[0].all_test_inputs.one.value == 0.0
    assert known_score(source, domain, everything) == full


def test_a_limit_keeps_whole_rounds_of_votes(arc_data: Dataset) -> None:
    source, domain = source_of(arc_data), arc_data.domain
    assert isinstance(domain, Arc)
    tests = len(source.task)
    with pytest.raises(UserError, match=f"at least {tests}"):
        chosen_votes(source, tests - 1)
    score = known_score(source, domain, set(), limit=tests)
    assert score.votes == VoteCounts(fewest=1, most=1, all=tests)
    assert score.at_step[0].all_test_inputs.one.value == 1.0


@pytest.mark.numeric
def test_two_ranks_predict_what_one_does(arc_data: Dataset, seed: int) -> None:
    source, domain = source_of(arc_data, "val"), arc_data.domain
    config = resolve("arc1-mini", None, {**SMALL, "model": {**SMALL["model"], "max_steps": 1}})
    model = made_model(config, seed + 100).eval()
    one = predict(model, domain, source, Settings(2, 64), HERE)
    others: list[Any] = []

    class Rank(Runtime):
        def gather_objects(self, value: Any) -> list[Any]:
            others.append(value)
            return list(others)

    for rank in (1, 0):
        here = Rank(torch.device("cpu"), rank, 2)
        two = predict(model, domain, source, Settings(1, 5), here)
    assert np.array_equal(two.index, np.arange(len(source))) and np.array_equal(two.records.index, two.index)
    assert np.array_equal(two.inputs, one.inputs) and np.array_equal(two.answers[1], one.answers[1])
    assert (np.abs(two.confidence[1] - one.confidence[1]) <= val_sayings(model, arc_data)[0].reach.numpy()).all()
    assert not np.array_equal(one.answers[1], one.answers[2])


# The command ----------------------------------------------------------------------------------------------------------


def test_the_command_writes_a_submission(
    arc_data: Dataset, arc_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from ponder.cli import main

    folder = made_run(small(), tmp_path / "r")
    assert main(["eval", str(folder), "--data-dir", str(arc_dir), "--device", "cpu", "--batch", "50"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "transductive" in shown and "blank id" in shown and "pass@2" in shown
    result = json.loads((folder / "eval/eval.json").read_text(encoding="utf-8"))
    source = source_of(arc_data)
    said = result["scores"]["ema"]["test"]
    submission = json.loads((folder / "eval" / said["arc"]["submission"]).read_text(encoding="utf-8"))
    assert said["arc"]["submission"] == "submission.json"
    assert {task: len(tests) for task, tests in submission.items()} == {
        task: len(pairs["test"]) for task, pairs in source.tasks().items()
    }
    assert all(set(attempt) == {"attempt_1", "attempt_2"} for tests in submission.values() for attempt in tests)
    assert said["n"] == len(source) == said["arc"]["votes"]["all"]
    val = result["scores"]["ema"]["val"]["arc"]
    assert val["votes"]["all"] == len(source_of(arc_data, "val")) and (folder / "eval" / val["submission"]).is_file()
    assert list(said["arc"]["label_rank"]) == source.names


def test_the_submission_is_the_majority_of_what_the_model_says(
    arc_data: Dataset, arc_dir: Path, tmp_path: Path, seed: int
) -> None:
    """Recounted from the model alone: one example at a time, augmentations undone by their names."""
    folder = made_run(small(), tmp_path / "r", seed)
    out = run(EvalRequest(str(folder), data_dir=arc_dir, splits=("val",), batch=9), HERE)
    written = json.loads((out / "submission-ema-val.json").read_text(encoding="utf-8"))
    source, model = source_of(arc_data, "val"), open_weights(folder).model
    votes: dict[tuple[str, int], dict[str, int]] = {}
    index = np.arange(len(source))
    batch, names, numbers = source.fetch(index, index), source.test_names(index), numbers_of(source, index)
    for row in index:
        carry = model.start(torch.zeros(1, dtype=torch.int64))
        for _ in range(2):
            given = torch.from_numpy(batch.inputs[row : row + 1].astype(np.int64))
            step = model(carry, given, model.table[batch.task_ids[row : row + 1]])
            carry = step.carry
        answer = step.logits[0].argmax(-1).to(torch.uint8).numpy()
        task, augmentation = parse_name(names[row])
        grid = json.dumps(undone(augmentation, crop(answer)).tolist())
        mine = votes.setdefault((task, int(numbers[row, 1])), {})
        mine[grid] = mine.get(grid, 0) + 1
    assert {(t, i) for t, tests in written.items() for i in range(len(tests))} == set(votes)
    assert max(max(cast.values()) for cast in votes.values()) > 2
    for (task, test), cast in votes.items():
        assert cast[json.dumps(written[task][test]["attempt_1"])] == max(cast.values())


# Task ids -------------------------------------------------------------------------------------------------------------


def test_an_imported_table_is_read_by_name(arc_data: Dataset, arc_dir: Path, tmp_path: Path, seed: int) -> None:
    """The same model, its puzzle table shuffled as another program numbers its tasks, scores the same."""
    own = made_run(small(), tmp_path / "own", seed)
    domain = arc_data.domain
    assert isinstance(domain, Arc)
    names = domain.identifiers(small().data.seed)
    order = [0, *(1 + np.random.default_rng(0).permutation(len(names) - 1)).tolist()]
    model = open_weights(own).model
    reach = float(val_sayings(model, arc_data)[1].reach.max())
    model.table = model.table[torch.tensor(order)]
    published = [names[i] if n % 2 else names[i].replace("|||", "_") for n, i in enumerate(order)]
    write_imported(model, tmp_path / "published", {"kind": "trm"}, published)
    preset = tmp_path / "own.yaml"
    preset.write_text(json.dumps({"extends": "arc1-mini", **SMALL}), encoding="utf-8")
    a = run(EvalRequest(str(own), data_dir=arc_dir, splits=("val",), steps=2), HERE)
    request = EvalRequest(
        str(tmp_path / "published"), domain=str(preset), data_dir=tmp_path / "data", splits=("val",), steps=2
    )
    b = run(request, HERE)
    one, other = (json.loads((f / "eval.json").read_text(encoding="utf-8")) for f in (a, b))

    def logits(result: dict[str, Any], file: Path) -> dict[tuple[str, int], float]:
        """By name: the file lists the augmentations of a task in another order."""
        source, records = source_of(Dataset.open(Path(result["data"]["path"])), "val"), load_records(file)
        tests = numbers_of(source, records.index)[:, 1].tolist()
        return dict(
            zip(zip(source.test_names(records.index), tests, strict=True), records.confidence[:, 1], strict=True)
        )

    q, q_other = logits(one, a / "records/ema-val.npz"), logits(other, b / "records/published-val.npz")
    assert q.keys() == q_other.keys() and max(abs(q[k] - q_other[k]) for k in q) <= reach < np.ptp(list(q.values()))
    scores = one["scores"]["ema"]["val"]["arc"], other["scores"]["published"]["val"]["arc"]
    assert scores[0]["at_step"] == scores[1]["at_step"] and scores[0]["label_rank"] == scores[1]["label_rank"]
    submissions = [
        (f / s).read_text(encoding="utf-8")
        for f, s in ((a, "submission-ema-val.json"), (b, "submission-published-val.json"))
    ]
    assert submissions[0] == submissions[1] and len(set(json.loads(submissions[0]))) == 2

    (tmp_path / "published/identifiers.json").write_text(json.dumps(["<blank>"]), encoding="utf-8")
    with pytest.raises(UserError, match=r"built from another identifiers\.json.*delete"):
        run(request, HERE)
    with pytest.raises(UserError, match="does not name 2 of the tasks of split val"):
        run(replace(request, data_dir=tmp_path / "other"), HERE)
    (tmp_path / "published/identifiers.json").unlink()
    with pytest.raises(UserError, match=r"no identifiers\.json.*import it again"):
        run(request, HERE)


def test_other_task_ids_are_refused(arc_data: Dataset, tmp_path: Path) -> None:
    opened = open_weights(made_run(small(), tmp_path / "r"))
    preset = tmp_path / "own.yaml"
    preset.write_text(
        json.dumps({"extends": "arc1-mini", **SMALL, "data": {**SMALL["data"], "eval_augmentations": 3}}),
        encoding="utf-8",
    )
    assert choose_data(opened, str(preset))[0].params.model_dump()["eval_augmentations"] == 3
    preset.write_text(
        json.dumps({"extends": "arc1-mini", **SMALL, "data": {**SMALL["data"], "augmentations": 5}}), encoding="utf-8"
    )
    with pytest.raises(UserError, match="numbers other tasks or augmentations"):
        choose_data(opened, str(preset))


def test_a_dense_model_votes_by_log_probability(arc_data: Dataset) -> None:
    sizes = {"width": 16, "heads": 2, "expansion": 1.0, "layers": 1}
    config = resolve("arc1-mini", "dense", {"data": SMALL["data"], "model": sizes})
    model: Reasoner = made_model(config)
    voted = run_votes(model, arc_data.domain, source_of(arc_data, "val"), Settings(1, 50), HERE)
    assert (voted.plain.confidence[1] < 0).all() and voted.budget == 1
    assert "token log-probability" in score_arc(voted, arc_data.domain, head=False).score.protocol
