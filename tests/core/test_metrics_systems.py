"""Systems metrics against examples computed by hand, plain loops, and laws."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedarena.metrics import (
    OUTCOMES,
    cost_to_level,
    count_outcomes,
    elapsed_hours,
    gini,
    lorenz_curve,
    round_levels,
    round_seconds,
    staleness_counts,
    summarize_participation,
    wasted_share,
)

COUNTS = st.lists(st.integers(0, 20), min_size=1, max_size=40).filter(any)


def taken(counts: list[int]) -> np.ndarray:
    return np.array([n for n in counts if n])


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([3, 3, 3, 3], 0.0),
        ([0, 0, 0, 8], 0.75),
        ([1, 3], 0.25),
        ([0, 1, 1, 2], 0.375),  # differences of all 16 ordered pairs sum to 12; 12 / (2 · 16 · 1)
    ],
)
def test_gini_by_hand(counts: list[int], expected: float) -> None:
    assert gini(taken(counts), len(counts)) == pytest.approx(expected, abs=1e-12)


@given(COUNTS)
def test_gini_is_half_the_mean_difference_of_two_clients(counts: list[int]) -> None:
    n, mean = len(counts), sum(counts) / len(counts)
    differences = sum(abs(a - b) for a, b in itertools.product(counts, counts))
    assert gini(taken(counts), n) == pytest.approx(differences / (2 * n * n * mean), abs=1e-12)


@given(COUNTS, st.integers(2, 9), st.integers(1, 30))
def test_gini_ignores_scale_and_order_and_grows_with_clients_never_invited(
    counts: list[int], factor: int, strangers: int
) -> None:
    found = gini(taken(counts), len(counts))
    assert gini(taken(counts)[::-1] * factor, len(counts)) == pytest.approx(found, abs=1e-12)
    assert 0 <= found + 1e-12 < 1
    assert gini(taken(counts), len(counts) + strangers) > found


def test_gini_of_nobody() -> None:
    assert math.isnan(gini(np.array([], dtype=np.int64), 5))


@given(COUNTS)
def test_the_area_above_the_lorenz_curve_is_the_gini_coefficient(counts: list[int]) -> None:
    shares = np.linspace(0, 1, len(counts) + 1)
    curve = lorenz_curve(taken(counts), len(counts), shares)
    area = sum((low + high) / 2 for low, high in itertools.pairwise(curve)) / len(counts)
    assert 1 - 2 * area == pytest.approx(gini(taken(counts), len(counts)), abs=1e-9)
    plain = [sum(sorted(counts)[:k]) / sum(counts) for k in range(len(counts) + 1)]
    assert curve == pytest.approx(plain)


def test_participation_counts_everybody_who_could_have_been_invited() -> None:
    jobs = np.array([7, 2, 7, 900_000])
    used = np.array([False, True, False, True])
    assert summarize_participation(jobs, used, 8) == {
        "clients": 8,
        "invited_clients": 3,
        "gini": pytest.approx((6 * 1 + 7 * 1 + 8 * 2) * 2 / (8 * 4) - 9 / 8),
        "never_invited_share": 5 / 8,
        "used_clients": 2,
        "never_used_share": 6 / 8,
    }
    nobody = summarize_participation(jobs[:0], used[:0], 8)
    assert (nobody["gini"], nobody["never_invited_share"]) == (None, 1)


def test_time_to_accuracy_is_that_of_the_first_evaluation_that_is_good_enough() -> None:
    hours = elapsed_hours(np.array([3600.0, 5400.0, 7200.0, 14400.0, 18000.0]))
    assert hours.tolist() == [0, 0.5, 1, 3, 4]
    accuracy = np.array([0.1, np.nan, 0.4, 0.3, 0.5])  # the second round was not evaluated
    assert cost_to_level(accuracy, hours, 0.1) == 0
    assert cost_to_level(accuracy, hours, 0.2) == 1, "nothing is interpolated"
    assert cost_to_level(accuracy, hours, 0.4) == 1
    assert cost_to_level(accuracy, hours, 0.41) == 4
    assert cost_to_level(accuracy, hours, 0.51) is None
    assert round_seconds(np.array([3600.0, 5400.0, 7200.0])).tolist() == [1800, 1800]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.floats(0, 1), st.floats(0, 1))
def test_a_higher_level_never_costs_less(scores: list[float], one: float, other: float) -> None:
    spent = np.arange(len(scores), dtype=np.float64)
    low, high = (cost_to_level(np.array(scores), spent, level) for level in sorted((one, other)))
    assert high is None or (low is not None and low <= high)


@pytest.mark.parametrize(
    ("low", "high", "levels"),
    [
        (0.18, 0.95, [0.6, 0.7, 0.8, 0.9]),
        (0.18, 0.33, [0.2, 0.25, 0.3]),
        (0.4, 0.6, [0.45, 0.5, 0.55, 0.6]),
        (0.5, 0.501, []),
        (0.5, 0.2, []),
    ],
)
def test_levels_are_round_numbers(low: float, high: float, levels: list[float]) -> None:
    assert round_levels(low, high) == levels


@given(st.floats(0, 1), st.floats(0, 1))
def test_levels_of_shares_are_those_of_fixed_steps(start: float, best: float) -> None:
    def of_steps() -> list[float]:
        for step in (0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001):
            first, last = math.floor(round(start / step, 9)) + 1, math.floor(round(best / step, 9))
            if last - first >= 2:
                return [round(index * step, 3) for index in range(max(first, last - 3), last + 1)]
        return []

    assert round_levels(start, best) == of_steps()


@pytest.mark.parametrize(
    ("start", "best", "levels"),
    [
        (5000, 2900, [4500, 4000, 3500, 3000]),
        (4.61, 1.9, [4, 3, 2]),
        (3000, 2999, []),
        (2900, 5000, []),  # it never got better
        (0, 0, []),
        (math.inf, 3, []),
        (0.3, -0.2, [0.1, 0, -0.1, -0.2]),
    ],
)
def test_levels_of_what_should_be_low_fall(start: float, best: float, levels: list[float]) -> None:
    assert round_levels(start, best, higher_is_better=False, span=None) == levels


VALUES = st.floats(-1e6, 1e6).map(lambda value: round(value, 6))


@given(VALUES, VALUES, st.booleans())
def test_levels_lie_between_start_and_best_and_the_best_is_last(start: float, best: float, higher: bool) -> None:
    levels = round_levels(start, best, higher, span=None)
    sign = 1 if higher else -1
    signed = [sign * level for level in levels]
    assert signed == sorted(set(signed))
    slack = 1e-8 * max(abs(start), abs(best))
    assert all(sign * start - slack < level <= sign * best + slack for level in signed)
    assert len(levels) in (0, 3, 4)
    if sign * (best - start) > 0.01 * max(abs(start), abs(best)):
        assert levels


def test_time_to_a_level_from_above() -> None:
    error, hours = np.array([9.0, np.nan, 4.0, 5.0, 1.0]), np.arange(5.0)
    assert [cost_to_level(error, hours, level, higher_is_better=False) for level in (9, 6, 4, 3.9, 1, 0.5)] == [
        *(0, 2, 2, 4, 4),
        None,
    ]


def test_outcomes_are_counted_in_their_order() -> None:
    names = ["crashed", "used", "eaten by a dog", "late"]
    codes = np.array([1, 1, 3, 0, 1, 2, 3])
    assert list(count_outcomes(names, codes).items()) == [
        ("used", 3),
        ("late", 2),
        ("crashed", 1),
        ("eaten by a dog", 1),
    ]
    assert count_outcomes([], np.array([], dtype=np.int64)) == {}
    assert set(count_outcomes(OUTCOMES, np.arange(len(OUTCOMES)))) == set(OUTCOMES)


def test_wasted_work_by_hand() -> None:
    seconds = np.array([30.0, 25, 40, 0])
    used = np.array([True, False, False, False])
    assert wasted_share(seconds, used) == pytest.approx(65 / 95)
    assert wasted_share(np.array([np.nan, 1, np.nan, 3]), used) == 1
    assert wasted_share(np.zeros(4), used) == 0
    assert wasted_share(seconds, ~used) == pytest.approx(1 - wasted_share(seconds, used))


def test_staleness_is_that_of_used_updates() -> None:
    staleness, used = np.array([0, 3, 1, 1, 9]), np.array([True, True, True, True, False])
    assert staleness_counts(staleness, used).tolist() == [1, 2, 0, 1]
