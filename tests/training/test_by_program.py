"""Micro-steps by programs against the same by autograd, without kernels of our own: losses, gradients, what goes on.

How far both may be apart is what one part in ten million, in every weight, does to the plain form.
"""

import gc
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ponder.base import native
from ponder.base.native import Library
from ponder.base.runtime import Runtime
from ponder.config.resolve import Config
from ponder.config.schema import TrainConfig
from ponder.model import whole
from ponder.model.layers import Layer
from ponder.model.reasoner import Carry, Reasoner
from ponder.model.recurrence import States
from ponder.model.sublayers import Form
from ponder.training import micro
from ponder.training.micro import Depth, Moment, micro_step
from ponder.training.optimisers import Weights
from ponder.training.slots import Slots
from tests.conftest import tiny
from tests.model.test_kernels import drawn, same_bits, spied
from tests.model.test_program import Rule
from tests.model.test_whole import CASES, Case, at_a_time, every_case, plays, poison, tensors, threads
from tests.support import naive
from tests.support.models import Batch
from tests.support.rounding import agree, limits

CPU = Runtime(torch.device("cpu"))
BASE = tiny()
SIZE = 9
"""Slots: with none, one and two steps done, and the last one next."""


@dataclass
class Class:
    """A model, its flat weights, and slots in the middle of a training."""

    case: Case
    size: int = SIZE
    train: dict[str, Any] = field(default_factory=dict)
    steps: tuple[int, ...] = (0, 1, 2)

    def __post_init__(self) -> None:
        self.model: Reasoner = self.case.model().train()
        self.weights = Weights(self.model)
        train = TrainConfig.model_validate({"batch": 2 * self.size, "updates": 1, **self.train})
        self.config: Config = BASE.model_copy(update={"model": self.case.config, "train": train})
        self.puzzles: Batch = self.case.puzzles(self.size)
        self.carry = self.carried()
        self.labels = self.labelled()
        shown = [self.labels, *(self.labels.roll(n, 1) for n in (1, 2))]
        self.beside = torch.stack(shown, dim=1).to(torch.uint8) if self.model.asked is not None else None
        self.index = torch.arange(self.size)

    @property
    def depth(self) -> Depth:
        return Depth(self.case.config.max_steps, self.case.config.h_cycles)

    def carried(self) -> Carry:
        """Fresh ones as they start, the others anywhere."""
        carry = self.model.start(self.puzzles.keys)
        cycle = self.steps if self.case.config.states else (0,)
        steps = torch.tensor([cycle[i % len(cycle)] for i in range(self.size)])
        old = (steps > 0)[:, None, None]
        held = [torch.where(old, drawn(*z.shape, seed=n), z) for n, z in enumerate(carry.states.held)]
        return Carry(States.of(held), steps, carry.key)

    def labelled(self) -> Tensor:
        """Here and there none, the second example without any, and those of every fourth what the model says."""
        labels = self.puzzles.labels.clone()
        labels[::2, 1::3] = 0
        with torch.no_grad(), native.without():
            step = self.model(self.carry, self.puzzles.inputs, self.model.table[self.puzzles.task_ids])
            labels[::4] = step.logits[::4].argmax(dim=-1)
        labels[1:2] = 0
        return labels

    def slots(self) -> Slots:
        """These examples, each with its own."""
        at = self.index
        return Slots(
            ids=np.arange(len(at)),
            refills=np.zeros(len(at), dtype=np.int64),
            carry=self.carry.take(at),
            inputs=self.puzzles.inputs[at],
            labels=self.labels[at],
            task_ids=self.puzzles.task_ids[at],
            done=torch.zeros(len(at), dtype=torch.bool),
            beside=None if self.beside is None else self.beside[at],
        )

    def of(self, *index: int) -> "Class":
        """With these examples alone."""
        other = object.__new__(Class)
        other.__dict__ = {**self.__dict__, "index": torch.tensor(index)}
        return other


