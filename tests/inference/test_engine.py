"""The slot engine: every puzzle gets what it would get alone, under every policy, at the cost of its own steps."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

from ponder.base.errors import UserError
from ponder.base.runtime import Runtime, carry_dtype
from ponder.base.stats import paired
from ponder.cli import main
from ponder.data import Dataset
from ponder.domains.contract import Batch, Bools, Domain, Ints, Tokens
from ponder.evaluation import records as evaluate
from ponder.evaluation.compare import all_policies, compare_policies
from ponder.evaluation.subject import subject
from ponder.inference.engine import Checker, Engine, Finished, Full, Halt, Policy, Seen, Settled, Stable
from ponder.inference.solver import Solver
from ponder.inference.tries import Floats
from ponder.inference.weights import Opened
from ponder.model import cost
from ponder.model.reasoner import Reasoner
from ponder.training.loop import Limits
from ponder.training.runs import train_in
from ponder.training.slots import make_slots
from tests.conftest import tiny
from tests.support.rounding import apart, limits, sayings
from tests.support.stub import NEVER, Stub, solved

HERE = Runtime(torch.device("cpu"))
SURE = 0.884
POLICIES: list[Policy] = [Full(), Halt(), Halt(SURE), Stable(1), Stable(2), Checker()]
TASKS = 3


@dataclass(frozen=True)
class Case:
    """A model, puzzles for it and a budget."""

    model: Reasoner
    domain: Domain
    inputs: Tokens
    labels: Tokens
    task_ids: Ints
    budget: int
    reach: Floats
    """[steps, puzzles] how far rounding may move the halting logits; not at all where the trajectory is made up."""


def random_case(dataset: Dataset, halting: str = "halt+continue") -> Case:
    """A random Reasoner whose halting head and table say something."""
    torch.manual_seed(1)
    config = tiny(model={"halting": halting}).model
    model = Reasoner(config, len(dataset.domain.vocab), dataset.domain.seq_len, TASKS).eval()
    with torch.no_grad():
        assert model.q_head is not None
        model.q_head.weight.normal_()
        model.q_head.bias.zero_()
        model.table.normal_()
        model.head.weight.mul_(5)
    everything = np.arange(50)
    batch = dataset.source("test").fetch(everything, np.zeros_like(everything))
    said = sayings(model, torch.from_numpy(batch.inputs).long(), torch.from_numpy(everything % TASKS), 6)
    # Puzzles of which rounding can turn no answer and no decision to halt, at whatever batch size.
    sure = [s.answers & s.halting & ((s.q_halt - math.log(SURE / (1 - SURE))).abs() > s.reach) for s in said]
    index = np.flatnonzero(torch.stack(sure).all(dim=0).numpy())[:23]
    assert len(index) == 23
    reach = torch.stack([s.reach for s in said]).numpy()[:, index]
    return Case(model, dataset.domain, batch.inputs[index], batch.labels[index], index % TASKS, 6, reach)


def stub_case(dataset: Dataset, count: int = 23) -> Case:
    index = np.arange(count)
    batch = dataset.source("test").fetch(index, np.zeros_like(index))
    first = np.where(index % 7 == 3, NEVER, 1 + index % 6)
    model = Stub(batch.inputs, batch.labels, first, len(dataset.domain.vocab))
    reach = np.zeros((8, count), dtype=np.float32)
    return Case(cast(Reasoner, model), dataset.domain, batch.inputs, batch.labels, np.zeros_like(index), 8, reach)


@pytest.fixture(scope="module")
def cases(dataset: Dataset) -> dict[str, Case]:
    return {"random": random_case(dataset), "halt-only": random_case(dataset, "halt"), "stub": stub_case(dataset)}


@torch.no_grad()
def forced(case: Case) -> list[dict[str, Any]]:
    """The plain fixed-batch run: all puzzles, all steps, nobody leaves."""
    model = case.model
    inputs = torch.from_numpy(case.inputs).long()
    rows = model.table[torch.from_numpy(case.task_ids)]
    carry = model.start(torch.zeros(len(inputs), dtype=torch.int64))
    out = []
    for _ in range(case.budget):
        step = model(carry, inputs, rows, noise=0.0)
        carry = step.carry
        said = {"answers": step.logits.argmax(-1).numpy().astype(np.uint8), "logits": step.logits}
        q_continue = None if step.q_continue is None else step.q_continue.numpy()
        out.append({**said, "q_halt": step.q_halt.numpy(), "q_continue": q_continue})
    return out


def expected_step(policy: Policy, case: Case, steps: list[dict[str, Any]], i: int) -> int:
    """After which step puzzle i should leave, told from its whole trajectory."""
    answers = [s["answers"][i].tolist() for s in steps]
    for t, said in enumerate(steps, start=1):
        q = float(said["q_halt"][i])
        match policy:
            case Halt(threshold=None):
                over = q > (0 if said["q_continue"] is None else float(said["q_continue"][i]))
            case Halt(threshold=p):
                over = 1 / (1 + np.exp(-q)) > cast(float, p)
            case Stable(steps=m):
                over = t > m and all(a == answers[t - 1] for a in answers[t - 1 - m : t])
            case Checker():
                over = solved(case.inputs[i], said["answers"][i], 4)
            case _:
                over = False
        if over:
            return t
    return case.budget


def run(case: Case, policy: Policy, slots: int, order: Ints | None = None) -> tuple[Finished, Engine]:
    engine = Engine(case.model, case.domain, slots, policy, case.budget)
    order = np.arange(len(case.inputs)) if order is None else order
    return engine.run(case.inputs[order], case.task_ids[order]), engine


@pytest.mark.numeric
@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.name)
@pytest.mark.parametrize("kind", ["random", "halt-only", "stub"])
def test_the_engine_is_the_plain_run(kind: str, policy: Policy, cases: dict[str, Case]) -> None:
    """Steps, answers and confidence, for numbers of slots that divide nothing, in any order of arrival."""
    case = cases[kind]
    steps = forced(case)
    wanted = np.array([expected_step(policy, case, steps, i) for i in range(len(case.inputs))])
    if kind == "stub" and policy != Full():
        assert len(set(wanted.tolist())) > 2, "a case in which all leave together shows little"
    shuffled = np.random.default_rng(0).permutation(len(wanted))
    for slots, order in ((3, np.arange(23)), (5, shuffled), (100, np.arange(23))):
        if kind == "stub":
            cast(Stub, case.model).rows_run = cast(Stub, case.model).largest = 0
        out, engine = run(case, policy, slots, order)
        assert out.steps.tolist() == wanted[order].tolist()
        last = [steps[t - 1] for t in out.steps]
        assert (out.answers == np.stack([s["answers"][i] for s, i in zip(last, order, strict=True)])).all()
        found = np.array([s["q_halt"][i] for s, i in zip(last, order, strict=True)])
        assert (np.abs(out.confidence - found) <= case.reach[out.steps - 1, order]).all()
        assert engine.slot_steps == wanted.sum() and engine.idle
        if kind == "stub":
            model = cast(Stub, case.model)
            assert model.rows_run == wanted.sum(), "a finished puzzle was still worked on"
            assert model.largest == min(slots, 23)


class Spy(nn.Module):
    """Passes everything on to a model and keeps the logits of every call."""

    def __init__(self, model: Reasoner) -> None:
        super().__init__()
        self.model, self.calls = model, list[torch.Tensor]()
        self.config, self.table, self.start = model.config, model.table, model.start

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        step = self.model(*args, **kwargs)
        self.calls.append(step.logits)
        return step


@pytest.mark.numeric
def test_compacted_or_not_the_logits_agree(dataset: Dataset) -> None:
    """Puzzles leave one after the other, so that the batch shrinks and is refilled; each keeps its own trajectory."""
    case = random_case(dataset)
    steps = forced(case)
    within = limits(lambda: [s["logits"][i] for s in forced(case) for i in range(23)], case.model.state_dict().values())
    spy = Spy(case.model)
    seen: list[Seen] = []
    Engine(cast(Reasoner, spy), case.domain, 9, Halt(), case.budget).run(case.inputs, case.task_ids, watch=seen.append)
    sizes = {len(s.tickets) for s in seen}
    assert 9 in sizes and len(sizes) > 1
    for step, logits in zip(seen, spy.calls, strict=True):
        for row, (ticket, t) in enumerate(zip(step.tickets, step.steps, strict=True)):
            assert apart(logits[row], steps[t - 1]["logits"][ticket]) <= within[23 * (t - 1) + ticket]


def left(engine: Engine) -> dict[int, tuple[Tokens, int, float]]:
    """Who leaves at the next step: ticket -> answer, steps, confidence."""
    seen, done = engine.advance()
    return {
        int(seen.tickets[i]): (seen.answers[i], int(seen.steps[i]), float(seen.confidence[i]))
        for i in np.flatnonzero(done)
    }


def test_late_arrivals_change_nothing(dataset: Dataset) -> None:
    """Puzzles that come while others think get the answers of a run in which all came at once."""
    case = stub_case(dataset)
    whole, _ = run(case, Halt(), 4)
    engine = Engine(case.model, case.domain, 4, Halt(), case.budget)
    found = {}
    for i in range(len(case.inputs)):
        assert engine.admit(case.inputs[i]) == i
        found.update(left(engine))
    while not engine.idle:
        found.update(left(engine))
    for i, (answer, steps, confidence) in found.items():
        assert steps == whole.steps[i] and (answer == whole.answers[i]).all()
        assert confidence == float(whole.confidence[i])
    assert len(found) == len(case.inputs)
    with pytest.raises(RuntimeError, match="admit"):
        engine.advance()


class Counting:
    """A domain that counts what its checker is shown."""

    checkable = True
    name = "counting"

    def __init__(self, domain: Domain) -> None:
        self.domain, self.shown = domain, 0

    def check(self, inputs: Tokens, answers: Tokens) -> Bools:
        self.shown += len(inputs)
        return self.domain.check(inputs, answers)


def test_the_checker_sees_changed_answers_only_and_nothing_refused_leaves_early(dataset: Dataset) -> None:
    case = stub_case(dataset)
    counting = Counting(case.domain)
    engine = Engine(case.model, cast(Domain, counting), 5, Checker(), case.budget)
    kept: list[Seen] = []
    out = engine.run(case.inputs, watch=kept.append)
    for seen in kept:
        assert seen.accepted is not None and (seen.accepted == case.domain.check(seen.inputs, seen.answers)).all()
    assert out.accepted is not None
    early = out.steps < case.budget
    right = np.array([solved(p, a, 4) for p, a in zip(case.inputs, out.answers, strict=True)])
    assert right[early].all() and (out.accepted == right).all() and early.any() and (~right).any()
    answers = np.stack([s["answers"] for s in forced(case)], axis=1)
    changes = sum(1 + int((answers[i, 1:t] != answers[i, : t - 1]).any(axis=1).sum()) for i, t in enumerate(out.steps))
    assert counting.shown == changes < out.steps.sum()
    Engine(case.model, cast(Domain, counting), 5, Full(), case.budget).run(case.inputs)
    assert counting.shown == changes, "a policy that does not ask should not pay"


def test_the_first_answer_is_new_even_when_it_is_blank(dataset: Dataset) -> None:
    case = stub_case(dataset)
    blank = Stub(case.inputs, np.zeros_like(case.labels), np.ones(23, dtype=np.int64), len(case.domain.vocab))
    out = Engine(cast(Reasoner, blank), case.domain, 5, Stable(1), 8).run(case.inputs)
    assert not out.answers.any() and (out.steps == 2).all()


def test_dropped_puzzles_are_gone_and_the_others_as_before(dataset: Dataset) -> None:
    case = stub_case(dataset)
    whole, _ = run(case, Full(), 4)
    engine = Engine(case.model, case.domain, 4, Full(), case.budget)
    for row in case.inputs[:8]:
        engine.admit(row)
    engine.advance()
    engine.drop([1, 3, 6])  # two that hold slots, one that waits
    found = {}
    while not engine.idle:
        found.update(left(engine))
    assert sorted(found) == [0, 2, 4, 5, 7]
    assert all((answer == whole.answers[i]).all() and t == case.budget for i, (answer, t, _) in found.items())
    assert engine.slot_steps == 5 * case.budget + 2


def test_a_model_without_states_takes_one_step(dataset: Dataset) -> None:
    from ponder.config.resolve import resolve

    sizes = {"width": 16, "heads": 2, "expansion": 1.0, "layers": 1}
    config = resolve("sudoku-mini", "dense", {"model": sizes}).model
    model = Reasoner(config, len(dataset.domain.vocab), dataset.domain.seq_len).eval()
    inputs = dataset.source("val").fetch(np.arange(5), np.zeros(5, dtype=np.int64)).inputs
    out = Engine(model, dataset.domain, 2, Full(), 16).run(inputs)
    assert out.steps.tolist() == [1] * 5 and (out.confidence < 0).all()
    assert [p.name for p in all_policies(model, dataset.domain)] == ["full", "checker"]
    for policy, why in ((Halt(), "halting head"), (Settled(0.1), "needs a state")):
        with pytest.raises(UserError, match=why):
            Engine(model, dataset.domain, 2, policy)


def test_settled_puzzles_leave(dataset: Dataset) -> None:
    """The stub's state grows by the same amount at each step, from 0: at step t it moves by 1 / (t - 1) of its size."""
    case = stub_case(dataset)
    for residual, step in ((1.5, 2), (0.4, 4), (0.3, 5), (0.01, case.budget)):
        out, _ = run(case, Settled(residual), 5)
        assert out.steps.tolist() == [step] * len(case.inputs)


