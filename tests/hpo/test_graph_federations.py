"""Federations of graphs: how one is cut up, what published files hold, and what is refused."""

from __future__ import annotations

import collections
import contextlib
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from typer.testing import CliRunner

import fedarena
from fedarena.cli import main
from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.data import ColumnSpec, Federation, FederationWriter, TaskSpec, describe, load_federation
from fedarena.data.graphs.communities import communities, dealt_out, owners_by_community
from fedarena.data.graphs.pickled_arrays import read_pickled_arrays
from fedarena.data.statistics.table7 import compared_with_table_7

PUBLISHED = Path(__file__).parents[3] / "shared" / "data" / "planetoid"
PARTS = ("train", "validation", "test")
needs_published = pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published graphs are not here")


@pytest.fixture(scope="module")
def cliques() -> dict[str, Any]:
    """Six cliques of ten nodes in a ring; a node's features tell its number."""
    graph = networkx.ring_of_cliques(6, 10)
    features = np.stack([np.arange(60), np.ones(60)], axis=1)
    return {"features": features, "edges": np.array(graph.edges), "labels": [node // 10 % 3 for node in range(60)]}


def edges_of(federation: Federation, client: int) -> tuple[np.ndarray, set[frozenset[int]]]:
    """The nodes of a client by their numbers in the whole graph, and its edges, without those to itself."""
    columns = federation.samples([client], "train").columns
    nodes = int(federation.attributes([client])["nodes"][0])
    numbers = columns["x"][0][:nodes, 0].astype(int)
    pairs = columns["edges"][0]
    there = pairs[pairs[:, 0] < columns["x"].shape[1]]
    assert sorted(one for one, other in there.tolist() if one == other) == list(range(nodes))
    return numbers, {frozenset((int(numbers[a]), int(numbers[b]))) for a, b in there.tolist() if a != b}


def test_clients_have_communities_and_the_edges_within(cliques: dict[str, Any]) -> None:
    federation = fedarena.from_graph(**cliques, clients=3)
    assert federation.num_clients == 3
    whole = {frozenset(pair) for pair in cliques["edges"].tolist()}
    everybody = []
    for client in range(3):
        numbers, edges = edges_of(federation, client)
        assert edges == {pair for pair in whole if pair <= set(numbers.tolist())}
        assert federation.attributes([client])["edges"][0] == len(edges)
        everybody += numbers.tolist()
        assert len({number // 10 for number in numbers.tolist()}) <= 3  # cliques stay together
    assert sorted(everybody) == list(range(60))


def test_nodes_are_divided_for_training_and_testing(cliques: dict[str, Any]) -> None:
    labels = [None if node % 10 == 3 else label for node, label in enumerate(cliques["labels"])]
    owners = ["a", "b", "c"] * 20
    federation = fedarena.from_graph(cliques["features"], cliques["edges"], labels, clients=owners)
    assert federation.client_ids(federation.clients()) == ["a", "b", "c"]
    for client in range(3):
        y = np.stack([federation.samples([client], part).columns["y"][0] for part in PARTS])
        numbers, _ = edges_of(federation, client)
        assert ((y >= 0).sum(0) == [labels[number] is not None for number in numbers.tolist()]).all()
        assert y.max(0).tolist() == [-1 if labels[number] is None else labels[number] for number in numbers.tolist()]
        known = (y >= 0).sum()
        assert np.abs((y >= 0).sum(1) - known * np.array([0.6, 0.2, 0.2])).max() < 1
    assert any("6 nodes without a label" in note for note in federation.notes)
    statistics = describe(federation)
    assert statistics.labels.counts.tolist() == [labels.count(label) for label in range(3)]
    assert federation.label_counts.sum() == sum(
        (federation.samples([client], "train").columns["y"] >= 0).sum() for client in range(3)
    )


def test_the_same_graph_is_cut_the_same_way_and_built_once(cliques: dict[str, Any], tmp_path: Path) -> None:
    made = [fedarena.from_graph(**cliques, clients=4, path=tmp_path / name) for name in ("one", "two")]
    assert made[0].manifest.files == made[1].manifest.files
    assert fedarena.from_graph(**cliques, clients=4).path == fedarena.from_graph(**cliques, clients=4).path
    other = fedarena.from_graph(**cliques, clients=4, seed=1)
    assert other.path != fedarena.from_graph(**cliques, clients=4).path
    assert other.manifest.files != made[0].manifest.files


def test_sparse_features_and_edges_that_are_given_twice_are_the_same(cliques: dict[str, Any]) -> None:
    again = {
        "features": sparse.csr_matrix(cliques["features"]),
        "edges": np.concatenate([cliques["edges"], cliques["edges"][:, ::-1], [[3, 3]]]),
        "labels": np.array(cliques["labels"], dtype=float),
        "clients": np.int64(5),
    }
    assert fedarena.from_graph(**again).fingerprint == fedarena.from_graph(**cliques).fingerprint
    unknown = np.where(np.arange(60) == 7, np.nan, cliques["labels"])
    known = [None if node == 7 else label for node, label in enumerate(cliques["labels"])]
    found = fedarena.from_graph(cliques["features"], cliques["edges"], unknown)
    assert found.fingerprint == fedarena.from_graph(cliques["features"], cliques["edges"], known).fingerprint


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(1, 8))
def test_groups_are_dealt_out_whole_where_they_fit(sizes: list[int], clients: int) -> None:
    if sum(sizes) < clients:
        return
    ends = np.cumsum(sizes)
    groups = [np.arange(end - size, end) for size, end in zip(sizes, ends.tolist(), strict=True)]
    dealt = dealt_out(groups, clients)
    assert len(dealt) == clients
    assert np.array_equal(np.sort(np.concatenate(dealt)), np.arange(sum(sizes)))
    assert all(len(members) for members in dealt)
    share = sum(sizes) // clients
    tolerance = min(20, share // 10)
    for group in groups:
        holders = sum(bool(np.isin(group, members).any()) for members in dealt)
        assert holders <= -(-len(group) // max(1, share - tolerance))


def test_communities_are_those_of_networkx(cliques: dict[str, Any]) -> None:
    found = communities(cliques["edges"], 60, seed=0)
    assert sorted(members.tolist() for members in found) == [list(range(10 * k, 10 * k + 10)) for k in range(6)]
    with pytest.raises(BadInputError, match="cannot be cut into 3 subgraphs"):
        owners_by_community(np.array([[0, 1]]), 2, 3, seed=0)


BAD_GRAPHS = {
    "labels has 59 entries for 60 nodes": {"labels": [0, 1, 2] * 19 + [0, 1]},
    "An edge of the graph has the node 60, but only 0 to 59 are nodes": {"edges": [(0, 60)]},
    r"must be whole numbers of shape \[edges, 2\]": {"edges": [(0, 1, 2)]},
    "features must have a row of numbers for every node": {"features": np.zeros(60)},
    "features must be numbers": {"features": [["a", "b"]] * 60},
    "no number; what is missing must be filled in": {"features": np.full((60, 2), np.nan)},
    "clients must be from 1 to 60": {"clients": 61},
    "clients has 2 entries for 60 nodes": {"clients": ["a", "b"]},
    "is 1 in every sample, so there is nothing to learn": {"labels": [1] * 60},
    "train_fraction must be above 0": {"train_fraction": 0.9, "validation_fraction": 0.2},
}


@pytest.mark.parametrize("sentence", BAD_GRAPHS)
def test_bad_graphs_are_refused(cliques: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInputError, match=sentence):
        fedarena.from_graph(**{**cliques, **BAD_GRAPHS[sentence]})


BAD_STORES = {
    "has the inputs x and edges": ({"x": None}, (4, 2), (5, 2), (4,)),
    r"'edges' must have shape \[edges, 2\] and hold one of 5 codes": ({"x": None, "edges": 4}, (4, 2), (5, 2), (4,)),
    r"'y' must have shape \[nodes\]": ({"x": None, "edges": 5}, (4, 2), (5, 2), (3,)),
    r"'x' must have shape \[nodes, features\]": ({"x": None, "edges": 5}, (4,), (5, 2), (4,)),
}


@pytest.mark.parametrize("sentence", BAD_STORES)
def test_stores_of_graphs_that_are_none_are_refused(sentence: str, tmp_path: Path) -> None:
    inputs, x, edges, y = BAD_STORES[sentence]
    with pytest.raises(BadInputError, match=sentence):
        FederationWriter(
            tmp_path / "store",
            name="graphs",
            task=TaskSpec(kind="node_classification", classes=2, inputs=inputs),
            columns={
                "x": ColumnSpec(dtype="float32", shape=x),
                "edges": ColumnSpec(dtype="int32", shape=edges),
                "y": ColumnSpec(dtype="int64", shape=y),
            },
        )


def test_labels_of_nodes_are_checked(tmp_path: Path) -> None:
    columns = {"x": np.zeros((1, 3, 2), np.float32), "edges": np.zeros((1, 2, 2), np.int32)}
    for wrong in (2, -2):
        with (
            pytest.raises(BadInputError, match=f"Column 'y' holds {wrong}, but only 0 to 1 are valid labels"),
            FederationWriter(
                tmp_path / "store",
                name="graphs",
                task=TaskSpec(kind="node_classification", classes=2, inputs={"x": None, "edges": 4}),
                columns={name: ColumnSpec(dtype=v.dtype.name, shape=v.shape[1:]) for name, v in columns.items()}
                | {"y": ColumnSpec(dtype="int64", shape=(3,))},
            ) as writer,
        ):
            writer.add_client("a", train={**columns, "y": np.array([[-1, 0, wrong]])})


# Planetoid's files, made up: 7 nodes, of which 5 are known, 4 and 6 are for testing, and 5 is in no file.
KNOWN = np.eye(4, 3)
TESTS = np.array([[0, 2, 0], [5, 0, 0]])
NEIGHBOURS = {0: [1, 1], 1: [0, 2], 2: [1], 3: [6, 3], 4: [], 5: [], 6: [3]}


def write_planetoid(folder: Path, **other: Any) -> Path:
    folder.mkdir(exist_ok=True)
    graph = collections.defaultdict(list, NEIGHBOURS)
    contents = {
        "allx": sparse.csr_matrix(KNOWN),
        "tx": sparse.csr_matrix(TESTS),
        "ally": np.eye(2, dtype=np.int32)[[0, 1, 0, 1]],
        "ty": np.eye(2, dtype=np.int32)[[1, 0]],
        "graph": graph,
        **other,
    }
    for name, content in contents.items():
        (folder / f"ind.pubmed.{name}").write_bytes(pickle.dumps(content, 4))
    (folder / "ind.pubmed.test.index").write_text("6\n4\n")
    return folder


def load(folder: Path, **options: Any) -> Federation:
    return load_federation("planetoid", {"graph": "pubmed", "folder": str(folder), "clients": 1, **options})


def test_test_nodes_are_put_in_their_places(tmp_path: Path) -> None:
    federation = load(write_planetoid(tmp_path / "raw"))
    columns = federation.samples([0], "train").columns
    assert columns["x"][0].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0], [5, 0, 0], [0, 0, 0], [0, 2, 0]]
    pairs = {tuple(pair) for pair in columns["edges"][0].tolist()}
    assert pairs == {(0, 1), (1, 2), (3, 6)} | {(node, node) for node in range(7)}
    y = np.stack([federation.samples([0], part).columns["y"][0] for part in PARTS]).max(0)
    assert y.tolist() == [0, 1, 0, 1, 0, -1, 1]  # nobody knows about node 5
    assert federation.attributes([0]) == {"nodes": [7], "edges": [3]}


def test_nodes_at_random_instead_of_communities(tmp_path: Path) -> None:
    federation = load(write_planetoid(tmp_path / "raw"), clients=2, by="random")
    assert sorted(federation.attributes([0, 1])["nodes"].tolist()) == [3, 4]
    other = load(tmp_path / "raw", clients=2, by="random", seed=1)
    assert other.manifest.files != federation.manifest.files


BAD_FILES = {
    "must hold a sparse matrix, not a ndarray": {"allx": np.zeros((4, 3))},
    "must hold an array with a row for every node": {"ally": np.zeros(4)},
    "do not fit together: 4 nodes and 2 test nodes with features, 3 and 2 with labels": {"ally": np.zeros((3, 2))},
    "must hold a dictionary with the list": {"graph": [1, 2]},
    "must have a list for every node": {"graph": {0: [1], 2: []}},
    "has the node 9, but only 0 to 6 are nodes": {"graph": {**NEIGHBOURS, 4: [9]}},
}


@pytest.mark.parametrize("sentence", BAD_FILES)
def test_files_that_make_no_sense_are_refused(sentence: str, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=sentence):
        load(write_planetoid(tmp_path / "raw", **BAD_FILES[sentence]))


class _Runs:
    def __reduce__(self) -> Any:
        return os.mkdir, ("it_was_run",)


class _Made:
    pass


HOSTILE = {
    "wants to run posix.mkdir, which was not done": pickle.dumps(_Runs(), 4),
    "wants to run test_graph_federations._Made": pickle.dumps(_Made(), 4),
    "is not a complete pickle": pickle.dumps(np.arange(9), 4)[:-20],
    "makes no sense": pickle.dumps(np.arange(9), 4).replace(b"\x85", b"\x86", 1),
    "lacks its numbers or its shape": b"cscipy.sparse.csr\ncsr_matrix\n)\x81.",
    "wants to create an object": b"Vlist\n)\x81.",
}


@pytest.mark.parametrize("sentence", HOSTILE)
def test_nothing_in_a_file_is_run(sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "ind.pubmed.allx"
    path.write_bytes(HOSTILE[sentence])
    with pytest.raises(BadInputError, match=sentence):
        read_pickled_arrays(path)
    assert not (tmp_path / "it_was_run").exists()


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 500), st.integers(0, 255))
def test_no_byte_gets_through_with_another_error(place: int, value: int) -> None:
    """Whatever a damaged file says, it gives an array, a matrix or plain data, or a sentence."""
    matrix = bytearray(pickle.dumps(sparse.csr_matrix(np.eye(3)), 4))
    matrix[place % len(matrix)] = value
    path = Path(os.environ["FEDARENA_CACHE"]) / "damaged"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(bytes(matrix))
    with contextlib.suppress(BadInputError, DamagedFileError):
        read_pickled_arrays(path)


def test_arrays_are_what_was_pickled(tmp_path: Path) -> None:
    path = tmp_path / "array"
    for array in (
        np.arange(6.0).reshape(2, 3),
        np.asfortranarray(np.arange(6, dtype=">i4").reshape(2, 3)),
        np.zeros(0),
    ):
        path.write_bytes(pickle.dumps(array, 4))
        found = read_pickled_arrays(path)
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    folder = write_planetoid(tmp_path / "raw")
    (folder / "ind.pubmed.ty").unlink()
    with pytest.raises(
        BadInputError, match=r"lacks ind.pubmed.ty of the graph pubmed; .*data prepare planetoid folder="
    ):
        load(folder)
    result = CliRunner().invoke(main, ["data", "prepare", "planetoid", f"folder={tmp_path / 'nowhere'}"])
    assert result.exit_code == 2


@pytest.mark.sampled(2)
@needs_published
@pytest.mark.parametrize(
    ("graph", "form", "nodes", "edges", "features", "lost"),
    [
        ("cora", "planetoid", 2708, 5278, 1433, 0),
        ("cora", "npz", 2708, 5278, 1433, 0),
        ("citeseer", "planetoid", 3327, 4552, 3703, 15),
        ("citeseer", "npz", 3312, 4536, 3703, 0),
    ],
)
def test_published_graphs(graph: str, form: str, nodes: int, edges: int, features: int, lost: int) -> None:
    federation = load_federation("planetoid", {"graph": graph, "form": form, "folder": str(PUBLISHED)})
    assert federation.num_clients == 5
    attributes = federation.attributes(federation.clients())
    assert sum(attributes["nodes"]) == nodes
    share = nodes // 5
    assert max(attributes["nodes"]) <= share + 20
    assert min(attributes["nodes"]) >= share - 80
    assert f"{nodes:,} nodes of {features:,} features" in federation.notes[0]
    assert f"{edges:,} edges" in federation.notes[0]
    counted = f"{nodes:,} nodes of {federation.task.classes} classes, "
    published = "as in Table 7" if graph == "cora" else "where Table 7 of FedHPO-Bench has 4,230 nodes"
    assert str(compared_with_table_7(federation)).startswith(counted + published)
    assert sum(attributes["edges"]) > 0.85 * edges  # communities keep most of them
    labels = [(federation.samples(np.arange(5), part, columns=["y"]).columns["y"] >= 0).sum() for part in PARTS]
    assert sum(labels) == nodes - lost
    np.testing.assert_allclose(np.array(labels) / sum(labels), [0.6, 0.2, 0.2], atol=0.002)


@needs_published
@pytest.mark.slow
def test_fedavg_learns_cora(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = fedarena.run(
        federation={"name": "planetoid", "graph": "cora", "folder": str(PUBLISHED)},
        model={"name": "gcn", "dropout": 0.5},
        local={"steps": 4, "lr": 0.25, "weight_decay": 0.0005},
        rounds=60,
        evaluation={"every": 60},
        progress=False,
    )
    assert result.summary["final"]["accuracy"] > 0.82


# Datasets of TUDataset's form: a path of four nodes, two triangles, and a single node.
TU_FILES = {
    "A": "1, 2\n2, 3\n3, 4\n5, 6\n6, 5\n6, 7\n7, 5\n8, 9\n9, 10\n10, 8\n",
    "graph_indicator": "1\n1\n1\n1\n2\n2\n2\n3\n3\n3\n4\n",
    "graph_labels": "-1\n1\n1\n-1\n",
    "node_labels": "3\n3\n3\n3\n0\n7\n7\n0\n0\n0\n7\n",
}


def write_tu(folder: Path, name: str, zipped: bool = False, **other: str | None) -> Path:
    files = {f"{name}/{name}_{kind}.txt": text for kind, text in {**TU_FILES, **other}.items() if text is not None}
    folder.mkdir(exist_ok=True)
    if zipped:
        with zipfile.ZipFile(folder / f"{name}.zip", "w") as archive:
            for path, text in files.items():
                archive.writestr(path, text)
        return folder
    (folder / name).mkdir()
    for path, text in files.items():
        (folder / path).write_text(text)
    return folder


def test_datasets_of_tu_are_clients(tmp_path: Path) -> None:
    folder = write_tu(tmp_path / "raw", "MUTAG", zipped=True)
    attributes = "".join(f"{node}.5, {-node}\n" for node in range(11))
    write_tu(folder, "own", graph_labels="5\n3\n9\n3\n", node_labels=None, node_attributes=attributes)
    options = {"folder": str(folder), "train_fraction": 1.0, "validation_fraction": 0.0}
    federation = load_federation("graph_tasks", options)
    assert federation.client_ids([0, 1]) == ["MUTAG", "own"]
    assert federation.task.classes == 3
    assert federation.attributes([0, 1])["features"].tolist() == [3, 2]
    assert federation.columns["x"].shape == (4, 3)
    first = federation.samples([0], "train").columns
    assert sorted(first["y"].tolist()) == [0, 0, 1, 1]
    by_size = {
        tuple(map(tuple, pairs[(pairs != 4).all(1)].tolist())): x
        for pairs, x in zip(first["edges"], first["x"], strict=True)
    }
    triangle = ((0, 1), (0, 2), (1, 2), (0, 0), (1, 1), (2, 2))
    path = ((0, 1), (1, 2), (2, 3), (0, 0), (1, 1), (2, 2), (3, 3))
    assert set(by_size) == {triangle, path, ((0, 0),)}
    assert by_size[path].tolist() == [[0, 1, 0]] * 4  # all labelled 3, the second of 0, 3 and 7
    second = federation.samples([1], "train").columns
    assert sorted(second["y"].tolist()) == [0, 0, 1, 2]
    assert second["x"].dtype == np.float32
    assert [4.5, -4.0, 0.0] in second["x"].reshape(-1, 3).tolist()

    fewer = load_federation("graph_tasks", {**options, "most_nodes": 3, "datasets": ["MUTAG"]})
    assert fewer.num_samples == 3
    assert any("1 of the 4 graphs of MUTAG" in note for note in fewer.notes)
    kept = fewer.samples([0]).columns["edges"]
    assert {tuple(map(tuple, pairs[(pairs != 3).all(1)].tolist())) for pairs in kept} == {triangle, ((0, 0),)}


BAD_TU = {
    "lacks own_graph_labels.txt of the graphs own": {"graph_labels": None},
    "joins the nodes 4 and 5 of different graphs": {"A": "4, 5\n"},
    "has the node 11, but only 0 to 10 are nodes": {"A": "1, 12\n"},
    "must hold two nodes in every line, not 3": {"A": "1, 2, 3\n"},
    "one label for each of 4 graphs": {"graph_labels": "1\n2\n"},
    "must hold whole numbers with commas between them": {"A": "1, two\n"},
    "counted from 1, one graph after the other": {"graph_indicator": "1\n3\n" + "3\n" * 9},
    "has 2 lines for 11 nodes": {"node_labels": "1\n2\n"},
    "is empty": {"node_labels": ""},
}


@pytest.mark.filterwarnings("ignore:loadtxt")
@pytest.mark.parametrize("sentence", BAD_TU)
def test_tu_files_that_make_no_sense_are_refused(sentence: str, tmp_path: Path) -> None:
    folder = write_tu(tmp_path / "raw", "own", **BAD_TU[sentence])
    with pytest.raises(BadInputError, match=sentence):
        load_federation("graph_tasks", {"folder": str(folder)})


def test_datasets_that_are_not_there_are_refused(tmp_path: Path) -> None:
    folder = write_tu(tmp_path / "raw", "own")
    with pytest.raises(BadInputError, match=r"There is no dataset 'MUTAG' in .*; valid: own"):
        load_federation("graph_tasks", {"folder": str(folder), "datasets": ["MUTAG"]})
    write_tu(folder, "big", A="1, 2\n", graph_indicator="1\n1\n2\n2\n", graph_labels="0\n1\n", node_labels=None)
    with pytest.raises(BadInputError, match="All graphs of big have more than 1 nodes; choose a larger most_nodes"):
        load_federation("graph_tasks", {"folder": str(folder), "datasets": ["big"], "most_nodes": 1})


def test_the_stand_in_says_so_and_is_the_same_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_federation("graph_tasks_stand_in", {"most_nodes": 9})
    assert "stand-in" in first.notes[0]
    assert first.attributes(first.clients())["classes"].tolist() == [2, 2, 2, 6, 3]
    monkeypatch.setenv("FEDARENA_CACHE", str(tmp_path))
    again = load_federation("graph_tasks_stand_in", {"most_nodes": 9})
    assert again.path != first.path
    assert again.fingerprint == first.fingerprint
