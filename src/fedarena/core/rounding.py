"""Numbers that differ, but not any more when they are rounded to as many digits as models compute with."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_HARMLESS = 1e-3  # of the standard deviation, by which rounding may change a number


def changed_by_rounding(values: npt.ArrayLike) -> tuple[float, float] | None:
    """A number that float32 changes by far more than numbers of its column differ, and what it becomes.

    `values` have a row per sample. Where rounding does not matter, None.
    """
    given = np.asarray(values, dtype=np.float64)
    if not given.size:
        return None
    columns = given.reshape(len(given), -1)
    with np.errstate(over="ignore", invalid="ignore"):
        error = np.abs(columns - columns.astype(np.float32))
        error = np.where(np.isfinite(error), error, 0.0)  # what is missing, or too large, is refused elsewhere
        known = np.isfinite(columns)
        number = np.maximum(known.sum(axis=0), 1)
        mean = np.where(known, columns, 0.0).sum(axis=0) / number
        deviation = np.sqrt(np.square(np.where(known, columns - mean, 0.0)).sum(axis=0) / number)
    harmed = np.argwhere((error > _HARMLESS * deviation) & (deviation > 0))
    if not len(harmed):
        return None
    before = columns[tuple(harmed[0])]
    return float(before), float(np.float32(before))
