"""Sample rate against rounds (FedHPO-Bench, appendix G, Fig. 7): what is reached in the same simulated time.

With more clients a round is better, but it takes longer: all have to be waited for. Which counts for more depends on
the system, and needs no training to find out, only a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedarena.core.errors import BadInputError
from fedarena.hpo.cost import SystemModel
from fedarena.hpo.problems.objective import Objective
from fedarena.hpo.tables.table import Table

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RateStudy:
    """How good configurations are after so many seconds, by system and sample rate; infinity before the first round."""

    rates: tuple[float, ...]
    seconds: dict[str, FloatArray]  # by system, [points]
    best: dict[str, FloatArray]  # of all configurations, [rates, points]
    median: dict[str, FloatArray]


def rate_study(
    table: Table,
    systems: Mapping[str, SystemModel],
    *,
    objective: Objective | None = None,
    budget_s: float | None = None,
    points: int = 100,
) -> RateStudy:
    """What every sample rate of a table comes to as simulated time goes by, under several systems.

    The time goes from the first round of the fastest course to `budget_s`, or as long as the slowest course of the
    smallest sample rate takes.
    """
    if points < 2:
        raise BadInputError(f"A study needs at least 2 points of time, not {points}")
    objective = objective or Objective()
    objective.check_known(dict.fromkeys(table.scores), f"The table of {table.problem}")
    values = sum(sign * table.score(name).astype(np.float64) for name, sign in objective.signs().items())
    values = np.where(np.isfinite(values), values, np.inf)
    noted = np.array(table.rounds)
    seconds: dict[str, FloatArray] = {}
    best: dict[str, FloatArray] = {}
    median: dict[str, FloatArray] = {}
    for name, system in systems.items():
        round_s = np.asarray(system.round_s(table.round_work), dtype=np.float64)
        last = noted[-1] * round_s[:, 0].max() if budget_s is None else budget_s
        seconds[name] = np.geomspace(noted[0] * round_s.min(), max(last, 2 * noted[0] * round_s.min()), points)
        # How many noted rounds each course has behind it at each of these times.
        played = np.floor(seconds[name] / round_s[:, :, None] + 1e-9)
        reached = np.searchsorted(noted, played, side="right") - 1
        found = np.take_along_axis(values, np.maximum(reached, 0), axis=2)
        found = np.where((reached < 0) | ~table.present[:, :, None], np.inf, found)
        best[name], median[name] = found.min(0), np.median(found, axis=0)
    return RateStudy(table.rates, seconds, best, median)
