"""Whole numbers whose chances are those of a normal distribution: the discrete Gaussian.

Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy", NeurIPS 2020: the chance of k is
proportional to exp(-k² / 2σ²). Drawn as in their Algorithm 3: a number of the discrete Laplace distribution of the
scale t = floor(σ) + 1 is accepted with the chance exp(-(|k| - σ²/t)² / 2σ²), else another one is drawn; for many
numbers at once, with chances in double precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Draws = Callable[[int], npt.NDArray[np.uint64]]
_SPARE = 1.5  # of numbers that are drawn for one that is accepted: about 1.3 are needed


def discrete_normals(count: int, deviation: float, draws: Draws) -> npt.NDArray[np.int64]:
    """So many numbers of the discrete Gaussian of this deviation, made of random bits."""
    scale = math.floor(deviation) + 1
    found: list[npt.NDArray[np.int64]] = []
    missing = count
    while missing:
        number = math.ceil(_SPARE * missing) + 16
        bits = draws(2 * number)
        sizes = _geometric(bits[:number], scale)
        # The lowest bit decides about the sign, so that it is not used for anything else.
        signs = 1 - 2 * (bits[:number] & np.uint64(1)).astype(np.int64)
        chance = np.exp(-((sizes - deviation**2 / scale) ** 2) / (2 * deviation**2))
        # Zero with a negative sign would count twice.
        accepted = (_uniform(bits[number:]) < chance) & ~((sizes == 0) & (signs < 0))
        some = (signs * sizes)[accepted][:missing]
        found.append(some)
        missing -= len(some)
    return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)


def _geometric(bits: npt.NDArray[np.uint64], scale: int) -> npt.NDArray[np.int64]:
    """Numbers k from 0 on whose chances fall like exp(-k / scale)."""
    found: npt.NDArray[np.int64] = np.floor(-scale * np.log1p(-_uniform(bits))).astype(np.int64)
    return found


def _uniform(bits: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Numbers in [0, 1) from the upper 53 bits."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
