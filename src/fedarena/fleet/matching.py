"""Which client gets which device: drawn by seed, or such that clients with much data have fast or slow devices."""

from __future__ import annotations

import numpy as np

from fedarena.core import streams
from fedarena.core.errors import BadInputError
from fedarena.fleet.arrays import FloatArray, IntArray
from fedarena.fleet.devices import Devices


def draw_devices(devices: int, clients: int, seed: int, purpose: str) -> IntArray:
    """A device for each of `clients`, in random order.

    Where there are enough, nobody shares a device; otherwise all devices are used equally often, give or take one.
    """
    random = streams.generator(seed, purpose)
    times, more = divmod(clients, devices)
    some = random.choice(devices, size=more, replace=False)
    if times == 0:
        return some.astype(np.int64)
    return random.permutation(np.concatenate([np.tile(np.arange(devices), times), some]))


def correlate(rows: IntArray, speeds: FloatArray, sizes: IntArray, correlation: float, seed: int) -> IntArray:
    """`rows` in an order in which the ranks of `sizes` and of ``speeds[rows]`` agree as `correlation` says.

    This is a Gaussian copula: every client gets a normal score by the rank of its size, which is mixed with noise, and
    the rank of the mixture is the rank of its device.
    """
    random = streams.generator(seed, "fleet/correlation")
    scores = np.empty(len(sizes))
    # Sorted random numbers are as good as quantiles. Clients of equal size take any order.
    order = np.argsort(sizes + random.random(len(sizes)), kind="stable")
    scores[order] = np.sort(random.standard_normal(len(sizes)))
    noise = random.standard_normal(len(sizes))
    mixture = correlation * scores + np.sqrt(1 - correlation**2) * noise
    ordered = np.empty_like(rows)
    # Rows are in random order, which a stable sort keeps among equally fast devices.
    ordered[np.argsort(mixture, kind="stable")] = rows[np.argsort(speeds[rows], kind="stable")]
    return ordered


def compute_speeds(devices: Devices) -> FloatArray:
    """How fast each device computes, in whatever unit all of them have."""
    if not np.isnan(devices.flops_per_second).any():
        return devices.flops_per_second
    if np.isnan(devices.flops_per_second).all():
        return -devices.seconds_per_sample
    raise BadInputError(
        "A correlation of data and speed needs phones that can be compared, but flops_per_second is known of some "
        "and not of others."
    )
