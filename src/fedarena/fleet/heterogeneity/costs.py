"""How long a client works in a round: it downloads the model, trains, and uploads it again (Eq. 3 of the paper)."""

from __future__ import annotations

import numpy as np

from fedarena.fleet.arrays import FloatArray, IntArray, Ragged
from fedarena.fleet.devices import Devices
from fedarena.fleet.heterogeneity.chance import Bits, Chance
from fedarena.fleet.heterogeneity.options import HeterogeneityOptions


class DeviceCosts:
    """Seconds that the device of client i, the row i of devices, takes; `t_break` is not among them."""

    def __init__(self, devices: Devices, options: HeterogeneityOptions):
        self._devices = devices
        # How many measured speeds there are to choose from, for downloads and for uploads.
        self.lists: IntArray = np.stack(
            [_lengths(lists, len(devices)) for lists in (devices.measured_download, devices.measured_upload)], axis=1
        )
        self._bits = 8.0 * options.model_bytes
        self._compute: FloatArray = devices.compute_seconds(
            np.arange(len(devices)), options.samples, options.samples * options.flops_per_sample
        )

    def draw(self, chance: Chance, streams_of: IntArray, rounds: IntArray, clients: IntArray) -> FloatArray:
        """Seconds of single participations: both transfers have a measured speed each, drawn for this round."""
        return self.seconds(clients, *chance.pick(streams_of, rounds, clients, self.lists[clients]))

    def seconds(self, clients: IntArray, for_download: Bits, for_upload: Bits) -> FloatArray:
        """Seconds of participations whose measured speeds these random bits choose."""
        download = self._devices.draw_download(clients, for_download)
        upload = self._devices.draw_upload(clients, for_upload)
        return self._bits / download + self._bits / upload + self._compute[clients]

    def moments(self) -> tuple[FloatArray, FloatArray]:
        """Mean and variance of every client's seconds."""
        means, variances = self._compute.copy(), np.zeros(len(self._devices))
        for speeds, measured in (
            (self._devices.download_bits_per_second, self._devices.measured_download),
            (self._devices.upload_bits_per_second, self._devices.measured_upload),
        ):
            mean, variance = _inverse_moments(speeds, measured)
            means += self._bits * mean
            variances += self._bits**2 * variance
        return means, variances


def _inverse_moments(speeds: FloatArray, measured: Ragged | None) -> tuple[FloatArray, FloatArray]:
    """Mean and variance of the seconds that a bit takes."""
    mean, variance = 1 / speeds, np.zeros(len(speeds))
    if measured is not None:
        known = np.diff(measured.offsets) > 0
        inverse = 1 / measured.values
        measured_mean = Ragged(measured.offsets, inverse).means()
        from_mean = inverse - np.repeat(measured_mean, np.diff(measured.offsets))
        mean[known] = measured_mean[known]
        variance[known] = Ragged(measured.offsets, from_mean**2).means()[known]
    return mean, variance


def _lengths(measured: Ragged | None, phones: int) -> IntArray:
    """How many measured speeds phones have; 1, if only their mean is known."""
    if measured is None:
        return np.ones(phones, dtype=np.int64)
    return np.maximum(np.diff(measured.offsets), 1)
