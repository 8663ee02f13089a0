"""Noise that is correlated over rounds, so that much of it cancels out in the sum of all updates.

Choquette-Choo et al., "(Amplified) Banded Matrix Factorization: A unified approach to private training", NeurIPS 2023;
McKenna, "Scaling up the Banded Matrix Factorization Mechanism for Differentially Private ML", 2024 (Toeplitz matrices).

What training needs are the sums of the updates so far, A X, where row t of X is the (clipped, summed) update of round t
and A is lower triangular, all ones. The mechanism releases A (X + C⁻¹ Z) with independent Gaussian Z, which is C X + Z
after postprocessing. C is lower triangular, Toeplitz, and has `band` diagonals with c₀ = 1: columns that are `band` and
more apart are orthogonal. If a client takes part at most every `band` rounds, k times in all, C X changes by at most
√k ‖c‖ times the clipping bound. Of all such C, the one is taken that makes the mean squared error of the sums smallest.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Banded:
    """The factorization for a number of rounds: the first column of C, up to its last number that is not zero."""

    rounds: int
    coefficients: tuple[float, ...]

    @property
    def band(self) -> int:
        """How many rounds must lie between two in which a client takes part, counting one of them."""
        return len(self.coefficients)

    def mean_squared_error(self) -> float:
        """Of the noise in the sums of the updates, averaged over rounds, with Z of the deviation ‖c‖."""
        return _error(np.array(self.coefficients), self.rounds)[0] / self.rounds


@lru_cache(maxsize=32)
def best_banded(rounds: int, band: int) -> Banded:
    """The Toeplitz matrix of this band with the smallest error over so many rounds."""
    from scipy.optimize import minimize

    band = min(band, rounds)
    if band == 1:
        return Banded(rounds, (1.0,))

    def logarithm(rest: FloatArray) -> tuple[float, FloatArray]:
        value, gradient = _error(np.concatenate([[1.0], rest]), rounds)
        return float(np.log(value)), gradient[1:] / value

    # Without a band the square root of A is the best Toeplitz matrix: its coefficients are (2j choose j) / 4^j.
    places = np.arange(1, band)
    start = np.cumprod((2 * places - 1) / (2 * places), dtype=np.float64)
    found = minimize(logarithm, start, jac=True, method="L-BFGS-B", options={"maxiter": 500, "ftol": 1e-12})
    best = found.x if found.fun <= logarithm(start)[0] else start
    return Banded(rounds, (1.0, *best.tolist()))


def _error(c: FloatArray, rounds: int) -> tuple[float, FloatArray]:
    """‖c‖² ‖A C⁻¹‖² (Frobenius) and its gradient.

    Toeplitz matrices multiply as power series do: the first column s of A C⁻¹ is the series 1 / ((1 - x) c(x)), it
    occurs in the matrix rounds - t times at place t, and its derivative by c_j is -s / c, moved by j places.
    """
    sums = _divided(np.ones(rounds), c)
    derived = _divided(sums, c)
    times = rounds - np.arange(rounds)
    total = float(times @ sums**2)
    slopes = np.array([-2 * (times[j:] * sums[j:]) @ derived[: rounds - j] for j in range(len(c))])
    norm = float(c @ c)
    return norm * total, norm * slopes + 2 * total * c


def _divided(series: FloatArray, by: FloatArray) -> Any:
    from scipy.signal import lfilter

    with np.errstate(over="ignore", invalid="ignore"):
        return lfilter([1.0], by, series)