@dataclass(frozen=True)
class Learned:
    """What a micro-step came to."""

    moment: Moment
    slots: Slots
    grads: dict[str, Tensor]

    @property
    def numbers(self) -> list[Tensor]:
        return [*self.grads.values(), *self.each, *self.moment.sums]

    @property
    def each(self) -> list[Tensor]:
        """Of every example."""
        return [self.moment.row_grads, *self.slots.carry.states.held]

    @property
    def decided(self) -> list[list[int]]:
        return [t.tolist() for t in (self.slots.done, self.slots.carry.steps, self.slots.carry.key)]


def learn(given: Class, clean: bool = True, precision: str = "float32", depth: Depth | None = None) -> Learned:
    slots = given.slots()
    if clean:
        given.weights.grad.zero_()
    depth = depth or given.depth
    moment = micro_step(slots, given.model, given.weights, given.config, depth, CPU, precision)
    grads = {name: t.clone() for name, t in given.weights.named(given.weights.grad).items()}
    return Learned(moment, slots, grads)


def agrees_with_the_graph(given: Class, depth: Depth | None = None) -> None:
    run = partial(learn, given, depth=depth)
    with native.without(), spied() as called:
        within, expected = limits(lambda: run().numbers, tensors(given.model)), run()
    assert called == []
    with spied() as called:
        found = run()
    assert set(called) - {"fold"} == {"play"}
    assert found.moment.names == expected.moment.names
    agree(found.numbers, expected.numbers, within)
    assert found.decided == expected.decided
    for name, grad in expected.grads.items():
        assert bool(found.grads[name].any()) == bool(grad.any()), f"what arrives at {name}"


@pytest.mark.numeric
@every_case
@pytest.mark.parametrize("loss", ["stablemax", "softmax"])
def test_lessons(name: str, loss: str) -> None:
    with at_a_time(4):
        agrees_with_the_graph(Class(CASES[name], train={"loss": loss, "halting_weight": 0.7}))


@pytest.mark.numeric
@pytest.mark.parametrize("name", ["every stabiliser", "symbols"])
def test_lessons_of_as_many_examples_as_a_program_takes(name: str) -> None:
    with plays() as played:
        learn(Class(CASES[name], 1))
    most = played[0][-1]
    assert most > 1
    for size in (most - 1, most, most + 1, 2 * most + 1):
        agrees_with_the_graph(Class(CASES[name], size))


@pytest.mark.numeric
@pytest.mark.parametrize("name", ["every stabiliser", "short horizons", "the last cycle", "one state", "across"])
def test_lessons_of_fewer_steps_and_cycles(name: str) -> None:
    """As a curriculum has them."""
    given = Class(CASES[name])
    for depth in (Depth(2, 1), Depth(1, 2), Depth(3, 1)):
        agrees_with_the_graph(given, depth)


@pytest.mark.numeric
@pytest.mark.parametrize("name", ["every stabiliser", "one state", "across", "symbols, two states"])
def test_only_the_last_step_is_supervised(name: str) -> None:
    agrees_with_the_graph(Class(CASES[name], train={"supervise": "last"}, steps=(0,)))


@pytest.mark.numeric
@pytest.mark.parametrize("name", ["every stabiliser", "one state", "separate"])
def test_gradients_of_micro_steps_add_up(name: str) -> None:
    """The second goes on where the first ended."""
    given = Class(CASES[name], steps=(0, 1))

    def twice() -> list[Tensor]:
        first = learn(given)
        second = Class.of(given, *range(SIZE))
        second.carry = first.slots.carry
        return learn(second, clean=False).numbers

    with native.without():
        within, expected = limits(twice, tensors(given.model)), twice()
    agree(twice(), expected, within)


# Who is done ----------------------------------------------------------------------------------------------------------


def leads(given: Class) -> list[Tensor]:
    """[B] by how much halting beats going on after the step that comes next, in the plain form; nothing, where there is
    no head."""
    with torch.no_grad(), native.without():
        step = given.model(given.carry, given.puzzles.inputs, given.model.table[given.puzzles.task_ids])
    if step.q_halt is None:
        return []
    return [step.q_halt if step.q_continue is None else step.q_halt - step.q_continue]


