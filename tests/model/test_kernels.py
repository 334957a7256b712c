"""Our own kernels against the definitions of what they compute, written out here in float64.

How far a kernel may be from its definition is what the plain form in torch's float32 comes to, or what one part in ten
million does to the definition itself, several times over.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import product as combinations
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ponder.base import native, rng
from ponder.base.geometry import Geometry
from ponder.base.native import Library
from ponder.config.schema import ModelConfig
from ponder.domains.life.domain import Life
from ponder.domains.life.generate import LifeParams
from ponder.domains.maze.domain import Maze, MazeParams
from ponder.domains.sudoku.domain import Sudoku, SudokuParams
from ponder.model import kernels
from ponder.model.attention import Attention, Rotary
from ponder.model.losses import Probabilities, answer_losses, losses
from ponder.model.products import SwiGLU, Weight, product, rms_norm
from ponder.model.reasoner import Reasoner, _perturbed
from ponder.model.recurrence import Update
from ponder.model.relations import Relations
from tests.support.models import TASKS, VOCAB, advance, batch, build, gradients, small
from tests.support.rounding import EPS, agree, limits, nudge

if why := native.missing():
    pytest.skip(f"no kernels of our own: {why}", allow_module_level=True)

SEVERAL = 8
"""Times the error of the plain form: sums in another order."""
NORM_EPS = 1e-5


# Three ways to compute the same ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Form:
    """Something that kernels compute, and its definition."""

    call: Callable[..., tuple[Tensor, ...]]
    """(module, *inputs, *fixed) -> results, of which the first is differentiated"""
    exact: Callable[..., tuple[Tensor, ...]]
    names: set[str]
    """The kernels of it."""
    inputs: tuple[Tensor, ...]
    """[B, ...] each, differentiable."""
    fixed: tuple[Tensor | None, ...] = ()
    """[B, ...] each: masks, labels, keys."""
    module: nn.Module = field(default_factory=nn.Module)
    """Its weights."""


@contextmanager
def spied() -> Iterator[list[str]]:
    """The kernels that are called."""
    called, call = list[str](), Library.__call__

    def spy(self: Library, name: str, *values: Any) -> None:
        called.append(name)
        call(self, name, *values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Library, "__call__", spy)
        yield called


def drawn(*size: int, seed: int = 0, spread: float = 1.0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed + sum(size))) * spread


def dropout(*size: int, seed: int = 0) -> Tensor:
    return torch.rand(size, generator=torch.Generator().manual_seed(seed)).ge(0.3).float() / 0.7


def results(form: Form, exact: bool = False, moved: int | None = None) -> list[Tensor]:
    """All results, then the gradients of inputs and weights."""
    dtype = torch.float64 if exact else torch.float32
    module = deepcopy(form.module).to(dtype)
    inputs = [t.detach().to(dtype, copy=True) for t in form.inputs]
    if moved is not None:
        nudge([*inputs, *module.parameters()], moved)
    fixed = [t.to(dtype) if t is not None and t.is_floating_point() else t for t in form.fixed]
    wanted = [*(t.requires_grad_() for t in inputs), *module.parameters()]
    out = (form.exact if exact else form.call)(module, *inputs, *fixed)
    grad = drawn(*out[0].shape, seed=99).to(dtype)
    found = torch.autograd.grad(out[0], wanted, grad, allow_unused=True)
    grads = [torch.zeros_like(t) if g is None else g for t, g in zip(wanted, found, strict=True)]
    return [t.detach() for t in (*out, *grads)]


def farthest(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).abs().max())


def as_near_as_plain(form: Form) -> None:
    exact, moved = results(form, exact=True), results(form, exact=True, moved=0)
    with spied() as called, native.without():
        plain = results(form)
    assert called == []
    with spied() as called:
        ours = results(form)
    assert form.names <= set(called)
    for i, truth in enumerate(exact):
        natural = max(farthest(plain[i], truth), farthest(moved[i], truth), EPS * float(truth.abs().max()))
        assert ours[i].shape == truth.shape
        error = farthest(ours[i], truth)
        assert error <= SEVERAL * natural, f"result {i}: off by {error:.1e}, where {natural:.1e} is natural"


# Definitions ----------------------------------------------------------------------------------------------------------


def normed(x: Tensor, added: Tensor | None = None, mask: Tensor | None = None, dim: int = -1) -> Tensor:
    if added is not None:
        x = x + (added if mask is None else added * mask)
    return x / (x.square().mean(dim=dim, keepdim=True) + NORM_EPS).sqrt()


def gated(block: SwiGLU, x: Tensor, mask: Tensor | None = None) -> Tensor:
    gate, up = (x @ block.up.weight.T).chunk(2, dim=-1)
    middle = gate * torch.sigmoid(gate) * up
    return (middle if mask is None else middle * mask) @ block.down.weight.T


def linear_form(rows: int, inner: int, outer: int) -> Form:
    return Form(
        lambda m, x: (product(x, Weight.pack(m.weight, rows)),),
        lambda m, x: (x @ m.weight.T,),
        {"linear", "linear_weight", "pack"},
        (drawn(rows, inner),),
        module=nn.Linear(inner, outer, bias=False),
    )


def norm_form(width: int, added: bool, masked: bool, rows: int = 11) -> Form:
    more = (drawn(rows, width, seed=1),) if added else ()
    return Form(
        lambda m, *given: (rms_norm(*given),),
        lambda m, *given: (normed(*given),),
        {"norm_forward", "norm_backward"},
        (drawn(rows, width), *more),
        (dropout(rows, width),) if masked else (),
    )


def mlp(width: int, inner_multiple: int, hears: int = 1) -> SwiGLU:
    torch.manual_seed(width)
    return SwiGLU(width, ModelConfig(width=16, heads=1, expansion=1.0, inner_multiple=inner_multiple), hears=hears)


def swiglu_form(rows: int, width: int, inner_multiple: int, joined: bool, masked: bool, hears: int = 1) -> Form:
    block = mlp(width, inner_multiple, hears)
    inner = block.down.in_features
    masks = (dropout(rows, inner), dropout(rows, width, seed=1)) if masked else (None, None)

    def call(m: SwiGLU, x: Tensor, mask: Tensor | None, dropped: Tensor | None) -> tuple[Tensor]:
        weights = m.weights(rows)
        return (m.joined(x, weights, mask, dropped) if joined else m(x, weights, mask),)

    def exact(m: SwiGLU, x: Tensor, mask: Tensor | None, dropped: Tensor | None) -> tuple[Tensor]:
        out = gated(m, x, mask)
        return (normed(x, out, dropped) if joined else out,)

    names = {"swiglu_forward", "swiglu_backward"}
    return Form(call, exact, names, (drawn(rows, hears * width),), masks, block)


def taps_form(tokens: int, joined: bool, masked: bool, width: int = 32) -> Form:
    """The gated MLP with URM's convolution inside."""
    torch.manual_seed(0)
    block = SwiGLU(width, ModelConfig(width=width, heads=1, expansion=2.0, inner_multiple=16), conv=True)
    inner = block.down.in_features
    masks = (dropout(3, tokens, inner), dropout(3, tokens, width, seed=1)) if masked else (None, None)

    def call(m: SwiGLU, x: Tensor, mask: Tensor | None, dropped: Tensor | None) -> tuple[Tensor]:
        weights = m.weights(3 * tokens)
        return (m.joined(x, weights, mask, dropped) if joined else m(x, weights, mask),)

    def exact(m: SwiGLU, x: Tensor, mask: Tensor | None, dropped: Tensor | None) -> tuple[Tensor]:
        gate, up = (x @ m.up.weight.T).chunk(2, dim=-1)
        middle, conv = F.silu(gate) * up, m.conv
        assert conv is not None and conv.bias is not None
        before = torch.cat((torch.zeros_like(middle[:, :1]), middle[:, :-1]), dim=1)
        middle = F.silu(before * conv.weight[:, 0, 0] + middle * conv.weight[:, 0, 1] + conv.bias)
        out = (middle if mask is None else middle * mask) @ m.down.weight.T
        return (normed(x, out, dropped) if joined else out,)

    return Form(call, exact, {"swiglu_forward", "swiglu_backward"}, (drawn(3, tokens, width),), masks, block)


