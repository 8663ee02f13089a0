"""Rows that lie in stretches, such as the samples of some clients in the table of all."""

from __future__ import annotations

import numpy as np

from fedarena.data.store.schema import IntArray


def rows_of(starts: IntArray, counts: IntArray) -> IntArray:
    """All rows of some stretches, one stretch after the other.

    >>> rows_of(np.array([10, 0]), np.array([3, 2])).tolist()
    [10, 11, 12, 0, 1]
    """
    before = np.cumsum(counts) - counts
    rows: IntArray = np.repeat(starts - before, counts) + np.arange(counts.sum(), dtype=np.int64)
    return rows
