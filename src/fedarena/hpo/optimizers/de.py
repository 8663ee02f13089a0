"""Differential evolution. Storn and Price, "Differential Evolution – A Simple and Efficient Heuristic for Global
Optimization over Continuous Spaces", 1997; for hyperparameters: Awad et al., 2020.

A generation is made of one population: every individual is compared with one offspring, and the better of the two
lives on in the next one. Between equals the offspring does, which keeps a population moving where choices make many
points the same configuration.
"""

from __future__ import annotations

import math

import numpy as np

from fedarena.hpo.optimizers.checks import check_at_least, check_between
from fedarena.hpo.optimizers.evolution import offspring
from fedarena.hpo.optimizers.optimizer import OPTIMIZERS, Optimizer, Proposal
from fedarena.hpo.space import Space


@OPTIMIZERS.register("de")
class DifferentialEvolution(Optimizer):
    """rand/1/bin on a `population`, each configuration trained for all rounds (DE in FedHPO-Bench).

    A mutant moves by `mutation_factor` times a difference; `crossover` is the chance of each coordinate to be its.
    """

    def __init__(
        self,
        space: Space,
        max_rounds: int,
        seed: int,
        min_rounds: int = 1,
        *,
        population: int = 20,
        mutation_factor: float = 0.5,
        crossover: float = 0.5,
    ):
        super().__init__(space, max_rounds, seed, min_rounds)
        check_at_least(4, population=population)
        check_between(0, 2, mutation_factor=mutation_factor)
        check_between(0, 1, crossover=crossover)
        self._factor, self._crossover = mutation_factor, crossover
        self._population = self.generator.random((population, len(space)))
        self._values = np.full(population, math.inf)
        self._next_population, self._next_values = self._population.copy(), self._values.copy()
        self._member = 0  # whose turn it is
        self._is_first = True  # the generation that is evaluated as it is
        self._candidate = self._population[0]

    def ask(self) -> Proposal:
        """The offspring of the next individual, or in the first generation the individual itself."""
        target = self._population[self._member]
        if self._is_first:
            self._candidate = target
        else:
            others = np.delete(self._population, self._member, axis=0)
            self._candidate = offspring(target, others, self._factor, self._crossover, self.generator)
        return self.new_course(self.space.at(self._candidate))

    def tell(self, proposal: Proposal, value: float) -> None:
        """Selects; after the last individual the next generation takes over."""
        member = self._member
        if value <= self._values[member]:
            self._next_population[member], self._next_values[member] = self._candidate, value
        self._member = (member + 1) % len(self._population)
        if self._member == 0:
            self._is_first = False
            self._population, self._values = self._next_population.copy(), self._next_values.copy()
