"""What torch says about operations that it cannot vectorize, in words for somebody who brought a model of his own."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from fedarena.core.own_source import own_line
from fedarena.train.without_compiler import DispatchMode

_SLOW_OPERATION = re.compile(r"There is a performance drop because .* the batching rule for aten::(\w+)")


def obstacle(where: str, error: Exception) -> str:
    """That something cannot be done for many clients at once, and what it raised then."""
    reason = str(error).strip().partition("\n")[0].partition(". ")[0]
    return f"{where} cannot be vectorized ({type(error).__name__}: {reason}{own_line(error)})"


@contextmanager
def noting_slow_operations(notes: list[str]) -> Iterator[None]:
    """Notes, once, which operations are computed for one client after the other; torch's own warnings end with that."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    slow = set()
    for warning in caught:
        found = _SLOW_OPERATION.match(str(warning.message))
        if found is None:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        else:
            slow.add(found[1].removesuffix("_backward"))
    if slow:
        notes.append(f"Torch computes {', '.join(sorted(slow))} for one client after the other, which takes longer")
    warnings.filterwarnings("ignore", message="There is a performance drop because .* the batching rule")


class RefusingCounts(TorchFunctionMode):
    """Refuses embeddings whose gradients are divided by how often a code occurs: torch counts it in all clients."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Looks at embeddings, whose options torch gives by name, and leaves everything else alone."""
        given = kwargs or {}
        if given.get("scale_grad_by_freq"):
            raise NotImplementedError("scale_grad_by_freq would count codes in the batches of all clients")
        return function(*args, **given)


class NotingValues(DispatchMode):
    """Notes whether the value of a tensor is asked for that is the same for all clients, which `vmap` allows."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.asked = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.asked = self.asked or torch.Tag.data_dependent_output in func.tags
        return func(*args, **(kwargs or {}))
