"""Values that models can be fitted to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedarena.hpo.optimizers.axes import FloatArray

_WORST = 5.0  # how many times as far from the best as the median anything may be


def tamed(values: Sequence[float]) -> FloatArray:
    """Values of which none is far worse than most: what diverged tells where not to look, and nothing about scale.

    Whatever is further from the best than five times the median is, infinities above all, is moved to there.
    """
    told = np.asarray(values, dtype=np.float64)
    finite = told[np.isfinite(told)]
    if finite.size == 0:
        return np.zeros_like(told)
    best, median = finite.min(), float(np.median(finite))
    with np.errstate(over="ignore"):
        worst = best + _WORST * (median - best)
    if not best < worst < np.inf:  # most are equally good, or too large for such sums
        worst = finite.max()
    tame = np.where(np.isfinite(told), told, worst)
    limited: FloatArray = np.minimum(tame, worst)
    return limited
