"""Parts of fleets about which a file says nothing."""

from __future__ import annotations

import numpy as np

from fedarena.fleet.arrays import FloatArray
from fedarena.fleet.devices import Devices


def ideal_devices(phones: int) -> Devices:
    """Devices that take no time for anything."""
    return devices_without_network(np.zeros(phones))


def devices_without_network(seconds_per_sample: FloatArray) -> Devices:
    """Devices that take time for computing only."""
    unlimited = np.full(len(seconds_per_sample), np.inf)
    return Devices.from_columns(
        seconds_per_sample=seconds_per_sample, download_bits_per_second=unlimited, upload_bits_per_second=unlimited
    )