@pytest.mark.numeric
@pytest.mark.parametrize("explore", [0.0, 0.1, 1.0])
@pytest.mark.parametrize(
    "name", ["every stabiliser", "separate", "one state", "bound", "symbols", "asked", "asked, two states"]
)
def test_who_is_done(name: str, explore: float) -> None:
    """By a program and by a graph: those whose logits or puzzles say so, unless they have to wait, and all others when
    the budget ends, be it the model's, a smaller or a larger one."""
    many = 80
    given = Class(CASES[name], many, {"explore": explore})
    halting, head, asked = given.case.config.halting, given.model.q_head, given.model.asked
    if head is not None:  # some that halt, and some that do not
        with torch.no_grad():
            head.bias[0] -= leads(given)[0].median()
    q, clear = list[list[float] | None]([None] * many), torch.ones(many, dtype=torch.bool)
    for lead in leads(given):
        (within,) = limits(lambda: leads(given), tensors(given.model))
        q, clear = [[by, 0.0] for by in lead.tolist()], lead.abs() > within * lead.norm()
        assert clear.sum() > many / 2
    ends = [None] * many if asked is None else asked(given.puzzles.inputs).tolist()
    waited = 0
    for budget in (3, 2, 5):

        def over(explore: float, budget: int = budget) -> Tensor:
            rule = Rule(budget, explore)
            each = zip(q, ends, given.carry.key.tolist(), given.carry.steps.tolist(), strict=True)
            return torch.tensor([rule.done(lead, end, key, done + 1) for lead, end, key, done in each])

        expected = over(explore)
        waited += int((over(0.0) != expected)[clear].sum())
        assert not expected[clear].all() and bool(expected[clear].any()) == (halting != "none" or budget < 5)
        depth = Depth(budget, given.case.config.h_cycles)
        found = learn(given, depth=depth)
        with native.without():
            plain = learn(given, depth=depth)
        for each in (found, plain):
            assert torch.equal(each.slots.done[clear], expected[clear])
            sums = dict(zip(each.moment.names, each.moment.sums.tolist(), strict=True))
            assert sums["finished"] == each.slots.done.sum()
            assert sums["steps"] == (each.slots.carry.steps * each.slots.done).sum()
    assert (waited > 0) == (explore > 0 and halting != "none")


def test_ranks_without_a_compiler_add_up_the_same_things() -> None:
    """Sums travel by their places, not by their names."""
    for name in ("every stabiliser", "bound", "one state", "dense", "asked"):
        given = Class(CASES[name], 3)
        with native.without():
            expected = learn(given)
        assert learn(given).moment.names == expected.moment.names, name


def test_what_is_learned_is_learned_of_something() -> None:
    """The examples of all these tests: right ones and wrong ones, last steps and others, and none that counts."""
    given = Class(CASES["every stabiliser"])
    moment = learn(given).moment
    sums = dict(zip(moment.names, moment.sums, strict=True))
    assert 0 < float(sums["exact"]) < float(sums["finished"])
    assert not given.labels[1].any() and given.labels.any(dim=1).sum() == SIZE - 1
    assert {int(n) for n in given.carry.steps} == {0, 1, 2} and given.depth.steps == 3


# Examples and threads -------------------------------------------------------------------------------------------------


@pytest.mark.numeric
@every_case
def test_examples_do_not_see_each_other(name: str) -> None:
    """What is of an example is the same bits alone and among others; what is of all adds up."""
    given = Class(CASES[name], 5)
    with at_a_time(2):
        together, turned = learn(given), learn(given.of(4, 2, 0, 3, 1))
        singles = [learn(given.of(i)) for i in range(5)]
        order = torch.tensor([4, 2, 0, 3, 1])
        assert same_bits(turned.each, [t[order] for t in together.each])
        alone = [torch.cat(parts) for parts in zip(*(single.each for single in singles), strict=True)]
        assert same_bits(together.each, alone)
    with native.without():
        within = limits(lambda: list(learn(given).grads.values()), tensors(given.model))
    added = [torch.stack([single.grads[n] for single in singles]).double().sum(dim=0) for n in together.grads]
    agree(list(together.grads.values()), added, within)


