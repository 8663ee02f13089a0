"""Training samples where the engine computes."""

from __future__ import annotations

from math import prod
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedarena.models import Tensors
from fedarena.train.engine import ClientData, IntArray
from fedarena.train.execution import one_ahead
from fedarena.train.tensors import column_tensor

_PIECE_BYTES = 1 << 26


class SampleSource(Protocol):
    """Gives the training samples of clients as tensors."""

    def rows(self, clients: IntArray) -> tuple[Tensors, IntArray]:
        """Columns in which these clients' samples are, and the row at which each client's begin."""


class FreshSamples:
    """Reads the samples every time, which costs little where they are in main memory anyway."""

    def __init__(self, data: ClientData):
        self._data = data

    def rows(self, clients: IntArray) -> tuple[Tensors, IntArray]:
        """Columns with the samples of just these clients."""
        block = self._data.samples(clients, "train")
        columns = {name: column_tensor(values) for name, values in block.columns.items()}
        return columns, block.offsets[:-1]


class ResidentSamples:
    """Keeps the samples of every client who took part on a device, as long as they fit into `limit_bytes`.

    New ones come in pieces: while one is copied to the device, the next is read, and main memory never holds more than
    two. Of pictures that are decoded when they are read, a large cohort would take many gigabytes.
    """

    def __init__(self, data: ClientData, device: torch.device, limit_bytes: int):
        self._data, self._fresh = data, FreshSamples(data)
        self._device, self._limit_bytes = device, limit_bytes
        self._columns: Tensors = {}
        self._used = 0
        self._begins: dict[int, int] = {}

    def rows(self, clients: IntArray) -> tuple[Tensors, IntArray]:
        """Columns with the samples of these clients and others."""
        missing = np.array([client for client in clients.tolist() if client not in self._begins], dtype=np.int64)
        if len(missing):
            self._add(missing, clients)
        return self._columns, np.array([self._begins[client] for client in clients.tolist()], dtype=np.int64)

    def _add(self, missing: IntArray, needed: IntArray) -> None:
        counts = self._data.counts(missing, "train")
        rows, row_bytes = int(counts.sum()), self._row_bytes(missing)
        if self._used and (self._used + rows) * row_bytes > self._limit_bytes:
            self._columns, self._used, self._begins = {}, 0, {}  # start over with those who are needed now
            if len(missing) < len(needed):
                self._add(needed, needed)
                return
        total, most = self._used + rows, self._limit_bytes // max(row_bytes, 1)
        pieces = pieces_of(counts, max(_PIECE_BYTES // max(row_bytes, 1), 1))
        arriving = one_ahead(lambda piece: self._fresh.rows(missing[piece]), pieces)
        for piece, (new, begins) in zip(pieces, arriving, strict=True):
            self._reserve(new, total, most)
            rows = len(next(iter(new.values())))
            for name, values in new.items():
                self._columns[name][self._used : self._used + rows].copy_(values)
            self._begins.update(zip(missing[piece].tolist(), (begins + self._used).tolist(), strict=True))
            self._used += rows

    def _row_bytes(self, clients: IntArray) -> int:
        """What one sample takes, which the first one of all tells."""
        like = self._columns or self._fresh.rows(clients[:1])[0]
        return sum(t.element_size() * prod(t.shape[1:]) for t in like.values())

    def _reserve(self, like: Tensors, rows: int, most_rows: int) -> None:
        """Makes room for so many rows, and for twice as many when it has to grow."""
        capacity = len(next(iter(self._columns.values()))) if self._columns else -1
        if rows <= capacity:
            return
        capacity = max(rows, min(2 * rows, most_rows))
        for name, t in like.items():
            grown: Tensor = torch.empty(capacity, *t.shape[1:], dtype=t.dtype, device=self._device)
            if self._used:
                grown[: self._used] = self._columns[name][: self._used]
            self._columns[name] = grown


def pieces_of(counts: IntArray, most_rows: int) -> list[slice]:
    """Clients one after the other who have at most so many samples, or more of a single one.

    >>> pieces_of(np.array([2, 2, 9, 0, 3]), 4)
    [slice(0, 2, None), slice(2, 3, None), slice(3, 5, None)]
    """
    pieces, first, filled = [], 0, 0
    for client, count in enumerate(counts.tolist()):
        if client > first and filled + count > most_rows:
            pieces.append(slice(first, client))
            first, filled = client, 0
        filled += count
    return [*pieces, slice(first, len(counts))]
