"""Multi-layer perceptron."""

from __future__ import annotations

import itertools
from math import prod

from torch import nn

from fedarena.core.errors import BadInputError
from fedarena.models.blocks import check_dropout, followed_by_dropout
from fedarena.models.spec import DataSpec
from fedarena.models.zoo import MODELS, at_least_one, require

_USUAL_HIDDEN = (200,)


@MODELS.register("mlp")
def mlp(
    spec: DataSpec,
    *,
    hidden: tuple[int, ...] = _USUAL_HIDDEN,
    depth: int | None = None,
    width: int | None = None,
    dropout: float = 0.0,
) -> nn.Module:
    """Fully connected ReLU layers on the flattened features; `hidden` are their widths (none: a linear model).

    Instead of `hidden`, `depth` and `width` say how many layers there are, all equally wide. `dropout` is the share
    that is dropped after each of them.
    """
    require(spec.is_features, "mlp", "features", spec)
    hidden = _widths(hidden, depth, width)
    at_least_one(hidden=hidden)
    check_dropout(dropout)
    widths = (prod(spec.input_shape), *hidden)
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), followed_by_dropout(nn.ReLU(), dropout)]
    return nn.Sequential(*layers, nn.Linear(widths[-1], spec.classes))


def _widths(hidden: tuple[int, ...], depth: int | None, width: int | None) -> tuple[int, ...]:
    if depth is None and width is None:
        return hidden
    if depth is None or width is None:
        given, lacking = ("width", "depth") if depth is None else ("depth", "width")
        raise BadInputError(f"model.{given} is given without model.{lacking}; layers need both")
    if tuple(hidden) != _USUAL_HIDDEN:
        raise BadInputError("model.hidden and model.depth are both given, and each says how many layers there are")
    at_least_one(depth=depth, width=width)
    return (width,) * depth
