"""Jobs on phones: what they cost, how far they get, and why they fail."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_worlds import MODEL_BYTES, make_world

from fedarena.fleet import Availability, Devices, Fleet, Ragged
from fedarena.simulate import Outcome
from fedarena.simulate.phones import Load, Phones

SLOTS = st.lists(st.integers(0, 199), min_size=0, max_size=6, unique=True).map(
    lambda bounds: list(zip(*[iter(sorted(bounds))] * 2, strict=False))
)


def test_every_phase_takes_what_it_costs() -> None:
    phones = make_world([2.0, 30.0]).phones
    jobs = phones.plan(np.array([0, 1]), np.array([5, 6]), np.array([100.0, 200.0]), version=3)
    assert jobs.downloaded.tolist() == [102, 230]
    assert jobs.trained.tolist() == [104, 260]
    assert jobs.uploaded.tolist() == jobs.end.tolist() == [106, 290]
    assert jobs.outcomes.tolist() == [Outcome.USED, Outcome.USED]
    assert jobs.versions.tolist() == [3, 3]
    done = phones.done(jobs)
    assert done.bytes_down.tolist() == done.bytes_up.tolist() == [MODEL_BYTES, MODEL_BYTES]
    assert done.samples.tolist() == [10, 10]
    assert done.seconds.tolist() == [6, 90]
    assert done.joules.tolist() == [2 * 2 + 4 * 1, 2 * 30 + 60 * 1]


def phones_of(devices: Devices, **load: Any) -> Phones:
    clients = np.arange(len(devices))
    fleet = Fleet("made", devices, Availability.always(len(devices)), paired=True).match(clients, None, 0)
    fleet.device_of[:] = clients
    given = {"download_bytes": 1000, "upload_bytes": 3000, "flops_per_sample": 7.0, **load}
    return Phones(fleet, Load(processed_samples=lambda clients, shares: np.full(len(clients), 10), **given), seed=0)


def test_up_and_down_have_their_own_bytes_and_speeds_and_operations_count() -> None:
    devices = Devices.from_columns(
        seconds_per_sample=[5.0, np.nan],
        flops_per_second=[np.nan, 35.0],
        download_bits_per_second=[800.0, 1600.0],
        upload_bits_per_second=[400.0, 100.0],
    )
    jobs = phones_of(devices).plan(np.arange(2), np.arange(2), np.zeros(2), 0)
    assert jobs.download_seconds.tolist() == [10, 5]
    assert jobs.compute_seconds.tolist() == [50, 2]
    assert jobs.upload_seconds.tolist() == [60, 240]


def test_measured_speeds_are_drawn_for_every_transfer() -> None:
    speeds = Ragged.from_lists([[80.0, 800.0, 8000.0]])
    devices = Devices.from_columns(seconds_per_sample=[0.0], measured_download=speeds, measured_upload=speeds)
    phones = phones_of(devices, upload_bytes=1000)
    jobs = phones.plan(np.zeros(600, dtype=np.int64), np.arange(600), np.zeros(600), 0)
    for seconds in (jobs.download_seconds, jobs.upload_seconds):
        values, counts = np.unique(seconds, return_counts=True)
        assert values.tolist() == [1, 10, 100]
        assert counts.min() > 150
    assert 0.25 < (jobs.download_seconds == jobs.upload_seconds).mean() < 0.42  # one does not follow from the other
    again = phones.plan(np.zeros(600, dtype=np.int64), np.arange(600), np.full(600, 9.0), 4)
    assert (again.download_seconds == jobs.download_seconds).all()


@pytest.mark.parametrize(
    ("leaves", "outcome", "bytes_down", "samples", "bytes_up"),
    [
        (0, Outcome.NOT_AVAILABLE, 0, 0, 0),
        (25, Outcome.LEFT_DOWNLOADING, MODEL_BYTES // 4, 0, 0),
        (150, Outcome.LEFT_TRAINING, MODEL_BYTES, 5, 0),
        (275, Outcome.LEFT_UPLOADING, MODEL_BYTES, 10, 3 * MODEL_BYTES // 4),
        (300, Outcome.USED, MODEL_BYTES, 10, MODEL_BYTES),
    ],
)
def test_a_phone_that_leaves(leaves: int, outcome: Outcome, bytes_down: int, samples: int, bytes_up: int) -> None:
    phones = make_world([100.0], [[(0, leaves)] if leaves else [(500, 600)]]).phones
    jobs = phones.plan(np.array([0]), np.array([0]), np.array([0.0]), 0)
    assert jobs.outcomes.tolist() == [outcome]
    assert jobs.end.tolist() == [leaves]
    done = phones.done(jobs)
    assert (done.bytes_down[0], done.samples[0], done.bytes_up[0]) == (bytes_down, samples, bytes_up)
    assert done.seconds.tolist() == [leaves]


def test_a_phone_that_pauses_goes_on_when_it_is_back() -> None:
    phones = make_world([100.0], [[(0, 150), (400, 500), (700, 1000)]], leaving="pause").phones
    jobs = phones.plan(np.array([0]), np.array([0]), np.array([0.0]), 0)
    assert (jobs.downloaded[0], jobs.trained[0], jobs.uploaded[0]) == (100, 450, 750)
    assert phones.done(jobs).seconds.tolist() == [300]
    stopped = jobs.stopped(np.array([True]), 720.0, Outcome.LATE)
    done = phones.done(stopped)
    assert stopped.outcomes.tolist() == [Outcome.LATE]
    assert not np.isfinite(stopped.uploaded[0])
    assert done.seconds.tolist() == [270]
    assert done.bytes_up.tolist() == [7 * MODEL_BYTES // 10]


@settings(max_examples=60, deadline=None)
@given(
    phones=st.lists(st.tuples(st.floats(0.1, 60), SLOTS), min_size=1, max_size=6),
    begin=st.floats(0, 700),
    leaving=st.sampled_from(["abort", "pause"]),
    crash_rate=st.sampled_from([0.0, 0.5]),
)
def test_jobs_agree_with_availability(phones, begin: float, leaving: str, crash_rate: float) -> None:
    seconds, slots = zip(*phones, strict=True)
    world = make_world(list(seconds), list(slots), period=200, leaving=leaving, crash_rate=crash_rate)
    clients = world.clients
    jobs = world.plan(clients, begin, version=0, first_number=7)
    fleet, each = world.phones.fleet, np.array(seconds)
    finish = fleet.finish_time(clients, begin, 3 * each, leaving)
    crashed = jobs.outcomes == Outcome.CRASHED
    whole = jobs.arrive & np.isfinite(jobs.end)
    assert (whole | crashed | ~np.isfinite(finish)).all()
    np.testing.assert_allclose(jobs.end[whole], finish[whole], rtol=1e-9)
    assert (jobs.begin <= jobs.end).all()
    ordered = np.array([jobs.begin, jobs.downloaded, jobs.trained, jobs.uploaded])
    assert (np.diff(np.where(np.isfinite(ordered), ordered, 1e18), axis=0) >= 0).all()
    left = np.isin(jobs.outcomes, [Outcome.LEFT_DOWNLOADING, Outcome.LEFT_TRAINING, Outcome.LEFT_UPLOADING])
    assert not (left & fleet.is_available(clients, jobs.end)).any()
    assert ((jobs.outcomes == Outcome.NOT_AVAILABLE) <= ~fleet.is_available(clients, begin)).all()
    ended = jobs.take(np.isfinite(jobs.end))
    done = world.phones.done(ended)
    assert ((done.bytes_down == MODEL_BYTES) >= np.isfinite(ended.downloaded)).all()
    assert ((done.bytes_up > 0) <= np.isfinite(ended.trained)).all()
    assert (done.seconds <= 3 * each[ended.clients] + 1e-9).all()


def test_as_many_crash_as_asked_for() -> None:
    world = make_world([1.0] * 4000, crash_rate=0.25)
    jobs = world.plan(world.clients, 0.0, 0, 0)
    crashed = jobs.outcomes == Outcome.CRASHED
    assert 0.22 < crashed.mean() < 0.28
    assert 1.4 < jobs.end[crashed].mean() < 1.6  # anywhere in the three seconds
    again = world.plan(world.clients, 0.0, 0, 0)
    assert (again.outcomes == jobs.outcomes).all()
    assert (world.plan(world.clients, 0.0, 0, 4000).outcomes != jobs.outcomes).any()
