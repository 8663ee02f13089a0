"""Selection in proportion to the number of training samples.

Li et al., "On the Convergence of FedAvg on Non-IID Data", ICLR 2020, draw clients with these probabilities, with
replacement. A client cannot run twice at once, so here they are drawn one after the other without replacement: each
time, every candidate who is left has a chance in proportion to its samples (successive sampling, exactly).
"""

from __future__ import annotations

from collections.abc import Callable

from fedarena.simulate.selectors.base import SELECTORS, Candidates, IntArray, Selector, Weights


@SELECTORS.register("by_size")
class BySize(Selector):
    """Who has twice as many training samples is twice as likely to be drawn next."""

    def prepare(self, clients: IntArray, samples: Callable[[IntArray], IntArray], cohort: int, seed: int) -> None:
        """Adds up everybody's samples, once, so that a round need not."""
        self._sizes = Weights.by_size(clients, samples)

    def select(self, number: int, candidates: Candidates, round: int) -> IntArray:
        """A draw by size."""
        return candidates.draw(number, "by size", weights=self._sizes)
