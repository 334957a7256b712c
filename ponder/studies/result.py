"""What is stored of a cell: the schema of `results/cells/KEY.json`.

What is stored outlives the code. A field added later has a default that means "as before", and one that nothing reads
any more may stand in older files.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, field_serializer

from ponder.config.resolve import Config
from ponder.studies.spec import After, Cell, WeightSet

VERSION: Literal[2] = 2
"""Since 2 a key counts only what differs from the defaults."""
Metric = Literal["exact", "valid", "token"]


class Kept(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class KeptShare(Kept):
    """Of examples, with its 95% interval."""

    value: float
    low: float | None = None
    high: float | None = None


# While training -------------------------------------------------------------------------------------------------------


class SplitScore(Kept):
    exact: float
    valid: float
    token: float
    best_full: float
    """Exact at each example's most confident step."""


class CurvePoint(Kept):
    """One evaluation while training."""

    update: int
    seconds: float
    update_seconds: float | None = None
    """Those spent in updates, of the processor on a CPU; None in results that did not tell them apart."""
    ema: dict[str, SplitScore]
    """Split -> its score. Without averaged weights, the plain ones."""
    online: dict[str, SplitScore] = {}

    def of(self, weights: WeightSet) -> dict[str, SplitScore]:
        return self.ema if weights == "ema" else self.online

    def along(self, axis: Literal["seconds", "update"]) -> float:
        """Where it stands: its update, or the seconds spent in updates until then."""
        if axis == "update":
            return self.update
        return self.seconds if self.update_seconds is None else self.update_seconds


class Chosen(Kept):
    update: int


class Summary(Kept):
    chosen_on_val: Chosen
    mean_grad_norm: float


class CellCost(Kept):
    parameters: int
    applications: int = 0
    inference_flops: int = 0
    training_flops: int = 0


# After training -------------------------------------------------------------------------------------------------------


class OwnStepScore(Kept):
    """A split where each example's answer is taken at a step of its own."""

    exact: float
    valid: float
    token: float
    mean_step: float | None = None


class Bits(Kept):
    """Which examples were right, packed (`store.pack`)."""

    exact: str
    valid: str


class Votes(Kept):
    step: int
    all_test_inputs: dict[str, KeptShare]
    """pass@k -> tasks all of whose test inputs are solved."""


class ArcVotes(Kept):
    model_config = ConfigDict(extra="allow")

    tasks: int
    at_step: list[Votes]


class Profile(Kept):
    """One split at every forced step, and each example's verdict at the training budget and at the last step."""

    role: str
    n: int
    of: int
    exact: list[float]
    valid: list[float]
    token: list[float]
    best_full: OwnStepScore
    halting: OwnStepScore | None
    """None without a halting head."""
    bits: Bits | None
    bits_end: Bits | None
    bits_full: Bits | None = None
    """At each example's most confident step; None in results that did not keep it."""
    arc: ArcVotes | None = None


class Profiles(Kept):
    """Those of one set of weights."""

    update: int
    splits: dict[str, Profile]


class PolicyPoint(Kept):
    """What one halting policy came to."""

    model_config = ConfigDict(extra="allow")

    policy: str
    """Of a search its rule and split: `residual 4x1`."""
    mean_steps: float
    """Of a search those of all restarts."""
    valid: KeptShare
    bits: str | None = None
    """Which examples were valid, packed; of searches."""


class PolicyPoints(Kept):
    split: str
    n: int
    budget: int
    results: list[PolicyPoint]


class Spread(Kept):
    """Of one number of each example: the tenth, the middle and the ninth of ten."""

    low: float
    median: float
    high: float


class Traced(Kept):
    """What `ponder trace` saw up to the training budget, step by step."""

    split: str
    n: int
    settled: float
    """The residual below which an example counts as settled."""
    right: list[float]
    residual: list[Spread]
    stretch: list[Spread]
    bounded: list[float] | None = None
    """The share of positions where the bound acted; None in a trace of before it was measured."""
    table: dict[str, int]
    """settled_right, settled_wrong, moving_right, moving_wrong -> examples, after the last step."""


class Measured(Kept):
    steps: int
    budget: int
    """ACT steps in training."""
    examples: int
    """At most so many of each split."""
    ema: Profiles | None = None
    online: Profiles | None = None
    policies: PolicyPoints | None = None
    search: PolicyPoints | None = None
    trace: Traced | None = None

    def profile(self, weights: WeightSet, split: str) -> Profile | None:
        profiles = self.ema if weights == "ema" else self.online
        return None if profiles is None else profiles.splits.get(split)

    def covers(self, cell: Cell) -> bool:
        """Whether all that a cell asks for was measured. Without averaged weights, `ema` has the plain ones."""
        asked, there = cell.after, self.asked()
        weights = {name for name in asked.weights if name == "ema" or cell.config.train.ema is not None}
        return (
            self.steps >= (asked.steps or self.budget)
            and self.examples >= cell.examples
            and weights <= {*there.weights}
            and all(getattr(there, name) >= getattr(asked, name) for name in ("policies", "search", "trace"))
        )

    def asked(self) -> After:
        """What was asked for when this was measured."""
        weights: list[WeightSet] = ["ema"] if self.ema is not None else []
        weights += ["online"] if self.online is not None else []
        more = {name: getattr(self, name) is not None for name in ("policies", "search", "trace")}
        return After(steps=self.steps, weights=tuple(weights), **more)


class CellResult(Kept):
    """What a run folder says, made small, and what was measured after training."""

    version: Literal[2] = VERSION
    key: str
    label: str
    config: Config
    data_hash: str
    environment: dict[str, Any]
    updates: int
    seconds: float
    n: dict[str, int]
    """Split -> examples of each evaluation while training."""
    summary: Summary
    curve: list[CurvePoint]
    train: dict[str, list[float]]
    """The log of training as columns, thinned."""
    cost: CellCost
    after: Measured
    after_seconds: float = 0.0

    @field_serializer("config")
    def _flat(self, config: Config) -> dict[str, Any]:
        return config.flat()
