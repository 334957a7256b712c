"""Evaluation: counting, metrics, what it leaves alone, what it refuses, and the comparison of two runs."""

import json
import os
import random
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from ponder import checkpoint, data
from ponder.base import stats
from ponder.base.errors import UserError
from ponder.base.runtime import Runtime
from ponder.cli import main as ponder_main
from ponder.config.resolve import Config, resolve
from ponder.data import Dataset
from ponder.domains.contract import ArraySource, Bools, Domain, Tokens
from ponder.evaluation import diff
from ponder.evaluation import records as evaluate
from ponder.evaluation.records import (
    Judge,
    Records,
    Settings,
    auroc,
    calibration,
    load_records,
    run_split,
    save_records,
    summarise,
)
from ponder.evaluation.run import Asked, default_folder, ood_means, run
from ponder.inference.engine import Engine, Full, Seen
from ponder.inference.weights import open_weights
from ponder.model.published import write_folder as write_imported
from ponder.model.reasoner import Reasoner
from tests.conftest import tiny
from tests.support.rounding import Said, agree, limits, sayings

HERE = Runtime(torch.device("cpu"))


def made_model(config: Config, seed: int = 0) -> Reasoner:
    """Random weights, such that answers and halting change with the input and from step to step."""
    torch.manual_seed(seed)
    domain = config.data.make()
    model = Reasoner(config.model, len(domain.vocab), domain.seq_len, domain.task_ids).requires_grad_(False)
    for parameter in model.parameters():
        parameter.mul_(1.5)
    model.embed.mul_(8)
    for name in ("init_h", "init_l")[: config.model.states]:
        getattr(model, name).mul_(0.1)
    model.head.weight[0] = 0  # padding is not what it says
    if model.q_head is not None:
        torch.nn.init.normal_(model.q_head.weight, std=0.5)
        torch.nn.init.zeros_(model.q_head.bias)
    model.table.normal_()
    return model


