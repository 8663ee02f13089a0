"""Traced computations made cheaper: nothing computed twice, and tensors that a step replaces changed in place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import getitem
from typing import Any, Literal

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.fx.node import map_arg

from fedarena.train.native.products import subtract_products

aten = torch.ops.aten
_VIEWS = {aten.view.default, aten._unsafe_view.default}
_RESHAPING = {aten.expand.default, *_VIEWS}
_OTHER_SHAPES = {*_VIEWS, aten.squeeze.dim, aten.squeeze.dims}
_ZEROS = {aten.zeros.default, aten.new_zeros.default, aten.zeros_like.default}
_SCALING = {aten.mul.Tensor, aten.mul.Scalar}
_OVER_FIRST_OPERAND = {
    aten.relu.default: aten.relu_.default,
    aten.tanh.default: aten.tanh_.default,
    aten.sigmoid.default: aten.sigmoid_.default,
    aten.neg.default: aten.neg_.default,
    aten.add.Tensor: aten.add_.Tensor,
    aten.sub.Tensor: aten.sub_.Tensor,
    aten.mul.Tensor: aten.mul_.Tensor,
    aten.scatter_add.default: aten.scatter_add_.default,
    aten.threshold_backward.default: aten.threshold_backward.grad_input,
    aten.tanh_backward.default: aten.tanh_backward.grad_input,
    aten.sigmoid_backward.default: aten.sigmoid_backward.grad_input,
}
_COMMUTATIVE = {aten.add.Tensor, aten.mul.Tensor}
_INTO_GRAD_INPUT = {target for target in _OVER_FIRST_OPERAND.values() if target._overloadname == "grad_input"}


def clean(graph: Graph) -> None:
    """Removes what changes nothing or was computed before."""
    _drop_no_ops(graph)
    _merge_equals(graph)
    graph.eliminate_dead_code()


def _drop_no_ops(graph: Graph) -> None:
    """Expanding, viewing or permuting to the same form, factors of 1, two transposes in a row, copies for nothing."""
    changed = _changed_in_place(graph)
    for node in graph.nodes:
        source: Any
        source, *rest = node.args or (None,)
        # A factor of 1 gives a copy, which somebody may have made to write to it, or to the original.
        is_copy = node.target in _SCALING and rest == [1] and not changed.intersection([node, source])
        if node.target in _RESHAPING or is_copy:
            if _form(source) == _form(node):
                node.replace_all_uses_with(source)
        elif node.target == aten.permute.default:
            if [dim % len(rest[0]) for dim in rest[0]] == list(range(len(rest[0]))):
                node.replace_all_uses_with(source)
        elif node.target == aten.max_pool2d_with_indices_backward.default:
            indices = node.args[7]
            if indices.target == aten.clone.default:  # it takes them in any order of memory
                node.replace_input_with(indices, indices.args[0])
        elif node.target == aten.transpose.int and source.target == node.target:
            inner_source, *inner_rest = source.args
            if set(rest) == set(inner_rest):
                node.replace_all_uses_with(inner_source)


def join_views(graph: Graph) -> None:
    """Lets a view of a view be one of what that shows: a CPU takes about as long for each as for a small sum."""
    for node in graph.nodes:
        if node.target not in _VIEWS:
            continue
        source = node.args[0]
        while source.target in _OTHER_SHAPES or source.target == aten.unsqueeze.default:
            source = source.args[0]
        if _lies_alike(source, node):
            node.replace_all_uses_with(source)
        elif source is node.args[0]:
            continue
        elif _can_be_seen_as(source, node):
            node.replace_input_with(node.args[0], source)
    graph.eliminate_dead_code()


def _lies_alike(source: Node, view: Node) -> bool:
    """Whether both have the same form; how far it is to the next one means nothing where there is only one."""
    one, other = source.meta["val"], view.meta["val"]
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    steps = zip(one.shape, one.stride(), other.stride(), strict=True)
    return all(size == 1 or step == other_step for size, step, other_step in steps)


def _can_be_seen_as(source: Node, view: Node) -> bool:
    expected = view.meta["val"]
    try:
        seen = source.meta["val"].view(view.args[1])
    except RuntimeError:
        return False
    return bool(seen.stride() == expected.stride())


def drop_sizes(graph: Graph) -> None:
    """Removes views of the same shape and added zeros: they change no value, but name sizes.

    A program that names sizes is for these alone.
    """
    for node in graph.nodes:
        kept = None
        if node.target in _RESHAPING:
            kept = node.args[0]
        elif node.target == aten.add.Tensor and not node.kwargs and isinstance(node.args[1], Node):
            kept = node.args[0] if node.args[1].target == aten.zeros.default else None
        if kept is not None and kept.meta["val"].shape == node.meta["val"].shape:
            node.replace_all_uses_with(kept)
    graph.eliminate_dead_code()


def compare_instead_of_scattering(graph: Graph, device: torch.device) -> None:
    """Lets what puts one number into every row of zeros look where it belongs, as the gradient of a chosen class does.

    To scatter in a fixed order takes a GPU dozens of operations, though it makes no difference here.
    """
    for node in graph.nodes:
        if node.target != aten.scatter_add.default or node.args[0].target not in _ZEROS:
            continue
        zeros, dim, index, source = node.args
        result, places = node.meta["val"], list(index.meta["val"].shape)
        size = result.shape[dim]
        one_each = places[dim] == 1 and source.meta["val"].shape == index.meta["val"].shape
        places[dim] = size
        if not one_each or places != list(result.shape):
            continue
        along_dim = [1] * result.dim()
        along_dim[dim] = size
        with graph.inserting_before(node):
            numbers = graph.call_function(aten.arange.default, (size,), {"dtype": torch.int64, "device": device})
            numbers = graph.call_function(aten.view.default, (numbers, along_dim))
            chosen = graph.call_function(aten.eq.Tensor, (index, numbers))
            put = graph.call_function(aten.where.self, (chosen, source, zeros))
        for made, dtype in ((numbers, torch.int64), (chosen, torch.bool), (put, result.dtype)):
            made.meta["val"] = torch.empty(along_dim if made is numbers else places, dtype=dtype, device="meta")
        node.replace_all_uses_with(put)
        graph.erase_node(node)
    graph.eliminate_dead_code()


def reshape_instead_of_viewing(graph: Graph) -> None:
    """Lets tensors have another layout than when they were recorded.

    Torch's compiler takes some for differently laid out: a single small picture may be either way.
    """
    for node in graph.nodes:
        if node.target in _VIEWS:
            node.target = aten.reshape.default


def _form(node: Node) -> tuple[Any, ...]:
    value = node.meta["val"]
    return value.shape, value.stride(), value.dtype


def _merge_equals(graph: Graph) -> None:
    """Lets nodes that do the same to the same share one result; nothing here is random."""
    seen: dict[Any, Node] = {}
    changed = _changed_in_place(graph)
    for node in graph.nodes:
        if node.op != "call_function" or changed.intersection([node, *node.all_input_nodes]):
            continue
        key = (node.target, repr(node.args), repr(node.kwargs))
        if key in seen:
            node.replace_all_uses_with(seen[key])
        else:
            seen[key] = node


def _changed_in_place(graph: Graph) -> set[Node]:
    """Nodes that an operation of the graph writes to, and all that share memory with them."""
    changed: set[Node] = set()
    for node in reversed(graph.nodes):
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.is_mutable:
            changed.add(node)
            changed.update(arg for arg in node.args if isinstance(arg, Node))
        elif node in changed and node.args and isinstance(node.args[0], Node):
            changed.add(node.args[0])  # if this is a view, what it shows is changed, too
    return changed | _views_of(changed, graph)


@dataclass(frozen=True)
class Update:
    """How a tensor gets its new value from values that were computed: in place, reading and writing it once."""

    tensor: int  # number of the tensor that is replaced
    kind: Literal["copy", "subtract", "subtract_product"]
    values: tuple[int, ...]  # numbers of the computed values
    factor: float = 1.0
    shape: tuple[int, ...] = ()  # to see the tensor as, for a product
    natively: bool = False  # whether a product is subtracted by our own kernels

    def apply(self, tensor: Tensor, computed: list[Tensor]) -> None:
        """Changes the tensor."""
        values = [computed[value] for value in self.values]
        if self.shape:
            tensor = tensor.view(self.shape)
        if self.kind == "subtract_product" and self.natively:
            subtract_products(tensor, values[0], values[1], self.factor)
        elif self.kind == "subtract_product":
            tensor.baddbmm_(values[0], values[1], beta=1, alpha=-self.factor)
        elif self.kind == "subtract":
            tensor.sub_(values[0], alpha=self.factor)
        else:
            tensor.copy_(values[0])


def separate_updates(traced: GraphModule, replaced: int) -> tuple[GraphModule, list[Update]]:
    """Divides a step into a pure computation and updates in place.

    The first `replaced` inputs are to be replaced by the outputs in the same order. What remains of the graph computes
    only what the updates need; all updates come after it, so nothing reads a tensor that is already changed.
    """
    graph = traced.graph
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    output = next(node for node in graph.nodes if node.op == "output")
    updates: list[Update] = []
    computed: list[Node] = []

    def numbered(*nodes: Node) -> tuple[int, ...]:
        for node in nodes:
            if node not in computed:
                computed.append(node)
        return tuple(computed.index(node) for node in nodes)

    aliases = _views_of(set(inputs[:replaced]), graph)
    for number, new in enumerate(output.args[0]):
        old = inputs[number]
        if new is old:
            continue
        subtrahend = _subtrahend(new, old)
        if subtrahend is None or subtrahend[0] in aliases:
            if new in aliases:
                with graph.inserting_before(output):
                    new = graph.call_function(aten.clone.default, (new,))
            updates.append(Update(number, "copy", numbered(new)))
            continue
        value, factor = subtrahend
        product = _product(value, new)
        if product is not None and not aliases.intersection(product.args):
            shape = tuple(product.meta["val"].shape)
            operands = numbered(*product.args)  # type: ignore[arg-type]
            updates.append(Update(number, "subtract_product", operands, factor, shape))
        else:
            updates.append(Update(number, "subtract", numbered(value), factor))
    output.args = (computed,)
    graph.eliminate_dead_code()
    traced.recompile()
    return traced, updates


def write_products(pure: GraphModule, updates: list[Update], chosen: Callable[[Tensor, Tensor], bool]) -> list[Update]:
    """The updates, of which those that subtract a product of `chosen` matrices have it written down before."""
    output = next(node for node in pure.graph.nodes if node.op == "output")
    computed: list[Node] = list(output.args[0])
    changed = []
    for update in updates:
        if update.kind == "subtract_product":
            left, right = (computed[value] for value in update.values)
            if chosen(left.meta["val"], right.meta["val"]):
                with pure.graph.inserting_before(output):
                    computed.append(pure.graph.call_function(aten.bmm.default, (left, right)))
                computed[-1].meta["val"] = torch.bmm(left.meta["val"], right.meta["val"])
                update = replace(update, kind="subtract", values=(len(computed) - 1,))
        changed.append(update)
    output.args = (computed,)
    pure.recompile()
    return changed


def update_within(pure: GraphModule, updates: list[Update]) -> list[Update]:
    """Makes updates part of the computation, so that a compiler can join them with what they need; gives the others.

    Products stay apart: a library subtracts them without writing them down.
    """
    graph = pure.graph
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    output = next(node for node in graph.nodes if node.op == "output")
    computed: list[Node] = list(output.args[0])
    outside = [update for update in updates if update.kind == "subtract_product"]
    with graph.inserting_before(output):
        for update in updates:
            new = [inputs[update.tensor], *(computed[value] for value in update.values)]
            if update.kind == "subtract":
                graph.call_function(aten.sub_.Tensor, tuple(new), {"alpha": update.factor})
            elif update.kind == "copy":
                graph.call_function(aten.copy_.default, tuple(new))
    needed = list(dict.fromkeys(value for update in outside for value in update.values))
    output.args = ([computed[value] for value in needed],)
    pure.recompile()
    return [replace(update, values=tuple(needed.index(value) for value in update.values)) for update in outside]


def _views_of(tensors: set[Node], graph: Graph) -> set[Node]:
    """The tensors and everything that shares their memory."""
    aliases = set(tensors)
    for node in graph.nodes:
        if _is_view(node) and node.args[0] in aliases:
            aliases.add(node)
    return aliases


def _is_view(node: Node) -> bool:
    """Whether a node's memory is, or may be, that of its first operand."""
    if node.target in {getitem, aten._unsafe_view.default}:
        return True
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(returned.alias_info is not None for returned in schema.returns)


