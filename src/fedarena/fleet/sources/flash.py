"""Yang et al., WWW 2021: Characterizing Impacts of Heterogeneity in Federated Learning upon Large-Scale Smartphone Data
(FLASH), in the form in which Zhang et al., CVPR 2024: FLHetBench uses it.

FLASH recorded when people's phones are idle, charging and on WiFi. FLHetBench has such intervals of 710 phones from the
public part of it, latencies of a ResNet on 978 phones, and MobiPerf's measurements of network speeds. The tables below
are quantiles of these; no phone's record is in here.

Intervals are understood as FLHetBench's simulator does: the second in which one ends belongs to it, and intervals with
no second between them are one. Measured are the days of a record, intervals per phone, the available share (mean 9.5 %,
median 5.5 %), how long intervals and the gaps between them are, and how many phones are available at each hour of the
day. What happens in between (bursts, and long slots that begin at night) is our choice, such that these come out.

Speeds are those of the records that FLHetBench drew for its device cases 1 and 2, which it made to differ little: means
between 33 and 51 Mbit/s. One list of measurements serves both directions. The latencies are called training latency,
but the paper describes a measurement of inference, so training takes three times as long; `training_factor=1` takes the
name at its word.
"""

from __future__ import annotations

import numpy as np

from fedarena.core import streams
from fedarena.core.errors import BadInputError
from fedarena.fleet.arrays import Ragged
from fedarena.fleet.devices import Devices
from fedarena.fleet.fleet import Fleet
from fedarena.fleet.registry import FLEETS
from fedarena.fleet.sources.availability_model import AvailabilityModel, make_availability
from fedarena.fleet.sources.quantiles import QuantileTable, stratified

IDLE_CHARGING_WIFI = AvailabilityModel(
    days=(0.070, 0.058, 0.091, 0.103, 0.234, 0.398, 0.041, 0.003, 0.0, 0.002),
    slots=QuantileTable(
        (0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 1),
        (0.6, 1, 1.85, 4.75, 11.6, 25.6, 45.6, 56, 77.5, 98.5, 158),
    ),
    share=QuantileTable(
        (0, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 1),
        (1.4e-6, 2.16e-5, 3.77e-5, 1.9e-4, 1.15e-3, 0.01256, 0.0548, 0.1308, 0.255, 0.3242, 0.4441, 0.4679, 0.7845),
    ),
    correlations=(0.3, 0.06, 0.57),
    short_slots=0.38,
    short_seconds=QuantileTable(
        (0, 0.143, 0.232, 0.306, 0.307, 0.67, 0.766, 0.843, 0.924, 1),
        (0.5, 1.5, 4.5, 10.4, 11, 11, 15.5, 30.5, 60.5, 100.5),
    ),
    long_weights=QuantileTable(
        (0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.8, 0.9, 0.95, 1),
        (0.058, 0.082, 0.082, 0.13, 0.13, 0.51, 0.51, 0.73, 1.93, 9, 9.4),
    ),
    bursts=0.59,
    gap_seconds=QuantileTable((0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1), (1, 2.4, 6.5, 36, 186, 770, 2550, 28_000)),
    hours=(
        *(0.7, 0.9, 0.91, 0.77, 0.85, 0.73, 0.37, 0.5, 0.56, 0.29, 0.22, 0.43),
        *(1.92, 1.0, 2.33, 2.3, 2.43, 1.93, 1.95, 0.06, 0.47, 0.68, 0.97, 0.73),
    ),
    longest_hour=1.07,
    hour_effect=1.94,
)
LATENCY_MILLISECONDS = QuantileTable(
    (0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 1),
    (40, 60, 69, 96, 172, 309, 475.6, 559, 1276, 1650, 2000, 15_070),
)
MEAN_KILOBITS_PER_SECOND = QuantileTable(
    (0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 1),
    (33_140, 36_750, 37_130, 41_570, 41_840, 42_420, 47_020, 48_970, 50_690),
)
# The standard deviation of one phone's measurements, relative to their mean.
SPEED_VARIATION = QuantileTable(
    (0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 1), (0.0016, 0.024, 0.028, 0.055, 0.08, 0.175, 0.274, 0.319, 0.715)
)


@FLEETS.register("flash")
def flash(phones: int, *, training_factor: float = 3.0, speeds_per_phone: int = 15, seed: int = 0) -> Fleet:
    """Phones that take part while idle, charging and on WiFi, as FLASH and FLHetBench measured them.

    Every phone has `speeds_per_phone` measured speeds, one of which is drawn for each transfer, up or down; with 0 it
    has its mean speed alone. `training_factor` is how much longer training on a sample takes than the measured latency.
    """
    if not training_factor > 0:
        raise BadInputError(f"fleet.training_factor must be positive, not {training_factor:g}.")
    if not 0 <= speeds_per_phone <= 1000:
        raise BadInputError(f"fleet.speeds_per_phone must be between 0 and 1000, not {speeds_per_phone}.")
    random = streams.generator(seed, "fleet/devices")
    latency, mean, variation = (stratified(random.random(phones), random) for _ in range(3))
    bits_per_second = 1000 * MEAN_KILOBITS_PER_SECOND.at(mean)
    speeds = None
    if speeds_per_phone:
        measured = random.standard_normal((phones, speeds_per_phone))
        measured *= SPEED_VARIATION.at(variation)[:, None]
        np.exp(measured, out=measured)
        measured *= (bits_per_second / measured.mean(axis=1))[:, None]
        speeds = Ragged(np.arange(phones + 1, dtype=np.int64) * speeds_per_phone, measured.reshape(-1))
    devices = Devices.from_columns(
        seconds_per_sample=training_factor * LATENCY_MILLISECONDS.at(latency) / 1000,
        download_bits_per_second=bits_per_second,
        upload_bits_per_second=bits_per_second,
        measured_download=speeds,
        measured_upload=speeds,
    )
    return Fleet("flash", devices, make_availability(IDLE_CHARGING_WIFI, phones, seed), paired=True)