@pytest.mark.numeric
@every_case
def test_threads_that_share_examples(name: str) -> None:
    """Of every example they come to the same bits; of all together, to the same but for the order of sums, and every
    time to the same bits."""
    given = Class(CASES[name], 7)
    with at_a_time(2):
        with threads(1):
            alone = learn(given)
        with native.without():
            within = limits(lambda: list(learn(given).grads.values()), tensors(given.model))
        for count in (2, 3):
            with threads(count), plays() as played:
                found, again = learn(given), learn(given)
            assert len(played) == 2 * count, "the work was not shared"
            assert same_bits(found.each, alone.each)
            assert same_bits(found.numbers, again.numbers)
            agree(list(found.grads.values()), list(alone.grads.values()), within)


@every_case
def test_what_lay_in_memory_before_has_no_influence(name: str) -> None:
    given = Class(CASES[name], 5)
    with at_a_time(4):
        first = learn(given)
        poison()
        assert same_bits(learn(given).numbers, first.numbers)
    assert not any(t.isnan().any() for t in first.numbers)


# Against definitions --------------------------------------------------------------------------------------------------


def plain_loss(step: naive.Result, following: naive.Result, labels: Tensor, loss: str, weight: float) -> Tensor:
    """The objective of a last step, in float64, written out."""
    if loss == "softmax":
        chances = step.logits.softmax(dim=-1)
    else:
        s = torch.where(step.logits >= 0, step.logits + 1, 1 / (1 - step.logits.clamp(max=0)))
        chances = s / s.sum(dim=-1, keepdim=True)
    total = step.logits.new_zeros(())
    for i, row in enumerate(labels):
        places = row.nonzero()[:, 0]
        if len(places):
            total = total - chances[i, places, row[places]].log().mean()
    if step.q is not None:
        assert following.q is not None
        best = step.logits.argmax(dim=-1)
        right = ((best == labels) | (labels == 0)).all(dim=-1) & labels.any(dim=-1)
        total = total + weight * F.binary_cross_entropy_with_logits(step.q[:, 0], right.double(), reduction="sum")
        worth = following.q[:, 0].detach().sigmoid()
        total = total + weight * F.binary_cross_entropy_with_logits(step.q[:, 1], worth, reduction="sum")
    return total


@pytest.mark.numeric
@pytest.mark.parametrize("loss", ["stablemax", "softmax"])
@pytest.mark.parametrize(
    "case",
    [
        Case({"layers": 2}),
        Case({"modules": "separate", "positions": "learned", "gate": False, "prefix": 2}),
        Case({"bound": None, "gate": False, "post_norm": False, "states": 1, "mlp_conv": True}),
        Case({"mixer": "mlp", "positions": "none", "bound": None}),
    ],
    ids=["attention", "separate", "one state", "across"],
)
def test_gradients_are_those_of_the_definition_in_float64(case: Case, loss: str) -> None:
    """Of a model and a loss that share no code with ours."""
    given = Class(case, 5, {"loss": loss}, steps=(0,))
    config, train = case.config, given.config.train
    w, rows = naive.doubled(given.model), given.model.table[given.puzzles.task_ids].double().requires_grad_()
    starts = [w[n].expand(5, given.model.length, config.width) for n in ("init_h", "init_l")[: config.states]]
    h, low = (*starts, None)[:2]
    step = naive.step(w, config, h, low, given.puzzles.inputs, rows)
    following = naive.step(w, config, step.h, step.l, given.puzzles.inputs, rows)
    total = plain_loss(step, following, given.labels, loss, train.halting_weight)
    named = [*(w[name] for name in given.weights.names), rows]
    truth = [*torch.autograd.grad(total / train.batch, named), total.detach()]

    def run() -> list[Tensor]:
        learned = learn(given, depth=Depth(1, config.h_cycles))
        return [
            *learned.grads.values(),
            learned.moment.row_grads,
            learned.moment.sums[learned.moment.names.index("loss")],
        ]

    with native.without():
        within = limits(run, tensors(given.model))
    with spied() as called:
        agree(run(), truth, within)
    assert set(called) - {"fold"} == {"play"}


