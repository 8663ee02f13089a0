"""Cora, CiteSeer and PubMed: papers that cite each other, by what they are about, cut into communities.

The three graphs of FedHPO-Bench (Wang et al., 2023, appendix D), which divides each into five subgraphs as
FederatedScope-GNN does. Its Table 7 gives 4,230 nodes for CiteSeer, which is another version of that graph (that of
CitationFull); Planetoid's, which its code loads, has 3,327.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from fedarena.core.errors import BadInputError
from fedarena.core.options import PathOption
from fedarena.core.streams import generator
from fedarena.data.graphs.communities import owners_by_community
from fedarena.data.graphs.graph import Graph
from fedarena.data.graphs.planetoid import PIECES, read_npz, read_planetoid
from fedarena.data.graphs.subgraphs import ATTRIBUTES, Subgraphs
from fedarena.data.raw.files import RawFile, RawFiles
from fedarena.data.registry import FEDERATIONS, StoreBuild, cached_source
from fedarena.data.splits import Seed, Split, TrainFraction, ValidationFraction

GraphName = Literal["cora", "citeseer", "pubmed"]
Form = Literal["any", "planetoid", "npz"]
# How a graph is cut: by its communities, or nodes at random.
By = Literal["community", "random"]

GRAPHS: tuple[GraphName, ...] = ("cora", "citeseer", "pubmed")
_PLANETOID = "https://raw.githubusercontent.com/kimiyoung/planetoid/master/data"
_NPZ = "https://raw.githubusercontent.com/shchur/gnn-benchmark/master/data/npz"
_CHECKSUMS = {
    "ind.cora.allx": "9419ba2f26f5c35243db64aba110e0f35a04851609e0dc5433450676ca6b8543",
    "ind.cora.ally": "2b998f5cc7fedc86e7f97ca2498f47a1ffc1462c29e2d578b23bf3f62b6e7d71",
    "ind.cora.tx": "b9afbaa4a400df991f6f02ef677e1e44da55ffc04801fd02f9e673987829226a",
    "ind.cora.ty": "41f5ac76596a1699cc33f53084a2419e92961c42bb75f36fc38e616d348532ad",
    "ind.cora.test.index": "297ce89af2b51a6a194181c7dbe1796c6a1cf9cd9349a88383b1b1e227867875",
    "ind.cora.graph": "58f13302f39dde8852dad6fe6d15b89b077b6d7f837626bce671ef80344b383d",
    "ind.citeseer.allx": "2ac30345d95c9ec933a817ee0bdd6a5f077f8c184a20e696910192d534414668",
    "ind.citeseer.ally": "f704b2d986dde6c2669934de1f3ae5696a6cf9455c0f6b2646a2d135ea0a1c95",
    "ind.citeseer.tx": "539a8906a2da97628d212f2fdd668c109a8b3f0d36574b59e5d3fd5b5303da21",
    "ind.citeseer.ty": "55e5bd1ba1e733a04598753ad1a8d57957f4b8f89e74519f41f4f4938767e4ce",
    "ind.citeseer.test.index": "2af990671580b6b2df5d158d1038f8292e30c9cd821b5453f399659b25b723d4",
    "ind.citeseer.graph": "d79a4ef9d3e7169aee8946145f6b7306e35bc79bffad26346cfb94e10e9912a7",
    "cora.npz": "068e22d90c3849b4057dfb05851741428992af058efcd4e7ebb4186f3d581de2",
    "citeseer.npz": "280278b21b434c047922e8389518861416fb3ad39389c27865ff0e6bbb0aaab7",
}
# Nodes in Planetoid's files, and what Table 7 of FedHPO-Bench says.
_NODES = {"cora": 2_708, "citeseer": 3_327, "pubmed": 19_717}
_TABLE_7 = {"cora": 2_708, "citeseer": 4_230, "pubmed": 19_717}


def _file(name: str, address: str) -> RawFile:
    checksum = _CHECKSUMS.get(name)
    return RawFile(name, None if checksum is None else f"sha256:{checksum}", f"{address}/{name}")


class PlanetoidFiles(RawFiles):
    """The files of all three graphs, in both forms; a graph needs all of one form."""

    def of_graph(self, given: str | None, graph: GraphName, form: Form) -> dict[str, Path]:
        """The files of one graph by their keys; Planetoid's are preferred."""
        found = self.find(given)
        pickles, npz = [f"ind.{graph}.{piece}" for piece in PIECES], [f"{graph}.npz"]
        wanted = {"any": [pickles, npz], "planetoid": [pickles], "npz": [npz]}[form]
        for keys in wanted:
            if all(key in found for key in keys):
                return {key: found[key] for key in keys}
        missing = [key for key in wanted[0] if key not in found]
        raise BadInputError(
            f"{self.folder(given)} lacks {', '.join(missing)} of the graph {graph}; {self._needed(given)}"
        )

    def to_fetch(self, given: str | None) -> list[RawFile]:
        """Planetoid's files of the graphs that are not there in either form."""
        found = self.found(given)
        return [
            self.files[f"ind.{graph}.{piece}"]
            for graph in GRAPHS
            for piece in PIECES
            if f"{graph}.npz" not in found and f"ind.{graph}.{piece}" not in found
        ]

    def _needed(self, given: str | None) -> str:
        pieces = ", ".join(f"ind.GRAPH.{piece}" for piece in PIECES)
        where = "" if given is None else f" folder={given}"
        return (
            f"it must hold {pieces}, or else GRAPH.npz, where GRAPH is {', '.join(GRAPHS[:-1])} or {GRAPHS[-1]}; "
            f"{self.advice}; fedarena data prepare {self.federation}{where} --download fetches those of Planetoid"
        )


