"""The scores of very many samples, for metrics that need all of them: in memory up to a limit, then in a file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
BoolArray = npt.NDArray[np.bool_]

# What is kept in memory, and what is read back from the file at a time.
LIMIT_BYTES = 1 << 28
CHUNK_BYTES = 1 << 25


class Scores:
    """Scores of every class for some samples, and the scores of those classes that are right.

    Nothing depends on the order in which samples or other `Scores` are added.
    """

    def __init__(self, limit_bytes: int = LIMIT_BYTES):
        self.samples = 0
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._chunks: list[Array] = []  # that are in memory
        self._files: list[_ScoreFile] = []
        self._labels: list[Array] = []  # of the classes that are right …
        self._positives: list[Array] = []  # … their scores
        self._undefined: list[Array] = []  # classes of which a score is not a number

    def add(self, scores: Array, right: BoolArray) -> None:
        """Adds samples: both are ``[samples, classes]``."""
        rows, labels = np.nonzero(right)
        self._labels.append(labels)
        self._positives.append(scores[rows, labels])
        self._undefined.append(np.flatnonzero(np.isnan(scores).any(axis=0)))
        self._keep(scores)

    def merge(self, other: Scores) -> None:
        """Adds the samples of others, which must not be used any more."""
        self._labels += other._labels
        self._positives += other._positives
        self._undefined += other._undefined
        self._files += other._files
        self.samples += other.samples - sum(map(len, other._chunks))
        for chunk in other._chunks:
            self._keep(chunk)

    def _keep(self, scores: Array) -> None:
        self.samples += len(scores)
        self._chunks.append(scores)
        self._bytes += scores.nbytes
        if self._bytes > self._limit_bytes:
            if not self._files:
                self._files.append(_ScoreFile())
            for chunk in self._chunks:
                self._files[0].append(chunk)
            self._chunks, self._bytes = [], 0

    @property
    def positives(self) -> tuple[Array, Array]:
        """The class and the score of everything that is right."""
        if not self._labels:
            return np.empty(0, dtype=np.int64), np.empty(0)
        return np.concatenate(self._labels), np.concatenate(self._positives)

    @property
    def undefined(self) -> Array:
        """The classes of which a score is not a number, as those of a model that has diverged are."""
        return np.unique(np.concatenate([np.empty(0, dtype=np.int64), *self._undefined]))

    def chunks(self) -> Iterator[Array]:
        """All scores, some samples at a time."""
        for file in self._files:
            yield from file.chunks()
        yield from self._chunks


class _ScoreFile:
    """Scores in a file that is gone as soon as nobody needs it."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="fedarena-scores-")  # noqa: SIM115  (open as long as it is used)
        self._dtype: np.dtype[Any] | None = None
        self._classes = 0

    def append(self, scores: Array) -> None:
        self._dtype, self._classes = scores.dtype, scores.shape[1]
        self._file.seek(0, 2)
        self._file.write(np.ascontiguousarray(scores).data)

    def chunks(self) -> Iterator[Array]:
        if self._dtype is None:
            return
        row_bytes = self._classes * self._dtype.itemsize
        self._file.seek(0)
        while data := self._file.read(max(1, CHUNK_BYTES // row_bytes) * row_bytes):
            yield np.frombuffer(data, dtype=self._dtype).reshape(-1, self._classes)
