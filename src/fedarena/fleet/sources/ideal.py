"""A fleet that never makes anybody wait."""

from __future__ import annotations

import numpy as np

from fedarena.fleet.availability import Availability
from fedarena.fleet.devices import Devices
from fedarena.fleet.fleet import Fleet
from fedarena.fleet.registry import FLEETS


@FLEETS.register("ideal")
def ideal(phones: int) -> Fleet:
    """Phones that are always available, compute in no time and transfer at any speed."""
    at_once = np.full(phones, np.inf)
    devices = Devices.from_columns(
        seconds_per_sample=np.zeros(phones), download_bits_per_second=at_once, upload_bits_per_second=at_once
    )
    return Fleet("ideal", devices, Availability.always(phones), paired=True)
