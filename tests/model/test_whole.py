"""Answers by programs against the same model layer by layer, without kernels of our own.

How far both may be apart is what one part in ten million, in every weight, does to the plain form. Where a program may
not serve, none does.
"""

import gc
import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, get_args, get_origin

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ponder.base import native
from ponder.base.geometry import NO_GEOMETRY, Geometry
from ponder.base.native import Library
from ponder.config.schema import ModelConfig
from ponder.domains.arithmetic.domain import Arithmetic
from ponder.domains.arithmetic.generate import ArithmeticParams
from ponder.model import kernels, losses, whole
from ponder.model.attention import SHORT
from ponder.model.layers import Layer
from ponder.model.program import FIXED, Place, Program, Tape, Times
from ponder.model.reasoner import Carry, Reasoner, Step
from ponder.model.recurrence import States
from ponder.training.optimisers import Weights
from tests.model.test_kernels import geometry, same_bits, spied
from tests.model.test_program import all_same, copied, through_play
from tests.support import naive
from tests.support.models import TASKS, VOCAB, Batch, batch
from tests.support.rounding import agree, limits

# Models ---------------------------------------------------------------------------------------------------------------

SMALL: dict[str, Any] = {
    "width": 32,
    "heads": 2,
    "expansion": 1.0,
    "inner_multiple": 16,
    "layers": 1,
    "h_cycles": 2,
    "l_cycles": 2,
    "h_horizon": 2,
    "l_horizon": 2,
    "max_steps": 3,
}
BARE: dict[str, Any] = {"bound": None, "gate": False, "post_norm": False}
ONE: dict[str, Any] = {**BARE, "states": 1}
DENSE: dict[str, Any] = {**BARE, "states": 0, "halting": "none", "max_steps": 1}
RANDOM: dict[str, Any] = {"dropout": 0.2, "state_dropout": 0.1, "noise": 0.02}
BOARD: dict[str, Any] = {"mixer": "relations", "positions": "none"}


@dataclass(frozen=True)
class Case:
    changes: dict[str, Any] = field(default_factory=dict)
    board: str = ""
    """The domain whose geometry it knows."""
    tokens: int = 9

    @property
    def config(self) -> ModelConfig:
        return ModelConfig(**{**SMALL, **self.changes})

    def known(self) -> tuple[Geometry, int]:
        return geometry(self.board) if self.board else (NO_GEOMETRY, self.tokens)

    def model(self, config: ModelConfig | None = None) -> Reasoner:
        """One in which every tensor is random, the halting head, the gate and the puzzle table too."""
        known, tokens = self.known()
        torch.manual_seed(0)
        model = Reasoner(config or self.config, VOCAB + known.zero + 3, tokens, TASKS, known)
        with torch.no_grad():
            model.table.normal_()
            if model.q_head is not None:
                model.q_head.weight.normal_(std=0.3)
                model.q_head.bias.normal_()
            if model.update is not None and model.update.gate is not None:
                model.update.gate.weight.normal_(std=0.1)
                model.update.gate.bias.normal_()
        return model

    def puzzles(self, size: int, seed: int = 0) -> Batch:
        """Some of them padded; where they ask for steps, for none, one, two and three of them."""
        known, tokens = self.known()
        b = batch(size, tokens, seed)
        b.inputs[::3, tokens - 2 :] = 0
        if known.asked:
            b.inputs[:, list(known.asked)] = known.zero
            b.inputs[:, known.asked[-1]] += torch.arange(size) % 4
        return b


