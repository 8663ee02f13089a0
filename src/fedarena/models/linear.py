"""Multinomial logistic regression."""

from __future__ import annotations

from math import prod

from torch import nn

from fedarena.models.spec import DataSpec
from fedarena.models.zoo import MODELS, require


@MODELS.register("logistic_regression")
def logistic_regression(spec: DataSpec) -> nn.Module:
    """One linear layer on the flattened features."""
    require(spec.kind == "classification", "logistic_regression", "a classification federation", spec)
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(spec.input_shape), spec.classes))
