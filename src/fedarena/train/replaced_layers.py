"""Functions of torch that are computed in another way where there is a better one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

Replacements = Mapping[Callable[..., Any], Callable[..., Tensor | None]]


class ReplacedLayers(TorchFunctionMode):
    """Within this context, functions have replacements, which give None where there is nothing better."""

    def __init__(self, replacements: Replacements):
        super().__init__()
        self._replacements = replacements

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Replaces what is worth it, and leaves everything else alone."""
        replacement = self._replacements.get(function)
        found = replacement(*args, **(kwargs or {})) if replacement else None
        return function(*args, **(kwargs or {})) if found is None else found
