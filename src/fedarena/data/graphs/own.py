"""Somebody's own graph as a federation."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.core.later import later
from fedarena.data.class_labels import sorted_classes
from fedarena.data.graphs.communities import owners_by_community
from fedarena.data.graphs.graph import Graph, undirected
from fedarena.data.graphs.subgraphs import ATTRIBUTES, Subgraphs
from fedarena.data.own.stores import StorePlace, build_once, name_of
from fedarena.data.registry import Progress, StoreBuild
from fedarena.data.splits import Split
from fedarena.data.store.federation import Federation
from fedarena.data.store.schema import UNLABELLED, AnyArray, IntArray

if TYPE_CHECKING:
    from scipy import sparse
else:
    sparse = later("scipy.sparse")

SOURCE = "graph"


def from_graph(
    features: Any,
    edges: Any,
    labels: Sequence[Any] | AnyArray,
    *,
    clients: int | Sequence[Any] | AnyArray = 5,
    seed: int = 0,
    train_fraction: float = 0.6,
    validation_fraction: float = 0.2,
    name: str | None = None,
    path: Path | str | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Federation:
    """A federation whose clients have parts of one graph, in which nodes are classified.

    `features` has a row of numbers for every node (an array, or a sparse matrix of SciPy), `edges` the numbers of two
    nodes in every row, counted from 0, and `labels` a label for every node, None or NaN where it has none. `clients`
    says whose every node is; or it is a number, and the graph is cut into so many subgraphs by its communities. Edges
    between different clients are lost.

    The labelled nodes of every client are divided for training, validation and test, at random. The store is kept in
    the cache, or written to the folder `path`, where `overwrite` lets it replace another one.

    >>> ring = [(node, (node + 1) % 6) for node in range(6)]
    >>> from_graph(np.eye(6), ring, ["a", "b"] * 3, clients=[0, 0, 0, 1, 1, 1]).num_clients
    2
    """
    division = Split("within_client", train_fraction, validation_fraction, seed)
    matrix = _matrix(features)
    nodes = matrix.shape[0]
    codes, names = _labels(labels, nodes)
    graph = Graph(matrix, undirected(np.asarray(edges), nodes, "the graph"), codes, len(names), names)
    ids, owners = _owners(clients, graph, seed)

    def build(target: StoreBuild) -> None:
        subgraphs = Subgraphs(graph, owners, division.fractions, seed)
        with target.writer(
            task=subgraphs.task, columns=subgraphs.columns, attributes=ATTRIBUTES, notes=subgraphs.notes
        ) as writer:
            for id, subgraph in zip(ids, subgraphs, strict=True):
                writer.add_client(id, group="train", attributes=subgraph.attributes, **subgraph.parts)

    options = {"clients": len(ids), "seed": seed, "train_fraction": train_fraction}
    options["validation_fraction"] = validation_fraction
    state = [_digest(matrix.data, matrix.indices, matrix.indptr, graph.edges, codes, owners), matrix.shape, names, ids]
    return build_once(SOURCE, options, state, name_of(None, name, SOURCE), StorePlace(path, overwrite, progress), build)


def _matrix(features: Any) -> sparse.csr_matrix:
    try:
        matrix = sparse.csr_matrix(features) if sparse.issparse(features) else _dense(features)
        matrix = matrix.astype(np.float64)
    except (ValueError, TypeError):
        raise BadInputError("features must be numbers, a row for every node.") from None
    if 0 in matrix.shape:
        raise BadInputError(f"features has the shape {list(matrix.shape)}; there must be a node and a feature.")
    matrix.sort_indices()
    return matrix


def _dense(features: Any) -> sparse.csr_matrix:
    values = np.asarray(features, dtype=np.float64)
    if values.ndim != 2:
        raise BadInputError(f"features must have a row of numbers for every node, not the shape {list(values.shape)}.")
    return sparse.csr_matrix(values)


def _labels(labels: Sequence[Any] | AnyArray, nodes: int) -> tuple[IntArray, tuple[str, ...]]:
    """The class of every node, and what classes are called."""
    given = np.asarray(labels).tolist() if isinstance(labels, np.ndarray) else list(labels)
    if len(given) != nodes:
        raise BadInputError(f"labels has {len(given):,} entries for {nodes:,} nodes.")
    is_there = np.array([label is not None and label == label for label in given])  # NaN is not itself
    classes = sorted_classes([label for label, there in zip(given, is_there, strict=True) if there], "labels")
    codes = np.full(nodes, UNLABELLED, dtype=np.int64)
    codes[is_there] = classes.class_of
    return codes, classes.names or tuple(map(str, range(classes.classes)))


def _owners(clients: int | Sequence[Any] | AnyArray, graph: Graph, seed: int) -> tuple[list[str], IntArray]:
    """The ids of clients, and the client of every node."""
    if isinstance(clients, int | np.integer):
        if not 1 <= clients <= graph.nodes:
            raise BadInputError(
                f"clients must be from 1 to {graph.nodes:,}, as many as there are nodes, not {clients:,}."
            )
        owners = owners_by_community(graph.edges, graph.nodes, clients, seed)
        return [f"subgraph-{client}" for client in range(clients)], owners
    given = [str(client) for client in np.asarray(clients).tolist()]
    if len(given) != graph.nodes:
        raise BadInputError(f"clients has {len(given):,} entries for {graph.nodes:,} nodes.")
    number = {client: place for place, client in enumerate(dict.fromkeys(given))}
    return list(number), np.array([number[client] for client in given])


def _digest(*arrays: AnyArray) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
