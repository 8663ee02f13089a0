"""Hyperparameter search: problems, optimizers, and what comes of one on the other."""

from fedarena.hpo.problem import Curve, Fidelity, Problem, Result
from fedarena.hpo.space import Hyperparameter, Space

__all__ = ["Curve", "Fidelity", "Hyperparameter", "Problem", "Result", "Space"]
