"""The statistics: shares of examples, means over seeds, differences in pairs, and what can be said of either with 95%.

Two things vary: the seed of a training and the examples it is judged on. All variants share both, so that a difference
is taken seed by seed (seeds are blocks) and example by example. Its standard error adds both parts in squares: the
spread over seeds, pooled over the variants of a study where it can be, and the examples' own spread of the difference
averaged over seeds; Student's t then has the degrees of freedom that Satterthwaite gives such a sum. With one seed only
the examples' part is known, which says nothing about another seed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import permutations
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.floating[Any]]
Z95 = 1.959963984540054
"""Two-sided 95% point of the normal distribution."""
LEVEL = 0.025
"""Of each side of a comparison, so that its interval is one of 95%."""
POWER = 0.8
DRAWS = 10_000
"""Of a permutation test where there are more permutations."""
SAMPLES = 2_000
"""Of variants, for an interval."""
MANY = 10_000
"""Degrees of freedom from which Student's t is taken as normal."""


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
    error: float | None = None
    """Standard error; None of a ratio of spreads, and where the data cannot say."""
    freedom: float | tuple[int, int] = math.inf
    """Degrees of freedom: of Student's t, or the two of F where this is the logarithm of a ratio of spreads."""
    pooled: int = 0
    """Variants whose residuals the error is pooled over; 0: its own two alone."""
    chances: tuple[float, float] | None = None
    """p-values of the claims that it lies above 0 and below 0, where a permutation test gives them."""

    def above(self, limit: float) -> float:
        """How likely a value like this, or a larger one, is if the truth is no more than `limit`: the p-value of the
        claim that it lies above."""
        if self.chances is not None:
            assert limit == 0
            return self.chances[0]
        if isinstance(self.freedom, tuple):
            return 1 - f_share(math.exp(2 * (self.value - limit)), *self.freedom)
        if not self.error:
            return 1.0 if self.error is None or self.value <= limit else 0.0
        return t_tail((self.value - limit) / self.error, self.freedom)

    def below(self, limit: float) -> float:
        if self.chances is not None:
            assert limit == 0
            return self.chances[1]
        if isinstance(self.freedom, tuple):
            return f_share(math.exp(2 * (self.value - limit)), *self.freedom)
        if not self.error:
            return 1.0 if self.error is None or self.value >= limit else 0.0
        return t_tail((limit - self.value) / self.error, self.freedom)

    def visible(self, same: bool = False) -> float | None:
        """The smallest true difference that such an experiment finds four times in five; `same`: the smallest margin
        within which it would show two equal ones to be equal as often."""
        if isinstance(self.freedom, tuple):
            a, b = self.freedom
            return 0.5 * math.log(f_quantile(1 - LEVEL, a, b) / f_quantile(1 - POWER, a, b))
        if self.error is None or self.seeds < 2:
            return None
        power = (1 + POWER) / 2 if same else POWER  # equal ones have to pass on both sides
        return (t_quantile(1 - LEVEL, self.freedom) + t_quantile(power, self.freedom)) * self.error


@dataclass(frozen=True)
class Pool:
    """The variance of one seed's difference of two variants, from the residuals of several."""

    variance: float
    freedom: int
    variants: int


def blocks(table: Sequence[Sequence[float]]) -> Pool | None:
    """From [variants, seeds] of a score: what neither the variant nor the seed (a block) explains."""
    y = np.asarray(table, dtype=np.float64)
    if y.ndim != 2 or min(y.shape) < 2:
        return None
    rest = y - y.mean(axis=1, keepdims=True) - y.mean(axis=0, keepdims=True) + y.mean()
    freedom = (y.shape[0] - 1) * (y.shape[1] - 1)
    return Pool(2 * float((rest**2).sum()) / freedom, freedom, y.shape[0])


def within(table: Sequence[Sequence[float]]) -> Pool | None:
    """From [variants, seeds] of a difference that each variant has with itself, as between two splits."""
    d = np.asarray(table, dtype=np.float64)
    if d.ndim != 2 or d.shape[1] < 2:
        return None
    freedom = d.shape[0] * (d.shape[1] - 1)
    return Pool(float(((d - d.mean(axis=1, keepdims=True)) ** 2).sum()) / freedom, freedom, d.shape[0])


def holm(chances: Sequence[float]) -> list[float]:
    """The p-values of a family, corrected so that any false one among them is as likely as its p-value says."""
    order = sorted(range(len(chances)), key=chances.__getitem__)
    out, highest = [0.0] * len(chances), 0.0
    for rank, place in enumerate(order):
        highest = max(highest, min(1.0, (len(chances) - rank) * chances[place]))
        out[place] = highest
    return out


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


def interval(
    values: Sequence[float], examples_half: float | None, pool: Pool | None = None
) -> tuple[float, float, bool] | None:
    """Standard error of a mean over seeds, its degrees of freedom, and whether the pool was used. Of the pool's
    variance and these seeds' own the larger counts, with at most twice their own degrees of freedom: where a loud pair
    stands among quiet variants the pool alone finds four times as many differences as there are (simulated in the
    tests)."""
    sd, n = spread(values), len(values)
    parts, freedom, used = [], math.inf, False
    if sd is not None:
        variance, freedom = sd**2, n - 1
        if pool is not None:
            freedom, used = min(pool.freedom, 2 * (n - 1)), pool.variants > 2
            variance = max(variance, pool.variance)
        parts.append(math.sqrt(variance / n))
    if examples_half is not None:
        parts.append(examples_half / Z95)
    if not parts:
        return None
    error = math.hypot(*parts)
    if sd is not None:
        freedom = freedom * (error / parts[0]) ** 4 if parts[0] > 0 else math.inf
    return error, freedom, used


