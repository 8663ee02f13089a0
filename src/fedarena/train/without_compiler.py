"""Gradients and recordings without torch's compiler, which takes more time and memory to load than all else of torch.

On a CPU nobody needs it. But `torch.func` loads it to turn off a feature of it, compiled autograd, in every gradient,
and modes of dispatch to hide from it; neither is there as long as it is not loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import compress
from typing import Any

import torch
from torch import Tensor
from torch._functorch import eager_transforms
from torch.utils._python_dispatch import TorchDispatchMode

_COMPILER = "torch._dynamo"


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Like torch's, for modes that the compiler never sees."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


def spare_the_compiler() -> None:
    """From now on, gradients of `torch.func` do not load it. They are the same, and those of a version as before."""
    theirs = getattr(eager_transforms, "_autograd_grad", None)
    if theirs is None or getattr(theirs, "spares_the_compiler", False):
        return

    def gradients(
        outputs: Sequence[Tensor], inputs: Sequence[Tensor], grad_outputs: Any = None, *args: Any, **options: Any
    ) -> Any:
        if _COMPILER in sys.modules or args or not options.keys() <= {"retain_graph", "create_graph"}:
            return theirs(outputs, inputs, grad_outputs, *args, **options)
        depend = [output.requires_grad for output in outputs]
        found: Sequence[Tensor | None] = [None] * len(inputs)
        if any(depend):
            ends = list(compress(outputs, depend))
            slopes = None if grad_outputs is None else list(compress(grad_outputs, depend))
            options = {"retain_graph": False, "create_graph": True, **options}
            found = torch.autograd.grad(ends, inputs, slopes, allow_unused=True, **options)
        return tuple(torch.zeros_like(t) if g is None else g for g, t in zip(found, inputs, strict=True))

    gradients.spares_the_compiler = True  # type: ignore[attr-defined]
    eager_transforms._autograd_grad = gradients
