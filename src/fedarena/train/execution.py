"""Running one function on tensors very often: traced once per form of its inputs, then without the machinery.

`vmap` and `grad` cost about as much as a small model's arithmetic, every time. Tracing records the plain operations
they come to; running those gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


class StepRunner:
    """Calls `function`, which must be a pure function of the tensors in its arguments."""

    def __init__(self, function: Callable[..., Any]):
        self._function = function
        self._traced: dict[Any, tuple[Callable[[Sequence[Tensor]], list[Tensor]], pytree.TreeSpec]] = {}

    def __call__(self, *arguments: Any) -> Any:
        """The result of the function."""
        leaves, structure = pytree.tree_flatten(arguments)
        form = (str(structure), tuple((leaf.shape, leaf.dtype) for leaf in leaves))
        if form not in self._traced:
            self._traced[form] = self._trace(leaves, structure)
        run, result_structure = self._traced[form]
        return pytree.tree_unflatten(run(leaves), result_structure)

    def _trace(self, leaves: list[Tensor], structure: pytree.TreeSpec) -> Any:
        from torch.fx.experimental.proxy_tensor import make_fx  # takes a second, which only this engine should pay

        result_structure: list[pytree.TreeSpec] = []

        def flat_function(leaves: list[Tensor]) -> list[Tensor]:
            result = self._function(*pytree.tree_unflatten(leaves, structure))
            flat_result, its_structure = pytree.tree_flatten(result)
            result_structure.append(its_structure)
            return flat_result

        traced = make_fx(flat_function)(leaves)
        traced.graph.eliminate_dead_code()
        traced.recompile()
        return torch.no_grad()(traced), result_structure[-1]
