"""How scores are rounded, which is what makes tables small."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

MANTISSA_BITS = 12  # of a score: a relative error of at most 1.3e-4
FloatArray = npt.NDArray[np.float32]


def rounded(values: npt.ArrayLike, bits: int = MANTISSA_BITS) -> FloatArray:
    """Numbers with so many bits of mantissa, to the nearest."""
    numbers = np.asarray(values, dtype=np.float32)
    dropped = 23 - bits
    raw = numbers.view(np.uint32).astype(np.uint64)
    near = (raw + np.uint64(1 << (dropped - 1))) >> np.uint64(dropped) << np.uint64(dropped)
    cut = near.astype(np.uint32).view(np.float32)
    return np.where(np.isfinite(numbers), cut, numbers)
