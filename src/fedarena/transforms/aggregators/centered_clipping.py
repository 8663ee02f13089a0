"""Clipping around where the updates were before. Karimireddy, He, Jaggi, "Learning from History for Byzantine Robust
Optimization", ICML 2021.

From the reference v, the last step's update, again and again:
v = v + mean_i (x_i - v) min(1, bound / ||x_i - v||).
The paper's workers also send momenta of their own, from round to round. Here clients take part now and then, so what
they send is what they learned in their round; a server's momentum is the algorithm ``fedavgm``.
"""

from __future__ import annotations

import numpy as np
import torch

from fedarena.core.errors import BadInputError
from fedarena.train import Algorithm, Groups
from fedarena.transforms.aggregators.base import AGGREGATORS, ServerStep
from fedarena.transforms.aggregators.collected import Collected
from fedarena.transforms.aggregators.defence import Defence, sends_more
from fedarena.transforms.rows import FloatArray

_REFERENCE = "reference:"


@AGGREGATORS.register("centered_clipping")
class CenteredClipping(Defence):
    """Nobody moves the last step's update further than `bound`, over its number, in each of some `iterations`."""

    def __init__(self, *, bound: float = 1.0, iterations: int = 1, staleness_exponent: float = 0.5):
        super().__init__(staleness_exponent=staleness_exponent)
        if not bound > 0:
            raise BadInputError(f"aggregator.bound must be above 0, not {bound}")
        if iterations < 1:
            raise BadInputError(f"aggregator.iterations must be at least 1, not {iterations}")
        self.bound, self.iterations = bound, iterations

    def obstacle(self, algorithm: Algorithm, update: Groups) -> str | None:
        """A bound on the change of the model would leave open what else is sent."""
        return super().obstacle(algorithm, update) or sends_more(algorithm, update)

    def shortage(self, updates: int) -> str | None:
        """Every update is compared with the reference alone."""
        return None

    def server_init(self, update: Groups) -> Groups:
        """The reference: nothing moves."""
        return {
            _REFERENCE + group: {name: torch.zeros_like(t) for name, t in tensors.items()}
            for group, tensors in update.items()
        }

    def defend(self, updates: Collected, kept: Groups, step: ServerStep) -> tuple[Groups, FloatArray, Groups]:
        """The reference, moved; how much of their way clients moved it at last; and the next reference."""
        centre = {group.removeprefix(_REFERENCE): tensors for group, tensors in kept.items()}
        for _ in range(self.iterations):
            factors = self.bound / np.maximum(updates.distances_to(centre), self.bound)
            share = factors.mean()
            pulled = updates.weighted_mean(factors)
            centre = {
                group: {name: t + share * (pulled[group][name] - t) for name, t in tensors.items()}
                for group, tensors in centre.items()
            }
        return centre, factors, {_REFERENCE + group: tensors for group, tensors in centre.items()}
