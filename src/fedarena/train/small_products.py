"""Small matrix products as plain products and sums, which a compiler makes part of what comes before and after.

A GPU's library takes about as long for a product of few rows as for one of a hundred, and another kernel for a bias or
an update. Where one client or a few train alone, as those with most samples do, a step is a chain of such products,
each of which waits for the one before.
"""

from __future__ import annotations

import torch
from torch.fx import Graph, Node

aten = torch.ops.aten

_MOST_PRODUCTS = 1 << 22  # of single numbers, in all lanes; with more, a library is faster
_ROUNDED_LITTLE = {torch.float32, torch.float64}


def sum_small_products(graph: Graph) -> None:
    """Replaces batched matrix products that are small; what they come to is at least as exact."""
    for node in graph.nodes:
        if node.target == aten.bmm.default and _is_small(node):
            _replace(graph, node)
    graph.eliminate_dead_code()


def _is_small(product: Node) -> bool:
    left, right = (operand.meta["val"] for operand in product.all_input_nodes[:2])
    return left.dtype in _ROUNDED_LITTLE and left.numel() * right.shape[2] <= _MOST_PRODUCTS


def _replace(graph: Graph, product: Node) -> None:
    left, right = product.args
    with graph.inserting_before(product):
        rows = graph.call_function(aten.unsqueeze.default, (left, 3))
        columns = graph.call_function(aten.unsqueeze.default, (right, 1))
        products = graph.call_function(aten.mul.Tensor, (rows, columns))
        total = graph.call_function(aten.sum.dim_IntList, (products, [2]))
    total.meta["val"] = product.meta["val"]
    product.replace_all_uses_with(total)
    graph.erase_node(product)