def test_what_cannot_be_is_refused(dataset: Dataset) -> None:
    case = stub_case(dataset)
    for wrong in (0.0, 1.0, -3.0):
        with pytest.raises(UserError, match="between 0 and 1"):
            Halt(wrong)
    with pytest.raises(UserError, match="1 or more"):
        Stable(0)
    with pytest.raises(UserError, match="positive"):
        Settled(0.0)
    for bad in ({"budget": 0}, {"slots": 0}):
        with pytest.raises(UserError, match="at least 1"):
            Engine(case.model, case.domain, **cast(Any, bad))
    blind = Counting(case.domain)
    blind.checkable = False
    with pytest.raises(UserError, match="needs a checker"):
        Engine(case.model, cast(Domain, blind), 4, Checker())


@torch.no_grad()
def plain_bfloat16(case: Case, dtype: torch.dtype) -> list[tuple[Tokens, Any]]:
    """Each puzzle by itself: answers and halting logits [puzzle, step], from states kept in `dtype`."""
    out = []
    for i in range(len(case.inputs)):
        carry, row = case.model.start(torch.zeros(1, dtype=torch.int64), dtype), []
        for _ in range(case.budget):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                inputs = torch.from_numpy(case.inputs[i : i + 1]).long()
                step = case.model(carry, inputs, case.model.table[case.task_ids[i : i + 1]])
            carry = step.carry
            assert step.q_halt is not None
            row.append((step.logits[0].argmax(-1).numpy().astype(np.uint8), step.q_halt[0].numpy()))
        out.append(row)
    return [(np.stack([a for a, _ in row]), np.stack([q for _, q in row])) for row in out]


