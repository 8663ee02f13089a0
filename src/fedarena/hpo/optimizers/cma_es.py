"""CMA-ES with margin. Hansen and Ostermeier, "Completely Derandomized Self-Adaptation in Evolution Strategies", 2001;
Hamano et al., "CMA-ES with Margin: Lower-Bounding Marginal Probability for Mixed-Integer Black-Box Optimization",
GECCO 2022.

By the package cmaes, the one that Optuna's sampler uses, which is asked directly: Optuna's writes the strategy's state
into the study after every trial, and draws choices at random.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedarena.hpo.optimizers.axes import Axes, FloatArray
from fedarena.hpo.optimizers.checks import check_at_least, check_between, needed
from fedarena.hpo.optimizers.optimizer import OPTIMIZERS, Optimizer, Proposal
from fedarena.hpo.space import Space

_MOST_STEPS = 1000  # an axis with more values than these is as good as continuous
_LARGEST = 1e300


@OPTIMIZERS.register("cma_es")
class CMAES(Optimizer):
    """A normal distribution that moves to good configurations, each trained for all rounds (not in FedHPO-Bench).

    It begins in the middle of the space, `sigma` (of each hyperparameter's range) wide. A generation has `population`
    configurations, by default 4 + 3 ln(number of hyperparameters). When it has converged, it begins anew somewhere
    else, with twice the population (Auger and Hansen, 2005). Whole numbers and choices keep a chance to change, however
    narrow it becomes; choices are taken in the order in which they stand, so it is best where that means something.
    """

    def __init__(
        self,
        space: Space,
        max_rounds: int,
        seed: int,
        min_rounds: int = 1,
        *,
        sigma: float = 1 / 6,
        population: int | None = None,
    ):
        super().__init__(space, max_rounds, seed, min_rounds)
        check_between(1e-6, 10, sigma=sigma)
        if population is not None:
            check_at_least(3, population=population)
        self._cmaes = needed("cmaes", "cma_es")
        self._axes = Axes(space)
        self._moving = np.array([count != 1 for count in self._axes.counts])
        self._sigma, self._population = sigma, population
        self._strategy = self._begin(np.full(len(space), 0.5))
        self._generation: list[tuple[FloatArray, float]] = []
        self._raw = np.empty(0)  # the point that was asked for, as the strategy knows it

    def ask(self) -> Proposal:
        """One more of the generation."""
        encoded, self._raw = self._strategy.ask()
        point = np.full(len(self.space), 0.5)
        point[self._moving] = encoded[: int(self._moving.sum())]
        return self.new_course(self.space.at(point))

    def tell(self, proposal: Proposal, value: float) -> None:
        """Moves the distribution when the generation is complete."""
        self._generation.append((self._raw, min(max(value, -_LARGEST), _LARGEST)))
        if len(self._generation) < self._strategy.population_size:
            return
        self._strategy.tell(self._generation)
        self._generation = []
        if self._strategy.should_stop():
            self._population = 2 * self._strategy.population_size
            self._strategy = self._begin(self.generator.random(len(self.space)))

    def _begin(self, mean: FloatArray) -> Any:
        even = [
            0.0 if count is None or count > _MOST_STEPS or one.log else 1 / count
            for count, one in zip(self._axes.counts, self.space, strict=True)
            if count != 1
        ]
        unused = max(2 - len(even), 0)  # cmaes wants two dimensions or more
        steps = np.array(even + [0.0] * unused)
        mean = np.concatenate([mean[self._moving], np.full(unused, 0.5)])
        return self._cmaes.CMAwM(
            mean=mean,
            sigma=self._sigma,
            bounds=np.stack([steps / 2, 1 - steps / 2], axis=1),
            steps=steps,
            seed=int(self.generator.integers(2**31)),
            population_size=self._population or 4 + math.floor(3 * math.log(len(mean))),
        )
