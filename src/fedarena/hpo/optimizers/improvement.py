"""Searches that learn a model of all values so far and try what it expects most of: what BO_GP and BO_RF share."""

from __future__ import annotations

from abc import abstractmethod

from fedarena.hpo.optimizers.axes import Axes, FloatArray, Tried
from fedarena.hpo.optimizers.checks import check_at_least, check_between
from fedarena.hpo.optimizers.optimizer import Optimizer, Proposal
from fedarena.hpo.optimizers.start import spread_out
from fedarena.hpo.space import Space


class ImprovementSearch(Optimizer):
    """Begins with `initial` configurations that are evenly spread; later, a `random_fraction` of all is drawn.

    All others are what the model promises most of. Each is trained for all rounds, and nothing is tried twice as long
    as there are others.
    """

    def __init__(
        self, space: Space, max_rounds: int, seed: int, min_rounds: int, *, initial: int, random_fraction: float
    ):
        super().__init__(space, max_rounds, seed, min_rounds)
        check_at_least(1, initial=initial)
        check_between(0, 1, random_fraction=random_fraction)
        self._axes = Axes(space)
        self._tried = Tried(self._axes)
        self._random_fraction = random_fraction
        self._initial = spread_out(self._axes, initial, self.generator)
        self._points: list[FloatArray] = []
        self._values: list[float] = []

    @abstractmethod
    def _most_promising(self) -> FloatArray:
        """A new point, by what was told so far."""

    def ask(self) -> Proposal:
        """One of the initial configurations, a random one, or the one with the largest expected improvement."""
        if len(self._points) < len(self._initial):
            point = self._tried.or_new(self._initial[len(self._points)], self.generator)
        elif self.generator.random() < self._random_fraction:
            point = self._tried.draw_new(self.generator)
        else:
            point = self._most_promising()
        configuration = self.space.at(point)
        self._tried.add(configuration)
        return self.new_course(configuration)

    def tell(self, proposal: Proposal, value: float) -> None:
        """Learns from it at the next proposal."""
        self._points.append(self.space.places(proposal.configuration))
        self._values.append(value)
