"""`ponder trace`: on maps whose answers are known, and on a model against its Jacobian written out."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ponder.base.errors import UserError
from ponder.cli import main
from ponder.data import Dataset
from ponder.evaluation.schema import TraceResult
from ponder.evaluation.subject import Subject
from ponder.evaluation.trace import Map, TracePlan, Twin, crossed, plane, residuals, stretch, trace
from ponder.inference.weights import Opened
from tests.conftest import tiny
from tests.support import naive
from tests.support.models import batch, build, small
from tests.support.rounding import FORMULA, apart
from tests.support.runs import made_model, made_run

N, D = 4, 6


def followed(step: Map, z: Tensor, steps: int) -> Tensor:
    path = [z]
    for _ in range(steps):
        path.append(step(path[-1]))
    return torch.stack(path)


def turned(angle: float) -> Tensor:
    """A rotation of the plane of the first two axes."""
    out = torch.eye(D, dtype=torch.float64)
    out[:2, :2] = torch.tensor(
        [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]], dtype=torch.float64
    )
    return out


def start(seed: int = 0) -> Tensor:
    return torch.randn(N, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_contraction_settles_at_its_rate() -> None:
    """z -> p + (z - p) / 3: every singular value is 1/3, and what is left to go shrinks by 3."""
    point, z = 5 * start(1), start()
    path = followed(lambda z: point + (z - point) / 3, z, 8)
    moved = residuals(path)
    for t in range(8):
        here = point + (z - point) / 3**t
        assert apart(moved[t], (2 / 3) * (z - point).norm(dim=1) / 3**t / here.norm(dim=1)) < FORMULA
    found = stretch(lambda z: point + (z - point) / 3, path[2])
    assert apart(found, torch.full((N,), 1 / 3, dtype=torch.float64)) < FORMULA


def test_a_rotation_goes_on_for_ever() -> None:
    angle = 0.7
    flat = start() * torch.tensor([1, 1, 0, 0, 0, 0])
    path = followed(lambda z: z @ turned(angle).T, flat, 9)
    chord = torch.full((9, N), 2 * math.sin(angle / 2), dtype=torch.float64)
    assert apart(residuals(path), chord) < FORMULA
    found = stretch(lambda z: z @ turned(angle).T, path[3])
    assert apart(found, torch.ones(N, dtype=torch.float64)) < FORMULA
    # All of it lies in one plane, and the picture keeps its distances.
    seen = plane(path)
    assert sum(seen.explained) == pytest.approx(1) and seen.explained[0] >= seen.explained[1]
    drawn, real = ((p.flatten(0, 1)[:, None] - p.flatten(0, 1)).norm(dim=-1) for p in (seen.points, path))
    assert float((drawn - real).abs().max()) < FORMULA * float(real.max())


def test_an_expansion_is_seen_along_its_one_direction() -> None:
    """Stretches 4 along one axis and shrinks all others, the axis another one for each example; not symmetric."""
    scales = torch.full((N, D), 0.5, dtype=torch.float64)
    scales[torch.arange(N), torch.arange(N)] = 4.0
    shuffle = torch.eye(D, dtype=torch.float64)[torch.randperm(D, generator=torch.Generator().manual_seed(3))]
    found = stretch(lambda z: (z * scales) @ shuffle, start(), rounds=20)
    assert apart(found, torch.full((N,), 4.0, dtype=torch.float64)) < FORMULA
    few = stretch(lambda z: (z * scales) @ shuffle, start(), directions=1, rounds=1)
    assert (few < found).all() and (few > 0).all(), "power iteration approaches from below"
    bent = stretch(lambda z: torch.tanh(z @ shuffle) * 3, start(), rounds=60)
    slopes = 3 / (start() @ shuffle).cosh().square()
    assert apart(bent, slopes.amax(dim=1)) < 1e-3, "of a map that is not linear, at the very state"


def test_settled_against_right_counts_each_example_once() -> None:
    settled, right = torch.tensor([1, 1, 1, 0, 0, 0, 0]).bool(), torch.tensor([1, 1, 0, 1, 0, 0, 0]).bool()
    assert crossed(settled, right).as_data() == {
        "settled_right": 2,
        "settled_wrong": 1,
        "moving_right": 1,
        "moving_wrong": 3,
    }


@pytest.mark.parametrize("changes", [{}, {"bound": 0.1}, {"norm": "pre"}, {"gate": False, "post_norm": False}])
def test_a_models_stretch_is_that_of_its_jacobian(changes: dict[str, Any]) -> None:
    """The oracle shares no code: the plain model, its whole Jacobian row by row, and a singular value decomposition."""
    config = small(layers=1, width=8, h_cycles=2, l_cycles=1, h_horizon=1, l_horizon=1, **changes)
    model, b = build(config, tokens=3).eval(), batch(2, tokens=3)
    twin = Twin(model, b.inputs, model.table[b.task_ids], b.keys)
    z = twin(twin.start())
    found = stretch(twin, z, directions=2, rounds=100)
    weights = naive.doubled(model)

    def plain(flat: Tensor, i: int) -> Tensor:
        h, low = (part.view(1, model.length, 8) for part in flat.chunk(2))
        rows = weights["table"][b.task_ids[i : i + 1]]
        step = naive.step(weights, config, h, low, b.inputs[i : i + 1], rows, detach_scale=False)
        assert step.h is not None and step.l is not None
        return torch.cat((step.h.flatten(), step.l.flatten()))

    for i in range(2):
        jacobian = torch.autograd.functional.jacobian(lambda flat, i=i: plain(flat, i), z[i])
        assert isinstance(jacobian, Tensor)
        largest = float(torch.linalg.svdvals(jacobian)[0])
        # The norm's scale is a float32, and power iteration ends a little below.
        assert float(found[i]) == pytest.approx(largest, rel=1e-3)
    assert apart(twin(z)[0], plain(z[0], 0)) < 1e-5


def traced(dataset: Dataset, plan: TracePlan, count: int = 12, **changes: object) -> TraceResult:
    config = tiny(model=changes)
    model = made_model(config)
    index = np.arange(count)
    examples = dataset.source("test").fetch(index, np.zeros_like(index))
    opened = Opened("made", Path("made"), model, config, dataset.domain, None, "")
    return trace(Subject(opened, dataset.domain, "test", index, examples, dataset.hash), plan)


def test_the_bound_and_the_gate_show(dataset: Dataset) -> None:
    """What holds updates back moves the state less from step to step."""
    plan = TracePlan(3, rounds=2, directions=1)
    loose, tight = (traced(dataset, plan, bound=bound).residual[-1].median for bound in (None, 0.05))
    assert tight < loose
    for bound, acts in ((None, 0.0), (1e9, 0.0), (1e-9, 1.0)):
        assert traced(dataset, plan, bound=bound).bounded == [acts] * 3
    whole = traced(dataset, plan)
    cells = whole.table.as_data()
    assert sum(cells.values()) == whole.n == 12 and len(whole.right) == len(whole.stretch) == 3
    assert all(len(each.points) == 4 for each in whole.trajectories)
    assert TraceResult.model_validate(json.loads(json.dumps(whole.as_data()))) == whole


def test_the_command(dataset: Dataset, data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["trace", str(made_run(tiny(), tmp_path / "run")), "--data-dir", str(data_dir), "--device", "cpu"]
    words += ["--limit", "5", "--steps", "2", "--rounds", "2", "--out", str(tmp_path / "out")]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "stretch" in out and "still moving" in out and "trace.png" in out
    said = json.loads((tmp_path / "out" / "trace.json").read_text(encoding="utf-8"))
    assert said["n"] == 5 and said["steps"] == 2 and len(said["trajectories"]) == 5
    assert (tmp_path / "out" / "trace.png").stat().st_size > 10_000
    assert main([*words, "--rounds", "0"]) == 2 and "at least 1" in capsys.readouterr().err


def test_what_has_no_state_is_not_traced(dataset: Dataset) -> None:
    with pytest.raises(UserError, match="no state"):
        traced(
            dataset, TracePlan(1), states=0, modules="shared", gate=False, bound=None, post_norm=False,
            halting="none", max_steps=1,
        )  # fmt: skip
