"""DEHB. Awad et al., "DEHB: Evolutionary Hyperband for Scalable, Robust and Efficient Hyperparameter Optimization",
IJCAI 2021.

Every rung has a population of its own, as large as the largest number of configurations that a bracket of Hyperband
trains there. In the first pass through the brackets the best of a rung are promoted to the next one, where their
training goes on, as in Hyperband. From then on populations evolve: a rung's individuals are compared with offspring
whose parents are the best of the rung below; the lowest rung of a bracket has parents of its own. Where there are fewer
than three, others come from all populations together.

The paper says only that the beginning is plain successive halving; that it is the first pass is the authors' code. The
first population is evaluated as it was drawn (in that code offspring of it are).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from fedarena.hpo.optimizers.axes import FloatArray
from fedarena.hpo.optimizers.checks import check_at_least, check_between
from fedarena.hpo.optimizers.evolution import offspring
from fedarena.hpo.optimizers.optimizer import OPTIMIZERS, Optimizer, Proposal
from fedarena.hpo.optimizers.rungs import Rung, Sizes, brackets
from fedarena.hpo.space import Space

_PARENTS = 3


@dataclass
class _Individual:
    point: FloatArray
    value: float = math.inf
    proposal: Proposal | None = None  # with which it was evaluated here; its course can go on


@dataclass
class _Population:
    individuals: list[_Individual]
    turn: int = 0
    promoted: set[int] = field(default_factory=set)  # courses that came from the rung below, also if they did not stay

    def next_target(self) -> int:
        target, self.turn = self.turn, (self.turn + 1) % len(self.individuals)
        return target

    def by_value(self) -> list[_Individual]:
        return sorted(self.individuals, key=lambda one: one.value)


@OPTIMIZERS.register("dehb")
class DEHB(Optimizer):
    """The brackets of `hyperband` with the evolution of `de` in place of random configurations (DEHB).

    `eta` and `sizes` are options of `hyperband`, `mutation_factor` and `crossover` of `de`.
    """

    multi_fidelity: ClassVar[bool] = True

    def __init__(
        self,
        space: Space,
        max_rounds: int,
        seed: int,
        min_rounds: int = 1,
        *,
        eta: int = 3,
        sizes: Sizes = "paper",
        mutation_factor: float = 0.5,
        crossover: float = 0.5,
    ):
        super().__init__(space, max_rounds, seed, min_rounds)
        check_at_least(2, eta=eta)
        check_between(0, 2, mutation_factor=mutation_factor)
        check_between(0, 1, crossover=crossover)
        self._factor, self._crossover = mutation_factor, crossover
        self._brackets = brackets(max_rounds, min_rounds, eta, sizes)
        self._populations = {
            rounds: _Population([_Individual(self.generator.random(len(space))) for _ in range(number)])
            for rounds, number in self.population_sizes.items()
        }
        self._proposals = self._all_proposals()
        self._candidate: tuple[int, int, FloatArray] | None = None  # rounds, target, point

    @property
    def population_sizes(self) -> dict[int, int]:
        """How many individuals the rung of so many rounds has."""
        sizes: dict[int, int] = {}
        for rung in (rung for bracket in self._brackets for rung in bracket):
            sizes[rung.rounds] = max(sizes.get(rung.rounds, 0), rung.configurations)
        return sizes

    def ask(self) -> Proposal:
        """A promoted configuration, or the offspring of the next individual."""
        return next(self._proposals)

    def tell(self, proposal: Proposal, value: float) -> None:
        """The candidate takes its target's place unless it is worse."""
        assert self._candidate is not None
        rounds, target, point = self._candidate
        individuals = self._populations[rounds].individuals
        if value <= individuals[target].value:
            individuals[target] = _Individual(point, value, proposal)

    def _all_proposals(self) -> Iterator[Proposal]:
        is_first_pass = True
        while True:
            for number, bracket in enumerate(self._brackets):
                yield from self._lowest_rung(bracket[0], as_drawn=is_first_pass and number == 0)
                for below, rung in itertools.pairwise(bracket):
                    yield from self._promoted(below, rung) if is_first_pass else self._evolved(below, rung)
            is_first_pass = False

    def _lowest_rung(self, rung: Rung, as_drawn: bool) -> Iterator[Proposal]:
        population = self._populations[rung.rounds]
        for _ in range(rung.configurations):
            target = population.next_target()
            point = population.individuals[target].point
            if not as_drawn:
                point = self._offspring(point, [one for one in population.individuals if one.point is not point])
            yield self._new(rung, target, point)

    def _promoted(self, below: Rung, rung: Rung) -> Iterator[Proposal]:
        """Those of the rung below that are best and were not here yet; fewer, if not so many are left or alive."""
        population = self._populations[rung.rounds]
        left = rung.configurations
        for one in self._populations[below.rounds].by_value():
            if left == 0 or one.proposal is None or not math.isfinite(one.value):
                break  # what follows is worse still
            if one.proposal.course not in population.promoted:
                population.promoted.add(one.proposal.course)
                self._candidate = (rung.rounds, population.next_target(), one.point)
                left -= 1
                yield self.go_on(one.proposal, rung.rounds)

    def _evolved(self, below: Rung, rung: Rung) -> Iterator[Proposal]:
        population = self._populations[rung.rounds]
        for _ in range(rung.configurations):
            target = population.next_target()
            parents = self._populations[below.rounds].by_value()[: rung.configurations]
            yield self._new(rung, target, self._offspring(population.individuals[target].point, parents))

    def _offspring(self, target: FloatArray, parents: list[_Individual]) -> FloatArray:
        points = [one.point for one in parents]
        missing = _PARENTS - len(points)
        if missing > 0:
            everybody = [one.point for population in self._populations.values() for one in population.individuals]
            chosen = self.generator.choice(len(everybody), size=min(missing, len(everybody)), replace=False)
            points += [everybody[index] for index in chosen]
            points += list(self.generator.random((_PARENTS - len(points), len(target))))  # where there is hardly a rung
        return offspring(target, np.array(points), self._factor, self._crossover, self.generator)

    def _new(self, rung: Rung, target: int, point: FloatArray) -> Proposal:
        self._candidate = (rung.rounds, target, point)
        return self.new_course(self.space.at(point), rung.rounds)
