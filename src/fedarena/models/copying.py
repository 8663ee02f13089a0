"""Copies of models that somebody may have called before."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn


def copy_of(module: nn.Module) -> nn.Module:
    """A copy of a model, without what it has put aside of its last call, such as ``self.features = x``.

    Torch copies no tensor of which it knows how it was computed.
    """
    known = {id(p) for p in (*module.parameters(), *module.buffers())}
    left = (t for part in module.modules() for value in vars(part).values() for t in _tensors_in(value))
    nothing = torch.empty(0)
    return copy.deepcopy(module, {id(t): nothing for t in left if id(t) not in known and _was_computed(t)})


def _tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for entry in value.values() if isinstance(value, dict) else value:
            yield from _tensors_in(entry)


def _was_computed(t: Tensor) -> bool:
    return torch._C._functorch.is_functorch_wrapped_tensor(t) or not t.is_leaf
