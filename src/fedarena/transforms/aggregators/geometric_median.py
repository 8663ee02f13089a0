"""The geometric median. Pillutla, Kakade, Harchaoui, "Robust Aggregation for Federated Learning" (RFA), IEEE TSP 2022.

The smoothed Weiszfeld algorithm: from the weighted mean z of the updates x_i, again and again,
β_i = α_i / max(ν, ||z - x_i||);  z = Σ β_i x_i / Σ β_i.
"""

from __future__ import annotations

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.transforms.aggregators.base import AGGREGATORS
from fedarena.transforms.aggregators.collected import Collected
from fedarena.transforms.aggregators.defence import Defence
from fedarena.transforms.rows import FloatArray

_ENOUGH = 1e-8  # how little weights change, relative to each other, when it is over


@AGGREGATORS.register("geometric_median")
class GeometricMedian(Defence):
    """The point with the smallest sum of distances to all updates, by at most `iterations` passes over them.

    Distances below `smoothing` count as that. Clients count as the algorithm says, as in the paper, or equally if not
    `weighted`.
    """

    def __init__(
        self,
        *,
        iterations: int = 10,
        smoothing: float = 1e-6,
        weighted: bool = True,
        staleness_exponent: float = 0.5,
    ):
        super().__init__(staleness_exponent=staleness_exponent)
        if iterations < 1:
            raise BadInputError(f"aggregator.iterations must be at least 1, not {iterations}")
        if not smoothing > 0:
            raise BadInputError(f"aggregator.smoothing must be above 0, not {smoothing}")
        self.iterations, self.smoothing, self.weighted = iterations, smoothing, weighted

    def weigh(self, updates: Collected) -> FloatArray:
        """The weights of the last pass."""
        given = updates.weights if self.weighted else np.ones(len(updates))
        weights: FloatArray = given / given.sum()
        for _ in range(self.iterations):
            distances = updates.distances_to(updates.weighted_mean(weights, only_changes=True))
            nearer = given / np.maximum(distances, self.smoothing)
            nearer = nearer / nearer.sum()
            settled = np.abs(nearer - weights).max() <= _ENOUGH * nearer.max()
            weights = nearer
            if settled:
                break
        return weights
