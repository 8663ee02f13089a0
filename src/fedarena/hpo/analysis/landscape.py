"""Landscapes: what two hyperparameters do while the others stay at their best (Figures 8 and 10 of FedHPO-Bench)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedarena.core.errors import BadInputError
from fedarena.core.registry import nearest
from fedarena.hpo.analysis.regret import GridValues
from fedarena.hpo.space import Configuration, Space

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Landscape:
    """Values over the grid of two hyperparameters."""

    problem: str
    x: str
    y: str
    x_values: tuple[Any, ...]
    y_values: tuple[Any, ...]
    values: FloatArray  # [y values, x values]; infinite where training diverged
    fixed: Configuration  # the others


def landscape(space: Space, found: GridValues, x: str, y: str, fixed: Configuration | None = None) -> Landscape:
    """The values of all configurations with those of `fixed`, by default those of the best one."""
    for name in (x, y):
        if name not in space.names:
            raise BadInputError(f"The space has no hyperparameter {name!r}; {nearest(name, space.names)}")
    if x == y:
        raise BadInputError(f"A landscape needs two hyperparameters, not {x!r} twice")
    at = {**found.best_configuration, **(fixed or {})}
    others = {name: value for name, value in at.items() if name not in (x, y)}
    columns, rows = (tuple(space[name].grid()) for name in (x, y))
    values = np.full((len(rows), len(columns)), np.nan)
    for configuration, value in zip(found.configurations, found.values, strict=True):
        if all(configuration[name] == chosen for name, chosen in others.items()):
            values[rows.index(configuration[y]), columns.index(configuration[x])] = value
    return Landscape(found.problem, x, y, columns, rows, values, others)
