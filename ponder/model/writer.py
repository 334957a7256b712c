"""An ACT step on a tape: what `Reasoner.forward`, `losses.losses` and their backward pass compute, as calls of kernels.

It follows `recurrence` and `reasoner` line by line; the tests hold it against them.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from ponder.base import rng
from ponder.base.native import STEP
from ponder.model.program import Place, Times, Value
from ponder.model.recurrence import horizon
from ponder.model.sublayers import ALL, Lesson, Sublayers


@dataclass(eq=False)
class _Made:
    """The outcome of one ACT step on the tape."""

    states: list[Value]
    out: Value
    rows: Place | None
    """Of the last state update."""


class Writer(Sublayers):
    """Puts an ACT step of a model on a tape."""

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


def _gate_back(d: Tensor, weight: Tensor, bias: Tensor) -> None:
    weight.add_(d[:-1])
    bias.add_(d[-1:])


# What a program does --------------------------------------------------------------------------------------------------


def _carried(writer: Writer) -> list[Value]:
    names = ("h", "l")[: writer.config.states]
    return [Value(Place(name, 0, 4 * writer.floats), writer.floats) for name in names]


SAID = "said: "
"""The beginning of the names of arrays that hold a number for each example of a lesson, which the log adds up."""


def answer(writer: Writer) -> None:
    made = writer.step(_carried(writer), 0, learning=False)
    writer.halting(made.out, Place("q", 0, 8))
    writer.logits(made.out, Place("logits", 0, 4 * writer.model.tokens * writer.model.vocab))
    writer.written_out(made)
    if made.rows is not None and writer.config.bound is not None:
        to = Place("ratio", 0, 4 * writer.length)
        writer.tape("first_of", 0, Times(writer.length), 1, 4, made.rows, to)


def examination(writer: Writer) -> None:
    """In turns: each takes all examples one ACT step on, from where they start, and reads the answer off."""
    tape, model, config, shape = writer.tape, writer.model, writer.config, (writer.length, writer.width)
    tokens, vocab, names = model.tokens, model.vocab, ("h", "l")[: config.states]
    held = [Value(Place(f"held {name}"), writer.floats) for name in names]
    for name, old, z in zip(names, _carried(writer), held, strict=True):
        if config.init == "fixed":
            start = writer.weight(getattr(model, f"init_{name}"))
            tape("begin", 0, ALL, *shape, writer.steps, start, None, z.place)
        else:
            tape("pass_on", 0, ALL, *shape, old.place, None, 0, z.place)
    tape.body = len(tape.calls)
    made = writer.step(held, 0, learning=False)
    q = writer.halting(made.out, Place("q", 0, 8))
    logits = writer.logits(made.out, None)
    sure = _each("sure") if q is None else None
    tape("read_out", 0, ALL, tokens, vocab, logits, Place("answers", 0, 8 * tokens), sure, None)
    for new, old in zip(made.states, held, strict=True):
        tape("pass_on", 0, ALL, *shape, new.place, None, 0, old.place)
    tape("count_on", 0, ALL, writer.steps)


def lesson(writer: Writer, judged: Lesson) -> None:
    tape, model, config = writer.tape, writer.model, writer.config
    tokens, vocab = model.tokens, model.vocab
    made = writer.step(_carried(writer), 0, learning=True)
    q = writer.halting(made.out, Place("q", 0, 8))
    logits = writer.logits(made.out, None)
    states = writer.written_out(made)
    for name, z in zip(("norm_h", "norm_l"), made.states, strict=False):
        tape("sizes", 0, ALL, writer.length, writer.width, z.place, _each(SAID + name))
    if made.rows is not None and config.bound is not None:
        tape("first_of", 0, ALL, writer.length, 4, made.rows, _each(SAID + "ratio"))
    following = None
    if config.halting == "halt+continue":
        after = writer.step(states, 1, learning=False)
        following = writer.halting(after.out)
        tape.learning = True
    labels = Place("labels", 0, 8 * tokens)
    logits.grad = tape.room(logits.floats)
    by = 1 / judged.batch
    given = (tokens, vocab, logits, labels, int(judged.softmax), by)
    answer_loss, halt_loss, continue_loss = (
        _each(SAID + name) for name in ("answer_loss", "halt_loss", "continue_loss")
    )
    tape("answer_loss", 0, ALL, *given, answer_loss, logits.grad)
    if q is not None:
        q.grad = tape.room(2)
    seen = (logits, labels, q, following, writer.steps, judged.budget)
    exact, token = tape.room(1), tape.room(1)
    found = (exact, token, halt_loss, continue_loss, None if q is None else q.grad)
    tape("judge", 0, ALL, tokens, vocab, *seen, by * judged.halting_weight, *found)
    asked = None if model.asked is None else Place("asked", 0, 8)
    rule = (q, int(config.halting == "halt+continue"), asked, writer.key, writer.steps, judged.budget)
    drawn = (judged.explore, rng.EXPLORE, rng.EXPLORE_LENGTH)
    losses = (answer_loss, halt_loss, continue_loss, judged.halting_weight)
    said = [_each(SAID + name) for name in ("loss", "finished", "exact", "token", "steps")]
    q_halt = None if q is None else _each(SAID + "q_halt")
    tape("settle", 0, ALL, *rule, *drawn, *losses, exact, token, *said, q_halt)
    tape.backward()


def _each(name: str) -> Place:
    """A number for every example."""
    return Place(name, 0, 4)