def across_form(tokens: int, width: int, joined: bool, masked: bool, inner_multiple: int = 1) -> Form:
    def exact(m: SwiGLU, x: Tensor, dropped: Tensor | None) -> tuple[Tensor]:
        out = gated(m, x.transpose(1, 2)).transpose(1, 2)
        return (normed(x, out, dropped, dim=1) if joined else out,)

    return Form(
        lambda m, x, dropped: (m.along_tokens(x, m.across(x[:, 0].numel(), width), dropped, joined),),
        exact,
        {"across_forward", "across_backward"},
        (drawn(3, tokens, width),),
        (dropout(3, tokens, width) if masked else None,),
        mlp(tokens, inner_multiple),
    )


def attention_form(length: int, size: int, rope: bool, hidden: bool, masked: bool) -> Form:
    examples, heads = 3, 2
    mixer = Attention(heads * size, heads)
    rotary = Rotary.make(length, heads * size, heads, torch.device("cpu")) if rope else None
    bias = None
    if hidden:
        shut = torch.arange(length) >= torch.tensor([length, length - 1, length // 2 + 1])[:, None]
        bias = torch.zeros(examples, length).masked_fill(shut, -torch.inf)[:, None, None]

    def exact(m: nn.Module, qkv: Tensor, mask: Tensor | None, bias: Tensor | None) -> tuple[Tensor]:
        q, k, v = (qkv if mask is None else qkv * mask).permute(2, 0, 3, 1, 4)
        if rotary is not None:
            cos, sin = rotary.turn.to(qkv.dtype).unbind(-1)
            pairs = [x.unflatten(-1, (-1, 2)).unbind(-1) for x in (q, k)]
            q, k = (torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2) for a, b in pairs)
        score = q @ k.transpose(2, 3) / math.sqrt(size)
        share = (score if bias is None else score + bias).softmax(dim=-1)
        return ((share @ v).transpose(1, 2).flatten(2),)

    return Form(
        lambda m, qkv, mask, bias: (mixer.mix(qkv, mask, rotary, bias, short=True),),
        exact,
        {"attention_forward", "attention_backward"},
        (drawn(examples, length, 3, heads, size),),
        (dropout(examples, length, 3, heads, size) if masked else None, bias),
    )


def geometry(name: str) -> tuple[Geometry, int]:
    """And how many cells it is of."""
    domain: Sudoku | Maze | Life
    if name == "sudoku":
        domain = Sudoku(SudokuParams.model_validate({"size": 4, "source": "generate"}))
    elif name == "maze":
        domain = Maze(MazeParams.model_validate({"source": "generate", "height": 3, "width": 4, "min_path": 2}))
    else:
        domain = Life(LifeParams.model_validate({"min_side": 3, "max_side": 3}))
    return domain.geometry, domain.seq_len


BOARD: dict[str, Any] = {
    "states": 1,
    "width": 16,
    "heads": 1,
    "expansion": 2.0,
    "inner_multiple": 16,
    "mixer": "relations",
    "positions": "none",
    "bound": None,
    "gate": False,
    "post_norm": False,
    "prefix": 2,
}


def relations_form(name: str, mean: bool, masked: bool) -> Form:
    board, cells = geometry(name)
    kinds = {"symbols": "equivariant" if name == "sudoku" else "own", "halting": "halt" if mean else "asked"}
    config = ModelConfig(**BOARD, **kinds)
    symbols = len(board.symbols) if name == "sudoku" else 1
    length = config.prefix + cells * symbols
    torch.manual_seed(0)
    mixer = Relations(config, length, board)
    assert ("mean" in mixer.kinds) == mean

    def exact(m: Relations, x: Tensor, dropped: Tensor | None) -> tuple[Tensor]:
        mlps: Any = m.kinds
        body = x[:, config.prefix :].unflatten(1, (cells, symbols))
        heard = torch.einsum("gc,bcsw->bgsw", m.gather, body).split([*m.counts.values()], dim=1)
        said = torch.cat([gated(mlps[kind], part) for kind, part in zip(m.counts, heard, strict=True)], dim=1)
        told = torch.einsum("cg,bgsw->bcsw", m.tell, said)
        if symbols > 1:
            told = told + gated(mlps["symbols"], body.sum(dim=2, keepdim=True) / math.sqrt(symbols))
        told = F.pad(told.flatten(1, 2), (0, 0, config.prefix, 0))
        if mean:
            told = told + gated(mlps["mean"], x.mean(dim=1, keepdim=True))
        return (normed(x, told, dropped),)

    return Form(
        lambda m, x, dropped: (m.joined(x, m.weights(len(x)), None, dropped),),
        exact,
        {"collect", "spread", "swiglu_forward", "swiglu_backward", "norm_backward"},
        (drawn(3, length, config.width),),
        (dropout(3, length, config.width) if masked else None,),
        mixer,
    )


def update_form(tau: float | None, gate: bool, norm: bool, width: int = 48) -> Form:
    torch.manual_seed(0)
    update = Update(ModelConfig(width=width, heads=1, bound=tau, gate=gate, post_norm=norm))
    if update.gate is not None:
        nn.init.normal_(update.gate.bias)
        nn.init.normal_(update.gate.weight, std=width**-0.5)
    old = drawn(3, 7, width)
    # Changes from a fortieth of the state to twice it, so that the bound holds some of them.
    candidate = old + drawn(3, 7, width, seed=1) * torch.linspace(-4, 1, 7).exp2()[:, None]

    def call(m: Update, *given: Tensor) -> tuple[Tensor, ...]:
        new, ratio = m(*given)
        return (new,) if ratio is None else (new, ratio)

    def exact(m: Update, old: Tensor, candidate: Tensor, total: Tensor) -> tuple[Tensor, ...]:
        if tau is None and not gate:
            return (normed(candidate) if norm else candidate,)
        ratio = ((candidate - old).norm(dim=-1, keepdim=True) / old.norm(dim=-1, keepdim=True)).detach()
        share = torch.ones_like(ratio) if tau is None else (tau / ratio).clamp(max=1)
        if m.gate is not None:
            share = share * torch.sigmoid((total * m.gate.weight).sum(dim=-1, keepdim=True) + m.gate.bias)
        new = old + (candidate - old) * share
        return (normed(new) if norm else new, *([] if tau is None else [ratio]))

    names = {"update_forward", "update_backward"}
    if tau is None and not gate:
        names = {"norm_forward", "norm_backward"} if norm else set()
    return Form(call, exact, names, (old, candidate, drawn(3, 7, width, seed=2)), module=update)


def noise_form(positions: int, width: int) -> Form:
    eta, keys = 0.1, torch.tensor([0, -1, 2**62 + 12345])

    def exact(m: nn.Module, u: Tensor, key: Tensor) -> tuple[Tensor]:
        half = positions * width // 2
        unit = ((rng._bits(key, 2 * half) >> 8) & 0xFFFFFF).float().add(0.5).mul(2.0**-24).double()
        radius, angle = (unit[:, :half].log() * -2).sqrt(), unit[:, half:] * 2 * math.pi
        normal = torch.cat((radius * angle.cos(), radius * angle.sin()), dim=1).view_as(u)
        return (u + eta * u.detach().norm(dim=-1, keepdim=True) * normal,)

    call = lambda m, u, key: (_perturbed(u, key, eta),)  # noqa: E731
    return Form(call, exact, {"noise"}, (drawn(3, positions, width),), (keys,))


def loss_form(vocab: int, probabilities: Probabilities) -> Form:
    tokens = 9
    logits = drawn(4, tokens, vocab, spread=3.0)
    logits[1, 0], logits[1, 1], logits[1, 2, ::2], logits[1, 2, 1::2] = 0.0, 1.0, 1e3, -1e3
    labels = torch.randint(1, vocab, (4, tokens), generator=torch.Generator().manual_seed(vocab))
    labels[0, ::3], labels[2] = 0, 0  # here and there none, and none at all

    def exact(m: nn.Module, logits: Tensor, labels: Tensor) -> tuple[Tensor]:
        if probabilities == "softmax":
            logs = logits.log_softmax(dim=-1)
        else:
            above = logits.clamp(min=0)
            logs = ((1 + above) / (1 - (logits - above))).log()
            logs = logs - logs.exp().sum(dim=-1, keepdim=True).log()
        picked = logs.gather(-1, labels[..., None])[..., 0] * (labels != 0)
        return (-picked.sum(dim=-1) / (labels != 0).sum(dim=-1).clamp(min=1),)

    call = lambda m, logits, labels: (answer_losses(logits, labels, probabilities),)  # noqa: E731
    return Form(call, exact, {"answer_loss"}, (logits,), (labels,))


# Each against its definition ------------------------------------------------------------------------------------------


@pytest.mark.numeric
@pytest.mark.parametrize("rows", [1, 5, 48, 49, 97, 200])
@pytest.mark.parametrize(("inner", "outer"), [(16, 16), (48, 112), (64, 192), (96, 80)])
def test_a_linear_layer(rows: int, inner: int, outer: int) -> None:
    as_near_as_plain(linear_form(rows, inner, outer))


@pytest.mark.numeric
@pytest.mark.parametrize("width", [16, 48, 96, 528])
@pytest.mark.parametrize(("added", "masked"), [(False, False), (True, False), (True, True)])
def test_the_norm_of_a_sum(width: int, added: bool, masked: bool) -> None:
    as_near_as_plain(norm_form(width, added, masked))


@pytest.mark.numeric
@pytest.mark.parametrize("rows", [1, 7, 48, 97])
@pytest.mark.parametrize("width", [16, 48, 64])
@pytest.mark.parametrize("inner_multiple", [16, 64])
def test_the_gated_mlp(rows: int, width: int, inner_multiple: int) -> None:
    for joined, masked in combinations([False, True], repeat=2):
        as_near_as_plain(swiglu_form(rows, width, inner_multiple, joined, masked))


@pytest.mark.numeric
@pytest.mark.parametrize("masked", [False, True])
def test_the_gated_mlp_of_several_states_side_by_side(masked: bool) -> None:
    for rows in (1, 50):
        as_near_as_plain(swiglu_form(rows, 32, 16, False, masked, hears=5))


@pytest.mark.numeric
@pytest.mark.parametrize("tokens", [1, 2, 9, 40, 120])
@pytest.mark.parametrize("masked", [False, True])
def test_the_gated_mlp_with_a_convolution_inside(tokens: int, masked: bool) -> None:
    for joined in (False, True):
        as_near_as_plain(taps_form(tokens, joined, masked))


@pytest.mark.numeric
@pytest.mark.parametrize("tokens", [1, 5, 17, 37])
@pytest.mark.parametrize("width", [16, 48, 80, 144])
def test_the_gated_mlp_across_tokens(tokens: int, width: int) -> None:
    as_near_as_plain(across_form(tokens, width, False, False))
    if tokens > 1:  # the norm of one number is its sign: of its gradient rounding is all there is
        for masked in (False, True):
            as_near_as_plain(across_form(tokens, width, True, masked))


@pytest.mark.numeric
@pytest.mark.parametrize("length", [3, 17, 40])
@pytest.mark.parametrize("size", [6, 8, 16, 24])
@pytest.mark.parametrize("rope", [False, True], ids=["no-rope", "rope"])
def test_attention(length: int, size: int, rope: bool) -> None:
    for hidden, masked in combinations([False, True], repeat=2):
        as_near_as_plain(attention_form(length, size, rope, hidden, masked))


@pytest.mark.parametrize("length", [3, 17, 40])
def test_hidden_keys_have_no_influence_at_all(length: int) -> None:
    form = attention_form(length, 8, True, True, False)
    _, bias = form.fixed
    assert bias is not None
    shut = bias[:, 0, 0] == -torch.inf
    other = form.inputs[0].clone()
    other[shut] = drawn(*other.shape, seed=5, spread=100.0)[shut]
    (out, grad), (moved, _) = results(form), results(replace(form, inputs=(other,)))
    assert shut.any()
    assert torch.equal(out[~shut], moved[~shut])
    assert not grad[shut][:, 1:].any(), "gradients of hidden keys and values"


@pytest.mark.numeric
@pytest.mark.parametrize("board", ["sudoku", "maze", "life"])
@pytest.mark.parametrize("mean", [False, True], ids=["no-mean", "mean"])
@pytest.mark.parametrize("masked", [False, True], ids=["no-mask", "mask"])
def test_relations(board: str, mean: bool, masked: bool) -> None:
    as_near_as_plain(relations_form(board, mean, masked))


@pytest.mark.numeric
@pytest.mark.parametrize(("tau", "gate", "norm"), [*combinations([None, 0.7], [False, True], [False, True])])
def test_the_update_of_a_state(tau: float | None, gate: bool, norm: bool) -> None:
    form = update_form(tau, gate, norm)
    as_near_as_plain(form)
    if tau is not None:
        ratio = results(form)[1]
        assert (ratio < tau).any() and (ratio > tau).any()


@pytest.mark.numeric
@pytest.mark.parametrize(("positions", "width"), [(2, 16), (10, 48), (5, 96)])
def test_noise(positions: int, width: int) -> None:
    as_near_as_plain(noise_form(positions, width))


def test_noise_is_normal() -> None:
    """The first, second and fourth moment, within five deviations of what so many numbers come to."""
    u = torch.zeros(4, 1024, 256)
    u[..., 0] = 1.0
    key = rng.fold(torch.arange(4), 3)
    with spied() as called:
        x = (_perturbed(u, key, 2.0) - u).double() / 2
    assert called == ["noise"] * len(called) and called
    n = x.numel()
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(float((x**power).mean()) - mean) < 5 * math.sqrt(variance / n)
    assert 4 < float(x.abs().max()) < math.sqrt(2 * math.log(2) * 25)  # the smallest of 2^24 numbers, and half of it


@pytest.mark.numeric
@pytest.mark.parametrize("probabilities", ["stablemax", "softmax"])
@pytest.mark.parametrize("vocab", [3, 6, 16, 40])
def test_the_loss_of_an_answer(probabilities: Probabilities, vocab: int) -> None:
    form = loss_form(vocab, probabilities)
    as_near_as_plain(form)
    loss, grad = results(form)
    assert loss[2] == 0 and not grad[2].any()


# What no kernel is made for -------------------------------------------------------------------------------------------


def without_names(form: Form) -> Form:
    return replace(form, names=set())


@pytest.mark.numeric
def test_sizes_that_do_not_fit_are_left_to_plain_forms() -> None:
    others = [
        linear_form(5, 24, 16),
        linear_form(5, 16, 24),
        norm_form(24, True, True),
        swiglu_form(7, 24, 16, True, True),
        swiglu_form(7, 32, 8, True, True),
        update_form(0.7, True, True, width=24),
        attention_form(5, 5, False, True, True),
    ]
    for form in others:
        as_near_as_plain(without_names(form))


@pytest.mark.parametrize("width", [8, 24, 40])
def test_a_width_that_does_not_fit_is_not_mixed_across_tokens_by_the_kernel(width: int) -> None:
    form, called = across_form(16, width, True, True, inner_multiple=16), list[str]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Library, "__call__", lambda self, name, *values: called.append(name))
        outputs(form)
    assert "across_forward" not in called
    as_near_as_plain(without_names(form))


