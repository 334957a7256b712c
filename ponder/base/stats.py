"""The statistics: shares of examples, means over seeds, differences in pairs, and what can be said of either with 95%.

Two things vary: the seed of a training and the examples it is judged on. All variants share both, so that a difference
is taken seed by seed and example by example. Its interval adds both parts in squares: Student's t over the seeds, and
the examples' own spread of the difference averaged over seeds. With one seed only the second part is known.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.floating[Any]]
Z95 = 1.959963984540054
"""Two-sided 95% point of the normal distribution."""


@dataclass(frozen=True)
class Estimate:
    """A mean, its spread over seeds, and its 95% interval; None where the data cannot say."""

    value: float
    seeds: int
    sd: float | None
    low: float | None
    high: float | None
    examples: int | None = None
    paired: bool = False
    """Whether a difference was taken example by example."""


def spread(values: Sequence[float]) -> float | None:
    """Standard deviation over seeds, n - 1 in the denominator."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def share(mean: float | Floats, n: float) -> dict[str, Any]:
    """A mean of n numbers in [0, 1] with its 95% Wilson interval (for token accuracy a bound: a number in [0, 1]
    varies at most as much as a yes or no with the same mean)."""
    p = np.asarray(mean, dtype=np.float64)
    z2 = Z95**2
    middle = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 / (1 + z2 / n) * np.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    low, high = np.minimum(middle - half, p).clip(0), np.maximum(middle + half, p).clip(max=1)
    return {"value": p.tolist(), "low": low.tolist(), "high": high.tolist()}


def probability(logit: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Of a logit, such as a halting head's that the answer is right."""
    wide: npt.NDArray[np.float64] = np.asarray(logit, dtype=np.float64)
    with np.errstate(over="ignore"):
        out: npt.NDArray[np.float64] = 1 / (1 + np.exp(-wide))
    return out


def half_of_proportion(p: float, n: float) -> float:
    """How far the 95% Wilson interval reaches from p, on its wider side: never zero, even where all are right."""
    found = share(p, n)
    return float(max(p - found["low"], found["high"] - p))


def interval(values: Sequence[float], examples_half: float | None) -> tuple[float, float] | None:
    """The 95% interval of a mean over seeds: t over seeds and the examples' part, added in squares."""
    middle, sd = float(np.mean(values)), spread(values)
    parts = [] if sd is None else [t95(len(values) - 1) * sd / math.sqrt(len(values))]
    if examples_half is not None:
        parts.append(examples_half)
    if not parts:
        return None
    half = math.hypot(*parts)
    return middle - half, middle + half


def estimate(values: Sequence[float], examples: int | None, parts: int = 1) -> Estimate:
    """The mean over seeds of shares in [0, 1], each over `examples` examples (None: not a share of examples), in
    `parts` splits of equal size whose mean the share is."""
    middle = float(np.mean(values))
    half = None if examples is None else half_of_proportion(min(max(middle, 0.0), 1.0), examples * parts)
    low, high = interval(values, half) or (None, None)
    if examples is not None and low is not None and high is not None:
        low, high = max(low, 0.0), min(high, 1.0)
    return Estimate(middle, len(values), spread(values), low, high, examples)


def paired_half(difference: Floats) -> float:
    """The examples' part of a paired difference: [seeds, n] of a - b in {-1, 0, 1}, averaged over seeds for each
    example. Half an example on either side is added (Agresti and Min), so that no disagreement still has a width."""
    each = difference.mean(axis=0)
    n = len(each) + 2
    squares, total = float((each**2).sum()) + 1.0, float(each.sum())
    return Z95 * math.sqrt(max(squares - total**2 / n, 0.0)) / n


def paired(a: Bools, b: Bools) -> dict[str, float]:
    """Mean of a - b over the same examples, with its 95% interval around the mean of Agresti and Min."""
    each = a.astype(np.float64) - b
    middle, half = float(each.sum()) / (len(each) + 2), paired_half(each[None])
    return {"value": float(each.mean()), "low": middle - half, "high": middle + half}


def difference(
    a: Sequence[float], b: Sequence[float], examples_half: float | None, examples: int | None, paired: bool = False
) -> Estimate:
    """a - b, seed by seed. `examples_half` is the examples' part of the interval, None where there is none."""
    each = [x - y for x, y in zip(a, b, strict=True)]
    low, high = interval(each, examples_half) or (None, None)
    return Estimate(float(np.mean(each)), len(each), spread(each), low, high, examples, paired)


def unpaired_half(p_a: float, n_a: float, p_b: float, n_b: float) -> float:
    """The examples' part where the examples differ or their single answers are not stored."""
    return math.hypot(half_of_proportion(p_a, n_a), half_of_proportion(p_b, n_b))


def spread_ratio(a: Sequence[float], b: Sequence[float]) -> Estimate | None:
    """log of sd(a) / sd(b) with the 95% interval of the F test (normal scores assumed); None where a spread is 0 or
    there are fewer than two seeds."""
    sd_a, sd_b = spread(a), spread(b)
    if not sd_a or not sd_b:
        return None
    ratio = (sd_a / sd_b) ** 2
    d_a, d_b = len(a) - 1, len(b) - 1
    low, high = (0.5 * math.log(ratio / f_quantile(p, d_a, d_b)) for p in (0.975, 0.025))
    return Estimate(0.5 * math.log(ratio), min(len(a), len(b)), None, low, high)


# Quantiles, without scipy ---------------------------------------------------------------------------------------------


@cache
def t95(freedom: int) -> float:
    """The two-sided 95% point of Student's t: t^2 is F with (1, freedom) degrees of freedom."""
    return math.sqrt(f_quantile(0.95, 1, freedom))


def f_quantile(p: float, a: int, b: int) -> float:
    """Where the F distribution with (a, b) degrees of freedom reaches p, by bisection of its beta form."""
    low, high = 0.0, 1.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if incomplete_beta(middle, a / 2, b / 2) < p else (low, middle)
    x = (low + high) / 2
    return math.inf if x >= 1 else x * b / (a * (1 - x))


def incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (Lentz)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(1 - x, b, a)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    fraction, c, d = 1.0, 1.0, 0.0
    for i in range(400):
        m = i // 2
        if i == 0:
            term = 1.0
        elif i % 2 == 0:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        else:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d = 1 / _away_from_zero(1 + term * d)
        c = _away_from_zero(1 + term / c)
        fraction *= c * d
        if abs(1 - c * d) < 1e-15:
            break
    return front * (fraction - 1) / a


def _away_from_zero(x: float) -> float:
    return x if abs(x) > 1e-30 else 1e-30
