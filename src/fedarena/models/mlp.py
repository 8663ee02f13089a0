"""Multi-layer perceptron."""

from __future__ import annotations

import itertools
from math import prod

from torch import nn

from fedarena.models.spec import DataSpec
from fedarena.models.zoo import MODELS, at_least_one, require


@MODELS.register("mlp")
def mlp(spec: DataSpec, *, hidden: tuple[int, ...] = (200,)) -> nn.Module:
    """Fully connected ReLU layers on the flattened features; `hidden` are their widths (none: a linear model)."""
    require(spec.is_features, "mlp", "features", spec)
    at_least_one(hidden=hidden)
    widths = (prod(spec.input_shape), *hidden)
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], spec.classes))
