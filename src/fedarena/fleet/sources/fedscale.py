"""Lai et al., ICML 2022: FedScale: Benchmarking Model and System Performance of Federated Learning at Scale.

Of its two trace files (section 3.2) these figures are known: bounds and mean of the latency of inference on a sample
(15 to 199 ms, 78.02 ms), of the bandwidth (1,017 to 204,057 kbit/s, 13,736 kbit/s) and of the period of a phone's
availability (whole days from 1 to 15, 393,232 s); the mean number of intervals in a period (20.81) and the mean share
of it that they fill (0.2026). These come out.

All else is our choice. Latency and bandwidth are log-normal within their bounds. The spread of the latency (0.8 in the
natural logarithm) is that of the measurements behind `flash`, that of the bandwidth (1.0) resembles the few entries of
the file that are in print. Availability has the shape of `flash`, because both go back to one recording of phones (Yang
et al., WWW 2021), but a phone only needs to be charging, so it is available longer. A phone's latency, bandwidth and
availability are independent of each other, and its bandwidth is the same both ways, as in FedScale.

Training on a sample takes three times as long as inference, for the way back through the model, as in FedScale.
"""

from __future__ import annotations

from dataclasses import replace

from fedarena.core import streams
from fedarena.core.errors import BadInputError
from fedarena.fleet.devices import Devices
from fedarena.fleet.fleet import Fleet
from fedarena.fleet.registry import FLEETS
from fedarena.fleet.sources.availability_model import make_availability
from fedarena.fleet.sources.flash import IDLE_CHARGING_WIFI
from fedarena.fleet.sources.quantiles import QuantileTable, stratified

INFERENCE_MILLISECONDS = QuantileTable(
    (0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 1), (15, 22.2, 27.7, 42, 67.8, 106.1, 147, 168.5, 199)
)
KILOBITS_PER_SECOND = QuantileTable(
    (0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1),
    (1017, 1211, 1817, 2452, 4287, 8241, 16_022, 29_228, 41_858, 81_190, 153_677, 204_057),
)
CHARGING = replace(
    IDLE_CHARGING_WIFI,
    days=(
        *(0.0981, 0.0732, 0.1054, 0.1077, 0.2225, 0.345, 0.0321, 0.006),
        *(0.0037, 0.0025, 0.0015, 0.001, 0.0006, 0.0004, 0.0003),
    ),
    slots=QuantileTable(
        IDLE_CHARGING_WIFI.slots.probabilities,
        tuple(1.1 * count for count in IDLE_CHARGING_WIFI.slots.values),
    ),
    share=QuantileTable(
        IDLE_CHARGING_WIFI.share.probabilities,
        tuple(share**0.6 for share in IDLE_CHARGING_WIFI.share.values),
    ),
)


@FLEETS.register("fedscale")
def fedscale(phones: int, *, training_factor: float = 3.0, seed: int = 0) -> Fleet:
    """Phones that take part while charging, made up after FedScale's published figures.

    `training_factor` is how much longer training on a sample takes than inference.
    """
    if not training_factor > 0:
        raise BadInputError(f"fleet.training_factor must be positive, not {training_factor:g}.")
    random = streams.generator(seed, "fleet/devices")
    latency, bandwidth = (stratified(random.random(phones), random) for _ in range(2))
    bits_per_second = 1000 * KILOBITS_PER_SECOND.at(bandwidth)
    devices = Devices.from_columns(
        seconds_per_sample=training_factor * INFERENCE_MILLISECONDS.at(latency) / 1000,
        download_bits_per_second=bits_per_second,
        upload_bits_per_second=bits_per_second,
    )
    return Fleet("fedscale", devices, make_availability(CHARGING, phones, seed), paired=True)
