"""Intervals and quantiles against tables, definitions and simulation."""

import math
import statistics

import numpy as np
import pytest

from ponder.base import stats


def test_quantiles_are_those_of_the_tables() -> None:
    for freedom, t in ((1, 12.7062), (2, 4.30265), (3, 3.18245), (9, 2.26216), (30, 2.04227), (1000, 1.96234)):
        assert stats.t95(freedom) == pytest.approx(t, rel=1e-5)
    for p, a, b, f in ((0.95, 3, 7, 4.34683), (0.975, 2, 2, 39.0), (0.025, 2, 2, 1 / 39), (0.95, 10, 20, 2.34788)):
        assert stats.f_quantile(p, a, b) == pytest.approx(f, rel=1e-5)


@pytest.mark.parametrize(("right", "n"), [(0, 16), (16, 16), (50, 100), (97, 100)])
def test_one_seed_has_the_wilson_interval_of_its_wider_side(right: int, n: int) -> None:
    """Wilson's ends are the shares q from which right / n lies 1.96 standard errors of q away."""
    p, z2n = right / n, 1.959964**2 / n
    low, high = np.sort(np.roots([1 + z2n, -(2 * p + z2n), p * p]).real)
    found, reach = stats.estimate([p], n), max(high - p, p - low)
    assert found.low == pytest.approx(max(0, p - reach), abs=1e-6)
    assert found.high == pytest.approx(min(1, p + reach), abs=1e-6)
    assert found.sd is None and stats.estimate([0.5], None).low is None


def test_difference_intervals_cover_the_truth_on_new_seeds_and_new_examples() -> None:
    """Seeds shift each model, examples shift both: the interval must cover the true difference 95% of the time."""
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        easy = rng.normal(0, 0.2, 150)  # examples that are easy for both
        sides = []
        for mean in (0.6, 0.5):
            chance = np.clip(mean + easy + rng.normal(0, 0.03, 3)[:, None], 0, 1)
            sides.append(rng.random((3, 150)) < chance)
        a, b = sides
        half = stats.paired_half(a.astype(float) - b)
        found = stats.difference(a.mean(axis=1).tolist(), b.mean(axis=1).tolist(), half, 150)
        assert found.low is not None and found.high is not None
        covered += found.low <= 0.1 <= found.high
    assert 0.93 <= covered / 400 <= 1.0


def test_spread_ratio_is_the_f_test() -> None:
    a, b = [0.1, 0.2, 0.3], [0.5, 0.9, 0.1]
    found = stats.spread_ratio(a, b)
    assert found is not None and found.low is not None and found.high is not None
    ratio = statistics.variance(a) / statistics.variance(b)
    assert math.exp(2 * found.value) == pytest.approx(ratio)
    assert math.exp(2 * found.low) == pytest.approx(ratio / 39) and math.exp(2 * found.high) == pytest.approx(
        ratio * 39
    )
    assert stats.spread_ratio([0.1, 0.1], b) is None and stats.spread_ratio([0.1], b) is None
