"""Layers that follow each other, of which several may be computed at once."""

from __future__ import annotations

from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function_unary


def in_sequence(layers: nn.Sequential, x: Tensor) -> Tensor:
    """What layers make of `x`, one after the other; whoever overrides this function may join some of them."""
    if has_torch_function_unary(x):
        return handle_torch_function(in_sequence, (x,), layers, x)
    return layers(x)  # type: ignore[no-any-return]
