"""Groups of clients take turns, so that nobody takes part again before so many rounds have gone by.

That is the participation rule of correlated noise (Choquette-Choo et al., "(Amplified) Banded Matrix Factorization",
NeurIPS 2023: everybody's group is fixed, and in the rounds of a group clients are drawn from it).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from fedarena.core import streams
from fedarena.core.errors import BadInputError
from fedarena.simulate.selectors.base import SELECTORS, Candidates, IntArray, Selector


@SELECTORS.register("cyclic")
class Cyclic(Selector):
    """Every client is in one of so many `groups` of about the same size; a round draws from the group whose turn it is.

    It draws as many as wanted, all sets of them equally likely (``draw: fixed_size``), or everybody by themselves with
    the probability that makes cohorts as large as wanted on average (``poisson``); who is not there then has no
    substitute.
    """

    def __init__(self, *, groups: int = 8, draw: Literal["fixed_size", "poisson"] = "fixed_size"):
        if groups < 1:
            raise BadInputError(f"selector.groups must be at least 1, not {groups}")
        self.groups, self.draw = groups, draw
        self.varies = draw == "poisson"

    def prepare(self, clients: IntArray, samples: Callable[[IntArray], IntArray], cohort: int, seed: int) -> None:
        """Who is in which group is drawn once, by the seed."""
        self.check(len(clients), cohort)
        order = np.argsort(np.asarray(streams.bits(seed, "groups of clients", clients)), kind="stable")
        self._members = [np.sort(clients[order[group :: self.groups]]) for group in range(self.groups)]

    def check(self, population: int, cohort: int) -> None:
        """Refuses more groups than there can be."""
        if self.groups * cohort > population:
            raise BadInputError(
                f"selector.groups={self.groups} and cohort={cohort} need {self.groups * cohort} clients, but there are "
                f"{population} to train on; choose at most {max(1, population // cohort)} groups, or a smaller cohort"
            )

    def smallest_group(self, population: int) -> int:
        """How many clients a group has at least."""
        return population // self.groups

    def select(self, number: int, candidates: Candidates, round: int) -> IntArray:
        """A draw from the group whose turn it is."""
        members, random = self._members[(round - 1) % self.groups], candidates.random("cohort")
        if self.varies:
            # The smallest group has the largest chance; accounting is for that one, so all groups have it.
            count = random.binomial(len(members), min(1.0, number / self.smallest_group(len(candidates.clients))))
            drawn = random.choice(members, size=count, replace=False, shuffle=False)
            return np.sort(drawn[candidates.are_available(drawn)])
        present = members[candidates.are_available(members)]
        return np.sort(random.choice(present, size=min(number, len(present)), replace=False, shuffle=False))
