"""Reading the citation graphs Cora, CiteSeer and PubMed (Sen et al., 2008), in two published forms.

- The files of Planetoid (Yang et al., "Revisiting Semi-Supervised Learning with Graph Embeddings", ICML 2016), which
  nearly everybody uses: pickles called ind.cora.allx and so on.
- The .npz files of Shchur et al. ("Pitfalls of Graph Neural Network Evaluation", 2018).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedarena.core.array_archives import NO_ARRAYS
from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.core.files import read_bytes
from fedarena.core.later import later
from fedarena.data.graphs.graph import Graph, one_label_each, undirected
from fedarena.data.graphs.pickled_arrays import checked_matrix, read_pickled_arrays
from fedarena.data.store.schema import UNLABELLED, AnyArray, IntArray

if TYPE_CHECKING:
    from scipy import sparse
else:
    sparse = later("scipy.sparse")

# Of the nodes that are not for testing and of those that are: features, labels, numbers; and all edges. Two further
# files, x and y, hold the first rows of allx and ally.
PIECES = ("allx", "ally", "tx", "ty", "test.index", "graph")


def read_planetoid(paths: Mapping[str, Path]) -> Graph:
    """The graph in Planetoid's files, given by their last names.

    Test nodes are in another order than their features. Some of CiteSeer's are in no file but that of the edges: they
    have no features, no label and no neighbours, and no label is made up for them.
    """
    others, tests = (_matrix(paths[name]) for name in ("allx", "tx"))
    labels, test_labels = (_one_hot(paths[name]) for name in ("ally", "ty"))
    numbers = _numbers(paths["test.index"])
    neighbours = _neighbours(paths["graph"])
    nodes, known = len(neighbours), others.shape[0]
    fits = len(labels) == known and len(test_labels) == tests.shape[0] == len(numbers)
    is_whole = len(numbers) > 0 and numbers.min() >= known and numbers.max() < nodes
    if not fits or not is_whole or others.shape[1] != tests.shape[1] or labels.shape[1] != test_labels.shape[1]:
        raise BadInputError(
            f"The files beside {paths['graph']} do not fit together: {known:,} nodes and {tests.shape[0]:,} test nodes "
            f"with features, {len(labels):,} and {len(test_labels):,} with labels, {len(numbers):,} test numbers, "
            f"{nodes:,} nodes with edges."
        )
    places = sparse.coo_matrix(
        (np.ones(known + len(numbers)), (np.append(np.arange(known), numbers), np.arange(known + len(numbers)))),
        shape=(nodes, known + len(numbers)),
    )
    all_labels = np.full(nodes, UNLABELLED, dtype=np.int64)
    all_labels[:known] = one_label_each(labels)
    all_labels[numbers] = one_label_each(test_labels)
    features = (places @ sparse.vstack([others, tests])).tocsr()
    return Graph(features, _edges(neighbours, paths["graph"]), all_labels, labels.shape[1])


def read_npz(path: Path) -> Graph:
    """The graph in one of Shchur's files."""
    names = ("adj_data", "adj_indices", "adj_indptr", "adj_shape")
    with _opened(path) as file:
        held = {name: _array(file, name, path) for name in file.files}
    needed = (*names, *(name.replace("adj", "attr") for name in names), "labels")
    if missing := [name for name in needed if name not in held]:
        raise BadInputError(f"{path} is no graph: it lacks {', '.join(missing)}")
    adjacency, features = (
        checked_matrix([held[f"{kind}_{name}"] for name in ("data", "indices", "indptr")], held[f"{kind}_shape"], path)
        for kind in ("adj", "attr")
    )
    labels = held["labels"].astype(np.int64)
    nodes = len(labels)
    if adjacency.shape != (nodes, nodes) or features.shape[0] != nodes or nodes == 0 or labels.min() < 0:
        raise BadInputError(
            f"{path} does not fit together: {nodes:,} labels, adjacency of {adjacency.shape}, features of "
            f"{features.shape}"
        )
    classes = int(labels.max()) + 1
    class_names = held.get("class_names")
    label_names = tuple(map(str, class_names.tolist())) if class_names is not None else None
    pairs = np.stack(adjacency.nonzero(), axis=1)
    known_names = label_names if label_names and len(label_names) == classes else None
    return Graph(features.tocsr(), undirected(pairs, nodes, str(path)), labels, classes, known_names)


def _matrix(path: Path) -> sparse.csr_matrix:
    found = read_pickled_arrays(path)
    if not sparse.issparse(found):
        raise BadInputError(f"{path} must hold a sparse matrix, not a {type(found).__name__}")
    return found


def _one_hot(path: Path) -> AnyArray:
    found = read_pickled_arrays(path)
    if not isinstance(found, np.ndarray) or found.ndim != 2:
        raise BadInputError(f"{path} must hold an array with a row for every node and a column for every class")
    return found


def _numbers(path: Path) -> IntArray:
    try:
        found = np.array(read_bytes(path).split(), dtype=np.int64)
    except ValueError:
        raise BadInputError(f"{path} must hold the number of a node in every line") from None
    if len(np.unique(found)) < len(found):
        raise BadInputError(f"{path} holds a node twice")
    return found


def _neighbours(path: Path) -> dict[int, list[int]]:
    found = read_pickled_arrays(path)
    if not isinstance(found, dict) or not all(type(near) is list for near in found.values()):
        raise BadInputError(f"{path} must hold a dictionary with the list of every node's neighbours")
    if set(found) != set(range(len(found))):
        raise BadInputError(f"{path} must have a list for every node, numbered from 0")
    return found


def _edges(neighbours: Mapping[int, list[int]], path: Path) -> IntArray:
    pairs = [(node, other) for node, near in neighbours.items() for other in near]
    if not all(type(other) is int for _, other in pairs):
        raise BadInputError(f"{path} must hold the numbers of nodes")
    return undirected(np.array(pairs, dtype=np.int64).reshape(-1, 2), len(neighbours), str(path))


def _opened(path: Path) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except NO_ARRAYS:
        raise DamagedFileError(f"{path} is damaged: it is no .npz file of arrays") from None


def _array(file: Any, name: str, path: Path) -> AnyArray:
    """One array of a file; texts that are pickled are left out, as nothing needs them."""
    try:
        found: AnyArray = file[name]
    except ValueError:
        return np.empty(0)
    except NO_ARRAYS:
        raise DamagedFileError(f"{path} is damaged: its array {name} cannot be read") from None
    return found