CASES: dict[str, Case] = {
    "every stabiliser": Case({**RANDOM, "layers": 2}),
    "separate": Case({**BARE, **RANDOM, "modules": "separate", "layers": 2, "high_layers": 1, "positions": "learned",
                      "prefix": 3, "halting": "halt", "learned_init": False}),
    "separate, as deep": Case({"modules": "separate", "dropout": 0.3, "h_cycles": 3}),
    "bound": Case({**BARE, "bound": 0.5, "positions": "none", "key_mask": True, "init": "random", "halting": "none"}),
    "gate": Case({**BARE, "gate": True, "width": 48, "heads": 3, "noise": 0.05}),
    "norm": Case({**BARE, "post_norm": True, "key_mask": True, "prefix": 2, "dropout": 0.1}),
    "bound and gate": Case({"post_norm": False, "width": 16, "halting": "halt", "dropout": 0.2}),
    "nothing": Case({**BARE, "width": 64, "expansion": 2.0}),
    "short horizons": Case({**RANDOM, "h_cycles": 3, "l_horizon": 1}),
    "short horizons, nothing else": Case({**BARE, "h_cycles": 3, "l_cycles": 3, "l_horizon": 2, "learned_init": False}),
    "the last cycle": Case({"h_cycles": 3, "h_horizon": 1, "l_horizon": 1, "noise": 0.02, "halting": "halt"}),
    "full horizons": Case({"h_cycles": 3, "h_horizon": 3, "noise": 0.02}),
    "one state": Case({**ONE, **RANDOM, "mlp_conv": True, "halting": "halt", "layers": 2}),
    "one state, short horizons": Case({**ONE, "h_cycles": 3, "l_cycles": 3, "l_horizon": 2, "noise": 0.01}),
    "convolution": Case({"mlp_conv": True, "dropout": 0.2, "prefix": 3, "width": 16}),
    "dense": Case({**DENSE, **RANDOM, "layers": 3}),
    "dense and plain": Case({**DENSE, "positions": "learned", "mlp_conv": True}),
    "across": Case({**RANDOM, "mixer": "mlp", "positions": "none", "layers": 2}),
    "across, one state": Case({**ONE, "mixer": "mlp", "positions": "learned", "prefix": 4, "halting": "none"}),
    "dense, across": Case({**DENSE, "mixer": "mlp", "dropout": 0.2, "mlp_conv": True}),
    "board": Case({**BOARD, **RANDOM, "layers": 2}, "sudoku"),
    "symbols": Case({**BOARD, **ONE, "symbols": "equivariant", "prefix": 2, "halting": "halt"}, "sudoku"),
    "symbols, two states": Case({**BOARD, **RANDOM, "symbols": "equivariant", "modules": "separate"}, "sudoku"),
    "maze": Case({**BOARD, **ONE, "positions": "learned", "dropout": 0.2, "halting": "none"}, "maze"),
    "asked": Case({**BOARD, **ONE, "halting": "asked"}, "life"),
    "asked, two states": Case({**BOARD, **RANDOM, "halting": "asked", "l_horizon": 1}, "life"),
    "asked, attention": Case({**RANDOM, "halting": "asked", "prefix": 2, "learned_init": False}, "life"),
}  # fmt: skip
every_case = pytest.mark.parametrize("name", CASES)


def test_between_them_these_have_every_switch() -> None:
    """All values of those that are words or yes and no, and more than one of the others."""
    never: dict[str, set[Any]] = {"norm": {"pre"}, "input_conv": {True}, "gradient": {"implicit"}}
    single = {"name", "expansion", "inner_multiple", "neumann", "max_steps"}
    configs = [case.config for case in CASES.values()]
    for name, about in ModelConfig.model_fields.items():
        seen, kind = {getattr(config, name) for config in configs}, about.annotation
        words = set(get_args(kind)) if get_origin(kind) is Literal else {False, True} if kind is bool else None
        if words is not None:
            assert seen == words - never.get(name, set()), name
        else:
            assert len(seen) > 1 or name in single, name
    assert {case.config.h_horizon < case.config.h_cycles for case in CASES.values()} == {False, True}
    assert {case.config.l_horizon < case.config.l_cycles for case in CASES.values()} == {False, True}
    assert any(c.h_horizon > 1 and c.l_horizon < c.l_cycles and c.states == 2 for c in configs)


# Two ways to an answer ------------------------------------------------------------------------------------------------


@contextmanager
def at_a_time(most: int) -> Iterator[None]:
    """Programs that are written meanwhile are for so many examples."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ponder.model.program.MOST", most)
        yield


@contextmanager
def threads(count: int) -> Iterator[None]:
    """So many share the work, however little it is."""
    before = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "LEAST", 1)
        torch.set_num_threads(count)
        try:
            yield
        finally:
            torch.set_num_threads(before)


@contextmanager
def plays() -> Iterator[list[tuple[int, int, int]]]:
    """Of every part of a program that is played: the first example, the last, and how many at a time."""
    found, call = list[tuple[int, int, int]](), Library.__call__

    def spy(self: Library, name: str, *values: Any) -> None:
        if name == "play" and values[-8] > 0:  # memory of its own: not what is done before
            found.append(values[-4:-1])
        call(self, name, *values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Library, "__call__", spy)
        yield found


@contextmanager
def layer_by_layer() -> Iterator[None]:
    """With all kernels, but no programs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whole, "library", lambda *given: None)
        yield


