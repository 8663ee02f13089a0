"""Samples on which a model is evaluated again and again, kept where it computes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedarena.models import Tensors
from fedarena.train.engine import ClientData, IntArray, Part
from fedarena.train.tensors import column_tensor


@dataclass(frozen=True)
class TensorSamples:
    """Samples of several clients, one after the other."""

    columns: Tensors
    offsets: IntArray


def tensor_samples(data: ClientData, clients: IntArray, part: Part) -> TensorSamples:
    """The samples of these clients, in this order."""
    read = data.samples(clients, part)
    return TensorSamples({name: column_tensor(values) for name, values in read.columns.items()}, read.offsets)


class KeptSamples:
    """Keeps samples of a federation on a device from one evaluation to the next, as long as they fit.

    What does not fit is read again every time.
    """

    def __init__(self, data: ClientData, device: torch.device, limit_bytes: int):
        self._data, self._device = data, device
        self._left_bytes = limit_bytes
        self._blocks: dict[tuple[Part, bytes], TensorSamples] = {}

    def samples(self, data: ClientData, clients: IntArray, part: Part) -> TensorSamples:
        """The samples of these clients; those of another federation are never kept."""
        if data is not self._data:
            return tensor_samples(data, clients, part)
        key = (part, clients.tobytes())
        if key in self._blocks:
            return self._blocks[key]
        read = tensor_samples(data, clients, part)
        needed_bytes = sum(t.nbytes for t in read.columns.values())
        if needed_bytes > self._left_bytes:
            return read
        self._left_bytes -= needed_bytes
        placed = {name: t.to(self._device) for name, t in read.columns.items()}
        self._blocks[key] = TensorSamples(placed, read.offsets)
        return self._blocks[key]
