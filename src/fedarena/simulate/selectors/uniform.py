"""Uniform selection, as in FedAvg. McMahan et al., AISTATS 2017."""

from __future__ import annotations

from fedarena.simulate.selectors.base import SELECTORS, Candidates, IntArray, Selector


@SELECTORS.register("uniform")
class Uniform(Selector):
    """Everybody who is available is equally likely, and so is every set of them."""

    sampling = "uniform"

    def select(self, number: int, candidates: Candidates, round: int) -> IntArray:
        """A uniform draw."""
        return candidates.draw(number, "cohort")
