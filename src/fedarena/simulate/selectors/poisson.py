"""Poisson sampling: every client takes part with the same probability, independently of all others.

It is what most accountants of differential privacy assume (Abadi et al., "Deep Learning with Differential Privacy",
CCS 2016). Cohorts vary in size. Who is drawn but not available then does not take part; nobody takes its place, since
that would make the chances of others larger.
"""

from __future__ import annotations

import numpy as np

from fedarena.simulate.selectors.base import SELECTORS, Candidates, IntArray, Selector


@SELECTORS.register("poisson")
class Poisson(Selector):
    """Everybody by themselves, with the probability that makes cohorts as large as wanted on average."""

    sampling = "poisson"
    varies = True

    def select(self, number: int, candidates: Candidates, round: int) -> IntArray:
        """First how many, then who: the same as a coin for everybody, at the cost of the cohort."""
        random, population = candidates.random("poisson"), len(candidates.clients)
        count = random.binomial(population, min(1.0, number / population))
        drawn = candidates.clients[random.choice(population, size=count, replace=False, shuffle=False)]
        return np.sort(drawn[candidates.are_available(drawn)])