@pytest.mark.numeric
def test_too_many_tokens_for_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "LANES", 1)
    form = across_form(16, 48, True, True, inner_multiple=16)
    as_near_as_plain(without_names(form))
    differentiated_twice(form, turned=False)


def test_another_precision_than_the_weights_is_refused() -> None:
    """As torch refuses it."""
    x, block = torch.ones(4, 16, dtype=torch.float64), mlp(16, 16)
    for run in (lambda: product(x, Weight.pack(torch.eye(16), 4)), lambda: block(x, block.weights(4))):
        with pytest.raises(RuntimeError, match="dtype"):
            run()


# All of them ----------------------------------------------------------------------------------------------------------

FORMS: dict[str, Callable[[], Form]] = {
    "linear": lambda: linear_form(100, 48, 112),
    "norm": lambda: norm_form(48, True, True),
    "norm alone": lambda: norm_form(48, False, False),
    "mlp": lambda: swiglu_form(100, 48, 16, False, True),
    "mlp joined": lambda: swiglu_form(100, 48, 16, True, True),
    "mlp with taps": lambda: taps_form(17, False, True),
    "mlp with taps joined": lambda: taps_form(17, True, True),
    "across": lambda: across_form(17, 80, False, False),
    "across joined": lambda: across_form(17, 80, True, True),
    "attention": lambda: attention_form(17, 24, True, True, True),
    "relations": lambda: relations_form("sudoku", True, True),
    "update": lambda: update_form(0.7, True, True),
    "noise": lambda: noise_form(10, 48),
    "loss": lambda: loss_form(6, "stablemax"),
}
every_form = pytest.mark.parametrize("name", FORMS)


