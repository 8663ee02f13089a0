"""Operations of our own, which the recorder sees as one each, however many steps they take.

On a CPU the steps run as a script, without Python and its lock; on a GPU as kernels, where there are some for them.
Tensors that differ from client to client have the clients' lanes as their first dimension.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.fx import GraphModule

from fedarena.train.masked_gradients import script_masked_gradients

_LIBRARY = torch.library.Library("fedarena", "DEF")  # type: ignore[no-untyped-call]
_OPERATIONS: dict[Any, Operation] = {}
_COMPILING = threading.Lock()


class Operation:
    """A pure function of tensors, known to torch under a name; `forms` gives tensors of the shapes that it returns.

    On a GPU it may be computed in another way. What is `for_gpus` only is never made a script.
    """

    def __init__(
        self,
        name: str,
        steps: Callable[..., Any],
        forms: Callable[..., Any],
        on_gpu: Callable[..., Any] | None = None,
        for_gpus: bool = False,
    ):
        self._steps, self._on_gpu = steps, on_gpu or steps
        self._script: Callable[..., Any] | None = steps if for_gpus else None
        _LIBRARY.define(f"{name}{torch.library.infer_schema(steps, mutates_args=())}")  # type: ignore[no-untyped-call]
        _LIBRARY.impl(name, self._run, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
        torch.library.register_fake(f"fedarena::{name}", forms, lib=_LIBRARY)
        self.overload = getattr(torch.ops.fedarena, name).default
        _OPERATIONS[self.overload] = self

    def __call__(self, *tensors: Any) -> Any:
        """Runs it as one operation."""
        return self.overload(*tensors)

    def _run(self, *tensors: Any) -> Any:
        return self._on_gpu(*tensors) if tensors[0].is_cuda else self.scripted()(*tensors)

    def scripted(self) -> Callable[..., Any]:
        """The steps as a script; where torch has scripts no more, they run in Python."""
        if self._script is None:
            self._script = script_of(self._steps)
        return self._script


def script_of(steps: Callable[..., Any]) -> Callable[..., Any]:
    """The script of some steps; where torch has scripts no more, the steps themselves."""
    with _COMPILING, warnings.catch_warnings(), contextlib.suppress(RuntimeError, AttributeError):
        warnings.simplefilter("ignore")
        script: Callable[..., Any] = torch.jit.script(steps)
        return script
    return steps


def call_scripts(graph: GraphModule) -> None:
    """Lets a recorded computation call the scripts of our operations, which torch can make part of a larger script."""
    for node in graph.graph.nodes:
        operation = _OPERATIONS.get(node.target)
        if operation is not None:
            node.target = calling(operation.scripted())
    script_masked_gradients(graph.graph)
    graph.recompile()


def calling(script: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls a script, which a recorder of scripts makes part of its own."""

    def steps(*tensors: Tensor) -> Any:
        return script(*tensors)

    return steps


class OfLanes(Function):
    """A function of tensors whose first dimension is the lanes'; under `vmap` there are more lanes."""

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
        """All at once."""
        count: int = info.batch_size
        given = []
        for value, dim in zip(args, in_dims, strict=True):
            if isinstance(value, Tensor):
                value = value.expand(count, *value.shape) if dim is None else value.movedim(dim, 0)
                value = value.flatten(0, 1)
            given.append(value)
        result: Tensor = cls.apply(*given)  # type: ignore[no-untyped-call]
        return result.view(count, -1, *result.shape[1:]), 0


class Stacked(Function):
    """A function of tensors with lanes; under `vmap` there are more lanes, or more samples where weights are shared."""

    samples_at: tuple[int | None, ...]  # which dimension of its arguments is the samples'; None where there is none
    results_at: tuple[int, ...]  # the same for its results

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *tensors: Tensor) -> tuple[tuple[Tensor, ...], Any]:
        """All at once."""
        count: int = info.batch_size
        shared = all(dim is None for dim, at in zip(in_dims, cls.samples_at, strict=True) if at is None)
        given = []
        for t, dim, at in zip(tensors, in_dims, cls.samples_at, strict=True):
            if at is None and shared:
                given.append(t)
                continue
            t = t.expand(count, *t.shape) if dim is None else t.movedim(dim, 0)
            place = at if shared and at is not None else 0
            given.append(t.movedim(0, place).flatten(place, place + 1))
        results = cls.apply(*given)  # type: ignore[no-untyped-call]
        places = cls.results_at if shared else (0,) * len(results)
        unfolded = (t.unflatten(at, (count, -1)) for t, at in zip(results, places, strict=True))
        return tuple(unfolded), places


class WithoutGradient(Stacked):
    """Such a function that is a gradient itself."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        """Nothing is kept."""

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> None:
        """There is none."""
        raise NotImplementedError("gradients of gradients of recurrent layers cannot be computed for many clients")
