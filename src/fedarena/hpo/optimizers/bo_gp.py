"""Bayesian optimization with a Gaussian process, by Optuna's GPSampler: a Matérn kernel (5/2) with a length for each
hyperparameter, on the Hamming distance for choices without an order, and the logarithm of expected improvement.

Optuna's is fitted and searched in a tenth of a second where that of smac takes one to two, and agrees with it in what
the paper says of BO_GP.
"""

from __future__ import annotations

import warnings

import numpy as np

from fedarena.hpo.optimizers.axes import Axes, FloatArray, Tried
from fedarena.hpo.optimizers.checks import check_at_least, check_between
from fedarena.hpo.optimizers.optimizer import OPTIMIZERS, Optimizer, Proposal
from fedarena.hpo.optimizers.start import spread_out
from fedarena.hpo.optimizers.values import tamed
from fedarena.hpo.optimizers.with_optuna import OptunaSpace
from fedarena.hpo.space import Configuration, Space


@OPTIMIZERS.register("bo_gp")
class GaussianProcessSearch(Optimizer):
    """Expected improvement by a Gaussian process, each configuration trained for all rounds (BO_GP in FedHPO-Bench).

    The search begins with `initial` configurations that are evenly spread; later a `random_fraction` of all is drawn
    without the model. The model knows no more than `most_points`, half of them the best and half the latest, because
    fitting it takes longer with every one. In a space of choices and whole numbers alone, configurations that were
    tried are not proposed again as long as there are others.
    """

    def __init__(
        self,
        space: Space,
        max_rounds: int,
        seed: int,
        min_rounds: int = 1,
        *,
        initial: int = 10,
        random_fraction: float = 0.0,
        most_points: int = 100,
    ):
        super().__init__(space, max_rounds, seed, min_rounds)
        check_at_least(1, initial=initial)
        check_at_least(2, most_points=most_points)
        check_between(0, 1, random_fraction=random_fraction)
        self._optuna_space = OptunaSpace(space, "bo_gp")
        self._axes = Axes(space)
        self._tried = Tried(self._axes)
        self._random_fraction, self._most_points = random_fraction, most_points
        self._initial = spread_out(self._axes, initial, self.generator)
        self._configurations: list[Configuration] = []
        self._values: list[float] = []

    def ask(self) -> Proposal:
        """One of the initial configurations, a random one, or the one with the largest expected improvement."""
        if len(self._configurations) < len(self._initial):
            configuration = self.space.at(self._initial[len(self._configurations)])
        elif self.generator.random() < self._random_fraction:
            configuration = self.space.at(self._tried.draw_new(self.generator))
        else:
            configuration = self._most_promising()
        self._tried.add(configuration)
        return self.new_course(configuration)

    def tell(self, proposal: Proposal, value: float) -> None:
        """Learns from it at the next proposal."""
        self._configurations.append(proposal.configuration)
        self._values.append(value)

    def _most_promising(self) -> Configuration:
        optuna, distributions = self._optuna_space.optuna, self._optuna_space.distributions
        values = tamed(self._values)
        known = self._known(values)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Optuna's are about what it does by itself then, such as fitting anew
            sampler = optuna.samplers.GPSampler(seed=int(self.generator.integers(2**31)), n_startup_trials=0)
            study = self._optuna_space.study(sampler=sampler)
            study.add_trials(
                [
                    optuna.trial.create_trial(
                        params=self._optuna_space.parameters(self._configurations[index]),
                        distributions=distributions,
                        value=float(values[index]),
                    )
                    for index in known
                ]
            )
            configuration = self._optuna_space.configuration(study.ask(distributions).params)
        if self._axes.is_finite and self._tried.has(self.space.places(configuration)):
            return self.space.at(self._tried.draw_new(self.generator))
        return configuration

    def _known(self, values: FloatArray) -> list[int]:
        if len(values) <= self._most_points:
            return list(range(len(values)))
        latest = range(len(values) - self._most_points // 2, len(values))
        others = np.argsort(values[: latest[0]], kind="stable")[: self._most_points - len(latest)]
        return [*sorted(others.tolist()), *latest]
