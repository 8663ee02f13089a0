"""A graph whose nodes have features and labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedarena.core.errors import BadInputError
from fedarena.core.later import later
from fedarena.data.store.schema import UNLABELLED, AnyArray, IntArray

if TYPE_CHECKING:
    from scipy import sparse
else:
    sparse = later("scipy.sparse")


@dataclass(frozen=True)
class Graph:
    """An undirected graph; its nodes are numbered from 0."""

    features: sparse.csr_matrix  # [nodes, features]
    edges: IntArray  # [edges, 2] the nodes of every edge, the lower first; none twice, and none from a node to itself
    labels: IntArray  # [nodes], UNLABELLED where a node has none
    classes: int
    label_names: tuple[str, ...] | None = None

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return len(self.labels)

    def part_with(self, nodes: IntArray) -> Graph:
        """What is left of it with these nodes, in this order: edges to others are gone."""
        number = np.full(self.nodes, -1, dtype=np.int64)
        number[nodes] = np.arange(len(nodes))
        ends = number[self.edges]
        edges = np.sort(ends[(ends >= 0).all(axis=1)], axis=1)
        return replace(self, features=self.features[nodes], edges=edges, labels=self.labels[nodes])


def undirected(pairs: AnyArray, nodes: int, where: str) -> IntArray:
    """The edges between these pairs of nodes, each once and sorted, whichever way and however often it was given."""
    pairs = np.asarray(pairs)
    if pairs.size == 0:
        return np.empty((0, 2), dtype=np.int64)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or not np.issubdtype(pairs.dtype, np.integer):
        raise BadInputError(
            f"The edges of {where} must be whole numbers of shape [edges, 2], the two nodes of each, not {pairs.dtype} "
            f"of shape {list(pairs.shape)}."
        )
    if pairs.min() < 0 or pairs.max() >= nodes:
        wrong = pairs.min() if pairs.min() < 0 else pairs.max()
        raise BadInputError(f"An edge of {where} has the node {wrong}, but only 0 to {nodes - 1} are nodes.")
    pairs = np.sort(pairs.astype(np.int64), axis=1)
    return np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0)


def features_dtype(matrices: Sequence[sparse.csr_matrix]) -> str:
    """In which type features are stored: bytes where they are small whole numbers, such as counts of words."""
    for matrix in matrices:
        values = matrix.data
        if not np.isfinite(values).all():
            raise BadInputError("A node has a feature that is no number; what is missing must be filled in first.")
        if len(values) and ((values != np.rint(values)).any() or abs(values).max() > np.iinfo(np.int8).max):
            return "float32"
    return "int8"


def padded(features: sparse.csr_matrix, edges: IntArray, nodes: int, most_edges: int, dtype: str) -> list[AnyArray]:
    """The features and edges of a graph as a sample has them, filled up to so many nodes and edges.

    Every node gets an edge to itself.
    """
    x: npt.NDArray[np.float64] = np.zeros((nodes, features.shape[1]), dtype=dtype)
    x[: features.shape[0]] = features.toarray()
    itself = np.repeat(np.arange(features.shape[0])[:, None], 2, axis=1)
    found = np.full((most_edges, 2), nodes, dtype=np.int32)
    found[: len(edges) + len(itself)] = np.concatenate([edges, itself])
    return [x, found]


def one_label_each(one_hot: AnyArray) -> IntArray:
    """The labels of rows that have a 1 for their label, or none."""
    return np.where(one_hot.any(axis=1), one_hot.argmax(axis=1), UNLABELLED).astype(np.int64)
