"""Intervals and quantiles against tables, definitions and simulation."""

import math
import statistics
from itertools import permutations

import numpy as np
import pytest

from ponder.base import stats


def test_quantiles_are_those_of_the_tables() -> None:
    for freedom, t in ((1, 12.7062), (2, 4.30265), (3, 3.18245), (9, 2.26216), (30, 2.04227), (1000, 1.96234)):
        assert stats.t_quantile(0.975, freedom) == pytest.approx(t, rel=1e-5)
        assert stats.t_tail(t, freedom) == pytest.approx(0.025, rel=1e-4)
        assert stats.t_tail(-t, freedom) == pytest.approx(0.975, rel=1e-4)
    assert stats.t_quantile(0.8, 4) == pytest.approx(0.940965, rel=1e-5)
    assert stats.t_quantile(0.975, math.inf) == pytest.approx(1.959964, rel=1e-6)
    assert stats.t_tail(1.644854, math.inf) == pytest.approx(0.05, rel=1e-5)
    for p, a, b, f in ((0.95, 3, 7, 4.34683), (0.975, 2, 2, 39.0), (0.025, 2, 2, 1 / 39), (0.95, 10, 20, 2.34788)):
        assert stats.f_quantile(p, a, b) == pytest.approx(f, rel=1e-5)
        assert stats.f_share(f, a, b) == pytest.approx(p, rel=1e-5)


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


def test_blocks_are_the_residuals_of_the_two_way_layout() -> None:
    """Against the least-squares fit of variants and seeds as dummies, and for two variants against the paired t."""
    table = np.random.default_rng(1).normal(size=(4, 5))
    design = [[float(i == v) for i in range(4)] + [float(j == s) for j in range(5)] for v in range(4) for s in range(5)]
    fit = np.linalg.lstsq(np.array(design), table.reshape(-1), rcond=None)[0]
    left = table.reshape(-1) - np.array(design) @ fit
    pool = stats.blocks(table.tolist())
    assert pool is not None and (pool.freedom, pool.variants) == (12, 4)
    assert pool.variance == pytest.approx(2 * (left**2).sum() / 12)
    a, b = table[0].tolist(), table[1].tolist()
    own, two = statistics.variance(x - y for x, y in zip(a, b, strict=True)), stats.blocks([a, b])
    assert two is not None and two.variance == pytest.approx(own) and two.freedom == 4
    same = stats.within(table.tolist())
    assert same is not None and same.freedom == 16
    assert same.variance == pytest.approx(statistics.mean(statistics.variance(row) for row in table.tolist()))
    assert stats.blocks([[1.0, 2.0]]) is None and stats.within([[1.0], [2.0]]) is None


def drawn(rng: np.random.Generator, means: list[float], sds: list[float], seeds: int = 3) -> list[list[float]]:
    """[variants, seeds] with a common part of each seed."""
    noise = rng.normal(size=(len(means), seeds)) * np.array(sds)[:, None]
    return (np.array(means)[:, None] + rng.normal(0, 0.1, seeds) + noise).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("sds", [[0.02] * 6, [0.08, 0.02, 0.02, 0.02, 0.02, 0.02]])
def test_pooled_differences_keep_their_level_and_see_what_they_say_they_see(sds: list[float]) -> None:
    """Simulated studies of six variants and three seeds, also where one variant spreads four times as much."""
    rng, wrong, seen, rounds = np.random.default_rng(2), 0, 0, 1500
    visible = []
    for _ in range(rounds):
        table = drawn(rng, [0.5] * 6, sds)
        found = stats.difference(table[0], table[1], None, None, pool=stats.blocks(table))
        wrong += found.above(0.0) <= stats.LEVEL
        visible.append(found.visible() or math.nan)
        assert (found.low is not None and found.low > 0) == (found.above(0.0) <= stats.LEVEL)
    # 3.5 standard errors of a share of 2.5% in 1500 rounds. Unequal spreads cost some of the level, not all of it.
    allowed = 0.025 + 3.5 * math.sqrt(0.025 * 0.975 / rounds)
    assert wrong / rounds <= (allowed if len(set(sds)) == 1 else 0.05)
    if len(set(sds)) == 1:
        gap = statistics.median(visible)
        for _ in range(rounds):
            table = drawn(rng, [0.5 + gap, *[0.5] * 5], sds)
            found = stats.difference(table[0], table[1], None, None, pool=stats.blocks(table))
            seen += found.above(0.0) <= stats.LEVEL
        assert 0.75 <= seen / rounds <= 0.95  # on the safe side, as the level is


def test_a_pool_counts_where_it_is_larger_and_doubles_the_freedom_at_most() -> None:
    loud = stats.difference([0.1, 0.5, 0.9], [0.2, 0.2, 0.3], None, None, pool=stats.Pool(1e-6, 20, 6))
    assert loud.error == pytest.approx(statistics.stdev([-0.1, 0.3, 0.6]) / math.sqrt(3)) and loud.freedom == 4
    calm = stats.difference([0.101, 0.1, 0.1], [0.1, 0.1, 0.1], None, None, pool=stats.Pool(0.03, 3, 6))
    assert calm.error == pytest.approx(0.1) and calm.freedom == 3 and calm.pooled == 6
    two = [[0.1, 0.5, 0.9], [0.2, 0.2, 0.3]]
    assert stats.difference(two[0], two[1], None, None, pool=stats.blocks(two)).freedom == 2


