"""How long a client works in a round: it downloads the model, trains, and uploads it again (Eq. 3 of the paper)."""

from __future__ import annotations

import numpy as np

from fedarena.fleet.arrays import FloatArray, IntArray, Ragged
from fedarena.fleet.devices import Devices
from fedarena.fleet.heterogeneity.options import HeterogeneityOptions
from fedarena.fleet.heterogeneity.random_choices import Bits, RandomChoices


class DeviceCosts:
    """Seconds that the device of client i, the row i of devices, takes; `t_break` is not among them."""

    def __init__(self, devices: Devices, options: HeterogeneityOptions):
        up_bytes = options.model_bytes if options.upload_bytes is None else options.upload_bytes
        self._compute: FloatArray = devices.compute_seconds(
            np.arange(len(devices)), options.samples, options.samples * options.flops_per_sample
        )
        self._download, self._upload = (
            _seconds_of(8.0 * size, speeds, measured)
            for size, speeds, measured in (
                (options.model_bytes, devices.download_bits_per_second, devices.measured_download),
                (up_bytes, devices.upload_bits_per_second, devices.measured_upload),
            )
        )
        # How many measured speeds there are to choose from, for downloads and for uploads.
        self.lists: IntArray = np.stack([np.diff(self._download.offsets), np.diff(self._upload.offsets)], axis=1)

    def draw(self, choices: RandomChoices, streams_of: IntArray, rounds: IntArray, clients: IntArray) -> FloatArray:
        """Seconds of single participations: both transfers have a measured speed each, drawn for this round."""
        return self.seconds(clients, *choices.choose_speeds(streams_of, rounds, clients, self.lists[clients]))

    def seconds(self, clients: IntArray, for_download: Bits, for_upload: Bits) -> FloatArray:
        """Seconds of participations whose measured speeds these random bits choose."""
        lengths = self.lists[clients].astype(np.uint64)
        download = self._download.offsets[clients] + (for_download % lengths[:, 0]).astype(np.int64)
        upload = self._upload.offsets[clients] + (for_upload % lengths[:, 1]).astype(np.int64)
        return self._download.values[download] + self._upload.values[upload] + self._compute[clients]

    def means_and_variances(self) -> tuple[FloatArray, FloatArray]:
        """Mean and variance of every client's seconds."""
        means, variances = self._compute.copy(), np.zeros(len(self._compute))
        for seconds in (self._download, self._upload):
            mean = seconds.means()
            from_mean = seconds.values - np.repeat(mean, np.diff(seconds.offsets))
            means += mean
            variances += Ragged(seconds.offsets, from_mean**2).means()
        return means, variances


def _seconds_of(bits: float, speeds: FloatArray, measured: Ragged | None) -> Ragged:
    """How long a transfer takes with each measured speed of a phone; with its mean speed, if none was measured."""
    lengths = np.zeros(len(speeds), dtype=np.int64) if measured is None else np.diff(measured.offsets)
    offsets = np.append(0, np.cumsum(np.maximum(lengths, 1)))
    seconds = np.empty(offsets[-1])
    seconds[offsets[:-1]] = bits / speeds
    if measured is not None:
        seconds[np.repeat(lengths > 0, np.maximum(lengths, 1))] = bits / measured.values
    return Ragged(offsets, seconds)