@pytest.mark.parametrize("name", ["every stabiliser", "full horizons", "one state"])
def test_the_initial_state_learns_of_first_steps_alone(name: str) -> None:
    given = Class(CASES[name])
    later = given.of(*(i for i in range(SIZE) if given.carry.steps[i] > 0))
    names = [name for name in given.weights.names if name.startswith("init")]
    full = CASES[name].config.h_horizon == CASES[name].config.h_cycles
    assert names
    for each in names:
        assert bool(learn(given).grads[each].any()) == full
        assert not learn(later).grads[each].any()


# Where there is a graph -----------------------------------------------------------------------------------------------


def by_graph(given: Class, precision: str = "float32") -> None:
    """And what comes out is what autograd comes to, to the bit."""
    assert not taught(given, precision)
    found = learn(given, precision=precision)
    library = whole.library

    def for_answers(model: Reasoner, states: Sequence[Tensor], key: Tensor, form: Form) -> Library | None:
        return None if form.lesson is not None else library(model, states, key, form)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whole, "library", for_answers)
        expected = learn(given, precision=precision)
    assert same_bits(found.numbers, expected.numbers) and found.decided == expected.decided


def taught(given: Class, precision: str = "float32") -> bool:
    """Whether it is a program that teaches. (What is only asked may be one in any case.)"""
    with pytest.MonkeyPatch.context() as patch:
        called, program = list[bool](), whole.learn

        def spy(*args: Any) -> whole.Taught:
            called.append(True)
            return program(*args)

        patch.setattr(whole, "learn", spy)
        learn(given, precision=precision)
    return bool(called)


@pytest.mark.parametrize(
    "changes",
    [
        {"gradient": "implicit"},
        {"gradient": "implicit", "neumann": 2},
        {"norm": "pre"},
        {"input_conv": True},
        {"width": 24},
        {"width": 48, "heads": 3, "state_dropout": 0.1},
    ],
    ids=str,
)
def test_models_that_need_a_graph(changes: dict[str, Any]) -> None:
    by_graph(Class(Case(changes), 3))


@pytest.mark.parametrize("train", [{"fixpoint_weight": 0.1}, {"answers": "nearest"}], ids=str)
def test_lessons_that_need_a_graph(train: dict[str, Any]) -> None:
    given = Class(Case({"noise": 0.1}), 3, train)
    if "answers" in train:
        given.beside = torch.stack((given.labels, given.labels.roll(1, 1)), dim=1).to(torch.uint8)
    by_graph(given)
    with native.without():
        assert learn(given).moment.sums.isfinite().all()


def test_the_best_of_several_states_needs_a_graph() -> None:
    given = Class(Case({"noise": 0.1}), 6, {"winners": 2})
    slots = given.slots()
    for name in ("ids", "refills", "inputs", "labels", "task_ids", "done"):
        setattr(slots, name, getattr(slots, name)[::2])
    with spied() as called:
        micro_step(slots, given.model, given.weights, given.config, given.depth, CPU, "float32")
    # All states advance by a program; what is learned from has a graph.
    assert "swiglu_backward" in called
    assert len(slots.carry.key) == 6 and len(slots.done) == 3


def test_other_precisions_need_a_graph() -> None:
    given = Class(CASES["every stabiliser"], 3)
    by_graph(given, precision="bfloat16")


