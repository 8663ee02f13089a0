from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from brute_force import PlainPhone
from hypothesis import given, settings
from hypothesis import strategies as st
from phones import random_fleet

from fedarena.fleet import Availability, Devices, Fleet, describe_fleet
from fedarena.fleet.statistics import slots

HOUR = 3600


def ideal_devices(phones: int) -> Devices:
    return Devices.from_columns(
        seconds_per_sample=np.zeros(phones),
        download_bits_per_second=np.full(phones, np.inf),
        upload_bits_per_second=np.full(phones, np.inf),
    )


def describe(fleet: Fleet, clients: int, seed: int = 0) -> dict[str, Any]:
    everybody = np.arange(clients)
    found = describe_fleet(fleet.match(everybody, None, seed), everybody, seed)
    assert json.loads(json.dumps(found, allow_nan=False)) == found  # plain JSON
    return found


def test_a_few_phones_by_hand() -> None:
    """One phone that never leaves, one never there, one at night from 22 to 6 o'clock, one twice in two days."""
    availability = Availability.from_intervals(
        rows=[0, 2, 2, 3, 3],
        starts=[0, 0, 22 * HOUR, 10 * HOUR, 34 * HOUR],
        ends=[24 * HOUR, 6 * HOUR, 24 * HOUR, 11 * HOUR, 36 * HOUR],
        periods=[24 * HOUR, 24 * HOUR, 24 * HOUR, 48 * HOUR],
    )
    found = describe(Fleet("four", ideal_devices(4), availability, paired=True), 4)
    assert (found["name"], found["clients"], found["sampled_clients"]) == ("four", 4, 4)
    assert found["phones"] == {"devices": 4, "availabilities": 4, "paired": True}
    assert found["shares"]["mean"] == pytest.approx((1 + 0 + 1 / 3 + 3 / 48) / 4, abs=1e-5)
    slots = found["slots"]
    assert (slots["never_available_share"], slots["always_available_share"]) == (0.25, 0.25)
    assert slots["per_day"]["mean"] == 0.5  # once a day, twice in two days, and two that do not come and go
    assert slots["seconds"]["mean"] == pytest.approx((8 + 1 + 2) * HOUR / 3)
    assert slots["seconds"]["percentiles"]["50"] == 2 * HOUR
    assert slots["histogram"]["edges_seconds"] == [2**power for power in range(16)]
    assert slots["histogram"]["counts"] == [0] * 11 + [1, 1, 0, 1]  # 3600, 7200 and 28,800 seconds
    week = found["week"]
    assert week["step_seconds"] == 900
    assert len(week["shares"]) == 7 * 96
    # From 10 to 11 o'clock the last phone is there every day, from 11 to 12 every other day, so in half of the weeks.
    hours = [0.5] * 6 + [0.25] * 4 + [0.5, 0.375] + [0.25] * 10 + [0.5] * 2
    assert week["shares"] == [share for hour in hours for share in [hour] * 4] * 7
    assert found["speeds"]["seconds_per_sample"] == [0.0] * 4
    assert found["speeds"]["download_bits_per_second"] == [None] * 4  # without limit
    assert "flops_per_second" not in found["speeds"]


def alike(begin: int, end: int, period: int, phones: int) -> Fleet:
    row = np.arange(phones)
    availability = Availability.from_intervals(row, row * 0 + begin, row * 0 + end, row * 0 + period)
    return Fleet("alike", ideal_devices(phones), availability, paired=True)


def test_phones_that_come_at_round_times_are_not_always_there() -> None:
    """Ten minutes of every quarter of an hour: whoever asks at the full quarter sees them every time."""
    shares = describe(alike(0, 600, 900, 200), 200)["week"]["shares"]
    assert shares == pytest.approx([2 / 3] * 7 * 96, abs=0.07)
    assert np.mean(shares) == pytest.approx(2 / 3, abs=0.002)


