"""The parts of a layer on a tape, each as calls of kernels, with its backward pass.

They follow `products`, `attention`, `relations` and `layers` line by line; the tests hold them against those.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ponder.base import rng
from ponder.base.native import STEP
from ponder.config.schema import ModelConfig
from ponder.model.attention import Attention, Rotary
from ponder.model.layers import Block, Layer
from ponder.model.products import SwiGLU
from ponder.model.program import EXTRA, GRADS, PACKED, Place, Tape, Times, Value
from ponder.model.relations import Relations

if TYPE_CHECKING:  # which imports this
    from ponder.model.reasoner import Reasoner

ALL = Times(1)
"""The examples at a time."""


class Form(NamedTuple):
    """What a program does."""

    cycles: int
    noise: float
    """eta"""
    training: bool
    """Whether there is dropout, where the model has any."""
    lesson: "Lesson | None" = None
    """None: an answer, and nothing is learned from it."""


class Lesson(NamedTuple):
    """How an ACT step is judged."""

    budget: int
    """Steps at the most."""
    batch: int
    """Examples of the update."""
    softmax: bool
    halting_weight: float
    explore: float = 0.0
    """The share of steps before which a random minimum length holds."""


@dataclass(frozen=True)
class Derived:
    """An array that is made of parameters before a program is played, and whose gradient goes back to theirs."""

    of: tuple[str, ...]
    make: Callable[..., Tensor] | None
    """None: only its gradient is there."""
    back: Callable[..., None]
    """(its gradient, those of the parameters), which it adds to."""
    size: int
    place: Place
    """Of its gradient."""


@dataclass(eq=False)
class _Masks:
    qkv: Place | None
    attention: Place
    middle: Place
    ffn: Place


@dataclass(eq=False)
class _Gated:
    """A gated MLP on the tape, as its backward pass needs it."""

    x: Place
    rows: int
    mlp: SwiGLU
    y: Place
    masked: Place | None
    dropped: Place | None
    scale: Place | None
    kept: Place | None


class Sublayers:
    """Puts the parts of a layer on a tape, and knows where their weights and gradients are."""

    def __init__(self, tape: Tape, model: "Reasoner", form: Form, layout: Mapping[str, int] | None) -> None:
        self.tape, self.model, self.form, self.layout = tape, model, form, layout
        self.config: ModelConfig = model.config
        self.length, self.width = model.length, model.config.width
        self.floats = self.length * self.width
        self.names = {id(parameter): name for name, parameter in model.named_parameters()}
        self.names |= {id(buffer): name for name, buffer in model.named_buffers()}
        self.derived: dict[str, Derived] = {}
        self.constants: dict[str, Tensor] = {}
        self._packed: dict[tuple[str, str], Place] = {}
        self._masks: dict[tuple[int, ...], Place] = {}
        self.key, self.steps = Place("key", 0, 8), Place("steps", 0, 8)
        self.dropout = form.training and self.config.dropout > 0
        self.rotary = self._rotary()

    # Where numbers lie

    def weight(self, parameter: Tensor) -> Place:
        return Place(self.names[id(parameter)])

    def grad(self, parameter: Tensor) -> Place:
        assert self.layout is not None
        return Place(GRADS, 4 * self.layout[self.names[id(parameter)]])

    def constant(self, name: str, value: Tensor) -> Place:
        self.constants[name] = value
        return Place(name)

    def derive(
        self, name: str, of: Sequence[Tensor], size: int, back: Callable[..., None], make: Callable[..., Tensor] | None
    ) -> tuple[Place, Place]:
        """Where it is, and where its gradient is."""
        if name not in self.derived:
            names = tuple(self.names[id(each)] for each in of)
            self.derived[name] = Derived(names, make, back, size, self.tape.held(EXTRA, size))
        return Place(name), self.derived[name].place

    def packed(self, place: Place, out: int, inn: int, halves: int = 1, back: bool = False) -> Place:
        """The weight [out, in] at this place in the order of the kernels, forward its `halves` one after the other."""
        key = place.array, "back" if back else "forward"
        if key not in self._packed:
            to = self._packed[key] = self.tape.held(PACKED, out * inn)
            if back:
                self.tape.once.append(("pack", (out, inn, place, inn, 1, to)))
            else:
                part = out // halves
                for half in range(halves):
                    at = half * part * inn
                    self.tape.once.append(("pack", (inn, part, place.after(at), 1, inn, to.after(at))))
        return self._packed[key]

    # Random numbers

    def folded(self, key: Place, value: int, steps: Place | None = None) -> Place:
        out = self.tape.room(2)
        self.tape("fold", 0, ALL, key, steps, value, out)
        return out

    def mask(self, path: tuple[int, ...], count: int, drop: float) -> Place:
        """The dropout mask of this use, `count` numbers for every example: the same in all steps."""
        if path not in self._masks:
            key = self.key
            for value in (rng.MASK, *path):
                key = self.folded(key, value)
            out = self._masks[path] = self.tape.room(count)
            self.tape("keep_mask", 0, ALL, count, key, round(drop * 65536) - 32768, 1 / (1 - drop), out)
        return self._masks[path]

    def noised(self, u: Value, use: int, more: int) -> Value:
        if self.form.noise == 0:
            return u
        tape = self.tape
        key = self.folded(self.folded(self.key, more, self.steps), use)
        noise, out = tape.room(self.floats), tape.made(self.floats)
        tape("noise", 0, ALL, self.length, self.width, u.place, key, self.form.noise, noise)
        tape("add_up", 0, ALL, self.length, self.width, u.place, None, None, None, noise, out.place)
        tape.release(noise, self.floats)
        tape.back(out, lambda d: self._handed(u, d))
        return out

    def _handed(self, value: Value, d: Place) -> bool:
        self.tape.give(value, d)
        return True

    # Linear layers, norms, MLPs

    def norm(self, x: Value, added: Value | None = None, mask: Place | None = None) -> Value:
        tape, rows = self.tape, Times(self.length)
        y, scale = tape.made(self.floats), tape.room(self.length)
        tape("norm_forward", 0, rows, self.width, x.place, added, mask, y.place, scale)

        def backward(d: Place) -> bool:
            d_x = tape.room(self.floats)
            d_added = tape.room(self.floats) if mask is not None else None
            tape("norm_backward", 0, rows, self.width, d, y.place, scale, mask, d_x, d_added)
            if added is not None and d_added is not None:
                tape.give(added, d_added)
            elif added is not None:
                tape.lend(added, d_x, self.length)
            tape.give(x, d_x)
            tape.release(scale, self.length)
            return False

        tape.back(y, backward)
        if not tape.learning:
            tape.release(scale, self.length)
        return y

    def linear(self, x: Value, out: int, weight: Place, grad: Place | None) -> Value:
        tape, rows, inn = self.tape, Times(self.length), x.floats // self.length
        y = tape.made(self.length * out)
        tape("linear", 0, rows, inn, out, x.place, self.packed(weight, out, inn), y.place)

        def backward(d: Place) -> bool:
            assert grad is not None
            d_x = tape.room(x.floats)
            tape("linear", 0, rows, out, inn, d, self.packed(weight, out, inn, back=True), d_x)
            tape("linear_weight", 0, rows, inn, out, d, x.place, grad)
            tape.give(x, d_x)
            return False

        tape.back(y, backward)
        return y

    def mlp(
        self,
        x: Place,
        rows: int,
        mlp: SwiGLU,
        y: Place,
        masked: Place | None = None,
        dropped: Place | None = None,
        scale: Place | None = None,
    ) -> _Gated:
        """The gated MLP of so many rows of each example; joined where there is a scale to keep."""
        tape, (both, down) = self.tape, (mlp.up.weight, mlp.down.weight)
        (double, inn), out = both.shape, len(down)
        inner, taps = double // 2, self._taps(mlp)
        kept = tape.room(rows * double) if tape.learning else None
        weights = self.packed(self.weight(both), double, inn, halves=2), self.packed(self.weight(down), out, inner)
        given = (x, *weights, self.length, taps and taps[0], masked, dropped, int(scale is not None), kept, y, scale)
        tape("swiglu_forward", 0, Times(rows), inn, inner, out, *given)
        return _Gated(x, rows, mlp, y, masked, dropped, scale, kept)

    def mlp_back(self, made: _Gated, d: Place, d_x: Place) -> None:
        tape, (both, down) = self.tape, (made.mlp.up.weight, made.mlp.down.weight)
        (double, inn), out = both.shape, len(down)
        inner, taps = double // 2, self._taps(made.mlp)
        weights = [self.packed(self.weight(w), len(w), w.shape[1], back=True) for w in (both, down)]
        masks, joined = (made.masked, made.dropped), (int(made.scale is not None), made.kept, made.y, made.scale)
        given = (made.x, *weights, self.length, taps and taps[0], *masks, *joined, d)
        found = (d_x, self.grad(both), self.grad(down), taps and taps[1])
        tape("swiglu_backward", 0, Times(made.rows), inn, inner, out, *given, *found)
        tape.release(made.kept, made.rows * double)

    def _taps(self, mlp: SwiGLU) -> tuple[Place, Place] | None:
        if mlp.conv is None:
            return None
        bias = mlp.conv.bias
        assert bias is not None
        name = f"taps of {self.names[id(bias)]}"
        return self.derive(name, (mlp.conv.weight, bias), 3 * len(bias), _taps_back, _taps_made)

    # Layers

    def block(self, x: Value, block: Block, number: int) -> Value:
        for i, layer in enumerate(block.layers):
            assert isinstance(layer, Layer)
            masks = self._layer_masks(layer, (number, i)) if self.dropout else None
            y = self._layer(x, layer, masks)
            if i > 0:
                self.tape.drop(x)
            x = y
        return x

    def _layer(self, x: Value, layer: Layer, masks: _Masks | None) -> Value:
        tape, mixed = self.tape, self._mixed(x, layer, masks)
        y, scale = tape.made(self.floats), tape.room(self.length)
        masked, dropped = (masks.middle, masks.ffn) if masks else (None, None)
        made = self.mlp(mixed.place, self.length, layer.mlp, y.place, masked, dropped, scale)

        def backward(d: Place) -> bool:
            d_x = tape.room(self.floats)
            self.mlp_back(made, d, d_x)
            tape.release(scale, self.length)
            tape.give(mixed, d_x)
            return False

        tape.back(y, backward)
        tape.drop(mixed)
        if not tape.learning:
            tape.release(scale, self.length)
        return y

    def _layer_masks(self, layer: Layer, path: tuple[int, ...]) -> _Masks:
        drop, inner = self.config.dropout, layer.mlp.down.in_features
        sizes = (3 * self.width if layer.attention else 0, self.width, inner, self.width)
        made = [self.mask((*path, n), self.length * size, drop) if size else None for n, size in enumerate(sizes)]
        qkv, attention, middle, ffn = made
        assert attention is not None and middle is not None and ffn is not None
        return _Masks(qkv, attention, middle, ffn)

    def _mixed(self, x: Value, layer: Layer, masks: _Masks | None) -> Value:
        dropped = masks.attention if masks else None
        if layer.attention is not None:
            mixed = self._attended(x, layer.attention, masks.qkv if masks else None)
            joined = self.norm(x, mixed, dropped)
            self.tape.drop(mixed)
            return joined
        if layer.relations is not None:
            return self._related(x, layer.relations, dropped)
        assert layer.tokens is not None
        return self._across(x, layer.tokens, dropped)

    def _across(self, x: Value, mlp: SwiGLU, dropped: Place | None) -> Value:
        tape, both, down = self.tape, mlp.up.weight, mlp.down.weight
        inner, shape = down.shape[1], (self.length, down.shape[1], self.width)
        y, scale = tape.made(self.floats), tape.room(self.width)
        kept = tape.room(2 * inner * self.width) if tape.learning else None
        weights = self.weight(both), self.weight(down)
        tape("across_forward", 0, ALL, *shape, x.place, *weights, dropped, 1, kept, y.place, scale)

        def backward(d: Place) -> bool:
            d_x = tape.room(self.floats)
            given = (x.place, *weights, dropped, 1, kept, y.place, scale, d)
            tape("across_backward", 0, ALL, *shape, *given, d_x, self.grad(both), self.grad(down))
            tape.release(kept, 2 * inner * self.width)
            tape.release(scale, self.width)
            tape.give(x, d_x)
            return False

        tape.back(y, backward)
        if not tape.learning:
            tape.release(scale, self.width)
        return y

    def _attended(self, x: Value, attention: Attention, masked: Place | None) -> Value:
        tape, heads = self.tape, attention.heads
        weight, grad = self._qkv(attention)
        qkv = self.linear(x, 3 * self.width, weight, grad)
        shape = (self.length, heads, self.width // heads)
        wide = heads * self.length * (-(-self.length // STEP) * STEP)
        mixed, kept = tape.made(self.floats), tape.room(wide) if tape.learning else None
        turn = None if self.rotary is None else self.constant("turns", self.rotary.native)
        bias = Place("bias", 0, 4 * self.length) if self.config.key_mask else None
        tape("attention_forward", 0, ALL, *shape, qkv.place, masked, turn, bias, kept, mixed.place)

        def backward(d: Place) -> bool:
            d_qkv = tape.room(3 * self.floats)
            tape("attention_backward", 0, ALL, *shape, qkv.place, masked, turn, kept, d, d_qkv)
            tape.release(kept, wide)
            tape.give(qkv, d_qkv)
            return False

        tape.back(mixed, backward)
        tape.drop(qkv)
        out = attention.out.weight
        y = self.linear(mixed, self.width, self.weight(out), self.grad(out) if self.layout is not None else None)
        tape.drop(mixed)
        return y

    def _rotary(self) -> Rotary | None:
        config = self.config
        if config.mixer != "attention" or config.positions != "rope":
            return None
        return Rotary.make(self.length, self.width, config.heads, self.model.embed.device)

    def _qkv(self, attention: Attention) -> tuple[Place, Place | None]:
        """Its weight as the rotation wants it, and where the gradient goes."""
        weight = attention.qkv.weight
        if self.rotary is None:
            return self.weight(weight), None if self.layout is None else self.grad(weight)
        order, back = self.rotary.order, self.rotary.back

        def made(value: Tensor) -> Tensor:
            return value.index_select(0, order)

        def returned(d: Tensor, grad: Tensor) -> None:
            grad.add_(d.view_as(grad).index_select(0, back))

        return self.derive(f"turned {self.names[id(weight)]}", (weight,), weight.numel(), returned, made)

    def _related(self, x: Value, relations: Relations, dropped: Place | None) -> Value:
        tape, board, width = self.tape, relations.board, self.width
        assert board is not None
        cells, groups = relations.tokens, sum(board.counts)
        place = {
            f"{name}.{part}": self.constant(f"{name}.{part}", getattr(getattr(board, name), part))
            for name in ("gather", "tell", "gather_back", "tell_back")
            for part in ("starts", "columns")
        }
        where = self.constant("where", board.where)
        shape = (board.prefix, cells, board.symbols, width)
        sizes = [groups * board.symbols * width, cells * width if board.symbols > 1 else 0, width]
        kinds = [mlp for name, mlp in relations.kinds.items() if isinstance(mlp, SwiGLU) and name != "tree"]
        rows = [count * board.symbols for count in board.counts]
        rows += [cells] if board.symbols > 1 else []
        rows += [1]
        by = (board.gather.value, board.symbols**-0.5, 1 / self.length)

        def rooms() -> list[Place | None]:
            return [tape.room(size) if size else None for size in sizes]

        def released(places: Sequence[Place | None]) -> None:
            for at, size in zip(places, sizes, strict=True):
                tape.release(at, size)

        def parts(places: Sequence[Place | None]) -> list[Place]:
            """Of each kind of group, then cells, then everything."""
            first, out = 0, []
            for count in board.counts:
                assert places[0] is not None
                out.append(places[0].after(tape.most * first * board.symbols * width))
                first += count
            return [*out, *(at for at in places[1:] if at is not None)]

        def collect(from_: Place, lists: str, scales: tuple[float, float, float], into: Sequence[Place | None]) -> None:
            given = (where, place[f"{lists}.starts"], place[f"{lists}.columns"], from_, *scales, *into)
            tape("collect", 0, ALL, tape.most, *shape, groups, *given)

        def spread(
            x: Place,
            lists: str,
            told: Sequence[Place | None],
            mask: Place | None,
            scales: tuple[float, float, float],
            into: Place,
            scale: Place | None,
        ) -> None:
            everything = told[2] if len(kinds) == len(rows) else None
            given = (where, place[f"{lists}.starts"], place[f"{lists}.columns"], x, told[0], told[1], everything, mask)
            tape("spread", 0, ALL, tape.most, *shape, *given, *scales, into, scale)

        heard, answers = rooms(), rooms()
        collect(x.place, "gather", by, heard)
        each = zip(parts(heard), parts(answers), rows, kinds, strict=False)
        made = [self.mlp(part, n, mlp, answer) for part, answer, n, mlp in each]
        y, scale = tape.made(self.floats), tape.room(self.length)
        spread(x.place, "tell", answers, dropped, (board.tell.value, 1.0, 1.0), y.place, scale)
        released(answers)

        def backward(d: Place) -> bool:
            d_joint = tape.room(self.floats)
            d_told = d_joint if dropped is None else tape.room(self.floats)
            tape("norm_backward", 0, Times(self.length), width, d, y.place, scale, dropped, d_joint, d_told)
            d_answers, d_heard, d_x = rooms(), rooms(), tape.room(self.floats)
            collect(d_told, "tell_back", (board.tell.value, 1.0, 1.0), d_answers)
            if dropped is not None:
                tape.release(d_told, self.floats)
            for one, d_answer, d_part in zip(made, parts(d_answers), parts(d_heard), strict=False):
                self.mlp_back(one, d_answer, d_part)
            spread(d_joint, "gather_back", d_heard, None, by, d_x, None)
            for places in (d_answers, d_heard, heard):
                released(places)
            tape.release(d_joint, self.floats)
            tape.release(scale, self.length)
            tape.give(x, d_x)
            return False

        tape.back(y, backward)
        if not tape.learning:
            released(heard)
            tape.release(scale, self.length)
        return y


def _taps_made(weight: Tensor, bias: Tensor) -> Tensor:
    return torch.cat((weight[:, 0].t(), bias[None]))


def _taps_back(d: Tensor, weight: Tensor, bias: Tensor) -> None:
    d = d.view(3, -1)
    weight[:, 0].add_(d[:2].t())
    bias.add_(d[2])
