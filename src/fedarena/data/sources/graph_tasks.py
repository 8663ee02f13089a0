"""Graph classification in which every client has a dataset, and so a task, of its own.

The Hetero problem of FedHPO-Bench (Wang et al., 2023, appendix D) is such a federation, from Graph-DC (Yao et al.,
"Federated Hetero-Task Learning", 2022): five clients with the datasets BACE, BBBP and ClinTox of MoleculeNet and
ENZYMES and PROTEINS of TUDataset, 6,760 graphs in 2 to 6 classes. Features and classes of clients have nothing to do
with each other, so each has an encoder and a classifier of its own, and they share what is in between.

The datasets of TUDataset are read as they are published. Those of MoleculeNet are published as formulas (SMILES) and
have to be written in the same form first. For who has no files at all there is `graph_tasks_stand_in`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import Field

from fedarena.core.errors import BadInputError
from fedarena.core.later import later
from fedarena.core.options import PathOption
from fedarena.core.registry import nearest
from fedarena.core.streams import generator
from fedarena.data.graphs.collection import ATTRIBUTES, CollectionFederation, GraphCollection
from fedarena.data.graphs.graph import undirected
from fedarena.data.graphs.tu_files import NEEDED, read_tu
from fedarena.data.raw.files import RawFile, RawFiles
from fedarena.data.registry import FEDERATIONS, StoreBuild, cached_source
from fedarena.data.splits import Seed, Split, TrainFraction, ValidationFraction

if TYPE_CHECKING:
    from scipy import sparse
else:
    sparse = later("scipy.sparse")

_ADDRESS = "https://www.chrsmrrs.com/graphkerneldatasets"
# Datasets of TUDataset that Graph-DC and FederatedScope use.
KNOWN = ("ENZYMES", "PROTEINS", "MUTAG", "BZR", "COX2", "DHFR", "PTC_MR", "AIDS", "NCI1", "DD")


class GraphTaskFiles(RawFiles):
    """Datasets in the form of TUDataset: known ones, and any other folder that holds one."""

    def found(self, given: str | None) -> dict[str, Path]:
        """All datasets that are there, by their names."""
        place = self.folder(given)
        known = super().found(given)
        if not place.is_dir():
            return known
        others = {
            path.parent.name: path.parent
            for path in sorted(place.glob("*/*_graph_indicator.txt"))
            if path.name == f"{path.parent.name}_graph_indicator.txt" and path.parent.name not in known
        }
        return known | others

    def to_fetch(self, given: str | None) -> list[RawFile]:
        """The two of the paper's datasets that are published in this form, if they are not there."""
        found = self.found(given)
        return [self.files[name] for name in KNOWN[:2] if name not in found]

    def _needed(self, given: str | None) -> str:
        files = ", ".join(f"DS_{kind}.txt" for kind in NEEDED)
        where = "" if given is None else f" folder={given}"
        return (
            f"it must hold datasets in the form of TUDataset, each a folder DS with {files} or DS.zip with the same; "
            f"{self.advice}; fedarena data prepare {self.federation}{where} --download fetches "
            f"{' and '.join(KNOWN[:2])}"
        )


FILES = GraphTaskFiles(
    "graph_tasks",
    "graph tasks",
    {name: RawFile(f"{name}.zip", None, f"{_ADDRESS}/{name}.zip", unpacked=name) for name in KNOWN},
    "they are on https://chrsmrrs.github.io/datasets",
    one_is_enough=True,
)


@FEDERATIONS.register("graph_tasks")
@cached_source(version=1, reads=FILES)
def graph_tasks(
    build: StoreBuild,
    *,
    folder: PathOption | None = None,
    datasets: tuple[str, ...] | None = None,
    most_nodes: Annotated[int, Field(ge=1, le=20_000)] = 200,
    seed: Seed = 0,
    train_fraction: TrainFraction = 0.8,
    validation_fraction: ValidationFraction = 0.1,
) -> None:
    """Graphs with labels, one of TUDataset's datasets per client: all that are in `folder`, or `datasets` by name.

    Without a folder they are looked for in the cache, `fedarena data list` says where. Graphs of more than `most_nodes`
    nodes are left out, because every graph takes the room of the largest.
    """
    division = Split("within_client", train_fraction, validation_fraction, seed)
    found = FILES.find(folder)
    chosen = datasets or tuple(sorted(found))
    for name in chosen:
        if name not in found:
            raise BadInputError(f"There is no dataset {name!r} in {FILES.folder(folder)}; {nearest(name, found)}")
    read, notes = [], []
    for number, name in enumerate(chosen):
        build.progress(0.5 * number / len(chosen), f"Reading {name}")
        whole = read_tu(name, found[name])
        kept = whole.with_at_most(most_nodes)
        if lost := len(whole.sizes) - len(kept.sizes):
            notes.append(
                f"{lost:,} of the {len(whole.sizes):,} graphs of {name} have more than most_nodes={most_nodes:,} nodes "
                "and were left out."
            )
        read.append(kept)
    _write(build, read, division, tuple(notes))


