"""ARC's votes, against the published evaluator and cases small enough to count by hand."""

from typing import Any

import numpy as np
import pytest

from ponder.base.errors import UserError
from ponder.domains.arc.augment import parse_name
from ponder.domains.arc.grids import encode
from ponder.domains.arc.votes import Predictions, score_votes
from ponder.domains.contract import Ints
from tests.support import golden
from tests.support.arc import evaluation


def test_votes_agree_with_the_published_evaluator() -> None:
    stored_, published = golden.arc_votes()
    predictions = Predictions(
        names=stored_["name"].tolist(),
        inputs=stored_["input"],
        predicted=stored_["prediction"],
        confidence=1 / (1 + np.exp(-stored_["halt_logit"].astype(np.float64))),
    )
    score = score_votes(predictions, published["tasks"], ks=(1, 2, 5, 10))
    assert score.fractional == {int(k.split("@")[1]): v for k, v in published["fractional"].items()}
    for key, value in published["all_test_inputs"].items():
        assert score.all_test_inputs[int(key.split("@")[1])] == value
    assert score.submission == published["submission"]
    assert score.unmatched == 0

    order = np.random.default_rng(0).permutation(558)
    again = score_votes(reordered(predictions, order), published["tasks"], ks=(1, 2, 5, 10))
    assert (again.fractional, again.submission, again.label_rank) == (
        *(score.fractional, score.submission, score.label_rank),
    )


def reordered(some: Predictions, order: Ints) -> Predictions:
    names = [some.names[i] for i in order]
    return Predictions(names, some.inputs[order], some.predicted[order], some.confidence[order])


TASKS: dict[str, Any] = {
    "two_t1": {
        "test": [{"input": [[1, 2]], "output": [[2, 1]]}, {"input": [[3], [4]], "output": [[4], [3]]}],
    },
    "one": {"test": [{"input": [[5, 5], [0, 6]], "output": [[6]]}]},
}


def vote(name: str, given_: list[list[int]], answer: list[list[int]], confidence: float) -> Any:
    _, augmentation = parse_name(name)
    inputs, predicted = (encode(augmentation.apply(np.array(g, dtype=np.uint8)), 30) for g in (given_, answer))
    return name, inputs, predicted, confidence


def votes(*cast: Any) -> Predictions:
    """Of what `vote` gives."""
    names, inputs, predicted, confidence = zip(*cast, strict=True)
    return Predictions(names, np.stack(inputs), np.stack(predicted), np.array(confidence))


NOTHING = Predictions([], np.zeros((0, 900), np.uint8), np.zeros((0, 900), np.uint8), np.zeros(0))


def small_case() -> Predictions:
    a, b = TASKS["two_t1"]["test"]
    (c,) = TASKS["one"]["test"]
    return votes(
        # the right grid has most votes, in different orientations and colours
        vote("two_t1", a["input"], a["output"], 0.1),
        vote("two_t1|||t1|||0987654321", a["input"], a["output"], 0.1),
        vote("two_t1_t6_0213456789", a["input"], [[9]], 0.9),
        # one vote each: the more confident, wrong, grid comes first
        vote("two_t1|||t7|||0132456789", b["input"], b["output"], 0.4),
        vote("two_t1|||t2|||0132456789", b["input"], [[7]], 0.5),
        # third place
        vote("one|||t3|||0123456798", c["input"], [[1]], 0.2),
        vote("one|||t4|||0123456798", c["input"], [[1]], 0.2),
        vote("one|||t5|||0123456798", c["input"], [[2]], 0.9),
        vote("one|||t1|||0123456798", c["input"], c["output"], 0.8),
        # belong to nothing
        vote("other", a["input"], a["output"], 1.0),
        vote("one", a["input"], c["output"], 1.0),
    )


def test_small_voting_case() -> None:
    score = score_votes(small_case(), TASKS, ks=(1, 2, 3))
    assert score.label_rank == {"two_t1": [1, 2], "one": [3]}
    assert score.fractional == {1: 0.25, 2: 0.5, 3: 1.0}
    assert score.all_test_inputs == {1: 0.0, 2: 0.5, 3: 1.0}
    assert score.submission == {
        "two_t1": [
            {"attempt_1": [[2, 1]], "attempt_2": [[9]]},
            {"attempt_1": [[7]], "attempt_2": [[4], [3]]},
        ],
        "one": [{"attempt_1": [[1]], "attempt_2": [[2]]}],
    }
    assert score.unmatched == 2
    best = score.ranking["one"][0][0]
    assert (best.grid.tolist(), best.votes) == ([[1]], 2) and best.confidence == pytest.approx(0.2)


def test_votes_do_not_survive_and_their_order_does_not_matter() -> None:
    first = score_votes(small_case(), TASKS)
    assert score_votes(small_case(), TASKS).submission == first.submission
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(11)
        again = score_votes(reordered(small_case(), order), TASKS)
        assert (again.submission, again.label_rank) == (first.submission, first.label_rank)
    nothing = score_votes(NOTHING, TASKS)
    assert nothing.fractional == {1: 0.0, 2: 0.0}
    assert nothing.submission["one"] == [{"attempt_1": [], "attempt_2": []}]


def test_ties_identical_inputs_and_missing_predictions() -> None:
    tied = [vote("one", TASKS["one"]["test"][0]["input"], [[c]], 0.5) for c in (8, 3, 6)]
    for order in ((0, 1, 2), (2, 1, 0)):
        score = score_votes(votes(*(tied[i] for i in order)), {"one": TASKS["one"]})
        assert score.submission["one"] == [{"attempt_1": [[3]], "attempt_2": [[6]]}]
    twins = {"t": {"test": [{"input": [[1]], "output": [[2]]}, {"input": [[1]], "output": [[3]]}]}}
    score = score_votes(votes(vote("t", [[1]], [[2]], 0.9), vote("t", [[1]], [[3]], 0.1)), twins, ks=(1, 2))
    assert score.label_rank == {"t": [1, 2]}
    assert (score.fractional, score.all_test_inputs) == ({1: 0.5, 2: 1.0}, {1: 0.0, 2: 1.0})
    # a test input nobody answered keeps its place in the submission
    half = score_votes(votes(vote("two_t1", [[3], [4]], [[1]], 0.5)), {"two_t1": TASKS["two_t1"]})
    assert half.submission["two_t1"] == [
        {"attempt_1": [], "attempt_2": []},
        {"attempt_1": [[1]], "attempt_2": [[1]]},
    ]
    with pytest.raises(UserError, match="no tasks"):
        score_votes(NOTHING, {})


def test_labels_as_predictions_solve_every_task() -> None:
    for split in ("val", "test"):
        source = evaluation(split)
        index = np.arange(len(source))
        batch = source.fetch(index, index)
        predictions = Predictions(source.test_names(index), batch.inputs, batch.labels, np.ones(len(index)))
        score = score_votes(predictions, source.tasks())
        assert score.all_test_inputs == {1: 1.0, 2: 1.0} and score.unmatched == 0
