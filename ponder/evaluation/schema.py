"""What evaluations write down: eval.json, policies.json, search.json, trace.json. docs/evaluation.md and
docs/newer-ideas.md say what each number means.

Files outlive the code: a new field gets a default that means "as before", and what changes its meaning a new version.
"""

from pathlib import Path
from typing import Any, Generic, Literal, Self, TypeVar

import numpy as np
from pydantic import ConfigDict, Field, ValidationError

from ponder.base import files
from ponder.base.errors import UserError
from ponder.base.stats import Floats, share
from ponder.config.schema import Frozen, SearchPlan

VERSION = 2
"""Files without a version are those of version 1, which lack nothing else."""
MEASURES = ("exact", "valid", "token")
Version = Literal[1, 2]
T = TypeVar("T")


class Stored(Frozen):
    model_config = ConfigDict(populate_by_name=True, allow_inf_nan=True)

    def as_data(self) -> dict[str, Any]:
        """As it is written."""
        return self.model_dump(mode="json", by_alias=True)


# Shares of examples ---------------------------------------------------------------------------------------------------


class Interval(Stored, Generic[T]):
    value: T
    low: T
    high: T

    @classmethod
    def of(cls, mean: float | Floats, n: int) -> Self:
        return cls(**share(mean, n))

    def percents(self) -> Floats:
        """Value, low and high."""
        return 100 * np.array([self.value, self.low, self.high])


class Share(Interval[float]):
    """A mean over examples with its 95% interval."""


class Curve(Interval[list[float]]):
    """A share after each ACT step."""

    def best(self, steps: int) -> "BestStep":
        """Where it is highest within so many steps."""
        at = int(np.argmax(self.value[:steps]))
        return BestStep(step=at + 1, value=self.value[at], low=self.low[at], high=self.high[at])


class BestStep(Share):
    step: int


class Measures(Stored, Generic[T]):
    exact: T
    valid: T
    token: T


class AnyStep(Stored):
    """Right after some step: what an oracle would choose."""

    exact: Share
    valid: Share


# eval.json ------------------------------------------------------------------------------------------------------------


class Bin(Stored):
    n: int
    confidence: float | None
    accuracy: float | None


class Calibration(Stored):
    """Does the halting probability say how likely the answer is right?"""

    auroc: float | None
    brier: float
    ece: float
    bins: list[Bin]


class Calibrations(Stored):
    final: Calibration
    all_steps: Calibration


class Halting(Measures[Share]):
    """Each example answered where the halting head stops, at the latest at the last step."""

    mean_step: float
    halted: float
    calibration: Calibrations


class Within(Stored):
    """Each way to answer within so many steps."""

    steps: int
    final: Measures[Share]
    best_full: Measures[Share]
    best_step: Measures[BestStep]
    any_step: AnyStep
    halting: Halting | None = None
    """None without a halting head, and for means over splits."""


class SplitSummary(Stored):
    """All that follows from the records of a split."""

    n: int
    steps: Measures[Curve]
    to_budget: Within | None = None
    """None where fewer steps were run than in training."""
    to_end: Within

    @property
    def ends(self) -> list[Within]:
        """Up to the training budget, and up to all steps that were run where these are others."""
        first = [] if self.to_budget is None else [self.to_budget]
        return first if first and first[0].steps == self.to_end.steps else [*first, self.to_end]


class PassAt(Stored):
    one: Share = Field(alias="pass@1")
    two: Share = Field(alias="pass@2")


class Passes(Stored):
    all_test_inputs: PassAt
    """A task counts when all its test inputs are solved: the paper's reading."""
    fractional: PassAt
    """By the share of its test inputs: the published code's."""


class PassesAtStep(Passes):
    step: int


class PassesByVotes(Passes):
    votes: int


class VoteCounts(Stored):
    """Of a test input."""

    fewest: int
    most: int
    all: int


class ArcScore(Stored):
    protocol: str
    tasks: int
    test_inputs: int
    votes: VoteCounts
    at_step: list[PassesAtStep]
    curve: list[PassesByVotes]
    blank_id: PassesAtStep
    label_rank: dict[str, list[int | None]]
    """Where the right grid stands among those of each test input; None where nothing predicted it."""
    unmatched: int
    submission: str | None = None
    """File beside eval.json."""


class RecordsFile(Stored):
    file: str
    sha256: str