def made_run(config: Config, folder: Path, seed: int = 0) -> Path:
    """A run folder with a checkpoint of random weights, EMA and online."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config.flat()), encoding="utf-8")
    for name, number in (("weights", seed), ("ema", seed + 100)):
        tensors = {k: v for k, v in made_model(config, number).state_dict().items() if not k.startswith("high.")}
        checkpoint.write_tensors(checkpoint.aside(folder / "best"), name, tensors)
    checkpoint.complete(folder / "best", {"update": 7})
    return folder


def with_right_answers(model: Reasoner, inputs: Tokens, labels: Tokens, steps: int) -> Tokens:
    """Labels of which some are what the model says at some step, so that no score is trivially 0."""
    seen: list[Seen] = []
    Engine(model, tiny().data.make(), len(inputs), Full(), steps).run(inputs, watch=seen.append)
    rng = np.random.default_rng(0)
    out = labels.copy()
    for row in range(len(out)):
        says = np.where(labels[row] != 0, seen[rng.integers(steps)].answers[row], 0)
        if rng.random() < 0.6 and ((says != 0) == (labels[row] != 0)).all():
            out[row] = says
    return out


def slow(model: Reasoner, domain: Domain, inputs: Tokens, label: Tokens, steps: int) -> Iterator[dict[str, Any]]:
    """One example by itself, judged position by position."""
    carry = model.start(torch.zeros(1, dtype=torch.int64))
    for _ in range(steps):
        step = model(carry, torch.tensor(inputs[None].astype(np.int64)), model.table[:1])
        carry = step.carry
        answer = step.logits[0].argmax(-1).tolist()
        hits = [a == b for a, b in zip(answer, label.tolist(), strict=True) if b != 0]
        q_continue = 0.0 if step.q_continue is None else float(step.q_continue[0])
        assert step.q_halt is not None
        yield {
            "exact": all(hits),
            "valid": all(hits) or bool(domain.check(inputs[None], np.array([answer], dtype=np.uint8))[0]),
            "token": sum(hits) / len(hits),
            "q_halt": float(step.q_halt[0]),
            "margin": float(step.q_halt[0]) - q_continue,
        }


def told(model: Reasoner, inputs: Tokens, steps: int) -> list[Said]:
    """What the model says of each puzzle, and of what rounding can turn nothing."""
    return sayings(model, torch.from_numpy(inputs.astype(np.int64)), torch.zeros(len(inputs), dtype=torch.int64), steps)


def mostly(sure: list[Said]) -> bool:
    """Whether there was something to compare."""
    return min(float(s.answers.float().mean()) for s in sure) > 0.8


# Counting -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preset", "size", "batch", "halting"),
    [("sudoku-mini", 23, 7, "halt+continue"), ("sudoku-mini", 5, 16, "halt"), ("arithmetic-mini", 17, 6, "halt")],
)
def test_records_are_what_each_example_does_alone(preset: str, size: int, batch: int, halting: str) -> None:
    """Sizes that do not divide, padded rows, both halting rules."""
    model_config = {**tiny().flat()["model"], "max_steps": 3, "halting": halting, "key_mask": preset != "sudoku-mini"}
    config = resolve(preset, None, {"model": model_config})
    domain, model = config.data.make(), made_model(config).eval()
    inputs, labels = domain.sample(3, size)
    labels = with_right_answers(model, inputs, labels, 4)
    assert preset == "sudoku-mini" or (labels == 0).any()
    records = run_split(model, domain, ArraySource({"inputs": inputs, "labels": labels}), Settings(4, batch), HERE)
    assert records.index.tolist() == list(range(size)) and records.steps == 4
    sure = told(model, inputs, 4)
    for row in range(size):
        for step, said in enumerate(slow(model, domain, inputs[row], labels[row], 4)):
            if sure[step].answers[row]:
                assert records.exact[row, step] == said["exact"]
                assert records.valid[row, step] == said["valid"]
                assert records.token[row, step] == np.float32(said["token"])
            assert records.halts[row, step] == (said["margin"] > 0) or not sure[step].halting[row]
            assert abs(records.confidence[row, step] - said["q_halt"]) <= sure[step].reach[row]
    assert mostly(sure)
    for column in (records.exact, records.halts):
        assert 0 < column.mean() < 1


def test_positions_without_a_label_do_not_count() -> None:
    domain = resolve("arithmetic-mini").data.make()
    inputs, labels = domain.sample(0, 40)
    rng = np.random.default_rng(0)
    wrong = rng.random(labels.shape) < 0.1
    answers = np.where(wrong | (labels == 0), rng.integers(0, 3, labels.shape), labels).astype(np.uint8)
    exact, _, token = Judge(domain, inputs, labels)(answers)
    for row in range(40):
        hits = [a == b for a, b in zip(answers[row].tolist(), labels[row].tolist(), strict=True) if b != 0]
        assert exact[row] == all(hits) and token[row] == pytest.approx(sum(hits) / len(hits))
    assert 0.2 < exact.mean() < 0.95


def agree_where_sure(a: Records, b: Records, sure: list[Said]) -> None:
    assert mostly(sure)
    for step, said in enumerate(sure):
        assert (a.exact[:, step] == b.exact[:, step])[said.answers.numpy()].all()
        assert (a.halts[:, step] == b.halts[:, step])[said.halting.numpy()].all()
        assert (np.abs(a.confidence[:, step] - b.confidence[:, step]) <= said.reach.numpy()).all()


def test_another_batch_size_changes_nothing(dataset: Dataset) -> None:
    model = made_model(tiny()).eval()
    batch = dataset.source("train").fetch(np.arange(300), np.zeros(300, np.int64))
    inputs = torch.from_numpy(batch.inputs.astype(np.int64))

    def logits(size: int) -> torch.Tensor:
        parts = [inputs[at : at + size] for at in range(0, 300, size)]
        starts = [model.start(torch.zeros(len(p), dtype=torch.int64)) for p in parts]
        rows = model.table[torch.zeros(300, dtype=torch.int64)]
        return torch.cat([model(c, p, rows[: len(p)]).logits for c, p in zip(starts, parts, strict=True)])

    agree([logits(7)], [logits(300)], limits(lambda: [logits(300)], model.state_dict().values()))
    labels = with_right_answers(model, batch.inputs, batch.labels, 4)
    source = ArraySource({"inputs": batch.inputs, "labels": labels})
    a, b = (run_split(model, dataset.domain, source, Settings(4, size), HERE) for size in (7, 300))
    agree_where_sure(a, b, told(model, batch.inputs, 4))
    assert a.exact.any()


def test_evaluation_changes_nothing(dataset: Dataset) -> None:
    model = made_model(tiny()).train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    states = torch.get_rng_state(), str(np.random.get_state()), random.getstate()
    first, again = (run_split(model, dataset.domain, dataset.source("test"), Settings(5, 16), HERE) for _ in range(2))
    still = run_split(made_model(tiny()).eval(), dataset.domain, dataset.source("test"), Settings(5, 16), HERE)
    assert model.training and all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1:] == (str(np.random.get_state()), random.getstate())
    for name in ("index", *evaluate.COLUMNS):
        assert np.array_equal(getattr(first, name), getattr(again, name)), name
        assert np.array_equal(getattr(first, name), getattr(still, name)), name  # without dropout and noise


def test_a_limit_spreads_over_the_split(dataset: Dataset) -> None:
    records = run_split(made_model(tiny()), dataset.domain, dataset.source("test"), Settings(1, 16, limit=7), HERE)
    assert records.index.tolist() == [0, 8, 16, 24, 32, 40, 49]


# Metrics --------------------------------------------------------------------------------------------------------------


def random_records(n: int = 60, steps: int = 6, seed: int = 0) -> Records:
    rng = np.random.default_rng(seed)
    exact = rng.random((n, steps)) < 0.4
    return Records(
        index=np.arange(n),
        exact=exact,
        valid=exact | (rng.random((n, steps)) < 0.2),
        token=rng.random((n, steps)).astype(np.float32),
        confidence=np.round(rng.normal(size=(n, steps)) + exact, 1).astype(np.float32),
        halts=rng.random((n, steps)) < 0.2,
    )


def test_ways_to_answer_against_brute_force() -> None:
    r = random_records()
    said = summarise(r, budget=4, head=True)
    for end, steps in (("to_budget", 4), ("to_end", 6)):
        for m in ("exact", "valid", "token"):
            rows = [row[:steps].tolist() for row in getattr(r, m)]
            q = [row[:steps].tolist() for row in r.confidence]
            halts = [row[:steps].tolist() for row in r.halts]
            at = [row.index(True) if True in row else steps - 1 for row in halts]
            confident = [row[qs.index(max(qs))] for row, qs in zip(rows, q, strict=True)]
            by_step = [sum(row[s] for row in rows) / 60 for s in range(steps)]
            assert said[end]["final"][m]["value"] == pytest.approx(by_step[-1])
            assert said[end]["best_full"][m]["value"] == pytest.approx(sum(confident) / 60)
            assert said[end]["best_step"][m]["value"] == pytest.approx(max(by_step))
            assert said[end]["best_step"][m]["step"] == by_step.index(max(by_step)) + 1
            assert said["steps"][m]["value"][:steps] == pytest.approx(by_step)
            halting = said[end]["halting"]
            assert halting[m]["value"] == pytest.approx(sum(row[i] for row, i in zip(rows, at, strict=True)) / 60)
            assert halting["mean_step"] == pytest.approx(sum(at) / 60 + 1)
            assert halting["halted"] == pytest.approx(sum(True in row for row in halts) / 60)
            if m != "token":
                assert said[end]["any_step"][m]["value"] == pytest.approx(sum(any(row) for row in rows) / 60)
    assert "to_budget" not in summarise(r, budget=7, head=False)
    assert summarise(r, budget=7, head=False)["to_end"]["halting"] is None


def test_wilson_by_hand() -> None:
    """8 of 10: (0.8 + z²/20 ± z sqrt(0.016 + z²/400)) / (1 + z²/10), z = 1.96; 0 of 20 reaches up to z² / (20 + z²)."""
    some = stats.share(0.8, 10)
    assert (some["low"], some["high"]) == (pytest.approx(0.490162, abs=1e-5), pytest.approx(0.943318, abs=1e-5))
    none, every = stats.share(0.0, 20), stats.share(np.array([1.0]), 20)
    assert none["low"] == 0 and none["high"] == pytest.approx(0.161125, abs=1e-5)
    assert every["high"] == [1.0] and every["low"] == [pytest.approx(1 - 0.161125, abs=1e-5)]


def test_auroc_and_calibration_against_brute_force() -> None:
    r = random_records(seed=4)
    q, right = r.confidence.ravel(), r.exact.ravel()
    pairs = [(x > y) + 0.5 * (x == y) for x in q[right] for y in q[~right]]
    assert 0.6 < np.mean(pairs) < 0.95 and len(set(q.tolist())) < len(q) / 2
    assert auroc(q, right) == pytest.approx(np.mean(pairs))
    assert auroc(q, np.ones(len(q), bool)) is None
    said = calibration(q, right)
    p = [1 / (1 + np.exp(-float(x))) for x in q]
    assert said["brier"] == pytest.approx(np.mean([(a - b) ** 2 for a, b in zip(p, right, strict=True)]))
    error = 0.0
    for number in range(10):
        inside = [i for i, x in enumerate(p) if number / 10 <= x < (number + 1) / 10]
        found = said["bins"][number]
        assert found["n"] == len(inside)
        if inside:
            accuracy, confidence = np.mean(right[inside]), np.mean([p[i] for i in inside])
            assert (found["accuracy"], found["confidence"]) == (pytest.approx(accuracy), pytest.approx(confidence))
            error += len(inside) / len(p) * abs(accuracy - confidence)
    assert said["ece"] == pytest.approx(error)


def _first_step(model: Reasoner) -> tuple[Seen, Bools]:
    engine = Engine(model, tiny().data.make(), 2)
    for _ in range(2):
        engine.admit(np.ones(16, np.uint8))
    return engine.advance()


def test_a_sure_or_diverged_head_is_still_counted() -> None:
    said = calibration(np.array([np.inf, -np.inf, 800.0, -800.0]), np.array([True, False, True, False]))
    assert said["brier"] == 0 and said["auroc"] == 1 and said["bins"][9]["n"] == 2
    model = made_model(tiny())
    assert model.q_head is not None
    model.q_head.bias.fill_(torch.nan)
    one, _ = _first_step(model)
    assert (one.confidence == -np.inf).all() and not one.halts.any()


def test_records_survive_the_disk(tmp_path: Path) -> None:
    r = random_records(n=33, steps=11)
    save_records(r, tmp_path / "r.npz")
    back = load_records(tmp_path / "r.npz")
    for name in ("index", *evaluate.COLUMNS):
        assert np.array_equal(getattr(back, name), getattr(r, name))
        assert getattr(back, name).dtype == getattr(r, name).dtype
    with np.load(tmp_path / "r.npz") as stored:  # as it was before there were versions
        columns = {{"confidence": "q_halt"}.get(k, k): v for k, v in stored.items() if k != "version"}
    np.savez_compressed(tmp_path / "old.npz", **columns)
    assert np.array_equal(load_records(tmp_path / "old.npz").confidence, r.confidence)


def test_ood_mean_is_unweighted_and_over_all_ood_splits() -> None:
    domain = resolve("life-mini").data.make()
    sizes = {"val": 10, "in_range": 20, "plus_1": 30, "plus_2": 60, "plus_3": 90, "plus_10": 15, "unseen": 45}
    scores = {s: summarise(random_records(n, seed=n), 4, True) for s, n in sizes.items()}
    said = ood_means(scores, domain)["ood_mean"]
    ood = ("plus_1", "plus_2", "plus_3", "plus_10", "unseen")
    for end in ("to_budget", "to_end"):
        for way in ("final", "best_full", "any_step"):
            each = [scores[s][end][way]["exact"]["value"] for s in ood]
            assert said[end][way]["exact"]["value"] == pytest.approx(sum(each) / 5)
    assert said["n"] == 240 and tuple(said["splits"]) == ood
    final = said["to_budget"]["final"]["exact"]
    widths = [scores[s]["to_budget"]["final"]["exact"] for s in ood]
    assert final["low"] < final["value"] < final["high"]
    assert final["high"] - final["low"] < min(w["high"] - w["low"] for w in widths)
    del scores["plus_10"]
    assert ood_means(scores, domain) == {}
    joint = resolve("joint-mini").data.make()
    every = {s: summarise(random_records(5), 4, True) for s in joint.splits}
    assert set(ood_means(every, joint)) == {"arithmetic.ood_mean", "life.ood_mean"}


# The command ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def made(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two run folders, and a dataset whose test labels are partly what the first model says."""
    root = tmp_path_factory.mktemp("evaluated")
    folders = {name: made_run(tiny(), root / name, seed) for seed, name in enumerate(("a", "b"))}
    built = data.build(tiny().data, root / "data")
    model = open_weights(folders["a"]).model
    arrays = dataset.arrays("test")
    inputs, labels = (np.array(arrays[name]) for name in ("inputs", "labels"))
    np.save(built / "test.labels.npy", with_right_answers(model, inputs, labels, 6))
    return {**folders, "data": root / "data"}


