"""Products in recorded steps, by our own kernels for CPUs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule

from fedarena.train.graphs import Update, write_products
from fedarena.train.native.products import product, products_of_lanes
from fedarena.train.operations import calling, script_of

aten = torch.ops.aten

_FEWEST = 1 << 15  # multiplications of a lane, from which on a product takes less time than by a library
_FEWEST_SUMMED = 32  # terms, from which on a product is better written down than subtracted term by term


@cache
def _scripts() -> dict[Any, Callable[..., Tensor]]:
    functions = {aten.mm.default: product, aten.bmm.default: products_of_lanes}
    return {target: calling(script_of(function)) for target, function in functions.items()}


def multiply_natively(graph: Graph) -> None:
    """Has products of a computation that was recorded on a CPU made in this way."""
    for node in graph.nodes:
        if node.target in _scripts() and _are_suitable(*(operand.meta["val"] for operand in node.args)):
            node.target = _scripts()[node.target]


def subtract_natively(pure: GraphModule, updates: list[Update]) -> list[Update]:
    """The updates, with products that they subtract made in this way: at once, or before if they have many terms."""

    def has_many_terms(left: Tensor, right: Tensor) -> bool:
        return _are_suitable(left, right) and left.shape[-1] >= _FEWEST_SUMMED

    updates = write_products(pure, updates, has_many_terms)
    output = next(node for node in pure.graph.nodes if node.op == "output")

    def in_this_way(update: Update) -> bool:
        return update.kind == "subtract_product" and _are_suitable(
            *(output.args[0][value].meta["val"] for value in update.values)
        )

    return [replace(update, natively=in_this_way(update)) for update in updates]


def _are_suitable(left: Tensor, right: Tensor) -> bool:
    """Whether both matrices are in single precision, and there is much to do."""
    many = left.shape[-2:].numel() * right.shape[-1] >= _FEWEST
    return left.dtype == right.dtype == torch.float32 and many
