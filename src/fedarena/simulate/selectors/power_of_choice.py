"""Power-of-choice. Cho et al., "Client Selection in Federated Learning: Convergence Analysis and Power-of-Choice
Selection Strategies", 2020.

Draw d candidates in proportion to their training samples, ask them for the loss of the current model, and invite those
with the largest. `losses: latest` is the paper's rpow-d: it costs nothing, because it takes the losses that clients
reported when they last trained; who never did counts as having the largest. Between equal losses chance decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np

from fedarena.simulate.selectors.base import (
    SELECTORS,
    Candidates,
    Feedback,
    FloatArray,
    IntArray,
    Selector,
    Weights,
)
from fedarena.simulate.selectors.checks import check_at_least
from fedarena.simulate.selectors.ledger import Ledger


@SELECTORS.register("power_of_choice")
class PowerOfChoice(Selector):
    """The largest losses among d = `oversample` times as many clients as wanted, rounded up."""

    def __init__(self, *, oversample: float = 2.0, losses: Literal["current", "latest"] = "current"):
        check_at_least(1, oversample=oversample)
        self.oversample = oversample
        self.losses = losses
        self._latest = Ledger(loss=math.inf)

    def prepare(self, clients: IntArray, samples: Callable[[IntArray], IntArray], cohort: int, seed: int) -> None:
        """Adds up everybody's samples, once."""
        self._sizes = Weights.by_size(clients, samples)

    def select(self, number: int, candidates: Candidates, round: int) -> IntArray:
        """Those of the drawn with the largest losses."""
        drawn = candidates.draw(math.ceil(self.oversample * number), "power of choice", weights=self._sizes)
        if len(drawn) <= number:
            return drawn
        losses = candidates.current_loss(drawn) if self.losses == "current" else self._latest_loss(drawn)
        losses = np.where(np.isnan(losses), np.inf, losses)
        chance = candidates.random("power of choice, equal losses").random(len(drawn))
        return np.sort(drawn[np.lexsort((chance, -losses))[:number]])

    def _latest_loss(self, clients: IntArray) -> FloatArray:
        losses = np.full(len(clients), np.inf)
        known = self._latest.knows(clients)
        losses[known] = self._latest["loss"][self._latest.rows(clients[known])]
        return losses

    def observe(self, round: int, feedback: Feedback) -> None:
        """Keeps the losses of who was used, if they will be wanted."""
        if self.losses == "current":
            return
        rows = self._latest.add(feedback.clients[feedback.used])
        self._latest["loss"][rows] = feedback.losses[feedback.used]
