"""Hyperparameter search: problems, optimizers, and what comes of one on the other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedarena.hpo.problem import Curve, Fidelity, Mode, Problem, Result
from fedarena.hpo.space import Hyperparameter, Space

__all__ = ["Curve", "Fidelity", "Hyperparameter", "Problem", "Result", "Space", "problem"]


def problem(name: str | Path | Mapping[str, Any], mode: Mode = "tabular", **options: Any) -> Problem:
    """A problem of the catalogue by its name, or one's own by a configuration file; `problems.problem` has options.

    >>> problem("lr@31", mode="raw", folder="data/openml").space.names  # doctest: +SKIP
    ('local.batch_size', 'local.weight_decay', 'local.steps', 'local.lr')
    """
    from fedarena.hpo import problems  # so that what needs fewer libraries can do without them

    return problems.problem(name, mode, **options)