def outputs(form: Form) -> tuple[Tensor, ...]:
    with torch.no_grad():
        return form.call(form.module, *form.inputs, *form.fixed)


def same_bits(a: tuple[Tensor, ...] | list[Tensor], b: tuple[Tensor, ...] | list[Tensor]) -> bool:
    return all(torch.equal(x.view(torch.int32), y.view(torch.int32)) for x, y in zip(a, b, strict=True))


@every_form
def test_the_bits_are_the_same_with_and_without_a_graph_and_every_time(name: str) -> None:
    form = FORMS[name]()
    first = results(form)
    assert same_bits(first, results(form))
    assert same_bits(first[: len(outputs(form))], outputs(form))


@every_form
def test_an_example_does_not_depend_on_its_neighbours(name: str) -> None:
    form = FORMS[name]()
    alone = []
    for i in range(len(form.inputs[0])):
        fixed = tuple(None if t is None else t[i : i + 1] for t in form.fixed)
        alone.append(outputs(replace(form, inputs=tuple(t[i : i + 1] for t in form.inputs), fixed=fixed)))
    assert same_bits(outputs(form), [torch.cat(parts) for parts in zip(*alone, strict=True)])


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Sets how many share the work, however little it is."""
    before = torch.get_num_threads()
    monkeypatch.setattr(native, "LEAST", 1)
    yield torch.set_num_threads
    torch.set_num_threads(before)


@every_form
def test_threads_that_share_the_work_come_to_the_same(name: str, threads: Callable[[int], None]) -> None:
    form = FORMS[name]()
    threads(1)
    with spied() as called:
        alone = outputs(form)
    for count in (2, 3):
        threads(count)
        with spied() as shared:
            assert same_bits(outputs(form), alone)
        assert len(shared) > len(called), "the work was not shared"
        assert same_bits(results(form), results(form))


@pytest.mark.numeric
@every_form
def test_gradients_of_threads_add_up(name: str, threads: Callable[[int], None]) -> None:
    threads(2)
    as_near_as_plain(FORMS[name]())


def scattered(t: Tensor) -> Tensor:
    """The same numbers in another order of memory."""
    if t.dim() == 1:
        return torch.stack((t, t), dim=1)[:, 0]
    return t.permute(*reversed(range(t.dim()))).contiguous().permute(*reversed(range(t.dim())))


@every_form
@pytest.mark.parametrize("which", ["inputs", "masks", "weights"])
def test_memory_in_another_order_comes_to_the_same(name: str, which: str) -> None:
    form = FORMS[name]()
    expected = results(form)
    other = form
    if which == "inputs":
        other = replace(form, inputs=tuple(map(scattered, form.inputs)))
    elif which == "masks":
        other = replace(form, fixed=tuple(None if t is None else scattered(t) for t in form.fixed))
    else:
        other = replace(form, module=deepcopy(form.module))
        for parameter in other.module.parameters():
            parameter.data = scattered(parameter.data)
    assert same_bits(results(other), expected)


@every_form
def test_an_incoming_gradient_in_another_order_comes_to_the_same(name: str) -> None:
    form = FORMS[name]()
    inputs = [t.clone().requires_grad_() for t in form.inputs]
    out = form.call(form.module, *inputs, *form.fixed)[0]
    grad = drawn(*out.shape)
    found = [
        torch.autograd.grad(out, inputs, g, retain_graph=True, allow_unused=True, materialize_grads=True)
        for g in (grad, scattered(grad))
    ]
    assert same_bits(*found)


def derivatives(
    form: Form, compute: Callable[..., tuple[Tensor, ...]], dtype: torch.dtype, turned: bool
) -> list[Tensor]:
    """J^T u of inputs and weights, and J v by differentiating the inputs' by u."""
    module = deepcopy(form.module).to(dtype)
    leaves = [t.detach().to(dtype, copy=True).requires_grad_() for t in form.inputs]
    inputs = [scattered(t) if turned else t for t in leaves]
    fixed = [t.to(dtype) if t is not None and t.is_floating_point() else t for t in form.fixed]
    out = compute(module, *inputs, *fixed)[0]
    u = drawn(*out.shape, seed=1).to(dtype).requires_grad_()
    wanted = [*leaves, *module.parameters()]
    back = torch.autograd.grad(out, wanted, u, create_graph=True, allow_unused=True, materialize_grads=True)
    pairs = [(b, drawn(*t.shape, seed=2).to(dtype)) for b, t in zip(back, leaves, strict=False) if b.requires_grad]
    (ahead,) = torch.autograd.grad([b for b, _ in pairs], u, [v for _, v in pairs])
    return [t.detach() for t in (*back, ahead)]


