"""A whole ACT step as one program for base/kernels.c: for answers, or with its losses and gradients for training.

Whatever is not covered (see `covered`) is computed layer by layer, and so is everything where there is no C compiler,
where somebody looks on by a hook, and where another backward pass is wanted than that of a lesson.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from pydantic import BaseModel
from torch import Tensor

from ponder.base import native
from ponder.base.native import STEP, Library
from ponder.model import kernels, writer
from ponder.model.attention import SHORT
from ponder.model.layers import Layer
from ponder.model.program import EXTRA, GRADS, PACKED, Program, Tape, written
from ponder.model.sublayers import Derived, Form
from ponder.model.writer import SAID, Writer

if TYPE_CHECKING:  # which imports this
    from ponder.model.reasoner import Carry, Reasoner

# fmt: off
KNOWN = frozenset((
    "name", "states", "modules", "layers", "high_layers", "width", "heads", "expansion", "inner_multiple",
    "h_cycles", "l_cycles", "h_horizon", "l_horizon", "gradient", "neumann", "mixer", "symbols", "mlp_conv",
    "input_conv", "positions", "prefix", "key_mask", "init", "learned_init", "bound", "gate", "norm",
    "post_norm", "dropout", "state_dropout", "noise", "halting", "max_steps"
))
# fmt: on
"""The switches of a model that are computed here, or seen by `covered`. Where another one is on, no program serves."""


DEEP = 1000
"""Layers that a step applies one after the other, of which a program still is no longer than it is worth."""


# The programs of a model ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Step:
    """A program, and where its arrays come from."""

    program: Program
    derived: dict[str, Derived]
    constants: dict[str, Tensor]
    parameters: dict[str, tuple[Mapping[str, Tensor | None], str]]
    """Of each name, the dictionary that a module keeps it in, and its name there. Buffers too."""
    said: list[str]
    """What a lesson says of every example, in alphabetical order."""

    def arrays(self) -> dict[str, Tensor]:
        out = dict(self.constants)
        for name, (held, short) in self.parameters.items():
            parameter = held[short]
            assert parameter is not None
            out[name] = parameter.detach().contiguous()
        for name, each in self.derived.items():
            if each.make is not None:
                out[name] = each.make(*(out[of] for of in each.of)).contiguous()
        out[PACKED] = torch.empty(self.program.sizes[PACKED] // 4)
        return out


class _Known:
    """What is known of a model: programs that were written for it. Holds nothing that holds the model."""

    def __init__(self, model: "Reasoner") -> None:
        modules = [*model.modules()]
        self.parts = [(module._modules, (*module._modules.values(),)) for module in modules]
        """Which parts it had then: where one of them was replaced, what is written here is of another model."""
        self.hooks = [h for m in modules[1:] for h in (m._forward_hooks, m._forward_pre_hooks, m._backward_hooks)]
        """Of its parts: where somebody looks on, the parts are called one by one."""
        self.covered: dict[Form, bool] = {}
        self.steps: dict[tuple[Form, str], _Step] = {}


_models: "WeakKeyDictionary[Reasoner, _Known]" = WeakKeyDictionary()


def _known(model: "Reasoner") -> _Known:
    known = _models.get(model)
    if known is None or any((*now.values(),) != then for now, then in known.parts):
        known = _models[model] = _Known(model)
    return known


def _step(
    model: "Reasoner", form: Form, kind: str, write: Callable[[Writer], None], layout: Mapping[str, int] | None = None
) -> _Step:
    """`layout`: where in the flat gradient each parameter begins, the same each time. `library` was asked before."""
    known, key = _models[model].steps, (form, kind)
    if key not in known:
        writers: list[Writer] = []

        def written_by(tape: Tape) -> None:
            writers.append(Writer(tape, model, form, layout))
            write(writers[-1])

        program = written(written_by, model.length)
        parts: dict[str, tuple[Mapping[str, Tensor | None], str]] = {
            f"{path}.{name}" if path else name: (held, name)
            for path, module in model.named_modules()
            for held in (module._parameters, module._buffers)
            for name in held
        }
        needed = {*program.arrays, *(of for each in writers[-1].derived.values() for of in each.of)}
        parameters = {name: part for name, part in parts.items() if name in needed}
        said = sorted(name.removeprefix(SAID) for name in program.arrays if name.startswith(SAID))
        known[key] = _Step(program, writers[-1].derived, writers[-1].constants, parameters, said)
    return known[key]


# Using them -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Made:
    """What an ACT step came to."""

    states: list[Tensor]
    logits: Tensor
    q: Tensor | None
    """[B, 2]"""
    ratio: Tensor | None
    """[B, positions, 1]"""


@dataclass(frozen=True)
class Taught:
    """What a lesson came to; gradients of parameters are where they belong."""

    states: list[Tensor]
    names: list[str]
    said: Tensor
    """[names, B] what is said of every example."""
    d_rows: Tensor

    def of(self, name: str) -> Tensor:
        return self.said[self.names.index(name)]


@dataclass(frozen=True)
class Examined:
    """The answers of so many steps."""

    answers: Tensor
    """[steps, B, tokens]"""
    sure: Tensor
    """[steps, B] the halting logit, or else the mean log-probability of an answer's tokens."""
    q: Tensor | None
    """[steps, B, 2]"""