@pytest.mark.parametrize("phones", [3, 2_500, 10_000])  # asked in every week, in some, in one
def test_the_first_week_is_one_of_several(phones: int) -> None:
    week = 7 * 24 * HOUR
    found = describe(alike(week, 2 * week, 2 * week, phones), phones)["week"]
    assert found["weeks"] == 8
    assert found["shares"] == pytest.approx([0.5] * 7 * 96, abs=0 if phones == 3 else 0.04)


def test_the_week_is_that_of_exact_sums() -> None:
    fleet = random_fleet(100)
    quarters = np.arange(8 * 7 * 96)[:, None] * 900.0
    seconds = fleet.availability.available_seconds(np.arange(100), quarters, quarters + 900)
    expected = seconds.mean(axis=1).reshape(8, -1).mean(axis=0) / 900
    found = np.array(describe(Fleet("same", fleet.devices, fleet.availability, paired=True), 100)["week"]["shares"])
    # 800 questions in every quarter of an hour
    assert np.abs(found - expected).max() < 5 * 0.5 / np.sqrt(800)
    assert (found - expected).mean() == pytest.approx(0, abs=0.003)


def test_speeds_belong_to_the_same_client() -> None:
    fleet = random_fleet(50)
    speeds = describe(fleet, 30)["speeds"]
    devices = fleet.match(np.arange(30), None, 0).device_of
    assert speeds["clients"] == 30
    for column in ("seconds_per_sample", "download_bits_per_second", "upload_bits_per_second"):
        np.testing.assert_allclose(speeds[column], getattr(fleet.devices, column)[devices], rtol=1e-4)


@settings(deadline=None)
@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=12), min_size=1, max_size=4))
def test_slots_are_uninterrupted_availabilities(patterns: list[list[bool]]) -> None:
    phones = [PlainPhone(pattern) for pattern in patterns]
    intervals = [(row, *run) for row, phone in enumerate(phones) for run in phone.runs]
    rows, starts, ends = (np.array([interval[i] for interval in intervals], dtype=np.int64) for i in range(3))
    found = slots(Availability.from_intervals(rows, starts, ends, [phone.period for phone in phones]))
    expected = []
    for row, phone in enumerate(phones):
        for second in range(phone.period):  # slots that begin in the second period
            begin = phone.period + second
            if phone.is_available(begin) and not phone.is_available(begin - 1):
                expected.append((row, phone.leaves_at(begin) - begin))
    assert all(math.isfinite(length) for _, length in expected)
    assert sorted(zip(found[0].tolist(), found[1].tolist(), strict=True)) == sorted(expected)


def test_nobody_leaves_and_nobody_comes() -> None:
    for availability, share in ((Availability.always(2), 1.0), (Availability.never(2), 0.0)):
        found = describe(Fleet("still", ideal_devices(2), availability), 3)
        assert set(found["week"]["shares"]) == {share}
        assert found["slots"]["seconds"]["mean"] is None
        assert found["slots"]["histogram"]["counts"] == []
        assert found["slots"]["always_available_share"] == share
        assert found["slots"]["never_available_share"] == 1 - share


def test_many_clients_are_sampled() -> None:
    fleet = random_fleet(1000)
    found = describe(fleet, 30_000)
    assert (found["clients"], found["sampled_clients"], found["speeds"]["clients"]) == (30_000, 10_000, 2_000)
    assert len(found["speeds"]["upload_bits_per_second"]) == 2_000
    assert len(json.dumps(found)) < 100_000
    assert found == describe(fleet, 30_000)
    assert found != describe(fleet, 30_000, seed=1)
    rows, everybody = fleet.match(np.arange(30_000), None, 0).availability_of, fleet.availability.share()
    assert found["shares"]["mean"] == pytest.approx(everybody[rows].mean(), rel=0.05)


def test_only_the_given_clients_count() -> None:
    fleet = random_fleet(50)
    matched = fleet.match(np.arange(50), None, 0)
    never = np.flatnonzero(fleet.availability.share()[matched.availability_of] == 0)
    found = describe_fleet(matched, never, 0)
    assert found["clients"] == len(never)
    assert found["shares"]["mean"] == 0
    with pytest.raises(ValueError, match="without clients"):
        describe_fleet(matched, never[:0], 0)
