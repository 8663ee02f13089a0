"""One large graph as a federation: every client has a part of its nodes and the edges between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fedarena.core.words import counted
from fedarena.data.graphs.graph import Graph, features_dtype, padded
from fedarena.data.splits import split_samples
from fedarena.data.store.schema import PARTS, UNLABELLED, AnyArray, AttributeType, ColumnSpec, IntArray, TaskSpec

# What is known of every client.
ATTRIBUTES: dict[str, AttributeType] = {"nodes": "int64", "edges": "int64"}


@dataclass(frozen=True)
class Subgraph:
    """What a client has: a sample for each of its parts, in the columns of the federation."""

    parts: dict[str, dict[str, AnyArray]]
    attributes: dict[str, int]


class Subgraphs:
    """A graph that is cut up, and how its federation is stored.

    `owners` has the client of every node. The labelled nodes of every client are divided for training, validation and
    test by `fractions`, at random.
    """

    def __init__(self, graph: Graph, owners: IntArray, fractions: tuple[float, float, float], seed: int):
        self._graph, self._fractions, self._seed = graph, fractions, seed
        self._members = [np.flatnonzero(owners == client) for client in range(int(owners.max()) + 1)]
        self._cut = [graph.part_with(members) for members in self._members]
        self._nodes = max(part.nodes for part in self._cut)
        self._edges = max(part.nodes + len(part.edges) for part in self._cut)
        self._dtype = features_dtype([graph.features])

    @property
    def task(self) -> TaskSpec:
        """Nodes are classified."""
        return TaskSpec(
            kind="node_classification",
            classes=self._graph.classes,
            label_names=self._graph.label_names,
            inputs={"x": None, "edges": self._nodes + 1},
        )

    @property
    def columns(self) -> dict[str, ColumnSpec]:
        """Room for the largest subgraph."""
        return {
            "x": ColumnSpec(dtype=self._dtype, shape=(self._nodes, self._graph.features.shape[1])),
            "edges": ColumnSpec(dtype="int32", shape=(self._edges, 2)),
            "y": ColumnSpec(dtype="int64", shape=(self._nodes,)),
        }

    @property
    def notes(self) -> tuple[str, ...]:
        """What became of the graph."""
        nodes, edges = self._graph.nodes, len(self._graph.edges)
        lost = edges - sum(len(part.edges) for part in self._cut)
        unlabelled = int((self._graph.labels == UNLABELLED).sum())
        about = [
            f"A sample is a client's whole graph, once for every part, with the labels of the nodes of that part; "
            f"together they have {counted(nodes, 'node')}.",
            f"{lost:,} of {counted(edges, 'edge')} join nodes of different clients and are in no graph.",
        ]
        if unlabelled:
            about.append(f"{counted(unlabelled, 'node')} without a label can only be neighbours.")
        return tuple(about)

    def __len__(self) -> int:
        return len(self._cut)

    def __iter__(self) -> Iterator[Subgraph]:
        for client, part in enumerate(self._cut):
            x, edges = padded(part.features, part.edges, self._nodes, self._edges, self._dtype)
            parts = {}
            for name, chosen in zip(PARTS, self._divided(client, part), strict=True):
                if len(chosen):
                    y = np.full(self._nodes, UNLABELLED, dtype=np.int64)
                    y[chosen] = part.labels[chosen]
                    parts[str(name)] = {"x": x[None], "edges": edges[None], "y": y[None]}
            yield Subgraph(parts, {"nodes": part.nodes, "edges": len(part.edges)})

    def _divided(self, client: int, part: Graph) -> Sequence[IntArray]:
        """The nodes for training, validation and test."""
        labelled = np.flatnonzero(part.labels != UNLABELLED)
        rows = split_samples(len(labelled), self._fractions, order="shuffled", seed=self._seed, client=client)
        return [labelled[chosen] for chosen in rows]
