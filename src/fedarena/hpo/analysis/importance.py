"""Which hyperparameters matter: the functional analysis of variance (Hutter, Hoos and Leyton-Brown, ICML 2014).

The variance of what a problem answers is divided among its hyperparameters and pairs of them. A table holds the whole
grid, so the parts are exact sums over it and no model has to be fitted. Losses of configurations that diverge are huge
or infinite and would be all of the variance; ranks are looked at instead, unless somebody asks for the values.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt
from scipy import stats

from fedarena.core.errors import BadInputError
from fedarena.hpo.analysis.regret import GridValues
from fedarena.hpo.space import Space

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
