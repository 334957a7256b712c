"""Programs on their own: the memory of a tape, its backward pass, what `play` does with it; and the kernels that only
programs call, each against its definition in float64 or in whole numbers.

How far a kernel may be from its definition is what the plain form in torch's float32 comes to, several times over.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from itertools import product as combinations
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from ponder.base import native, rng
from ponder.base.native import Argument
from ponder.model import halting, program
from ponder.model.program import (
    EXTRA,
    PACKED,
    SCRATCH,
    Given,
    Place,
    Program,
    Tape,
    Times,
    Value,
    written,
)
from ponder.model.reasoner import Carry, Step
from ponder.model.recurrence import States
from ponder.model.writer import Writer
from tests.model.test_kernels import SEVERAL, drawn, dropout, farthest, normed, spied
from tests.support.rounding import DRAWS, EPS, SLACK, nudge

LIBRARY = native.library()
assert LIBRARY is not None, "tests/model/test_kernels.py skips all this where there is none"
lib = LIBRARY
ALL = Times(1)


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.int32)


# Memory ---------------------------------------------------------------------------------------------------------------

SIZES = (1, 2, 16, 17, 48)


@given(st.integers(1, 5), st.lists(st.one_of(st.sampled_from(SIZES), st.integers(-9, -1)), max_size=40))
def test_memory_is_given_out_once_and_again_for_the_same_size_alone(most: int, wishes: list[int]) -> None:
    """Wishes: so many numbers; below zero, one of those that are held is released."""
    tape, held, free = Tape(most), list[tuple[Place, int]](), list[tuple[Place, int]]()
    for wish in wishes:
        if wish > 0:
            before, place = tape.sizes[SCRATCH], tape.room(wish)
            known = (place, wish) in free
            assert known or place.offset >= before, "what was of another size"
            assert known or not any(size == wish for _, size in free), "there was one"
            free = [each for each in free if each != (place, wish)]
            held.append((place, wish))
        elif held:
            free.append(held.pop(wish % len(held)))
            tape.release(*free[-1])
    ends = sorted((place.offset, place.offset + 4 * most * size) for place, size in held + free)
    assert all(end <= start for (_, end), (start, _) in pairwise(ends)), "two of them overlap"
    assert all(start % 64 == 0 and end <= tape.sizes[SCRATCH] for start, end in ends)


def test_what_is_not_of_the_tape_is_not_given_out() -> None:
    tape = Tape(2)
    for place in (Place("given", 64), tape.held(PACKED, 16), tape.held(EXTRA, 16), None):
        tape.release(place, 16)
    first, second = tape.room(16), tape.room(16)
    assert first.array == second.array == SCRATCH and first != second
    one, other = tape.held(PACKED, 3), tape.held(PACKED, 3)
    assert other.offset >= one.offset + 12 and tape.sizes[PACKED] >= other.offset + 12


def test_a_program_takes_as_many_examples_at_a_time_as_fit_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or as fill the rows of a product: more of them where the weights do not fit the cache."""

    def write(tape: Tape) -> None:
        for _ in range(3):
            tape.room(16)

    each = 3 * 64
    for cache, most in ((each - 1, 1), (each, 1), (4 * each + 1, 4), (1000 * each, 32)):
        monkeypatch.setattr("ponder.model.program.CACHE", cache)
        monkeypatch.setattr("ponder.model.program.MOST", 32)
        made = written(write, program.ROWS)
        assert made.most == most and made.sizes[SCRATCH] == each * most
    monkeypatch.setattr("ponder.model.program.CACHE", each)
    assert written(write, program.ROWS // 3).most == 3 and written(write, program.ROWS // 3 - 1).most == 4

    def write_more(tape: Tape) -> None:
        write(tape)
        tape.held(PACKED, each)

    assert written(write_more, program.MANY_ROWS // 8).most == 8 and written(write_more, 1).most == 32


# Expressions ----------------------------------------------------------------------------------------------------------

LENGTH, WIDTH, LEAVES, MASKS, BATCH = 2, 16, 3, 2, 4
FLOATS = LENGTH * WIDTH


class Operation(NamedTuple):
    """One line of an expression: what it does with which of the values so far, counted from the last."""

    kind: str
    of: tuple[int, int, int]
    masks: tuple[int, int]
    """Of the first two; beyond the last: none."""
    learning: bool


operations = st.builds(
    Operation,
    st.sampled_from(["norm", "norm of a sum", "added", "added three", "added x"]),
    st.tuples(*[st.integers(0, 3)] * 3),
    st.tuples(*[st.integers(0, 2 * MASKS)] * 2),
    st.booleans(),
)


def taken(lines: list[Operation]) -> list[tuple[str, list[int], list[int | None], bool]]:
    """With places among the values there are at that line, and masks that there are."""
    out = []
    for at, line in enumerate(lines):
        count = {"norm": 1, "norm of a sum": 2, "added": 2, "added three": 3, "added x": 2}[line.kind]
        out.append((
            line.kind,
            [max(0, LEAVES + at - 1 - i) for i in line.of[:count]],
            [m if m < MASKS else None for m in line.masks],
            line.learning,
        ))  # fmt: skip
    return out


def plainly(
    lines: list[Operation], leaves: list[Tensor], masks: list[Tensor], wide: list[Tensor], seeds: list[Tensor]
) -> list[Tensor]:
    """The last values, then the gradients of the leaves: by autograd."""
    values = [leaf.clone().requires_grad_() for leaf in leaves]
    for kind, of, (m, n), learning in taken(lines):
        with torch.set_grad_enabled(learning):
            x = [values[i] for i in of]
            if kind == "norm":
                values.append(normed(x[0]))
            elif kind == "norm of a sum":
                values.append(normed(x[0], x[1], None if m is None else wide[m]))
            else:
                a = x[0] if m is None else x[0] * masks[m]
                b = x[1] if n is None or kind == "added x" else x[1] * masks[n]
                values.append(a + (b + x[2]) if kind == "added three" else a + b)
    last = values[-len(seeds) :]
    total = sum(((v * s).sum() for v, s in zip(last, seeds, strict=True)), start=torch.zeros((), dtype=last[0].dtype))
    found: list[Tensor | None] = [None] * LEAVES
    if total.requires_grad:
        found = list(torch.autograd.grad(total, values[:LEAVES], allow_unused=True))
    grads = [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, found, strict=True)]
    return [v.detach() for v in (*last, *grads)]


def on_tape(tape: Tape, lines: list[Operation], seeds: int) -> None:
    """The same. What nobody reads any more is dropped, where the tape is learning and where it is not."""
    writer = Writer.__new__(Writer)
    writer.tape, writer.length, writer.width, writer.floats = tape, LENGTH, WIDTH, FLOATS
    each = 4 * FLOATS
    tape.learning = True
    values = list[Value]()
    for n in range(LEAVES):
        leaf = tape.made(FLOATS)
        tape("pass_on", 0, ALL, LENGTH, WIDTH, Place(f"leaf {n}", 0, each), None, 0, leaf.place)

        def backward(d: Place, n: int = n) -> bool:
            tape("pass_on", 0, ALL, LENGTH, WIDTH, d, None, 0, Place(f"gradient {n}", 0, each))
            return False

        tape.back(leaf, backward)
        values.append(leaf)
    mask = [Place(f"mask {n}", 0, 4 * WIDTH) for n in range(MASKS)]
    wide = [Place(f"wide {n}", 0, each) for n in range(MASKS)]
    known = taken(lines)
    for at, (kind, of, (m, k), learning) in enumerate(known):
        tape.learning = learning
        x = [values[i] for i in of]
        if kind == "norm":
            values.append(writer.norm(x[0]))
        elif kind == "norm of a sum":
            values.append(writer.norm(x[0], x[1], None if m is None else wide[m]))
        else:
            first, second = (None if i is None else mask[i] for i in (m, k))
            if kind == "added x":
                values.append(writer.added(x[0], first, None, None, x[1]))
            else:
                values.append(writer.added(x[0], first, x[1], second, x[2] if kind == "added three" else None))
        needed = {i for _, later, _, _ in known[at + 1 :] for i in later}
        needed |= set(range(LEAVES + len(known) - seeds, LEAVES + len(known)))
        tape.drop(*(values[i] for i in set(of) - needed))
    for number, value in enumerate(values[-seeds:]):
        tape("pass_on", 0, ALL, LENGTH, WIDTH, value.place, None, 0, Place(f"value {number}", 0, each))
    tape.learning = True
    for number, value in enumerate(values[-seeds:]):
        tape.lend(value, Place(f"seed {number}", 0, each), LENGTH)
    tape.backward()


def line(of: int, learning: bool) -> Operation:
    return Operation("norm", (of, 0, 0), (0, 0), learning)


@pytest.mark.numeric
@settings(max_examples=300)
@example([line(0, True)] * 3 + [line(0, False), line(1, True), line(2, False)], 2, 1)
@given(st.lists(operations, min_size=3, max_size=9), st.integers(1, 3), st.integers(1, 5))
def test_an_expression_and_its_gradients(lines: list[Operation], last: int, most: int) -> None:
    """Whatever is dropped on the way, and whatever part of it has no gradients."""
    leaves = [drawn(BATCH, LENGTH, WIDTH, seed=n) for n in range(LEAVES)]
    masks = [dropout(BATCH, 1, WIDTH, seed=n) for n in range(MASKS)]
    wide = [dropout(BATCH, LENGTH, WIDTH, seed=5 + n) for n in range(MASKS)]
    seeds = [drawn(BATCH, LENGTH, WIDTH, seed=20 + n) for n in range(last)]

    tape = Tape(most)
    on_tape(tape, lines, last)
    sets = {"leaf": leaves, "mask": masks, "wide": wide, "seed": seeds}
    arrays = {f"{name} {n}": t for name, all_ in sets.items() for n, t in enumerate(all_)}
    found = [torch.full_like(seeds[0], torch.nan) for _ in seeds] + [torch.zeros_like(leaf) for leaf in leaves]
    names = [*(f"value {n}" for n in range(last)), *(f"gradient {n}" for n in range(LEAVES))]
    Program(tape).play(lib, BATCH, arrays | dict(zip(names, found, strict=True)), [{}])

    def exactly(draw: int | None) -> list[Tensor]:
        doubles = [leaf.double() for leaf in leaves]
        if draw is not None:
            nudge(doubles, draw)
        return plainly(lines, doubles, *([t.double() for t in each] for each in (masks, wide, seeds)))

    truth, plain = exactly(None), plainly(lines, leaves, masks, wide, seeds)
    moved = [exactly(draw) for draw in range(DRAWS)]
    for i, wanted in enumerate(truth):
        natural = max(farthest(each[i], wanted) for each in (plain, *moved))
        natural = max(natural, EPS * float(wanted.abs().max()))
        assert farthest(found[i], wanted) <= SLACK * natural, names[i]


# Playing --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize("most", [1, 3, 8])
def test_every_example_is_played_once_however_many_go_at_a_time(most: int, parts: int) -> None:
    for examples in (parts, 3, 4, 7, 9):
        tape = Tape(most)
        doubled = tape.room(16)
        x, y, out = (Place(name, 0, 64) for name in ("x", "y", "out"))
        tape("add_up", 0, ALL, 1, 16, x, None, x, None, None, doubled)
        tape("pass_on", 0, ALL, 1, 16, doubled, None, 1, out)  # twice would be seen
        tape("pass_on", 0, ALL, 1, 16, y, None, 1, out)
        a, b = drawn(examples, 16), drawn(examples, 16, seed=1)
        made = torch.zeros(examples + 2, 16)
        Program(tape).play(lib, examples, {"x": a, "y": b, "out": made[1:-1]}, [{} for _ in range(parts)])
        assert torch.equal(made[1:-1], a + a + b)
        assert not made[0].any() and not made[-1].any(), "beyond the last example"


def test_what_is_done_before_is_done_once_and_threads_have_sums_of_their_own() -> None:
    tape = Tape(2)
    total, ready = tape.held(EXTRA, 16), tape.held(PACKED, 16)
    tape.once.append(("pass_on", (0, 1, 1, 16, Place("weight"), None, 1, ready)))
    tape("begin_backward", 0, ALL, 1, 16, Place("steps", 0, 8), Place("x", 0, 64), total)
    tape("pass_on", 0, ALL, 1, 16, Place("x", 0, 64), None, 0, Place("seen", 0, 64))
    x, weight, packed = torch.arange(7 * 16.0).view(7, 16), drawn(16), torch.ones(16)
    steps, sums, seen = torch.zeros(7, dtype=torch.int64), torch.zeros(3, 16), torch.empty(7, 16)
    own: list[Mapping[str, Tensor]] = [{EXTRA: part} for part in sums]
    Program(tape).play(lib, 7, {"x": x, "steps": steps, "weight": weight, PACKED: packed, "seen": seen}, own)
    assert torch.equal(packed, weight + 1)
    assert torch.equal(seen, x)
    assert torch.equal(sums.sum(dim=0), x.sum(dim=0)) and sums.any(dim=1).all()


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("most", [1, 3, 8])
@pytest.mark.parametrize("turns", [1, 2, 5])
def test_all_turns_of_some_examples_come_before_those_of_the_next(turns: int, most: int, parts: int) -> None:
    """What is before the body is done once for every example, at its first turn; arrays by turn move on, whatever they
    hold, and others stay; what is held belongs to the examples at a time, and to a thread."""
    tape, held = Tape(most), Place("held")
    x, y, begun, keys = Place("x", 0, 64), Place("y", 0, 64), Place("begun", 0, 8), Place("keys", 0, 8)
    tape("pass_on", 0, ALL, 1, 16, x, None, 0, held)
    tape("count_on", 0, ALL, begun)
    tape.body = len(tape.calls)
    total, steps = tape.room(16), Place("steps", 0, 8)
    tape("add_up", 0, ALL, 1, 16, held, None, y, None, None, total)
    tape("pass_on", 0, ALL, 1, 16, total, None, 0, held)
    tape("pass_on", 0, ALL, 1, 16, total, None, 1, Place("totals", 0, 64))  # twice would be seen
    tape("count_on", 0, ALL, steps)
    tape("fold", 0, ALL, keys, steps, 0, Place("folded", 0, 8))
    finished = Program(tape)
    for examples in (parts, 4, 7):
        a, b = (torch.arange(examples * 16.0).view(examples, 16) * by for by in (1, -3))
        arrays = {"x": a, "y": b, "keys": torch.arange(examples) * 7 - 3}
        arrays |= {name: torch.zeros(examples, dtype=torch.int64) for name in ("begun", "steps")}
        totals, folded = torch.zeros(turns + 2, examples, 16), torch.zeros(turns + 2, examples, dtype=torch.int64)
        made = {"totals": totals[1:-1], "folded": folded[1:-1]}
        own = [{"held": torch.full((most * 16,), torch.nan)} for _ in range(parts)]
        with spied() as called:
            finished.play(lib, examples, arrays | made, own, turns, by_turn=made.keys())
        assert called == ["play"] * parts
        assert arrays["begun"].tolist() == [1] * examples and arrays["steps"].tolist() == [turns] * examples
        for turn in range(turns):
            assert torch.equal(made["totals"][turn], a + (turn + 1) * b)
            assert made["folded"][turn].tolist() == [splitmix(int(key), turn + 1) for key in arrays["keys"]]
        for whole in (totals, folded):
            assert not whole[0].any() and not whole[-1].any(), "beyond the first or the last turn"


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("most", [1, 3, 8])
def test_examples_that_all_need_fewer_turns_get_no_more(most: int, parts: int) -> None:
    tape, steps = Tape(most), Place("steps", 0, 8)
    tape("count_on", 0, ALL, Place("begun", 0, 8))
    tape.body = len(tape.calls)
    tape("count_on", 0, ALL, steps)
    tape("fold", 0, ALL, Place("keys", 0, 8), steps, 0, Place("folded", 0, 8))
    until, turns = torch.tensor([3, 1, 1, 5, 1, 2, 2, 9, 1]), 6
    count = len(until)
    arrays = {name: torch.zeros(count, dtype=torch.int64) for name in ("begun", "steps")}
    folded = torch.zeros(turns, count, dtype=torch.int64)
    arrays |= {"keys": torch.arange(count) + 1, "folded": folded}
    Program(tape).play(lib, count, arrays, [{}] * parts, turns, by_turn=["folded"], until=until)
    wanted = list[int]()
    for part in until.tensor_split([count * part // parts for part in range(1, parts)]):
        for some in part.split(most):
            wanted += [min(turns, int(some.max()))] * len(some)
    assert arrays["begun"].tolist() == [1] * count and arrays["steps"].tolist() == wanted
    for turn in range(turns):
        taken = [splitmix(i + 1, turn + 1) if turn < last else 0 for i, last in enumerate(wanted)]
        assert folded[turn].tolist() == taken


@pytest.mark.parametrize("all_before", [False, True])
def test_a_body_may_be_all_there_is_or_nothing(all_before: bool) -> None:
    tape = Tape(2)
    tape("count_on", 0, ALL, Place("steps", 0, 8))
    tape.body = len(tape.calls) if all_before else 0
    steps = torch.zeros(5, dtype=torch.int64)
    Program(tape).play(lib, 5, {"steps": steps}, [{}, {}], 3)
    assert steps.tolist() == [1 if all_before else 3] * 5


def test_numbers_arrive_as_they_were_given() -> None:
    """Floats to the bit, and whole numbers of 64 bits."""
    for scale in (0.1, -0.0, 3, 1e-40, 3e38, float("inf")):
        tape = Tape(1)
        shape = (0, ALL, 1, 0, 16)
        tape("embed_forward", *shape, Place("ids"), Place("table"), Place("rows"), None, scale, None, 0, Place("out"))
        out = torch.empty(16)
        ids, one = torch.zeros(1, dtype=torch.int64), torch.ones(16)
        Program(tape).play(lib, 1, {"ids": ids, "table": one, "rows": one, "out": out}, [{}])
        assert torch.equal(bits(out), bits(torch.full((16,), scale, dtype=torch.float32)))
    for more in (0, -1, 2**40 + 7, -(2**62)):
        tape = Tape(1)
        tape("fold", 0, ALL, Place("key"), None, more, Place("out"))
        key, folded = torch.tensor([5]), torch.empty(1, dtype=torch.int64)
        Program(tape).play(lib, 1, {"key": key, "out": folded}, [{}])
        assert int(folded) == splitmix(5, more)


def test_a_call_with_too_few_arguments_is_not_written() -> None:
    tape = Tape(1)
    tape("fold", 0, ALL, Place("key"))
    with pytest.raises(ValueError, match="zip"):
        Program(tape)


# Kernels --------------------------------------------------------------------------------------------------------------


def through_play(name: str, *values: Argument) -> None:
    """A program of this call alone."""
    tape, arrays = Tape(1), dict[str, Tensor]()
    for i, value in enumerate(values):
        if isinstance(value, Tensor):
            arrays[str(i)] = value
    given: list[Given] = [Place(str(i)) if isinstance(v, Tensor) else v for i, v in enumerate(values)]
    tape(name, *given)
    Program(tape).play(lib, 1, arrays, [{}])


def copied(values: tuple[Argument, ...]) -> list[Argument]:
    """What is one array stays one."""
    known = {v.data_ptr(): v.clone() for v in values if isinstance(v, Tensor)}
    return [known[v.data_ptr()] if isinstance(v, Tensor) else v for v in values]


def run(name: str, count: int, *values: Argument) -> None:
    """A kernel for so many examples. By `play`, and in two parts, it comes to the same bits, and it leaves alone what
    belongs to examples that it is not asked for."""
    played, halved, one, before = (copied(values) for _ in range(4))
    lib(name, 0, count, *values)
    through_play(name, 0, count, *played)
    lib(name, 0, 1, *halved)
    lib(name, 1, count, *halved)
    lib(name, 1, 1, *one)
    assert all_same(one, before), "of no examples"
    lib(name, 1, 2, *one)
    assert all_same(values, played), "by play"
    assert all_same(values, halved), "in two parts"
    others = [t[torch.arange(count) != 1] if isinstance(t, Tensor) and len(t) == count else None for t in one]
    kept = [t[torch.arange(count) != 1] if isinstance(t, Tensor) and len(t) == count else None for t in before]
    assert all_same(others, kept), "of another example"


def all_same(a: Sequence[Argument], b: Sequence[Argument]) -> bool:
    pairs = [(x, y) for x, y in zip(a, b, strict=True) if isinstance(x, Tensor) and isinstance(y, Tensor)]
    return all(torch.equal(bits(x), bits(y)) for x, y in pairs)


def near(ours: Tensor, plain: Tensor, truth: Tensor) -> None:
    """As the plain form in float32 is to the definition in float64."""
    assert ours.shape == plain.shape == truth.shape
    natural = max(farthest(plain, truth), EPS * float(truth.abs().max()))
    assert farthest(ours, truth) <= SEVERAL * natural, f"off by {farthest(ours, truth):.1e}, natural is {natural:.1e}"


Definition = Callable[..., Tensor]


def differentiated(define: Definition, inputs: list[Tensor], grad: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """The result, and what `grad` of it is to each of its inputs."""
    leaves = [t.to(dtype).requires_grad_() for t in inputs]
    out = define(*leaves)
    found = torch.autograd.grad(out, leaves, grad.to(dtype), allow_unused=True, materialize_grads=True)
    return [out.detach(), *found]


def both(define: Definition, inputs: list[Tensor], grad: Tensor) -> list[tuple[Tensor, Tensor]]:
    """In float32 and in float64."""
    forms = [differentiated(define, inputs, grad, dtype) for dtype in (torch.float32, torch.float64)]
    return list(zip(*forms, strict=True))


def splitmix(key: int, value: int) -> int:
    """The definition of rng.fold, in whole numbers of any size."""
    full = 2**64
    x = (key + 0x9E3779B97F4A7C15 + value * 0x94D049BB133111EB) % full
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % full
    x = (x ^ x >> 27) * 0x94D049BB133111EB % full
    x ^= x >> 31
    return x - full if x >= full // 2 else x


KEYS = torch.tensor([0, -1, 2**63 - 1, -(2**63), 123456789012345678])


@pytest.mark.parametrize("more", [0, 1, 7, -3, 2**40])
def test_fold(more: int) -> None:
    out, steps = torch.empty_like(KEYS), torch.tensor([0, 1, 5, 2**33, -4])
    run("fold", 5, KEYS, None, more, out)
    assert out.tolist() == [splitmix(int(key), more) for key in KEYS]
    assert torch.equal(out, rng.fold(KEYS, more))
    run("fold", 5, KEYS, steps, more, out)
    assert out.tolist() == [splitmix(int(key), int(step) + more) for key, step in zip(KEYS, steps, strict=True)]


NAN, INF = float("nan"), float("inf")
COUNT, TOKENS, ROWS, SCALE = 4, 5, 6, 5.65
"""Examples, their tokens, rows of the table."""


@pytest.mark.numeric
@pytest.mark.parametrize("prefix", [1, 3])
@pytest.mark.parametrize("learned", [False, True], ids=["", "positions"])
@pytest.mark.parametrize("more", [None, 0, 1])
def test_embedding(prefix: int, learned: bool, more: int | None) -> None:
    """`more`: only examples whose steps and these make none have an embedding."""
    width, length = 32, prefix + TOKENS
    ids = torch.randint(0, ROWS, (COUNT, TOKENS), generator=torch.Generator().manual_seed(0))
    ids[0] = ids[0, 0]  # one row, again and again
    table, rows, position = drawn(ROWS, width), drawn(COUNT, width), drawn(length, width, seed=3)
    steps = None if more is None else torch.tensor([0, 1, -1, 0])
    open_ = torch.ones(COUNT, 1, 1) if steps is None or more is None else (steps + more == 0)[:, None, None]
    grad = drawn(COUNT, length, width, seed=8)

    def define(table: Tensor, rows: Tensor, position: Tensor) -> Tensor:
        x = torch.cat((rows[:, None], rows.new_zeros(COUNT, prefix - 1, width), table[ids]), dim=1)
        return SCALE * ((x + position) / 2**0.5 if learned else x) * open_

    wanted = both(define, [table, rows, position], grad)
    x, d_rows = torch.full_like(grad, torch.nan), torch.full_like(rows, torch.nan)
    shape, after = (prefix, TOKENS, width), (steps, more or 0)
    run("embed_forward", COUNT, *shape, ids, table, rows, position if learned else None, SCALE, *after, x)
    near(x, *wanted[0])
    had, had_position = drawn(ROWS, width, seed=11), drawn(length, width, seed=12)
    d_table, d_position = had.clone(), had_position.clone()
    found = (d_table, d_rows, d_position if learned else None)
    run("embed_backward", COUNT, *shape, ids, SCALE, *after, grad, *found)
    near(d_table, *(had + each for each in wanted[1]))
    near(d_rows, *wanted[2])
    if steps is not None:
        assert not d_rows[~open_[:, 0, 0]].any() and not x[~open_[:, 0, 0]].any()
    if learned:
        near(d_position, *(had_position + each for each in wanted[3]))


def test_states_to_begin_with() -> None:
    steps, start, old = torch.tensor([0, 3, 0, 1]), drawn(48), drawn(COUNT, 3, 48)
    out, grad, had = torch.empty_like(old), drawn(COUNT, 3, 48, seed=1), drawn(48, seed=2)
    run("begin", COUNT, 3, 48, steps, start, old, out)
    assert torch.equal(out, torch.where((steps == 0)[:, None, None], start, old))
    d_start = had.clone()
    run("begin_backward", COUNT, 3, 48, steps, grad, d_start)
    wanted = grad[steps == 0].sum(dim=(0, 1))
    near(d_start, had + wanted, had.double() + grad[steps == 0].double().sum(dim=(0, 1)))


@pytest.mark.numeric
@pytest.mark.parametrize("positions", [1, 3])
def test_sums(positions: int) -> None:
    size = (COUNT, positions, 48)
    a, b, c = (drawn(*size, seed=n) for n in range(3))
    masks = [dropout(COUNT, 1, 48, seed=n) for n in range(2)]
    for second, third, first_mask, second_mask in combinations([False, True], repeat=4):

        def define(
            a: Tensor,
            b: Tensor,
            c: Tensor,
            second: bool = second,
            third: bool = third,
            first_mask: bool = first_mask,
            second_mask: bool = second_mask,
        ) -> Tensor:
            total = a * masks[0] if first_mask else a
            total = total + (b * masks[1] if second_mask else b) if second else total
            return total + c if third else total

        out = torch.full(size, torch.nan)
        given = (a, masks[0] if first_mask else None, b if second else None, masks[1] if second_mask else None)
        run("add_up", COUNT, positions, 48, *given, c if third else None, out)
        near(out, define(a, b, c), define(a.double(), b.double(), c.double()))
    for masked, add in combinations([False, True], repeat=2):
        out = b.clone()
        run("pass_on", COUNT, positions, 48, a, masks[0] if masked else None, add, out)
        wanted = [x * masks[0] if masked else x for x in (a, a.double())]
        near(out, *(x + b if add else x for x in wanted))


@pytest.mark.parametrize("more", [0, 1])
def test_what_is_held(more: int) -> None:
    steps, asked = torch.tensor([0, 1, 2, 3]), torch.tensor([2, 2, 2, 0])
    had, made, out = drawn(COUNT, 33), drawn(COUNT, 33, seed=1), torch.full((COUNT, 33), torch.nan)
    over = (steps + more >= asked)[:, None]
    assert over.any() and not over.all()
    run("hold", COUNT, 33, steps, more, asked, had, made, out)
    assert torch.equal(out, torch.where(over, had, made))
    run("hold", COUNT, 33, steps, more, asked, None, made, out)
    assert torch.equal(out, torch.where(over, 0.0, made))


@pytest.mark.numeric
@pytest.mark.parametrize("prefix", [1, 3])
@pytest.mark.parametrize("out", [1, 7, 16, 17])
def test_the_head(prefix: int, out: int) -> None:
    width, wide = 48, -(-out // native.STEP) * native.STEP
    z, weight = drawn(COUNT, prefix + TOKENS, width), drawn(out, width, seed=4)
    grad = drawn(COUNT, TOKENS, out, seed=5)
    wanted = both(lambda z, weight: z[:, prefix:] @ weight.T, [z, weight], grad)
    padded = F.pad(weight, (0, 0, 0, wide - out))
    logits, d_z = torch.full_like(grad, torch.nan), torch.full_like(z, torch.nan)
    shape, ahead, back = (prefix, TOKENS, width, out), *(native.packed(lib, padded, each) for each in (True, False))
    run("head_forward", COUNT, *shape, z, ahead, logits)
    near(logits, *wanted[0])
    had = drawn(wide, width, seed=6)
    d_weight = had.clone()
    run("head_backward", COUNT, *shape, z, back, grad, d_z, d_weight)
    near(d_z, *wanted[1])
    assert not d_z[:, :prefix].any()
    near(d_weight[:out], *(had[:out] + each for each in wanted[2]))
    assert torch.equal(d_weight[out:], had[out:])


@pytest.mark.numeric
@pytest.mark.parametrize("others", [[0], [0, 1, 5], []])
def test_logits_of_symbols(others: list[int]) -> None:
    vocab = 4 + len(others)
    symbol = torch.tensor([i for i in range(vocab) if i not in others])
    other = torch.tensor(others, dtype=torch.int64)
    made, grad = drawn(COUNT, TOKENS, 4, 1 + len(others)), drawn(COUNT, TOKENS, vocab, seed=1)

    def define(made: Tensor) -> Tensor:
        columns = [torch.empty(0)] * vocab
        for place, token in enumerate(symbol.tolist()):
            columns[token] = made[:, :, place, 0]
        for place, token in enumerate(others):
            columns[token] = torch.stack([made[:, :, s, 1 + place] for s in range(4)]).sum(dim=0) / 4
        return torch.stack(columns, dim=-1)

    wanted = both(define, [made], grad)
    logits, d_made = torch.full_like(grad, torch.nan), torch.full_like(made, torch.nan)
    shape = (TOKENS, 4, len(others), vocab, symbol, other)
    run("symbols_forward", COUNT, *shape, made, logits)
    near(logits, *wanted[0])
    run("symbols_backward", COUNT, *shape, grad, d_made)
    near(d_made, *wanted[1])


@pytest.mark.numeric
def test_the_halting_head() -> None:
    length, width = 3, 48
    z, weight, bias = drawn(COUNT, length, width), drawn(2, width, seed=1), drawn(2, seed=2)
    grad = drawn(COUNT, 2, seed=3)
    wanted = both(lambda z, weight, bias: z[:, 0] @ weight.T + bias, [z, weight, bias], grad)
    q, apart = torch.full_like(grad, torch.nan), length * width
    run("halting_forward", COUNT, apart, width, z, weight, bias, q)
    near(q, *wanted[0])
    had = [drawn(*t.shape, seed=9) for t in (z, weight, bias)]
    found = [t.clone() for t in had]
    run("halting_backward", COUNT, apart, width, z, weight, grad, *found)
    for ours, before, each in zip(found, had, wanted[1:], strict=True):
        near(ours, *(before + d for d in each))
    assert torch.equal(found[0][:, 1:], had[0][:, 1:]), "of other positions than the first"


@pytest.mark.numeric
def test_sizes_of_states() -> None:
    z, out = drawn(COUNT, 5, 48, spread=3.0), torch.full((COUNT,), torch.nan)
    run("sizes", COUNT, 5, 48, z, out)
    near(out, *(x.norm(dim=-1).mean(dim=-1) for x in (z, z.double())))
    rows = drawn(COUNT, 5, 4)
    run("first_of", COUNT, 5, 4, rows, out)
    near(out, *(x[..., 0].mean(dim=-1) for x in (rows, rows.double())))
    each = torch.full((COUNT * 5,), torch.nan)
    run("first_of", COUNT * 5, 1, 4, rows.view(-1, 4), each)
    assert torch.equal(each.view(COUNT, 5), rows[..., 0])


@pytest.mark.numeric
def test_what_logits_say() -> None:
    for vocab in (2, 6, 16, 19):
        logits = drawn(COUNT, 5, vocab, spread=6.0)
        answers = torch.full((COUNT, 5), -1)
        sure, energy = torch.full((2, COUNT), torch.nan).unbind()
        run("read_out", COUNT, 5, vocab, logits, answers, sure, energy)
        assert torch.equal(answers, logits.argmax(dim=-1))
        near(sure, *(x.log_softmax(dim=-1).amax(dim=-1).mean(dim=-1) for x in (logits, logits.double())))
        near(energy, *(-x.abs().add(1).pow(x.sign()).sum(dim=-1).log().mean(dim=-1) for x in (logits, logits.double())))


EDGES = (-INF, -3e38, -1.0, -0.0, 0.0, 1.0, 1.0, 3e38, INF, NAN)


@pytest.mark.parametrize("vocab", range(1, 41))
def test_the_likeliest_symbol_is_that_of_torch_however_many_there_are(vocab: int) -> None:
    """Of equals the first, of what is no number the first, and of nothing but -infinity the first."""
    g, logits = torch.Generator().manual_seed(vocab), drawn(COUNT, 30, vocab)
    some = torch.tensor(EDGES)[torch.randint(0, len(EDGES), logits.shape, generator=g)]
    logits[1], logits[2] = some[1], some[2].nan_to_num(nan=-1.0, posinf=1.0, neginf=-INF)
    logits[3] = -INF
    at = torch.arange(30) % vocab
    logits[3, torch.arange(20), at[:20]] = torch.tensor([NAN, INF, 0.0, -3e38]).repeat(
        5
    )  # and ten rows of nothing else
    answers = torch.full((COUNT, 30), -1)
    run("read_out", COUNT, 30, vocab, logits, answers, None, None)
    assert torch.equal(answers, logits.argmax(dim=-1))
    assert answers[3, 20:].tolist() == [0] * 10


@pytest.mark.numeric
@pytest.mark.parametrize("vocab", [1, 7, 16, 37])
def test_what_logits_say_is_told_where_it_is_asked_for(vocab: int) -> None:
    """And what is told does not depend on what else is asked for."""
    for tokens in (1, 8, 17):
        logits, wanted = drawn(COUNT, tokens, vocab, spread=6.0), dict[str, Tensor]()
        for asked in (("sure", "energy"), ("sure",), ("energy",)):
            answers = torch.full((COUNT, tokens), -1)
            found = {name: torch.full((COUNT,), torch.nan) for name in asked}
            run("read_out", COUNT, tokens, vocab, logits, answers, found.get("sure"), found.get("energy"))
            wanted = wanted or found
            assert all(torch.equal(bits(found[name]), bits(wanted[name])) for name in asked)
            assert torch.equal(answers, logits.argmax(dim=-1))
        forms = (logits, logits.double())
        near(wanted["sure"], *(x.log_softmax(dim=-1).amax(dim=-1).mean(dim=-1) for x in forms))
        near(wanted["energy"], *(-x.abs().add(1).pow(x.sign()).sum(dim=-1).log().mean(dim=-1) for x in forms))


@pytest.mark.parametrize("vocab", [2, 5, 16, 19])
@pytest.mark.parametrize("edge", [NAN, INF, -INF, 3e38], ids=str)
def test_logits_that_are_no_numbers_say_what_they_say_in_torch(edge: float, vocab: int) -> None:
    """A number, infinity, or none; in one row of the first example, in a whole one of the second."""
    logits = drawn(COUNT, 18, vocab)
    logits[0, 3, vocab // 2], logits[1, 17] = edge, edge
    if edge == -INF:
        logits[1, 17, vocab - 1] = 0.0
    step = Step(Carry(States(None, None), torch.zeros(COUNT), torch.zeros(COUNT)), logits, None, None, None)
    ours = halting.read(step)
    with native.without():
        plain = halting.read(step)
    assert torch.equal(ours.answers, plain.answers)
    for a, b in ((ours.confidence, plain.confidence), (ours.energy, plain.energy)):
        assert torch.equal(a.isnan(), b.isnan()) and torch.equal(a.isinf(), b.isinf())
        assert torch.equal(a[a.isinf()], b[b.isinf()])
        assert a[2:].isfinite().all()


def test_of_equal_logits_the_first_counts_and_what_is_no_number_makes_nobody_sure() -> None:
    logits = torch.zeros(3, 2, 5)
    logits[1, 0, 2], logits[1, 0, 4], logits[2, 1, 3] = 7.0, 7.0, torch.nan
    step = Step(Carry(States(None, None), torch.zeros(3), torch.zeros(3)), logits, None, None, None)
    by_kernel = halting.read(step)
    with native.without():
        plain = halting.read(step)
    for found in (by_kernel, plain):
        assert found.answers.tolist() == [[0, 0], [2, 0], [0, 3]]
        assert found.confidence[2] == -torch.inf and found.confidence[:2].isfinite().all()


@pytest.mark.numeric
def test_how_far_states_moved() -> None:
    old, new = drawn(COUNT, 5, 48, spread=3.0), drawn(COUNT, 5, 48)
    by, size = torch.full((2, COUNT), torch.nan).unbind()
    run("moved", COUNT, 5 * 48, old, new, by, size)
    near(by, *((n - o).square().sum(dim=(1, 2)) for o, n in ((old, new), (old.double(), new.double()))))
    near(size, *(o.square().sum(dim=(1, 2)) for o in (old, old.double())))
    carries = [Carry(States(h, h.flip(0)), torch.zeros(COUNT), torch.zeros(COUNT)) for h in (old, new)]
    with native.without():
        plain = halting.residual(*carries)
    exact = [torch.cat((z, z.flip(0)), dim=1).double() for z in (old, new)]
    near(halting.residual(*carries), plain, (exact[1] - exact[0]).norm(dim=(1, 2)) / exact[0].norm(dim=(1, 2)))


# What is judged -------------------------------------------------------------------------------------------------------


class Judged(NamedTuple):
    exact: Tensor
    token: Tensor
    halt: Tensor
    going_on: Tensor
    d_q: Tensor


def judged(
    logits: Tensor, labels: Tensor, q: Tensor | None, following: Tensor | None, steps: Tensor, budget: int, by: float
) -> Judged:
    count = len(logits)
    exact, token, halt, going_on = torch.full((4, count), torch.nan)
    found = Judged(exact, token, halt, going_on, torch.full((count, 2), torch.nan))
    seen = (*logits.shape[1:], logits, labels, q, following, steps, budget, by)
    run("judge", count, *seen, *found[:4], found.d_q if q is not None else None)
    return found


def entropies(
    q: Tensor, exact: Tensor, following: Tensor | None, last: Tensor, by: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Both losses, and the derivatives of their sum times `by`."""
    q = q.to(dtype).requires_grad_()
    halt = F.binary_cross_entropy_with_logits(q[:, 0], exact.to(dtype), reduction="none")
    going_on = torch.zeros_like(halt)
    if following is not None:
        after = following.to(dtype)
        worth = torch.where(last, after[:, 0], torch.maximum(after[:, 0], after[:, 1])).sigmoid()
        going_on = F.binary_cross_entropy_with_logits(q[:, 1], worth, reduction="none")
    (d_q,) = torch.autograd.grad((halt + going_on).sum() * by, q)
    return halt.detach(), going_on.detach(), d_q


VOCAB = 6


def answers(count: int) -> tuple[Tensor, Tensor]:
    """Logits, and labels of which every second example has all right, and every third none that counts."""
    logits = drawn(count, TOKENS, VOCAB, spread=2.0)
    logits[..., 0] = -9.0  # a label that counts is no 0
    labels = torch.randint(1, VOCAB, (count, TOKENS), generator=torch.Generator().manual_seed(1))
    labels[::2] = logits[::2].argmax(dim=-1)
    labels[1::4, 0] = logits[1::4, 0].argmax(dim=-1)
    labels[:, 1] = 0
    labels[::3] = 0
    return logits, labels


def test_which_answers_are_right() -> None:
    logits, labels = answers(12)
    found = judged(logits, labels, None, None, torch.zeros(12, dtype=torch.int64), 3, 1.0)
    for i in range(12):
        right = [int(row.argmax()) == int(label) for row, label in zip(logits[i], labels[i], strict=True) if label]
        assert found.exact[i] == (all(right) and right != [])
        assert float(found.token[i]) == pytest.approx(sum(right) / max(len(right), 1), rel=2 * EPS)
        assert found.halt[i] == found.going_on[i] == 0
    assert {float(x) for x in found.exact} == {0.0, 1.0} and len(found.token.unique()) > 2


@pytest.mark.parametrize(
    "row",
    [
        [1.0, 3.0, 2.0, 3.0],
        [3.0, 3.0, 3.0, 3.0],
        [0.0, -0.0, 0.0, -1.0],
        [-0.0, 0.0, 0.0, 0.0],
        [1.0, NAN, 5.0, NAN],
        [NAN, 1.0, 5.0, NAN],
        [NAN, NAN, NAN, NAN],
        [1.0, 2.0, INF, NAN],
        [-INF, -INF, -INF, -INF],
        [-INF, 2.0, INF, INF],
        [3e38, -3e38, 3.1e38, 1e-45],
    ],
)
def test_the_likeliest_symbol_is_that_of_torch(row: list[float]) -> None:
    """Of equals the first; what is no number is the largest."""
    logits = torch.tensor(row).expand(4, 1, 4).contiguous()
    labels = torch.arange(4)[:, None]
    found = judged(logits, labels, None, None, torch.zeros(4, dtype=torch.int64), 1, 1.0)
    best = int(torch.tensor(row).argmax())
    assert found.exact.tolist() == [float(label == best and label != 0) for label in range(4)]


LOGITS = (-1e30, -1e4, -100.0, -87.5, -30.0, -17.0, -5.0, -1e-3, 0.0, 0.5, 5.0, 17.0, 30.0, 88.5, 100.0, 1e4, 1e30)


def edges() -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Every halting logit with both outcomes, and what would follow: larger, smaller and the same."""
    count = 2 * len(LOGITS)
    logits, labels = answers(count)
    labels[:], labels[: len(LOGITS)] = 0, logits[: len(LOGITS)].argmax(dim=-1)
    q = torch.tensor([*LOGITS, *LOGITS]).repeat(2, 1).T.contiguous()
    following = drawn(count, 2, spread=4.0)
    following[::5, 1] = following[::5, 0]
    return logits, labels, q, following, torch.arange(count) % 3


@pytest.mark.numeric
@pytest.mark.parametrize("budget", [1, 2, 3, 9])
def test_the_halting_losses(budget: int) -> None:
    logits, labels, q, following, steps = edges()
    for after in (None, following):
        found = judged(logits, labels, q, after, steps, budget, 0.3)
        assert found.exact.unique().tolist() == [0.0, 1.0]
        forms = [
            entropies(q, found.exact, after, steps + 1 >= budget, 0.3, dtype)
            for dtype in (torch.float32, torch.float64)
        ]
        assert not forms[0][0].isnan().any() and not found.halt.isnan().any()
        for ours, plain, truth in zip(found[2:], *forms, strict=True):
            each = truth.abs().clamp(min=1)  # of losses from 0 to 10^30, each for itself
            near(ours / each, plain / each, truth / each)
        if after is None:
            assert not found.going_on.any() and not found.d_q[:, 1].any()


@pytest.mark.numeric
def test_derivatives_of_small_chances_are_right_to_the_last_places() -> None:
    """Adam takes no notice of how large they are. As near as torch's, number by number."""
    q = torch.linspace(-40, -1, 40).repeat(2, 1).T.contiguous()
    logits, labels = answers(40)
    labels[:] = 0
    found = judged(logits, labels, q, None, torch.zeros(40, dtype=torch.int64), 3, 1.0)
    truth = entropies(q, found.exact, None, torch.zeros(40, dtype=torch.bool), 1.0, torch.float64)[2][:, 0]
    plain = entropies(q, found.exact, None, torch.zeros(40, dtype=torch.bool), 1.0, torch.float32)[2][:, 0]
    near(found.d_q[:, 0] / truth, plain / truth, torch.ones_like(truth))


@pytest.mark.parametrize(
    "after",
    [
        (NAN, NAN),
        (1.0, NAN),
        (NAN, 1.0),
    ],
)
def test_what_follows_and_is_no_number_is_seen(after: tuple[float, float]) -> None:
    logits, labels = answers(4)
    following = torch.tensor([after]).repeat(4, 1)
    found = judged(logits, labels, torch.zeros(4, 2), following, torch.zeros(4, dtype=torch.int64), 3, 1.0)
    assert torch.maximum(*following.unbind(dim=1)).isnan().all()
    assert found.going_on.isnan().all() and not found.halt.isnan().any()


# Who is done ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """When an example is done."""

    budget: int
    explore: float
    both: bool = False
    """Halting has to beat going on."""

    def done(self, q: list[float] | None, asked: int | None, key: int, now: int) -> bool:
        """After step `now`; in whole numbers, and numbers of 24 bits."""
        halts = q is not None and q[0] > (q[1] if self.both else 0)
        over = halts if asked is None else now >= asked
        drawn = splitmix(key, now)
        least = 2 + int(np.float32(chance(splitmix(drawn, rng.EXPLORE_LENGTH))) * np.float32(self.budget - 1))
        waits = now < least and chance(splitmix(drawn, rng.EXPLORE)) < self.explore
        return now >= self.budget or (over and not waits)


def chance(key: int) -> float:
    return (splitmix(key, 0) % 2**64 >> 40) / 2**24


@pytest.mark.parametrize("explore", [0.0, 0.1, 0.6, 1.0])
@pytest.mark.parametrize("kind", ["halt", "halt+continue", "none", "asked"])
def test_who_is_done_and_what_the_log_adds_up(kind: str, explore: float) -> None:
    count, g = 300, torch.Generator().manual_seed(3)
    key = torch.randint(-(2**63), 2**63 - 1, (count,), generator=g)
    q = drawn(count, 2, seed=1)
    q[5::50, 0], q[6::50, 1], q[7::50] = NAN, NAN, torch.tensor([INF, INF])
    q[8::50] = 0.5  # neither beats the other
    q[9::50, 0] = 0.0
    answer, halt, going_on, exact, token = (drawn(count, seed=n).abs() for n in range(2, 7))
    exact = (exact > 0.5).float()
    wanted = torch.randint(0, 9, (count,), generator=g) if kind == "asked" else None
    head = q if kind.startswith("halt") else None
    for budget in (1, 2, 3, 8):
        rule = Rule(budget, explore, kind == "halt+continue")
        steps = torch.randint(0, budget, (count,), generator=g)
        loss, finished, right, share, taken, q_halt = torch.full((6, count), NAN).unbind()
        given = (head, int(rule.both), wanted, key, steps, budget, explore, rng.EXPLORE, rng.EXPLORE_LENGTH)
        said = (loss, finished, right, share, taken, None if head is None else q_halt)
        run("settle", count, *given, answer, halt, going_on, 0.7, exact, token, *said)

        def over(rule: Rule, steps: Tensor = steps) -> list[bool]:
            each = zip(q.tolist(), key.tolist(), steps.tolist(), strict=True)
            ends = [None] * count if wanted is None else wanted.tolist()
            return [
                rule.done(None if head is None else row, end, k, n + 1)
                for (row, k, n), end in zip(each, ends, strict=True)
            ]

        done = torch.tensor(over(rule))
        assert torch.equal(finished, done.float())
        if budget > 2:
            assert done.any() and not done.all()
            if kind != "none":
                assert (over(replace(rule, explore=0.0)) != done.tolist()) == (explore > 0), "nobody had to wait"
        assert torch.equal(right, exact * done) and torch.equal(share, token * done)
        assert torch.equal(taken, ((steps + 1) * done).float())
        near(loss, *(a + 0.7 * (b + c) for a, b, c in (
            (answer, halt, going_on), (answer.double(), halt.double(), going_on.double()),
        )))  # fmt: skip
        assert torch.equal(bits(q_halt), bits(q[:, 0] if head is not None else torch.full((count,), NAN)))


def test_steps_are_counted() -> None:
    steps = torch.tensor([0, 5, 2**40, -1])
    run("count_on", 4, steps)
    assert steps.tolist() == [1, 6, 2**40 + 1, 0]