@pytest.mark.parametrize("kind", ["forward", "backward", "compiled"])
def test_somebody_who_looks_on_sees_a_graph(kind: str) -> None:
    given = Class(CASES["every stabiliser"], 3)
    assert taught(given)
    layer, seen = given.model.low.layers[0], list[str]()
    assert isinstance(layer, Layer)
    if kind == "forward":
        layer.register_forward_hook(lambda *_: seen.append("forward"))
    elif kind == "backward":
        layer.mlp.up.register_full_backward_hook(lambda *_: seen.append("backward"))
        seen.append("never called on its own")
    else:

        def compiled(*args: Any, **more: Any) -> Any:
            seen.append("compiled")
            return layer._call_impl(*args, **more)  # type: ignore[no-untyped-call]

        layer._compiled_call_impl = compiled
    by_graph(given)
    assert seen


class Wider(TrainConfig):
    """With one more setting, which programs have never heard of."""

    twist: int = 0


def test_a_setting_that_is_not_known_is_not_ignored() -> None:
    given = Class(CASES["every stabiliser"], 3)
    for twist, known in ((0, True), (1, False)):
        train = Wider(**{**given.config.train.model_dump(), "twist": twist})
        assert whole.switched(train, micro.KNOWN) == ([] if known else ["twist"])
        given.config = given.config.model_copy(update={"train": train})
        assert taught(given) == known
    by_graph(given)


def test_what_is_known_exists() -> None:
    assert set(TrainConfig.model_fields) >= micro.KNOWN


@pytest.mark.numeric
def test_without_training_mode_there_is_no_dropout() -> None:
    """Neither by a program nor by a graph."""
    given = Class(CASES["every stabiliser"], 3)
    given.model.eval()
    with native.without():
        within = limits(lambda: learn(given).numbers, tensors(given.model))
        expected = learn(given)
    agree(learn(given).numbers, expected.numbers, within)


# The weights of the moment --------------------------------------------------------------------------------------------


def test_weights_are_those_of_the_moment() -> None:
    for name in ("every stabiliser", "separate", "across", "symbols"):
        given, other = Class(CASES[name], 3), Class(CASES[name], 3)
        before = learn(given)
        for each in (given, other):
            each.weights.value.mul_(1.1)
            each.labels = other.labels
        after = learn(given)
        assert not same_bits(before.numbers, after.numbers)
        assert same_bits(after.numbers, learn(other).numbers)


def test_a_model_is_let_go() -> None:
    given = Class(CASES["every stabiliser"], 3)
    learn(given)
    gone = weakref.ref(given.model)
    del given
    gc.collect()
    assert gone() is None


def test_a_lesson_changes_nothing_that_it_was_given() -> None:
    given = Class(CASES["asked, two states"])
    slots = given.slots()
    had = [
        *slots.carry.states.held,
        slots.carry.steps,
        slots.carry.key,
        slots.inputs,
        slots.labels,
        *tensors(given.model),
    ]
    before = [t.clone() for t in had]
    micro_step(slots, given.model, given.weights, given.config, given.depth, CPU, "float32")
    assert all(torch.equal(x, y) for x, y in zip(had, before, strict=True))


@pytest.mark.parametrize("wrong", ["label", "label below", "token", "labels"])
def test_what_does_not_fit_is_refused(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch refuses it, and before C reads, or writes, beyond the end."""
    given = Class(CASES["every stabiliser"], 3)
    vocab = given.model.vocab
    if wrong == "labels":
        given.labels = given.labels[:, :-1]
    elif wrong == "token":
        given.puzzles = replace(given.puzzles, inputs=given.puzzles.inputs + vocab)
    else:
        given.labels = given.labels.clone()
        given.labels[0, 0] = vocab if wrong == "label" else -1
    with native.without(), pytest.raises((IndexError, RuntimeError)):
        learn(given)

    def play(*_: Any) -> None:
        raise AssertionError("it was played")

    monkeypatch.setattr("ponder.model.program.Program.play", play)
    with pytest.raises((IndexError, RuntimeError)):
        learn(given)
