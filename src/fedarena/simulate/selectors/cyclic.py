"""Groups of clients take turns, so that nobody takes part again before so many rounds have gone by.

That is the participation rule of correlated noise (Choquette-Choo et al., "(Amplified) Banded Matrix Factorization",
NeurIPS 2023, section 4: a client's group is fixed, and in its round clients are drawn from the group).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedarena.core import streams
from fedarena.core.errors import BadInputError
from fedarena.simulate.selectors.base import SELECTORS, BoolArray, Candidates, IntArray, Selector


@SELECTORS.register("cyclic")
class Cyclic(Selector):
    """Every client is in one of so many `groups` of about the same size; each round draws from the next group."""

    def __init__(self, *, groups: int = 8):
        if groups < 1:
            raise BadInputError(f"selector.groups must be at least 1, not {groups}")
        self.groups = groups

    def prepare(self, clients: IntArray, samples: Callable[[IntArray], IntArray], cohort: int, seed: int) -> None:
        """Who is in which group is drawn once, by the seed."""
        if self.groups * cohort > len(clients):
            raise BadInputError(
                f"selector.groups is {self.groups} and cohort {cohort}, but the federation has {len(clients)} clients to "
                f"train on, so no group would have that many; choose at most {max(1, len(clients) // cohort)} groups"
            )
        order = np.argsort(np.asarray(streams.bits(seed, "groups of clients", clients)), kind="stable")
        self._clients, self._group = clients, np.empty(len(clients), dtype=np.int32)
        self._group[order] = np.arange(len(clients)) % self.groups

    def group_of(self, clients: IntArray) -> IntArray:
        """The group that each of these is in."""
        return np.asarray(self._group[np.searchsorted(self._clients, clients)], dtype=np.int64)

    def select(self, number: int, candidates: Candidates, round: int) -> IntArray:
        """A uniform draw from the round's group."""

        def in_turn(clients: IntArray) -> BoolArray:
            return np.asarray(self.group_of(clients) == (round - 1) % self.groups)

        return candidates.draw(number, "cohort", accept=in_turn)