def _subtrahend(new: Node, old: Node) -> tuple[Node, float] | None:
    """For ``new = old - factor * value``: the value and the factor."""
    if new.target != aten.sub.Tensor or new.args[0] is not old or new.kwargs or not isinstance(new.args[1], Node):
        return None
    value = new.args[1]
    if value.meta["val"].shape != old.meta["val"].shape:
        return None
    if value.target in _SCALING and isinstance(value.args[1], int | float) and isinstance(value.args[0], Node):
        return value.args[0], float(value.args[1])
    return value, 1.0


def _product(value: Node, user: Node) -> Node | None:
    """The batched matrix product that a value is, seen in another shape perhaps, if nobody else needs it."""
    chain = [value]
    while chain[-1].target in _OTHER_SHAPES:
        chain.append(chain[-1].args[0])  # type: ignore[arg-type]
    product = chain[-1]
    if product.target != aten.bmm.default or any(len(node.users) != 1 for node in chain):
        return None
    if product.meta["val"].dtype != user.meta["val"].dtype:
        return None
    return product


def reuse_memory(traced: GraphModule) -> None:
    """Lets elementwise operations write over an operand where nobody needs it any more.

    Memory that was just used is in a cache; new memory has to be fetched, and given by the system first.
    """
    graph = traced.graph
    owners = _MemoryOwners(graph)
    for node in graph.nodes:
        replacement = _OVER_FIRST_OPERAND.get(node.target)
        if replacement is None:
            continue
        if not owners.gives_up(node, node.args[0]):
            # Only what is written over comes first: the first operand also decides how a result lies in memory.
            if node.target not in _COMMUTATIVE or node.kwargs or not owners.gives_up(node, node.args[1]):
                continue
            node.args = node.args[1], node.args[0]
        node.target = replacement
        if node.target in _INTO_GRAD_INPUT:
            node.kwargs = {**node.kwargs, "grad_input": node.args[0]}
    _add_slices_directly(graph)
    graph.eliminate_dead_code()
    traced.recompile()


