"""Zhang et al., CVPR 2024: FLHetBench: Benchmarking Device and State Heterogeneity in Federated Learning. The sampler
DPGMM, a Dirichlet process Gaussian mixture model.

Shares of K_n clusters are drawn from a Dirichlet distribution, and every client falls into a cluster by these shares.
Every cluster that has clients draws a speed from N(mu0, (sigma sigma0)^2), where mu0 and sigma0 are mean and standard
deviation of the speeds of a base of real devices. It gets the device whose speed is nearest among those that no other
cluster has. So K_n dials how many different devices there are, and sigma how far they are apart.

The paper writes the Dirichlet distribution with alpha/K_n for every cluster and gives no alpha; its code has 1000 for
every cluster, which makes them almost equally large. Both are here: `concentration` is for every cluster, and `alpha`,
if given, is shared among them.

What the paper leaves open: the speed of a device is that of a model's way down and up, the harmonic mean of the two
mean speeds. Clusters choose in order, and of two devices that are equally near, the slower one. The average speed is
that of the drawn devices, each counted as often as clients have it, so that sigma changes dispersion and nothing else.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from fedarena.core import streams
from fedarena.core.errors import BadInputError
from fedarena.core.registry import Choice
from fedarena.fleet.arrays import FloatArray, IntArray, Ragged
from fedarena.fleet.devices import Devices
from fedarena.fleet.fleet import Fleet
from fedarena.fleet.registry import FLEETS, load_fleet

DEFAULT_BASE: dict[str, Any] = {"name": "flash"}
Positive = Annotated[float, Field(gt=0, le=1e9)]
Speed = Annotated[float, Field(gt=0, le=1e15)]


@FLEETS.register("dpgmm")
def dpgmm(
    phones: int,
    *,
    base: Annotated[dict[str, Any], Choice(FLEETS)] = DEFAULT_BASE,
    clusters: Annotated[int, Field(ge=1, le=1_000_000)] = 100,
    sigma: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0,
    concentration: Positive = 1000.0,
    alpha: Positive | None = None,
    mean_bits_per_second: Speed | None = None,
    base_phones: Annotated[int, Field(ge=1, le=10_000_000)] = 1000,
    seed: Annotated[int, Field(ge=0)] = 0,
) -> Fleet:
    """FLHetBench's dial for devices: as many different ones of the fleet `base` as `clusters` allows, `sigma` apart.

    There is a device for every client, and the availabilities are those of the base; a client gets one of each. With
    `mean_bits_per_second` all speeds are multiplied such that this is their mean; the paper has 48e6, 6 MB/s. A base
    that makes phones up makes `base_phones`.
    """
    source = load_fleet(base, base_phones)
    speeds = way_speeds(source.devices)
    if not np.isfinite(speeds).all():
        raise BadInputError(
            f"fleet.base: devices are drawn by their speed, but in {source.name!r} some transfer at any speed; "
            "choose a base with measured speeds, such as flash"
        )
    each = concentration if alpha is None else alpha / clusters
    cluster_of, wanted = draw_clusters(phones, clusters, each, speeds, sigma, seed)
    filled, position = np.unique(cluster_of, return_inverse=True)
    if len(filled) > len(speeds):
        raise BadInputError(
            f"fleet.clusters: {len(filled)} of {clusters} clusters have clients and need a device each, but the base "
            f"{source.name!r} has only {len(speeds)}; choose fewer clusters, or a base with more devices"
        )
    rows = nearest_devices(wanted[filled], speeds)[position]
    devices = source.devices.take(rows)
    if mean_bits_per_second is not None:
        devices = _faster(devices, mean_bits_per_second / float(speeds[rows].mean()))
    return Fleet("dpgmm", devices, source.availability, paired=False)


def way_speeds(devices: Devices) -> FloatArray:
    """Bits per second on the way to a phone and back: twice as many bits as a model has, by the time both ways take."""
    with np.errstate(divide="ignore"):  # where both take no time
        return 2 / (1 / devices.download_bits_per_second + 1 / devices.upload_bits_per_second)


def draw_clusters(
    phones: int, clusters: int, concentration: float, speeds: FloatArray, sigma: float, seed: int
) -> tuple[IntArray, FloatArray]:
    """The cluster of every phone, and the speed that every cluster would like.

    The same seed gives the same clusters whatever sigma is, and speeds that move away from the mean as it grows.
    """
    random = streams.generator(seed, "fleet/dpgmm/clusters")
    shares = random.dirichlet(np.full(clusters, concentration))
    cluster_of = np.searchsorted(np.cumsum(shares)[:-1], random.random(phones), side="right")
    apart = streams.generator(seed, "fleet/dpgmm/speeds").standard_normal(clusters)
    return cluster_of, speeds.mean() + sigma * speeds.std() * apart


def nearest_devices(wanted: FloatArray, speeds: FloatArray) -> IntArray:
    """For one wish after the other, the device of the nearest speed that is still free."""
    order = np.argsort(speeds, kind="stable")
    ascending = speeds[order].tolist()
    devices = len(ascending)
    # Place p of these lists stands for place p - 1 in the order, so that there is one before the first and one after
    # the last. Each points to itself while it is free, then towards the next free place on its side.
    below, above = list(range(devices + 2)), list(range(devices + 2))
    chosen = []
    starts = np.searchsorted(ascending, wanted).tolist()
    for wish, start in zip(wanted.tolist(), starts, strict=True):
        left, right = _free(below, start), _free(above, start + 1)
        takes_left = right > devices or (left > 0 and wish - ascending[left - 1] <= ascending[right - 1] - wish)
        place = left if takes_left else right
        chosen.append(place - 1)
        below[place], above[place] = place - 1, place + 1
    return np.asarray(order[chosen], dtype=np.int64)


def _free(links: list[int], place: int) -> int:
    """The free place that `place` leads to; whatever lies on the way then leads there at once."""
    end = place
    while links[end] != end:
        end = links[end]
    while links[place] != end:
        links[place], place = end, links[place]
    return end


def _faster(devices: Devices, factor: float) -> Devices:
    """The same devices with all transfers that many times as fast."""

    def scaled(measured: Ragged | None) -> Ragged | None:
        return None if measured is None else Ragged(measured.offsets, factor * measured.values)

    return replace(
        devices,
        download_bits_per_second=factor * devices.download_bits_per_second,
        upload_bits_per_second=factor * devices.upload_bits_per_second,
        measured_download=scaled(devices.measured_download),
        measured_upload=scaled(devices.measured_upload),
    )
