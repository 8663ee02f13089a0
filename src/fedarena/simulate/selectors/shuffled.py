"""Shuffled passes over all clients: everybody takes part exactly once in each of them.

The clients are shuffled and dealt out to the rounds of a pass; then they are shuffled anew. Who is not available when
it is its turn does not take part in this pass; nobody takes its place.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from fedarena.core import streams
from fedarena.simulate.selectors.base import SELECTORS, Candidates, IntArray, Selector


@SELECTORS.register("shuffled")
class Shuffled(Selector):
    """The rounds of a pass have as many clients as wanted, or some fewer, so that all of them have about the same."""

    sampling = "shuffled"
    varies = True
    write_only: ClassVar[tuple[str, ...]] = ("_order",)

    def __init__(self) -> None:
        self._order: tuple[tuple[int, int, int], IntArray] | None = None  # of the pass that was asked for last

    def select(self, number: int, candidates: Candidates, round: int) -> IntArray:
        """Whose turn it is."""
        population = len(candidates.clients)
        if number == 0:
            return candidates.clients[:0]
        rounds = rounds_per_pass(population, number)
        which, place = divmod(round - 1, rounds)
        order = self._order_of(candidates.seed, which, population)
        turn = order[population * place // rounds : population * (place + 1) // rounds]
        drawn = candidates.clients[turn]
        return np.sort(drawn[candidates.are_available(drawn)])

    def _order_of(self, seed: int, which: int, population: int) -> IntArray:
        """The shuffled clients of a pass. They are shuffled once for all its rounds, which is O(cohort) for each."""
        key = (seed, which, population)
        if self._order is None or self._order[0] != key:
            self._order = key, streams.generator(seed, "shuffled", which).permutation(population)
        return self._order[1]


def rounds_per_pass(population: int, cohort: int) -> int:
    """In how many rounds of cohorts of this size, at most, everybody takes part once."""
    return -(-population // cohort)
