"""Devices without differences, for studies of availability alone.

FLHetBench (Zhang et al., CVPR 2024) gives all clients the same device when it studies states: the way of a model down
and up takes a time from N(t, (0.1 t)^2) with t = 120/1.05 seconds, a little less than the deadline of 120.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import Annotated

import numpy as np
from pydantic import Field

from fedarena.fleet.arrays import Ragged
from fedarena.fleet.availability import Availability
from fedarena.fleet.devices import Devices
from fedarena.fleet.fleet import Fleet
from fedarena.fleet.heterogeneity.options import VIT_B_BYTES
from fedarena.fleet.registry import FLEETS

_SPEEDS = 1000
# Beyond it the fastest transfers would take less than no time.
_MOST_VARIATION = 0.2


@FLEETS.register("alike")
def alike(
    phones: int,
    *,
    transfer_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 120 / 1.05,
    variation: Annotated[float, Field(ge=0, le=_MOST_VARIATION)] = 0.1,
    model_bytes: Annotated[int, Field(ge=1)] = VIT_B_BYTES,
    seconds_per_sample: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0,
) -> Fleet:
    """One and the same device for everybody, always available.

    A model of `model_bytes` takes `transfer_seconds` down and up together, normally distributed: the standard deviation
    is `variation` times as much. A model of another size takes as much more or less.
    """
    # The two ways are drawn independently, so the variances of halves add up to that of the whole.
    one_way = NormalDist(transfer_seconds / 2, variation * transfer_seconds / np.sqrt(2))
    seconds = [one_way.mean] if variation == 0 else [one_way.inv_cdf((i + 0.5) / _SPEEDS) for i in range(_SPEEDS)]
    speeds = Ragged.from_lists([[8 * model_bytes / time for time in seconds]])
    devices = Devices.from_columns(
        seconds_per_sample=[seconds_per_sample], measured_download=speeds, measured_upload=speeds
    )
    return Fleet("alike", devices, Availability.always(phones), paired=False)
