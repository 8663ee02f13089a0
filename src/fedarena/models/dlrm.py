"""Deep Learning Recommendation Model (Naumov et al., 2019): numbers and codes, and how well they match in pairs."""

from __future__ import annotations

import itertools
from math import prod

import torch
from torch import Tensor, nn

from fedarena.models.spec import DataSpec
from fedarena.models.zoo import MODELS, at_least_one, require


class DLRM(nn.Module):
    """A vector for all numbers and one for every code; products of any two of them go into the last layers."""

    def __init__(self, spec: DataSpec, factors: int, bottom: tuple[int, ...], top: tuple[int, ...]):
        super().__init__()
        self.is_code = [part.values is not None for part in spec.inputs]
        self.embeddings = nn.ModuleList(
            nn.Embedding(part.values, factors) for part in spec.inputs if part.values is not None
        )
        for table in self.embeddings:
            assert isinstance(table, nn.Embedding)
            nn.init.uniform_(table.weight, -(table.num_embeddings**-0.5), table.num_embeddings**-0.5)
        numbers = sum(prod(part.shape) for part in spec.inputs if part.values is None)
        self.bottom = _dense((numbers, *bottom, factors), ends_with_relu=True) if numbers else None
        vectors = len(self.embeddings) + bool(numbers)
        pairs = vectors * (vectors - 1) // 2
        # Without numbers, the vectors of the codes themselves go on, so that there is more than their products.
        passed = factors if numbers else factors * vectors
        self.top = _dense((passed + pairs, *top, spec.classes), ends_with_relu=False)
        if spec.value_range is not None:
            nn.init.constant_(self.top[-1].bias, sum(spec.value_range) / 2)  # type: ignore[arg-type]

    def forward(self, *inputs: Tensor) -> Tensor:
        """Predictions ``[samples, outputs]`` for the inputs, ``[samples, …]`` each, in the order of the task."""
        codes = [part for part, is_code in zip(inputs, self.is_code, strict=True) if is_code]
        numbers = [part.flatten(1) for part, is_code in zip(inputs, self.is_code, strict=True) if not is_code]
        # Where a sample has several codes of a kind, their vectors are added up.
        vectors = [
            table(part.reshape(len(part), -1)).sum(-2) for table, part in zip(self.embeddings, codes, strict=True)
        ]
        if self.bottom is not None:
            vectors.insert(0, self.bottom(torch.cat(numbers, -1)))
        passed = vectors if self.bottom is None else vectors[:1]
        pairs = [(one * other).sum(-1, keepdim=True) for one, other in itertools.combinations(vectors, 2)]
        predictions: Tensor = self.top(torch.cat([*passed, *pairs], -1))
        return predictions


def _dense(widths: tuple[int, ...], ends_with_relu: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layer = nn.Linear(inputs, outputs)
        nn.init.normal_(layer.weight, std=(2 / (inputs + outputs)) ** 0.5)
        nn.init.normal_(layer.bias, std=outputs**-0.5)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*(layers if ends_with_relu else layers[:-1]))


@MODELS.register("dlrm")
def dlrm(
    spec: DataSpec, *, factors: int = 16, bottom: tuple[int, ...] = (64,), top: tuple[int, ...] = (512, 256)
) -> nn.Module:
    """DLRM, for clicks and ratings: vectors of `factors` numbers for codes, and products of any two of them.

    Numbers become such a vector, too, by ReLU layers of the widths `bottom`; `top` are the widths of the last layers.
    FedScale's for Taobao has the sizes that are the default.
    """
    has_codes = any(part.values is not None for part in spec.inputs) and not spec.is_text
    require(has_codes, "dlrm", "inputs of which some are codes", spec)
    at_least_one(factors=factors, bottom=bottom, top=top)
    return DLRM(spec, factors, bottom, top)