def estimate(values: Sequence[float], examples: int | None, parts: int = 1) -> Estimate:
    """The mean over seeds of shares in [0, 1], each over `examples` examples (None: not a share of examples), in
    `parts` splits of equal size whose mean the share is."""
    middle = float(np.mean(values))
    half = None if examples is None else half_of_proportion(min(max(middle, 0.0), 1.0), examples * parts)
    found = _around(middle, values, half, examples)
    if examples is None or found.low is None or found.high is None:
        return found
    return replace(found, low=max(found.low, 0.0), high=min(found.high, 1.0))


def _around(
    middle: float,
    values: Sequence[float],
    half: float | None,
    examples: int | None,
    pool: Pool | None = None,
    paired: bool = False,
) -> Estimate:
    known = interval(values, half, pool)
    if known is None:
        return Estimate(middle, len(values), spread(values), None, None, examples, paired)
    error, freedom, used = known
    reach = t_quantile(1 - LEVEL, freedom) * error
    pooled = pool.variants if used and pool is not None else 0
    low, high = middle - reach, middle + reach
    return Estimate(middle, len(values), spread(values), low, high, examples, paired, error, freedom, pooled)


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
    a: Sequence[float],
    b: Sequence[float],
    examples_half: float | None,
    examples: int | None,
    paired: bool = False,
    pool: Pool | None = None,
) -> Estimate:
    """a - b, seed by seed. `examples_half` is the examples' part of the interval, None where there is none."""
    each = [x - y for x, y in zip(a, b, strict=True)]
    return _around(float(np.mean(each)), each, examples_half, examples, pool, paired)


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
    return Estimate(0.5 * math.log(ratio), min(len(a), len(b)), None, low, high, freedom=(d_a, d_b))


# Ranks ----------------------------------------------------------------------------------------------------------------


def rank_correlation(x: Sequence[Sequence[float]], y: Sequence[Sequence[float]]) -> Estimate | None:
    """Spearman's correlation of two numbers, each [variants, seeds], over all of them; None with fewer than three
    variants, or where one of the numbers is the same everywhere.

    The trainings of a variant resemble each other and those of a seed share what the seed decides, so that they are no
    independent points. Only whole variants are exchanged, therefore, each seed with the same seed: the p-values are the
    shares of exchanges (all, or DRAWS and the one at hand) that correlate at least as much. The interval is that of
    SAMPLES draws of whole variants with replacement."""
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    variants, seeds = a.shape
    value = spearman(a, b)
    if variants < 3 or math.isnan(value):
        return None
    generator = np.random.default_rng(0)
    if math.factorial(variants) <= DRAWS:
        exchanges = np.array(list(permutations(range(variants))))
    else:
        exchanges = generator.permuted(np.tile(np.arange(variants), (DRAWS + 1, 1)), axis=1)
        exchanges[0] = range(variants)
    # Centred ranks are multiples of a half, so that these sums are exact and equal ones count as equal.
    together = _ranks(a) @ _ranks(b).T
    sums = together[np.arange(variants), exchanges].sum(axis=1)
    here = np.trace(together)
    chances = float((sums >= here).mean()), float((sums <= here).mean())
    samples = generator.integers(variants, size=(SAMPLES, variants))
    low, high = np.nanquantile([spearman(a[some], b[some]) for some in samples], (LEVEL, 1 - LEVEL)).tolist()
    return Estimate(value, seeds, None, low, high, chances=chances)


def spearman(a: Floats, b: Floats) -> float:
    """Not a number where one of them is the same everywhere."""
    p, q = _ranks(a), _ranks(b)
    size = math.sqrt(float((p**2).sum() * (q**2).sum()))
    return float((p * q).sum()) / size if size else math.nan


def _ranks(values: Floats) -> Floats:
    """Less their mean; equal values share the mean of their places."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    mean_place = np.cumsum(count) - (count - 1) / 2
    out: Floats = mean_place[place].reshape(values.shape) - (values.size + 1) / 2
    return out


# Quantiles, without scipy ---------------------------------------------------------------------------------------------


@cache
def t_quantile(p: float, freedom: float) -> float:
    """Where Student's t reaches p, which is above a half: t^2 is F with (1, freedom) degrees of freedom."""
    return math.sqrt(f_quantile(2 * p - 1, 1, freedom)) if freedom < MANY else NormalDist().inv_cdf(p)


def t_tail(t: float, freedom: float) -> float:
    """The chance that Student's t is larger than this."""
    if freedom >= MANY:
        return 0.5 * math.erfc(t / math.sqrt(2))
    half = 0.5 * incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5)
    return half if t > 0 else 1 - half


def f_share(x: float, a: float, b: float) -> float:
    """The chance that F with (a, b) degrees of freedom is at most x."""
    return incomplete_beta(a * x / (a * x + b), a / 2, b / 2)


def f_quantile(p: float, a: float, b: float) -> float:
    """Where the F distribution with (a, b) degrees of freedom reaches p, by bisection of its beta form."""
    low, high = 0.0, 1.0
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break  # two neighbours
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