class SplitResult(SplitSummary):
    role: str
    of: int | None = None
    """Examples that the split holds; None for a mean over splits."""
    records: RecordsFile | None = None
    arc: ArcScore | None = None
    splits: tuple[str, ...] | None = None
    """What a mean is over."""


class Origin(Stored):
    """Which checkpoint."""

    name: str
    path: str
    update: int | None
    sha256: str | None = None
    """Of its weights; eval.json lists them apart."""


class DataUsed(Stored):
    path: str
    hash: str
    config: dict[str, Any]


class CostBySteps(Stored):
    """What an answer costs when it is taken after 1, 2, ... steps."""

    parameters: int
    layer_applications: list[int]
    dense_passes: list[float]
    flops: list[int]


class EvalResult(Stored):
    """eval.json."""

    version: Version = 1
    checkpoint: Origin
    weights: dict[str, str]
    """Which weights -> sha256."""
    config: dict[str, Any] | None
    model: dict[str, Any]
    seed: int | None
    data: DataUsed
    protocol: str
    steps: int
    budget: int
    batch: int
    limit: int | None
    precision: str
    device: str
    ranks: int
    cost: CostBySteps
    scores: dict[str, dict[str, SplitResult]]
    """Which weights -> split -> its score."""
    environment: dict[str, Any]
    command: str

    @property
    def main(self) -> dict[str, SplitResult]:
        """The scores of the averaged weights, where there are any."""
        return next(iter(self.scores.values()))


def read_eval(file: Path) -> EvalResult:
    try:
        return EvalResult.model_validate(files.read_json(file))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"{file} is of another version ({where}: {first['msg']}): run `ponder eval` again") from None
    except ValueError:
        raise UserError(f"{file} is damaged: run `ponder eval` again") from None


# policies.json and search.json ----------------------------------------------------------------------------------------


class Measurement(Stored):
    """What ties a score to its origin."""

    version: Version = 1
    protocol: str
    checkpoint: Origin
    config: dict[str, Any] | None
    data_hash: str
    split: str
    n: int
    precision: str
    environment: dict[str, Any]


class PolicyScore(Stored):
    policy: str
    exact: Share
    valid: Share
    change: Share
    """Exact accuracy minus that of the full budget, in pairs, with its 95% interval."""
    mean_steps: float
    max_steps: int
    applications: float
    """Layer applications of an answer, on average."""
    flops: float
    seconds: float
    per_second: float


class PoliciesResult(Measurement):
    """policies.json."""

    budget: int
    training_budget: int
    steps: Curve
    """Exact accuracy of the full budget's run after each step."""
    results: list[PolicyScore]


class SearchPoint(Stored):
    """What `restarts` trajectories of at most `steps` steps gave, and what they took."""

    restarts: int
    steps: int
    total: int
    exact: Share
    valid: Share
    mean_compute: float
    """ACT steps of a puzzle over all its restarts."""
    max_compute: int


class SearchResult(Measurement):
    """search.json."""

    plan: SearchPlan
    plain: SearchPoint
    """The main protocol: one trajectory, the answer at the last step."""
    found: SearchPoint
    table: list[SearchPoint]
    """The same compute at most, spent on breadth or on depth."""


# trace.json -----------------------------------------------------------------------------------------------------------


class Quantiles(Stored):
    """Of one number of each example."""

    low: float
    """A tenth of the examples are below it."""
    median: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Self:
        low, median, high = np.quantile(np.array(values), (0.1, 0.5, 0.9)).tolist()
        return cls(low=low, median=median, high=high)


class SettledRight(Stored):
    """Examples, by whether their state has come to rest after the last step and whether the answer is right then."""

    settled_right: int
    settled_wrong: int
    moving_right: int
    moving_wrong: int


class Trajectory(Stored):
    example: int
    """Its number in the split."""
    right: bool
    settled: bool
    points: list[tuple[float, float]]
    """In the plane: the start, then after each step."""


class TraceResult(Measurement):
    """trace.json."""

    steps: int
    budget: int
    settled: float
    directions: int
    rounds: int
    right: list[float]
    residual: list[Quantiles]
    stretch: list[Quantiles]
    bounded: list[float]
    """The share of positions where the bound acted; 0 where there is none."""
    table: SettledRight
    explained: tuple[float, float]
    trajectories: list[Trajectory]
