"""Bayesian optimization with a Gaussian process, by Optuna's GPSampler: a Matérn kernel (5/2) with a length for each
hyperparameter, on the Hamming distance for choices without an order, and the logarithm of expected improvement.

Optuna's is fitted and searched in a tenth of a second where that of smac takes up to eight, and has all that the paper
says of BO_GP. It sees the unit cube: searching whole numbers for the largest improvement takes it long, so
only hyperparameters with few values are such.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedarena.hpo.optimizers.axes import FloatArray
from fedarena.hpo.optimizers.checks import check_at_least
from fedarena.hpo.optimizers.improvement import ImprovementSearch
from fedarena.hpo.optimizers.one_thread import one_thread
from fedarena.hpo.optimizers.optimizer import OPTIMIZERS
from fedarena.hpo.optimizers.values import tamed
from fedarena.hpo.optimizers.with_optuna import imported, quiet_study, quietly
from fedarena.hpo.space import Space

_FEW_VALUES = 16  # Optuna tries them all


@OPTIMIZERS.register("bo_gp")
class GaussianProcessSearch(ImprovementSearch):
    """Expected improvement by a Gaussian process, each configuration trained for all rounds (BO_GP in FedHPO-Bench).

    The search begins with `initial` configurations that are evenly spread; later a `random_fraction` of all is drawn
    without the model. The model knows no more than `most_points`, half of them the best and half the latest, because
    fitting it takes longer with every one. Configurations that were tried are not proposed again as long as there are
    others.
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
        super().__init__(space, max_rounds, seed, min_rounds, initial=initial, random_fraction=random_fraction)
        check_at_least(2, most_points=most_points)
        self._optuna = imported("bo_gp")
        self._distributions = {one.name: self._distribution(axis) for axis, one in enumerate(space)}
        self._most_points = most_points

    def _most_promising(self) -> FloatArray:
        values = tamed(self._values)
        with one_thread(), quietly(self._optuna):
            sampler = self._optuna.samplers.GPSampler(seed=int(self.generator.integers(2**31)), n_startup_trials=0)
            study = quiet_study(self._optuna, sampler)
            study.add_trials([self._trial(self._points[index], values[index]) for index in self._known(values)])
            parameters = study.ask(self._distributions).params
        point = self._axes.snap(
            np.array([[self._place(axis, parameters[name]) for axis, name in enumerate(self.space.names)]])
        )[0]
        return self._tried.or_new(point, self.generator)

    def _distribution(self, axis: int) -> Any:
        kinds = self._optuna.distributions
        values = self._few_values(axis)
        if values is None:
            return kinds.FloatDistribution(0.0, 1.0)
        if self._axes.categories[axis]:
            return kinds.CategoricalDistribution(range(values))
        return kinds.IntDistribution(0, values - 1)

    def _few_values(self, axis: int) -> int | None:
        """How many values an axis has, if they are few and evenly spread, or without an order."""
        values, one = self._axes.counts[axis], self.space.hyperparameters[axis]
        if self._axes.categories[axis]:
            return values
        return None if values is None or values > _FEW_VALUES or one.log else values

    def _trial(self, point: FloatArray, value: float) -> Any:
        parameters = {}
        for axis, (name, place) in enumerate(zip(self.space.names, point.tolist(), strict=True)):
            values = self._few_values(axis)
            parameters[name] = place if values is None else min(int(place * values), values - 1)
        return self._optuna.trial.create_trial(params=parameters, distributions=self._distributions, value=float(value))

    def _place(self, axis: int, parameter: float) -> float:
        values = self._few_values(axis)
        return parameter if values is None else (parameter + 0.5) / values

    def _known(self, values: FloatArray) -> list[int]:
        if len(values) <= self._most_points:
            return list(range(len(values)))
        latest = range(len(values) - self._most_points // 2, len(values))
        others = np.argsort(values[: latest[0]], kind="stable")[: self._most_points - len(latest)]
        return [*sorted(others.tolist()), *latest]
