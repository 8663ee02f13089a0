"""Random fleets for tests."""

from __future__ import annotations

import numpy as np

from fedarena.fleet import Availability, Devices, Fleet, Ragged

DAY_SECONDS = 86_400


def random_availability(phones: int, seed: int = 0) -> Availability:
    """Some intervals a day; the first phone is never there, the last one never leaves."""
    random = np.random.default_rng(seed)
    counts = random.integers(1, 6, size=phones)
    counts[0] = 0
    rows = np.repeat(np.arange(phones), counts)
    bounds = [np.sort(random.choice(DAY_SECONDS + 1, size=2 * count, replace=False)) for count in counts]
    bounds[-1] = np.linspace(0, DAY_SECONDS, counts[-1] + 1, dtype=np.int64).repeat(2)[1:-1]
    flat = np.concatenate(bounds).astype(np.int64)
    return Availability.from_intervals(rows, flat[::2], flat[1::2], np.full(phones, DAY_SECONDS))


def random_fleet(phones: int, availabilities: int | None = None, paired: bool = False, seed: int = 0) -> Fleet:
    """Devices of different speeds, with measured uploads."""
    random = np.random.default_rng(seed)
    devices = Devices.from_columns(
        seconds_per_sample=random.permutation(phones) + 1.0,
        download_bits_per_second=random.uniform(1e6, 1e8, size=phones),
        measured_upload=Ragged.from_lists(random.uniform(1e5, 1e7, size=(phones, 3)).tolist()),
        compute_watts=random.uniform(1, 2, size=phones),
        radio_watts=random.uniform(1, 2, size=phones),
    )
    return Fleet("random", devices, random_availability(availabilities or phones, seed), paired)
