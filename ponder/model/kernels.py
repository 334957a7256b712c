"""base/kernels.c behind the names that layers use: what it serves, its memory, and its place in the graph.

Every function here has a plain form in torch's own operations, which says what is computed, serves all other devices,
and steps in where a backward pass is differentiated in its turn.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from ponder.base import native
from ponder.base.native import Library

LANES = 2**22
"""Floats of temporaries that a gated MLP across tokens may take: sixteen for every weight."""

Plain = Callable[..., Tensor]


def plain_only(x: Tensor) -> bool:
    """Whether operations are wanted that every device and precision knows, and whoever looks on: a compiler, an
    exporter, a counter."""
    watched = torch.compiler.is_compiling() or is_in_torch_dispatch_mode()
    return x.device.type != "cpu" or watched or torch.is_autocast_enabled(x.device.type)


def served(*tensors: Tensor, rows: Sequence[int] = ()) -> Library | None:
    """The library, where it can do this: float32 on a CPU, with rows of these lengths."""
    if any(n % native.STEP for n in rows) or any(t.dtype != torch.float32 or plain_only(t) for t in tensors):
        return None
    return native.library()


def _wanted(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def _again(plain: Plain, inputs: Sequence[Tensor | None], grad: Tensor) -> list[Tensor | None]:
    """Gradients of the plain form, which can be differentiated in their turn."""
    asked = [x for x in inputs if x is not None and x.requires_grad]
    found = iter(torch.autograd.grad(plain(*inputs), asked, grad, create_graph=True, allow_unused=True))
    return [next(found) if x is not None and x.requires_grad else None for x in inputs]


def _whole(tensor: Tensor | None) -> Tensor | None:
    """In the order of its memory, which is all that C knows. Before the Function, so that its copy has a graph."""
    return None if tensor is None else tensor.contiguous()


def _empty(*size: int) -> Tensor:
    return torch.empty(size, dtype=torch.float32)


def _zeros(parts: int, *size: int) -> Tensor:
    return torch.zeros((parts, *size), dtype=torch.float32)


def _added(parts: Tensor) -> Tensor:
    """What threads came to, in their order."""
    return parts[0] if len(parts) == 1 else parts.sum(dim=0)


# Linear layers --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Packed:
    """A weight [out, in] in the kernels' order: forward at once, backward when it is asked for."""

    lib: Library
    weight: Tensor
    forward: Tensor

    @staticmethod
    def of(lib: Library, weight: Tensor) -> "Packed":
        value = weight.detach().contiguous()
        return Packed(lib, value, native.packed(lib, value, transposed=True))

    @cached_property
    def backward(self) -> Tensor:
        return native.packed(self.lib, self.weight, transposed=False)


def linear(x: Tensor, weight: Tensor, packed: Packed) -> Tensor:
    """x weight^T"""
    x = x.contiguous()
    if _wanted(x, weight):
        out: Tensor = _Linear.apply(x, weight, packed)  # type: ignore[no-untyped-call]
        return out
    return native.linear(packed.lib, x, packed.forward, len(weight))


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, packed: Packed) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.packed = packed
        return native.linear(packed.lib, x, packed.forward, len(weight))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *_again(torch.nn.functional.linear, (x, weight), grads[0]), None  # type: ignore[return-value]
        lib, grad = ctx.packed.lib, grads[0].contiguous()
        out, inner = weight.shape
        d_x = native.linear(lib, grad, ctx.packed.backward, inner) if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[1]:
            return d_x, None, None
        rows, least = x.numel() // inner, native.least(2 * inner * out)
        d_weight = _zeros(native.sharing(rows, least), out, inner)
        lib.shared(
            rows, least, lambda first, last, p: lib("linear_weight", first, last, inner, out, grad, x, d_weight[p])
        )
        return d_x, _added(d_weight), None


# The norm -------------------------------------------------------------------------------------------------------------


