"""Which client gets which phone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from phones import random_fleet
from scipy import stats

from fedarena.core.errors import BadInputError
from fedarena.fleet import Availability, Devices, Fleet


def uses(rows: np.ndarray, phones: int) -> np.ndarray:
    return np.bincount(rows, minlength=phones)


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 40), st.integers(0, 5))
def test_phones_are_used_equally_often(devices: int, availabilities: int, clients: int, seed: int) -> None:
    matched = random_fleet(devices, availabilities).match(np.arange(clients), None, seed)
    for rows, phones in ((matched.device_of, devices), (matched.availability_of, availabilities)):
        counts = uses(rows, phones)
        assert counts.sum() == clients
        assert counts.min() >= clients // phones
        assert counts.max() <= -(-clients // phones)
        assert rows.dtype == np.int32


def test_every_phone_is_drawn_equally_often() -> None:
    fleet = random_fleet(7)
    seen = np.zeros((3, 7))
    for seed in range(700):
        seen[np.arange(3), fleet.match(np.arange(3), None, seed).device_of] += 1
    assert stats.chisquare(seen.ravel()).pvalue > 1e-3


def test_only_given_clients_have_phones() -> None:
    matched = random_fleet(10).match(np.array([7, 2, 5]), None, seed=1)
    assert len(matched.device_of) == len(matched.availability_of) == 8
    for table in (matched.device_of, matched.availability_of):
        assert np.flatnonzero(table >= 0).tolist() == [2, 5, 7]
    for client in (0, -1, 8):
        with pytest.raises(IndexError):
            matched.is_available(np.array([client]), 0.0)


def test_neither_the_order_of_clients_nor_the_time_matters() -> None:
    fleet = random_fleet(10)
    clients, sizes = np.array([7, 2, 5, 1]), np.array([70, 20, 50, 10])
    order = np.argsort(clients)
    first = fleet.match(clients, sizes, 3, 0.5)
    second = fleet.match(clients[order], sizes[order], 3, 0.5)
    other = fleet.match(np.arange(100), None, 4)
    assert first.device_of.tolist() == second.device_of.tolist()
    assert first.availability_of.tolist() == second.availability_of.tolist()
    assert fleet.match(np.arange(100), None, 5).device_of.tolist() != other.device_of.tolist()


@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_devices_and_availabilities_are_independent_unless_paired(correlation: float) -> None:
    clients = np.arange(500)
    fleets = [random_fleet(500, paired=paired) for paired in (False, True)]
    apart, paired = (fleet.match(clients, clients, 0, correlation) for fleet in fleets)
    assert paired.device_of.tolist() == paired.availability_of.tolist()
    assert abs(stats.spearmanr(apart.device_of, apart.availability_of).statistic) < 0.15


def speeds_of(fleet: Fleet, clients: int, sizes: np.ndarray, seed: int, correlation: float) -> np.ndarray:
    matched = fleet.match(np.arange(clients), sizes, seed, correlation)
    return 1 / fleet.devices.seconds_per_sample[matched.device_of]


@pytest.mark.parametrize("phones", [300, 2000, 5000])
@pytest.mark.parametrize("correlation", [-1.0, -0.5, 0.0, 0.3, 0.6, 0.9, 1.0])
def test_rank_correlation(phones: int, correlation: float) -> None:
    clients = 2000
    sizes = np.random.default_rng(1).permutation(clients)
    fleet = random_fleet(phones)
    found = stats.spearmanr(sizes, speeds_of(fleet, clients, sizes, 3, correlation)).statistic
    # The rank correlation of two normal variables (Pearson, 1907).
    expected = 6 / np.pi * np.arcsin(correlation / 2)
    assert found == pytest.approx(expected, abs=0.06)
    matched = fleet.match(np.arange(clients), sizes, 3, correlation)
    assert uses(matched.device_of, phones).max() == -(-clients // phones)


@pytest.mark.parametrize("phones", [10, 40, 100])
def test_perfect_agreement(phones: int) -> None:
    """Up to ties, a client with more data never has a slower phone."""
    sizes = np.random.default_rng(0).integers(1, 15, size=40)
    fleet = random_fleet(phones)
    speeds = speeds_of(fleet, 40, sizes, 0, 1.0)
    for size in range(1, 15):
        assert speeds[sizes < size].max(initial=0) <= speeds[sizes >= size].min(initial=np.inf)
    slowest = speeds_of(fleet, 40, sizes, 0, -1.0)
    for size in range(1, 15):
        assert slowest[sizes < size].min(initial=np.inf) >= slowest[sizes >= size].max(initial=0)


def test_clients_of_equal_size_take_any_order() -> None:
    """With ties, phones must not follow the index of the client."""
    speeds = speeds_of(random_fleet(1000), 1000, np.ones(1000, dtype=np.int64), 0, 1.0)
    assert abs(stats.spearmanr(np.arange(1000), speeds).statistic) < 0.1


def devices_with(flops: list[float]) -> Fleet:
    count = len(flops)
    devices = Devices.from_columns(
        seconds_per_sample=np.arange(count) + 1.0,
        flops_per_second=flops,
        download_bits_per_second=np.ones(count),
        upload_bits_per_second=np.ones(count),
    )
    return Fleet("some", devices, Availability.always(count))


def test_known_operations_decide_who_is_fast() -> None:
    matched = devices_with([1.0, 4.0, 3.0]).match(np.arange(3), np.array([5, 6, 7]), 0, 1.0)
    assert matched.device_of.tolist() == [0, 2, 1]


def test_phones_that_cannot_be_compared() -> None:
    fleet = devices_with([1.0, np.nan, 3.0])
    fleet.match(np.arange(3), np.arange(3), 0, 0.0)
    with pytest.raises(BadInputError, match="needs phones that can be compared, but flops_per_second is known of some"):
        fleet.match(np.arange(3), np.arange(3), 0, 0.5)


@pytest.mark.parametrize("correlation", [-1.1, 1.5, float("nan")])
def test_bad_correlation(correlation: float) -> None:
    with pytest.raises(BadInputError, match="must be between -1 and 1"):
        random_fleet(3).match(np.arange(3), np.arange(3), 0, correlation)


def test_arguments_that_make_no_sense() -> None:
    fleet = random_fleet(3)
    with pytest.raises(ValueError, match="needs the size of every client's data"):
        fleet.match(np.arange(3), None, 0, 0.5)
    with pytest.raises(ValueError, match="needs the size of every client's data"):
        fleet.match(np.arange(3), np.arange(2), 0, 0.5)
    for clients in ([1, 1, 2], [-1, 2], [3, 1, 3]):
        with pytest.raises(ValueError, match="different and not negative"):
            fleet.match(np.array(clients), None, 0)


def test_questions_by_client() -> None:
    fleet = random_fleet(50)
    matched = fleet.match(np.arange(0, 200, 2), None, 0)
    clients = np.array([198, 0, 64, 64])
    rows = matched.availability_of[clients]
    times, later = np.array([0.0, 1e5, 3e5, 4e5]), np.array([1e5, 2e5, 4e5, 4e5])
    availability = fleet.availability
    for name in ("is_available", "next_available", "leaves_at"):
        np.testing.assert_array_equal(getattr(matched, name)(clients, times), getattr(availability, name)(rows, times))
    np.testing.assert_array_equal(
        matched.available_seconds(clients, times, later), availability.available_seconds(rows, times, later)
    )
    for leaving in ("abort", "pause"):
        np.testing.assert_array_equal(
            matched.finish_time(clients, times, 999.5, leaving), availability.finish_time(rows, times, 999.5, leaving)
        )
