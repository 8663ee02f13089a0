"""Photos on their way into a store: one file with their contents, and a checkpoint that says which are there.

Photos of a user lie scattered over the archives, and an interrupted build must not read everything again. So they are
taken down as they come, and a store is written from there, user by user.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import numpy as np

from fedarena.core.errors import DamagedFileError
from fedarena.core.files import write_bytes
from fedarena.data.store.schema import AnyArray, IntArray

CHECKPOINT_BYTES = 1 << 28
CHECKPOINT_PICTURES = 1 << 15
_CONTENT_NAME = "pictures.bin"
_INDEX_NAME = "pictures.index"
_ABSENT = -1
_CHECKSUM_BYTES = 8


class PictureStage:
    """The pictures of a build in its work folder; what was added after the last checkpoint is forgotten."""

    def __init__(self, folder: Path, pictures: int):
        self._content_path, self._index_path = folder / _CONTENT_NAME, folder / _INDEX_NAME
        # Of every picture where it begins, how many bytes it has and their CRC-32; one row more for where the input
        # goes on.
        self._index: AnyArray = np.full((pictures + 1, 3), _ABSENT, dtype=np.int64)
        self._load()
        self._file = open(self._content_path, "ab")  # noqa: SIM115 - closed by __exit__
        self._end = self._file.tell()
        self._bytes_since = self._pictures_since = 0

    def __enter__(self) -> PictureStage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def missing_of(self, pictures: IntArray) -> IntArray:
        """Those of some pictures that are not there yet, in the same order."""
        missing: IntArray = pictures[self._index[pictures, 0] == _ABSENT]
        return missing

    def first(self, pictures: IntArray) -> bytes:
        """The content of the first of some pictures that is there."""
        return self.read(pictures[self._index[pictures, 0] != _ABSENT][:1])[0]

    @property
    def position(self) -> int:
        """Where the input goes on: what lies before was taken down."""
        return max(int(self._index[-1, 0]), 0)

    def add(self, pictures: Mapping[int, bytes], position: int) -> None:
        """Takes down pictures from this place in the input; all pictures from places before have been added."""
        rows = np.fromiter(pictures, dtype=np.int64, count=len(pictures))
        lengths = np.fromiter(map(len, pictures.values()), dtype=np.int64, count=len(pictures))
        self._file.write(b"".join(pictures.values()))
        self._index[rows, 0] = self._end + np.cumsum(lengths) - lengths
        self._index[rows, 1] = lengths
        self._index[rows, 2] = np.fromiter(map(zlib.crc32, pictures.values()), dtype=np.int64, count=len(pictures))
        self._index[-1, 0] = position
        total = int(lengths.sum())
        self._end += total
        self._bytes_since += total
        self._pictures_since += len(pictures)
        if self._bytes_since >= CHECKPOINT_BYTES or self._pictures_since >= CHECKPOINT_PICTURES:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Makes everything durable that was added so far."""
        self._file.flush()
        os.fsync(self._file.fileno())
        index = self._index.tobytes()
        write_bytes(self._index_path, _checksum(index) + index)
        self._bytes_since = self._pictures_since = 0

    def read(self, pictures: IntArray) -> list[bytes]:
        """The contents of some pictures; raises if one is not what was taken down."""
        self._file.flush()
        contents = []
        with open(self._content_path, "rb") as file:
            for start, length, crc32 in self._index[pictures].tolist():
                contents.append(os.pread(file.fileno(), length, start))
                if zlib.crc32(contents[-1]) != crc32:
                    raise DamagedFileError(
                        f"{self._content_path} is damaged: from byte {start:,} on it is not what was written there; it "
                        "was removed, and the next attempt starts from the beginning"
                    )
        return contents

    def _load(self) -> None:
        """Goes back to the last checkpoint, or to the beginning where there is none that can be used."""
        try:
            stored = self._index_path.read_bytes()
            index = np.frombuffer(stored[_CHECKSUM_BYTES:], dtype=np.int64).reshape(self._index.shape)
            ends = index[:-1, :2][index[:-1, 0] != _ABSENT].sum(axis=1)
            written = int(ends.max(initial=0))
            is_intact = stored[:_CHECKSUM_BYTES] == _checksum(stored[_CHECKSUM_BYTES:])
            if is_intact and self._content_path.stat().st_size >= written:
                os.truncate(self._content_path, written)
                self._index = index.copy()
                return
        except (OSError, ValueError):
            pass
        self._content_path.write_bytes(b"")


def _checksum(content: bytes) -> bytes:
    return zlib.crc32(content).to_bytes(_CHECKSUM_BYTES, "little")