FILES = PlanetoidFiles(
    "planetoid",
    "Planetoid",
    {name: _file(name, _PLANETOID) for graph in GRAPHS for name in (f"ind.{graph}.{piece}" for piece in PIECES)}
    | {f"{graph}.npz": _file(f"{graph}.npz", _NPZ) for graph in GRAPHS},
    "they are in https://github.com/kimiyoung/planetoid, and the others in https://github.com/shchur/gnn-benchmark",
    one_is_enough=True,
    summary=f"ind.GRAPH.* and GRAPH.npz, GRAPH being {', '.join(GRAPHS[:-1])} or {GRAPHS[-1]},",
)


@FEDERATIONS.register("planetoid")
@cached_source(version=1, reads=FILES)
def planetoid(
    build: StoreBuild,
    *,
    graph: GraphName = "cora",
    folder: PathOption | None = None,
    form: Form = "any",
    clients: Annotated[int, Field(ge=1, le=10_000)] = 5,
    by: By = "community",
    seed: Seed = 0,
    train_fraction: TrainFraction = 0.6,
    validation_fraction: ValidationFraction = 0.2,
    verify: bool = True,
) -> None:
    """Papers that cite each other, by their subject: the graphs Cora, CiteSeer and PubMed, cut into subgraphs.

    The files are in `folder`, in Planetoid's `form` or in that of Shchur et al. (npz); without a folder they are looked
    for in the cache, `fedarena data list` says where. Subgraphs are made of communities, or of nodes at random (`by`).
    A client has a sample for each part: its whole graph, with the labels of its nodes of that part.
    """
    division = Split("within_client", train_fraction, validation_fraction, seed)
    paths = FILES.of_graph(folder, graph, form)
    if verify:
        FILES.check(paths, lambda done: build.progress(0.1 * done, "Checking"))
    build.progress(0.1, "Reading")
    read = _read(graph, paths)
    if clients > read.nodes:
        raise BadInputError(f"federation.clients is {clients:,}, but {graph} has only {read.nodes:,} nodes")
    build.progress(0.3, "Finding communities")
    if by == "community":
        owners = owners_by_community(read.edges, read.nodes, clients, seed)
    else:
        owners = generator(seed, "planetoid/owners").permutation(read.nodes) % clients
    subgraphs = Subgraphs(read, owners, division.fractions, seed)
    notes = (_about_size(graph, read), *subgraphs.notes)
    with build.writer(task=subgraphs.task, columns=subgraphs.columns, attributes=ATTRIBUTES, notes=notes) as writer:
        for client, subgraph in enumerate(subgraphs):
            writer.add_client(f"subgraph-{client}", group="train", attributes=subgraph.attributes, **subgraph.parts)
            build.progress(0.6 + 0.4 * client / clients, "Writing")


def _read(graph: str, paths: Mapping[str, Path]) -> Graph:
    if f"{graph}.npz" in paths:
        return read_npz(paths[f"{graph}.npz"])
    return read_planetoid({key.removeprefix(f"ind.{graph}."): path for key, path in paths.items()})


def _about_size(graph: str, read: Graph) -> str:
    """How large the graph is, beside what was published."""
    published = f"Table 7 of FedHPO-Bench has {_TABLE_7[graph]:,} nodes"
    if read.nodes == _TABLE_7[graph]:
        published = "as many nodes as in Table 7 of FedHPO-Bench"
    elif graph == "citeseer" and read.nodes == _NODES[graph]:
        published += ", those of another version of CiteSeer; these are Planetoid's"
    elif graph == "citeseer":
        published += f" and Planetoid {_NODES[graph]:,}, which are other versions of CiteSeer"
    features, edges = read.features.shape[1], len(read.edges)
    has = f"{read.nodes:,} nodes of {features:,} features in {read.classes} classes and {edges:,} edges"
    return f"{graph} has {has}; {published}."
