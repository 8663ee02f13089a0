"""Studies and spaces as Optuna has them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fedarena.hpo.optimizers.axes import has_order
from fedarena.hpo.optimizers.checks import needed
from fedarena.hpo.space import Configuration, Hyperparameter, Space


def imported(optimizer: str) -> Any:
    """Optuna, for the optimizer of this name."""
    return needed("optuna", optimizer)


def quiet_study(optuna: Any, sampler: Any, pruner: Any = None) -> Any:
    """A study in memory, to be minimized, made without a word on the terminal."""
    with quietly(optuna):
        # Optuna's Hyperband assigns brackets by the name of the study, which would be a random one.
        return optuna.create_study(sampler=sampler, pruner=pruner or optuna.pruners.NopPruner(), study_name="search")


@contextmanager
def quietly(optuna: Any) -> Iterator[None]:
    """Nothing on the terminal but errors; what Optuna warns of is what it does by itself then, such as fitting anew."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(before)


class OptunaSpace:
    """The distributions of a space, and configurations from their parameters.

    A choice is its place in the list: a whole number where the values have an order, else a category.
    """

    def __init__(self, space: Space, optuna: Any):
        self._kinds, self._space = optuna.distributions, space
        self.distributions = {one.name: self._distribution(one) for one in space}

    def configuration(self, parameters: Mapping[str, Any]) -> Configuration:
        """What Optuna's parameters mean."""
        return {
            one.name: one.choices[parameters[one.name]] if one.kind == "choice" else one.check(parameters[one.name])
            for one in self._space
        }

    def _distribution(self, one: Hyperparameter) -> Any:
        kinds = self._kinds
        if one.kind == "choice":
            places = len(one.choices)
            return (
                kinds.IntDistribution(0, places - 1) if has_order(one) else kinds.CategoricalDistribution(range(places))
            )
        if one.kind == "int":
            return kinds.IntDistribution(int(one.low), int(one.high), log=one.log)
        return kinds.FloatDistribution(one.low, one.high, log=one.log)
