"""What a fleet looks like to its clients, in a few numbers and curves.

The result is small, whatever the number of clients, and plain JSON: what is not known or without limit is null.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedarena.core import streams
from fedarena.fleet.arrays import FloatArray, IntArray
from fedarena.fleet.availability import DAY_SECONDS, Availability
from fedarena.fleet.devices import COMPUTE_COLUMNS, SPEED_COLUMNS, Devices
from fedarena.fleet.fleet import ClientFleet

MOST_CLIENTS = 10_000
MOST_SPEEDS = 2_000
PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)
STEP_SECONDS = 900
WEEK_SECONDS = 7 * DAY_SECONDS
WEEKS = 8
DIGITS = 5


def describe_fleet(client_fleet: ClientFleet, clients: IntArray, seed: int) -> dict[str, Any]:
    """How often `clients` are available, for how long, and how fast their devices are; of many clients, of a sample.

    - ``shares``: the share of the time in which a client is available
    - ``week``: the share of clients that is available in every quarter of an hour of a week, mean of several weeks
    - ``slots``: how long clients stay when they are there
    - ``speeds``: of single clients, position by position the same client in all lists
    """
    if not len(clients):
        raise ValueError("a fleet without clients cannot be described")
    fleet = client_fleet.fleet
    sample = _sample(np.asarray(clients), MOST_CLIENTS, seed, "fleet/statistics")
    availability = fleet.availability.take(client_fleet.availability_of[sample])
    few = _sample(sample, MOST_SPEEDS, seed, "fleet/speeds")
    return {
        "name": fleet.name,
        "fingerprint": fleet.fingerprint,
        "clients": len(clients),
        "sampled_clients": len(sample),
        "phones": {
            "devices": len(fleet.devices),
            "availabilities": len(fleet.availability),
            "paired": fleet.paired,
        },
        "shares": _distribution(availability.share()),
        "week": _week(availability, seed),
        "slots": _slots(availability),
        "speeds": _speeds(fleet.devices.take(client_fleet.device_of[few])),
    }


def slots(availability: Availability) -> tuple[IntArray, FloatArray]:
    """The row and the length in seconds of every uninterrupted availability in a period of a device that leaves at all.

    One that goes on over the end of the period counts once.
    """
    rows = np.repeat(np.arange(len(availability)), np.diff(availability.offsets))
    lengths = (availability.ends - availability.starts).astype(np.float64)
    filled = np.flatnonzero(np.diff(availability.offsets))
    first, last = availability.offsets[filled], availability.offsets[filled + 1] - 1
    goes_on = (availability.starts[first] == 0) & (availability.ends[last] == availability.periods[filled])
    lengths[first[goes_on]] += lengths[last[goes_on]]
    # The last slot was added to the first one; where it is the first one, the device never leaves.
    counted = np.ones(len(lengths), dtype=np.bool_)
    counted[last[goes_on]] = False
    return rows[counted], lengths[counted]


def _sample(clients: IntArray, most: int, seed: int, purpose: str) -> IntArray:
    if len(clients) <= most:
        return clients
    chosen = streams.generator(seed, purpose).choice(len(clients), size=most, replace=False, shuffle=False)
    return clients[np.sort(chosen)]


def _distribution(values: FloatArray) -> dict[str, Any]:
    found = np.percentile(values, PERCENTILES) if len(values) else np.full(len(PERCENTILES), np.nan)
    return {
        "mean": _plain(values.mean() if len(values) else np.nan),
        "percentiles": {str(p): _plain(value) for p, value in zip(PERCENTILES, found, strict=True)},
    }


def _week(availability: Availability, seed: int) -> dict[str, Any]:
    """Asks clients at random moments of every quarter of an hour, since many come and go at round times.

    Devices need not repeat with the week, so several weeks count alike. Few clients are asked in each of them; of many,
    every one in some of them, which keeps the number of questions small.
    """
    clients = len(availability)
    turns = min(WEEKS, max(1, MOST_CLIENTS // clients))
    rows = np.arange(clients)
    apart = (np.arange(turns) * WEEKS // turns)[:, None]
    random = streams.generator(seed, "fleet/week")
    shares = []
    for begin in range(0, WEEK_SECONDS, STEP_SECONDS):
        weeks = (apart + random.integers(WEEKS, size=clients)) % WEEKS
        times = weeks * WEEK_SECONDS + begin + random.uniform(0, STEP_SECONDS, size=weeks.shape)
        shares.append(_plain(availability.is_available(rows, times).mean()))
    return {"step_seconds": STEP_SECONDS, "weeks": WEEKS, "shares": shares}


def _slots(availability: Availability) -> dict[str, Any]:
    rows, lengths = slots(availability)
    shares = availability.share()
    # One bin per doubling of the length, as far as there are slots.
    counts = np.bincount(np.floor(np.log2(lengths)).astype(np.int64))
    per_day = np.bincount(rows, minlength=len(availability)) * DAY_SECONDS / availability.periods
    return {
        "never_available_share": _plain((shares == 0).mean()),
        "always_available_share": _plain((shares == 1).mean()),
        "per_day": _distribution(per_day),
        "seconds": _distribution(lengths),
        "histogram": {"edges_seconds": [2**power for power in range(len(counts) + 1)], "counts": counts.tolist()},
    }


def _speeds(devices: Devices) -> dict[str, Any]:
    columns = {name: getattr(devices, name) for name in (*COMPUTE_COLUMNS, *SPEED_COLUMNS)}
    return {
        "clients": len(devices),
        **{
            name: [_plain(value) for value in values.tolist()]
            for name, values in columns.items()
            if not np.isnan(values).all()
        },
    }


def _plain(value: float | np.floating[Any]) -> float | None:
    """A number with few digits, because nobody sees more of a picture."""
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