def covered(model: "Reasoner", form: Form) -> bool:
    """Whether a program can do this, wherever the model is."""
    config, floats = model.config, model.length * model.config.width
    layer = model.low.layers[0]
    assert isinstance(layer, Layer)
    inner, pair = layer.mlp.down.in_features, 2 * STEP
    fits = config.norm == "post" and not config.input_conv and config.width % STEP == inner % STEP == 0
    fits &= form.cycles * (config.l_cycles * config.layers + config.layers_above) <= DEEP
    if config.mixer == "attention":
        fits &= model.length <= SHORT
    elif config.mixer == "mlp":
        assert layer.tokens is not None
        fits &= kernels.fits_across(*layer.tokens.down.weight.shape)
    else:
        assert layer.relations is not None
        fits &= layer.relations.board is not None and not layer.relations.nodes
    if form.noise > 0 or (form.training and config.dropout > 0):
        fits &= floats % pair == 0 and model.length * inner % pair == 0
    if form.training and config.state_dropout > 0:
        fits &= config.width % pair == 0
    if form.lesson is not None:
        fits &= config.gradient == "horizon"
    return fits and not switched(config, KNOWN)


def switched(config: BaseModel, known: frozenset[str]) -> list[str]:
    """The settings that are not known and not at their defaults."""
    return [name for name, default in _unknown(type(config), known) if getattr(config, name) != default]


@cache
def _unknown(kind: type[BaseModel], known: frozenset[str]) -> list[tuple[str, Any]]:
    return [(name, field.default) for name, field in kind.model_fields.items() if name not in known]


def library(model: "Reasoner", states: Sequence[Tensor], key: Tensor, form: Form) -> Library | None:
    """The kernels, where this can be played by them."""
    lib = kernels.served(*states, model.embed, rows=(model.config.width,))
    if lib is None or len(key) == 0 or (model.update is not None and model.update.exact):
        return None
    known = _known(model)
    if form not in known.covered:
        known.covered[form] = covered(model, form)
    compiled = any(layer._compiled_call_impl is not None for layer in (*model.low.layers, *model.high.layers))
    return lib if known.covered[form] and not compiled and not any(known.hooks) else None


def _symbols(model: "Reasoner", tokens: Tensor, batch: int) -> Tensor:
    """[B, tokens] as C reads them, which looks up whatever it is given."""
    if tokens.shape != (batch, model.tokens):
        raise RuntimeError(f"tokens of shape {tuple(tokens.shape)}: ({batch}, {model.tokens}) are wanted")
    low, high = (int(end) for end in tokens.aminmax())
    if low < 0 or high >= model.vocab:
        raise IndexError(f"tokens from {low} to {high}: this model knows 0 to {model.vocab - 1}")
    return tokens.to(torch.int64).contiguous()


def _inputs(
    model: "Reasoner", states: Sequence[Tensor], steps: Tensor, key: Tensor, inputs: Tensor, rows: Tensor
) -> dict[str, Tensor]:
    batch, width = len(key), model.config.width
    inputs = _symbols(model, inputs, batch)
    for name, tensor, wanted in (
        ("rows", rows, (batch, width)),
        ("steps", steps, (batch,)),
        *(("states", z, (batch, model.length, width)) for z in states),
    ):
        if tensor.shape != wanted:
            raise RuntimeError(f"{name} of shape {tuple(tensor.shape)}: {wanted} are wanted")
    ids = inputs if model.symbols is None else model.symbols.roles(inputs)
    numbers = {"key": key.to(torch.int64), "steps": steps.to(torch.int64)}
    out = {"ids": ids, "rows": rows.detach().float(), **numbers}
    out |= dict(zip("hl", states, strict=False))
    if model.asked is not None:
        out["asked"] = model.asked(inputs)
    if model.config.key_mask:
        hidden = F.pad(inputs == 0, (model.config.prefix, 0), value=False)
        out["bias"] = torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf)
    return {name: tensor.contiguous() for name, tensor in out.items()}


def _given(model: "Reasoner", carry: "Carry", inputs: Tensor, rows: Tensor) -> dict[str, Tensor]:
    return _inputs(model, carry.states.held, carry.steps, carry.key, inputs, rows)