@pytest.mark.numeric
@pytest.mark.parametrize("name", [*FORMS, "update without gate", "update without bound"])
@pytest.mark.parametrize("turned", [False, True], ids=["contiguous", "transposed"])
def test_a_backward_pass_can_be_differentiated_in_its_turn(name: str, turned: bool) -> None:
    more = {"update without gate": (0.7, False, True), "update without bound": (None, True, False)}
    differentiated_twice(update_form(*more[name]) if name in more else FORMS[name](), turned)


def differentiated_twice(form: Form, turned: bool) -> None:
    exact = derivatives(form, form.exact, torch.float64, turned)
    plain = derivatives(form, form.exact, torch.float32, turned)
    ours = derivatives(form, form.call, torch.float32, turned)
    for i, truth in enumerate(exact):
        natural = max(farthest(plain[i], truth), EPS * float(truth.abs().max()))
        assert farthest(ours[i], truth) <= SEVERAL * natural


# Numbers at the edge --------------------------------------------------------------------------------------------------


def identity(x: Tensor) -> Form:
    """x silu(x), number by number: products with ones and zeros round nothing."""
    block = mlp(16, 16)
    block.up.weight.data, block.down.weight.data = torch.eye(16).repeat(2, 1), torch.eye(16)
    return replace(swiglu_form(len(x), 16, 16, False, False), inputs=(x,), module=block)


