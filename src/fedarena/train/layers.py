"""Looking at the layers of a model while it is computed."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.hooks import RemovableHandle


class LayerTracker:
    """Knows which layer of a model is being computed."""

    def __init__(self, module: nn.Module):
        self._module = module
        self._path: list[str] = []
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> LayerTracker:
        for name, layer in self._module.named_modules():
            label = f"the layer {name!r} ({type(layer).__name__})" if name else f"the model {type(layer).__name__}"
            self._handles.append(layer.register_forward_pre_hook(lambda *_, label=label: self._path.append(label)))
            self._handles.append(layer.register_forward_hook(lambda *_: self._path.pop() and None))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    @property
    def inside(self) -> bool:
        """Whether a layer is being computed."""
        return bool(self._path)

    @property
    def present(self) -> str:
        """The innermost layer whose computation has begun but not ended, or else the algorithm."""
        return self._path[-1] if self._path else "the algorithm"


def count_output_bytes(module: nn.Module, *inputs: Tensor, trained: bool = False) -> int:
    """Size of what all innermost layers put out for these inputs; with `trained`, of what depends on parameters."""
    total = 0

    def count(layer: nn.Module, inputs: object, output: object) -> None:
        nonlocal total
        tensors = [t for t in pytree.tree_leaves(output) if isinstance(t, Tensor)]  # recurrent layers put out several
        total += sum(t.numel() * t.element_size() for t in tensors if t.requires_grad or not trained)

    innermost = [layer for layer in module.modules() if next(layer.children(), None) is None]
    handles = [layer.register_forward_hook(count) for layer in innermost]
    try:
        with torch.set_grad_enabled(trained):
            module(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    return total
