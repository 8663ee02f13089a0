"""Which hyperparameters matter: the functional analysis of variance (Hutter, Hoos and Leyton-Brown, ICML 2014).

The variance of what a problem answers is divided among its hyperparameters and pairs of them. A table holds the whole
grid, so the parts are exact sums over it and no model has to be fitted. Losses of configurations that diverge are huge
or infinite and would be all of the variance; ranks are looked at instead, unless somebody asks for the values.

Evaluations of a search do not fill a grid. There, Optuna fits a forest and divides the variance of its predictions.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt
from scipy import stats

from fedarena.core.errors import BadInputError
from fedarena.hpo.analysis.regret import GridValues
from fedarena.hpo.space import Space
from fedarena.hpo.trajectory import Trajectory

FloatArray = npt.NDArray[np.float64]
Name = TypeVar("Name")


@dataclass(frozen=True)
class Importance:
    """Shares of the variance; what they leave belongs to three hyperparameters or more together."""

    single: Mapping[str, float]  # by name, the most important one first
    pairs: Mapping[tuple[str, str], float]  # beyond what each of the two does alone, the largest first

    @property
    def most_important(self) -> tuple[str, ...]:
        """Names of hyperparameters, the most important one first."""
        return tuple(self.single)


def grid_importance(space: Space, found: GridValues, of: Literal["ranks", "values"] = "ranks") -> Importance:
    """The exact shares over the grid of a table."""
    shape = tuple(len(one.grid()) for one in space)
    if len(found.values) != int(np.prod(shape)):
        raise BadInputError(f"The grid of {found.problem} is not complete, so its variance cannot be divided")
    values = np.asarray(stats.rankdata(found.values), dtype=np.float64) if of == "ranks" else _finite(found.values)
    cube = values.reshape(shape) - values.mean()
    total = float((cube**2).mean())
    axes = range(len(shape))
    marginals = {axis: _mean_over(cube, {axis}) for axis in axes}
    single = {space.names[axis]: _share(marginals[axis], total) for axis in axes}
    pairs = {}
    for one, other in itertools.combinations(axes, 2):
        together = _mean_over(cube, {one, other}) - marginals[one] - marginals[other]
        pairs[space.names[one], space.names[other]] = _share(together, total)
    return Importance(_largest_first(single), _largest_first(pairs))


def search_importance(space: Space, trajectories: Sequence[Trajectory], seed: int = 0) -> Importance:
    """The shares by a forest that Optuna fits to what searches evaluated with the most rounds; pairs are not told."""
    try:
        import optuna
        from optuna.importance import FanovaImportanceEvaluator
    except ImportError as error:
        raise BadInputError("Optuna is not installed; pip install 'fedarena[hpo]'") from error
    longest = max((int(one.rounds.max()) for one in trajectories if len(one)), default=0)
    evaluations = [one for trajectory in trajectories for one in trajectory if one.rounds == longest]
    if len(evaluations) < 2:
        raise BadInputError("Importance needs at least two evaluations with the same number of rounds")
    quiet = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        study = optuna.create_study()
        scores = stats.rankdata([one.value for one in evaluations])
        places = [space.places(one.configuration) for one in evaluations]
        distributions = {name: optuna.distributions.FloatDistribution(0.0, 1.0) for name in space.names}
        for place, score in zip(places, scores, strict=True):
            params = dict(zip(space.names, map(float, place), strict=True))
            study.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=float(score)))
        varied = [name for column, name in enumerate(space.names) if len({place[column] for place in places}) > 1]
        shares = FanovaImportanceEvaluator(seed=seed).evaluate(study, params=varied) if varied else {}
    finally:
        optuna.logging.set_verbosity(quiet)
    single = {name: float(shares.get(name, 0.0)) for name in space.names}
    return Importance(_largest_first(single), {})


def _finite(values: FloatArray) -> FloatArray:
    """What diverged is as bad as the worst that did not."""
    return np.asarray(np.minimum(values, values[np.isfinite(values)].max()), dtype=np.float64)


def _mean_over(cube: FloatArray, kept: set[int]) -> FloatArray:
    """The mean over all axes but those kept, which broadcasts against the cube."""
    return np.asarray(cube.mean(axis=tuple(axis for axis in range(cube.ndim) if axis not in kept), keepdims=True))


def _share(part: FloatArray, total: float) -> float:
    return float((part**2).mean() / total) if total > 0 else 0.0


def _largest_first(shares: Mapping[Name, float]) -> dict[Name, float]:
    return dict(sorted(shares.items(), key=lambda item: -item[1]))
