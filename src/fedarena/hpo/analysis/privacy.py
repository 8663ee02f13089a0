"""Which configuration is best under which privacy budget (Table 10 of FedHPO-Bench)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedarena.hpo.analysis.regret import grid_values
from fedarena.hpo.cost import SystemModel
from fedarena.hpo.problem import Fidelity, Problem
from fedarena.hpo.problems.making import declare
from fedarena.hpo.problems.objective import Objective
from fedarena.hpo.problems.raw import RawProblem
from fedarena.hpo.space import Configuration, Hyperparameter, Space
from fedarena.hpo.tables.recipe import grid_values_of


@dataclass(frozen=True)
class BestUnderBudget:
    """The best configuration of a grid with a privacy budget of ε."""

    epsilon: float
    configuration: Configuration
    value: float
    metrics: Mapping[str, tuple[float, float | None]]  # mean and spread over seeds, the latter with two or more


def private_problems(
    name: str | Path | Mapping[str, Any],
    epsilons: Sequence[float],
    *,
    grid: Mapping[str, Sequence[Any]] | None = None,
    objective: str = "validation_loss",
    folder: Path | None = None,
    settings: Mapping[str, Any] | None = None,
    rounds: int | None = None,
    runs_folder: Path = Path("runs"),
) -> dict[float, RawProblem]:
    """A problem trained with NbAFL under each of these ε, whose space has the bins, or the values of `grid`."""
    found = {}
    for epsilon in epsilons:
        declared = declare(name, epsilon=epsilon, folder=folder, settings=settings)
        values = grid_values_of(declared, grid)
        space = Space([Hyperparameter(one, "choice", choices=some) for one, some in values.items()])
        found[float(epsilon)] = RawProblem(
            replace(declared, space=space), runs_folder, Objective(objective, {}), SystemModel(), rounds
        )
    return found


def best_under_budgets(
    problems: Mapping[float, Problem],
    seeds: Sequence[int] = (0,),
    fidelity: Fidelity | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[BestUnderBudget]:
    """The best configuration by the mean over `seeds`, for the same problem with different ε, the smallest ε first.

    `progress` is told how many courses of how many are trained, or looked up.

    >>> best_under_budgets({eps: problem("gnn@cora", epsilon=eps) for eps in (1, 10, 20)})  # doctest: +SKIP
    """
    found = []
    total = len(seeds) * sum(sum(1 for _ in problem.space.grid()) for problem in problems.values())
    done = 0

    def told() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    for epsilon, problem in sorted(problems.items()):
        grids = [grid_values(problem, fidelity, seed, told) for seed in seeds]
        means = np.mean([grid.values for grid in grids], axis=0)
        place = int(np.argmin(means))
        best = grids[0].configurations[place]
        answers = [problem.query(best, fidelity, seed).metrics for seed in seeds]
        metrics = {name: _spread([one[name] for one in answers]) for name in answers[0]}
        found.append(BestUnderBudget(float(epsilon), best, float(means[place]), metrics))
    return found


def _spread(values: Sequence[float]) -> tuple[float, float | None]:
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None
