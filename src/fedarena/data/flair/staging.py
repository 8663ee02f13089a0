"""Photos on their way into a store: one file with their contents, and a checkpoint that says which are there.

Photos of a user lie scattered over the archives, and an interrupted build must not read everything again. So they are
taken down as they come, and a store is written from there, user by user.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

import numpy as np

from fedarena.core.files import write_bytes
from fedarena.data.store.schema import AnyArray, IntArray

CHECKPOINT_BYTES = 1 << 28
CHECKPOINT_PICTURES = 1 << 15
_CONTENT_NAME = "pictures.bin"
_INDEX_NAME = "pictures.index"
_ABSENT = -1


class PictureStage:
    """The pictures of a build in its work folder; what was added after the last checkpoint is forgotten."""

    def __init__(self, folder: Path, pictures: int):
        self._content_path, self._index_path = folder / _CONTENT_NAME, folder / _INDEX_NAME
        # Of every picture where it begins and how many bytes it has; one row more for where the input goes on.
        self._index: AnyArray = np.full((pictures + 1, 2), _ABSENT, dtype=np.int64)
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

    def add(self, picture: int, content: bytes, position: int) -> None:
        """Takes down a picture from this place in the input; all pictures from places before have been added."""
        if self._index[picture, 0] != _ABSENT:  # an archive was begun before, or has a file twice
            return
        self._file.write(content)
        self._index[picture] = self._end, len(content)
        self._index[-1, 0] = position
        self._end += len(content)
        self._bytes_since += len(content)
        self._pictures_since += 1
        if self._bytes_since >= CHECKPOINT_BYTES or self._pictures_since >= CHECKPOINT_PICTURES:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Makes everything durable that was added so far."""
        self._file.flush()
        os.fsync(self._file.fileno())
        write_bytes(self._index_path, self._index.tobytes())
        self._bytes_since = self._pictures_since = 0

    def read(self, pictures: IntArray) -> list[bytes]:
        """The contents of some pictures."""
        self._file.flush()
        with open(self._content_path, "rb") as file:
            descriptor = file.fileno()
            return [os.pread(descriptor, length, start) for start, length in self._index[pictures].tolist()]

    def _load(self) -> None:
        """Goes back to the last checkpoint, or to the beginning where there is none that can be used."""
        try:
            index = np.frombuffer(self._index_path.read_bytes(), dtype=np.int64).reshape(self._index.shape)
            ends = index[:-1][index[:-1, 0] != _ABSENT].sum(axis=1)
            written = int(ends.max(initial=0))
            if self._content_path.stat().st_size >= written:
                os.truncate(self._content_path, written)
                self._index = index.copy()
                return
        except (OSError, ValueError):
            pass
        self._content_path.write_bytes(b"")
