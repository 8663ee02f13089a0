"""Reading datasets of graphs in the form of TUDataset (Morris et al., 2020): text files that begin with their name.

DS_A.txt has an edge in every line, the numbers of two nodes, counted from 1; DS_graph_indicator.txt the graph of every
node; DS_graph_labels.txt the label of every graph. DS_node_labels.txt and DS_node_attributes.txt may be there: labels
become features of 0 and 1, and attributes features after them. Where there are neither, every node has one feature, 1.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.core.later import later
from fedarena.data.class_labels import sorted_classes
from fedarena.data.graphs.collection import GraphCollection
from fedarena.data.graphs.graph import undirected
from fedarena.data.raw.trees import RawTree, open_tree
from fedarena.data.store.schema import AnyArray, IntArray

if TYPE_CHECKING:
    from scipy import sparse
else:
    sparse = later("scipy.sparse")

NEEDED = ("A", "graph_indicator", "graph_labels")
OPTIONAL = ("node_labels", "node_attributes")


def read_tu(name: str, path: Path) -> GraphCollection:
    """The dataset `name` in a folder or in a .zip archive."""
    wanted = re.compile(rf"(?:^|/){re.escape(name)}_({'|'.join((*NEEDED, *OPTIONAL))})\.txt$")
    with open_tree(path, wanted) as tree:
        found = {wanted.search(file).group(1): index for index, file in enumerate(tree.names)}  # type: ignore[union-attr]
        if missing := [f"{name}_{kind}.txt" for kind in NEEDED if kind not in found]:
            raise BadInputError(f"{path} lacks {', '.join(missing)} of the graphs {name}")
        tables = {kind: _table(tree, index, whole=kind != "node_attributes") for kind, index in found.items()}
        graph_of = _graph_of(tables["graph_indicator"], tree.where(found["graph_indicator"]))
        graphs, nodes = int(graph_of[-1]) + 1, len(graph_of)
        labels = tables["graph_labels"]
        if len(labels) != graphs or labels.shape[1] != 1:
            raise BadInputError(
                f"{tree.where(found['graph_labels'])} must hold one label for each of {graphs:,} graphs, not numbers "
                f"of shape {list(labels.shape)}"
            )
        pairs = tables["A"]
        if pairs.shape[1] != 2:
            raise BadInputError(f"{tree.where(found['A'])} must hold two nodes in every line, not {pairs.shape[1]}")
        edges = undirected(pairs - 1, nodes, tree.where(found["A"]))
        across = graph_of[edges[:, 0]] != graph_of[edges[:, 1]]
        if across.any():
            one, other = (edges[np.argmax(across)] + 1).tolist()
            raise BadInputError(f"{tree.where(found['A'])} joins the nodes {one} and {other} of different graphs")
        features = _features(tables, nodes, {kind: tree.where(index) for kind, index in found.items()})
    classes = sorted_classes(labels[:, 0].tolist(), f"The labels of {name}")
    return GraphCollection(name, features, edges, np.bincount(graph_of), classes.class_of, classes.classes)


def _table(tree: RawTree, index: int, whole: bool) -> AnyArray:
    """The numbers of a file, a row for every line."""
    try:
        found: AnyArray = np.loadtxt(
            io.StringIO(tree.read(index).decode("utf-8")),
            delimiter=",",
            ndmin=2,
            dtype=np.int64 if whole else np.float64,
        )
    except (ValueError, UnicodeDecodeError) as error:
        numbers = "whole numbers" if whole else "numbers"
        raise BadInputError(f"{tree.where(index)} must hold {numbers} with commas between them: {error}") from None
    if found.size == 0:
        raise BadInputError(f"{tree.where(index)} is empty")
    return found


def _graph_of(table: AnyArray, where: str) -> IntArray:
    """The graph of every node, counted from 0."""
    found: IntArray = table[:, 0] - 1
    steps = np.diff(found)
    if found[0] != 0 or (steps < 0).any() or (steps > 1).any():
        raise BadInputError(f"{where} must hold the graph of every node, counted from 1, one graph after the other")
    return found


def _features(tables: dict[str, AnyArray], nodes: int, where: dict[str, str]) -> sparse.csr_matrix:
    pieces = []
    for kind in OPTIONAL:
        if kind not in tables:
            continue
        values = tables[kind]
        if len(values) != nodes:
            raise BadInputError(f"{where[kind]} has {len(values):,} lines for {nodes:,} nodes")
        columns = [_one_hot(column) for column in values.T] if kind == "node_labels" else [sparse.csr_matrix(values)]
        pieces += columns
    return sparse.hstack(pieces or [sparse.csr_matrix(np.ones((nodes, 1)))]).tocsr()


def _one_hot(labels: IntArray) -> sparse.csr_matrix:
    present, place = np.unique(labels, return_inverse=True)
    return sparse.csr_matrix((np.ones(len(labels)), (np.arange(len(labels)), place)), shape=(len(labels), len(present)))