def said(step: Step) -> list[Tensor]:
    """All that a step comes to, as numbers."""
    some = (step.logits, step.q_halt, step.q_continue, step.ratio, *step.carry.states.held)
    return [t for t in some if t is not None]


def whole_numbers(step: Step) -> list[list[int]]:
    return [t.tolist() for t in (step.carry.steps, step.carry.key, step.over) if t is not None]


@torch.no_grad()
def steps_of(model: Reasoner, b: Batch, count: int = 2, **more: Any) -> list[Step]:
    carry, out = model.start(b.keys), list[Step]()
    for _ in range(count):
        out.append(model(carry, b.inputs, model.table[b.task_ids], **more))
        carry = out[-1].carry
    return out


def answered(model: Reasoner, b: Batch, count: int = 2, **more: Any) -> list[Tensor]:
    return [t for step in steps_of(model, b, count, **more) for t in said(step)]


def tensors(model: Reasoner) -> list[Tensor]:
    return list(model.state_dict().values())


def agrees_with_the_graph(model: Reasoner, b: Batch, **more: Any) -> None:
    run = partial(answered, model, b, **more)
    with native.without(), spied() as called:
        within, expected, plain = limits(run, tensors(model)), run(), steps_of(model, b, **more)
    assert called == []
    with spied() as called:
        found = steps_of(model, b, **more)
    assert set(called) - {"fold"} == {"play"}
    agree([t for step in found for t in said(step)], expected, within)
    assert [whole_numbers(step) for step in found] == [whole_numbers(step) for step in plain]


@pytest.mark.numeric
@every_case
@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
def test_answers(name: str, train: bool) -> None:
    case = CASES[name]
    with at_a_time(4):
        agrees_with_the_graph(case.model().train(train), case.puzzles(9))


@pytest.mark.numeric
@pytest.mark.parametrize("name", ["every stabiliser", "one state", "dense", "across", "symbols", "asked, two states"])
def test_answers_with_more_noise_and_fewer_cycles(name: str) -> None:
    """What searches and curricula ask for."""
    case = CASES[name]
    for more in ({"noise": 0.1}, {"h_cycles": 1}, {"noise": 0.0, "h_cycles": 1}):
        for train in (False, True):
            agrees_with_the_graph(case.model().train(train), case.puzzles(3), **more)


@pytest.mark.numeric
@pytest.mark.parametrize("name", ["every stabiliser", "symbols"])
def test_answers_of_as_many_examples_as_a_program_takes(name: str) -> None:
    case = CASES[name]
    model = case.model().eval()
    with plays() as played:
        answered(model, case.puzzles(1))
    most = played[0][-1]
    assert most > 1
    for size in (most - 1, most, most + 1, 3 * most + 1):
        agrees_with_the_graph(model, case.puzzles(size))


@pytest.mark.numeric
@pytest.mark.parametrize("name", ["every stabiliser", "separate, as deep", "bound", "convolution", "across", "dense"])
def test_answers_are_those_of_the_definition_in_float64(name: str) -> None:
    """Which shares no code with the model."""
    case = CASES[name]
    config = case.config.model_copy(update={"init": "fixed"})
    model, b = case.model(config).eval(), case.puzzles(5)
    weights = naive.doubled(model)
    starts = [weights[n].expand(5, model.length, config.width) for n in ("init_h", "init_l")[: config.states]]
    h, low = (*starts, None, None)[:2]
    expected = list[Tensor]()
    for _ in range(2):
        step = naive.step(weights, config, h, low, b.inputs, weights["table"][b.task_ids])
        h, low = step.h, step.l
        shown = (step.logits, *(step.q.unbind(1) if step.q is not None else ()), step.h, step.l)
        expected += [t for t in shown if t is not None]

    def run() -> list[Tensor]:
        out = []
        for step in steps_of(model, b):
            shown = (step.logits, step.q_halt, step.q_continue, *step.carry.states.held)
            out += [t for t in shown if t is not None]
        return out

    with native.without():
        within = limits(run, tensors(model))
    with spied() as called:
        agree(run(), expected, within)
    assert set(called) - {"fold"} == {"play"}


