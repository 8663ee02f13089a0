"""Training samples where the engine computes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from math import prod
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from fedarena.models import Tensors
from fedarena.train.engine import ClientData, IntArray
from fedarena.train.streams import Milestone
from fedarena.train.tensors import column_tensor

_KEPT_BYTES = 1 << 26  # of all samples of a federation, up to which they stay in memory
_PIECE_BYTES = 1 << 26
_PIECES_AT_ONCE = 2


class Arrival:
    """Samples of clients of which some may still be on their way."""

    def __init__(self, columns: Tensors, begins: IntArray, pieces: Sequence[Future[Milestone]], piece_of: IntArray):
        self.columns = columns  # in which their samples are
        self.begins = begins  # the row at which each client's begin
        self._pieces, self._piece_of = pieces, piece_of.tolist()

    def wait_for(self, client: int) -> None:
        """Returns when the current stream may use the samples of the client at this place."""
        if self._piece_of[client] >= 0:
            self._pieces[self._piece_of[client]].result().wait()

    def wait(self) -> None:
        """The same for all of them."""
        for piece in self._pieces:
            piece.result().wait()


class SampleSource(Protocol):
    """Gives the training samples of clients as tensors."""

    def arriving(self, clients: IntArray) -> Arrival:
        """The samples of these clients, who are needed in this order."""

    def expect(self, clients: IntArray) -> None:
        """Says who is likely to be asked for next, and needed in this order."""

    def parts(self, clients: IntArray, counts: IntArray) -> list[slice]:
        """Those of these clients, who have so many samples, whom it can give at once, one part after the other."""


def rows_of(source: SampleSource, clients: IntArray) -> tuple[Tensors, IntArray]:
    """Columns in which these clients' samples are, all of them, and the row at which each client's begin."""
    arrival = source.arriving(clients)
    arrival.wait()
    return arrival.columns, arrival.begins


@runtime_checkable
class DataOfKnownSize(Protocol):
    """Clients' data of which it is known how large all of it is."""

    num_clients: int
    memory_bytes: int | None  # of all samples; None: they are decoded when they are read


class HostSamples:
    """Gives samples in main memory: reads them every time, which costs little where they are there anyway.

    Those of a small federation are read once: to copy a cohort's every time takes as long as a step of a small model.
    """

    def __init__(self, data: ClientData):
        self._data = data
        self._keeps = isinstance(data, DataOfKnownSize) and (data.memory_bytes or _KEPT_BYTES + 1) <= _KEPT_BYTES
        self._kept: tuple[Tensors, IntArray] | None = None
        self._keeping = threading.Lock()

    def arriving(self, clients: IntArray) -> Arrival:
        """Columns with the samples of these clients, who are there at once."""
        columns, begins = self.rows(clients)
        return Arrival(columns, begins, [], np.full(len(clients), -1))

    def expect(self, clients: IntArray) -> None:
        """Nothing is read before it is needed."""

    def parts(self, clients: IntArray, counts: IntArray) -> list[slice]:
        """All of them."""
        return [slice(None)]

    def rows(self, clients: IntArray) -> tuple[Tensors, IntArray]:
        """Columns with the samples of these clients, and perhaps of others."""
        if not self._keeps:
            return _read(self._data, clients)
        with self._keeping:
            if self._kept is None:
                assert isinstance(self._data, DataOfKnownSize)
                self._kept = _read(self._data, np.arange(self._data.num_clients))
        columns, begins = self._kept
        return columns, begins[clients]


def _read(data: ClientData, clients: IntArray) -> tuple[Tensors, IntArray]:
    """Columns with the samples of just these clients, one after the other, and where each client's begin."""
    block = data.samples(clients, "train")
    return {name: column_tensor(values) for name, values in block.columns.items()}, block.offsets[:-1]


