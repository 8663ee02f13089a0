"""Mean ranks of optimizers while their budgets are spent (Figures 4 and 12 to 23 of FedHPO-Bench).

At every moment optimizers are ranked by what the best configuration known to them has come to, separately for every
problem and repetition; equal values share the mean of their ranks, and those that know nothing yet share the last ones.
Ranks are averaged over the repetitions of a problem, then over problems, so that every problem counts the same.
Problems have different budgets, so the common axis is the share of the budget, divided evenly by its logarithm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy import stats

from fedarena.hpo.trajectory import Trajectory

FloatArray = npt.NDArray[np.float64]
EARLIEST_SHARE: Final = 1e-3  # of a budget
MOMENTS: Final = 200

# A search of every optimizer with the same problem and repetition, by the optimizer's name.
Contest = Mapping[str, Trajectory]


def budget_shares(moments: int = MOMENTS) -> FloatArray:
    """Shares of a budget at which optimizers are ranked, evenly spread on a log scale, the whole budget last.

    >>> budget_shares(4).round(6).tolist()
    [0.001, 0.01, 0.1, 1.0]
    """
    shares = np.geomspace(EARLIEST_SHARE, 1.0, moments)
    shares[-1] = 1.0
    return np.asarray(shares, dtype=np.float64)


def ranks(values: Sequence[Sequence[float]] | FloatArray) -> FloatArray:
    """Ranks along the first axis, 1 for the smallest value; equal ones share the mean of theirs.

    >>> ranks([[0.3], [0.1], [0.3], [np.inf]]).ravel().tolist()
    [2.5, 1.0, 2.5, 4.0]
    """
    return np.asarray(stats.rankdata(np.asarray(values, dtype=np.float64), axis=0), dtype=np.float64)


def best_over_time(trajectory: Trajectory, shares: Sequence[float] | FloatArray) -> FloatArray:
    """What the incumbent had come to at these shares of the budget; infinite while there is none."""
    return trajectory.best_at(np.asarray(shares, dtype=np.float64) * trajectory.budget_s)


def mean_ranks_over_time(
    contests: Mapping[str, Sequence[Contest]], optimizers: Sequence[str], shares: Sequence[float] | FloatArray
) -> FloatArray:
    """Mean ranks ``[optimizers, shares]`` over the contests of every problem, then over problems."""
    by_problem = []
    for found in contests.values():
        by_contest = [
            ranks(np.array([best_over_time(contest[name], shares) for name in optimizers])) for contest in found
        ]
        if by_contest:
            by_problem.append(np.mean(by_contest, axis=0))
    if not by_problem:
        return np.full((len(optimizers), len(shares)), np.nan)
    return np.asarray(np.mean(by_problem, axis=0), dtype=np.float64)
