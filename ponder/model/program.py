"""Programs: calls of base/kernels.c that are written down once and then played by C, a few examples at a time.

What lies between two calls of such a few examples stays in the processor's cache, no memory is asked for, and threads
share the examples of a batch without waiting for each other. A `Tape` writes a program: every operation adds the calls
that compute it and, where gradients are wanted, remembers how to add those of its backward pass.
"""

import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ponder.base import native
from ponder.base.native import SIGNATURES, Argument, Library

SCRATCH, PACKED, GRADS, EXTRA = "scratch", "packed", "grads", "extra"
"""Arrays that every program has: a thread's own memory, packed weights, and gradients: of parameters, and of what is
made of them."""
FIXED = (SCRATCH, PACKED, GRADS, EXTRA)
CACHE = 2**21
"""Bytes of a thread's memory: of these it uses a part at a time, which the processor has close at hand."""
MOST = 32
"""Examples at a time: more gain nothing (docs/performance.md)."""
ROWS, MANY_ROWS = 96, 1024
"""Rows that products should have at a time: those of a block; and where the weights are larger than the cache, so many
that fetching them is soon forgotten."""


@dataclass(frozen=True)
class Place:
    """So many bytes after the beginning of an array, and `each` more for every example of the batch before it."""

    array: str
    offset: int = 0
    each: int = 0

    def after(self, floats: int) -> "Place":
        return replace(self, offset=self.offset + 4 * floats)


@dataclass(frozen=True)
class Times:
    """A whole number that grows with the examples at a time: so much for each."""

    each: int


@dataclass(eq=False)
class Value:
    """What an operation made: `floats` numbers for every example."""

    place: Place
    floats: int
    wanted: bool = False
    """Whether its gradient is."""
    grad: Place | None = None
    """Where what has come back so far is."""


Given = Place | Times | int | float | None


