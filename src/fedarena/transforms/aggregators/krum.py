"""The update that is nearest to its neighbours. Blanchard et al., "Machine Learning with Adversaries", NeurIPS 2017.

With f corrupted clients among n, the score of an update is the sum of its squared distances to the n - f - 2 nearest
others. n ≥ 2f + 3 is needed.
"""

from __future__ import annotations

import numpy as np

from fedarena.transforms.aggregators.base import AGGREGATORS
from fedarena.transforms.aggregators.collected import Collected
from fedarena.transforms.aggregators.defence import Defence, check_share, corrupted_among, too_few
from fedarena.transforms.rows import FloatArray


@AGGREGATORS.register("krum")
class Krum(Defence):
    """The update of one client: that with the smallest score, if a `share` of the clients (rounded up) is corrupted."""

    def __init__(self, *, share: float = 0.1, staleness_exponent: float = 0.5):
        super().__init__(staleness_exponent=staleness_exponent)
        check_share(share)
        self.share = share

    def shortage(self, updates: int) -> str | None:
        """The paper's condition."""
        corrupted = corrupted_among(self.share, updates)
        return too_few(updates, 2 * corrupted + 3, "2f + 3", corrupted)

    def weigh(self, updates: Collected) -> FloatArray:
        """1 for the chosen one."""
        weights = np.zeros(len(updates))
        weights[np.argmin(self.scores(updates))] = 1.0
        return weights

    def scores(self, updates: Collected) -> FloatArray:
        """The smaller, the nearer to others."""
        return krum_scores(updates.squared_distances(), corrupted_among(self.share, len(updates)))


def krum_scores(squared_distances: FloatArray, corrupted: int) -> FloatArray:
    """The sums of everybody's squared distances to the n - f - 2 nearest others."""
    count = len(squared_distances)
    nearest = np.sort(squared_distances, axis=1)[:, 1 : count - corrupted - 1]  # the first is the distance to itself
    scores: FloatArray = nearest.sum(1)
    return scores
