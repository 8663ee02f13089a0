"""Adapters. Houlsby et al., "Parameter-Efficient Transfer Learning for NLP", ICML 2019; Rebuffi et al., "Learning
Multiple Visual Domains with Residual Adapters", NeurIPS 2017, have them in networks of pictures.

Behind chosen layers there are two new thin ones, with a bottleneck between them, and what they compute is added. The
second starts at zero, so that the model is at first what it was.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedarena.core.errors import BadInputError
from fedarena.models.adaptation.base import (
    ADAPTATIONS,
    Adaptation,
    chosen_layers,
    freeze_all_but,
    head_of,
    output_shapes,
)
from fedarena.models.tasks import Task

PART = "adapter"
# What blocks of our models say: behind which of their parts (the name of one, or nothing for all of it) adapters go.
PLACES = "adapted_behind"
_MAPS = 4  # dimensions of feature maps: samples, channels, height, width


@ADAPTATIONS.register("adapter")
class Adapter(Adaptation):
    """New layers with a bottleneck of `size` features behind the blocks of a model; these and the last one are trained.

    `layers` are patterns of names of other layers than blocks, such as ``["layer4.*"]``.
    """

    def __init__(self, *, size: int = 16, layers: list[str] | None = None):
        if size < 1:
            raise BadInputError(f"adaptation.size must be at least 1, not {size}")
        self.size, self.layers = size, layers

    def adapt(self, task: Task) -> None:
        """Adds the layers, and freezes the rest."""
        module, head = task.module, head_of(task.module)
        shapes = output_shapes(task)
        possible = [name for name in shapes if name and not head[0].startswith(f"{name}.")]
        usual = [
            ".".join(filter(None, (name, part)))
            for name, block in module.named_modules()
            for part in getattr(block, PLACES, ())
        ]
        for name in chosen_layers(usual, possible, self.layers):
            _add(module.get_submodule(name), shapes[name], self.size)
        added = [name for name, _ in module.named_parameters() if is_of_adapter(name)]
        freeze_all_but(module, [*added, *head])


class BottleneckAdapter(nn.Module):
    """What goes in, and what two thin layers make of it."""

    def __init__(self, shape: torch.Size, size: int):
        super().__init__()
        self.down: nn.Module
        self.up: nn.Conv2d | nn.Linear
        if len(shape) == _MAPS:
            self.down, self.up = nn.Conv2d(shape[1], size, 1), nn.Conv2d(size, shape[1], 1)
        else:
            self.down, self.up = nn.Linear(shape[-1], size), nn.Linear(size, shape[-1])
        for parameter in self.up.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        """Features of the same shape."""
        change: Tensor = self.up(torch.relu(self.down(x)))
        return x + change


def _add(layer: nn.Module, shape: torch.Size, size: int) -> None:
    layer.add_module(PART, BottleneckAdapter(shape, size))
    if not isinstance(layer, nn.Sequential):  # which computes its last part by itself
        layer.register_forward_hook(_adapted)


def _adapted(layer: Any, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
    """The function knows nothing of a layer, so that copies of the model have their own adapters."""
    adapted: Tensor = layer.adapter(output)
    return adapted


def is_of_adapter(name: str) -> bool:
    """Whether a tensor of this name is one of an adapter."""
    return name.split(".")[-3:-2] == [PART]