class ResidentSamples:
    """Keeps the samples of every client who took part on a device, as long as they fit into `limit_bytes`.

    Of clients who train at once, it gives no more than `most_bytes`, or those of a single one who has more.

    New ones come in pieces, read and copied by other threads: those who are needed first train while the others are
    still on their way, and who is expected next is read when all of them are there. While one piece is copied to the
    device, the next is read, and main memory never holds more than two. Of pictures that are decoded when they are
    read, a large cohort would take many gigabytes.
    """

    def __init__(self, data: ClientData, device: torch.device, limit_bytes: int, most_bytes: int | None = None):
        self._data, self._device, self._limit_bytes = data, device, limit_bytes
        self._most_bytes = limit_bytes if most_bytes is None else most_bytes
        self._columns: Tensors = {}
        # When the columns are there. New samples come to rows that nobody has read before, so that they need not wait
        # for anything that is computed later.
        self._made = Milestone(device)
        self._bytes_of_a_row: int | None = None
        self._used = 0
        self._begins: dict[int, int] = {}
        self._pieces: dict[int, Future[Milestone]] = {}  # those of the last time, by client
        self._expecting: Future[None] | None = None
        self._reading = threading.Lock()
        self._stream = torch.cuda.Stream() if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def arriving(self, clients: IntArray) -> Arrival:
        """Columns with the samples of these clients and others."""
        self._stop_expecting()
        pieces = dict.fromkeys(self._pieces.values())
        if all(piece.done() for piece in pieces) or any(piece.done() and piece.exception() for piece in pieces):
            self._finish_pieces()
        begins = self._begins_of(clients)
        if (begins < 0).any():
            self._finish_pieces()
            needed = np.array([*dict.fromkeys(clients.tolist())], dtype=np.int64)
            self._add(self._missing(needed), needed)  # more than before, if there were some that could not be read
            begins = self._begins_of(clients)
        coming = [*dict.fromkeys(self._pieces.values())]
        number = {piece: place for place, piece in enumerate(coming)}
        piece_of = np.full(len(clients), -1)
        if coming:
            of_clients = (self._pieces.get(client) for client in clients.tolist())
            piece_of[:] = [-1 if piece is None else number[piece] for piece in of_clients]
        return Arrival(self._columns, begins, coming, piece_of)

    def expect(self, clients: IntArray) -> None:
        """Begins to read the samples of clients who are likely to be next, and needed in this order.

        It waits until all are there that were asked for. Where there is not enough room beside those, it does nothing.
        """
        self._stop_expecting()
        pool = ThreadPoolExecutor(1, thread_name_prefix="expected-samples")
        self._expecting = pool.submit(self._prepare, np.array([*dict.fromkeys(clients.tolist())], dtype=np.int64))
        pool.shutdown(wait=False)

    def parts(self, clients: IntArray, counts: IntArray) -> list[slice]:
        """As many as it gives at once, or a single one who has more; whatever is kept already."""
        if not len(clients):
            return [slice(None)]
        most_rows = max(self._most_bytes // max(self._row_bytes(clients), 1), 1)
        return [slice(None)] if counts.sum() <= most_rows else pieces_of(counts, most_rows)

    def _prepare(self, clients: IntArray) -> None:
        self._finish_pieces()
        missing = self._missing(clients)
        if len(missing) and self._has_room(missing):
            self._add(missing, clients)

    def _begins_of(self, clients: IntArray) -> IntArray:
        """Where the samples of each client begin; -1 if they are not there, nor coming."""
        known = self._begins.get
        return np.array([known(client, -1) for client in clients.tolist()], dtype=np.int64)

    def _missing(self, clients: IntArray) -> IntArray:
        return np.array([client for client in clients.tolist() if client not in self._begins], dtype=np.int64)

    def _stop_expecting(self) -> None:
        """From now on, nobody but the caller changes what is known."""
        if self._expecting is not None:
            self._expecting.exception()  # if there is one, it comes again when the samples are asked for
            self._expecting = None

    def _finish_pieces(self) -> None:
        """Returns when all pieces of the last time are there, or known not to come; the current stream sees them."""
        failed = False
        for piece in dict.fromkeys(self._pieces.values()):
            failed = piece.exception() is not None or failed
            if not failed:
                piece.result().wait()
        if failed:
            self._forget()
        self._pieces = {}

    def _has_room(self, missing: IntArray) -> bool:
        rows = int(self._data.counts(missing, "train").sum())
        return (self._used + rows) * self._row_bytes(missing) <= self._limit_bytes

    def _add(self, missing: IntArray, needed: IntArray) -> None:
        """Lets samples come."""
        if self._used and not self._has_room(missing):
            self._forget()
            missing = needed  # start over with those who are needed now
        counts = self._data.counts(missing, "train")
        row_bytes = self._row_bytes(missing)
        total, most = self._used + int(counts.sum()), self._limit_bytes // max(row_bytes, 1)
        self._reserve(self._columns or _read(self._data, missing[:1])[0], total, most)
        begins = self._used + np.cumsum(counts) - counts
        self._begins.update(zip(missing.tolist(), begins.tolist(), strict=True))
        self._used = total
        pieces = pieces_of(counts, max(_PIECE_BYTES // max(row_bytes, 1), 1))
        pool = ThreadPoolExecutor(min(_PIECES_AT_ONCE, len(pieces)), thread_name_prefix="samples")
        for piece in pieces:
            coming = pool.submit(self._bring, self._columns, missing[piece], int(begins[piece.start]), self._made)
            self._pieces.update(dict.fromkeys(missing[piece].tolist(), coming))
        pool.shutdown(wait=False)

    def _bring(self, columns: Tensors, clients: IntArray, begin: int, made: Milestone) -> Milestone:
        """Reads the samples of clients and copies them to their rows."""
        with self._reading:  # one piece after the other, by all cores
            new, _ = _read(self._data, clients)
        arrived = Milestone(self._device)
        with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            made.wait()
            for name, values in new.items():
                columns[name][begin : begin + len(values)].copy_(values)
            arrived.reach()
        return arrived

    def _forget(self) -> None:
        self._columns, self._used, self._begins, self._pieces = {}, 0, {}, {}

    def _row_bytes(self, clients: IntArray) -> int:
        """What one sample takes, which the first one of all tells."""
        if self._bytes_of_a_row is None:
            like, _ = _read(self._data, clients[:1])
            self._bytes_of_a_row = sum(t.element_size() * prod(t.shape[1:]) for t in like.values())
        return self._bytes_of_a_row

    def _reserve(self, like: Tensors, rows: int, most_rows: int) -> None:
        """Makes room for so many rows, and for twice as many when it has to grow."""
        capacity = len(next(iter(self._columns.values()))) if self._columns else -1
        if rows <= capacity:
            return
        capacity = max(rows, min(2 * rows, most_rows))
        columns: Tensors = {}
        for name, t in like.items():
            # Zeros, since batches are filled up with a row that may not be there yet: it does not count, but is read.
            grown: Tensor = torch.zeros(capacity, *t.shape[1:], dtype=t.dtype, device=self._device)
            if self._used:
                grown[: self._used] = self._columns[name][: self._used]
            columns[name] = grown
        self._columns = columns
        self._made = Milestone(self._device)
        self._made.reach()


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