def test_in_bfloat16_there_is_one_loop(dataset: Dataset) -> None:
    """Evaluation, engine and every policy, bit for bit, and the states are bfloat16 from the start as in training."""
    case = random_case(dataset)
    case = replace(case, inputs=case.inputs[:9], labels=case.labels[:9], task_ids=case.task_ids[:9])
    answers, logits = (np.stack(part) for part in zip(*plain_bfloat16(case, torch.bfloat16), strict=True))
    _, wide = (np.stack(part) for part in zip(*plain_bfloat16(case, torch.float32), strict=True))
    assert not np.array_equal(logits, wide), "here the type of the first states makes no difference"
    seen: list[Tokens] = []
    for i in range(9):
        batch = Batch(*(getattr(case, name)[i : i + 1] for name in ("inputs", "labels", "task_ids")))
        how = evaluate.Settings(case.budget, batch=1, precision="bfloat16")
        records, found = evaluate.run_batch(case.model, case.domain, batch, np.array([i]), how)
        seen += [*found.answers[:, 0]]
        assert np.array_equal(records.confidence[0], logits[i])
    assert np.array_equal(seen, answers.reshape(9 * case.budget, -1))
    for policy in POLICIES:
        engine = Engine(case.model, case.domain, 1, policy, case.budget, precision="bfloat16")
        out = engine.run(case.inputs, case.task_ids)
        at = np.arange(9), out.steps - 1
        assert np.array_equal(out.answers, answers[at]) and np.array_equal(out.confidence, logits[at])
    slots = make_slots(tiny(), case.model, case.domain, HERE, carry_dtype("bfloat16"))
    assert slots[0].carry.states.h is not None and slots[0].carry.states.h.dtype == torch.bfloat16


