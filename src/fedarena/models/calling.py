"""Calling a model with other parameters than its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

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


def scored_as_trained(module: nn.Module) -> AbstractContextManager[Any]:
    """Within this context, torch's layers of attention compute in evaluation what they do in training.

    Else they may take a shorter way, in which what is padding comes out as zeros, but only if all samples of a batch
    have it behind what counts: a sample's score would depend on its neighbours, and on the processor. `vmap` has no
    such way at all.
    """
    attends = any(isinstance(layer, nn.MultiheadAttention | nn.TransformerEncoder) for layer in module.modules())
    return _OneByOne() if attends else nullcontext()


class _OneByOne(TorchFunctionMode):
    """That somebody watches operations is why torch takes them one by one."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is torch._nested_tensor_from_mask_left_aligned:
            return False  # `vmap` cannot look
        return function(*args, **(kwargs or {}))
