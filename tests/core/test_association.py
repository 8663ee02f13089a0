"""Coefficients of correlation and their bootstrap intervals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedarena.metrics.association import associate, pearson, spearman

NUMBERS = st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=3, max_size=30)


@settings(max_examples=200, deadline=None)
@given(NUMBERS)
def test_coefficients_are_scipys(points: list[tuple[int, int]]) -> None:
    x, y = np.array(points, dtype=float).T
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert np.isnan(pearson(x, y))
        assert np.isnan(spearman(x, y))
    else:
        assert pearson(x, y) == pytest.approx(stats.pearsonr(x, y).statistic, abs=1e-9)
        assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-9)


def test_rounding_is_no_variation() -> None:
    assert np.isnan(pearson(np.array([0.3, 0.1 + 0.2, 0.3]), np.array([1.0, 2.0, 3.0])))


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    truth, covered = 0.8, 0
    for seed in range(60):
        random = np.random.default_rng(seed)
        x = random.standard_normal(40)
        y = truth * x + np.sqrt(1 - truth**2) * random.standard_normal(40)
        found = associate(pearson, x, y, [str(i) for i in range(40)], seed, resamples=200)
        assert found is not None
        assert found.low < found.value < found.high
        covered += found.low <= truth <= found.high
    assert 49 <= covered <= 60


def test_points_of_a_group_are_drawn_together() -> None:
    """The same point many times over is no more certain."""
    random = np.random.default_rng(3)
    x = random.standard_normal(8)
    y = x + random.standard_normal(8)
    names = [str(i) for i in range(8)]
    once = associate(pearson, x, y, names, seed=0)
    again = associate(pearson, np.repeat(x, 10), np.repeat(y, 10), np.repeat(names, 10).tolist(), seed=0)
    assert once is not None
    assert again is not None
    assert (again.low, again.high) == pytest.approx((once.low, once.high))
    apart = associate(pearson, np.repeat(x, 10), np.repeat(y, 10), [str(i) for i in range(80)], seed=0)
    assert apart is not None
    assert apart.high - apart.low < 0.6 * (once.high - once.low)


def test_the_same_seed_gives_the_same_interval() -> None:
    x, y = np.arange(9.0), np.array([1.0, 3, 2, 5, 4, 4, 8, 6, 9])
    names = [str(i) for i in range(9)]
    assert (
        associate(spearman, x, y, names, 1)
        == associate(spearman, x, y, names, 1)
        != associate(spearman, x, y, names, 2)
    )


@pytest.mark.parametrize("x", [[1.0, 2.0], [2.0, 2.0, 2.0], []])
def test_too_little_to_say_is_none(x: list[float]) -> None:
    y = np.arange(len(x), dtype=float)
    assert associate(pearson, np.array(x), y, ["a"] * len(x), seed=0) is None


def test_one_group_has_no_interval_but_its_own_value() -> None:
    found = associate(pearson, np.array([1.0, 2, 3]), np.array([1.0, 2, 4]), ["a", "a", "a"], seed=0)
    assert found is not None
    assert found.low == found.value == found.high