@pytest.fixture(scope="session")
def evaluated(made: dict[str, Path]) -> dict[str, Path]:
    return {
        "a": run(Asked(str(made["a"]), data_dir=made["data"], weights="both", command="ponder eval a"), HERE),
        "b": run(Asked(str(made["b"]), data_dir=made["data"], steps=4), HERE),
    }


def test_the_folder_can_be_audited(made: dict[str, Path], evaluated: dict[str, Path]) -> None:
    folder = evaluated["a"]
    assert folder == made["a"] / "eval" and not list(made["a"].glob(".*"))
    result = json.loads((folder / "eval.json").read_text(encoding="utf-8"))
    assert (result["budget"], result["steps"], result["seed"]) == (3, 6, 0)
    assert result["config"] == tiny().flat() and result["command"] == "ponder eval a"
    files = json.loads((made["a"] / "best/state.json").read_text(encoding="utf-8"))["files"]
    assert result["weights"] == {"ema": files["ema.safetensors"], "online": files["weights.safetensors"]}
    assert result["data"]["hash"] and {"torch", "commit", "ponder"} <= set(result["environment"])
    assert "training budget 3" in result["protocol"] and "halting off" in result["protocol"]
    assert list(result["scores"]["ema"]) == ["val", "test"]
    cost = result["cost"]
    assert cost["layer_applications"] == [2 * 2 * 1 * s for s in range(1, 7)]  # H (L + 1) layers
    assert cost["flops"][5] == 6 * cost["flops"][0] > 0
    for weights in ("ema", "online"):
        for split, said in result["scores"][weights].items():
            records = load_records(folder / said["records"]["file"])
            assert records.n == said["n"] == said["of"] == {"val": 40, "test": 50}[split]
            again = json.loads(json.dumps(summarise(records, 3, True)))
            assert again == {k: said[k] for k in again}
    assert result["scores"]["ema"]["test"]["to_budget"]["any_step"]["exact"]["value"] > 0.1
    assert (folder / "eval.png").stat().st_size > 10_000


