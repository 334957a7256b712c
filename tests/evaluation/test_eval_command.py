"""`ponder eval` and `ponder diff`: what they write, show and refuse."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from ponder import data
from ponder.base.errors import UserError
from ponder.cli import main as ponder_main
from ponder.config.resolve import Config, resolve
from ponder.data import Dataset
from ponder.evaluation import diff
from ponder.evaluation.records import (
    load_records,
    summarise,
)
from ponder.evaluation.run import run
from ponder.evaluation.schema import read_eval
from ponder.evaluation.subject import EvalRequest, default_folder
from ponder.inference.weights import open_weights
from ponder.model.published import write_folder as write_imported
from tests.conftest import tiny
from tests.support.processes import by_ranks
from tests.support.runs import HERE, agree_where_sure, made_model, made_run, told, with_right_answers


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
        "a": run(EvalRequest(str(made["a"]), data_dir=made["data"], weights="both", command="ponder eval a"), HERE),
        "b": run(EvalRequest(str(made["b"]), data_dir=made["data"], steps=4), HERE),
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
            again = summarise(records, 3, True).as_data()
            assert again == {k: said[k] for k in again}
    assert result["scores"]["ema"]["test"]["to_budget"]["any_step"]["exact"]["value"] > 0.1
    assert (folder / "eval.png").stat().st_size > 10_000


def test_twice_is_the_same(made: dict[str, Path], evaluated: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "again"
    before = {p: p.read_bytes() for p in made["a"].glob("best/*")}
    states = torch.get_rng_state(), str(np.random.get_state())
    for _ in range(2):  # the second one replaces the first
        assert run(EvalRequest(str(made["a"]), data_dir=made["data"], weights="both", out=out), HERE) == out
    assert torch.equal(states[0], torch.get_rng_state()) and states[1] == str(np.random.get_state())
    assert before and {p: p.read_bytes() for p in made["a"].glob("best/*")} == before
    assert [p.name for p in tmp_path.iterdir()] == ["again"]
    a, b = (json.loads((f / "eval.json").read_text(encoding="utf-8")) for f in (evaluated["a"], out))
    assert a["scores"] == b["scores"]


def test_results_of_other_versions(evaluated: dict[str, Path], tmp_path: Path) -> None:
    """What was written before there were versions is read; what will be written later is refused in a line."""
    stored = json.loads((evaluated["a"] / "eval.json").read_text(encoding="utf-8"))
    now, file = read_eval(evaluated["a"] / "eval.json"), tmp_path / "eval.json"
    assert stored["version"] == now.version == 2 and stored == now.as_data()
    absent = {"splits", "arc"}  # were left out where they say nothing
    scores = {w: {s: {k: v for k, v in x.items() if k not in absent} for s, x in splits.items()}
              for w, splits in stored["scores"].items()}  # fmt: skip
    old = {k: v for k, v in stored.items() if k != "version"} | {"scores": scores}
    file.write_text(json.dumps(old), encoding="utf-8")
    assert read_eval(file) == now.model_copy(update={"version": 1})
    for text, message in ((json.dumps({**stored, "version": 3}), "another version.*version"), ("{", "is damaged")):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match=f"{message}.*run `ponder eval` again"):
            read_eval(file)


def test_a_crash_leaves_the_earlier_evaluation(
    made: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ponder.evaluation.run

    request = EvalRequest(str(made["a"]), data_dir=made["data"], steps=1, out=tmp_path / "e")
    run(request, HERE)
    before = (tmp_path / "e/eval.json").read_bytes()
    monkeypatch.setattr(ponder.evaluation.run, "draw", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(replace(request, steps=2), HERE)
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
    from ponder.commands import policies

    passed: list[list[str]] = []
    monkeypatch.setattr(policies, "main", passed.append)
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
    one = run(EvalRequest(str(folder), data_dir=tmp_path / "data", splits=("test",), steps=3, batch=128), HERE)
    words = ["eval", str(folder), "--data-dir", str(tmp_path / "data"), "--out", str(tmp_path / "two")]
    words += ["--split", "test", "--steps", "3", "--batch", "64", "--device", "cpu"]
    assert by_ranks(words, tmp_path / "said", 2).count("wrote") == 1
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
    out = run(EvalRequest(str(folder), data_dir=data_dir, steps=8), HERE)
    result = json.loads((out / "eval.json").read_text(encoding="utf-8"))
    assert result["steps"] == 1 and "one pass" in result["protocol"]
    records = load_records(out / "records/ema-test.npz")
    assert records.steps == 1 and (records.confidence < 0).all() and not records.halts.any()
    assert result["scores"]["ema"]["test"]["to_budget"]["halting"] is None


def test_weights_are_named_for_what_they_are(data_dir: Path, dataset: Dataset, tmp_path: Path) -> None:
    def evaluated_weights(config: Config, folder: Path, weights: str) -> list[str]:
        request = EvalRequest(
            str(folder), data_dir=data_dir, weights=weights, steps=1, splits=("val",), out=tmp_path / "out"
        )
        return list(json.loads((run(request, HERE) / "eval.json").read_text(encoding="utf-8"))["weights"])

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
        run(EvalRequest(str(tmp_path / "hrm")), HERE)
    with pytest.raises(UserError, match=r"6 symbols, 16 tokens; preset maze-mini is maze \(\d+ symbols"):
        run(EvalRequest(str(tmp_path / "hrm"), domain="maze-mini"), HERE)
    preset = tmp_path / "own.yaml"
    preset.write_text(json.dumps({"extends": "sudoku-mini", "data": tiny().flat()["data"]}), encoding="utf-8")
    out = run(EvalRequest(str(tmp_path / "hrm"), domain=str(preset), data_dir=made["data"], splits=("test",)), HERE)
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
        assert row.difference.value == pytest.approx(sum(each) / 50)
        rng = np.random.default_rng(0)
        means = rng.choice(each, size=(4000, 50)).mean(axis=1)
        low, high = np.quantile(means, [0.025, 0.975])
        assert row.difference.low == pytest.approx(low, abs=0.03)
        assert row.difference.high == pytest.approx(high, abs=0.03)
    row = rows["test", "exact"]
    x, y = one.exact[:, 2].tolist(), other.exact[:, 2].tolist()
    assert row.only_a == sum(u and not v for u, v in zip(x, y, strict=True)) > 3
    assert row.only_b == sum(v and not u for u, v in zip(x, y, strict=True))
    assert row.n == 50 and row.difference.low < row.difference.value < 0


def test_diff_shows_settings_and_scores(
    made: dict[str, Path], evaluated: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = made_run(tiny(train={"lr": 0.5}), tmp_path / "other")
    run(EvalRequest(str(other), data_dir=made["data"], splits=("test",), limit=11), HERE)
    assert ponder_main(["diff", str(made["a"]), str(other)]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"train\.lr +0\.001 +0\.5", shown) and "best_full" in shown
    assert re.search(r"test +exact +11 ", shown)  # the examples both have
    diff.print_differences(diff.read(made["a"]), diff.read(evaluated["b"]), Console(width=150))
    assert "the configurations are the same" in capsys.readouterr().out


def test_diff_refuses_what_cannot_be_paired(made: dict[str, Path], evaluated: dict[str, Path], tmp_path: Path) -> None:
    config = tiny(data={"seed": 9})
    run(EvalRequest(str(made_run(config, tmp_path / "r")), data_dir=tmp_path / "data", steps=1), HERE)
    a, b = diff.read(made["a"]), diff.read(tmp_path / "r")
    with pytest.raises(UserError, match=f"data sudoku {a.result.data.hash}.*{b.result.data.hash}"):
        diff.compare(a, b)
    with pytest.raises(UserError, match="run `ponder eval"):
        diff.read(tmp_path)
    (b.folder / "records/ema-test.npz").write_bytes(b"")
    with pytest.raises(UserError, match=r"ema-test\.npz is missing or not the one"):
        b.records("test")
