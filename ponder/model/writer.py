"""An ACT step on a tape: what `Reasoner.forward`, `losses.losses` and their backward pass compute, as calls of kernels.

It follows `recurrence`, `layers` and what they are made of line by line; the tests hold it against them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ponder.base import rng
from ponder.base.native import STEP
from ponder.config.schema import ModelConfig
from ponder.model.attention import Attention, Rotary
from ponder.model.layers import Block, Layer
from ponder.model.products import SwiGLU
from ponder.model.program import EXTRA, GRADS, PACKED, Place, Tape, Times, Value
from ponder.model.recurrence import horizon
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
class _Made:
    """The outcome of one ACT step on the tape."""

    states: list[Value]
    out: Value
    rows: Place | None
    """Of the last state update."""


class Writer:
    """Puts an ACT step of a model on a tape."""

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
        masked: Place | None,
        dropped: Place | None,
        y: Place,
        scale: Place | None,
    ) -> Place | None:
        """The gated MLP of so many rows of each example; joined where there is a scale to keep. What it kept."""
        tape, (both, down) = self.tape, (mlp.up.weight, mlp.down.weight)
        (double, inn), out = both.shape, len(down)
        inner, taps = double // 2, self._taps(mlp)
        kept = tape.room(rows * double) if tape.learning else None
        weights = self.packed(self.weight(both), double, inn, halves=2), self.packed(self.weight(down), out, inner)
        given = (x, *weights, self.length, taps and taps[0], masked, dropped, int(scale is not None), kept, y, scale)
        tape("swiglu_forward", 0, Times(rows), inn, inner, out, *given)
        return kept

    def mlp_back(
        self,
        x: Place,
        rows: int,
        mlp: SwiGLU,
        masked: Place | None,
        dropped: Place | None,
        y: Place | None,
        scale: Place | None,
        kept: Place | None,
        d: Place,
        d_x: Place,
    ) -> None:
        tape, (both, down) = self.tape, (mlp.up.weight, mlp.down.weight)
        (double, inn), out = both.shape, len(down)
        inner, taps = double // 2, self._taps(mlp)
        weights = (
            self.packed(self.weight(both), double, inn, back=True),
            self.packed(self.weight(down), out, inner, back=True),
        )
        given = (self.length, taps and taps[0], masked, dropped, int(scale is not None), kept, y, scale, d)
        found = (d_x, self.grad(both), self.grad(down), taps and taps[1])
        tape("swiglu_backward", 0, Times(rows), inn, inner, out, x, *weights, *given, *found)
        tape.release(kept, rows * double)

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
            mixed = self._mixed(x, layer, masks)
            y, scale = self.tape.made(self.floats), self.tape.room(self.length)
            masked, dropped = (masks.middle, masks.ffn) if masks else (None, None)
            kept = self.mlp(mixed.place, self.length, layer.mlp, masked, dropped, y.place, scale)

            def backward(
                d: Place,
                layer: Layer = layer,
                mixed: Value = mixed,
                y: Value = y,
                scale: Place = scale,
                kept: Place | None = kept,
                masked: Place | None = masked,
                dropped: Place | None = dropped,
            ) -> bool:
                d_x = self.tape.room(self.floats)
                self.mlp_back(mixed.place, self.length, layer.mlp, masked, dropped, y.place, scale, kept, d, d_x)
                self.tape.release(scale, self.length)
                self.tape.give(mixed, d_x)
                return False

            self.tape.back(y, backward)
            self.tape.drop(mixed)
            if not self.tape.learning:
                self.tape.release(scale, self.length)
            if i > 0:
                self.tape.drop(x)
            x = y
        return x

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
        kept = [self.mlp(part, n, mlp, None, None, answer, None) for part, answer, n, mlp in each]
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
            each = zip(parts(heard), parts(d_answers), parts(d_heard), rows, kinds, kept, strict=False)
            for part, d_answer, d_part, n, mlp, held in each:
                self.mlp_back(part, n, mlp, None, None, None, None, held, d_answer, d_part)
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

    # The recurrence

    def added(self, a: Value, mask_a: Place | None, b: Value | None, mask_b: Place | None, c: Value | None) -> Value:
        """a + (b + c)"""
        tape, shape = self.tape, (self.length, self.width)
        out = tape.made(self.floats)
        given = (a, mask_a, b, mask_b, c)
        tape("add_up", 0, ALL, *shape, *given, out.place)

        def backward(d: Place) -> bool:
            if b is not None:
                tape.lend(b, d, self.length, mask_b)
            if c is not None:
                tape.lend(c, d, self.length)
            if mask_a is None:
                return self._handed(a, d)
            tape.lend(a, d, self.length, mask_a)
            return False

        tape.back(out, backward)
        return out

    def updated(self, old: Value, candidate: Value, seen: Value) -> tuple[Value, Place | None]:
        """The new state, and the rows that say how it came about."""
        tape, update = self.tape, self.model.update
        assert update is not None
        if update.tau is None and update.gate is None:
            return self.norm(candidate) if update.norm else candidate, None
        new, rows = tape.made(self.floats), tape.room(4 * self.length)
        weight = bias = d_gate = None
        if update.gate is not None:
            weight, bias = self.weight(update.gate.weight), self.weight(update.gate.bias)
            of = (update.gate.weight, update.gate.bias)
            d_gate = self.derive("gate", of, self.width + 1, _gate_back, None)[1]
        shape = (0, Times(self.length), self.width)
        given = (old.place, candidate.place, seen.place)
        tape("update_forward", *shape, *given, update.tau or 0.0, weight, bias, int(update.norm), new.place, rows)

        def backward(d: Place) -> bool:
            d_old, d_candidate = tape.room(self.floats), tape.room(self.floats)
            d_seen = tape.room(self.floats) if weight is not None else None
            rest = (weight, int(update.norm), new.place, rows, d, d_old, d_candidate, d_seen, d_gate)
            tape("update_backward", *shape, *given, *rest)
            tape.give(old, d_old)
            tape.give(candidate, d_candidate)
            if d_seen is not None:
                tape.give(seen, d_seen)
            return False

        tape.back(new, backward)
        return new, rows

    def step(self, carried: list[Value], more: int, learning: bool) -> _Made:
        """One ACT step, `more` steps after those that were done."""
        tape, config, model = self.tape, self.config, self.model
        tape.learning = learning
        x = self.noised(self._embedded(more), rng.NOISE_X, more)
        states = [self._begun(z, n) for n, z in enumerate(carried)] if learning and more == 0 else carried
        states = [self.noised(z, use, more) for z, use in zip(states, (rng.NOISE_H, rng.NOISE_L), strict=False)]
        if self.dropout:
            mask, whole, shape = self.mask((2,), self.floats, config.dropout), x, (1, self.floats)
            x = tape.made(self.floats)
            tape("add_up", 0, ALL, *shape, whole.place, mask, None, None, None, x.place)

            def through(d: Place) -> bool:
                tape.lend(whole, d, 1, mask)
                return False

            tape.back(x, through)
        if config.states == 0:
            out = self.block(x, model.low, 0)
            return _Made([], out, None)
        dropped: list[Place | None] = [None, None]
        if self.form.training and config.state_dropout > 0:
            dropped = [self.mask((n,), self.width, config.state_dropout) for n in (3, 4)]
        z_h, z_l, rows = states[0], states[1] if len(states) > 1 else None, None
        high = 0 if model.high is model.low else 1
        k_h, k_l = horizon(config)
        for cycle in range(self.form.cycles):
            reached = learning and cycle >= self.form.cycles - k_h
            for inner in range(config.l_cycles):
                tape.learning = reached and inner >= config.l_cycles - k_l
                if z_l is None:
                    before, total = z_h, self.added(z_h, dropped[0], None, None, x)
                    z_h = self.block(total, model.low, 0)
                    tape.drop(before, total)
                else:
                    total = self.added(z_l, dropped[1], z_h, dropped[0], x)
                    candidate, before = self.block(total, model.low, 0), z_l
                    z_l, rows = self.updated(before, candidate, total)
                    tape.drop(before, total, *([] if z_l is candidate else [candidate]))
            if z_l is not None:
                tape.learning = reached
                before, total = z_h, self.added(z_h, dropped[0], z_l, dropped[1], None)
                above = self.block(total, model.high, high)
                z_h = self.norm(above) if config.post_norm else above
                tape.drop(before, total, *([above] if config.post_norm else []))
        tape.learning = learning
        made = [z_h] if z_l is None else [z_h, z_l]
        if model.asked is not None:
            made = [self._held(old, new, more) for old, new in zip(carried, made, strict=True)]
        return _Made(made, made[0], rows)

    def _embedded(self, more: int) -> Value:
        tape, model, prefix = self.tape, self.model, self.config.prefix
        tokens = self.length - prefix
        x, ids = tape.made(self.floats), Place("ids", 0, 8 * tokens)
        position = self.weight(model.position) if self.config.positions == "learned" else None
        steps = self.steps if model.asked is not None else None
        shape, rows = (prefix, tokens, self.width), Place("rows", 0, 4 * self.width)
        given = (ids, self.weight(model.embed), rows, position, model.scale, steps, more)
        tape("embed_forward", 0, ALL, *shape, *given, x.place)

        def backward(d: Place) -> bool:
            d_position = None if position is None else self.grad(model.position)
            found = (self.grad(model.embed), Place("d_rows", 0, 4 * self.width), d_position)
            tape("embed_backward", 0, ALL, *shape, ids, model.scale, steps, more, d, *found)
            return False

        tape.back(x, backward)
        return x

    def _begun(self, old: Value, n: int) -> Value:
        """Learned initial states, where the horizon lets gradients reach them."""
        full = horizon(self.config) == (self.config.h_cycles, self.config.l_cycles)
        if not (self.model.learned and full):
            return old
        tape, start, shape = self.tape, getattr(self.model, ("init_h", "init_l")[n]), (self.length, self.width)
        out = tape.made(self.floats)
        tape("begin", 0, ALL, *shape, self.steps, self.weight(start), old.place, out.place)

        def backward(d: Place) -> bool:
            tape("begin_backward", 0, ALL, *shape, self.steps, d, self.grad(start))
            return False

        tape.back(out, backward)
        return out

    def _held(self, old: Value, new: Value, more: int) -> Value:
        tape, asked = self.tape, Place("asked", 0, 8)
        out, given = tape.made(self.floats), (0, ALL, self.floats, self.steps, more, asked)
        tape("hold", *given, old.place, new.place, out.place)

        def backward(d: Place) -> bool:
            d_new = tape.room(self.floats)
            tape("hold", *given, None, d, d_new)
            tape.give(new, d_new)
            return False

        tape.back(out, backward)
        return out

    # What is said of it

    def logits(self, z: Value, into: Place | None) -> Value:
        tape, model, config = self.tape, self.model, self.config
        positions, weight = self.length - config.prefix, model.head.weight
        out, wide = len(weight), -(-len(weight) // STEP) * STEP

        def padded(value: Tensor) -> Tensor:
            return F.pad(value, (0, 0, 0, wide - out))

        def cut(d: Tensor, grad: Tensor) -> None:
            grad.add_(d.view(wide, -1)[:out])

        place, d_weight = self.derive("padded head", (weight,), wide * self.width, cut, padded)
        plain = model.symbols is None
        made = Value(into, positions * out, tape.learning) if into and plain else tape.made(positions * out)
        shape = (0, ALL, config.prefix, positions, self.width, out)
        tape("head_forward", *shape, z.place, self.packed(place, wide, self.width), made.place)

        def backward(d: Place) -> bool:
            d_z = tape.room(self.floats)
            back = self.packed(place, wide, self.width, back=True)
            tape("head_backward", *shape, z.place, back, d, d_z, d_weight)
            tape.give(z, d_z)
            return False

        tape.back(made, backward)
        return made if model.symbols is None else self._of_symbols(made, into)

    def _of_symbols(self, made: Value, into: Place | None) -> Value:
        tape, model = self.tape, self.model
        assert model.symbols is not None
        cells, symbols, vocab = model.tokens, len(model.symbols.symbol), model.vocab
        full = Value(into, cells * vocab, tape.learning) if into else tape.made(cells * vocab)
        given = (0, ALL, cells, symbols, vocab - symbols, vocab)
        which = self.constant("symbol", model.symbols.symbol), self.constant("other", model.symbols.other)
        tape("symbols_forward", *given, *which, made.place, full.place)

        def backward(d: Place) -> bool:
            d_made = tape.room(made.floats)
            tape("symbols_backward", *given, *which, d, d_made)
            tape.give(made, d_made)
            return False

        tape.back(full, backward)
        tape.drop(made)
        return full

    def halting(self, z: Value, into: Place | None = None) -> Value | None:
        tape, head = self.tape, self.model.q_head
        if head is None:
            return None
        q = Value(into, 2, tape.learning) if into else tape.made(2)
        weight, shape = self.weight(head.weight), (0, ALL, self.floats, self.width)
        tape("halting_forward", *shape, z.place, weight, self.weight(head.bias), q.place)

        def backward(d: Place) -> bool:
            if z.grad is None:
                raise RuntimeError("the answer's gradient comes first")
            grads = self.grad(head.weight), self.grad(head.bias)
            tape("halting_backward", *shape, z.place, weight, d, z.grad, *grads)
            return False

        tape.back(q, backward)
        return q

    def written_out(self, made: _Made) -> list[Value]:
        """The states where the caller finds them, which nobody overwrites."""
        out = [Value(Place(name, 0, 4 * self.floats), self.floats) for name in ("new_h", "new_l")[: len(made.states)]]
        for z, to in zip(made.states, out, strict=True):
            self.tape("pass_on", 0, ALL, self.length, self.width, z.place, None, 0, to.place)
        return out


def _taps_made(weight: Tensor, bias: Tensor) -> Tensor:
    return torch.cat((weight[:, 0].t(), bias[None]))


def _taps_back(d: Tensor, weight: Tensor, bias: Tensor) -> None:
    d = d.view(3, -1)
    weight[:, 0].add_(d[:2].t())
    bias.add_(d[2])


def _gate_back(d: Tensor, weight: Tensor, bias: Tensor) -> None:
    weight.add_(d[:-1])
    bias.add_(d[-1:])


# What a program does -----


def _carried(writer: Writer) -> list[Value]:
    names = ("h", "l")[: writer.config.states]
    return [Value(Place(name, 0, 4 * writer.floats), writer.floats) for name in names]


def answer(writer: Writer) -> None:
    made = writer.step(_carried(writer), 0, learning=False)
    writer.halting(made.out, Place("q", 0, 8))
    writer.logits(made.out, Place("logits", 0, 4 * writer.model.tokens * writer.model.vocab))
    writer.written_out(made)
    if made.rows is not None and writer.config.bound is not None:
        to = Place("ratio", 0, 4 * writer.length)
        writer.tape("first_of", 0, Times(writer.length), 1, 4, made.rows, to)


def lesson(writer: Writer, judged: Lesson) -> None:
    tape, model, config = writer.tape, writer.model, writer.config
    tokens, vocab = model.tokens, model.vocab
    made = writer.step(_carried(writer), 0, learning=True)
    q = writer.halting(made.out, Place("q", 0, 8))
    logits = writer.logits(made.out, None)
    states = writer.written_out(made)
    for name, z in zip(("norm_h", "norm_l"), made.states, strict=False):
        tape("sizes", 0, ALL, writer.length, writer.width, z.place, _each(name))
    if made.rows is not None and config.bound is not None:
        tape("first_of", 0, ALL, writer.length, 4, made.rows, _each("ratio"))
    following = None
    if config.halting == "halt+continue":
        after = writer.step(states, 1, learning=False)
        following = writer.halting(after.out)
        tape.learning = True
    labels = Place("labels", 0, 8 * tokens)
    logits.grad = tape.room(logits.floats)
    by = 1 / judged.batch
    tape(
        "answer_loss",
        0,
        ALL,
        tokens,
        vocab,
        logits.place,
        labels,
        int(judged.softmax),
        by,
        _each("answer_loss"),
        logits.grad,
    )
    if q is not None:
        q.grad = tape.room(2)
    seen = (logits, labels, q, following, writer.steps, judged.budget)
    found = (_each("exact"), _each("token"), _each("halt_loss"), _each("continue_loss"), None if q is None else q.grad)
    tape("judge", 0, ALL, tokens, vocab, *seen, by * judged.halting_weight, *found)
    tape.backward()


def _each(name: str) -> Place:
    """A number for every example."""
    return Place(name, 0, 4)
