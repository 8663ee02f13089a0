"""How many samples clients get when they differ in size by a law."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedarena.data.store.schema import IntArray


def proportional_sizes(total: int, weights: npt.NDArray[np.float64], min_samples: int) -> IntArray:
    """Divides `total` by weights, each part less than one away from its exact share; nobody gets less than the minimum.

    Those whose share would be below `min_samples` get just that, and the others share the rest by their weights.
    """
    sizes = np.full(len(weights), min_samples, dtype=np.int64)
    sharing = np.ones(len(weights), dtype=bool)
    while True:
        rest = total - min_samples * int((~sharing).sum())
        exact = rest * (weights[sharing] / weights[sharing].sum())
        if (exact >= min_samples).all() or len(exact) == 1:
            break
        sharing[sharing] = exact >= min_samples
    floors = np.floor(exact).astype(np.int64)
    left_over = rest - int(floors.sum())
    floors[np.argsort(floors - exact, kind="stable")[:left_over]] += 1
    sizes[sharing] = floors
    return sizes