# Examples and threads -------------------------------------------------------------------------------------------------


def taken(carry: Carry, b: Batch, index: Tensor, model: Reasoner) -> list[Tensor]:
    """What a step makes of these examples alone."""
    with torch.no_grad():
        return said(model(carry.take(index), b.inputs[index], model.table[b.task_ids[index]]))


@every_case
def test_an_answer_is_the_same_alone_and_among_others(name: str) -> None:
    """To the bit, and wherever it stands."""
    case = CASES[name]
    model, b = case.model().train(), case.puzzles(9)
    with at_a_time(4), threads(1):
        carry = steps_of(model, b, 1)[0].carry
        together = taken(carry, b, torch.arange(9), model)
        for index in ([0], [8], [0, 1, 2], [5, 1, 8, 3], [3, 8, 1, 5, 0], [8, 7, 6, 5, 4, 3, 2, 1, 0]):
            with plays() as played:
                found = taken(carry, b, torch.tensor(index), model)
            assert played == [(0, len(index), 4)]
            assert same_bits(found, [t[index] for t in together])


@every_case
def test_threads_that_share_examples_come_to_the_same(name: str) -> None:
    case = CASES[name]
    model, b = case.model().train(), case.puzzles(7)
    with at_a_time(2):
        with threads(1):
            alone = answered(model, b)
        for count in (2, 3):
            with threads(count), plays() as played:
                assert same_bits(answered(model, b), alone)
            assert len(played) == 2 * count, "the work was not shared"
            assert sorted(i for first, last, _ in played for i in range(first, last)) == sorted([*range(7)] * 2)


def test_threads_that_share_the_packing_of_large_weights_come_to_the_same() -> None:
    case = CASES["every stabiliser"]
    model, b = case.model().train(), case.puzzles(7)
    with at_a_time(2), threads(1):
        alone = answered(model, b)
    packed: list[int] = []
    with at_a_time(2), threads(3), pytest.MonkeyPatch.context() as patch:
        patch.setattr("ponder.model.program.CACHE", 1)
        call = Library.__call__

        def spy(self: Library, name: str, *values: Any) -> None:
            packed.extend([values[0]] if name == "play" and values[-8] == 0 else [])
            call(self, name, *values)

        patch.setattr(Library, "__call__", spy)
        assert same_bits(answered(model, b), alone)
    assert len(packed) == 3 * 2 and min(packed) > 0, "one thread packed them all"


POISON = Place(FIXED[0])


def poison(size: int = 2**20) -> None:
    """All memory that this thread's programs work in becomes what is no number."""
    tape = Tape(1)
    tape.sizes[POISON.array] = 4 * size
    tape("pass_on", 0, Times(1), 1, size, Place("nothing"), None, 0, POISON)
    lib = native.library()
    assert lib is not None
    Program(tape).play(lib, 1, {"nothing": torch.full((size,), math.nan)}, [{}])


@every_case
def test_what_lay_in_memory_before_has_no_influence(name: str) -> None:
    case = CASES[name]
    model, b = case.model().train(), case.puzzles(5)
    with at_a_time(4):
        first = answered(model, b)
        poison()
        assert same_bits(answered(model, b), first)
    assert not any(t.isnan().any() for t in first)


def test_what_is_no_number_stays_where_it_is() -> None:
    case = CASES["every stabiliser"]
    model, b = case.model().eval(), case.puzzles(5)
    carry = steps_of(model, b, 1)[0].carry
    before = taken(carry, b, torch.arange(5), model)
    assert carry.states.h is not None
    carry.states.h[2, 3, 4] = math.nan
    after = taken(carry, b, torch.arange(5), model)
    others = [0, 1, 3, 4]
    assert same_bits([t[others] for t in after], [t[others] for t in before])
    assert all(t[2].isnan().any() for t in after)


