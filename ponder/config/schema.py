"""What can be set: model, training and evaluation, typed and frozen, each value checked before anything runs.

The defaults are the paper's stabilised model. Nothing here knows a domain.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from ponder.base.errors import UserError, at_least, instead


class Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


DEEPEST = 100_000
"""Layers that one ACT step may apply one after the other. Published models apply a few dozen, a file may say any."""


class ModelConfig(Frozen):
    name: str = Field("ponder", description="which recipe this is; a label only")
    states: Literal[0, 1, 2] = Field(2, description="2: z_H and z_L; 1: one state; 0: no recurrence (dense)")
    modules: Literal["shared", "separate"] = Field("shared", description="one block for H and L, or one each")
    layers: int = Field(4, ge=1, description="layers of each module")
    high_layers: int | None = Field(
        None, ge=1, description="layers of the high-level module where it has others; needs modules separate"
    )
    width: int = Field(512, ge=8, description="hidden size")
    heads: int = Field(8, ge=1, description="attention heads; the width is a multiple of them")
    expansion: float = Field(4.0, gt=0, description="SwiGLU inner width is 2/3 of this times the width, rounded up")
    inner_multiple: int = Field(
        256,
        ge=1,
        description="inner widths are rounded up to a multiple of this; 256 as published, too much for small models",
    )
    h_cycles: int = Field(4, ge=1, description="cycles of each ACT step")
    l_cycles: int = Field(2, ge=1, description="inner cycles of each cycle")
    h_horizon: int = Field(2, ge=1, description="K_H: the last cycles that gradients reach")
    l_horizon: int = Field(2, ge=1, description="K_L: the last inner cycles of each of those")
    gradient: Literal["horizon", "implicit"] = Field(
        "horizon", description="through the cycles of the horizon, or that of a fixed point: one cycle has a graph"
    )
    neumann: int = Field(
        0, ge=0, description="implicit: terms of the Neumann series beside the first; 0 is the one-step gradient"
    )
    mixer: Literal["attention", "mlp", "relations"] = Field(
        "attention",
        description="tokens mix by attention, an MLP over them, or along the domain's relations (rows, columns, boxes)",
    )
    symbols: Literal["own", "equivariant"] = Field(
        "own", description="an embedding for each symbol, or one for all that the domain says can be exchanged"
    )
    mlp_conv: bool = Field(False, description="depthwise convolution inside the SwiGLU (URM)")
    input_conv: bool = Field(False, description="depthwise convolution over the embedded input (ponder on ARC)")
    positions: Literal["rope", "learned", "none"] = Field(
        "rope", description="rotary in every attention, a learned embedding added to the input, or nothing"
    )
    prefix: int = Field(1, ge=1, description="positions the puzzle embedding is spread over")
    key_mask: bool = Field(False, description="attention ignores padded positions")
    init: Literal["fixed", "random"] = Field(
        "fixed", description="all examples start from the same states, or each from normal numbers that its key draws"
    )
    learned_init: bool = Field(True, description="fixed initial states are parameters, not buffers")
    bound: float | None = Field(0.7, gt=0, description="tau: largest relative change of z_L per update; null is off")
    gate: bool = Field(True, description="learned per-position gate on the z_L update")
    norm: Literal["post", "pre"] = Field(
        "post", description="of a layer: after each sum, or before each sublayer, with a learned scale on the residual"
    )
    post_norm: bool = Field(True, description="normalise z_L after each update and z_H after each cycle")
    dropout: float = Field(0.0, ge=0, lt=1, description="core dropout, one mask per example for the whole trajectory")
    state_dropout: float = Field(0.0, ge=0, lt=1, description="dropout on z_H and z_L, shared over positions")
    noise: float = Field(0.0, ge=0, description="eta: noise per element, relative to the norm, each ACT step")
    halting: Literal["none", "halt", "halt+continue", "asked"] = Field(
        "halt+continue",
        description="no head; one that learns whether the answer is right; and one for going on (HRM); asked: the "
        "puzzle says how many ACT steps it takes, and each is supervised by what it should come to (Life)",
    )
    max_steps: int = Field(
        16, ge=1, le=1_000_000, description="ACT budget while training, and the default when evaluating"
    )

    @property
    def layers_above(self) -> int:
        """Layers of the high-level module."""
        return self.high_layers or self.layers

    @property
    def any_size(self) -> bool:
        """Whether no weight knows how large the board is."""
        return self.mixer == "relations" and self.positions == "none"

    @property
    def head(self) -> bool:
        """Whether there is a halting head, whose logit says how sure the model is."""
        return self.halting.startswith("halt")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        if self.mixer == "attention" and self.positions == "rope" and (self.width // self.heads) % 2:
            raise ValueError(f"rope needs an even head size; width / heads is {self.width // self.heads}")
        if self.high_layers is not None and self.modules == "shared":
            raise ValueError("high_layers needs modules separate: with one block for both, set layers alone")
        if (depth := self.h_cycles * (self.l_cycles * self.layers + self.layers_above)) > DEEPEST:
            raise ValueError(f"h_cycles x (l_cycles + 1) x layers is {depth}, at most {DEEPEST} is possible")
        if self.h_horizon > self.h_cycles or self.l_horizon > self.l_cycles:
            raise ValueError(
                f"the horizon (K_L {self.l_horizon}, K_H {self.h_horizon}) exceeds the cycles "
                f"(L {self.l_cycles}, H {self.h_cycles})"
            )
        if self.neumann and self.gradient != "implicit":
            raise ValueError(f"neumann {self.neumann} needs gradient implicit")
        if self.states == 0 and self.gradient == "implicit":
            raise ValueError("gradient implicit needs a state, and states 0 has none")
        if self.states != 2 and (self.modules == "separate" or self.gate or self.bound is not None or self.post_norm):
            raise ValueError(
                "separate modules, gate, bound and post_norm need states 2: set modules shared, gate false, "
                "bound null, post_norm false"
            )
        if self.states == 0 and (self.halting != "none" or self.max_steps != 1):
            raise ValueError("a model without states answers in one step: set halting none and max_steps 1")
        if self.states > 0 and self.halting == "none" and self.max_steps == 1:
            raise ValueError("a recurrent model needs a halting loss or more than one step")
        if self.mixer != "attention" and self.key_mask:
            raise ValueError("key_mask needs the attention mixer")
        if self.symbols == "equivariant" and (
            self.mixer != "relations" or self.input_conv or self.mlp_conv or self.positions == "learned"
        ):
            raise ValueError(
                "symbols equivariant needs mixer relations, and input_conv, mlp_conv and learned positions off, which "
                "would tell symbols apart"
            )
        return self


class TrainConfig(Frozen):
    batch: int = Field(768, ge=1, description="examples that contribute to one update, over all ranks and micro-steps")
    accumulate: int = Field(1, ge=1, description="micro-steps per update; the physical batch is batch / accumulate")
    accumulation: Literal["independent", "trajectory"] = Field(
        "independent", description="own slots for each micro-step, or the same slots advanced between micro-steps"
    )
    per_micro_step: tuple[Literal["clip", "table"], ...] = Field(
        (),
        description="done after every micro-step instead of once an update: clip (each gradient, to its share of the "
        "limit), table (a step of the puzzle table)",
    )
    updates: int | None = Field(None, ge=1, description="length of training in optimiser updates")
    epochs: float | None = Field(None, gt=0, description="the same in epochs: updates = epochs x examples / batch")
    lr: float = Field(1e-4, gt=0, description="peak learning rate of Adam-atan2")
    lr_min_ratio: float = Field(1.0, ge=0, le=1, description="final learning rate over peak; 1 is constant")
    schedule: Literal["cosine", "exponential"] = Field(
        "cosine", description="how the learning rate falls to its final value after the warm-up"
    )
    warmup: int = Field(2000, ge=0, description="updates of linear warm-up")
    beta1: float = Field(0.9, ge=0, lt=1, description="decay of the mean of gradients")
    beta2: float = Field(0.95, ge=0, lt=1, description="decay of the mean of squared gradients")
    weight_decay: float = Field(0.1, ge=0, description="decoupled: times the learning rate; of the puzzle table too")
    table_lr: float = Field(1e-2, ge=0, description="learning rate of the puzzle table (sign-SGD)")
    atan2: Literal["outside", "inside"] = Field(
        "outside", description="where Adam-atan2 divides by 1 - beta1^t: outside the atan2 (HRM's kernel) or inside"
    )
    clip: float | None = Field(1.0, gt=0, description="global gradient norm; null is off")
    ema: float | None = Field(0.999, gt=0, lt=1, description="decay of the averaged weights; null is off")
    loss: Literal["stablemax", "softmax"] = Field(
        "stablemax", description="how logits become the probabilities of the answer's cross-entropy"
    )
    answers: Literal["label", "nearest"] = Field(
        "label",
        description="what counts as right in training: the label, or of all right answers the one that the model finds "
        "likeliest at that step",
    )
    halting_weight: float = Field(0.5, ge=0, description="of the halting losses, beside the answer's loss")
    explore: float = Field(0.1, ge=0, le=1, description="chance per step that a random minimum length holds")
    supervise: Literal["every", "last"] = Field(
        "every", description="the loss is taken at each ACT step, or at the last; all others then run without a graph"
    )
    corrupt: float = Field(0.0, ge=0, le=1, description="share of examples that start from a noised answer's embedding")
    fixpoint_weight: float = Field(
        0.0, ge=0, description="of the squared relative change that one more step makes to an example's final state"
    )
    winners: int = Field(
        1, ge=1, description="states of each example; the gradient flows through the one with the lowest loss"
    )
    grow: Literal["none", "steps", "cycles"] = Field(
        "none", description="training depth that grows: the ACT budget, or the H cycles, from 1 to full"
    )
    grow_until: float = Field(0.5, gt=0, le=1, description="share of the updates after which the depth is full")
    start: str | None = Field(
        None,
        description="trained weights to begin from: a run, a checkpoint, a zoo name; the puzzle table only where the "
        "data are the same",
    )
    precision: Literal["auto", "float32", "bfloat16"] = Field("auto", description="auto: bfloat16 on CUDA only")
    compile: Literal["auto", "off", "block"] = Field("auto", description="auto: per block on CUDA, off elsewhere")
    data_workers: int = Field(0, ge=0, description="threads that fetch refills; changes nothing but the time")
    log_every: int = Field(20, ge=1, description="updates between rows of the log")
    eval_every: int = Field(500, ge=1, description="updates between evaluations")
    save_every: int = Field(500, ge=1, description="updates between checkpoints")
    trackers: tuple[str, ...] = Field(
        (), description="tensorboard, wandb, mlflow, clearml, trackio; one, or several with commas"
    )

    @field_validator("trackers", "per_micro_step", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: object) -> object:
        return tuple(value.replace(",", " ").split()) if isinstance(value, str) else value

    @field_validator("compile", mode="before")
    @classmethod
    def _off_is_a_word(cls, value: object) -> object:
        return "off" if value is False else value  # YAML reads off as false

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.batch % self.accumulate:
            raise ValueError(f"batch {self.batch} is not a multiple of accumulate {self.accumulate}")
        if self.per_micro_step and self.accumulate == 1:
            raise ValueError("per_micro_step needs micro-steps: set accumulate to 2 or more")
        if "clip" in self.per_micro_step and self.clip is None:
            raise ValueError("per_micro_step clip needs a limit: set clip")
        if (self.updates is None) == (self.epochs is None):
            raise ValueError("set exactly one of updates and epochs (null for the other)")
        return self


class EvalConfig(Frozen):
    examples: int = Field(1000, ge=1, description="examples of each split while training; `ponder eval` takes all")
    batch: int = Field(512, ge=1, description="examples at a time; changes nothing but time and memory")
    splits: tuple[str, ...] = Field((), description="splits evaluated while training; empty is all but train")
    select: Literal["exact", "valid", "token"] = Field("exact", description="what chooses the best checkpoint, on val")


Vary = Literal["noise", "suppose", "likely"]
Select = Literal["checker", "confidence", "first-halt", "residual", "energy"]


@dataclass(frozen=True)
class SearchPlan:
    """How to search: `restarts` trajectories of each puzzle, for at most `steps` steps each."""

    restarts: int
    steps: int
    noise: float
    seed: int = 0
    select: Select = "checker"
    vary: Vary = "noise"

    def __post_init__(self) -> None:
        at_least(1, {"restarts": self.restarts, "steps": self.steps})

    @property
    def total(self) -> int:
        """ACT steps at most; an answer that is only looked at counts as one."""
        return self.restarts - 1 + self.steps if self.vary == "likely" else self.restarts * self.steps


M = TypeVar("M", bound=BaseModel)


def parse(cls: type[M], value: Mapping[str, Any], where: str = "") -> M:
    try:
        return cls.model_validate(dict(value))
    except ValidationError as error:
        raise UserError(_explain(cls, error, where)) from None


def _explain(cls: type[BaseModel], error: ValidationError, where: str) -> str:
    """The first thing pydantic found, as one line with path, value, what is allowed and the nearest name."""
    first = error.errors()[0]
    path = ".".join(str(p) for p in ([where] if where else []) + list(first["loc"]))
    if first["type"] == "extra_forbidden":
        return f"unknown key {path!r}: {instead(first['loc'][-1], _fields_at(cls, first['loc'][:-1]))}"
    if first["type"] == "missing":
        return f"{path} is missing: give it a value"
    message = first["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    given = first["input"]
    shown = f", got {given!r}" if not isinstance(given, Mapping | BaseModel) else ""
    return f"{path}: {message}{shown}" if path else message


def _fields_at(cls: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """Of the innermost model on the way there: keys of mappings and places in lists are no fields."""
    for part in loc:
        field = cls.model_fields.get(str(part))
        cls = (_model_in(field.annotation) if field is not None else None) or cls
    return list(cls.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for each in get_args(annotation) if (found := _model_in(each)) is not None), None)