def test_examples_and_seeds_add_up_as_satterthwaite_has_it() -> None:
    found = stats.difference([0.1, 0.2, 0.3], [0.0, 0.0, 0.0], 0.05 * 1.959964, None)
    of_seeds = 0.1 / math.sqrt(3)
    assert found.error == pytest.approx(math.hypot(of_seeds, 0.05))
    assert found.freedom == pytest.approx(2 * (math.hypot(of_seeds, 0.05) / of_seeds) ** 4)


def test_a_family_is_corrected_by_holm() -> None:
    """His own example's arithmetic: the smallest times n, the next times n - 1, never falling."""
    assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert stats.holm([0.9, 0.8]) == [1.0, 1.0] and stats.holm([]) == []


def test_equivalence_is_shown_as_often_as_the_visible_margin_says() -> None:
    rng, shown, rounds = np.random.default_rng(3), 0, 1500
    margin = 0.02 * math.sqrt(2 / 5) * (stats.t_quantile(0.975, 4) + stats.t_quantile(0.9, 4))
    for _ in range(rounds):
        a, b = drawn(rng, [0.5, 0.5], [0.02, 0.02], 5)
        found = stats.difference(a, b, None, None)
        shown += max(found.above(-margin), found.below(margin)) <= stats.LEVEL
    assert 0.72 <= shown / rounds <= 0.86
    ratio = stats.spread_ratio([0.1, 0.2, 0.3], [0.5, 0.9, 0.1])
    assert ratio is not None and ratio.visible() == pytest.approx(0.5 * math.log(39 / 0.25))  # F(2, 2) is p / (1 - p)
    assert ratio.above(0) + ratio.below(0) == pytest.approx(1) and ratio.below(ratio.high or 0) == pytest.approx(0.025)


def by_the_book(x: list[float], y: list[float]) -> float:
    """Spearman's correlation: Pearson's, of places counted one by one."""

    def places(values: list[float]) -> list[float]:
        return [sum(w < v for w in values) + (1 + sum(w == v for w in values)) / 2 for v in values]

    return statistics.correlation(places(x), places(y))


def flat(table: list[list[float]]) -> list[float]:
    return [value for row in table for value in row]


@pytest.mark.parametrize("variants", [3, 5])
def test_rank_correlation_and_its_chance_against_every_exchange_of_variants(variants: int) -> None:
    rng = np.random.default_rng(variants)
    for _ in range(5):
        x, y = (rng.integers(6, size=(variants, 2)).astype(float).tolist() for _ in range(2))  # with ties
        found = stats.rank_correlation(x, y)
        assert found is not None and found.value == pytest.approx(by_the_book(flat(x), flat(y)))
        every = [by_the_book(flat(x), flat([y[v] for v in order])) for order in permutations(range(variants))]
        above, below = (sum(sign * each >= sign * found.value - 1e-9 for each in every) for sign in (1, -1))
        assert found.above(0) == pytest.approx(above / len(every)) and found.below(0) == below / len(every)
        assert found.seeds == 2 and found.low is not None and found.high is not None
        assert -1 <= found.low <= found.high <= 1
    assert stats.rank_correlation([[1, 2], [3, 4], [5, 6]], [[1, 1], [1, 1], [1, 1]]) is None
    assert stats.rank_correlation([[1, 2], [3, 4]], [[1, 2], [3, 4]]) is None


def test_variants_are_the_points_of_a_rank_correlation_not_trainings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where recipes differ and seeds hardly do, recipes that have nothing to do with each other correlate by chance as
    often as the p-value says; with every training as a point of its own they would far more often."""
    monkeypatch.setattr(stats, "DRAWS", 200)  # fewer than 6!, so that exchanges are drawn
    monkeypatch.setattr(stats, "SAMPLES", 20)
    rng, tries, found, naive = np.random.default_rng(0), 300, 0, 0
    for _ in range(tries):
        x, y = (rng.normal(size=(6, 1)) + 0.1 * rng.normal(size=(6, 4)) for _ in range(2))
        made = stats.rank_correlation(x.tolist(), y.tolist())
        assert made is not None
        found += min(made.above(0), made.below(0)) <= 0.025
        t = abs(made.value) * math.sqrt(22 / (1 - made.value**2))
        naive += stats.t_tail(t, 22) <= 0.025
    assert found / tries < 0.05 + 3 * math.sqrt(0.05 * 0.95 / tries) and naive / tries > 0.25
    rising = np.arange(12.0)[:, None] + 0.1 * rng.normal(size=(12, 3))
    strong = stats.rank_correlation(rising.tolist(), (-rising).tolist())
    assert strong is not None and strong.value == -1 and strong.below(0) == 1 / 201 and strong.above(0) == 1
    assert (strong.low, strong.high) == (-1, -1)