@pytest.mark.numeric
def test_every_gate_is_right_to_the_last_places() -> None:
    """Relative to each number itself, down to the smallest that exponentials of float32 reach."""
    form = identity(torch.linspace(-85, 85, 6400).view(400, 16))
    with native.without():
        plain = outputs(form)[0].double()
    (exact, *_), ours = results(form, exact=True), outputs(form)[0].double()
    natural = max(float((plain / exact - 1).abs().max()), EPS)
    assert float((ours / exact - 1).abs().max()) <= SEVERAL * natural


@pytest.mark.numeric
def test_gates_far_from_zero() -> None:
    """Where exponentials of float32 end, and beyond."""
    form = identity(torch.linspace(-200, 200, 1600).view(100, 16))
    as_near_as_plain(form)
    assert all(t.isfinite().all() for t in results(form))
    gate = update_form(None, True, False)
    far = gate.inputs[2] * torch.linspace(-200, 200, 7)[:, None]
    gate = replace(gate, inputs=(*gate.inputs[:2], far))
    as_near_as_plain(gate)
    assert all(t.isfinite().all() for t in results(gate))


@every_form
@pytest.mark.parametrize("bits", [0x7FC00000, -0x400000, 0x7FC00001], ids=["positive", "negative", "payload"])
def test_what_is_no_number_stays_where_it_is(name: str, bits: int) -> None:
    """It is none wherever the plain form has none, and all other examples are as they were, bit for bit."""
    form, nan = FORMS[name](), torch.tensor(bits, dtype=torch.int32).view(torch.float32)
    assert nan.isnan()
    before, example = outputs(form)[0], 1
    for place in range(len(form.inputs)):
        hurt = form.inputs[place].clone()
        hurt[example].view(-1)[5] = nan
        other = replace(form, inputs=(*form.inputs[:place], hurt, *form.inputs[place + 1 :]))
        after = outputs(other)[0]
        with native.without():
            assert torch.equal(after.isnan(), outputs(other)[0].isnan())
        assert after[example].isnan().any()
        rest = torch.arange(len(before)) != example
        assert same_bits([after[rest]], [before[rest]])


