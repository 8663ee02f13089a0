"""A problem whose answers are formulas: learning curves with a known optimum, and costs that are easy to add up."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedarena.hpo import Fidelity, Problem, Result, Space
from fedarena.hpo.optimizers import Optimizer, Proposal

BEST = {"local.lr": 0.1, "local.steps": 4, "local.batch_size": 16}
SPACE = {
    "local.lr": {"from": 0.001, "to": 1.0, "log": True, "bins": 7},
    "local.steps": {"from": 1, "to": 4},
    "local.batch_size": [8, 16, 32],
}


class Valley(Problem):
    """Loss is `floor` plus a square of how far lr is from the best, plus what fewer steps and rounds leave.

    A round takes as many seconds as it has steps. Learning rates above 0.9 diverge.
    """

    mode = "tabular"

    def __init__(
        self,
        name: str = "valley",
        *,
        max_rounds: int = 27,
        floor: float = 0.1,
        shift: float = 0.0,
        on_grid: bool = True,
    ):
        self.name, self.max_rounds, self.floor, self.shift = name, max_rounds, floor, shift
        space = Space.parse(SPACE)
        self.space = space.on_grid() if on_grid else space
        self.sample_rates = (0.2, 1.0)
        self.budget_s = 2_000.0
        self.asked: list[tuple[dict[str, Any], Fidelity]] = []

    def _answer(self, configuration: dict[str, Any], fidelity: Fidelity, seed: int) -> Result:
        self.asked.append((configuration, fidelity))
        lr, steps, batch = (configuration[name] for name in BEST)
        distance = math.log10(lr / BEST["local.lr"]) + self.shift
        loss = self.floor + distance**2 + 0.05 * (4 - steps) + 0.02 * (batch != 16)
        loss += math.exp(-fidelity.rounds / 5) / fidelity.client_sample_rate
        if lr > 0.9:
            loss = math.inf
        metrics = {"validation_loss": loss, "test_loss": loss + 0.01, "test_accuracy": 1 / (1 + loss)}
        return Result(loss, metrics, cost_s=float(fidelity.rounds * steps), fidelity=fidelity)


class Uniform(Optimizer):
    """Configurations at random, each trained to the end."""

    def __init__(self, space: Space, max_rounds: int, seed: int, min_rounds: int = 1):
        super().__init__(space, max_rounds, seed, min_rounds)
        self.courses = 0

    def ask(self) -> Proposal:
        self.courses += 1
        return Proposal(self.courses, self.space.sample(self.generator), self.max_rounds)

    def tell(self, proposal: Proposal, value: float) -> None:
        pass


class Halves(Optimizer):
    """Three configurations for a third of the rounds; the best of them goes on to the end, and so on."""

    multi_fidelity = True

    def __init__(self, space: Space, max_rounds: int, seed: int, min_rounds: int = 1, *, width: int = 3):
        super().__init__(space, max_rounds, seed, min_rounds)
        self.width, self.courses = width, 0
        self.rung: list[tuple[float, Proposal]] = []

    def ask(self) -> Proposal:
        if len(self.rung) == self.width:
            best = min(self.rung, key=lambda one: one[0])[1]
            self.rung = []
            return Proposal(best.course, best.configuration, self.max_rounds)
        self.courses += 1
        return Proposal(self.courses, self.space.sample(self.generator), max(self.min_rounds, self.max_rounds // 3))

    def tell(self, proposal: Proposal, value: float) -> None:
        if proposal.rounds < self.max_rounds:
            self.rung.append((value, proposal))


def best_value(problem: Problem) -> float:
    values = [problem.query(one).value for one in problem.space.grid()]
    return float(np.min(values))