def test_bfloat16_runs_and_refills(dataset: Dataset) -> None:
    case = random_case(dataset)
    engine = Engine(case.model, case.domain, 4, Halt(), case.budget, precision="bfloat16")
    out = engine.run(case.inputs[:9], case.task_ids[:9])
    assert (out.steps >= 1).all() and engine.slot_steps == out.steps.sum()


# Policies side by side, and the Solver --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(dataset: Dataset, data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder of a few updates."""
    path = tmp_path_factory.mktemp("runs") / "brief"
    config = tiny(train={"updates": 6, "warmup": 0, "eval_every": 6, "save_every": 6})
    train_in(config, path, data_dir, HERE, Limits(), quiet=True)
    return path


def test_the_comparison_agrees_with_the_main_protocol(dataset: Dataset) -> None:
    case = stub_case(dataset, 50)
    model, domain = case.model, dataset.domain
    what = subject(Opened("stub", Path("stub"), model, tiny(), domain, None, ""), dataset, limit=17)
    comparison = compare_policies(what, budget=5, policies=[Halt(), Stable(1)], slots=4)
    records = evaluate.run_split(model, domain, dataset.source("test"), evaluate.Settings(5, 100, limit=17), HERE)
    assert [r.policy for r in comparison.results] == ["full", "halt", "stable 1"]
    full, halt, _ = comparison.results
    assert full.exact.value == evaluate.final_scores(records)["exact"] and full.mean_steps == full.max_steps == 5
    assert 0.2 < full.exact.value < 0.9 and 1 < halt.mean_steps < 4
    np.testing.assert_allclose(comparison.steps.value, records.exact.mean(axis=0))
    assert halt.mean_steps == pytest.approx(evaluate.picked_steps(records)["halting"].mean() + 1)
    assert halt.exact.value == evaluate.answered(records, "exact", "halting").mean()
    each = cost.cost(model.config, len(domain.vocab), domain.seq_len)
    assert halt.flops == halt.mean_steps * each.work.inference
    assert halt.applications == halt.mean_steps * cost.applications(model.config)


