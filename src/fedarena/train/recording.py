"""Recording the plain operations that a function of tensors comes to on a CPU.

Torch's own recorder (`make_fx`) is for everything there is: symbolic sizes, fake values, tensors of other classes. It
takes most of the time until a run's first step. Here sizes are known and tensors are plain, so it is enough to write
down what is called with what, several times as fast.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import getitem
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.utils.weak import WeakTensorKeyDictionary

from fedarena.train.without_compiler import DispatchMode

aten = torch.ops.aten


class NotPlainError(Exception):
    """What a function does is more than operations on plain tensors; torch's own recorder may know it."""


def record_plainly(function: Callable[[list[Tensor]], list[Tensor]], tensors: list[Tensor]) -> GraphModule:
    """The operations of a pure function, each a node that knows the form of its result; inputs are placeholders.

    Like all recorders it sees one way through the function: who asks for the values of tensors is refused, unless they
    follow from no input and are the same in every call.
    """
    recorder = _Recorder(tensors)
    with recorder:
        results = function(tensors)
    return recorder.recorded(results)


class _Recorder(DispatchMode):
    """Sees every operation when `vmap` and `grad` have made plain ones of it."""

    def __init__(self, inputs: list[Tensor]):
        super().__init__()  # type: ignore[no-untyped-call]
        self._graph = Graph()
        self._nodes = WeakTensorKeyDictionary()  # of tensors that are still alive
        self._constants: dict[int, tuple[str, Tensor]] = {}
        self._varying: set[Node] = set()  # what may be another in the next call
        self._writes_varying = False  # if so, also to tensors that share memory with what is written to
        for number, tensor in enumerate(inputs, start=1):
            placeholder = self._graph.placeholder(f"input_{number}")
            self._varying.add(placeholder)
            self._remember(placeholder, tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.data_dependent_output in func.tags:
            if self._writes_varying or any(isinstance(value, Tensor) and self._varies(value) for value in args):
                raise NotPlainError(f"{func} asks for a value")
            return func(*args, **kwargs)
        if _is_composed(func):
            with self:
                return func.decompose(*args, **kwargs)
        if func is aten.lift_fresh.default:  # a constant, which somebody may write to
            func = aten.lift_fresh_copy.default
        name = func.overloadpacket.__name__
        node = self._graph.create_node("call_function", func, self._noted(args), self._noted(kwargs), name)
        varies = torch.Tag.nondeterministic_seeded in func.tags or not self._varying.isdisjoint(node.all_input_nodes)
        if varies:
            self._varying.add(node)
            self._writes_varying = self._writes_varying or func._schema.is_mutable
        result = func(*args, **kwargs)
        if isinstance(result, tuple | list):
            for place, part in enumerate(result):
                if part is not None:
                    of_part = self._graph.call_function(getitem, (node, place))
                    if varies:
                        self._varying.add(of_part)
                    self._remember(of_part, part)
        else:
            self._remember(node, result)
        return result

    def recorded(self, results: list[Tensor]) -> GraphModule:
        """All of it as a module, whose Python code is not made before somebody needs it."""
        self._graph.output(self._noted(results))
        return _LazyGraphModule(dict(self._constants.values()), self._graph)

    def _varies(self, tensor: Tensor) -> bool:
        return tensor in self._nodes and self._nodes[tensor] in self._varying

    def _remember(self, node: Node, tensor: Any) -> None:
        if type(tensor) is not Tensor:
            raise NotPlainError(f"{node.target} has a {type(tensor).__name__} where a tensor is expected")
        node.meta["val"] = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        self._nodes[tensor] = node  # of what is written to, the operation that did it last

    def _noted(self, value: Any) -> Any:
        """An argument with nodes instead of tensors."""
        if isinstance(value, Tensor):
            return self._nodes[value] if value in self._nodes else self._constant(value)
        if isinstance(value, tuple | list):
            return type(value)(self._noted(part) for part in value)
        if isinstance(value, dict):
            return {name: self._noted(part) for name, part in value.items()}
        return value

    def _constant(self, tensor: Tensor) -> Node:
        name, _ = self._constants.setdefault(id(tensor), (f"constant_{len(self._constants)}", tensor))
        node = self._graph.create_node("get_attr", name)
        node.meta["val"] = tensor
        return node


def _is_composed(func: Any) -> bool:
    """Whether torch itself computes an operation by others, which here `grad` may have left to us."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return has_kernel(func.name(), "CompositeImplicitAutograd") and not has_kernel(func.name(), "CPU")
