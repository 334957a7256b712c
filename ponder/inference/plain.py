"""A few puzzles without torch: one ACT step in NumPy, for the kinds of model that the zoo holds.

Loading torch takes a second or two, many times as long as such a model thinks about a puzzle. The step is that of
`ponder.model.reasoner`, which the tests hold it to, without what training needs; a model that it does not cover, or
whose card does not vouch for its files, is opened the usual way.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ponder.base import files, stats
from ponder.base.geometry import Lists
from ponder.config.schema import ModelConfig
from ponder.domains.contract import Domain, Ints, Tokens
from ponder.inference.answers import SecondThought, Thought
from ponder.inference.solver import Solver
from ponder.inference.tries import first_right, likeliest, suppositions
from ponder.inference.weights import Imported, as_carded, settings, zoo_folders

Array = npt.NDArray[np.floating[Any]]
EPS = 1e-5


class Beyond(Exception):
    """A model that this file does not cover."""


# The step -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Carry:
    """z_H and z_L of one puzzle, [positions, width], as far as the model has them."""

    h: Array | None
    l: Array | None  # noqa: E741
    steps: int = 0


@dataclass(frozen=True)
class Step:
    carry: Carry
    logits: Array
    """[tokens, vocabulary]"""
    q_halt: float | None
    over: bool
    """Whether all steps were taken that the puzzle asks for, where it asks."""


def covered(config: ModelConfig) -> bool:
    fixed = config.states == 0 or config.init == "fixed"
    convolves = config.mlp_conv or config.input_conv
    return config.mixer != "attention" and config.norm == "post" and fixed and not convolves


class Plain:
    """A trained model. The tensors have the names of `Reasoner.state_dict`, and their type is that of all numbers."""

    def __init__(self, config: ModelConfig, domain: Domain, tensors: Mapping[str, Array]) -> None:
        if not covered(config) or any(".kinds.all." in name for name in tensors):
            raise Beyond  # the second are weights of an older form: whoever loads them all says what is wrong
        geometry = domain.geometry
        self.config, self.geometry, self.tensors, self.vocab = config, geometry, tensors, len(domain.vocab)
        self.symbols = geometry.symbols if config.symbols == "equivariant" else ()
        self.others = [token for token in range(self.vocab) if token not in self.symbols]
        self.length = config.prefix + domain.seq_len * max(len(self.symbols), 1)
        told = geometry.told(domain.seq_len)
        self.groups = told.counts
        self.gather, self.tell = (
            Lists.of(matrix) or matrix.astype(tensors["embed"].dtype) for matrix in (told.gather, told.tell)
        )

    def start(self) -> Carry:
        """Where every puzzle starts."""
        size = self.length, self.config.width
        states = self.config.states
        return Carry(
            h=np.broadcast_to(self.tensors["init_h"], size) if states > 0 else None,
            l=np.broadcast_to(self.tensors["init_l"], size) if states > 1 else None,
        )

    def __call__(self, carry: Carry, inputs: Tokens) -> Step:
        """One ACT step of one puzzle."""
        config, asked = self.config, self._asked(inputs)
        x = self._embedded(inputs)
        if asked is not None and carry.steps:
            x = np.zeros_like(x)  # after the first step the board is in the state
        links = None if self.geometry.tree is None else self.geometry.tree.links(inputs)
        h, l = carry.h, carry.l  # noqa: E741
        if h is not None and (asked is None or carry.steps < asked):
            h, l = self._recurred(h, l, x, links)  # noqa: E741
        out = self._block("low", x, links) if h is None else h
        logits = self._linear("head", out[config.prefix :])
        if self.symbols:
            logits = self._by_symbol(logits)
        q_halt = float(self._linear("q_head", out[0])[0]) if config.head else None
        after = Carry(h, l, carry.steps + 1)
        return Step(after, logits, q_halt, asked is not None and after.steps >= asked)

    def _asked(self, inputs: Tokens) -> int | None:
        """The steps that a puzzle asks for, where the model takes so many."""
        if self.config.halting != "asked":
            return None
        return int("".join(str(int(inputs[place]) - self.geometry.zero) for place in self.geometry.asked))

    def _embedded(self, inputs: Tokens) -> Array:
        config, embed = self.config, self.tensors["embed"]
        rows = inputs.astype(np.int64)
        if self.symbols:  # a position for each symbol of a cell: which row says what that symbol is to the cell
            role = np.full(self.vocab, len(self.others) + 1)
            role[self.others] = np.arange(len(self.others))
            this = rows[:, None] == np.array(self.symbols)
            rows = np.where(this, len(self.others), role[rows][:, None]).ravel()
        x = np.zeros((config.prefix + len(rows), config.width), embed.dtype)
        x[0] = self.tensors["table"][0]
        x[config.prefix :] = embed[rows]
        if config.positions == "learned":
            x = (x + self.tensors["position"]) * x.dtype.type(0.5**0.5)
        return x * x.dtype.type(config.width**0.5)

    def _by_symbol(self, out: Array) -> Array:
        """[cells * symbols, 1 + others] -> [cells, vocabulary]: of each symbol its own, of others the mean."""
        out = out.reshape(-1, len(self.symbols), out.shape[-1])
        full = np.empty((len(out), self.vocab), out.dtype)
        full[:, self.symbols] = out[..., 0]
        full[:, self.others] = out[..., 1:].mean(axis=1)
        return full

    def _recurred(self, h: Array, l: Array | None, x: Array, links: Ints | None) -> tuple[Array, Array | None]:  # noqa: E741
        high = "low" if self.config.modules == "shared" else "high"
        for _ in range(self.config.h_cycles):
            for _ in range(self.config.l_cycles):
                if l is None:
                    h = self._block("low", h + x, links)
                else:
                    total = l + (h + x)
                    l = self._updated(l, self._block("low", total, links), total)  # noqa: E741
            if l is not None:
                h = self._block(high, h + l, links)
                h = _normed(h) if self.config.post_norm else h
        return h, l

    def _updated(self, old: Array, candidate: Array, total: Array) -> Array:
        new, tau = candidate, self.config.bound
        if tau is not None or self.config.gate:
            delta, scale = candidate - old, np.ones_like(old[:, :1])
            if tau is not None:
                ratio = np.linalg.norm(delta, axis=-1, keepdims=True) / (
                    np.linalg.norm(old, axis=-1, keepdims=True) + old.dtype.type(1e-8)
                )
                scale = 1 / np.maximum(ratio / old.dtype.type(tau), 1)
            if self.config.gate:
                scale = scale * _sigmoid(self._linear("update.gate", total))
            new = old + delta * scale
        return _normed(new) if self.config.post_norm else new

    def _block(self, name: str, x: Array, links: Ints | None) -> Array:
        layers = self.config.layers if name == "low" else self.config.layers_above
        for i in range(layers):
            layer = f"{name}.layers.{i}"
            if self.config.mixer == "mlp":
                x = _normed(x.T + self._swiglu(f"{layer}.tokens", x.T)).T
            else:
                x = _normed(x + self._related(f"{layer}.relations.kinds", x, links))
            x = _normed(x + self._swiglu(f"{layer}.mlp", x))
        return x

    def _related(self, kinds: str, x: Array, links: Ints | None) -> Array:
        """What the groups of the puzzle, and the links of its tree, tell its positions."""
        symbols, width = max(len(self.symbols), 1), x.shape[-1]
        body = x[self.config.prefix :].reshape(-1, symbols * width)
        groups = _summed(self.gather, body).reshape(-1, symbols, width)
        answers, start = [], 0
        for kind, count in self.groups.items():
            answers.append(self._swiglu(f"{kinds}.{kind}", groups[start : start + count]))
            start += count
        mixed = _summed(self.tell, np.concatenate(answers).reshape(start, -1)).reshape(-1, symbols, width)
        if symbols > 1:
            cells = body.reshape(mixed.shape).sum(axis=1) * x.dtype.type(symbols**-0.5)
            mixed = mixed + self._swiglu(f"{kinds}.symbols", cells)[:, None]
        out = np.zeros_like(x)
        out[self.config.prefix :] = mixed.reshape(-1, width)
        if links is not None:
            nodes = links[:, links[0] < len(body)]  # the row after the last is of zeros, for what is not there
            heard = np.concatenate([body, np.zeros_like(body[:1])])[nodes.T]
            out[self.config.prefix + nodes[0]] += self._swiglu(f"{kinds}.tree", heard.reshape(nodes.shape[1], -1))
        if self.config.halting == "asked":
            return out
        return out + self._swiglu(f"{kinds}.mean", x.mean(axis=0, keepdims=True))

    def _swiglu(self, name: str, x: Array) -> Array:
        gate, up = np.split(self._linear(f"{name}.up", x), 2, axis=-1)
        return self._linear(f"{name}.down", gate * _sigmoid(gate) * up)

    def _linear(self, name: str, x: Array) -> Array:
        out: Array = x @ self.tensors[f"{name}.weight"].T
        bias = self.tensors.get(f"{name}.bias")
        return out if bias is None else out + bias


def _summed(by: Array | Lists, x: Array) -> Array:
    """The rows of x that each row of the result adds up."""
    if not isinstance(by, Lists):
        out: Array = by @ x
        return out
    more = np.concatenate([x, np.zeros_like(x[:1])])
    added: Array = more[by.columns].sum(axis=0) * x.dtype.type(by.scale)
    return added


def _normed(x: Array) -> Array:
    scale = np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + x.dtype.type(EPS))
    out: Array = x / scale
    return out


def _sigmoid(x: Array) -> Array:
    with np.errstate(over="ignore"):
        out: Array = 1 / (1 + np.exp(-x))
    return out


# A solver of it -------------------------------------------------------------------------------------------------------


class PlainSolver(Solver):
    """A model of the zoo, one puzzle after the other."""

    def open(self, model: str | Path, device: str) -> tuple[str, Domain, ModelConfig]:
        folder = zoo_folders().get(str(model))
        if folder is None or Path(model).exists() or device != "cpu" or not (folder / "card.json").is_file():
            raise Beyond
        from safetensors.numpy import load_file

        file, stored = folder / "weights.safetensors", settings(folder)
        if isinstance(stored, Imported):
            raise Beyond
        as_carded(folder, files.sha256(file))
        domain = stored.data.make()
        self.plain = Plain(stored.model, domain, load_file(file))
        return folder.name, domain, stored.model

    def fit(self) -> None:
        self.plain = Plain(self.config, self.domain, self.plain.tensors)

    def think(self, inputs: Tokens) -> Iterator[Thought]:
        carry, before = self.plain.start(), inputs
        while True:
            step = self.plain(carry, inputs)
            carry, answer = step.carry, step.logits.argmax(axis=-1).astype(np.uint8)
            valid = bool(self.domain.check(inputs[None], answer[None])[0]) if self.domain.checkable else None
            confidence = float("nan") if step.q_halt is None else float(stats.probability(step.q_halt))
            yield Thought(carry.steps, answer, answer != before, confidence, valid)
            asked = self.config.halting == "asked" and self.domain.checkable
            if (step.over if asked else valid) or carry.steps >= (self.patience if self.config.states else 1):
                return
            before = answer

    def traces(self, inputs: Tokens) -> list[list[Thought]]:
        return [list(self.think(each)) for each in inputs]

    def searched(self, inputs: Tokens, traces: Sequence[Sequence[Thought]]) -> dict[int, SecondThought]:
        refused = [i for i, trace in enumerate(traces) if not trace[-1].valid]
        if not self.search or not refused:
            return {}
        if not self.fills_in(self.search):
            torched = Solver(self.model, self.steps, search=self.search)
            return (torched.at(self.domain) if self.note else torched).searched(inputs, traces)
        if self.domain.vary == "suppose":
            found = ((i, self._supposing(inputs[i])) for i in refused)
        else:
            found = ((i, self._listing(inputs[i], traces[i][-1])) for i in refused)
        return {i: second for i, second in found if second is not None}

    def _supposing(self, puzzle: Tokens) -> SecondThought | None:
        """One supposition after the other, as `ponder.inference.search` does it."""
        depth, steps = min(self.patience, self.config.max_steps), 0
        logits = self.logits(puzzle, depth)
        for number, supposed in enumerate(suppositions(self.domain, puzzle, logits, self.search), start=1):
            *_, last = itertools.islice(self.think(supposed), depth)
            steps += last.step
            if last.valid:
                return SecondThought(last.answer, last.confidence, number, steps)
        return None

    def _listing(self, puzzle: Tokens, last: Thought) -> SecondThought | None:
        """Other answers that the model finds likely, likewise."""
        logits = self.logits(puzzle, min(self.patience, self.config.max_steps))
        answers = likeliest(self.domain, puzzle, logits, self.search)
        at = first_right(self.domain, puzzle, answers)
        return None if at is None else SecondThought(answers[at], last.confidence, at + 1, 0)

    def logits(self, inputs: Tokens, steps: int) -> npt.NDArray[np.float32]:
        carry = self.plain.start()
        for _ in range(steps):
            step = self.plain(carry, inputs)
            carry = step.carry
        return step.logits


def solver(model: str | Path, steps: int | None, device: str, fallback: Any, search: int | None) -> Solver:
    """A solver that does without torch, where that is possible, until it has to search."""
    try:
        return PlainSolver(model, steps, device, fallback, search)
    except Beyond:
        return Solver(model, steps, device, fallback, search)
