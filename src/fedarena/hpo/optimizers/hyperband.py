"""Hyperband. Li et al., "Hyperband: A Novel Bandit-Based Approach to Hyperparameter Optimization", JMLR 2018.

One bracket after the other, and all of them again, for as long as it is asked. A bracket begins with some
configurations that are trained a little; the best of them go on for `eta` times as many rounds, the best of those
again, until the last are trained in full. Brackets differ in how many they begin with and after how many rounds they
first choose, because nobody knows how much early rounds tell.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

from fedarena.hpo.optimizers.checks import check_at_least
from fedarena.hpo.optimizers.optimizer import OPTIMIZERS, Optimizer, Proposal
from fedarena.hpo.optimizers.rungs import Rung, Sizes, brackets
from fedarena.hpo.space import Configuration, Space


@OPTIMIZERS.register("hyperband")
class Hyperband(Optimizer):
    """Brackets of successive halving over random configurations (HB in FedHPO-Bench).

    `eta`: a rung has `eta` times the rounds of the one before, and one in `eta` configurations gets there. `sizes`:
    how many configurations a bracket begins with, as in the paper, or as in the package hpbandster (fewer in some).
    What diverged never goes on, however few others there are.
    """

    multi_fidelity: ClassVar[bool] = True

    def __init__(
        self, space: Space, max_rounds: int, seed: int, min_rounds: int = 1, *, eta: int = 3, sizes: Sizes = "paper"
    ):
        super().__init__(space, max_rounds, seed, min_rounds)
        check_at_least(2, eta=eta)
        self._brackets = brackets(max_rounds, min_rounds, eta, sizes)
        self._told: list[tuple[Proposal, float]] = []  # in the rung that is being climbed
        self._proposals = self._all_proposals()

    def ask(self) -> Proposal:
        """The next configuration of the rung, or the next rung's first."""
        return next(self._proposals)

    def tell(self, proposal: Proposal, value: float) -> None:
        """Counts when the rung is complete."""
        self._told.append((proposal, value))

    def propose(self, rounds: int) -> Configuration:
        """A configuration for a bracket that begins with so many rounds."""
        return self.space.sample(self.generator)

    def _all_proposals(self) -> Iterator[Proposal]:
        while True:
            for bracket in self._brackets:
                yield from self._climb(bracket)

    def _climb(self, bracket: list[Rung]) -> Iterator[Proposal]:
        self._told = []
        for _ in range(bracket[0].configurations):
            yield self.new_course(self.propose(bracket[0].rounds), bracket[0].rounds)
        for rung in bracket[1:]:
            promoted = _best(self._told, rung.configurations)
            self._told = []
            for proposal in promoted:
                yield self.go_on(proposal, rung.rounds)


def _best(told: list[tuple[Proposal, float]], number: int) -> list[Proposal]:
    alive = [one for one in told if math.isfinite(one[1])]
    return [proposal for proposal, _ in sorted(alive, key=lambda one: one[1])[:number]]
