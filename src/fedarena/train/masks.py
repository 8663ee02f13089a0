"""Masks of batches as numbers: small operations on values of two types take a CPU twice as long as on those of one."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

aten = torch.ops.aten
_NUMBERS = {torch.float32, torch.float64}  # in which the samples of a batch can be counted exactly


def masks_as_numbers(graph: Graph) -> None:
    """Converts a mask once where values are multiplied by it, or divided by its sum; no bit of a result changes."""
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    for mask in inputs:
        if mask.meta["val"].dtype != torch.bool:
            continue
        users = [(user, _dtype_wanted(user, mask)) for user in mask.users]
        dtypes = {dtype for _, dtype in users if dtype is not None}
        if len(dtypes) != 1:
            continue
        (dtype,) = dtypes
        with graph.inserting_after(inputs[-1]):
            numbers = graph.call_function(aten._to_copy.default, (mask,), {"dtype": dtype})
        numbers.meta["val"] = mask.meta["val"].to(dtype)
        for user, wanted in users:
            if wanted is None:
                continue
            user.replace_input_with(mask, numbers)
            if user.target == aten.sum.dim_IntList:
                for counted in [user, *(other for other in user.users if other.target == aten.clamp.default)]:
                    counted.meta["val"] = counted.meta["val"].to(dtype)


def _dtype_wanted(user: Node, mask: Node) -> torch.dtype | None:
    """As which numbers this user of a mask reads it, if it could be given them."""
    if user.target == aten.mul.Tensor:
        return _partner_dtype(user, mask)
    if user.target != aten.sum.dim_IntList or user.kwargs:
        return None
    found = set()
    for consumer in user.users:
        if consumer.target == aten.clamp.default:
            found |= {_partner_dtype(last, consumer) for last in consumer.users}
        else:
            found.add(_partner_dtype(consumer, user))
    return found.pop() if len(found) == 1 else None


def _partner_dtype(node: Any, operand: Node) -> torch.dtype | None:
    """The type of numbers that an operand is multiplied with, or divides."""
    if node.target not in {aten.mul.Tensor, aten.div.Tensor} or len(node.all_input_nodes) != 2:
        return None
    (partner,) = (other for other in node.all_input_nodes if other is not operand)
    dtype = partner.meta["val"].dtype
    # A tensor without dimensions does not decide the type of a result.
    return dtype if dtype in _NUMBERS and dtype == node.meta["val"].dtype and partner.meta["val"].dim() else None
