"""Many small graphs with a label each, a dataset per client, as a federation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.core.later import later
from fedarena.core.words import counted
from fedarena.data.graphs.graph import features_dtype, padded
from fedarena.data.store.schema import AnyArray, AttributeType, ColumnSpec, IntArray, TaskSpec

if TYPE_CHECKING:
    from scipy import sparse
else:
    sparse = later("scipy.sparse")

# What is known of every client.
ATTRIBUTES: dict[str, AttributeType] = {"features": "int64", "classes": "int64", "largest_nodes": "int64"}


@dataclass(frozen=True)
class GraphCollection:
    """Some graphs; their nodes are numbered one graph after the other."""

    name: str
    features: sparse.csr_matrix  # [nodes, features]
    edges: IntArray  # [edges, 2] the nodes of every edge, once, the lower first
    sizes: IntArray  # [graphs] how many nodes each has
    labels: IntArray  # [graphs]
    classes: int

    @property
    def starts(self) -> IntArray:
        """The first node of every graph, and where the last one ends."""
        return np.concatenate([[0], np.cumsum(self.sizes)])

    @property
    def edge_counts(self) -> IntArray:
        """How many edges every graph has."""
        graphs = np.searchsorted(self.starts, self.edges[:, 0], side="right") - 1
        return np.bincount(graphs, minlength=len(self.sizes)).astype(np.int64)

    def with_at_most(self, nodes: int) -> GraphCollection:
        """Without the graphs that have more nodes."""
        stays = self.sizes <= nodes
        if not stays.any():
            raise BadInputError(f"All graphs of {self.name} have more than {nodes:,} nodes; choose a larger most_nodes")
        node_stays = np.repeat(stays, self.sizes)
        number = np.cumsum(node_stays) - 1
        edges = number[self.edges[node_stays[self.edges[:, 0]]]]
        return replace(
            self,
            features=self.features[node_stays],
            edges=edges,
            sizes=self.sizes[stays],
            labels=self.labels[stays],
        )


class CollectionFederation:
    """How collections are stored together: with room for the largest graph, the most features and the most classes."""

    def __init__(self, collections: Sequence[GraphCollection]):
        self._nodes = max(int(one.sizes.max()) for one in collections)
        self._edges = max(int((one.sizes + one.edge_counts).max()) for one in collections)
        self._features = max(one.features.shape[1] for one in collections)
        self._classes = max(one.classes for one in collections)
        self._dtype = features_dtype([one.features for one in collections])
        self.notes = tuple(
            f"{one.name} has {counted(len(one.sizes), 'graph')} of {one.features.shape[1]} features in {one.classes} "
            f"classes; its samples have room for {self._features} features, and there are {self._classes} classes."
            for one in collections
        )

    @property
    def task(self) -> TaskSpec:
        """Graphs are classified; what a class means differs from client to client."""
        return TaskSpec(kind="classification", classes=self._classes, inputs={"x": None, "edges": self._nodes + 1})

    @property
    def columns(self) -> dict[str, ColumnSpec]:
        """Room for the largest graph."""
        return {
            "x": ColumnSpec(dtype=self._dtype, shape=(self._nodes, self._features)),
            "edges": ColumnSpec(dtype="int32", shape=(self._edges, 2)),
            "y": ColumnSpec(dtype="int64"),
        }

    def samples(self, collection: GraphCollection) -> dict[str, AnyArray]:
        """The graphs of a client."""
        features = collection.features.copy()
        features.resize(features.shape[0], self._features)
        starts = collection.starts
        edges = collection.edges[np.argsort(collection.edges[:, 0], kind="stable")]
        bounds = np.searchsorted(edges[:, 0], starts)
        each = [
            padded(features[start:end], edges[first:last] - start, self._nodes, self._edges, self._dtype)
            for start, end, first, last in zip(starts[:-1], starts[1:], bounds[:-1], bounds[1:], strict=True)
        ]
        return {
            "x": np.stack([x for x, _ in each]),
            "edges": np.stack([edges for _, edges in each]),
            "y": collection.labels,
        }

    def attributes(self, collection: GraphCollection) -> dict[str, int]:
        """What is known of a client."""
        return {
            "features": collection.features.shape[1],
            "classes": collection.classes,
            "largest_nodes": int(collection.sizes.max()),
        }
