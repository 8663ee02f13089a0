"""ASHA. Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020.

Nobody waits until a rung is full: whenever a configuration is among the best 1/eta of those that have reached its rung,
it goes on; when none is, a new one begins.
"""

from __future__ import annotations

import math
from typing import ClassVar

from fedarena.hpo.optimizers.checks import check_at_least
from fedarena.hpo.optimizers.optimizer import OPTIMIZERS, Optimizer, Proposal
from fedarena.hpo.optimizers.rungs import rungs
from fedarena.hpo.space import Space


@OPTIMIZERS.register("asha")
class ASHA(Optimizer):
    """Successive halving of random configurations that promotes at once (not in FedHPO-Bench).

    `eta`: a rung has `eta` times the rounds of the one before, and about one in `eta` configurations gets there.
    `skipped_rungs`: so many of the lowest rungs are left out, which stops less early (s in the paper). What diverged
    never goes on.
    """

    multi_fidelity: ClassVar[bool] = True

    def __init__(
        self, space: Space, max_rounds: int, seed: int, min_rounds: int = 1, *, eta: int = 3, skipped_rungs: int = 0
    ):
        super().__init__(space, max_rounds, seed, min_rounds)
        check_at_least(2, eta=eta)
        check_at_least(0, skipped_rungs=skipped_rungs)
        self._eta = eta
        ladder = rungs(max_rounds, min_rounds, eta)
        self._ladder = ladder[min(skipped_rungs, len(ladder) - 1) :]
        self._reached: list[list[tuple[float, Proposal]]] = [[] for _ in self._ladder]
        self._promoted: list[set[int]] = [set() for _ in self._ladder]

    def ask(self) -> Proposal:
        """The promotion to the highest rung for which there is one, or a new configuration."""
        for number in range(len(self._ladder) - 2, -1, -1):
            reached = self._reached[number]
            best = sorted(reached, key=lambda one: one[0])[: len(reached) // self._eta]
            for value, proposal in best:
                if math.isfinite(value) and proposal.course not in self._promoted[number]:
                    self._promoted[number].add(proposal.course)
                    return self.go_on(proposal, self._ladder[number + 1])
        return self.new_course(self.space.sample(self.generator), self._ladder[0])

    def tell(self, proposal: Proposal, value: float) -> None:
        """Adds it to its rung."""
        self._reached[self._ladder.index(proposal.rounds)].append((value, proposal))