class _MemoryOwners:
    """Which node's memory a node's value is in, and when that is needed for the last time."""

    def __init__(self, graph: Graph):
        self._order = {node: number for number, node in enumerate(graph.nodes)}
        self._owner: dict[Node, Node] = {}
        self._last_use: dict[Node, int] = {}
        for node in graph.nodes:
            # A list of tensors counts as one, so that all parts of it are safe.
            self._owner[node] = self._owner[node.args[0]] if _is_view(node) else node
            for operand in node.all_input_nodes:
                self._last_use[self._owner[operand]] = self._order[node]

    def gives_up(self, user: Node, operand: Any) -> bool:
        """Whether `user` may write over its operand: same form, and neither given nor needed by anybody else."""
        if not isinstance(operand, Node):
            return False
        owner = self._owner[operand]
        others = {self._owner[other] for other in user.all_input_nodes if other is not operand}
        needed = self._last_use[owner] > self._order[user] or owner in others
        return owner.op == "call_function" and not needed and _form(operand) == _form(user)


def _add_slices_directly(graph: Graph) -> None:
    """Adds the gradient of a slice to that part of a sum, not a tensor that is zero everywhere else."""
    for node in graph.nodes:
        if node.target != aten.add_.Tensor or not isinstance(node.args[1], Node) or node.kwargs:
            continue
        total, padded = node.args
        if padded.target != aten.slice_backward.default or len(padded.users) != 1 or padded.args[5] != 1:
            continue
        gradient, _, dim, start, end, _ = padded.args
        with graph.inserting_before(node):
            part = graph.call_function(aten.slice.Tensor, (total, dim, start, end))
            graph.call_function(aten.add_.Tensor, (part, gradient))
        node.replace_all_uses_with(total)
        graph.erase_node(node)


