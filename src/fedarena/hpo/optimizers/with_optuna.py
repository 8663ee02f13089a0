"""Our spaces and studies as Optuna has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedarena.hpo.optimizers.axes import has_order
from fedarena.hpo.optimizers.checks import needed
from fedarena.hpo.space import Configuration, Hyperparameter, Space


class OptunaSpace:
    """The distributions of a space, and configurations as their parameters.

    A choice is its place in the list: a whole number where the values have an order, else a category.
    """

    def __init__(self, space: Space, optimizer: str):
        self.optuna = needed("optuna", optimizer)
        self._space = space
        self.distributions = {one.name: self._distribution(one) for one in space}

    def parameters(self, configuration: Mapping[str, Any]) -> dict[str, Any]:
        """What Optuna calls a configuration."""
        return {
            one.name: one.choices.index(configuration[one.name]) if one.kind == "choice" else configuration[one.name]
            for one in self._space
        }

    def configuration(self, parameters: Mapping[str, Any]) -> Configuration:
        """The other way round."""
        return {
            one.name: one.choices[parameters[one.name]] if one.kind == "choice" else one.check(parameters[one.name])
            for one in self._space
        }

    def study(self, *, sampler: Any, pruner: Any = None) -> Any:
        """A study in memory, to be minimized, made without a word on the terminal."""
        logging = self.optuna.logging
        before = logging.get_verbosity()
        logging.set_verbosity(logging.WARNING)
        try:
            # Optuna's Hyperband assigns brackets by the name of the study, which would be a random one.
            return self.optuna.create_study(
                sampler=sampler, pruner=pruner or self.optuna.pruners.NopPruner(), study_name="search"
            )
        finally:
            logging.set_verbosity(before)

    def _distribution(self, one: Hyperparameter) -> Any:
        kinds = self.optuna.distributions
        if one.kind == "choice":
            places = len(one.choices)
            return (
                kinds.IntDistribution(0, places - 1) if has_order(one) else kinds.CategoricalDistribution(range(places))
            )
        if one.kind == "int":
            return kinds.IntDistribution(int(one.low), int(one.high), log=one.log)
        return kinds.FloatDistribution(one.low, one.high, log=one.log)