@pytest.mark.parametrize("name", [name for name in FORMS if name != "noise"])
def test_no_examples_at_all(name: str) -> None:
    form = FORMS[name]()
    none = replace(
        form, inputs=tuple(t[:0] for t in form.inputs), fixed=tuple(None if t is None else t[:0] for t in form.fixed)
    )
    assert outputs(none)[0].shape == (0, *outputs(form)[0].shape[1:])
    weights = list(form.module.parameters())
    assert not any(g.any() for g in results(none)[-len(weights) :] if weights)


# Whole models ---------------------------------------------------------------------------------------------------------

USED = {"swiglu_forward", "swiglu_backward", "answer_loss"}
MODELS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "ponder": (
        {"dropout": 0.2, "state_dropout": 0.1, "noise": 0.02},
        USED | {"attention_forward", "attention_backward", "update_forward", "update_backward", "noise", "linear"},
    ),
    "trm": ({}, USED | {"attention_backward", "linear_weight", "norm_backward"}),
    "trm-mlp": ({}, USED | {"across_forward", "across_backward"}),
    "urm": ({}, USED | {"attention_backward", "linear_weight", "norm_backward"}),
    "hrm": ({}, USED | {"attention_backward", "linear_weight", "norm_backward"}),
    "ponder-board": ({}, USED | {"collect", "spread"}),
    "ponder-shallow": ({"dropout": 0.2}, USED | {"across_backward", "update_backward"}),
}


@pytest.mark.numeric
@pytest.mark.parametrize("name", MODELS)
def test_a_training_step_of_a_model(name: str) -> None:
    changes, names = MODELS[name]
    config = small(name, **changes)
    if name == "ponder-board":
        board, tokens = geometry("sudoku")
        torch.manual_seed(0)
        model, b = Reasoner(config, VOCAB, tokens, TASKS, board).train(), batch(tokens=tokens)
    else:
        model, b = build(config).train(), batch()

    def run() -> list[Tensor]:
        step = advance(model, b)
        target = None if step.q_continue is None else torch.full_like(step.q_continue, 0.3)
        value = losses(step.logits, b.labels, step.q_halt, step.q_continue, target, 0.5).total
        return [value, step.logits, *gradients(model, value).values()]

    with native.without():
        within, expected = limits(run, model.parameters()), run()
    with spied() as called:
        agree(run(), expected, within)
    assert names <= set(called)
