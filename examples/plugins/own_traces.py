"""Traces of one's own, as FedScale's `load_client_availability`: speeds of phones, and when each is available.

python examples/plugins/own_traces.py
"""

from __future__ import annotations

import numpy as np

import fedarena
from fedarena.fleet import Availability, Devices, Fleet


def commuters(phones: int, *, hours: int = 9) -> Fleet:
    """Phones that are away for some hours a day, each from another hour on; every other one is slow."""
    away = np.arange(phones) % 24 * 3600
    devices = Devices.from_columns(
        seconds_per_sample=np.where(np.arange(phones) % 2, 0.2, 0.02),
        download_bits_per_second=np.full(phones, 20e6),
        upload_bits_per_second=np.full(phones, 5e6),
    )
    back = away + hours * 3600
    late = back >= 86_400  # they are away around midnight
    availability = Availability.from_intervals(
        rows=np.concatenate([np.arange(phones), np.flatnonzero(~late & (away > 0))]),
        starts=np.concatenate([back % 86_400, np.zeros((~late & (away > 0)).sum(), dtype=np.int64)]),
        ends=np.concatenate([np.where(late, away, 86_400), away[~late & (away > 0)]]),
        periods=np.full(phones, 86_400),
    )
    return Fleet("commuters", devices, availability, paired=True)


SETTINGS = {"fleet": {"name": commuters, "hours": 9}, "protocol": "synchronous"}

if __name__ == "__main__":
    print(fedarena.run(SETTINGS, federation="digits", rounds=20, cohort=5).summary["final"]["accuracy"])
