"""One after the other, for training at the server, where nobody needs to be invited at random."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedarena.simulate.selectors.base import SELECTORS, Candidates, IntArray, Selector


@SELECTORS.register("in_turn")
class InTurn(Selector):
    """One group of clients after the other, and from the first again; who is not available is passed over."""

    def prepare(self, clients: IntArray, samples: Callable[[IntArray], IntArray], cohort: int, seed: int) -> None:
        """A round begins where the one before would have ended."""
        self._cohort = cohort

    def select(self, number: int, candidates: Candidates, round: int) -> IntArray:
        """The next clients in the circle."""
        clients = candidates.clients
        begin, looked_at = (round - 1) * self._cohort, 0
        chosen = clients[:0]
        while len(chosen) < number and looked_at < len(clients):
            count = min(max(looked_at, number), len(clients) - looked_at)
            following = clients[(begin + looked_at + np.arange(count)) % len(clients)]
            chosen = np.concatenate([chosen, following[candidates.are_available(following)]])
            looked_at += count
        return np.sort(chosen[:number])
