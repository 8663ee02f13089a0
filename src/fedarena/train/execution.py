"""How work is executed: a function that is called very often, and many tasks on several cores.

`vmap` and `grad` cost about as much as a small model's arithmetic, every time. Tracing records the plain operations
they come to; running those gives the same bits.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

T = TypeVar("T")
R = TypeVar("R")


class StepRunner:
    """Calls `function`, which must be a pure function of the tensors in its arguments."""

    def __init__(self, function: Callable[..., Any]):
        self._function = function
        self._tracing = threading.Lock()
        self._traced: dict[Any, tuple[Callable[[Sequence[Tensor]], list[Tensor]], pytree.TreeSpec]] = {}

    def __call__(self, *arguments: Any) -> Any:
        """The result of the function."""
        leaves, structure = pytree.tree_flatten(arguments)
        form = (str(structure), tuple((leaf.shape, leaf.dtype) for leaf in leaves))
        if form not in self._traced:
            with self._tracing:  # torch cannot trace in two threads at once
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
        _drop_no_ops(traced.graph)
        traced.recompile()
        return traced, result_structure[-1]


def _drop_no_ops(graph: Graph) -> None:
    """Removes what changes nothing: expanding or viewing to the same shape, factors of 1, two transposes in a row."""
    aten = torch.ops.aten
    reshaping = {aten.expand.default, aten.view.default, aten._unsafe_view.default}
    scaling = {aten.mul.Tensor, aten.mul.Scalar}
    for node in graph.nodes:
        source: Any
        source, *rest = node.args or (None,)
        if node.target in reshaping or (node.target in scaling and rest == [1]):
            if _form(source) == _form(node):
                node.replace_all_uses_with(source)
        elif node.target == aten.transpose.int and source.target == node.target:
            inner_source, *inner_rest = source.args
            if set(rest) == set(inner_rest):
                node.replace_all_uses_with(inner_source)
    graph.eliminate_dead_code()


def _form(node: Node) -> tuple[Any, ...]:
    value = node.meta["val"]
    return value.shape, value.stride(), value.dtype


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(function: Callable[[T], R], tasks: Sequence[T], workers: int) -> Iterator[R]:
    """Results of `function` in the order of the tasks, computed by several threads that stay just ahead."""
    if workers == 1 or len(tasks) == 1:
        yield from map(function, tasks)
        return
    pool = ThreadPoolExecutor(workers)
    try:
        remaining = iter(tasks)
        ahead = deque(pool.submit(function, task) for task in itertools.islice(remaining, workers + 1))
        while ahead:
            result = ahead.popleft().result()
            ahead.extend(pool.submit(function, task) for task in itertools.islice(remaining, 1))
            yield result
    finally:
        pool.shutdown(cancel_futures=True)
