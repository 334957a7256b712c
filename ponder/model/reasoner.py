"""One model with switches: dense, HRM, TRM, URM and the stabilised recipe are settings of `ModelConfig`."""

import math
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ponder.base import native, rng
from ponder.base.errors import UserError
from ponder.base.geometry import NO_GEOMETRY, Geometry
from ponder.config.schema import ModelConfig
from ponder.model import kernels, whole
from ponder.model.attention import Rotary
from ponder.model.layers import Block, Context, LayerMasks
from ponder.model.products import lecun_, linear, rms_norm
from ponder.model.recurrence import Parts, States, Update, horizon, recur
from ponder.model.relations import Links
from ponder.model.sublayers import Form


@dataclass(frozen=True)
class Carry:
    """What an example keeps between ACT steps. Slot i of every tensor belongs to the example in slot i."""

    states: States
    steps: Tensor
    """[B] ACT steps done."""
    key: Tensor
    """[B] 8 bytes from which this example's dropout masks and noise derive."""

    def take(self, index: Tensor) -> "Carry":
        return Carry(States.of(z[index] for z in self.states.held), self.steps[index], self.key[index])

    def detach(self) -> "Carry":
        return replace(self, states=States.of(z.detach() for z in self.states.held))


@dataclass(frozen=True)
class Step:
    """The outcome of one ACT step."""

    carry: Carry
    logits: Tensor
    """[B, tokens, vocabulary]"""
    q_halt: Tensor | None
    q_continue: Tensor | None
    ratio: Tensor | None
    """[B, positions, 1] relative size of the last proposed z_L change, where the bound computes it."""
    over: Tensor | None = None
    """[B] whether all steps were taken that the puzzle asks for; None where halting is learned."""


@dataclass(frozen=True)
class Masks:
    low: list[LayerMasks]
    high: list[LayerMasks]
    x: Tensor


class Symbols(nn.Module):
    """Exchangeable symbols: a cell has one position for each of them, which says what that symbol is to the cell.

    Renaming the symbols of a puzzle then moves positions about and changes nothing else. Rows of the embedding are the
    other tokens in their order, then "this symbol is given here" and "another one is".
    """

    role: Tensor
    symbol: Tensor
    other: Tensor

    def __init__(self, vocab: int, symbols: tuple[int, ...]) -> None:
        super().__init__()
        if len(symbols) < 2:
            raise UserError("symbols equivariant needs a domain with exchangeable symbols (sudoku); set model.symbols")
        other = [token for token in range(vocab) if token not in symbols]
        self.rows = len(other) + 2
        role = torch.full((vocab,), len(other) + 1)
        role[other] = torch.arange(len(other))
        for name, value in (("role", role), ("symbol", torch.tensor(symbols)), ("other", torch.tensor(other))):
            self.register_buffer(name, value, persistent=False)

    def roles(self, inputs: Tensor) -> Tensor:
        """[B, cells] tokens -> [B, cells * symbols] rows of the embedding."""
        this = inputs[..., None] == self.symbol
        return torch.where(this, self.rows - 2, self.role[inputs][..., None]).flatten(1)

    def logits(self, out: Tensor) -> Tensor:
        """[B, cells * symbols, 1 + others] -> [B, cells, vocabulary]: of each symbol its own, of others the mean."""
        out = out.unflatten(1, (-1, len(self.symbol)))
        full = out.new_empty(*out.shape[:2], len(self.role))
        full[..., self.symbol] = out[..., 0]
        full[..., self.other] = out[..., 1:].mean(dim=2)
        return full


