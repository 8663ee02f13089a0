"""Recorded steps as scripts: on a CPU they run without Python and its lock, so that workers compute at once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from fedarena.train.graphs import Update, in_place, join_views, one_by_one, reuse_memory
from fedarena.train.masks import masks_as_numbers
from fedarena.train.native.steps import multiply_natively, subtract_natively
from fedarena.train.operations import call_scripts
from fedarena.train.wide_products import multiply_widely, write_large_products


class Script:
    """A recorded step that changes its arguments, which must be like these tensors.

    Products are made `natively`, by our own kernels, or by libraries.
    """

    def __init__(self, pure: GraphModule, updates: list[Update], tensors: list[Tensor], natively: bool = False):
        updates = (subtract_natively if natively else write_large_products)(pure, updates)
        made = without_python(pure, updates, tensors, natively)
        self._is_script = made is not None
        self._step: Callable[..., Any] = in_place(pure, updates) if made is None else made

    def __call__(self, *tensors: Tensor) -> None:
        """Takes the step."""
        self._run(self._step, *tensors)

    def repeated(self, parameters: Mapping[str, str], arguments: Sequence[str]) -> Callable[..., None]:
        """Many steps as a function of how many, and of `parameters`, which are named and have a type.

        The `arguments` are what a step gets: expressions of the parameters and of the number `i` of the step. Nothing
        of Python is left between steps, which takes as long as the arithmetic of few small lanes.
        """
        declared = ", ".join(f"{name}: {kind}" for name, kind in {"count": "int", **parameters}.items())
        source = f"def steps({declared}) -> None:\n    for i in range(count):\n        step({', '.join(arguments)})\n"
        if self._is_script:
            step = self._step  # noqa: F841 - the source names it
            steps = torch.jit.CompilationUnit(source).steps
        else:
            named: dict[str, Any] = {"step": self._step, "Tensor": Tensor}
            exec(source, named)
            steps = named["steps"]
        return lambda *given: self._run(steps, *given)

    def _run(self, function: Callable[..., Any], *given: Any) -> None:
        if not self._is_script:
            function(*given)
            return
        with torch.inference_mode():  # nothing that is made in it leaves it, and small operations are faster
            function(*given)


def without_python(
    pure: GraphModule, updates: list[Update], tensors: list[Tensor], natively: bool = False
) -> Callable[..., Any] | None:
    """The script of a recorded step; none where torch cannot make it one, or has scripts no more."""
    join_views(pure.graph)
    masks_as_numbers(pure.graph)
    reuse_memory(pure)
    (multiply_natively if natively else multiply_widely)(pure.graph)
    call_scripts(pure)
    step = in_place(one_by_one(pure), updates)

    def traceable(*tensors: Tensor) -> Tensor:
        step(*tensors)
        return tensors[0]  # a script must give something

    copies = [t.clone() for t in tensors]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            made: Callable[..., Any] = torch.jit.trace(traceable, copies, check_trace=False)  # type: ignore[no-untyped-call]
        except (RuntimeError, AttributeError):
            return None
    return made
