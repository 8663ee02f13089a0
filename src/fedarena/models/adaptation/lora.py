"""LoRA. Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022.

The weights W of a layer stay; beside them it has two thin matrices, A (drawn) and B (zero), and computes with
W + alpha/rank B A. A convolution's kernel is taken as a matrix, with a row for every channel that comes out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedarena.core.errors import BadInputError
from fedarena.core.seeding import seeded
from fedarena.core.words import some
from fedarena.models.adaptation.base import (
    ADAPTATIONS,
    Adaptation,
    chosen_layers,
    freeze_all_but,
    head_of,
    outputs_of_example,
)
from fedarena.models.parameter_names import layer_of
from fedarena.models.probes import in_mode
from fedarena.models.tasks import Task, Tensors

DOWN, UP, SCALE = "lora_down", "lora_up", "lora_scale"
_HANDLE = "_lora_hook"
_TRIED_CHANGE = 0.1  # of matrices that are made up to see whether merged weights compute the same


@ADAPTATIONS.register("lora")
class LoRA(Adaptation):
    """Two thin matrices of `rank` beside the weights of linear layers and convolutions, times `alpha` / rank.

    The last layer is trained in full. `layers` are patterns of names, such as ``["*.queries", "*.values"]``; by default
    all but the last and those that the model froze itself, and no convolutions of single channels, which are thin
    themselves. Biases stay.
    """

    def __init__(self, *, rank: int = 8, alpha: float = 16.0, layers: list[str] | None = None):
        if rank < 1:
            raise BadInputError(f"adaptation.rank must be at least 1, not {rank}")
        if not alpha > 0:
            raise BadInputError(f"adaptation.alpha must be above 0, not {alpha:g}")
        self.rank, self.alpha, self.layers = rank, alpha, layers

    def adapt(self, task: Task) -> None:
        """Adds the matrices, and freezes the rest."""
        module = task.module
        layers = _possible(module)
        head = head_of(module)
        usual = [
            name
            for name, layer in layers.items()
            if name != layer_of(head[0])
            and getattr(layer, "groups", 1) == 1
            and layer.get_parameter("weight").requires_grad
        ]
        chosen = chosen_layers(usual, list(layers), self.layers)
        for name in chosen:
            _add(layers[name], self.rank, self.alpha / self.rank)
            head = [parameter for parameter in head if layer_of(parameter) != name]
        added = [name for name, _ in module.named_parameters() if name.endswith((f".{DOWN}", f".{UP}"))]
        freeze_all_but(module, [*added, *head])
        _check_mergeable(task, {name: layers[name] for name in chosen})


def _possible(module: nn.Module) -> dict[str, nn.Module]:
    """Layers by name that compute with their weights in a way that is known, and with nobody else's."""
    times: dict[int, int] = {}
    for layer in module.modules():
        for p in layer.parameters(recurse=False):
            times[id(p)] = times.get(id(p), 0) + 1
    return {
        name: layer
        for name, layer in module.named_modules()
        if name and type(layer) in (nn.Linear, nn.Conv2d) and times[id(layer.weight)] == 1
    }


def _add(layer: nn.Module, rank: int, scale: float) -> None:
    weight: Tensor = layer.weight  # type: ignore[assignment]
    down = nn.Parameter(weight.new_empty(rank, *weight.shape[1:]))
    nn.init.kaiming_uniform_(down, a=sqrt(5))  # as torch draws the weights of such layers
    layer.register_parameter(DOWN, down)
    layer.register_parameter(UP, nn.Parameter(weight.new_zeros(len(weight), rank)))
    layer.register_buffer(SCALE, weight.new_tensor(scale))
    # The function knows nothing of this layer, so that copies of the model have their own. It comes before hooks that
    # the layer has, which get what merged weights compute.
    setattr(layer, _HANDLE, layer.register_forward_hook(_with_low_rank, prepend=True, with_kwargs=True))


def _with_low_rank(layer: Any, inputs: tuple[Any, ...], named: dict[str, Any], output: Tensor) -> Tensor:
    x = inputs[0] if inputs else named["input"]
    change: Tensor
    if not hasattr(layer, "groups"):
        change = F.linear(F.linear(x, layer.lora_down), layer.lora_up)
    elif layer.groups == 1:
        change = F.conv2d(layer._conv_forward(x, layer.lora_down, None), layer.lora_up[:, :, None, None])
    else:
        change = layer._conv_forward(x, _product(layer.lora_up, layer.lora_down), None)
    with_change: Tensor = output + layer.lora_scale * change
    return with_change


def _product(up: Tensor, down: Tensor) -> Tensor:
    return (up @ down.flatten(1)).view(len(up), *down.shape[1:])


def _check_mergeable(task: Task, layers: Mapping[str, nn.Module]) -> None:
    """Refuses layers whose weights are used otherwise than by a call, which thin matrices beside them do not reach."""
    apart, merged = {}, {}
    with seeded(0):
        for name, layer in layers.items():
            found: Any = layer
            up = torch.randn_like(found.lora_up) * (_TRIED_CHANGE / found.lora_scale)
            apart[name] = {f"{name}.{UP}": up}
            merged[name] = {f"{name}.weight": found.weight + found.lora_scale * _product(up, found.lora_down)}

    def differ(names: Collection[str]) -> bool:
        ways = [{key: t for name in names for key, t in tensors[name].items()} for tensors in (apart, merged)]
        one, other = (outputs_of_example(task, tensors) for tensors in ways)
        effect = max((one - before).abs().max(), (other - before).abs().max())
        return bool((one - other).abs().max() > 0.01 * effect + 1e-4 * one.abs().max())  # more than rounding

    with torch.no_grad(), in_mode(task, training=False):
        before = outputs_of_example(task)
        if differ(layers):
            culprits = [name for name in layers if differ([name])] or list(layers)
            raise BadInputError(
                f"LoRA does not fit {some(culprits)}: the model uses these weights without calling their layer; name "
                "other layers in adaptation.layers"
            )


def merge_low_rank(module: nn.Module) -> nn.Module:
    """The same model with plain layers, whose weights are those that it computed with."""
    for layer in module.modules():
        if hasattr(layer, _HANDLE):
            found: Any = layer
            with torch.no_grad():
                found.weight += found.lora_scale * _product(found.lora_up, found.lora_down)
            getattr(layer, _HANDLE).remove()
            for name in (_HANDLE, DOWN, UP, SCALE):
                delattr(layer, name)
    return module


def merged_for(own: Mapping[str, Tensor], found: Tensors) -> Tensors:
    """The tensors of a file for a model with tensors of its `own`: thin matrices only where both have the same ones."""
    here, there = ({n: t for n, t in tensors.items() if is_low_rank(n)} for tensors in (own, found))
    same_form = here.keys() == there.keys() and all(t.shape == here[name].shape for name, t in there.items())
    if same_form and all(torch.allclose(t, here[n].to(t)) for n, t in there.items() if n.endswith(f".{SCALE}")):
        return found
    merged = {name: t for name, t in found.items() if name not in there}
    for name, up in there.items():
        layer = layer_of(name)
        parts = [found.get(f"{layer}.{part}") for part in ("weight", DOWN, SCALE)]
        if name == f"{layer}.{UP}" and all(part is not None for part in parts):
            weight, down, scale = (part for part in parts if part is not None)
            merged[f"{layer}.weight"] = weight + (scale * _product(up, down)).to(weight)
    return merged


def is_low_rank(name: str) -> bool:
    """Whether a tensor of this name is one that LoRA adds."""
    return name.rpartition(".")[2] in (DOWN, UP, SCALE)