@dataclass(frozen=True)
class _MadeUp:
    """How the graphs of a client are made up: what its classes differ by."""

    features: int
    classes: int
    graphs: int


# As many features and classes as clients of the Hetero problem have, of every five.
_STAND_INS = (_MadeUp(12, 2, 150), _MadeUp(10, 2, 200), _MadeUp(8, 2, 150), _MadeUp(3, 6, 180), _MadeUp(5, 3, 110))


@FEDERATIONS.register("graph_tasks_stand_in")
@cached_source(version=1)
def graph_tasks_stand_in(
    build: StoreBuild,
    *,
    clients: Annotated[int, Field(ge=1, le=10_000)] = 5,
    most_nodes: Annotated[int, Field(ge=6, le=500)] = 24,
    seed: Seed = 0,
    train_fraction: TrainFraction = 0.8,
    validation_fraction: ValidationFraction = 0.1,
) -> None:
    """Made-up graphs in the place of `graph_tasks`, which needs files: a task of its own for every client.

    Graphs are rings with chords. Its class decides how many chords one has and which features its nodes like; a
    client's classes, features and sizes are its own. What is learned here says nothing about real molecules.
    """
    division = Split("within_client", train_fraction, validation_fraction, seed)
    made = [_make_up(f"stand-in-{client}", client, most_nodes, seed) for client in range(clients)]
    _write(build, made, division, ("These graphs are made up, a stand-in for published ones.",))


def _make_up(name: str, client: int, most_nodes: int, seed: int) -> GraphCollection:
    kind = _STAND_INS[client % len(_STAND_INS)]
    random = generator(seed, "graph_tasks_stand_in/client", client)
    labels = random.integers(kind.classes, size=kind.graphs)
    sizes = random.integers(5, most_nodes + 1, size=kind.graphs)
    starts = np.cumsum(sizes) - sizes
    likes = random.dirichlet(
        np.full(kind.features, 0.5), size=kind.classes
    )  # of every class, which features nodes have
    pairs, columns = [], []
    for label, size, start in zip(labels.tolist(), sizes.tolist(), starts.tolist(), strict=True):
        ring = np.stack([np.arange(size), (np.arange(size) + 1) % size], axis=1)
        chords = random.integers(size, size=(int(size * label / kind.classes), 2))
        pairs.append(start + np.concatenate([ring, chords]))
        columns.append(random.choice(kind.features, p=0.5 / kind.features + 0.5 * likes[label], size=size))
    nodes = int(sizes.sum())
    features = sparse.csr_matrix(
        (np.ones(nodes), (np.arange(nodes), np.concatenate(columns))), shape=(nodes, kind.features)
    )
    edges = undirected(np.concatenate(pairs), nodes, name)
    return GraphCollection(name, features, edges, sizes, labels, kind.classes)


def _write(build: StoreBuild, collections: list[GraphCollection], division: Split, notes: tuple[str, ...]) -> None:
    stored = CollectionFederation(collections)
    few = stored.notes if len(collections) <= len(_STAND_INS) * 4 else ()
    with build.writer(task=stored.task, columns=stored.columns, attributes=ATTRIBUTES, notes=(*notes, *few)) as writer:
        for client, collection in enumerate(collections):
            samples: Mapping[str, np.ndarray] = stored.samples(collection)
            parts = division.divide(client, "train", samples)
            writer.add_client(collection.name, group="train", attributes=stored.attributes(collection), **parts)
            build.progress(0.5 + 0.5 * client / len(collections), "Writing")
