"""What a run costs in virtual time, traffic and energy, and how much of that was for nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_NOTHING = 1e-100  # below it there are no round numbers: steps between them would be zero

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
    "lost with its group",
)


def cost_to_level(scores: FloatArray, spent: FloatArray, level: float, higher_is_better: bool = True) -> float | None:
    """What was `spent` until the first of `scores` that is `level` or better; None where there is none.

    Only what was measured counts: nothing is interpolated. Scores that are NaN reach no level.
    """
    reached = np.flatnonzero(scores >= level if higher_is_better else scores <= level)
    return float(spent[reached[0]]) if reached.size else None


def round_levels(start: float, best: float, higher_is_better: bool = True, span: float | None = 1.0) -> list[float]:
    """Up to four round numbers that are better than `start` and not better than `best`, the best of them last.

    `span` is how far the lowest and the highest value of the metric are apart; None where it has no such bounds.
    There is no level where `start` and `best` are closer than a few thousandths of it, or else of their own size.

    >>> round_levels(0.17, 0.95)
    [0.6, 0.7, 0.8, 0.9]
    >>> round_levels(5000, 2900, higher_is_better=False, span=None)
    [4500.0, 4000.0, 3500.0, 3000.0]
    """
    size = max(abs(start), abs(best)) if span is None else span
    if not (size > _NOTHING and math.isfinite(start) and math.isfinite(best)):
        return []
    sign = 1 if higher_is_better else -1
    exponent = math.ceil(round(math.log10(size), 9))
    for digit, power in ((1, 1), (5, 2), (2, 2), (1, 2), (5, 3), (2, 3), (1, 3)):
        step = digit * 10.0 ** (exponent - power)
        # Rounded, since 0.6 / 0.05 is a little less than 12.
        first, last = math.floor(round(sign * start / step, 9)) + 1, math.floor(round(sign * best / step, 9))
        if last - first >= 2:
            return [round(sign * index * step, 3 - exponent) + 0.0 for index in range(max(first, last - 3), last + 1)]
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
