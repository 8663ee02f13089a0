"""Calling a model with other parameters than its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedarena.models.trainable import Tensors


def call_with(module: nn.Module, params: Tensors, x: tuple[Tensor, ...]) -> Any:
    """What a model puts out with these parameters, each wherever it is used.

    Torch, if it is left to find out where else, takes away the parameters of a layer that has several names.
    """
    first_name: dict[int, str] = {}
    elsewhere: Tensors = {}
    for prefix, layer in module.named_modules():
        for own_name, p in layer._parameters.items():
            if p is not None:
                name = f"{prefix}.{own_name}" if prefix else own_name
                known = first_name.setdefault(id(p), name)
                if known != name and known in params:
                    elsewhere[name] = params[known]
    return torch.func.functional_call(module, {**params, **elsewhere}, x, tie_weights=False)