def norm(lib: Library, x: Tensor, added: Tensor | None, mask: Tensor | None, plain_back: Plain) -> Tensor:
    """RMSNorm over the last axis, of x or of x + added * mask. plain_back: (grad, y, scale) -> the gradient of x."""
    x, added, mask = x.contiguous(), _whole(added), _whole(mask)
    if _wanted(x, added):
        out: Tensor = _Norm.apply(x, added, mask, lib, plain_back)  # type: ignore[no-untyped-call]
        return out
    return _norm(lib, x, added, mask)[0]


def _norm(lib: Library, x: Tensor, added: Tensor | None, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    n = x.shape[-1]
    rows, y, scale = x.numel() // n, torch.empty_like(x), _empty(x.numel() // n)
    lib.shared(
        rows, native.least(8 * n), lambda first, last, _: lib("norm_forward", first, last, n, x, added, mask, y, scale)
    )
    return y, scale


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, added: Tensor | None, mask: Tensor | None, lib: Library, plain_back: Plain
    ) -> Tensor:
        y, scale = _norm(lib, x, added, mask)
        ctx.save_for_backward(y, scale, mask)
        ctx.added, ctx.lib, ctx.plain_back = added is not None, lib, plain_back
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        y, scale, mask = ctx.saved_tensors
        if torch.is_grad_enabled():
            d_x = ctx.plain_back(grads[0], y, scale.view(*y.shape[:-1], 1))
            return d_x, None if not ctx.added else d_x if mask is None else d_x * mask, None, None, None
        grad, n = grads[0].contiguous(), y.shape[-1]
        d_x = torch.empty_like(grad)
        d_added = None if not ctx.added else d_x if mask is None else torch.empty_like(grad)
        ctx.lib.shared(
            grad.numel() // n,
            native.least(8 * n),
            lambda first, last, _: ctx.lib("norm_backward", first, last, n, grad, y, scale, mask, d_x, d_added),
        )
        return d_x, d_added, None, None, None


# The gated MLP --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Swi:
    """The weights of a gated MLP: gate and up, one above the other, and down."""

    lib: Library
    gate_up: Tensor
    down: Tensor
    plain: Plain
    """(x, gate_up, down, taps, masked, dropped, joined) -> y"""
    taps: Tensor | None = None
    """[3, inner] of a convolution over the tokens: what the one before counts, what itself, and what is added."""
    turned: bool = False
    """Whether it is for `across`, and for nothing else."""
    packed: dict[str, Tensor] = field(default_factory=dict)

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.gate_up.shape[1], self.down.shape[1], self.down.shape[0]

    def tokens(self, x: Tensor) -> int:
        """Rows of x that belong together: all of an example, where they see each other."""
        return 1 if self.taps is None else x.shape[-2]

    def forwards(self) -> tuple[Tensor, Tensor]:
        if "down" not in self.packed:
            gate, up = self.gate_up.detach().chunk(2)
            both = torch.cat([native.packed(self.lib, half, transposed=True) for half in (gate, up)])
            self.packed.update(gate_up=both, down=native.packed(self.lib, self.down.detach(), transposed=True))
        return self.packed["gate_up"], self.packed["down"]

    def backwards(self) -> tuple[Tensor, Tensor]:
        if "down back" not in self.packed:
            self.packed["gate_up back"] = native.packed(self.lib, self.gate_up.detach(), transposed=False)
            self.packed["down back"] = native.packed(self.lib, self.down.detach(), transposed=False)
        return self.packed["gate_up back"], self.packed["down back"]


@dataclass(frozen=True)
class _Made:
    """What a backward pass needs: the result and the norm's scales where it is one, and gate and up."""

    y: Tensor
    scale: Tensor | None
    kept: Tensor | None