# What a program calls -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["every stabiliser", "one state", "across", "symbols, two states"])
def test_every_kernel_comes_to_the_same_bits_by_play(name: str) -> None:
    """All calls of a training step, layer by layer: once directly, once as a program of one call."""
    case = CASES[name]
    model, b = case.model().train(), case.puzzles(2)
    call, seen = Library.__call__, set[str]()

    def spy(self: Library, name: str, *values: Any) -> None:
        if name == "play":
            call(self, name, *values)
            return
        others = copied(values)
        call(self, name, *values)
        if name not in seen or len(seen) < 9:
            with pytest.MonkeyPatch.context() as inner:
                inner.setattr(Library, "__call__", call)
                through_play(name, *others)
            assert all_same(values, others), name
        seen.add(name)

    with layer_by_layer(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Library, "__call__", spy)
        step = model(model.start(b.keys), b.inputs, model.table[b.task_ids])
        losses.losses(step.logits, b.labels, step.q_halt, None, None, 0.5).total.backward()
    assert {"pack", "swiglu_forward", "swiglu_backward", "answer_loss", "noise", "keep_mask"} - seen <= (
        set() if case.config.noise and case.config.dropout else {"noise", "keep_mask"}
    )


# Where no program serves ----------------------------------------------------------------------------------------------


def not_played(model: Reasoner, b: Batch, **more: Any) -> None:
    """And what comes out is what layers come to, to the bit."""
    with spied() as called:
        found = answered(model, b, **more)
    assert "play" not in called
    with layer_by_layer():
        assert same_bits(found, answered(model, b, **more))


def played(model: Reasoner, b: Batch) -> bool:
    with spied() as called:
        answered(model, b)
    return "play" in called