class Tape:
    """A program in the making, for `most` examples at a time."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.calls: list[tuple[str, tuple[Given, ...]]] = []
        self.once: list[tuple[str, tuple[Given, ...]]] = []
        """What is done before, for all examples: weights are packed."""
        self.body = 0
        """The calls before this one belong to the first turn only, where a program is played in turns."""
        self.learning = False
        """Whether operations from here on have a backward pass."""
        self.sizes = {SCRATCH: 0, PACKED: 0, EXTRA: 0}
        """Bytes."""
        self._backs: list[Callable[[], None]] = []
        self._free: dict[int, list[Place]] = {}

    def __call__(self, name: str, *given: Given | Value) -> None:
        self.calls.append((name, tuple(each.place if isinstance(each, Value) else each for each in given)))

    # Memory

    def room(self, floats: int) -> Place:
        """For so many numbers of every example at a time."""
        if free := self._free.get(floats):
            return free.pop()
        return self._more(SCRATCH, self.most * floats)

    def held(self, array: str, floats: int) -> Place:
        """For so many numbers, the same for all examples."""
        return self._more(array, floats)

    def _more(self, array: str, floats: int) -> Place:
        place = Place(array, self.sizes[array])
        self.sizes[array] += -(-4 * floats // 64) * 64
        return place

    def release(self, place: Place | None, floats: int) -> None:
        """What comes next may use it again."""
        if place is not None and place.array == SCRATCH:
            self._free.setdefault(floats, []).append(place)

    def drop(self, *values: Value) -> None:
        """Nobody needs these any more, unless there is a backward pass to come, of what is made now or of them."""
        for value in values:
            if not self.learning and not value.wanted:
                self.release(value.place, value.floats)

    # Gradients

    def made(self, floats: int) -> Value:
        return Value(self.room(floats), floats, wanted=self.learning)

    def back(self, value: Value, backward: Callable[[Place], bool]) -> None:
        """How the gradient of `value`, which is at the place it is called with, goes on to what it was made of. Neither
        is needed afterwards, unless the gradient was given away: then it returns true."""
        if not self.learning:
            return

        def go() -> None:
            if value.grad is not None and not backward(value.grad):
                self.release(value.grad, value.floats)
            self.release(value.place, value.floats)

        self._backs.append(go)

    def backward(self) -> None:
        for go in reversed(self._backs):
            go()

    def give(self, value: Value, grad: Place) -> None:
        """More of a value's gradient; the place is the tape's from now on."""
        if not value.wanted:
            self.release(grad, value.floats)
        elif value.grad is None:
            value.grad = grad
        else:
            self("pass_on", 0, Times(1), 1, value.floats, grad, None, 1, value.grad)
            self.release(grad, value.floats)

    def lend(self, value: Value, grad: Place, positions: int, mask: Place | None = None) -> None:
        """The same with what is still needed elsewhere, or has to go through a mask that all positions share."""
        if not value.wanted:
            return
        new = value.grad is None
        if value.grad is None:
            value.grad = self.room(value.floats)
        self("pass_on", 0, Times(1), positions, value.floats // positions, grad, mask, int(not new), value.grad)


# Playing --------------------------------------------------------------------------------------------------------------

spent: Tensor | None = None
"""Where nanoseconds of every function are added up while somebody measures (benchmarks/model.py), on one thread."""

_ARGUMENT = np.dtype([("value", "<i8"), ("each", "<i8"), ("kind", "<i4"), ("base", "<i4")])


@dataclass(frozen=True)
class _Calls:
    """As `play` reads them."""

    functions: npt.NDArray[np.int32]
    arguments: npt.NDArray[np.void]

    @staticmethod
    def of(calls: list[tuple[str, tuple[Given, ...]]], arrays: Mapping[str, int]) -> "_Calls":
        rows = [_argument(g, k, arrays) for name, given in calls for g, k in zip(given, SIGNATURES[name], strict=True)]
        numbers = {name: number for number, name in enumerate(SIGNATURES)}
        functions = np.array([(numbers[name], len(given)) for name, given in calls], np.int32).reshape(-1, 2)
        return _Calls(functions, np.array(rows, _ARGUMENT))

    def part(self, first: int, last: int) -> "_Calls":
        """Some of them."""
        ends = np.concatenate(([0], self.functions[:, 1].cumsum()))
        return _Calls(self.functions[first:last], self.arguments[ends[first] : ends[last]])

    def play(self, lib: Library, places: npt.NDArray[np.int64], onward: npt.NDArray[np.int64], *how: Argument) -> None:
        """`places`: where the arrays are; `onward`: by how many bytes each moves on from turn to turn; `how`: as C has
        it from `size` to `most`."""
        if len(self.functions):
            given = (each.ctypes.data for each in (self.functions, self.arguments, places, onward))
            lib("play", len(self.functions), *given, *how, spent)


def _argument(given: Given, kind: str, arrays: Mapping[str, int]) -> tuple[int, int, int, int]:
    if kind == "f":
        assert isinstance(given, int | float)
        return struct.unpack("<I", struct.pack("<f", given))[0], 0, 1, 0
    if kind == "p":
        if given is None:
            return 0, 0, 3, 0
        assert isinstance(given, Place)
        return given.offset, given.each, 2, arrays[given.array]
    assert isinstance(given, int | Times)
    return (0, given.each, 0, 0) if isinstance(given, Times) else (given, 0, 0, 0)


class Program:
    """A finished tape. It owns no numbers: `play` is told where they are."""

    def __init__(self, tape: Tape) -> None:
        given = [g for _, all_ in (*tape.once, *tape.calls) for g in all_ if isinstance(g, Place)]
        self.arrays = list(dict.fromkeys((*FIXED, *(place.array for place in given))))
        numbers = {name: i for i, name in enumerate(self.arrays)}
        self.once, self.calls = _Calls.of(tape.once, numbers), _Calls.of(tape.calls, numbers)
        self.most, self.sizes, self.body = tape.most, tape.sizes, tape.body

    def play(
        self,
        lib: Library,
        examples: int,
        arrays: Mapping[str, Tensor],
        threads: Sequence[Mapping[str, Tensor]],
        turns: int = 1,
        by_turn: Collection[str] = (),
        until: Tensor | None = None,
    ) -> None:
        """For all examples, in as many parts as there are `threads`, each with arrays of its own. Where an array is
        missing, no call may need it. The arrays `by_turn` are stacks with a part for each turn. `until`: the turns that
        each example needs; those it has more are its neighbours'."""
        common = np.array([arrays[n].data_ptr() if n in arrays else 0 for n in self.arrays], np.int64)
        sizes = (arrays[n][0].numel() * arrays[n].element_size() if n in by_turn else 0 for n in self.arrays)
        onward = np.array([*sizes], np.int64)
        # Large weights are packed by all threads: no call needs what another one did
        packers, one = len(threads) if self.sizes[PACKED] > CACHE else 1, (0, 0, 1, None, 0, 1, 1)
        native.in_parts(
            packers, len(self.once.functions), lambda a, b, _: self.once.part(a, b).play(lib, common, onward, *one)
        )
        own = [common.copy() for _ in threads]
        for places, tensors in zip(own, threads, strict=True):
            for name, tensor in tensors.items():
                places[self.arrays.index(name)] = tensor.data_ptr()
        size, body, most = self.sizes[SCRATCH], self.body, self.most

        def work(first: int, last: int, part: int) -> None:
            self.calls.play(lib, own[part], onward, size, body, turns, until, first, last, most)

        native.in_parts(len(threads), examples, work)


def written(write: Callable[[Tape], None], rows: int) -> Program:
    """The program that `write` puts on a tape, for as many examples of so many rows at a time as fit the cache, or as
    products need."""
    tape = Tape(1)
    write(tape)
    wanted = ROWS if tape.sizes[PACKED] <= CACHE else MANY_ROWS
    tape = Tape(min(MOST, max(CACHE // max(1, tape.sizes[SCRATCH]), -(-wanted // rows))))
    write(tape)
    return Program(tape)
