"""All ACT steps of puzzles by one program, in turns: against the same step by step, and against an engine without
kernels of our own.

Step by step it is the same to the bit. How far it may be from the plain form is what one part in ten million, in every
weight, does to that.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from ponder.base import native
from ponder.domains.contract import Domain
from ponder.inference.engine import Engine, Forced, Full, Seen, forced
from ponder.model import halting, whole
from ponder.model.program import Program
from ponder.model.reasoner import Reasoner, Step
from ponder.model.sublayers import Form
from ponder.model.whole import Examined
from tests.model.test_kernels import same_bits, spied
from tests.model.test_whole import CASES, OTHERS, at_a_time, every_case, plays, poison, steps_of, tensors, threads
from tests.support.models import Batch
from tests.support.rounding import agree, limits

STEPS = 5
"""More than these models are trained for, or their puzzles ask for."""
NOBODY = cast(Domain, None)
"""No checker is asked."""
SIZE = 9


def arrays(b: Batch) -> tuple[Any, Any, Any]:
    return b.inputs.to(torch.uint8).numpy(), b.task_ids.numpy(), b.keys.numpy()


def run(model: Reasoner, b: Batch, steps: int = STEPS, precision: str = "float32") -> Forced:
    return forced(model, NOBODY, *arrays(b), steps, precision)


def engine(model: Reasoner, b: Batch, steps: int = STEPS, precision: str = "float32") -> Forced:
    """The same by an engine, step by step."""
    seen: list[Seen] = []
    Engine(model, NOBODY, len(b.keys), Full(), steps, precision=precision).run(*arrays(b), watch=seen.append)
    return Forced(*(np.stack([getattr(s, name) for s in seen]) for name in ("answers", "confidence", "halts")))


def same(a: Forced, b: Forced) -> bool:
    pairs = [(getattr(a, name), getattr(b, name)) for name in ("answers", "confidence", "halts")]
    return all(x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes() for x, y in pairs)


@torch.no_grad()
def examined(model: Reasoner, b: Batch, steps: int = STEPS) -> list[Tensor]:
    """What the program comes to: [steps, B, ...] each."""
    form = Form(model.config.h_cycles, 0.0, model.training)
    lib = whole.library(model, (), b.keys, form)
    assert lib is not None
    with spied() as called:
        found = whole.examine(lib, model, b.keys, b.inputs, model.table[b.task_ids], form, steps)
    assert set(called) <= {"play", "fold"}
    return [t for t in (found.answers, found.sure, found.q) if t is not None]


def undecided(name: str, b: Batch) -> Reasoner:
    """A model that halts at every other step."""
    model = CASES[name].model().eval()
    if model.q_head is not None:
        q = examined(model, b)[2]
        by = q[..., 0] - (q[..., 1] if model.config.halting == "halt+continue" else 0.0)
        with torch.no_grad():
            model.q_head.bias[0] -= by.median()
    return model


@contextmanager
def not_examined() -> Iterator[None]:
    def examine(*given: Any) -> Examined:
        raise AssertionError("it was examined")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whole, "examine", examine)
        yield


# Against the steps one by one -----------------------------------------------------------------------------------------


@every_case
@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
def test_all_steps_at_once_are_the_steps_one_by_one(name: str, train: bool) -> None:
    """To the bit, with dropout too."""
    case = CASES[name]
    model, b = case.model().train(train), case.puzzles(SIZE)
    with at_a_time(4):
        answers, sure, *q = examined(model, b)
        singly = steps_of(model, b, STEPS, noise=0.0)
    for t, step in enumerate(singly):
        read = halting.read(step)
        assert torch.equal(answers[t], read.answers)
        assert same_bits([sure[t]], [read.confidence])
        columns = [column for column in (step.q_halt, step.q_continue) if column is not None]
        assert same_bits([q[0][t, :, i].contiguous() for i in range(len(columns))], columns)
    assert case.config.states == 0 or not torch.equal(sure[0], sure[1]), "every step says the same"


@every_case
def test_what_is_read_off_is_what_an_engine_reads(name: str) -> None:
    """Answers, confidence, and who would halt."""
    b = CASES[name].puzzles(SIZE)
    model = undecided(name, b)
    found = run(model, b)
    assert same(found, engine(model, b))
    assert len(found.answers) == (STEPS if model.config.states else 1)
    if model.config.halting != "none":
        assert found.halts.any() and not found.halts.all()


# Against the plain form -----------------------------------------------------------------------------------------------


def margin(step: Step) -> Tensor:
    """By how much halting beats going on."""
    if step.q_halt is None:
        return torch.zeros(len(step.logits))
    return step.q_halt if step.q_continue is None else step.q_halt - step.q_continue


def numbers(model: Reasoner, b: Batch, steps: int) -> list[Tensor]:
    made = steps_of(model, b, steps, noise=0.0)
    return [t for step in made for t in (step.logits, halting.read(step).confidence, margin(step))]


@pytest.mark.numeric
@every_case
def test_answers_are_those_of_an_engine_without_kernels(name: str) -> None:
    b = CASES[name].puzzles(5)
    model = undecided(name, b)
    steps = 2 if model.config.states else 1
    with native.without(), not_examined(), spied() as called:
        within, plain = limits(partial(numbers, model, b, steps), tensors(model)), numbers(model, b, steps)
        expected = run(model, b, steps)
    assert called == []
    with spied() as called:
        found = run(model, b, steps)
    assert set(called) - {"fold"} == {"play"}
    assert len(found.answers) == len(expected.answers) == steps
    reach = [limit * float(t.norm()) for t, limit in zip(plain, within, strict=True)]
    for t in range(steps):
        logits, sure, by = plain[3 * t : 3 * t + 3]
        best, second = logits.topk(2, dim=-1).values.unbind(dim=-1)
        clear = best - second > 2 * reach[3 * t]
        assert clear.sum() > clear.numel() / 2
        assert np.array_equal(found.answers[t][clear], expected.answers[t][clear])
        agree([torch.from_numpy(found.confidence[t])], [sure], within[3 * t + 1 : 3 * t + 2])
        clear = by.abs() > reach[3 * t + 2] if model.q_head is not None else torch.ones(len(by), dtype=torch.bool)
        assert clear.any() and np.array_equal(found.halts[t][clear], expected.halts[t][clear])


# Examples and threads -------------------------------------------------------------------------------------------------


def taken(found: list[Tensor], index: list[int]) -> list[Tensor]:
    return [t[:, index] for t in found]


def equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return same_bits([t.contiguous() for t in a], [t.contiguous() for t in b])


@every_case
def test_an_example_is_the_same_alone_and_among_others(name: str) -> None:
    """To the bit, wherever it stands, for all numbers of examples around those that go at a time, by one thread and by
    two."""
    case = CASES[name]
    model, b = case.model().train(), case.puzzles(SIZE)
    with at_a_time(4):
        with threads(1):
            together = examined(model, b)
        for count in (1, 2):
            with threads(count):
                for index in ([8], [0, 1, 2], [5, 1, 8, 3], [3, 8, 1, 5, 0], [8, 7, 6, 5, 4, 3, 2, 1, 0]):
                    with plays() as played:
                        found = examined(model, b.take(torch.tensor(index)))
                    assert len(played) == min(count, len(index)) and {most for _, _, most in played} == {4}
                    assert equal(found, taken(together, index)), (count, index)


@pytest.mark.parametrize("name", ["every stabiliser", "symbols"])
def test_as_many_examples_as_a_program_takes(name: str) -> None:
    case = CASES[name]
    model = case.model().eval()
    with plays() as played:
        examined(model, case.puzzles(1), 2)
    most = played[0][-1]
    assert most > 1
    b = case.puzzles(2 * most + 1)
    with threads(1):
        together = examined(model, b, 2)
    for size, count in ((most - 1, 1), (most, 1), (most + 1, 1), (most + 1, 2), (2 * most + 1, 2), (2 * most + 1, 3)):
        with threads(count):
            assert equal(examined(model, b.take(torch.arange(size)), 2), taken(together, [*range(size)]))


@pytest.mark.parametrize(
    "name", ["every stabiliser", "bound", "one state", "dense", "across", "symbols, two states", "asked"]
)
def test_what_lay_in_memory_before_has_no_influence(name: str) -> None:
    case, empty = CASES[name], torch.empty
    model, b = case.model().eval(), case.puzzles(5)
    first = examined(model, b)

    def worst(*size: Any, **more: Any) -> Tensor:
        made = empty(*size, **more)
        return made.fill_(torch.nan if made.is_floating_point() else -1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", worst)
        poison()
        assert equal(examined(model, b), first)
    assert not any(t.isnan().any() for t in first)


def test_fewer_steps_are_the_first_of_more() -> None:
    for name in ("every stabiliser", "bound", "asked, attention"):
        model, b = CASES[name].model().eval(), CASES[name].puzzles(5)
        many = examined(model, b, 7)
        for steps in (1, 2, 6):
            assert equal(examined(model, b, steps), [t[:steps] for t in many])


# What it depends on, and what it leaves alone -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["asked", "asked, two states", "asked, attention"])
def test_a_puzzle_that_asks_for_steps_stays_where_they_end(name: str) -> None:
    case = CASES[name]
    model, b = case.model().eval(), case.puzzles(8)
    assert model.asked is not None
    asked = model.asked(b.inputs).tolist()
    assert set(asked) == {0, 1, 2, 3}
    found = run(model, b)
    answers, sure = examined(model, b)
    for i, end in enumerate(asked):
        last = max(end, 1) - 1
        assert found.halts[:, i].tolist() == [t + 1 >= end for t in range(STEPS)]
        assert all(torch.equal(answers[t, i], answers[last, i]) for t in range(last, STEPS))
        assert sure[last:, i].unique().numel() == 1, "it went on"
        assert sure[: last + 1, i].unique().numel() == last + 1, "it stopped before"


def test_where_examples_begin_depends_on_their_keys_where_it_is_random() -> None:
    for name, matters in (("bound", True), ("every stabiliser", False)):
        model, b = CASES[name].model().eval(), CASES[name].puzzles(5)
        assert equal(examined(model, b), examined(model, replace(b, keys=b.keys + 1))) != matters


@pytest.mark.parametrize("name", ["every stabiliser", "bound", "separate", "dense", "asked, two states"])
@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
def test_nothing_is_changed(name: str, train: bool) -> None:
    case = CASES[name]
    model, b = case.model().train(train), case.puzzles(SIZE)
    inputs, task_ids, keys = given = arrays(b)
    held = [t.clone() for t in tensors(model)]
    before, state = [each.copy() for each in given], torch.get_rng_state()
    first = forced(model, NOBODY, inputs, task_ids, keys, STEPS)
    kept = [getattr(first, n).copy() for n in ("answers", "confidence", "halts")]
    assert same_bits([t.view(torch.float32) for t in tensors(model)], held)
    assert all(np.array_equal(x, y) for x, y in zip(given, before, strict=True))
    assert torch.equal(torch.get_rng_state(), state) and model.training == train
    assert same(run(model, b), Forced(*kept)) and same(first, Forced(*kept)), "of the run before"
    assert all(p.grad is None for p in model.parameters())


def test_arrays_need_not_lie_side_by_side() -> None:
    model, b = CASES["every stabiliser"].model().eval(), CASES["every stabiliser"].puzzles(4)
    inputs, task_ids, keys = spread = [np.stack((each, each), axis=-1)[..., 0] for each in arrays(b)]
    assert not any(each.flags.c_contiguous for each in spread)
    assert same(forced(model, NOBODY, inputs, task_ids, keys, STEPS), run(model, b))


def test_weights_are_those_of_the_moment() -> None:
    for name in ("every stabiliser", "across", "symbols"):
        model, other, b = CASES[name].model().eval(), CASES[name].model().eval(), CASES[name].puzzles(3)
        before = examined(model, b)
        for each in (model, other):
            with torch.no_grad():
                for parameter in each.parameters():
                    parameter.mul_(1.1)
        after = examined(model, b)
        assert not equal(before, after) and equal(after, examined(other, b))


@pytest.mark.parametrize("name", ["every stabiliser", "separate", "bound", "dense", "across", "symbols", "asked"])
def test_a_model_that_diverged_is_never_confident(name: str) -> None:
    """Where one puzzle of three has what is no number in it, the others are as they were; and where all have."""
    case = CASES[name]
    model, b = case.model().eval(), case.puzzles(SIZE)
    b.inputs[b.inputs == 0] = 1
    b.inputs[1::3, 0] = 0
    before = run(model, b)
    for rows in (model.embed[:1], model.embed):
        with torch.no_grad():
            rows.fill_(torch.nan)
        gone = np.full(SIZE, len(rows) > 1) | (np.arange(SIZE) % 3 == 1)
        if model.asked is not None:  # what asks for no steps never looks at its puzzle
            gone &= (model.asked(b.inputs) > 0).numpy()
        with native.without(), not_examined():
            plain = run(model, b)
        found = run(model, b)
        assert (found.confidence[:, gone] == -np.inf).all() and (plain.confidence[:, gone] == -np.inf).all()
        assert same(found, engine(model, b))
        assert model.asked is not None or not found.halts[:, gone].any()
        rest = [getattr(each, n)[:, ~gone] for each in (found, before) for n in ("answers", "confidence", "halts")]
        assert same(Forced(*rest[:3]), Forced(*rest[3:])) and np.isfinite(rest[1]).all()


# Where an engine does it ----------------------------------------------------------------------------------------------


def by_an_engine(model: Reasoner, b: Batch, precision: str = "float32") -> None:
    with not_examined():
        found = run(model, b, 2, precision)
    assert same(found, engine(model, b, 2, precision))


def test_in_bfloat16() -> None:
    for name in ("every stabiliser", "bound", "asked"):
        by_an_engine(CASES[name].model().eval(), CASES[name].puzzles(4), "bfloat16")


@pytest.mark.parametrize("name", [name for name in OTHERS if name not in ("too deep", "noise of odd sizes")])
def test_a_model_that_is_not_covered(name: str) -> None:
    model, b = OTHERS[name].model().train(), OTHERS[name].puzzles(2)
    by_an_engine(model, b)


def hooked(model: Reasoner) -> None:
    model.low.layers[0].register_forward_hook(lambda *given: None)


def hooked_itself(model: Reasoner) -> None:
    model.register_forward_hook(lambda *given: None)


def exact(model: Reasoner) -> None:
    assert model.update is not None
    model.update.exact = True


@pytest.mark.parametrize("change", [hooked, hooked_itself, exact], ids=lambda change: change.__name__)
def test_whoever_looks_on_or_wants_another_derivative_gets_an_engine(change: Callable[[Reasoner], None]) -> None:
    model, b = CASES["every stabiliser"].model().eval(), CASES["every stabiliser"].puzzles(2)
    with not_examined(), pytest.raises(AssertionError, match="examined"):
        run(model, b)
    change(model)
    by_an_engine(model, b)


@pytest.mark.parametrize("name", ["every stabiliser", "asked", "dense"])
def test_no_more_answers_are_held_than_there_is_room_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name] if name in CASES else OTHERS[name]
    model, b = case.model().eval(), case.puzzles(SIZE)
    expected = run(model, b)
    sizes, examine = list[int](), whole.examine

    def spy(*given: Any) -> Examined:
        found = examine(*given)
        sizes.append(found.answers.shape[1])
        return found

    monkeypatch.setattr(whole, "examine", spy)
    monkeypatch.setattr("ponder.inference.engine.SLOTS", 1)
    monkeypatch.setattr("ponder.inference.engine.ROOM", 4 * STEPS * model.tokens)
    assert same(run(model, b), expected)
    assert sizes == [4, 4, 1]


@pytest.mark.parametrize("wrong", ["token", "length", "task"])
def test_what_does_not_fit_is_refused(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an engine refuses it, and before C reads beyond the end."""
    model, b = CASES["every stabiliser"].model().eval(), CASES["every stabiliser"].puzzles(3)
    if wrong == "token":
        b = replace(b, inputs=b.inputs + model.vocab)
    elif wrong == "length":
        b = replace(b, inputs=b.inputs[:, :-1])
    else:
        b = replace(b, task_ids=b.task_ids + len(model.table))

    def play(*given: Any) -> None:
        raise AssertionError("it was played")

    monkeypatch.setattr(Program, "play", play)
    for around in (native.without(), nullcontext()):
        with around, pytest.raises((IndexError, RuntimeError)):
            run(model, b)
