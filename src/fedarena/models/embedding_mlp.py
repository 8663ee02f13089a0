"""A perceptron for several inputs, of which some are codes: each code has a vector of its own."""

from __future__ import annotations

import itertools
from math import prod

import torch
from torch import Tensor, nn

from fedarena.models.spec import DataSpec
from fedarena.models.zoo import MODELS, at_least_one, require


class EmbeddingMLP(nn.Module):
    """Vectors in the place of codes, beside the numbers, and fully connected ReLU layers on all of them."""

    def __init__(self, spec: DataSpec, factors: int, hidden: tuple[int, ...]):
        super().__init__()
        self.embeddings = nn.ModuleList(
            nn.Identity() if part.values is None else nn.Embedding(part.values, factors) for part in spec.inputs
        )
        width = sum(prod(part.shape) * (1 if part.values is None else factors) for part in spec.inputs)
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise((width, *hidden)):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        output = nn.Linear((width, *hidden)[-1], spec.classes)
        if spec.value_range is not None:
            nn.init.constant_(output.bias, sum(spec.value_range) / 2)
        self.layers = nn.Sequential(*layers, output)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Predictions ``[samples, outputs]`` for the inputs, ``[samples, …]`` each, in the order of the task."""
        parts = [layer(part).reshape(len(part), -1) for layer, part in zip(self.embeddings, inputs, strict=True)]
        predictions: Tensor = self.layers(torch.cat(parts, dim=1))
        return predictions


@MODELS.register("embedding_mlp")
def embedding_mlp(spec: DataSpec, *, factors: int = 8, hidden: tuple[int, ...] = (64,)) -> nn.Module:
    """Vectors of `factors` numbers for codes, then fully connected ReLU layers; `hidden` are their widths."""
    has_codes = any(part.values is not None for part in spec.inputs)
    require(has_codes, "embedding_mlp", "inputs of which some are codes", spec)
    at_least_one(factors=factors, hidden=hidden)
    return EmbeddingMLP(spec, factors, hidden)
