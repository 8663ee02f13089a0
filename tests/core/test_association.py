"""Coefficients of correlation and their bootstrap intervals."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedarena.analysis.association import Association, associate, pearson, spearman
from fedarena.core import streams

NUMBERS = st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=3, max_size=30)


@settings(max_examples=200, deadline=None)
@given(NUMBERS)
def test_coefficients_are_those_of_their_definitions(points: list[tuple[int, int]]) -> None:
    x, y = np.array(points, dtype=float).T
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert np.isnan(pearson(x, y))
        assert np.isnan(spearman(x, y))
    else:
        assert pearson(x, y) == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-12)
        assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)


def test_rounding_is_no_variation() -> None:
    assert np.isnan(pearson(np.array([0.3, 0.1 + 0.2, 0.3]), np.array([1.0, 2.0, 3.0])))


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    truth, covered = 0.8, 0
    for seed in range(60):
        random = np.random.default_rng(seed)
        x = random.standard_normal(40)
        y = truth * x + np.sqrt(1 - truth**2) * random.standard_normal(40)
        found = associate(pearson, x, y, seed, resamples=200)
        assert found is not None
        assert found.interval is not None
        low, high = found.interval
        assert low < found.value < high
        covered += low <= truth <= high
    assert 49 <= covered <= 60


def test_draws_that_do_not_vary_say_nothing() -> None:
    """One point differs, and every third draw is without it: the interval comes from the others."""
    x = np.array([0.0] * 8 + [1.0])
    y = np.array([1.0, 2, 3, 4, 5, 6, 7, 8, 12])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = associate(pearson, x, y, seed=3, resamples=400)
    rows = streams.generator(3, "bootstrap").integers(9, size=(400, 9))
    drawn = [stats.pearsonr(x[row], y[row]).statistic for row in rows if 8 in row and set(row) != {8}]
    assert 200 < len(drawn) < 300
    assert found is not None
    assert found.interval == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])))


def test_the_same_seed_gives_the_same_interval() -> None:
    x, y = np.arange(9.0), np.array([1.0, 3, 2, 5, 4, 4, 8, 6, 9])
    assert associate(spearman, x, y, 1) == associate(spearman, x, y, 1) != associate(spearman, x, y, 2)


@pytest.mark.parametrize("x", [[1.0, 2.0], [2.0, 2.0, 2.0], []])
def test_too_little_to_say_is_none(x: list[float]) -> None:
    y = np.arange(len(x), dtype=float)
    assert associate(pearson, np.array(x), y, seed=0) is None


def test_few_points_have_a_coefficient_but_no_interval() -> None:
    x = np.arange(8.0)
    assert associate(pearson, x[:7], x[:7] ** 2, seed=0) == Association(pearson(x[:7], x[:7] ** 2), None)
    found = associate(pearson, x, x**2, seed=0)
    assert found is not None
    assert found.interval is not None
