"""Which configuration is best under which privacy budget (Table 10 of FedHPO-Bench)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedarena.hpo.analysis.regret import grid_values
from fedarena.hpo.problem import Problem
from fedarena.hpo.space import Configuration


@dataclass(frozen=True)
class BestUnderBudget:
    """The best configuration of a grid with a privacy budget of ε."""

    epsilon: float
    configuration: Configuration
    value: float
    metrics: Mapping[str, tuple[float, float | None]]  # mean and spread over seeds, the latter with two or more


def best_under_budgets(problems: Mapping[float, Problem], seeds: Sequence[int] = (0,)) -> list[BestUnderBudget]:
    """The best configuration by the mean over `seeds`, for the same problem with different ε, the smallest ε first.

    >>> best_under_budgets({eps: problem("gnn@cora", epsilon=eps) for eps in (1, 10, 20)})  # doctest: +SKIP
    """
    found = []
    for epsilon, problem in sorted(problems.items()):
        grids = [grid_values(problem, seed=seed) for seed in seeds]
        means = np.mean([grid.values for grid in grids], axis=0)
        place = int(np.argmin(means))
        best = grids[0].configurations[place]
        answers = [problem.query(best, seed=seed).metrics for seed in seeds]
        metrics = {name: _spread([one[name] for one in answers]) for name in answers[0]}
        found.append(BestUnderBudget(float(epsilon), best, float(means[place]), metrics))
    return found


def _spread(values: Sequence[float]) -> tuple[float, float | None]:
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None
