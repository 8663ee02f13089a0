"""Choosing and building a model for a federation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from fedarena.errors import BadInputError
from fedarena.models.seeding import seeded
from fedarena.models.spec import DataSpec
from fedarena.registry import Registry
from fedarena.streams import torch_seed

ModelBuilder = Callable[..., nn.Module]

MODELS: Registry[ModelBuilder] = Registry("model")


def default_model(spec: DataSpec) -> str:
    """The model that trains well on such data within minutes."""
    if spec.kind == "next_token":
        return "char_mlp"
    return "cnn" if spec.is_image else "logistic_regression"


def build_model(name: str, spec: DataSpec, options: dict[str, Any], seed: int) -> nn.Module:
    """A freshly initialized model; the same seed gives the same weights."""
    builder = MODELS.get(name)
    with seeded(torch_seed(seed, "model")):
        module = builder(spec, **options)
    for path, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.track_running_stats:
            raise BadInputError(
                f"The model {name!r} keeps running statistics in its layer {path!r} ({type(part).__name__}), "
                "which would leak from one client to the next; use GroupNorm instead"
            )
    return module


def require(condition: bool, model: str, needs: str, spec: DataSpec) -> None:
    """Refuses a federation that the model cannot be built for."""
    if not condition:
        raise BadInputError(
            f"The model {model!r} needs {needs}, but this federation has {spec}; try model={default_model(spec)}"
        )
