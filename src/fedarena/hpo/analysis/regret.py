"""How far from the best: regret between 0, the best that a table holds, and 1, the worst; and its distribution.

The shape of the distribution over all configurations tells how hard a problem is: where few configurations have a small
regret, few searches find one (Figures 3, 9 and 11 of FedHPO-Bench).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedarena.core.errors import BadInputError
from fedarena.hpo.problem import Fidelity, Problem
from fedarena.hpo.space import Configuration

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class GridValues:
    """What a problem answers for every configuration of its grid, trained to the end."""

    problem: str
    configurations: tuple[Configuration, ...]
    values: FloatArray  # infinite where training diverged

    @property
    def best(self) -> float:
        """The smallest value."""
        return float(np.min(self.values))

    @property
    def worst(self) -> float:
        """The largest value that is finite."""
        return float(np.max(self.values[np.isfinite(self.values)]))

    @property
    def best_configuration(self) -> Configuration:
        """That of the smallest value; the first of several."""
        return self.configurations[int(np.argmin(self.values))]

    def regret_of(self, values: Sequence[float] | FloatArray) -> FloatArray:
        """Of values that somebody found."""
        return normalized_regret(values, self.best, self.worst)


def grid_values(
    problem: Problem, fidelity: Fidelity | None = None, seed: int = 0, told: Callable[[], None] | None = None
) -> GridValues:
    """Asks a problem for every configuration of its grid; that of a table takes milliseconds.

    `told` is called after each of them.
    """
    configurations = tuple(problem.space.grid())
    values = np.full(len(configurations), np.inf)
    for place, one in enumerate(configurations):
        value = problem.query(one, fidelity, seed).value
        values[place] = np.inf if np.isnan(value) else value
        if told is not None:
            told()
    if not np.isfinite(values).any():
        raise BadInputError(f"No configuration of {problem.name} comes to a finite {problem.objective}")
    return GridValues(problem.name, configurations, values)


def normalized_regret(values: Sequence[float] | FloatArray, best: float, worst: float) -> FloatArray:
    """Where values lie between the best, 0, and the worst, 1; what diverged is as bad as the worst.

    >>> normalized_regret([0.2, 0.3, 0.6, np.inf], best=0.2, worst=0.6).round(3).tolist()
    [0.0, 0.25, 1.0, 1.0]
    """
    values = np.asarray(values, dtype=np.float64)
    if worst <= best:  # all configurations are equally good
        return np.where(values <= best, 0.0, 1.0)
    return np.asarray(np.clip((np.minimum(values, worst) - best) / (worst - best), 0.0, 1.0), dtype=np.float64)


def ecdf(values: Sequence[float] | FloatArray) -> tuple[FloatArray, FloatArray]:
    """The empirical distribution: different values in their order, and the share of all that are at most as large.

    >>> [part.tolist() for part in ecdf([0.5, 0.0, 0.5, 1.0])]
    [[0.0, 0.5, 1.0], [0.25, 0.75, 1.0]]
    """
    different, counts = np.unique(np.asarray(values, dtype=np.float64), return_counts=True)
    return different, np.cumsum(counts) / counts.sum()