def _outputs(model: "Reasoner", batch: int) -> dict[str, Tensor]:
    size = (batch, model.length, model.config.width)
    out = {name: torch.empty(size) for name in ("new_h", "new_l")[: model.config.states]}
    return out | ({"q": torch.empty(batch, 2)} if model.q_head is not None else {})


def _threads(model: "Reasoner", batch: int, cycles: int) -> int:
    config = model.config
    applications = config.layers * cycles * (config.l_cycles + 1)
    return native.sharing(batch, native.least(20 * model.length * config.width**2 * applications))


def answer(lib: Library, model: "Reasoner", carry: "Carry", inputs: Tensor, rows: Tensor, form: Form) -> Made:
    """One ACT step of every example."""
    step, batch = _step(model, form, "answer", writer.answer), len(inputs)
    made = _outputs(model, batch) | {"logits": torch.empty(batch, model.tokens, model.vocab)}
    bounded = model.update is not None and model.update.tau is not None
    if bounded:
        made["ratio"] = torch.empty(batch, model.length, 1)
    arrays = step.arrays() | _given(model, carry, inputs, rows) | made
    step.program.play(lib, batch, arrays, [{}] * _threads(model, batch, form.cycles))
    states = [made[name] for name in ("new_h", "new_l") if name in made]
    return Made(states, made["logits"], made.get("q"), made.get("ratio"))


def examine(
    lib: Library, model: "Reasoner", key: Tensor, inputs: Tensor, rows: Tensor, form: Form, steps: int
) -> Examined:
    """So many ACT steps of every example, from the start. What they lead to stays in the cache: a few examples take all
    their steps before the next few begin."""
    step, batch = _step(model, form, "examination", writer.examination), len(inputs)
    threads, size = _threads(model, batch, form.cycles), step.program.most * model.length * model.config.width
    until, order = None, torch.arange(batch)
    if model.asked is not None:  # those that ask for as many steps go together, and no further
        until = model.asked(inputs).clamp(1, steps)
        order = torch.cat([until.argsort(stable=True)[part::threads] for part in range(threads)])
        key, inputs, rows, until = key[order], inputs[order], rows[order], until[order]
    headless = model.q_head is None
    made = {"answers": torch.empty(steps, batch, model.tokens, dtype=torch.int64)}
    made |= {"sure": torch.empty(steps, batch)} if headless else {"q": torch.empty(steps, batch, 2)}
    start = [] if model.config.init == "fixed" else model.start(key).states.held
    arrays = step.arrays() | _inputs(model, start, torch.zeros_like(key), key, inputs, rows) | made
    names = [name for name in step.program.arrays if name.startswith("held ")]
    own = [{name: torch.empty(size) for name in names} for _ in range(threads)]
    step.program.play(lib, batch, arrays, own, steps, by_turn=made.keys(), until=until)
    if until is not None:
        there, back = torch.arange(steps)[:, None].minimum(until - 1), order.argsort()
        made = {name: each[there, torch.arange(batch)][:, back] for name, each in made.items()}
    return Examined(made["answers"], made["sure"] if headless else made["q"][..., 0], made.get("q"))


def learn(
    lib: Library,
    model: "Reasoner",
    carry: "Carry",
    inputs: Tensor,
    rows: Tensor,
    labels: Tensor,
    form: Form,
    layout: Mapping[str, int],
    grads: Tensor,
) -> Taught:
    """One ACT step of every example and its losses. Gradients of parameters are added to `grads`, in which each has its
    place."""
    judged = form.lesson
    assert judged is not None
    step, batch = _step(model, form, "lesson", lambda w: writer.lesson(w, judged), layout), len(inputs)
    made = _outputs(model, batch) | {"d_rows": torch.empty(batch, model.config.width)}
    said = torch.empty(len(step.said), batch)
    arrays = step.arrays() | _given(model, carry, inputs, rows) | made
    arrays |= {SAID + name: row for name, row in zip(step.said, said, strict=True)}
    arrays["labels"] = _symbols(model, labels, batch)
    parts = _threads(model, batch, form.cycles)
    extra = torch.zeros(parts, step.program.sizes[EXTRA] // 4)
    flat = [grads, *(torch.zeros_like(grads) for _ in range(parts - 1))]
    step.program.play(lib, batch, arrays, [{GRADS: flat[part], EXTRA: extra[part]} for part in range(parts)])
    for more in flat[1:]:
        grads.add_(more)
    if step.derived:
        whole = extra[0] if parts == 1 else extra.sum(dim=0)
        for each in step.derived.values():
            of = [grads[layout[name] :][: arrays[name].numel()].view_as(arrays[name]) for name in each.of]
            each.back(whole[each.place.offset // 4 :][: each.size], *of)
    states = [made[name] for name in ("new_h", "new_l") if name in made]
    return Taught(states, step.said, said, made["d_rows"])