class Asked(nn.Module):
    """How many steps a puzzle asks for, read from its digits."""

    position: Tensor
    power: Tensor

    def __init__(self, geometry: Geometry) -> None:
        super().__init__()
        if not geometry.asked:
            raise UserError("halting asked needs a domain whose puzzles ask for steps (life); set model.halting")
        self.zero = geometry.zero
        powers = [10**i for i in reversed(range(len(geometry.asked)))]
        for name, value in (("position", geometry.asked), ("power", powers)):
            self.register_buffer(name, torch.tensor(value), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return ((inputs[:, self.position] - self.zero) * self.power).sum(dim=1)


class Reasoner(nn.Module):
    init_h: Tensor
    init_l: Tensor
    table: Tensor

    def __init__(
        self, config: ModelConfig, vocab: int, tokens: int, task_ids: int = 1, geometry: Geometry = NO_GEOMETRY
    ) -> None:
        super().__init__()
        self.config = config
        self.vocab, self.tokens = vocab, tokens
        self.length = config.prefix + tokens
        self.symbols = Symbols(vocab, geometry.symbols) if config.symbols == "equivariant" else None
        if self.symbols is not None:
            self.length = config.prefix + tokens * len(geometry.symbols)
            vocab = self.symbols.rows
        width = config.width
        self.scale = math.sqrt(width)
        self.embed = nn.Parameter(lecun_(torch.empty(vocab, width), 1 / self.scale))
        if config.positions == "learned":
            self.position = nn.Parameter(lecun_(torch.empty(self.length, width), 1 / self.scale))
        self.input_conv = nn.Conv1d(width, width, kernel_size=3, padding=1, groups=width) if config.input_conv else None
        self.asked = Asked(geometry) if config.halting == "asked" else None
        tree = geometry.tree if config.mixer == "relations" else None
        self.links = None if tree is None else Links(self.vocab, tree)
        self.low = Block(config, self.length, geometry)
        above = config.model_copy(update={"layers": config.layers_above})
        self.high = Block(above, self.length, geometry) if config.modules == "separate" else self.low
        self.update = Update(config) if config.states == 2 else None
        self.learned = config.learned_init and config.init == "fixed"
        for name in ("init_h", "init_l")[: config.states]:
            start = lecun_(torch.empty(width), 1.0)
            if self.learned:
                self.register_parameter(name, nn.Parameter(start))
            else:
                self.register_buffer(name, start)
        self.head = linear(width, vocab if self.symbols is None else vocab - 1)
        self.q_head: nn.Linear | None = None
        if config.head:
            self.q_head = linear(width, 2, bias=True)
            nn.init.zeros_(self.q_head.weight.data)
            nn.init.constant_(self.q_head.bias.data, -5.0)
        # The puzzle table has an optimiser of its own and may be gigabytes: a buffer, whose rows are gathered.
        self.register_buffer("table", torch.zeros(task_ids, width))

    def kept_buffers(self) -> dict[str, Tensor]:
        """Those that are learned or drawn; the rest follows from the configuration and the puzzle's geometry."""
        kept = self.state_dict()
        return {name: buffer for name, buffer in self.named_buffers() if name in kept}

    # The carry ------------------------------------------------------------------------------------------------------

    def start(self, key: Tensor, dtype: torch.dtype = torch.float32) -> Carry:
        """A fresh carry, one slot for each key."""
        made = (self._fresh(n, key, dtype).contiguous() for n in range(self.config.states))
        return Carry(States.of(made), torch.zeros_like(key), key)

    def reset(self, carry: Carry, slots: Tensor, key: Tensor) -> None:
        """These slots start over with the given keys, in place."""
        for n, old in enumerate(carry.states.held):
            old.index_copy_(0, slots, self._fresh(n, key, old.dtype))
        carry.steps.index_fill_(0, slots, 0)
        carry.key.index_copy_(0, slots, key)

    def _fresh(self, n: int, key: Tensor, dtype: torch.dtype) -> Tensor:
        """[B, length, width] where z_H (0) or z_L (1) starts: the same for all, or what an example's key draws."""
        size = (self.length, self.config.width)
        if self.config.init == "random":
            return rng.normal(rng.fold(key, (rng.INIT_H, rng.INIT_L)[n]), size, dtype)
        start: Tensor = getattr(self, ("init_h", "init_l")[n])
        return start.detach().to(dtype).expand(len(key), *size)

    # One ACT step ---------------------------------------------------------------------------------------------------

    def forward(
        self,
        carry: Carry,
        inputs: Tensor,
        rows: Tensor,
        h_cycles: int | None = None,
        noise: float | None = None,
    ) -> Step:
        """Advance every slot by one ACT step.

        `rows` are the gathered rows of the puzzle table, [B, width]. In training mode dropout and noise are on;
        `noise` overrides the rate (search adds noise when evaluating).
        """
        config = self.config
        eta = noise if noise is not None else config.noise if self.training else 0.0
        form = Form(h_cycles or config.h_cycles, eta, self.training)
        if not torch.is_grad_enabled() and (lib := whole.library(self, carry.states.held, carry.key, form)):
            made = whole.answer(lib, self, carry, inputs, rows, form)
            return self.said(carry, inputs, States.of(made.states), made.logits, made.q, made.ratio)
        x = self.embedded(inputs, rows)
        kind = x.device.type
        can_autocast = torch.amp.is_autocast_available(kind)  # not on every device: the meta device cannot
        dtype = torch.get_autocast_dtype(kind) if can_autocast and torch.is_autocast_enabled(kind) else x.dtype
        x = x.to(dtype)
        if self.asked is not None:
            x = x * (carry.steps == 0)[:, None, None]  # after the first step the board is in the state
        states = self._start_grad(carry)
        if eta > 0:
            key = rng.fold(carry.key, carry.steps)
            x = _perturbed(x, rng.fold(key, rng.NOISE_X), eta)
            uses = zip(states.held, (rng.NOISE_H, rng.NOISE_L), strict=False)
            states = States.of(_perturbed(z, rng.fold(key, use), eta) for z, use in uses)
        masks = self._masks(carry.key, dtype) if self.training and config.dropout > 0 else None
        if masks is not None:
            x = x * masks.x
        context = self.context(inputs)
        ratio = None
        if config.states == 0:
            out = self.low(x, self.low.weights(context.rotary, x.shape[0]), context, masks.low if masks else None)
        else:
            recurred = recur(self._parts(carry.key, context, masks, dtype), states, x, config, h_cycles)
            states, ratio = recurred.states, recurred.ratio
            if self.asked is not None:
                over = (carry.steps >= self.asked(inputs))[:, None, None]
                both = zip(carry.states.held, states.held, strict=True)
                states = States.of(torch.where(over, old, new) for old, new in both)
            assert states.h is not None
            out = states.h
        if config.norm == "pre":
            out = rms_norm(out)
        logits = self.head(out[:, config.prefix :])
        if self.symbols is not None:
            logits = self.symbols.logits(logits)
        q = None
        if self.q_head is not None:
            with torch.autocast(kind, enabled=False) if can_autocast else nullcontext():
                q = self.q_head(out[:, 0].float())
        return self.said(carry, inputs, states, logits, q, ratio)

    def said(
        self, carry: Carry, inputs: Tensor, states: States, logits: Tensor, q: Tensor | None, ratio: Tensor | None
    ) -> Step:
        """The step that leads to these states and logits, and to both halting logits [B, 2]."""
        q_halt = q_continue = None
        if q is not None:
            q_halt, q_continue = q[:, 0], q[:, 1] if self.config.halting == "halt+continue" else None
        after = Carry(states, carry.steps + 1, carry.key)
        over = None if self.asked is None else after.steps >= self.asked(inputs)
        return Step(after, logits, q_halt, q_continue, ratio, over)

    def embedded(self, inputs: Tensor, rows: Tensor) -> Tensor:
        """Prefix and tokens, scaled: [B, prefix + tokens, width]."""
        config = self.config
        if self.symbols is not None:
            inputs = self.symbols.roles(inputs)
        prefix = F.pad(rows, (0, (config.prefix - 1) * config.width)).view(-1, config.prefix, config.width)
        x = torch.cat((prefix, F.embedding(inputs, self.embed)), dim=1)
        if config.positions == "learned":
            x = (x + self.position) * math.sqrt(0.5)
        x = self.scale * x
        if self.input_conv is not None:
            seen = x.masked_fill(self._padding(inputs)[..., None], 0.0) if config.key_mask else x
            x = x + self.input_conv(seen.transpose(1, 2)).transpose(1, 2)
        return x

    def _padding(self, inputs: Tensor) -> Tensor:
        """[B, positions] what real positions must not see where the key mask is on."""
        return F.pad(inputs == 0, (self.config.prefix, 0), value=False)

    def context(self, inputs: Tensor) -> Context:
        config = self.config
        rotary = None
        if config.mixer == "attention" and config.positions == "rope":
            rotary = Rotary.make(self.length, config.width, config.heads, inputs.device)
        bias = None
        if config.key_mask:
            hidden = self._padding(inputs)
            bias = torch.zeros(hidden.shape, device=inputs.device).masked_fill_(hidden, -torch.inf)[:, None, None, :]
        return Context(rotary, bias, None if self.links is None else self.links(inputs))

    def _start_grad(self, carry: Carry) -> States:
        """Learned initial states enter the graph of the first ACT step, where the horizon lets gradients reach them."""
        states = carry.states
        full = horizon(self.config) == (self.config.h_cycles, self.config.l_cycles)
        if not (self.learned and torch.is_grad_enabled() and full and self.config.states):
            return states
        fresh = (carry.steps == 0)[:, None, None]
        starts = zip(states.held, ("init_h", "init_l"), strict=False)
        return States.of(torch.where(fresh, getattr(self, name).to(old.dtype), old) for old, name in starts)

    def _masks(self, key: Tensor, dtype: torch.dtype) -> Masks:
        drop = self.config.dropout
        key = rng.fold(key, rng.MASK)
        low = self.low.masks(rng.fold(key, 0), drop, dtype)
        high = low if self.high is self.low else self.high.masks(rng.fold(key, 1), drop, dtype)
        x = rng.keep_mask(rng.fold(key, 2), (self.length, self.config.width), drop, dtype)
        return Masks(low, high, x)

    def _parts(self, key: Tensor, context: Context, masks: Masks | None, dtype: torch.dtype) -> Parts:
        config = self.config
        drop_h = drop_l = _same
        if self.training and config.state_dropout > 0:
            key = rng.fold(key, rng.MASK)
            mask_h, mask_l = (
                rng.keep_mask(rng.fold(key, place), (1, config.width), config.state_dropout, dtype) for place in (3, 4)
            )
            drop_h, drop_l = (lambda z: z * mask_h), (lambda z: z * mask_l)
        low = self.low.weights(context.rotary, key.shape[0])
        high = low if self.high is self.low else self.high.weights(context.rotary, key.shape[0])
        return Parts(
            low=lambda z: self.low(z, low, context, masks.low if masks else None),
            high=lambda z: self.high(z, high, context, masks.high if masks else None),
            update=self.update,
            post=rms_norm if config.post_norm else _same,
            drop_h=drop_h,
            drop_l=drop_l,
        )


def _same(z: Tensor) -> Tensor:
    return z


def _perturbed(u: Tensor, key: Tensor, eta: float) -> Tensor:
    """u + eta |u| N(0, I), the norm per position and without gradient."""
    if (lib := kernels.served(u, rows=u.shape[-1:])) and u[0].numel() % (2 * native.STEP) == 0:
        return u + kernels.noise(lib, u, key, eta)
    size: Tensor = torch.linalg.vector_norm(u.detach(), dim=-1, keepdim=True)
    return u + eta * size * rng.normal(key, tuple(u.shape[1:]), u.dtype)