def one_by_one(traced: GraphModule) -> Callable[..., Any]:
    """Computes the nodes as they stand there, for who does it once: compiling Python code of them takes longer."""
    nodes = list(traced.graph.nodes)
    last_users = {operand: node for node in nodes for operand in node.all_input_nodes}
    given_up: dict[Node, list[Node]] = {}
    for operand, node in last_users.items():
        given_up.setdefault(node, []).append(operand)

    def compute(*tensors: Tensor) -> Any:
        values: dict[Node, Any] = {}
        inputs = iter(tensors)
        for node in nodes:
            args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
            if node.op == "output":
                return args[0]
            if node.op == "placeholder":
                values[node] = next(inputs)
            elif node.op == "get_attr":
                values[node] = getattr(traced, node.target)
            else:
                values[node] = node.target(*args, **kwargs)
            for operand in given_up.get(node, ()):
                del values[operand]
        return None

    return compute


def in_place(pure: Callable[..., Any], updates: list[Update]) -> Callable[..., None]:
    """The whole step again, as a function that changes its arguments."""
    if isinstance(pure, GraphModule):
        # Made at its first call, its Python code would be made by every worker who calls it then, all at the same time,
        # and torch gives variables their names in the nodes that they share.
        _LazyGraphModule.force_recompile(pure)

    def step(*tensors: Tensor) -> None:
        computed = pure(*tensors)
        alike: dict[Any, tuple[list[Tensor], list[Tensor]]] = {}
        for update in updates:
            old, new = tensors[update.tensor], computed[update.values[0]]
            if old.is_cuda and update.kind != "subtract_product" and old.stride() == new.stride():
                olds, news = alike.setdefault((update.kind, update.factor, old.dtype, new.dtype), ([], []))
                olds.append(old)
                news.append(new)
            else:
                update.apply(old, computed)
        for (kind, factor, *_), (olds, news) in alike.items():  # as few kernels for a GPU as possible
            if kind == "copy":
                torch._foreach_copy_(olds, news)
            else:
                torch._foreach_sub_(olds, news, alpha=factor)

    return step