def swiglu(x: Tensor, swi: Swi, masked: Tensor | None, dropped: Tensor | None, joined: bool) -> Tensor:
    """down(silu(gate x) * up x * masked), with a convolution between where there are taps; joined: the norm of x + that
    * dropped."""
    x, masked, dropped = x.contiguous(), _whole(masked), _whole(dropped)
    if _wanted(x, swi.gate_up, swi.down, swi.taps):
        weights = swi.gate_up, swi.down, swi.taps
        out: Tensor = _SwiGLU.apply(x, *weights, masked, dropped, joined, swi)  # type: ignore[no-untyped-call]
        return out
    return _swiglu(x, swi, masked, dropped, joined, keep=False).y


def _swiglu(x: Tensor, swi: Swi, masked: Tensor | None, dropped: Tensor | None, joined: bool, keep: bool) -> _Made:
    inn, inner, out = swi.sizes
    rows = x.numel() // inn
    y, scale = _empty(*x.shape[:-1], out), _empty(rows) if joined else None
    kept = _empty(rows, 2 * inner) if keep else None
    weights, each = swi.forwards(), swi.tokens(x)

    def work(first: int, last: int, _: int) -> None:
        rest = (x, *weights, each, swi.taps, masked, dropped, joined, kept, y, scale)
        swi.lib("swiglu_forward", first * each, last * each, inn, inner, out, *rest)

    swi.lib.shared(rows // each, native.least(6 * inn * inner * each), work)
    return _Made(y, scale, kept)


def _swiglu_back(
    x: Tensor, swi: Swi, masked: Tensor | None, dropped: Tensor | None, made: _Made, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of x, gate_up, down and taps."""
    (inn, inner, out), each = swi.sizes, swi.tokens(x)
    count, d_x, least = x.numel() // inn // each, torch.empty_like(x), native.least(12 * inn * inner * each)
    parts = native.sharing(count, least)
    d_gate_up, d_down = _zeros(parts, 2 * inner, inn), _zeros(parts, out, inner)
    d_taps = None if swi.taps is None else _zeros(parts, 3, inner)
    weights = swi.backwards()

    def work(first: int, last: int, part: int) -> None:
        given = (each, swi.taps, masked, dropped, made.scale is not None, made.kept, made.y, made.scale, grad)
        found = (d_x, d_gate_up[part], d_down[part], None if d_taps is None else d_taps[part])
        swi.lib("swiglu_backward", first * each, last * each, inn, inner, out, x, *weights, *given, *found)

    swi.lib.shared(count, least, work)
    return d_x, _added(d_gate_up), _added(d_down), None if d_taps is None else _added(d_taps)


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        gate_up: Tensor,
        down: Tensor,
        taps: Tensor | None,
        masked: Tensor | None,
        dropped: Tensor | None,
        joined: bool,
        swi: Swi,
    ) -> Tensor:
        made = _swiglu(x, swi, masked, dropped, joined, keep=True)
        held = made.y if joined else None, made.scale, made.kept
        ctx.save_for_backward(x, gate_up, down, taps, masked, dropped, *held)
        ctx.swi = swi
        return made.y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, gate_up, down, taps, masked, dropped, *made = ctx.saved_tensors
        none = (None,) * 4
        if torch.is_grad_enabled():
            again = lambda *given: ctx.swi.plain(*given, masked, dropped, made[1] is not None)  # noqa: E731
            return *_again(again, (x, gate_up, down, taps), grads[0]), *none
        return *_swiglu_back(x, ctx.swi, masked, dropped, _Made(*made), grads[0].contiguous()), *none


# The gated MLP across tokens ------------------------------------------------------------------------------------------


def across(x: Tensor, swi: Swi, dropped: Tensor | None, joined: bool) -> Tensor:
    """The same along the tokens of x [B, tokens, width], the norm too; its plain form has x and the result so."""
    x, dropped = x.contiguous(), _whole(dropped)
    if _wanted(x, swi.gate_up, swi.down):
        out: Tensor = _Across.apply(x, swi.gate_up, swi.down, dropped, joined, swi)  # type: ignore[no-untyped-call]
        return out
    return _across(x, swi, dropped, joined, keep=False).y


def fits_across(tokens: int, inner: int) -> bool:
    return 3 * tokens * inner * native.STEP <= LANES


def _across(x: Tensor, swi: Swi, dropped: Tensor | None, joined: bool, keep: bool) -> _Made:
    batch, tokens, width = x.shape
    inner = swi.down.shape[1]
    y, scale = torch.empty_like(x), _empty(batch, width) if joined else None
    kept = _empty(batch, 2 * inner, width) if keep else None
    weights = swi.gate_up.detach().contiguous(), swi.down.detach().contiguous()

    def work(first: int, last: int, _: int) -> None:
        rest = (x, *weights, dropped, joined, kept, y, scale)
        swi.lib("across_forward", first, last, tokens, inner, width, *rest)

    swi.lib.shared(batch, native.least(6 * tokens * inner * width), work)
    return _Made(y, scale, kept)


class _Across(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gate_up: Tensor, down: Tensor, dropped: Tensor | None, joined: bool, swi: Swi
    ) -> Tensor:
        made = _across(x, swi, dropped, joined, keep=True)
        ctx.save_for_backward(x, gate_up, down, dropped, made.y if joined else None, made.scale, made.kept)
        ctx.swi = swi
        return made.y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, gate_up, down, dropped, y, scale, kept = ctx.saved_tensors
        if torch.is_grad_enabled():
            again = lambda x, up, down: ctx.swi.plain(x, up, down, None, None, dropped, scale is not None)  # noqa: E731
            return *_again(again, (x, gate_up, down), grads[0]), None, None, None
        grad, (batch, tokens, width), inner = grads[0].contiguous(), x.shape, down.shape[1]
        d_x, least = torch.empty_like(x), native.least(12 * tokens * inner * width)
        parts = native.sharing(batch, least)
        d_gate_up, d_down = _zeros(parts, 2 * inner, tokens), _zeros(parts, tokens, inner)
        weights = gate_up.contiguous(), down.contiguous()

        def work(first: int, last: int, part: int) -> None:
            rest = (dropped, scale is not None, kept, y, scale, grad, d_x, d_gate_up[part], d_down[part])
            ctx.swi.lib("across_backward", first, last, tokens, inner, width, x, *weights, *rest)

        ctx.swi.lib.shared(batch, least, work)
        return d_x, _added(d_gate_up), _added(d_down), None, None, None


# Attention of short sequences -----------------------------------------------------------------------------------------


def turns(turn: Tensor) -> Tensor:
    """(cos, sin) of each pair, [S, size / 2, 2], as the kernels read them: [S, 2, size], padded with zeros."""
    cos, sin = (part.repeat_interleave(2, dim=-1) for part in turn.unbind(-1))
    sin[:, ::2].neg_()
    return torch.nn.functional.pad(torch.stack((cos, sin), dim=1), (0, -cos.shape[-1] % native.STEP)).contiguous()


def attention(
    lib: Library, qkv: Tensor, mask: Tensor | None, turn: Tensor | None, bias: Tensor | None, plain: Plain
) -> Tensor:
    """qkv [B, S, 3, heads, size] -> [B, S, width]; `turns` rotate pairs side by side of queries and keys, bias [B, S]
    is added to the scores of every key. plain: qkv -> the same."""
    qkv, mask, bias = qkv.contiguous(), _whole(mask), _whole(bias)
    if _wanted(qkv):
        out: Tensor = _Attention.apply(qkv, mask, turn, bias, lib, plain)  # type: ignore[no-untyped-call]
        return out
    return _attention(lib, qkv, mask, turn, bias, None)


def _attention(
    lib: Library, qkv: Tensor, mask: Tensor | None, turn: Tensor | None, bias: Tensor | None, kept: Tensor | None
) -> Tensor:
    batch, length, _, heads, size = qkv.shape
    y = _empty(batch, length, heads * size)

    def work(first: int, last: int, _: int) -> None:
        lib("attention_forward", first, last, length, heads, size, qkv, mask, turn, bias, kept, y)

    lib.shared(batch, native.least(4 * length**2 * heads * size), work)
    return y


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, mask: Tensor | None, turn: Tensor | None, bias: Tensor | None, lib: Library, plain: Plain
    ) -> Tensor:
        batch, length, _, heads, _ = qkv.shape
        kept = _empty(batch, heads, length, -(-length // native.STEP) * native.STEP)
        ctx.save_for_backward(qkv, mask, turn, kept)
        ctx.lib, ctx.plain = lib, plain
        return _attention(lib, qkv, mask, turn, bias, kept)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        qkv, mask, turn, kept = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *_again(ctx.plain, (qkv,), grads[0]), *(None,) * 5
        (batch, length, _, heads, size), grad = qkv.shape, grads[0].contiguous()
        d_qkv = torch.empty_like(qkv)

        def work(first: int, last: int, _: int) -> None:
            ctx.lib("attention_backward", first, last, length, heads, size, qkv, mask, turn, kept, grad, d_qkv)

        ctx.lib.shared(batch, native.least(8 * length**2 * heads * size), work)
        return d_qkv, *(None,) * 5


# Relations ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rows:
    """A matrix of zeros and one other value as the columns that each row adds up."""

    starts: Tensor
    columns: Tensor
    value: float

    @staticmethod
    def of(matrix: npt.NDArray[np.float32]) -> "Rows | None":
        """None where the terms are weighed."""
        rows, columns = np.nonzero(matrix)
        values = np.unique(matrix[rows, columns])
        if len(values) > 1:
            return None
        starts = np.searchsorted(rows, np.arange(len(matrix) + 1))
        first, which = (torch.from_numpy(part.astype(np.int32)) for part in (starts, columns))
        return Rows(first, which, float(values[0]) if len(values) else 1.0)


@dataclass(frozen=True)
class Board:
    """How positions become groups and groups positions."""

    prefix: int
    symbols: int
    counts: tuple[int, ...]
    """Groups of each kind."""
    gather: Rows
    tell: Rows
    gather_back: Rows
    tell_back: Rows
    where: Tensor
    """See `group` in kernels.c."""

    @staticmethod
    def of(
        prefix: int,
        symbols: int,
        counts: Sequence[int],
        gather: npt.NDArray[np.float32],
        tell: npt.NDArray[np.float32],
    ) -> "Board | None":
        hear, speak, hear_back, speak_back = (Rows.of(m) for m in (gather, tell, gather.T, tell.T))
        if hear is None or speak is None or hear_back is None or speak_back is None:
            return None
        first, where = 0, []
        for count in counts:
            where += [(first, count, i) for i in range(count)]
            first += count
        places = torch.tensor(where, dtype=torch.int32)
        return Board(prefix, symbols, tuple(counts), hear, speak, hear_back, speak_back, places)


@dataclass(frozen=True)
class _Heard:
    groups: Tensor
    """[groups * B * symbols * width] those of a kind together."""
    cells: Tensor | None
    everything: Tensor

    def kinds(self, board: Board, width: int) -> list[Tensor]:
        """[rows, width] for each kind of group, then cells, then everything."""
        batch = len(self.everything)
        groups = self.groups.split([batch * count * board.symbols * width for count in board.counts])
        return [part.view(-1, width) for part in (*groups, self.cells, self.everything) if part is not None]

    @staticmethod
    def like(board: Board, batch: int, cells: int, width: int) -> "_Heard":
        groups = _empty(sum(board.counts) * batch * board.symbols * width)
        return _Heard(groups, _empty(batch, cells, width) if board.symbols > 1 else None, _empty(batch, width))


def _collect(lib: Library, board: Board, x: Tensor, lists: Rows, scales: tuple[float, float, float]) -> _Heard:
    batch, positions, width = x.shape
    cells = (positions - board.prefix) // board.symbols
    out = _Heard.like(board, batch, cells, width)
    shape = (batch, board.prefix, cells, board.symbols, width, sum(board.counts))

    def work(first: int, last: int, _: int) -> None:
        rest = (board.where, lists.starts, lists.columns, x, *scales, out.groups, out.cells, out.everything)
        lib("collect", first, last, *shape, *rest)

    lib.shared(batch, native.least(8 * positions * width), work)
    return out


def _spread(
    lib: Library,
    board: Board,
    x: Tensor,
    heard: _Heard,
    told: bool,
    lists: Rows,
    mask: Tensor | None,
    scales: tuple[float, float, float],
    scale: Tensor | None,
) -> Tensor:
    """`told`: whether there is anything told to all."""
    batch, positions, width = x.shape
    y = torch.empty_like(x)
    shape = (batch, board.prefix, (positions - board.prefix) // board.symbols, board.symbols, width)

    def work(first: int, last: int, _: int) -> None:
        from_ = (x, heard.groups, heard.cells, heard.everything if told else None, mask)
        rest = (board.where, lists.starts, lists.columns, *from_, *scales, y, scale)
        lib("spread", first, last, *shape, *rest)

    lib.shared(batch, native.least(8 * positions * width), work)
    return y


def relations(x: Tensor, board: Board, kinds: Sequence[Swi], dropped: Tensor | None, plain: Plain) -> Tensor:
    """The norm of x + what groups, the symbols of a cell (where there are several) and the mean over all (where `kinds`
    has one more) tell each position, times `dropped`. plain: (x, *weights) -> the same."""
    x, dropped = x.contiguous(), _whole(dropped)
    weights = [weight for swi in kinds for weight in (swi.gate_up, swi.down)]
    if _wanted(x, *weights):
        out: Tensor = _Relations.apply(x, board, list(kinds), dropped, plain, *weights)  # type: ignore[no-untyped-call]
        return out
    return _relations(x, board, kinds, dropped, keep=False).y


@dataclass(frozen=True)
class _Related:
    y: Tensor
    scale: Tensor
    heard: list[Tensor]
    made: list[_Made]


def _relations(x: Tensor, board: Board, kinds: Sequence[Swi], dropped: Tensor | None, keep: bool) -> _Related:
    lib, (batch, positions, width) = kinds[0].lib, x.shape
    by = (board.gather.value, board.symbols**-0.5, 1 / positions)
    heard = _collect(lib, board, x, board.gather, by).kinds(board, width)
    made = [_swiglu(part, swi, None, None, False, keep) for part, swi in zip(heard, kinds, strict=False)]
    answers = _joint(board, batch, [each.y for each in made])
    scale = _empty(batch * positions)
    all_told = len(made) == len(heard)
    y = _spread(lib, board, x, answers, all_told, board.tell, dropped, (board.tell.value, 1.0, 1.0), scale)
    return _Related(y, scale, heard, made)


def _joint(board: Board, batch: int, parts: list[Tensor]) -> _Heard:
    """What each kind came to, as one again."""
    count = len(board.counts)
    groups = torch.cat([part.view(-1) for part in parts[:count]])
    rest = parts[count:]
    cells = rest.pop(0) if board.symbols > 1 else None
    return _Heard(groups, cells, rest[0] if rest else groups)


class _Relations(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, board: Board, kinds: list[Swi], dropped: Tensor | None, plain: Plain, *weights: Tensor
    ) -> Tensor:
        done = _relations(x, board, kinds, dropped, keep=True)
        kept = [each.kept for each in done.made]
        ctx.save_for_backward(x, dropped, done.y, done.scale, *weights, *done.heard, *kept)
        ctx.board, ctx.kinds, ctx.plain, ctx.heard = board, kinds, plain, len(done.heard)
        return done.y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, dropped, y, scale, *rest = ctx.saved_tensors
        kinds, board = ctx.kinds, ctx.board
        weights, rest = rest[: 2 * len(kinds)], rest[2 * len(kinds) :]
        if torch.is_grad_enabled():
            d_x, *d_weights = _again(ctx.plain, (x, *weights), grads[0])
            return d_x, None, None, None, None, *d_weights
        heard, kept = rest[: ctx.heard], rest[ctx.heard :]
        lib, grad, (batch, positions, width) = kinds[0].lib, grads[0].contiguous(), x.shape
        d_joint = torch.empty_like(grad)
        d_told = d_joint if dropped is None else torch.empty_like(grad)

        def work(first: int, last: int, _: int) -> None:
            lib("norm_backward", first, last, width, grad, y, scale, dropped, d_joint, d_told)

        lib.shared(batch * positions, native.least(8 * width), work)
        d_answers = _collect(lib, board, d_told, board.tell_back, (board.tell.value, 1.0, 1.0)).kinds(board, width)
        d_heard, d_weights = [], []
        for i, swi in enumerate(kinds):
            d_part, *d_both, _ = _swiglu_back(heard[i], swi, None, None, _Made(y, None, kept[i]), d_answers[i])
            d_heard.append(d_part)
            d_weights += d_both
        back, all_heard = _joint(board, batch, d_heard), len(kinds) == len(heard)
        by = (board.gather.value, board.symbols**-0.5, 1 / positions)
        d_x = _spread(lib, board, d_joint, back, all_heard, board.gather_back, None, by, None)
        return d_x, None, None, None, None, *d_weights


# The state update -----------------------------------------------------------------------------------------------------


def update(
    lib: Library,
    old: Tensor,
    candidate: Tensor,
    seen: Tensor,
    tau: float | None,
    gate: tuple[Tensor | None, Tensor | None],
    norm: bool,
    plain: Plain,
) -> tuple[Tensor, Tensor]:
    """The new state, and the ratio of each position, [..., 1]. gate: its weight [1, width] and bias [1], if any."""
    weight, bias = (_whole(part) for part in gate)
    old, candidate, seen = old.contiguous(), candidate.contiguous(), seen.contiguous()
    if _wanted(old, candidate, seen, weight):
        new, rows = _Update.apply(old, candidate, seen, weight, bias, tau, norm, lib, plain)  # type: ignore[no-untyped-call]
    else:
        new, rows = _update(lib, old, candidate, seen, weight, bias, tau, norm)
    return new, rows[..., :1]


def _update(
    lib: Library,
    old: Tensor,
    candidate: Tensor,
    seen: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    tau: float | None,
    norm: bool,
) -> tuple[Tensor, Tensor]:
    n = old.shape[-1]
    new, rows = torch.empty_like(old), _empty(*old.shape[:-1], 4)

    def work(first: int, last: int, _: int) -> None:
        lib("update_forward", first, last, n, old, candidate, seen, tau or 0.0, weight, bias, norm, new, rows)

    lib.shared(old.numel() // n, native.least(16 * n), work)
    return new, rows


class _Update(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        old: Tensor,
        candidate: Tensor,
        seen: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        tau: float | None,
        norm: bool,
        lib: Library,
        plain: Plain,
    ) -> tuple[Tensor, Tensor]:
        new, rows = _update(lib, old, candidate, seen, weight, bias, tau, norm)
        ctx.save_for_backward(old, candidate, seen, weight, bias, new, rows)
        ctx.norm, ctx.lib, ctx.plain = norm, lib, plain
        ctx.mark_non_differentiable(rows)
        return new, rows

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        old, candidate, seen, weight, bias, new, rows = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *_again(ctx.plain, (old, candidate, seen, weight, bias), grads[0]), *(None,) * 4
        grad, n, lib = grads[0].contiguous(), old.shape[-1], ctx.lib
        count, least = old.numel() // n, native.least(16 * n)
        d_old, d_candidate = torch.empty_like(old), torch.empty_like(old)
        d_seen = torch.empty_like(old) if weight is not None else None
        d_gate = _zeros(native.sharing(count, least), n + 1)

        def work(first: int, last: int, part: int) -> None:
            rest = (weight, ctx.norm, new, rows, grad, d_old, d_candidate, d_seen, d_gate[part])
            lib("update_backward", first, last, n, old, candidate, seen, *rest)

        lib.shared(count, least, work)
        both = _added(d_gate)
        gate = (both[None, :n], both[n:]) if weight is not None else (None, None)
        return d_old, d_candidate, d_seen, *gate, *(None,) * 4


# Noise ----------------------------------------------------------------------------------------------------------------


def noise(lib: Library, u: Tensor, key: Tensor, eta: float) -> Tensor:
    """eta |u| N(0, I) for u [B, positions, width], with the normal numbers of the keys [B]."""
    u, key = u.detach().contiguous(), key.contiguous()
    batch, positions, n = u.shape
    out = torch.empty_like(u)

    def work(first: int, last: int, _: int) -> None:
        lib("noise", first, last, positions, n, u, key, eta, out)

    lib.shared(batch, native.least(60 * positions * n), work)
    return out


# The answer's loss ----------------------------------------------------------------------------------------------------


def answer_loss(lib: Library, logits: Tensor, labels: Tensor, probabilities: str, plain: Plain) -> Tensor:
    """[B] cross-entropy, mean over the labels that are not 0. plain: (logits, labels, probabilities) -> the same."""
    logits, labels = logits.contiguous(), labels.to(torch.int64).contiguous()
    if _wanted(logits):
        out: Tensor = _AnswerLoss.apply(logits, labels, probabilities, lib, plain)  # type: ignore[no-untyped-call]
        return out
    return _answer_loss(lib, logits, labels, probabilities, None)


def _answer_loss(lib: Library, logits: Tensor, labels: Tensor, probabilities: str, d: Tensor | None) -> Tensor:
    batch, tokens, vocab = logits.shape
    loss = _empty(batch)

    def work(first: int, last: int, _: int) -> None:
        lib("answer_loss", first, last, tokens, vocab, logits, labels, probabilities == "softmax", 1.0, loss, d)

    lib.shared(batch, native.least(50 * tokens * vocab), work)
    return loss


class _AnswerLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, probabilities: str, lib: Library, plain: Plain) -> Tensor:
        d = torch.empty_like(logits)
        ctx.save_for_backward(logits, labels, d)
        ctx.plain, ctx.probabilities = plain, probabilities
        return _answer_loss(lib, logits, labels, probabilities, d)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        logits, labels, d = ctx.saved_tensors
        if torch.is_grad_enabled():
            again = lambda logits: ctx.plain(logits, labels, ctx.probabilities)  # noqa: E731
            return *_again(again, (logits,), grads[0]), *(None,) * 4
        return d * grads[0][:, None, None], *(None,) * 4


# What is read off a step ----------------------------------------------------------------------------------------------


def read_out(lib: Library, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The likeliest symbols [B, tokens], how likely they are, and the energy, [B] each (`halting`)."""
    logits, (batch, tokens, vocab) = logits.contiguous(), logits.shape
    answers, sure, energy = torch.empty(batch, tokens, dtype=torch.int64), _empty(batch), _empty(batch)

    def work(first: int, last: int, _: int) -> None:
        lib("read_out", first, last, tokens, vocab, logits, answers, sure, energy)

    lib.shared(batch, native.least(50 * tokens * vocab), work)
    return answers, sure, energy


def moved(lib: Library, old: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """[B] |new - old|^2 and |old|^2"""
    old, new, (by, size) = old.contiguous(), new.contiguous(), _empty(2, len(old))
    floats = old[0].numel()

    def work(first: int, last: int, _: int) -> None:
        lib("moved", first, last, floats, old, new, by, size)

    lib.shared(len(old), native.least(4 * floats), work)
    return by, size
