"""Hyperparameter search: problems, optimizers, and what comes of one on the other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedarena.hpo.problem import Curve, Fidelity, Mode, Problem, Result
from fedarena.hpo.space import Hyperparameter, Space

if TYPE_CHECKING:
    from fedarena.hpo.comparison import OptimizerComparison
    from fedarena.hpo.trajectory import Trajectory

__all__ = ["Curve", "Fidelity", "Hyperparameter", "Problem", "Result", "Space", "compare", "problem", "run_search"]


def problem(name: str | Path | Mapping[str, Any], mode: Mode = "tabular", **options: Any) -> Problem:
    """A problem of the catalogue by its name, or one's own by a configuration file; `problems.problem` has options.

    >>> problem("lr@31", mode="raw", folder="data/openml").space.names  # doctest: +SKIP
    ('local.batch_size', 'local.weight_decay', 'local.steps', 'local.lr')
    """
    from fedarena.hpo import problems  # so that what needs fewer libraries can do without them

    return problems.problem(name, mode, **options)


def compare(problems: Any, optimizers: Any = "all", **settings: Any) -> OptimizerComparison:
    """Optimizers beside each other on problems; see `comparison.compare` for the settings."""
    from fedarena.hpo import comparison

    return comparison.compare(problems, optimizers, **settings)


def run_search(problem: Problem, optimizer: Any, budget_s: float | None = None, **settings: Any) -> Trajectory:
    """One optimizer on one problem; see `search.run_search` for the settings."""
    from fedarena.hpo import search

    return search.run_search(problem, optimizer, budget_s, **settings)
