"""How closely two quantities go together: coefficients of Pearson and Spearman, with bootstrap intervals."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedarena.core import streams
from fedarena.core.later import later

if TYPE_CHECKING:
    from scipy import stats
else:
    stats = later("scipy.stats")

FloatArray = npt.NDArray[np.float64]
Coefficient = Callable[..., FloatArray]  # of `x`, `y` and the `axis` along which points lie

FEWEST_POINTS = 3
CONFIDENCE = 0.95  # of intervals
# A bootstrap of fewer draws the same few points again and again, and is far too sure of itself.
FEWEST_FOR_INTERVAL = 8
_RELATIVE_ROUNDING = 1e-9


@dataclass(frozen=True)
class Association:
    """A coefficient and the interval that a bootstrap gives it, if there are enough points."""

    value: float
    interval: tuple[float, float] | None


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Without SciPy's warnings about points that do not vary, for which there is NaN."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        yield


def varies(values: FloatArray, axis: int = -1) -> npt.NDArray[np.bool_]:
    """Whether values differ by more than rounding."""
    return np.asarray(np.ptp(values, axis=axis) > _RELATIVE_ROUNDING * np.abs(values).max(axis=axis))


def pearson(x: FloatArray, y: FloatArray, axis: int = -1) -> FloatArray:
    """Pearson's r, from -1 to 1; NaN where one of them does not vary.

    >>> pearson(np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 5.0])).item().__round__(9)
    1.0
    """
    with _without_warnings():
        found = stats.pearsonr(x, y, axis=axis).statistic
    return np.where(varies(x, axis) & varies(y, axis), found, np.nan)


def spearman(x: FloatArray, y: FloatArray, axis: int = -1) -> FloatArray:
    """Spearman's rho: Pearson's r of the ranks; equal values share the mean of their ranks."""
    return pearson(stats.rankdata(x, axis=axis), stats.rankdata(y, axis=axis), axis=axis)


def associate(
    coefficient: Coefficient,
    x: FloatArray,
    y: FloatArray,
    seed: int,
    resamples: int = 1000,
) -> Association | None:
    """A coefficient with the percentile interval of a bootstrap; None where points are too few or do not vary."""
    if len(x) < FEWEST_POINTS or np.isnan(value := float(coefficient(x, y))):
        return None
    if len(x) < FEWEST_FOR_INTERVAL:
        return Association(value, None)
    with _without_warnings():
        found = stats.bootstrap(
            (x, y),
            coefficient,
            paired=True,
            n_resamples=resamples,
            confidence_level=CONFIDENCE,
            method="percentile",
            random_state=streams.generator(seed, "bootstrap"),
        )
    low, high = found.confidence_interval
    if np.isnan(low):  # A draw of nothing but the same point says nothing, and must not decide the interval.
        low, high = np.nanquantile(found.bootstrap_distribution, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Association(value, (float(low), float(high)))