def test_twice_is_the_same(made: dict[str, Path], evaluated: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "again"
    before = {p: p.read_bytes() for p in made["a"].glob("best/*")}
    states = torch.get_rng_state(), str(np.random.get_state())
    for _ in range(2):  # the second one replaces the first
        assert run(Asked(str(made["a"]), data_dir=made["data"], weights="both", out=out), HERE) == out
    assert torch.equal(states[0], torch.get_rng_state()) and states[1] == str(np.random.get_state())
    assert {p: p.read_bytes() for p in made["a"].glob("best/*")} == before
    assert [p.name for p in tmp_path.iterdir()] == ["again"]
    a, b = (json.loads((f / "eval.json").read_text(encoding="utf-8")) for f in (evaluated["a"], out))
    assert a["scores"] == b["scores"]


def test_a_crash_leaves_the_earlier_evaluation(
    made: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ponder.evaluation.run

    asked = Asked(str(made["a"]), data_dir=made["data"], steps=1, out=tmp_path / "e")
    run(asked, HERE)
    before = (tmp_path / "e/eval.json").read_bytes()
    monkeypatch.setattr(ponder.evaluation.run, "draw", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(replace(asked, steps=2), HERE)
    assert (tmp_path / "e/eval.json").read_bytes() == before and len(list(tmp_path.iterdir())) == 1


def test_the_table_shows_what_was_measured(made: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    words = ["eval", str(made["a"]), "--data-dir", str(made["data"]), "--device", "cpu", "--split", "test"]
    out = made["a"].parent / "shown"
    assert ponder_main([*words, "--batch", "9", "--limit", "33", "--out", str(out)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    said = json.loads((out / "eval.json").read_text(encoding="utf-8"))["scores"]["ema"]["test"]
    assert said["n"] == 33 and "at most 33 examples" in shown
    for end in ("to_budget", "to_end"):
        assert f"{100 * said[end]['final']['exact']['value']:.1f}" in shown
    assert f"test {said['to_budget']['halting']['mean_step']:.2f}" in shown
    assert "3 ACT steps, the training budget" in shown and "6 ACT steps" in shown and str(out) in shown
    assert default_folder(open_weights(made["a"] / "best")) == made["a"] / "eval-best"


def test_policies_go_through_the_same_door(monkeypatch: pytest.MonkeyPatch) -> None:
    import ponder.evaluation.compare

    passed: list[list[str]] = []
    monkeypatch.setattr(ponder.evaluation.compare, "main", passed.append)
    assert ponder_main(["eval", "run", "--policy", "all", "--limit", "9"]) == 0
    assert ponder_main(["eval", "--policy=all", "run"]) == 0
    assert passed == [["run", "--limit", "9"], ["run"]]


def test_two_ranks_count_as_one(tmp_path: Path) -> None:
    """Each example once, on 1003 examples, which two ranks in batches of 64 do not divide."""
    config = tiny(data={"train": 20, "val": 10, "test": 1003})
    folder = made_run(config, tmp_path / "r")
    built = data.build(config.data, tmp_path / "data")
    arrays = [np.load(built / f"test.{name}.npy") for name in ("inputs", "labels")]
    np.save(built / "test.labels.npy", with_right_answers(open_weights(folder).model, arrays[0], arrays[1], 2))
    one = run(Asked(str(folder), data_dir=tmp_path / "data", splits=("test",), steps=3, batch=128), HERE)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["-m", "ponder", "eval", str(folder), "--data-dir", str(tmp_path / "data"), "--out", str(tmp_path / "two")]
    words += ["--split", "test", "--steps", "3", "--batch", "64", "--device", "cpu"]
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(port)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*launch, *words], env=environment, capture_output=True, encoding="utf-8", timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("wrote") == 1
    result = json.loads((tmp_path / "two/eval.json").read_text(encoding="utf-8"))
    assert result["ranks"] == 2 and result["scores"]["ema"]["test"]["n"] == 1003
    a, b = (load_records(f / "records/ema-test.npz") for f in (one, tmp_path / "two"))
    assert np.array_equal(a.index, b.index) and np.array_equal(a.index, np.arange(1003))
    agree_where_sure(a, b, told(open_weights(folder).model, arrays[0], 3))
    assert 0.1 < a.exact[:, 0].mean() < 0.9


def test_a_dense_model_answers_once(data_dir: Path, dataset: Dataset, tmp_path: Path) -> None:
    sizes = {"width": 16, "heads": 2, "expansion": 1.0, "layers": 1}
    config = resolve("sudoku-mini", "dense", {"data": tiny().flat()["data"], "model": sizes})
    folder = made_run(config, tmp_path / "dense")
    out = run(Asked(str(folder), data_dir=data_dir, steps=8), HERE)
    result = json.loads((out / "eval.json").read_text(encoding="utf-8"))
    assert result["steps"] == 1 and "one pass" in result["protocol"]
    records = load_records(out / "records/ema-test.npz")
    assert records.steps == 1 and (records.confidence < 0).all() and not records.halts.any()
    assert result["scores"]["ema"]["test"]["to_budget"]["halting"] is None


def test_weights_are_named_for_what_they_are(data_dir: Path, dataset: Dataset, tmp_path: Path) -> None:
    def evaluated_weights(config: Config, folder: Path, weights: str) -> list[str]:
        asked = Asked(str(folder), data_dir=data_dir, weights=weights, steps=1, splits=("val",), out=tmp_path / "out")
        return list(json.loads((run(asked, HERE) / "eval.json").read_text(encoding="utf-8"))["weights"])

    plain = tiny(train={"ema": None})
    assert evaluated_weights(plain, made_run(plain, tmp_path / "plain"), "ema") == ["online"]
    averaged = made_run(tiny(), tmp_path / "averaged")
    assert evaluated_weights(tiny(), averaged, "online") == ["online"]
    (averaged / "weights.safetensors").write_bytes((averaged / "best/ema.safetensors").read_bytes())  # as in the zoo
    assert evaluated_weights(tiny(), averaged, "both") == ["ema"]
    with pytest.raises(UserError, match="averaged weights only"):
        evaluated_weights(tiny(), averaged, "online")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--domain", "maze-mini"], r"model for sudoku \(6 symbols.*16 tokens\); preset maze-mini is maze \("),
        (["--domain", "sudoku-6x6-mini"], r"sudoku \(6 symbols.*sudoku \(8 symbols"),
        (["--domain", "sudoku-mimi"], "did you mean 'sudoku-mini'"),
        (["--split", "tset"], "unknown split of sudoku 'tset': did you mean 'test'.*allowed: test, train, val"),
        (["--steps", "0"], "--steps 0 is too small"),
        (["--limit", "-1"], "--limit -1 is too small"),
        (["--device", "tpu"], "device 'tpu'"),
        (["--out", "{parent}"], "is not an evaluation"),
        (["--out", "{a}/config.json/x"], "cannot write"),
    ],
)
def test_what_cannot_be_is_refused(
    words: list[str], said: str, made: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    words = [w.format(parent=made["data"], a=made["a"]) for w in words]
    device = [] if "--device" in words else ["--device", "cpu"]
    assert ponder_main(["eval", str(made["a"]), "--data-dir", str(made["data"]), *device, *words]) == 2
    error = capsys.readouterr().err
    assert re.search(said, error) and error.count("\n") == 1


def test_an_imported_model_needs_a_domain_that_fits(
    made: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_imported(made_model(tiny()), tmp_path / "hrm", {"kind": "hrm"})
    with pytest.raises(UserError, match=r"--domain PRESET, one of .*sudoku-mini"):
        run(Asked(str(tmp_path / "hrm")), HERE)
    with pytest.raises(UserError, match=r"6 symbols, 16 tokens; preset maze-mini is maze \(\d+ symbols"):
        run(Asked(str(tmp_path / "hrm"), domain="maze-mini"), HERE)
    preset = tmp_path / "own.yaml"
    preset.write_text(json.dumps({"extends": "sudoku-mini", "data": tiny().flat()["data"]}), encoding="utf-8")
    out = run(Asked(str(tmp_path / "hrm"), domain=str(preset), data_dir=made["data"], splits=("test",)), HERE)
    result = json.loads((out / "eval.json").read_text(encoding="utf-8"))
    assert out == tmp_path / "hrm/eval" and list(result["scores"]) == ["published"] and result["config"] is None
    assert result["data"]["config"] == tiny().data.flat()


# Comparing two runs ---------------------------------------------------------------------------------------------------


def test_diff_pairs_the_examples(evaluated: dict[str, Path], made: dict[str, Path]) -> None:
    a, b = diff.read(made["a"]), diff.read(evaluated["b"])
    rows = {(r.split, r.measure): r for r in diff.compare(a, b)}
    assert set(rows) == {(s, m) for s in ("val", "test") for m in ("exact", "valid", "token", "best_full")}
    one, other = (load_records(f / "records/ema-test.npz") for f in (evaluated["a"], evaluated["b"]))
    for measure in ("exact", "token"):
        x, y = (getattr(r, measure)[:, 2].tolist() for r in (one, other))  # each after its budget of 3 steps
        each = [float(v) - float(u) for u, v in zip(x, y, strict=True)]
        row = rows["test", measure]
        assert row.difference["value"] == pytest.approx(sum(each) / 50)
        rng = np.random.default_rng(0)
        means = rng.choice(each, size=(4000, 50)).mean(axis=1)
        low, high = np.quantile(means, [0.025, 0.975])
        assert row.difference["low"] == pytest.approx(low, abs=0.03)
        assert row.difference["high"] == pytest.approx(high, abs=0.03)
    row = rows["test", "exact"]
    x, y = one.exact[:, 2].tolist(), other.exact[:, 2].tolist()
    assert row.only_a == sum(u and not v for u, v in zip(x, y, strict=True)) > 3
    assert row.only_b == sum(v and not u for u, v in zip(x, y, strict=True))
    assert row.n == 50 and row.difference["low"] < row.difference["value"] < 0


def test_diff_shows_settings_and_scores(
    made: dict[str, Path], evaluated: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = made_run(tiny(train={"lr": 0.5}), tmp_path / "other")
    run(Asked(str(other), data_dir=made["data"], splits=("test",), limit=11), HERE)
    assert ponder_main(["diff", str(made["a"]), str(other)]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"train\.lr +0\.001 +0\.5", shown) and "best_full" in shown
    assert re.search(r"test +exact +11 ", shown)  # the examples both have
    diff.print_comparison(diff.read(made["a"]), diff.read(evaluated["b"]), Console(width=150))
    assert "the configurations are the same" in capsys.readouterr().out


def test_diff_refuses_what_cannot_be_paired(made: dict[str, Path], evaluated: dict[str, Path], tmp_path: Path) -> None:
    config = tiny(data={"seed": 9})
    run(Asked(str(made_run(config, tmp_path / "r")), data_dir=tmp_path / "data", steps=1), HERE)
    a, b = diff.read(made["a"]), diff.read(tmp_path / "r")
    with pytest.raises(UserError, match=f"data sudoku {a.result['data']['hash']}.*{b.result['data']['hash']}"):
        diff.compare(a, b)
    with pytest.raises(UserError, match="run `ponder eval"):
        diff.read(tmp_path)
    (b.folder / "records/ema-test.npz").write_bytes(b"")
    with pytest.raises(UserError, match=r"ema-test\.npz is missing or not the one"):
        b.records("test")
