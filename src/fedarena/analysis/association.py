"""How closely two quantities go together: coefficients of Pearson and Spearman, with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedarena.core import streams

FloatArray = npt.NDArray[np.float64]
Coefficient = Callable[[FloatArray, FloatArray], float]

FEWEST_POINTS = 3
# A bootstrap of fewer draws the same few points again and again, and is far too sure of itself.
FEWEST_FOR_INTERVAL = 8
_RELATIVE_ROUNDING = 1e-9


@dataclass(frozen=True)
class Association:
    """A coefficient and the interval that a bootstrap gives it, if there are enough points."""

    value: float
    interval: tuple[float, float] | None


def varies(values: FloatArray) -> bool:
    """Whether values differ by more than rounding."""
    return bool(np.ptp(values) > _RELATIVE_ROUNDING * np.abs(values).max())


def pearson(x: FloatArray, y: FloatArray) -> float:
    """Pearson's r, from -1 to 1; NaN where one of them does not vary.

    >>> pearson(np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 5.0])).__round__(9)
    1.0
    """
    if not (varies(x) and varies(y)):
        return float("nan")
    x, y = x - x.mean(), y - y.mean()
    return float(np.clip((x / np.linalg.norm(x)) @ (y / np.linalg.norm(y)), -1, 1))


def spearman(x: FloatArray, y: FloatArray) -> float:
    """Spearman's rho: Pearson's r of the ranks; equal values share the mean of their ranks."""
    return pearson(_ranks(x), _ranks(y))


def associate(
    coefficient: Coefficient,
    x: FloatArray,
    y: FloatArray,
    seed: int,
    resamples: int = 1000,
    confidence: float = 0.95,
) -> Association | None:
    """A coefficient with the percentile interval of a bootstrap; None where points are too few or do not vary."""
    if len(x) < FEWEST_POINTS or np.isnan(value := coefficient(x, y)):
        return None
    if len(x) < FEWEST_FOR_INTERVAL:
        return Association(value, None)
    random = streams.generator(seed, "bootstrap")
    drawn = random.integers(len(x), size=(resamples, len(x)))
    found = np.array([coefficient(x[rows], y[rows]) for rows in drawn])
    # A draw of nothing but the same point says nothing.
    low, high = np.nanquantile(found, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Association(value, (float(low), float(high)))


def _ranks(values: FloatArray) -> FloatArray:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[place], dtype=np.float64)
