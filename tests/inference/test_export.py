"""Exported graphs in onnxruntime, against the model in PyTorch."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ponder.cli import main
from ponder.inference.export import export
from ponder.inference.solver import Solver
from ponder.inference.weights import open_weights
from ponder.model.reasoner import Reasoner
from tests.support import ROOT
from tests.support.folders import random_config, random_folder
from tests.support.rounding import agree, limits, sayings

os.environ["ORT_DISABLE_TELEMETRY"] = "1"
ort = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

DOC = ROOT / "docs" / "onnx.md"
TASKS = 3
MODELS: dict[str, dict[str, Any]] = {
    "mlp": {"mixer": "mlp", "positions": "none", "halting": "halt"},
    "attention": {"mixer": "attention", "positions": "rope", "key_mask": True, "halting": "halt+continue"},
}


@pytest.fixture(scope="module", params=MODELS)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """(model folder, graph, what the command printed)"""
    root = tmp_path_factory.mktemp(request.param)
    folder = random_folder(root / "model", random_config("sudoku-mini", **MODELS[request.param]), TASKS)
    graph = root / "sudoku.onnx"
    told = request.getfixturevalue("printed")(["export", str(folder), "--onnx", str(graph)])
    return folder, graph, told


@pytest.fixture(scope="module")
def printed() -> Callable[[list[str]], str]:
    """Runs a command of the CLI; what it wrote to both streams, the exporter's own noise included."""

    def run(args: list[str]) -> str:
        import contextlib
        import io

        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            assert main(args) == 0
        return said.getvalue()

    return run


@torch.no_grad()
def outputs_of(model: Reasoner, inputs: torch.Tensor, task_ids: torch.Tensor) -> list[dict[str, torch.Tensor]]:
    """What the graph should give, by name, at each of four steps."""
    carry, out = model.start(torch.zeros(len(inputs), dtype=torch.int64)), []
    for _ in range(4):
        step = model(carry, inputs, model.table[task_ids])
        carry = step.carry
        states = {"new_z_H": carry.states.h, "new_z_L": carry.states.l}
        said = {"logits": step.logits, "q_halt": step.q_halt, "q_continue": step.q_continue, **states}
        out.append({name: tensor for name, tensor in said.items() if tensor is not None})
    return out


def test_steps_agree_with_the_model_at_another_batch_size(exported: tuple[Path, Path, str]) -> None:
    folder, graph, _ = exported
    model = open_weights(folder).model
    about = json.loads(graph.with_name("sudoku.onnx.json").read_text(encoding="utf-8"))
    session = ort.InferenceSession(str(graph))
    assert json.loads(session.get_modelmeta().custom_metadata_map["ponder"]) == about
    for size in (1, 5):
        g = torch.Generator().manual_seed(size)
        inputs = torch.randint(1, 6, (size, model.tokens), generator=g)
        inputs[0, -3:] = 0  # padding, which a key mask hides
        task_ids = torch.arange(size) % TASKS
        wanted = outputs_of(model, inputs, task_ids)
        names = list(wanted[0])

        def values(inputs: torch.Tensor = inputs, task_ids: torch.Tensor = task_ids) -> list[torch.Tensor]:
            return [tensor for step in outputs_of(model, inputs, task_ids) for tensor in step.values()]

        within = limits(values, model.state_dict().values())
        states = {name: np.tile(np.float32(start), (size, model.length, 1)) for name, start in about["initial"].items()}
        seen = []
        for number in range(4):
            fed = {"tokens": inputs.numpy(), "task_ids": task_ids.numpy(), **states}
            out = dict(zip(about["outputs"], session.run(None, fed), strict=True))
            states = {name: out[new] for name, new in about["carry"].items()}
            assert set(out) == set(names)
            got = [torch.from_numpy(out[name]) for name in names]
            agree(got, list(wanted[number].values()), within[number * len(names) :][: len(names)])
            for name, value in {**fed, **out}.items():
                shape = (about["inputs"] | about["outputs"])[name]["shape"]
                assert list(value.shape) == [size if length == "batch" else length for length in shape]
            seen.append(out["logits"])
        assert np.abs(seen[0] - seen[-1]).max() > 1e-2  # the carry matters, or nothing was compared


def test_the_command_tells_names_and_shapes_and_nothing_else(exported: tuple[Path, Path, str]) -> None:
    _, graph, told = exported
    lines = told.splitlines()
    assert len(lines) == 3, told
    assert str(graph) in lines[0] and "tokens [batch, 16]" in lines[1] and "logits [batch, 16, 6]" in lines[2]


