"""Graph convolutional networks. Kipf and Welling, "Semi-Supervised Classification with Graph Convolutional Networks",
ICLR 2017.

A layer mixes the features of every node with those of its neighbours: H' = D^-1/2 A D^-1/2 H W + b, where A is the
adjacency matrix with an edge from every node to itself, and D the degrees in it. Everything is a product of dense
matrices: for graphs of up to some thousand nodes that is fast, it can be done for many clients at once, and nothing
depends on the order in which a GPU happens to add up messages along edges.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedarena.core.errors import BadInputError
from fedarena.models.spec import DataSpec
from fedarena.models.zoo import MODELS, at_least_one, require

_MOST_NODES = 10_000  # of a graph: its adjacency matrix takes 400 MB then


class Adjacency(nn.Module):
    """The adjacency matrices of graphs."""

    def __init__(self, nodes: int):
        super().__init__()
        self.nodes = nodes

    def forward(self, edges: Tensor, like: Tensor) -> Tensor:
        """1 where two nodes are joined, either way, and else 0: ``[graphs, nodes, nodes]``, of numbers as in `like`.

        An edge is there once, ``[graphs, edges, 2]``, and one with a node that does not exist is none.
        """
        first, second = edges.unbind(-1)
        cells = self.nodes * self.nodes
        is_none = (first >= self.nodes) | (second >= self.nodes)
        there, back = first * self.nodes + second, second * self.nodes + first
        places = torch.where(torch.cat([is_none, is_none], -1), cells, torch.cat([there, back], -1))
        # One cell more, for edges that are none.
        empty = torch.zeros(len(edges), cells + 1, dtype=like.dtype, device=like.device)
        return empty.scatter(-1, places, 1.0)[:, :cells].reshape(len(edges), self.nodes, self.nodes)


class GraphConvolution(nn.Module):
    """A layer that mixes nodes with their neighbours."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=False)
        self.bias = nn.Parameter(torch.zeros(outputs))
        nn.init.xavier_uniform_(self.linear.weight)

    def forward(self, features: Tensor, adjacency: Tensor, scale: Tensor) -> Tensor:
        """New features ``[graphs, nodes, outputs]``; `scale` is one over the root of every node's degree."""
        mixed: Tensor = adjacency @ (scale * self.linear(features))
        return scale * mixed + self.bias


class NodeGCN(nn.Module):
    """Two graph convolutions, of which the second one gives a score for every class."""

    def __init__(self, nodes: int, features: int, classes: int, hidden: int, dropout: float, normalize: bool):
        super().__init__()
        self.normalize = normalize
        self.adjacency = Adjacency(nodes)
        self.first, self.second = GraphConvolution(features, hidden), GraphConvolution(hidden, classes)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """Scores of every node, ``[graphs, nodes, classes]``."""
        if self.normalize:
            x = x / _or_one(x.abs().sum(-1, keepdim=True))
        adjacency = self.adjacency(edges, x)
        scale = _or_one(adjacency.sum(-1, keepdim=True)).rsqrt()
        hidden = self.dropout(torch.relu(self.first(x, adjacency, scale)))
        scores: Tensor = self.second(hidden, adjacency, scale)
        return scores


class GraphGCN(nn.Module):
    """An encoder of nodes, two graph convolutions, the mean over nodes, and a classifier of graphs.

    The two ends know the features and classes of a dataset; what is in between can be shared by clients whose graphs
    have other ones.
    """

    def __init__(self, nodes: int, features: int, classes: int, hidden: int, dropout: float, normalize: bool):
        super().__init__()
        self.normalize = normalize
        self.encoder = nn.Linear(features, hidden)
        self.adjacency = Adjacency(nodes)
        self.first, self.second = GraphConvolution(hidden, hidden), GraphConvolution(hidden, hidden)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(hidden, classes)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """Scores of every graph, ``[graphs, classes]``."""
        if self.normalize:
            x = x / _or_one(x.abs().sum(-1, keepdim=True))
        adjacency = self.adjacency(edges, x)
        degrees = adjacency.sum(-1, keepdim=True)
        scale = _or_one(degrees).rsqrt()
        hidden = torch.relu(self.encoder(x))
        hidden = self.dropout(torch.relu(self.first(hidden, adjacency, scale)))
        hidden = torch.relu(self.second(hidden, adjacency, scale))
        is_node = (degrees > 0).to(hidden.dtype)  # every node has an edge to itself
        mean = (hidden * is_node).sum(-2) / _or_one(is_node.sum(-2))
        scores: Tensor = self.classifier(self.dropout(mean))
        return scores


@MODELS.register("gcn")
def gcn(spec: DataSpec, *, hidden: int = 64, dropout: float = 0.0, normalize: bool = False) -> nn.Module:
    """A graph convolutional network of two layers with `hidden` units, which are dropped out with rate `dropout`.

    It classifies nodes, or whole graphs: then it has an `encoder` of nodes before and a `classifier` after the layers.
    With `normalize`, features of a node are divided by their sum, as Kipf and Welling do; they train with Adam, and
    plain gradient descent then needs very large steps.
    """
    shape = spec.graph_shape
    labelled = spec.kind in ("node_classification", "classification")
    require(shape is not None and labelled, "gcn", "graphs (inputs x and edges) whose labels are classes", spec)
    at_least_one(hidden=hidden)
    if not 0 <= dropout < 1:
        raise BadInputError(f"model.dropout must be at least 0 and below 1, not {dropout}")
    assert shape is not None
    if shape[0] > _MOST_NODES:
        raise BadInputError(
            f"The model 'gcn' computes with dense matrices, for graphs of up to {_MOST_NODES:,} nodes, and this "
            f"federation has {spec}; divide them among more clients"
        )
    kind = NodeGCN if spec.kind == "node_classification" else GraphGCN
    return kind(*shape, spec.classes, hidden, dropout, normalize)


def _or_one(amounts: Tensor) -> Tensor:
    """The amounts, with 1 in the place of 0: what belongs to nothing stays nothing."""
    return torch.where(amounts > 0, amounts, 1.0)
