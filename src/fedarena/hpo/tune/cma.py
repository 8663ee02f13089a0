"""CMA-ES for studies that several processes may work on.

Optuna's own sampler keeps its state as a pickle in the storage, which whoever opens a study would have to trust. Here
the state is made again from the trials that the study has: generation after generation is told to the library cmaes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import optuna
from cmaes import CMA

from fedarena.hpo.space import Space
from fedarena.hpo.tune.plan import as_label

_PLACE, _GENERATION = "cma:place", "cma:generation"  # attributes of trials
_FIRST_STEP = 1 / 4  # of the width of every hyperparameter


class CmaSampler(optuna.samplers.BaseSampler):  # type: ignore[misc]
    """Proposes places in the unit cube of a space; values to choose from have equal parts of their side."""

    def __init__(self, space: Space, seed: int, study_seed: int, population: int | None):
        self._space, self._seed, self._study_seed, self._population = space, seed, study_seed, population

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
        """Nothing that Optuna has to know: all comes from the space."""
        return {}

    def sample_relative(self, study: Any, trial: Any, search_space: dict[str, Any]) -> dict[str, Any]:
        """Nothing, since the values are asked for one by one."""
        return {}

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
        """The value of a hyperparameter at the place of the trial, which is chosen when the first one is asked for."""
        attributes = study._storage.get_trial_system_attrs(trial._trial_id)
        if _PLACE not in attributes:
            generation, place = self._next(study)
            study._storage.set_trial_system_attr(trial._trial_id, _GENERATION, generation)
            study._storage.set_trial_system_attr(trial._trial_id, _PLACE, place.tolist())
        else:
            place = np.array(attributes[_PLACE])
        number = self._space.names.index(param_name)
        return as_label(self._space[param_name].value_at(place[number]))

    def _next(self, study: Any) -> tuple[int, npt.NDArray[np.float64]]:
        """The generation that is not complete yet, and a place that its distribution gives."""
        dimensions = len(self._space)
        if dimensions == 1:  # cmaes needs two; the second one has no meaning
            dimensions = 2
        cma = CMA(
            mean=np.full(dimensions, 0.5),
            sigma=_FIRST_STEP,
            bounds=np.array([[0.0, 1.0]] * dimensions),
            seed=self._study_seed % 2**32,
            population_size=self._population,
        )
        sign = -1.0 if study.direction == optuna.study.StudyDirection.MAXIMIZE else 1.0
        told: dict[int, list[tuple[npt.NDArray[np.float64], float]]] = {}
        for trial in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,)):
            if _PLACE in trial.system_attrs:
                value = (np.array(trial.system_attrs[_PLACE]), sign * trial.value)
                told.setdefault(trial.system_attrs[_GENERATION], []).append(value)
        generation = 0
        while len(told.get(generation, ())) >= cma.population_size:
            cma.tell(told[generation][: cma.population_size])
            generation += 1
        cma.reseed_rng(self._seed)
        return generation, cma.ask()