OTHERS: dict[str, Case] = {
    "norm before": Case({"norm": "pre"}),
    "convolution of the input": Case({"input_conv": True}),
    "too deep": Case(
        {"width": 16, "layers": 1, "h_cycles": whole.DEEP // 2 + 1, "h_horizon": 1, "l_cycles": 1, "l_horizon": 1}
    ),
    "too long": Case({"width": 16, "layers": 1, "h_cycles": 1, "h_horizon": 1}, tokens=SHORT),
    "a width of no whole vectors": Case({"width": 24}),
    "inner width of no whole vectors": Case({"inner_multiple": 8, "expansion": 1.1, "width": 32}),
    "noise of odd sizes": Case({"width": 16, "noise": 0.1}, tokens=8),
    "dropout of odd sizes": Case({"width": 16, "dropout": 0.1}, tokens=8),
    "state dropout of odd sizes": Case({"width": 48, "heads": 3, "state_dropout": 0.1}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_model_that_is_not_covered(name: str) -> None:
    case = OTHERS[name]
    not_played(case.model().train(), case.puzzles(2))


def test_and_next_to_it_one_that_is() -> None:
    """So that these fail for no other reason."""
    for case in (
        Case({"width": 16, "h_cycles": 1, "h_horizon": 1}, tokens=SHORT - 1),
        Case({"width": 16, "noise": 0.1, "dropout": 0.1}, tokens=9),
        Case({"width": 16}, tokens=8),
        Case({"gradient": "implicit", "neumann": 1}),
    ):
        assert played(case.model().train(), case.puzzles(2))


def test_puzzles_with_a_tree() -> None:
    domain = Arithmetic(ArithmeticParams.model_validate({"max_operands": 3, "align": "right"}))
    torch.manual_seed(0)
    config = ModelConfig(**{**SMALL, **BOARD, **ONE, "halting": "halt"})
    model = Reasoner(config, len(domain.vocab), domain.seq_len, 1, domain.geometry).eval()
    inputs = torch.zeros(2, domain.seq_len, dtype=torch.int64)
    zeros = torch.zeros(2, dtype=torch.int64)
    not_played(model, Batch(inputs, inputs, zeros, torch.arange(2)))


def test_too_many_tokens_to_mix_across(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "LANES", 1)
    case = CASES["across"]
    not_played(case.model().eval(), case.puzzles(2))


@pytest.mark.parametrize("kind", ["after", "before", "backward"])
def test_somebody_who_looks_on_sees_every_part(kind: str) -> None:
    case = CASES["separate"]
    model, b = case.model().eval(), case.puzzles(2)
    assert played(model, b)
    for part in (model.low, model.high, model.low.layers[0], model.head, model.q_head, model.high.layers[0].mlp.down):  # type: ignore[union-attr]
        assert isinstance(part, nn.Module)
        names = {"after": "forward_hook", "before": "forward_pre_hook", "backward": "full_backward_hook"}
        hook = getattr(part, f"register_{names[kind]}")(lambda *given: None)
        not_played(model, b)
        hook.remove()
        assert played(model, b)


def test_with_a_graph_there_is_no_program() -> None:
    case = CASES["every stabiliser"]
    model, b = case.model().eval(), case.puzzles(2)
    with spied() as called:
        step = model(model.start(b.keys), b.inputs, model.table[b.task_ids])
    assert "play" not in called and step.logits.requires_grad


class Onlooker(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_other_precisions_and_whoever_counts_operations() -> None:
    case = CASES["every stabiliser"]
    model, b = case.model().eval(), case.puzzles(2)
    for around in (torch.autocast("cpu", dtype=torch.bfloat16), Onlooker()):  # type: ignore[no-untyped-call]
        with around:
            not_played(model, b)
    for dtype in (torch.float64, torch.bfloat16):
        model = CASES["bound"].model().to(dtype)
        with torch.no_grad(), spied() as called:
            step = model(model.start(b.keys, dtype), b.inputs, model.table[b.task_ids])
        assert "play" not in called and step.logits.dtype == dtype


def test_turned_off_there_is_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["every stabiliser"]
    model, b = case.model().eval(), case.puzzles(2)
    assert played(model, b)
    monkeypatch.setenv(native.SWITCH, "0")
    with spied() as called:
        answered(model, b)
    assert called == []


@pytest.mark.parametrize("part", ["low", "high"])
def test_a_compiled_layer_is_called(part: str) -> None:
    case, called = CASES["separate"], list[bool]()
    model, b = case.model().eval(), case.puzzles(2)
    layer = getattr(model, part).layers[-1]
    assert isinstance(layer, Layer)

    def compiled(*given: Any, **more: Any) -> Any:
        called.append(True)
        return layer._call_impl(*given, **more)  # type: ignore[no-untyped-call]

    layer._compiled_call_impl = compiled
    not_played(model, b)
    assert called


def test_layers_of_a_real_compiler() -> None:
    case = replace(CASES["every stabiliser"], changes={"layers": 1, "h_cycles": 1, "h_horizon": 1})
    model, b = case.model().eval(), case.puzzles(2)
    torch.compiler.reset()
    for layer in model.low.layers:
        layer.compile(backend="eager", dynamic=False)
    with spied() as called:
        answered(model, b, 1)
    assert "play" not in called
    torch.compiler.reset()


def test_the_exact_derivative_of_the_bound() -> None:
    case = CASES["every stabiliser"]
    model, b = case.model().eval(), case.puzzles(2)
    assert model.update is not None
    model.update.exact = True
    not_played(model, b)


def test_no_examples() -> None:
    case = CASES["every stabiliser"]
    model = case.model().eval()
    with spied() as called:
        step = steps_of(model, case.puzzles(0), 1)[0]
    assert "play" not in called and step.logits.shape == (0, 9, model.vocab)


class Wider(ModelConfig):
    """With one more switch, which programs have never heard of."""

    twist: bool = False
    name: str = "another"


def test_a_switch_that_is_not_known_is_not_ignored() -> None:
    case = CASES["every stabiliser"]
    config, b = case.config.model_dump(exclude={"name"}), case.puzzles(2)
    assert whole.switched(Wider(**config), whole.KNOWN) == []
    assert played(case.model(Wider(**config)).eval(), b)
    twisted = Wider(**config, twist=True)
    assert whole.switched(twisted, whole.KNOWN) == ["twist"]
    not_played(case.model(twisted).eval(), b)


def test_what_is_known_exists() -> None:
    assert set(ModelConfig.model_fields) >= whole.KNOWN


# The weights of the moment --------------------------------------------------------------------------------------------


def in_place(model: Reasoner) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)


def set_anew(model: Reasoner) -> None:
    for module in model.modules():
        for name, parameter in [*module.named_parameters(recurse=False)]:
            setattr(module, name, nn.Parameter(parameter.detach() * 1.1))


def loaded(model: Reasoner) -> None:
    model.load_state_dict({name: t * 1.1 for name, t in model.state_dict().items()})


def assigned(model: Reasoner) -> None:
    model.load_state_dict({name: t * 1.1 for name, t in model.state_dict().items()}, assign=True)


def flat(model: Reasoner) -> None:
    Weights(model).value.mul_(1.1)


def turned(model: Reasoner) -> None:
    """The same numbers in another order of memory."""
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.data = parameter.data.mul(1.1).t().contiguous().t()


def other_parts(model: Reasoner) -> None:
    model.head = nn.Linear(model.head.in_features, model.head.out_features, bias=False)


@pytest.mark.parametrize("name", ["every stabiliser", "separate", "one state", "across", "symbols", "dense"])
@pytest.mark.parametrize(
    "change", [in_place, set_anew, loaded, assigned, flat, turned, other_parts], ids=lambda change: change.__name__
)
def test_weights_are_those_of_the_moment(name: str, change: Callable[[Reasoner], None]) -> None:
    """A program that was written before comes to the bits of one that is written now."""
    case = CASES[name]
    model, other, b = case.model().eval(), case.model().eval(), case.puzzles(3)
    before = answered(model, b)
    torch.manual_seed(1)
    change(model)
    other.load_state_dict(
        {name: t.clone(memory_format=torch.contiguous_format) for name, t in model.state_dict().items()}
    )
    with spied() as called:
        after = answered(model, b)
    assert set(called) - {"fold"} == {"play"} or change in (turned, other_parts)
    assert not same_bits(before, after)
    assert same_bits(after, answered(other, b))


def test_inputs_need_not_lie_side_by_side() -> None:
    case = CASES["every stabiliser"]
    model, b = case.model().eval(), case.puzzles(4)
    with torch.no_grad():
        carry = steps_of(model, b, 1)[0].carry
        expected = said(model(carry, b.inputs, model.table[b.task_ids]))
        spread = [torch.stack((t, t), dim=-1)[..., 0] for t in (*carry.states.held, carry.steps, carry.key, b.inputs)]
        *states, steps, key, inputs = spread
        rows = torch.stack((model.table[b.task_ids],) * 2, dim=1)[:, 0]
        assert not any(t.is_contiguous() for t in (*spread, rows))
        assert same_bits(said(model(Carry(States.of(states), steps, key), inputs, rows)), expected)


def test_a_step_changes_nothing_that_it_was_given() -> None:
    case = CASES["asked, two states"]
    model, b = case.model().train(), case.puzzles(4)
    with torch.no_grad():
        carry = steps_of(model, b, 1)[0].carry
        rows = model.table[b.task_ids]
        given = [*carry.states.held, carry.steps, carry.key, b.inputs, rows, *tensors(model)]
        before = [t.clone() for t in given]
        step = model(carry, b.inputs, rows)
        kept = [t.clone() for t in said(step)]
        model(step.carry, b.inputs, rows)
    assert all(torch.equal(x, y) for x, y in zip(given, before, strict=True))
    assert same_bits(said(step), kept), "of the step before"


def test_tokens_of_another_type_are_read_as_they_are() -> None:
    """C reads 64 bits for each, whatever is there."""
    case = CASES["every stabiliser"]
    model, b = case.model().eval(), case.puzzles(2)
    with pytest.MonkeyPatch.context() as patch:
        read = list[torch.dtype]()
        play = Program.play

        def spy(self: Program, lib: Library, examples: int, arrays: Any, own: Any) -> None:
            read.append(arrays["ids"].dtype)
            if arrays["ids"].dtype == torch.int64:
                play(self, lib, examples, arrays, own)

        patch.setattr(Program, "play", spy)
        found = answered(model, replace(b, inputs=b.inputs.to(torch.int32)))
    assert set(read) <= {torch.int64}
    assert same_bits(found, answered(model, b))


@pytest.mark.parametrize("wrong", ["token", "token below", "rows", "inputs"])
def test_what_does_not_fit_is_refused(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch refuses it, and before C reads, or writes, beyond the end."""
    case = CASES["every stabiliser"]
    model, b = case.model().eval(), case.puzzles(3)
    inputs, rows = b.inputs.clone(), model.table[b.task_ids]
    if wrong.startswith("token"):
        inputs[1, 1] = model.vocab if wrong == "token" else -1
    else:
        inputs, rows = (inputs, rows[:2]) if wrong == "rows" else (inputs[:, :-1], rows)

    def play(*given: Any) -> None:
        raise AssertionError("it was played")

    monkeypatch.setattr(Program, "play", play)
    for around in (native.without(), nullcontext()):
        with around, torch.no_grad(), pytest.raises((IndexError, RuntimeError)):
            model(model.start(b.keys), inputs, rows)


def test_a_model_is_let_go() -> None:
    case = CASES["every stabiliser"]
    model = case.model().eval()
    answered(model, case.puzzles(2))
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