def test_paired_differences() -> None:
    a = np.array([1] * 60 + [0] * 40, dtype=bool)
    b = np.array([1] * 50 + [0] * 50, dtype=bool)
    said = paired(a, b)
    assert said["value"] == pytest.approx(0.1) and 0 < said["low"] < 0.1 < said["high"] < 0.2
    same = paired(a, a)
    assert same["value"] == 0 and same["low"] == -same["high"] and 0 < same["high"] < 0.03
    back = paired(b, a)
    assert back["low"] == pytest.approx(-said["high"])


def ponder(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(list(words))
    out = capsys.readouterr()
    return code, out.out, out.err


def test_the_command(folder: Path, data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["policies", str(folder), "--data-dir", str(data_dir), "--limit", "9", "--budget", "3", "--device", "cpu"]
    code, out, _ = ponder(capsys, *words, "--threshold", "0.2", "--stable", "2")
    assert code == 0 and all(name in out for name in ("full", "halt > 0.2", "stable 2", "checker", "a second"))
    said = json.loads((folder / "policies.json").read_text(encoding="utf-8"))
    assert said["n"] == 9 and said["data_hash"] and said["checkpoint"]["sha256"] and len(said["steps"]["value"]) == 3
    assert [r["policy"] for r in said["results"]] == ["full", "halt", "halt > 0.2", "stable 2", "checker"]
    assert (folder / "policies.png").stat().st_size > 10_000
    code, _, err = ponder(capsys, *words, "--split", "tset")
    assert code == 2 and "allowed: test, train, val" in err
    code, _, err = ponder(capsys, *words, "--threshold", "2")
    assert code == 2 and "between 0 and 1" in err


def test_solver(folder: Path, dataset: Dataset) -> None:
    """One puzzle or many, streamed or not: the same answers."""
    solver = Solver(folder, steps=4)
    inputs = dataset.source("val").fetch(np.arange(40), np.zeros(40, dtype=np.int64)).inputs
    no_ids = torch.zeros(40, dtype=torch.int64)
    said = sayings(solver.opened.model, torch.from_numpy(inputs).long(), no_ids, 4)
    which = torch.stack([s.answers for s in said]).all(dim=0).nonzero().flatten()[:3].tolist()
    inputs = inputs[which]
    texts = [dataset.domain.format(row) for row in inputs]
    many = solver.solve_many(texts)
    assert len(many) == 3 and solver.solve_many([]) == []
    for number, text, row, answer in zip(which, texts, inputs, many, strict=True):
        stream = list(solver.stream(text))
        alone: Sequence[Any] = solver.solve(dataset.domain.to_json(row)).trace
        for trace in (answer.trace, alone):
            assert [t.step for t in trace] == [t.step for t in stream]
            assert all((a.answer == b.answer).all() for a, b in zip(trace, stream, strict=True))
            assert all((a.changed == b.changed).all() for a, b in zip(trace, stream, strict=True))
        assert answer.verified is solved(row, answer.tokens, 4) and answer.steps == len(stream)
        reach = float(said[answer.steps - 1].reach[number])
        assert abs(answer.confidence - stream[-1].confidence) <= reach and 0 <= answer.confidence <= 1
        assert dataset.domain.parse_answer(row, answer.text).tolist() == answer.tokens.tolist() or not answer.verified
