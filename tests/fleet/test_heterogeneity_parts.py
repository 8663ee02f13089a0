"""Parts of the heterogeneity metrics: the index of availability, times that everybody takes, estimates, dispersion."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from phones import random_availability, random_fleet
from scipy import stats

from fedarena.fleet import Availability, Devices, Ragged
from fedarena.fleet.heterogeneity import (
    CODE_OPTIONS,
    PAPER_OPTIONS,
    DeviceSpread,
    Estimate,
    HeterogeneityOptions,
    StateSpread,
)
from fedarena.fleet.heterogeneity.availability_index import AvailabilityIndex
from fedarena.fleet.heterogeneity.costs import DeviceCosts
from fedarena.fleet.heterogeneity.invitations import Invitations
from fedarena.fleet.heterogeneity.populations import AlwaysAvailable, RoundStarts
from fedarena.fleet.heterogeneity.random_choices import KeyedChoices, PublishedChoices
from fedarena.fleet.heterogeneity.spread import gini


@pytest.mark.parametrize("seed", range(4))
def test_the_index_answers_like_the_availability(seed: int) -> None:
    availability = random_availability(40, seed)
    index, random = AvailabilityIndex(availability), np.random.default_rng(seed)
    clients = random.integers(40, size=3000)
    times = np.where(random.random(3000) < 0.5, random.integers(500_000, size=3000), random.uniform(0, 5e5, size=3000))
    work = np.where(
        random.random(3000) < 0.5, random.integers(1, 200_000, size=3000), random.uniform(1, 1e5, size=3000)
    )
    there = availability.is_available(clients, times)
    inside, slots = index.find(clients, times)
    np.testing.assert_array_equal(inside, there)
    np.testing.assert_array_equal(index.are_available(clients, times), there)
    np.testing.assert_allclose(
        index.finish(clients[there], slots.take(there), times[there], work[there]),
        availability.finish_time(clients[there], times[there], work[there], leaving="pause"),
        rtol=1e-12,
    )
    assert (slots.begins[there] <= times[there]).all()
    assert (times[there] < slots.ends[there]).all()
    without_always = AvailabilityIndex(availability.take(np.arange(39)))
    for time in times[:50]:
        assert without_always.earliest(time) == availability.next_available(np.arange(39), time).min()


@given(
    st.lists(st.tuples(st.integers(2, 60), st.integers(0, 59), st.integers(1, 10)), min_size=1, max_size=4),
    st.sampled_from([1.0, 7.0, 12.0, 20.0, 2.5, 4.25, 30.0]),
    st.sampled_from([0.0, 3.0, 5.5, 17.25]),
    st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_whether_anybody_is_ever_met(
    slots: list[tuple[int, int, int]], step: float, time: float, rounded_up: bool
) -> None:
    periods = [period for period, _, _ in slots]
    starts = [start % period for period, start, _ in slots]
    ends = [min(start + length, period) for start, (period, _, length) in zip(starts, slots, strict=True)]
    availability = Availability.from_intervals(np.arange(len(slots)), starts, ends, periods)
    # After 4 * period steps of a quarter of a whole number, positions have repeated.
    reached = []
    for row, period in enumerate(periods):
        moments = time + step * np.arange(1, 4 * period + 1)
        reached.append(availability.is_available(row, np.ceil(moments) if rounded_up else moments).any())
    assert AvailabilityIndex(availability, whole_seconds=rounded_up).ever_met(time, step) == any(reached)


def test_whether_anybody_is_ever_met_depends_on_the_start_of_its_trace() -> None:
    """Rounds are every ten seconds from 4.5: rounded up they meet second 5 of each hundred, rounded down second 4."""
    for second, before, after in ((5, True, False), (4, True, True), (6, False, False)):
        availability = Availability.from_intervals([0], [second], [second + 1], [100])
        starting = AvailabilityIndex(replace(availability, trace_starts=np.array([1_000])), whole_seconds=True)
        assert starting.ever_met(4.5, 10.0) == before
        assert starting.ever_met(1_004.5, 10.0) == after
        times = np.array([4.5, 104.5, 1_004.5])
        there = starting.are_available(
            np.zeros(3, dtype=np.int64), starting.client_times(np.zeros(3, dtype=int), times)
        )
        assert there.tolist() == [second == 5, second == 5, second == 4]


def test_times_that_everybody_takes() -> None:
    np.testing.assert_array_equal(CODE_OPTIONS.deadline_costs(0), np.arange(10, 121, 10))
    np.testing.assert_array_equal(CODE_OPTIONS.readiness_costs(3), np.arange(0, 241, 10))
    drawn = np.stack([PAPER_OPTIONS.deadline_costs(repetition) for repetition in range(200)])
    np.testing.assert_array_equal(np.floor(drawn / 10), np.tile(np.arange(12), (200, 1)))  # one from each twelfth
    assert stats.kstest(drawn.ravel() / 120, "uniform").pvalue > 0.01
    assert HeterogeneityOptions(deadline_cost_step_seconds=50.0).deadline_costs(0).tolist() == [50, 100]
    fine = HeterogeneityOptions(deadline_seconds=1.2, deadline_cost_step_seconds=0.1).deadline_costs(0)
    assert (len(fine), fine[-1]) == (12, 1.2)


def test_estimates_have_students_intervals() -> None:
    values = np.array([3.0, 4.5, 4.0, 8.0])
    estimate = Estimate.of(values, confidence=0.9)
    low, high = stats.t.interval(0.9, 3, loc=values.mean(), scale=stats.sem(values))
    assert (estimate.mean, estimate.low, estimate.high) == pytest.approx((values.mean(), low, high))
    single = Estimate.of(np.array([2.0]), confidence=0.9)
    assert (single.mean, math.isnan(single.low), math.isnan(single.high)) == (2.0, True, True)
    assert Estimate.of(np.array([1.0, np.inf]), confidence=0.9).never


def test_dispersion_of_devices_is_that_of_all_their_transfers() -> None:
    down, up = [[1e6, 2e6], [4e6], [8e6, 8e6, 1e6]], [[2e6], [1e6, 5e6], [4e6, 3e6]]
    devices = Devices.from_columns(
        seconds_per_sample=[1.0, 2.0, 0.0],
        measured_download=Ragged.from_lists(down),
        measured_upload=Ragged.from_lists(up),
    )
    options = HeterogeneityOptions(model_bytes=1_000_000, samples=2)
    every = [
        [8e6 / d + 8e6 / u + 2 * compute for d in download for u in upload]
        for download, upload, compute in zip(down, up, (1.0, 2.0, 0.0), strict=True)
    ]
    means, variances = np.array([np.mean(times) for times in every]), np.array([np.var(times) for times in every])
    spread = DeviceSpread.of(DeviceCosts(devices, options), deadline_seconds=10.0)
    low, high = np.percentile(means, (10, 90))
    assert spread.mean_seconds == pytest.approx(means.mean())
    assert spread.to_deadline == pytest.approx(means.mean() / 10)
    assert spread.variation == pytest.approx(means.std() / means.mean())
    assert spread.p90_to_p10 == pytest.approx(high / low)
    assert spread.variation_within == pytest.approx(math.sqrt(variances.mean()) / means.mean())


def test_dispersion_of_states() -> None:
    values = np.random.default_rng(0).exponential(size=50)
    assert gini(values) == pytest.approx(np.abs(values[:, None] - values).mean() / (2 * values.mean()))
    spread = StateSpread.of(np.array([0.0, 0.5, 1.0, 0.5]), np.array([0.0, 1.0, 1.0, 1.0]))
    assert spread == StateSpread(0.5, 0.375, 0.25, 0.75, 0.25)


@pytest.mark.parametrize("ratio", [0.0, 1000.0], ids=["drawn", "listed"])
def test_everybody_is_invited_with_the_same_chance(ratio: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AlwaysAvailable, "drawing_ratio", ratio)
    invitations = Invitations(AlwaysAvailable(12), KeyedChoices(0), cohort=5, seed=0)
    rounds = np.arange(4000)
    invited = invitations.invite(RoundStarts(np.zeros(4000, dtype=np.int64), rounds, np.zeros(4000)))
    pairs = np.zeros((4000, 12), dtype=np.int64)
    pairs[invited.rows, invited.clients] += 1
    assert (pairs.sum(axis=1) == 5).all()
    together = (pairs.T @ pairs)[np.triu_indices(12, 1)]
    expected = 4000 * (5 * 4) / (12 * 11)
    # Pairs of clients are not independent of each other, but nearly.
    assert ((together - expected) ** 2 / (expected * (1 - 20 / 132))).sum() < stats.chi2.ppf(0.999, 66)


def test_published_random_numbers_come_from_one_generator_in_order() -> None:
    fleet = random_fleet(8)
    costs = DeviceCosts(fleet.devices, CODE_OPTIONS)
    chosen, down, up = PublishedChoices(7).choose_for_rounds(2_000_003, 3, 8, 4, costs.lists)
    generator = np.random.default_rng(9)
    for round in range(3):
        expected = generator.choice(8, 4, replace=False)
        np.testing.assert_array_equal(chosen[4 * round : 4 * round + 4], expected)
        for place, client in enumerate(expected, start=4 * round):
            # One download speed to choose from takes no random number; there are three upload speeds.
            assert (down[place], up[place]) == (0, generator.choice(3))
            assert costs.lists[client].tolist() == [1, 3]
