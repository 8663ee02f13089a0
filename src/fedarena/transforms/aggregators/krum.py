"""The update that is nearest to its neighbours. Blanchard et al., "Machine Learning with Adversaries", NeurIPS 2017.

With f corrupted clients among n, the score of an update is the sum of its squared distances to the n - f - 2 nearest
others. n ≥ 2f + 3 is needed.
"""

from __future__ import annotations

import numpy as np

from fedarena.transforms.aggregators.base import AGGREGATORS
from fedarena.transforms.aggregators.collected import Collected
from fedarena.transforms.aggregators.defence import Defence, check_share, corrupted_among, too_few
from fedarena.transforms.rows import FloatArray, IntArray


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
        weights[self.order(updates)[0]] = 1.0
        return weights

    def order(self, updates: Collected) -> IntArray:
        """The positions of updates, those with the smallest scores first."""
        distances, corrupted = updates.squared_distances(), corrupted_among(self.share, len(updates))
        nearest = np.sort(distances, axis=1)[:, 1 : len(updates) - corrupted - 1]  # the first is the one to itself
        return best_first(nearest.sum(1), distances.sum(1))


def best_first(scores: FloatArray, totals: FloatArray) -> IntArray:
    """Positions in ascending order of scores.

    Two who are each other's only neighbour have the same; then the sums of distances to all others decide.
    """
    return np.lexsort((totals, scores))
