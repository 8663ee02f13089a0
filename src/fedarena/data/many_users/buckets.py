"""Rows of many users, sorted into buckets on disk: all rows of a user are in the same one, in the order they came.

What does not fit into memory is grouped by user that way: a bucket does fit. Rows are appended to one file, and a
checkpoint says up to where the input was read and which bytes of the file belong to which bucket. A build that was
interrupted drops what was written after the last checkpoint and reads on from there.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fedarena.core.files import write_json
from fedarena.data.store.schema import IntArray

CHECKPOINT_BYTES = 1 << 26  # of rows that are held in memory until they are written
INPUT_BYTES_PER_BUCKET = 1 << 25
MAX_BUCKETS = 512
USER = "user"

_ROWS_NAME = "rows.bin"
_STATE_NAME = "rows.json"
_VERSION = 2

Position = dict[str, int]  # where to read on, in words of the reader


@dataclass(frozen=True)
class Piece:
    """Some rows of the input, and where it goes on after them."""

    rows: pa.RecordBatch  # with a column "user"
    position: Position
    fraction: float  # of the input that has been read


Reader = Callable[[Position | None], Iterator[Piece]]


class Buckets:
    """The rows in a work folder, which is emptied unless reading can go on.

    `input_bytes` decides how many buckets there are.
    """

    def __init__(self, folder: Path, input_bytes: int):
        self.count = min(max(-(-input_bytes // INPUT_BYTES_PER_BUCKET), 1), MAX_BUCKETS)
        self._folder = folder
        self._rows_path = folder / _ROWS_NAME
        self._state_path = folder / _STATE_NAME
        self._position: Position | None = None
        self._complete = False
        self._segments: list[list[int]] = []  # of every checkpoint, the bytes that each bucket got
        self._pending: list[pa.RecordBatch] = []
        self._load()

    def fill(self, read: Reader, progress: Callable[[float], None]) -> None:
        """Takes everything that `read` gives from where it was interrupted, unless that was done before."""
        if self._complete:
            return
        for piece in read(self._position):
            self._pending.append(piece.rows)
            if sum(rows.nbytes for rows in self._pending) >= CHECKPOINT_BYTES:
                self._checkpoint(piece.position, complete=False)
            progress(piece.fraction)
        self._checkpoint(None, complete=True)

    def rows(self, bucket: int) -> pa.Table:
        """All rows of one bucket."""
        tables = []
        with open(self._rows_path, "rb") as file:
            start = 0
            for lengths in self._segments:
                if lengths[bucket]:
                    file.seek(start + sum(lengths[:bucket]))
                    tables.append(pa.ipc.open_stream(file.read(lengths[bucket])).read_all())
                start += sum(lengths)
        return pa.concat_tables(tables).combine_chunks() if tables else None

    def _load(self) -> None:
        """Goes back to the last checkpoint, or to the beginning where there is none that can be used."""
        try:
            state: dict[str, Any] = json.loads(self._state_path.read_text(encoding="utf-8"))
            written = sum(map(sum, state["segments"]))
            usable = (state["version"], state["buckets"]) == (_VERSION, self.count)
            if usable and self._rows_path.stat().st_size >= written:
                os.truncate(self._rows_path, written)
                self._position, self._complete, self._segments = state["position"], state["complete"], state["segments"]
                return
        except (OSError, ValueError, KeyError, TypeError):
            pass
        for left_over in self._folder.iterdir():  # also what was made of rows that are read again
            left_over.unlink()
        self._rows_path.write_bytes(b"")

    def _checkpoint(self, position: Position | None, complete: bool) -> None:
        lengths = [0] * self.count
        with open(self._rows_path, "ab") as file:
            for bucket, rows in self._by_bucket():
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, rows.schema) as stream:
                    stream.write_table(rows)
                lengths[bucket] = file.write(sink.getvalue())
            file.flush()
            os.fsync(file.fileno())
        self._pending = []
        self._segments.append(lengths)
        self._position, self._complete = position, complete
        state = {
            "version": _VERSION,
            "buckets": self.count,
            "position": position,
            "complete": complete,
            "segments": self._segments,
        }
        write_json(self._state_path, state)

    def _by_bucket(self) -> Iterator[tuple[int, pa.Table]]:
        if not self._pending:
            return
        rows = pa.Table.from_batches(self._pending).combine_chunks()
        users = rows.column(USER).combine_chunks().dictionary_encode()
        of_user = np.array([_bucket(user, self.count) for user in users.dictionary.to_pylist()], dtype=np.int64)
        of_row = of_user[users.indices.to_numpy()]
        order: IntArray = np.argsort(of_row, kind="stable")
        bounds = np.searchsorted(of_row[order], np.arange(self.count + 1))
        for bucket in range(self.count):
            chosen = order[bounds[bucket] : bounds[bucket + 1]]
            if len(chosen):
                yield bucket, rows.take(pa.array(chosen))


def _bucket(user: str, count: int) -> int:
    return zlib.crc32(user.encode()) % count
