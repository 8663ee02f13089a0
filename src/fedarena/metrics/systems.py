"""What a run costs in virtual time, traffic and energy, and how much of that was for nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

USED = "used"
# All ways in which a job ends, in the order in which they are shown.
OUTCOMES = (
    USED,
    "late",
    "stale",
    "left while downloading",
    "left while training",
    "left while uploading",
    "crashed",
    "not available",
)


def cost_to_level(scores: FloatArray, spent: FloatArray, level: float) -> float | None:
    """What was `spent` until the first of `scores` at or above `level`; None where there is none.

    Only what was measured counts: nothing is interpolated. Scores that are NaN reach no level.
    """
    reached = np.flatnonzero(scores >= level)
    return float(spent[reached[0]]) if reached.size else None


def round_levels(low: float, high: float) -> list[float]:
    """Up to four round numbers above `low` and not above `high`; none where they are closer than a few thousandths.

    Where they are far apart, the numbers are rounder: hundreds between some hundreds and some thousands.
    """
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return []
    scale = 10.0 ** max(0, math.ceil(math.log10(high - low)))
    for step in (scale * part for part in (0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)):
        # Rounded, since 0.6 / 0.05 is a little less than 12.
        first, last = math.floor(round(low / step, 9)) + 1, math.floor(round(high / step, 9))
        if last - first >= 2:
            return [round(index * step, 3) for index in range(max(first, last - 3), last + 1)]
    return []


def elapsed_hours(end_seconds: FloatArray) -> FloatArray:
    """Hours since the start of the run at the end of every round; the first of `end_seconds` is the start."""
    return (end_seconds - end_seconds[:1]) / 3600


def round_seconds(end_seconds: FloatArray) -> FloatArray:
    """How long every round took; there is none before the first of `end_seconds`, the start."""
    return np.diff(end_seconds)


def count_outcomes(names: Sequence[str], codes: IntArray) -> dict[str, int]:
    """How many jobs ended in which way: the known ways in their usual order, then whatever else there is.

    A job's outcome is the name that its code points at.
    """
    counts = dict(zip(names, np.bincount(codes, minlength=len(names)).tolist(), strict=True))
    return {name: counts[name] for name in dict.fromkeys((*OUTCOMES, *sorted(names))) if counts.get(name)}


def wasted_share(spent: FloatArray, used: BoolArray) -> float:
    """The share of what was spent that went into jobs that were not used; zero where nothing was spent."""
    total = float(np.nansum(spent))
    return float(np.nansum(spent[~used])) / total if total else 0.0


def staleness_counts(staleness: IntArray, used: BoolArray) -> IntArray:
    """How many used updates were 0, 1, 2, … versions old."""
    return np.bincount(staleness[used]).astype(np.int64)
