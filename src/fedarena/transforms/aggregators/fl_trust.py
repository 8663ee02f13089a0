"""Trust from the server's own samples. Cao, Fang, Liu, Gong, "FLTrust", NDSS 2021.

The server has a small set of samples that it trusts, and trains on it like a client: g_0. The trust in an update g_i is
TS_i = max(0, cos(g_i, g_0)), its length is made that of g_0, and the update is Σ TS_i (||g_0|| / ||g_i||) g_i / Σ TS_i.
A stale update, which the paper does not know, is made as much shorter than that as its age says.
"""

from __future__ import annotations

import math

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.train import Algorithm, Groups, map_groups
from fedarena.transforms.aggregators.base import AGGREGATORS, ServerStep
from fedarena.transforms.aggregators.collected import Collected, one_thread
from fedarena.transforms.aggregators.defence import Defence, nothing, sends_more
from fedarena.transforms.rows import FloatArray


@AGGREGATORS.register("fl_trust")
class FLTrust(Defence):
    """Counts every update by how much it points where the server's own does, which needs `trusted_samples`.

    They are drawn by the run's seed from the training samples of all clients. The server trains on them as clients do
    on theirs, from its current model. Where it trusts nobody, nothing moves.
    """

    def __init__(self, *, trusted_samples: int = 100, staleness_exponent: float = 0.5):
        super().__init__(staleness_exponent=staleness_exponent)
        if trusted_samples < 1:
            raise BadInputError(f"aggregator.trusted_samples must be at least 1, not {trusted_samples}")
        self.trusted_samples = trusted_samples

    def obstacle(self, algorithm: Algorithm, update: Groups) -> str | None:
        """Trust is about directions of the model's change."""
        return super().obstacle(algorithm, update) or sends_more(algorithm, update)

    def shortage(self, updates: int) -> str | None:
        """Every update is compared with the server's own."""
        return None

    def defend(self, updates: Collected, kept: Groups, step: ServerStep) -> tuple[Groups, FloatArray, Groups]:
        """The mean by trust, and the trust."""
        assert step.trusted is not None
        norms, own_norm = updates.norms(), norm_of(step.trusted)
        lengths = np.where(norms > 0, norms, 1.0)
        trust = np.clip(updates.products_with(step.trusted) / (lengths * (own_norm or 1.0)), 0.0, 1.0)
        if not trust.any():
            return nothing(updates), trust, kept
        weights = trust * own_norm * self.factors(updates.staleness) / lengths
        scale = weights.sum() / trust.sum()  # the mean divides by the sum of weights, the rule by that of trust
        return map_groups(lambda t: scale * t, updates.weighted_mean(weights)), trust, kept


def norm_of(groups: Groups) -> float:
    """The Euclidean norm of all numbers."""
    with one_thread():
        squares = [float(t.double().square().sum()) for tensors in groups.values() for t in tensors.values()]
    return math.sqrt(math.fsum(squares))
