"""Clients whose samples are rows of some table, divided into parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fedarena.data.store.schema import GROUPS, PARTS, Group, IntArray


@dataclass(frozen=True)
class DividedClients:
    """The clients of a federation, and the rows of their samples in a table."""

    ids: list[str]
    groups: list[Group]
    counts: IntArray  # [clients, parts]
    rows: IntArray  # of all clients one after the other, each sorted by part
    users: IntArray | None = None  # who they are in the files, if they are somebody

    def training_rows(self) -> IntArray:
        """Samples for training of training clients."""
        is_training = np.zeros(self.counts.shape, dtype=bool)
        is_training[np.array(self.groups) == "train", PARTS.index("train")] = True
        rows: IntArray = self.rows[np.repeat(is_training.ravel(), self.counts.ravel())]
        return rows

    def pieces(self, rows_at_once: int) -> Iterator[tuple[slice, IntArray]]:
        """Some clients at a time, and their rows."""
        ends = np.cumsum(self.counts.sum(axis=1))
        bounds = [0, *(np.flatnonzero(np.diff(ends // rows_at_once)) + 1).tolist(), len(ends)]
        row = 0
        for first, last in pairwise(bounds):
            yield slice(first, last), self.rows[row : ends[last - 1]]
            row = ends[last - 1]


def group_of(counts: IntArray) -> Group:
    """Who has samples for training is trained on; the others only help to validate, or to test."""
    has_samples = counts[: len(PARTS)] > 0
    return GROUPS[int(np.argmax(has_samples))] if has_samples.any() else "train"