def test_the_loop_of_the_documentation_answers_like_the_model(
    exported: tuple[Path, Path, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, graph, _ = exported
    (code,) = re.findall(r"```python\n(.*?)```", DOC.read_text(encoding="utf-8"), re.DOTALL)
    assert "torch" not in code
    monkeypatch.chdir(graph.parent)
    names: dict[str, Any] = {}
    exec(compile(code, str(DOC), "exec"), names)
    solver = Solver(folder)
    for puzzle, answer, sure in zip(names["puzzles"], names["answers"], names["sure"], strict=True):
        thoughts = list(solver.stream(puzzle))
        assert names["step"] <= len(thoughts)
        last = thoughts[names["step"] - 1]
        given = torch.from_numpy(solver.domain.parse(puzzle)[None].astype(np.int64))
        said = sayings(solver.opened.model, given, torch.zeros(1, dtype=torch.int64), names["step"])[-1]
        assert said.answers.all() and answer == "".join(solver.domain.vocab[token] for token in last.answer)
        assert abs(sure - last.confidence) <= float(said.reach)
    assert names["answers"][0] in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["sudoku-4x4", "--onnx", "there/is/none.onnx"], "no folder there/is"),
        (["sudoku-4x4", "--onnx", "graph.pb"], "graph.pb does not end in .onnx"),
        (["sudoku-4x5", "--onnx", "graph.onnx"], "did you mean 'sudoku-4x4'"),
        (["sudoku-4x4", "--onnx", "graph.onnx", "--batch", "0"], "--batch '0'"),
    ],
)
def test_mistakes_get_one_line(
    args: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["export", *args]) == 2
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("int8", [False, True], ids=["float32", "int8"])
def test_a_model_of_asked_steps_goes_on_to_what_is_asked_for(int8: bool, tmp_path: Path) -> None:
    """One generation a step, by the rules; the puzzle is read at the first step alone. In 8 bits too."""
    graph = tmp_path / "life.onnx"
    assert main(["export", "life-8x8", "--onnx", str(graph), *(["--int8"] if int8 else [])]) == 0
    session = ort.InferenceSession(str(graph))
    about = json.loads(session.get_modelmeta().custom_metadata_map["ponder"])
    assert about == json.loads(graph.with_name("life.onnx.json").read_text(encoding="utf-8"))
    assert about["products"] == ("int8" if int8 else "float32")
    kinds = {node.op_type for node in onnx.load(graph).graph.node}
    assert bool(kinds & {"MatMulInteger", "DynamicQuantizeMatMul"}) == int8
    assert str(ROOT).encode() not in graph.read_bytes()  # the exporter notes whose source each node is
    domain = Solver("life-8x8").domain
    inputs = domain.sample(2, 6)[0]
    inputs[:, -2:] = [[5, 5 + asked] for asked in (1, 2, 3, 5, 8, 9)]
    wanted = domain.path(inputs, 10)
    states = {
        name: np.tile(np.float32(start), (6, about["inputs"][name]["shape"][1], 1))
        for name, start in about["initial"].items()
    }
    for step in range(10):
        fed = {"tokens": inputs.astype(np.int64), "task_ids": np.zeros(6, dtype=np.int64)}
        told = {"steps": np.full(6, step, dtype=np.int64)}
        out = dict(zip(about["outputs"], session.run(None, {**fed, **told, **states}), strict=True))
        states = {name: out[new] for name, new in about["carry"].items()}
        cells = wanted[:, step] != 0
        assert (out["logits"].argmax(axis=-1)[cells] == wanted[:, step][cells]).all()
        assert out["over"].tolist() == [step + 1 >= asked for asked in (1, 2, 3, 5, 8, 9)]


def test_a_dense_model_has_no_states_and_a_fixed_batch_is_fixed(tmp_path: Path) -> None:
    dense: dict[str, Any] = {"states": 0, "halting": "none", "max_steps": 1}
    config = random_config("sudoku-mini", **dense, bound=None, gate=False, post_norm=False)
    folder = random_folder(tmp_path / "model", config)
    assert export(folder, tmp_path / "any.onnx")["inputs"]["tokens"]["shape"] == ["batch", 16]
    about = export(folder, tmp_path / "dense.onnx", batch=3)
    assert list(about["inputs"]) == ["tokens", "task_ids"] and list(about["outputs"]) == ["logits"]
    session = ort.InferenceSession(str(tmp_path / "dense.onnx"))
    assert [i.shape for i in session.get_inputs()] == [[3, 16], [3]]
    tokens = np.ones((3, 16), dtype=np.int64)
    (logits,) = session.run(None, {"tokens": tokens, "task_ids": np.zeros(3, dtype=np.int64)})
    model = open_weights(tmp_path / "model").model

    def want() -> list[torch.Tensor]:
        return [outputs_of(model, torch.from_numpy(tokens), torch.zeros(3, dtype=torch.int64))[0]["logits"]]

    agree([torch.from_numpy(logits)], want(), limits(want, model.state_dict().values()))


def test_links_are_found_in_the_graph_too(tmp_path: Path) -> None:
    """Each expression has a tree of its own, which the graph reads off its tokens."""
    relations = {"mixer": "relations", "positions": "none", "states": 1, "gate": False, "bound": None}
    config = random_config("arithmetic-mini", {}, **relations, post_norm=False, key_mask=False, halting="halt")
    opened = open_weights(random_folder(tmp_path / "model", config))
    assert opened.domain is not None
    about = export(opened, tmp_path / "tree.onnx")
    inputs = torch.from_numpy(opened.domain.sample(0, 7)[0].astype(np.int64))
    tasks = torch.zeros(7, dtype=torch.int64)

    def values() -> list[torch.Tensor]:
        return list(outputs_of(opened.model, inputs, tasks)[0].values())

    start = np.tile(np.float32(about["initial"]["z_H"]), (7, opened.model.length, 1))
    fed = {"tokens": inputs.numpy(), "task_ids": tasks.numpy(), "z_H": start}
    out = ort.InferenceSession(str(tmp_path / "tree.onnx")).run(list(outputs_of(opened.model, inputs, tasks)[0]), fed)
    agree([torch.from_numpy(each) for each in out], values(), limits(values, opened.model.state_dict().values()))
