"""Training: exact resume, ranks, accumulation, halting, guards."""

import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from ponder import checkpoint
from ponder.base import files, native, rng
from ponder.base.errors import UserError
from ponder.base.runtime import Runtime
from ponder.config.resolve import Config
from ponder.data import Dataset
from ponder.model.reasoner import Carry, Reasoner, Step
from ponder.model.recurrence import States
from ponder.training import curves
from ponder.training.log import TIMING, read_log
from ponder.training.loop import Limits, Outcome
from ponder.training.micro import Depth, halted
from ponder.training.rows import evaluation_row
from ponder.training.runs import open_folder, train_in
from tests.conftest import DRAW, tiny
from tests.support.processes import by_ranks, start, start_ranks
from tests.support.rounding import DRAWS, agree, apart, nudge, spread

HERE = Runtime(torch.device("cpu"))


def run(config: Config, folder: Path, data_dir: Path, limits: Limits | None = None) -> Outcome:
    return train_in(config, folder, data_dir, HERE, limits or Limits(), quiet=True)


def rows(folder: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in TIMING} for row in read_log(folder / "metrics.jsonl")]


def final(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of the last checkpoint: weights, EMA, optimiser and carry."""
    saved = checkpoint.newest(folder / "checkpoints")
    assert saved is not None
    return {f"{f}/{k}": v for f in saved.state["files"] for k, v in load_file(saved.path / f).items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def resumes_exactly(config: Config, data_dir: Path, folder: Path) -> None:
    """Training in three pieces leaves the log and the weights of training in one."""
    assert run(config, folder / "whole", data_dir).finished
    for count in (5, 3):
        assert not run(config, folder / "parts", data_dir, Limits(updates=count)).finished
    assert run(config, folder / "parts", data_dir).finished
    assert rows(folder / "parts") == rows(folder / "whole")
    assert same(final(folder / "parts"), final(folder / "whole"))


@pytest.fixture(scope="session")
def whole(dataset: Dataset, data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(curves, "draw_curves", DRAW)
        assert run(tiny(), folder, data_dir).finished
    return folder


def test_the_run_folder_explains_itself(whole: Path) -> None:
    result = json.loads((whole / "result.json").read_text(encoding="utf-8"))
    assert result["updates"] == 24 and set(result["n"]) == {"val", "test"}
    assert {"last", "chosen_on_val", "peak", "config", "data_hash", "environment"} <= set(result)
    environment = json.loads((whole / "environment.json").read_text(encoding="utf-8"))
    assert {"torch", "python", "commit", "data_hash"} <= set(environment)
    assert (whole / "curves.png").stat().st_size > 10_000
    assert (whole / "best" / "ema.safetensors").is_file()
    train_rows = [r for r in read_log(whole / "metrics.jsonl") if r["kind"] == "train"]
    watched = {"loss", "exact", "steps", "grad_norm", "norm_h", "norm_l", "ratio", "q_halt", "lr", "peak_fraction"}
    assert watched <= set(train_rows[0])


def test_of_equal_checkpoints_the_later_is_chosen(
    dataset: Dataset, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = iter([0.25, 0.5, 0.5])

    def scored(*args: Any) -> dict[str, Any]:
        row = evaluation_row(*args)
        row["ema"]["val"]["exact"] = next(scores)
        return row

    monkeypatch.setattr("ponder.training.loop.evaluation_row", scored)
    run(tiny(), tmp_path / "run", data_dir)
    assert next(scores, None) is None  # all three were asked for
    assert checkpoint.read(tmp_path / "run" / "best").state["update"] == 24
    assert json.loads((tmp_path / "run" / "result.json").read_text("utf-8"))["chosen_on_val"]["update"] == 24


def test_same_seed_same_metrics(whole: Path, data_dir: Path, tmp_path: Path) -> None:
    run(tiny(), tmp_path / "again", data_dir)
    assert rows(tmp_path / "again") == rows(whole)
    assert same(final(tmp_path / "again"), final(whole))


def test_online_weights_are_evaluated_at_the_end_or_always(whole: Path, data_dir: Path, tmp_path: Path) -> None:
    train_in(tiny(), tmp_path / "both", data_dir, HERE, Limits(), quiet=True, online=True)
    always, last = ([r for r in rows(folder) if r["kind"] == "eval"] for folder in (tmp_path / "both", whole))
    assert len(last) > 1 and all("online" in row for row in always)
    assert [{k: v for k, v in row.items() if k != "online"} for row in always[:-1]] == last[:-1]
    assert always[-1] == last[-1]
    assert same(final(tmp_path / "both"), final(whole))


def test_another_number_of_data_workers_changes_nothing(whole: Path, data_dir: Path, tmp_path: Path) -> None:
    run(tiny(), tmp_path / "r", data_dir, Limits(updates=7))
    run(tiny(train={"data_workers": 3}), tmp_path / "r", data_dir)
    assert same(final(tmp_path / "r"), final(whole))


def test_stopping_and_resuming_is_exact(whole: Path, data_dir: Path, tmp_path: Path) -> None:
    """Stops that fall on no multiple of anything: the window of the log is carried over too."""
    for count in (3, 6, 1, 9):
        assert not run(tiny(), tmp_path / "r", data_dir, Limits(updates=count)).finished
    assert run(tiny(), tmp_path / "r", data_dir).finished
    assert rows(tmp_path / "r") == rows(whole)
    assert same(final(tmp_path / "r"), final(whole))


def words_of(folder: Path, data_dir: Path, config: Config) -> list[str]:
    """What to tell `ponder`."""
    overrides = [
        f"--{section}.{key}={json.dumps(value)}"
        for section, values in config.flat().items()
        if isinstance(values, dict)
        for key, value in values.items()
        if key not in ("domain", "name")
    ]
    return ["train", "sudoku-mini", "--out", str(folder), "--data-dir", str(data_dir), "--quiet", *overrides]


def test_kill_9_at_random_moments(whole: Path, data_dir: Path, tmp_path: Path) -> None:
    """Killed again and again, in updates and in checkpoint writes, it ends bit for bit where it should."""
    folder, said, log = tmp_path / "r", tmp_path / "said", tmp_path / "r" / "metrics.jsonl"
    shuffled, kills = random.Random(0), 0
    for number in range(4):
        before, written = len(read_log(log)), number % 2 == 0  # every other one in the middle of writing a checkpoint
        training = start(words_of(folder, data_dir, tiny()), said)
        while training.process.is_alive() and len(read_log(log)) <= before + written:
            if written and any(folder.glob("checkpoints/.*.part")):
                break
            time.sleep(0.002)
        time.sleep(shuffled.random() * 0.03)
        code = training.ended(0)
        assert code in (0, -signal.SIGKILL), training.said
        if code == 0:
            break  # a fast machine came to the end first
        kills += 1
    else:
        assert checkpoint.listed(folder / "checkpoints"), "nothing to go on from"
        training = start(words_of(folder, data_dir, tiny()), said)
    assert kills >= 2 and training.ended() == 0, training.said
    assert rows(folder) == rows(whole)
    assert same(final(folder), final(whole))


def test_a_truncated_or_edited_checkpoint_is_named_and_the_one_before_used(
    whole: Path, data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "r"
    run(tiny(), folder, data_dir, Limits(updates=14))
    newest = checkpoint.listed(folder / "checkpoints")[-1]
    file = newest / "optimiser.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    train_in(tiny(), folder, data_dir, HERE, Limits(), quiet=False)
    assert str(file) in capsys.readouterr().out
    assert same(final(folder), final(whole))
    with pytest.raises(UserError, match="incomplete"):
        checkpoint.read(tmp_path)
    (tmp_path / checkpoint.STATE).write_text('{"files": {}, "update": Infinity}', encoding="utf-8")
    with pytest.raises(UserError, match="incomplete"):
        checkpoint.read(tmp_path)


def test_a_checkpoint_cut_short_is_refused(whole: Path, tmp_path: Path) -> None:
    saved = checkpoint.listed(whole / "checkpoints")[-1]
    copy = tmp_path / saved.name
    copy.mkdir()
    for item in saved.iterdir():
        (copy / item.name).write_bytes(item.read_bytes())
    weights = copy / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(UserError, match=r"weights\.safetensors was truncated or edited"):
        checkpoint.read(copy)


def gradients(config: Config, folder: Path, data_dir: Path, updates: int = 1) -> dict[str, torch.Tensor]:
    """The first update's momentum is a tenth of its gradient; the table shows the sign of its rows'."""
    run(config, folder, data_dir, Limits(updates=updates))
    return held_gradients(folder)


def held_gradients(folder: Path) -> dict[str, torch.Tensor]:
    held = final(folder)
    out = {k: v for k, v in held.items() if k.startswith("optimiser.safetensors/m.")}
    return out | {"table": held["weights.safetensors/table"]}


def moved(
    config: Config, folder: Path, data_dir: Path, updates: int = 1, draws: int = DRAWS
) -> Iterator[list[torch.Tensor]]:
    """The gradients of models whose first weights are a little larger or smaller."""
    for draw in range(draws):

        class Nudged(Reasoner):
            def __init__(self, *args: Any, number: int = draw) -> None:
                super().__init__(*args)
                nudge(self.state_dict().values(), number)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("ponder.training.loop.Reasoner", Nudged)
            yield list(gradients(config, folder / f"nudged-{draw}", data_dir, updates).values())


def close(other: dict[str, torch.Tensor], one: dict[str, torch.Tensor], nudged: Iterator[list[torch.Tensor]]) -> None:
    """Whether two sets of gradients differ by rounding alone."""
    assert one.keys() == other.keys()
    within = spread(list(one.values()), nudged)
    agree(list(other.values()), list(one.values()), within)
    assert statistics.median(within) < 0.01


UNCLIPPED: dict[str, object] = {"clip": None}
STILL: dict[str, object] = {
    **UNCLIPPED,
    "lr": 1e-9,
    "table_lr": 1e-9,
    "updates": 50,
    "eval_every": 50,
    "save_every": 50,
}
"""For long comparisons: were the weights to move, rounding would soon decide what is halted and learned."""


@pytest.mark.numeric
def test_independent_accumulation_is_the_large_batch(dataset: Dataset, data_dir: Path, tmp_path: Path) -> None:
    config = tiny(train=UNCLIPPED)
    one = gradients(config, tmp_path / "one", data_dir)
    four = gradients(tiny(train={**UNCLIPPED, "accumulate": 4}), tmp_path / "four", data_dir)
    close(four, one, moved(config, tmp_path, data_dir))


def test_independent_accumulation_stays_the_large_batch(dataset: Dataset, data_dir: Path, tmp_path: Path) -> None:
    """After 50 updates the same examples are at the same steps in the same slots, refilled ones too."""
    one = gradients(tiny(train=STILL), tmp_path / "one", data_dir, 50)
    four = gradients(tiny(train={**STILL, "accumulate": 4}), tmp_path / "four", data_dir, 50)
    close(four, one, moved(tiny(train=STILL), tmp_path, data_dir, 50, draws=1))
    a, b = final(tmp_path / "one"), final(tmp_path / "four")
    for name in ("ids", "refills", "steps"):
        assert torch.equal(a[f"carry-0.safetensors/{name}"], b[f"carry-0.safetensors/{name}"]), name
    assert int(a["carry-0.safetensors/refills"].min()) > 5


def test_trajectory_accumulation_is_something_else(dataset: Dataset, data_dir: Path, tmp_path: Path) -> None:
    one = gradients(tiny(train=UNCLIPPED), tmp_path / "one", data_dir)
    other = {**UNCLIPPED, "accumulate": 4, "accumulation": "trajectory"}
    four = gradients(tiny(train=other), tmp_path / "four", data_dir)
    assert max(apart(four[k], one[k]) for k in one) > 0.05


def torchrun(folder: Path, data_dir: Path, config: Config, ranks: int, *more: str) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["-m", "ponder", *words_of(folder, data_dir, config)]
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--master-port", str(port)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*launch, *words, *more], env=environment, capture_output=True, encoding="utf-8", timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]


def test_two_ranks_are_one(dataset: Dataset, data_dir: Path, tmp_path: Path) -> None:
    """Same gradients, table and examples in the same slots, for 50 updates; evaluation counts each example once."""
    config = tiny(train=STILL)
    one_rank, two_ranks = gradients(config, tmp_path / "a", data_dir), _first_update(config, tmp_path / "b", data_dir)
    close(two_ranks, one_rank, moved(config, tmp_path, data_dir))
    run(config, tmp_path / "one", data_dir)
    by_ranks(words_of(tmp_path / "two", data_dir, config), tmp_path / "said", 2)
    one, two = final(tmp_path / "one"), final(tmp_path / "two")
    for name in ("ids", "refills", "steps"):
        joined = torch.cat([two[f"carry-{rank}.safetensors/{name}"] for rank in (0, 1)])
        assert torch.equal(joined, one[f"carry-0.safetensors/{name}"]), name
    assert json.loads((tmp_path / "two/result.json").read_text(encoding="utf-8"))["n"] == {"val": 20, "test": 20}


def _first_update(config: Config, folder: Path, data_dir: Path) -> dict[str, torch.Tensor]:
    by_ranks([*words_of(folder, data_dir, config), "--max-updates", "1"], folder.with_suffix(".said"), 2)
    return held_gradients(folder)


def test_one_rank_goes_on_where_two_stopped_when_told_to(dataset: Dataset, data_dir: Path, tmp_path: Path) -> None:
    """The sum over two ranks is not, bit for bit, that of one: who says nothing about it gets the bits or an error."""
    torchrun(tmp_path / "r", data_dir, tiny(), 2, "--max-updates", "5")
    before = final(tmp_path / "r")
    with pytest.raises(UserError, match=r"by 2 ranks until now and this is 1: start 2 .* --processes 1 "):
        run(tiny(), tmp_path / "r", data_dir)
    after = final(tmp_path / "r")
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    assert train_in(tiny(), tmp_path / "r", data_dir, HERE, Limits(updates=1), quiet=True, ranks=1).update == 6
    assert run(tiny(), tmp_path / "r", data_dir).finished


def test_a_rank_that_survives_another_ends_with_one_line(dataset: Dataset, data_dir: Path, tmp_path: Path) -> None:
    """Either of two ranks is killed in the middle of training; nobody but the other one can tell."""
    config = tiny(train={"updates": 100_000, "log_every": 1})
    for victim in (1, 0):
        folder, said = tmp_path / str(victim), tmp_path / f"said-{victim}"
        ranks = start_ranks(words_of(folder, data_dir, config), said, 2)
        while len(read_log(folder / "metrics.jsonl")) < 5:
            assert all(each.process.is_alive() for each in ranks)
            time.sleep(0.05)
        ranks[victim].process.kill()
        code, err = ranks[1 - victim].ended(), ranks[1 - victim].said
        assert code == 3, err
        assert f"rank {1 - victim} of 2 ends because another rank is gone" in err and err.count("\n") == 1, err


def carry_at(steps: int, count: int) -> Carry:
    key = rng.slot_keys(0, torch.arange(count), torch.zeros(count, dtype=torch.int64))
    return Carry(States(None, None), torch.full((count,), steps), key)


def test_halting_follows_the_head_explores_and_ends_at_the_budget() -> None:
    config = tiny(model={"max_steps": 8})
    n = 20000
    yes, no = torch.full((n,), 1.0), torch.full((n,), -1.0)
    last = torch.zeros(n, dtype=torch.bool)
    logits = torch.zeros(n, 1, 1)

    def done(q_halt: torch.Tensor, q_continue: torch.Tensor | None, steps: int, end: torch.Tensor) -> torch.Tensor:
        return halted(Step(carry_at(steps, n), logits, q_halt, q_continue, None), end, 8, config)

    stays = ~done(yes, no, 1, last)
    assert abs(float(stays.float().mean()) - 0.1) < 0.01  # every minimum is at least 2
    stays = ~done(yes, no, 4, last)
    assert abs(float(stays.float().mean()) - 0.1 * 4 / 7) < 0.01  # minimum 5..8 of 2..8
    assert not done(no, yes, 4, last).any()
    assert done(no, yes, 8, ~last).all()
    assert done(yes, None, 8, last).float().mean() > 0.9


def test_depth_grows_to_full() -> None:
    config = tiny(train={"grow": "steps", "grow_until": 0.5}, model={"max_steps": 8})
    depths = [Depth.at(config, u, 100).steps for u in range(0, 101, 10)]
    assert depths[0] == 1 and depths[5] == 8 and depths == sorted(depths)
    config = tiny(train={"grow": "cycles"}, model={"h_cycles": 4})
    assert [Depth.at(config, u, 100).h_cycles for u in (0, 25, 50, 100)] == [1, 3, 4, 4]


@pytest.mark.parametrize("model", ["dense", "hrm", "trm", "trm-mlp", "urm", "urm-one-state"])
def test_every_model_trains(model: str, dataset: Dataset, data_dir: Path, tmp_path: Path) -> None:
    from ponder.config.resolve import resolve

    sizes = {"width": 16, "heads": 2, "expansion": 1.0, **({} if model == "dense" else {"max_steps": 2})}
    config = resolve("sudoku-mini", model, {
        "data": tiny().flat()["data"], "model": sizes,
        "train": {"batch": 8, "updates": 3, "warmup": 0, "log_every": 1, "eval_every": 3}, "eval": {"examples": 8},
    })  # fmt: skip
    assert run(config, tmp_path / model, data_dir).finished


def test_a_loss_that_is_not_finite_stops_the_run_and_says_what_helps(
    dataset: Dataset, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ponder.model import losses

    run(tiny(), tmp_path / "r", data_dir, Limits(updates=4))
    real = losses.answer_losses
    monkeypatch.setattr(losses, "answer_losses", lambda *given: real(*given) * float("nan"))
    with pytest.raises(
        UserError, match=r"not finite at update 5; the last good checkpoint is .*u000000004.*--train\.lr"
    ):
        run(tiny(), tmp_path / "r", data_dir)
    assert checkpoint.newest(tmp_path / "r" / "checkpoints") is not None


def test_what_would_fail_later_fails_first(dataset: Dataset, data_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="allowed: test, train, val"):
        run(tiny(eval={"splits": ("tset",)}), tmp_path / "a", data_dir)
    open_folder(tmp_path / "b", tiny())
    with pytest.raises(UserError, match=r"train\.lr 0\.001 -> 0\.1"):
        open_folder(tmp_path / "b", tiny(train={"lr": 0.1}))
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "thesis.tex").write_text("precious", encoding="utf-8")
    with pytest.raises(UserError, match="not a run folder"):
        open_folder(tmp_path / "c", tiny())
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(UserError, match="cannot use"):
        open_folder(tmp_path / "file" / "run", tiny())


def test_a_full_disk_is_found_before_the_first_step(
    dataset: Dataset, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(UserError, match=r"GB free, checkpoints need"):
        run(tiny(), tmp_path / "r", data_dir)


def test_ctrl_c_saves_and_says_how_to_resume(dataset: Dataset, data_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "r"
    config = tiny(train={"updates": 100_000, "warmup": 2, "eval_every": 100_000, "save_every": 100_000})
    words = [w for w in words_of(folder, data_dir, config) if w != "--quiet"]
    training = start(words, tmp_path / "said")
    while len(read_log(folder / "metrics.jsonl")) < 1 and training.process.is_alive():
        time.sleep(0.05)
    training.send(signal.SIGINT)
    assert training.ended(60) == 0 and f"ponder train --resume {folder}" in training.said
    assert checkpoint.newest(folder / "checkpoints") is not None


@pytest.mark.skipif(native.missing() is not None, reason="there are no kernels here")
@pytest.mark.parametrize("older", [False, True])
def test_a_run_that_began_without_kernels_goes_on_without(
    older: bool, dataset: Dataset, data_dir: Path, tmp_path: Path
) -> None:
    """To the same bits. What an older ponder began, whose checkpoints do not say, had none either."""
    with native.without():
        assert run(tiny(), tmp_path / "whole", data_dir).finished
        run(tiny(), tmp_path / "parts", data_dir, Limits(updates=5))
    begun = checkpoint.newest(tmp_path / "parts" / "checkpoints")
    assert begun is not None and begun.state["kernels"] is None
    if older:
        state = files.read_json(begun.path / checkpoint.STATE)
        del state["kernels"]
        files.write_json(begun.path / checkpoint.STATE, state)
    assert run(tiny(), tmp_path / "parts", data_dir).finished
    assert same(final(tmp_path / "parts"), final(tmp_path / "whole"))
    run(tiny(), tmp_path / "ours", data_dir)
    assert not same(final(tmp_path / "ours"), final(tmp_path / "whole"))  # or this says nothing


def test_bf16_checkpoints_load_on_a_cpu(dataset: Dataset, data_dir: Path, tmp_path: Path) -> None:
    from ponder.inference.weights import open_weights

    config = tiny(train={"precision": "bfloat16", "updates": 4, "warmup": 0, "eval_every": 4})
    run(config, tmp_path / "r", data_dir)
    held = final(tmp_path / "r")
    assert held["carry-0.safetensors/h"].dtype == torch.bfloat16
    assert np.isfinite(open_weights(tmp_path / "r").model.embed.numpy()).all()
