"""Seven tables of OpenML, those of FedHPO-Bench (Wang et al., 2023, Table 7), each divided into a few clients.

Bischl et al., "OpenML Benchmarking Suites" (2017). Tables are read as OpenML serves them, or as those published them
from whom it has them: UCI, KEEL and PROMISE. The label is the last column in all of them.

The published code of the paper leaves numbers as they are, so that amounts of money drown everything else. Here they
are normalized by the mean and standard deviation of training samples; ``standardize=false`` leaves them alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from fedarena.core.errors import BadInputError
from fedarena.core.options import PathOption
from fedarena.data.divided_by_labels import clients_by_labels, stratified_parts
from fedarena.data.partitioners.checks import Alpha, Clients, MinSamples
from fedarena.data.raw.files import RawFile, RawFiles
from fedarena.data.registry import FEDERATIONS, StoreBuild, cached_source
from fedarena.data.splits import Seed, Split, TrainFraction, ValidationFraction
from fedarena.data.store.schema import PARTS, IntArray
from fedarena.data.tables.files import TextForm, read_file
from fedarena.data.tables.labels import read_labels
from fedarena.data.tables.number_form import NumberForm
from fedarena.data.tables.options import TableOptions
from fedarena.data.tables.raw_table import RawTable
from fedarena.data.tables.storing import write_samples
from fedarena.data.tables.understanding import understand
from fedarena.data.tables.values import MissingMarks

Task = Literal[31, 53, 3917, 10101, 146818, 146821, 146822]
_DOWNLOADS = "https://www.openml.org/data/download"
_CLIENT, _PART = "fedarena client", "fedarena part"  # columns that are added to a table


@dataclass(frozen=True)
class OpenmlTable:
    """What is known of a table: its numbers and name at OpenML, and where its first publishers' form differs."""

    dataset: int  # its number at OpenML, where a task has another one
    name: str
    original: RawFile  # as UCI, KEEL or PROMISE publish it
    address: str | None  # of OpenML's file, below the folder of downloads
    columns: tuple[str, ...] | None = None  # if the original does not name them
    delimiter: str | None = None
    categorical: tuple[int, ...] = ()  # places of columns that are categories even if they look like numbers
    about_original: str | None = None  # a sentence on what is wrong with it

    @property
    def served(self) -> RawFile:
        """As OpenML serves it, under the names that it is saved by; no checksum is published."""
        others = (f"dataset_{self.dataset}_{self.name}.arff", f"{self.name}.csv", f"dataset_{self.dataset}.pq")
        url = None if self.address is None else f"{_DOWNLOADS}/{self.address}"
        return RawFile(f"{self.name}.arff", None, url, other_names=others)


_CREDIT_COLUMNS = (
    *("checking_status", "duration", "credit_history", "purpose", "credit_amount", "savings_status", "employment"),
    *("installment_commitment", "personal_status", "other_parties", "residence_since", "property_magnitude", "age"),
    *("other_payment_plans", "housing", "existing_credits", "job", "num_dependents", "own_telephone"),
    *("foreign_worker", "class"),
)
_VEHICLE_COLUMNS = (
    *("COMPACTNESS", "CIRCULARITY", "DISTANCE_CIRCULARITY", "RADIUS_RATIO", "PR.AXIS_ASPECT_RATIO"),
    *("MAX.LENGTH_ASPECT_RATIO", "SCATTER_RATIO", "ELONGATEDNESS", "PR.AXIS_RECTANGULARITY"),
    *("MAX.LENGTH_RECTANGULARITY", "SCALED_VARIANCE_MAJOR", "SCALED_VARIANCE_MINOR", "SCALED_RADIUS_OF_GYRATION"),
    *("SKEWNESS_ABOUT_MAJOR", "SKEWNESS_ABOUT_MINOR", "KURTOSIS_ABOUT_MAJOR", "KURTOSIS_ABOUT_MINOR"),
    *("HOLLOWS_RATIO", "Class"),
)
TABLES: dict[int, OpenmlTable] = {
    31: OpenmlTable(
        31,
        "credit-g",
        RawFile(
            "german.data.txt",
            "sha256:b21f3d81db8071257d5ff1deaeba1fd4303b62712e6fcc9715c7a86202cb5871",
            other_names=("german.data",),
        ),
        "31/dataset_31_credit-g.arff",
        _CREDIT_COLUMNS,
        " ",
        (0, 2, 3, 5, 6, 8, 9, 11, 13, 14, 16, 18, 19),
    ),
    53: OpenmlTable(
        54,
        "vehicle",
        RawFile("vehicle_xaa-xai.dat", "sha256:51322ad269d09bc0e36daeaa69f67855cee173443877570398f998637a373d7c"),
        "54/dataset_54_vehicle.arff",
        _VEHICLE_COLUMNS,
        " ",
    ),
    3917: OpenmlTable(
        1067,
        "kc1",
        RawFile("kc1.arff.txt", "sha256:1a125255ef1cb20afabfc890c6d779a1987f5c080a2fa1f057a7307a94a216d6"),
        "53950/kc1.arff",
    ),
    10101: OpenmlTable(
        1464,
        "blood-transfusion-service-center",
        RawFile("transfusion.data", "sha256:96e7e6747da7e9a599ecbe351c78feec86498ed7a662066dbb2e113919fe6359"),
        "1586225/php0iVrYT",
    ),
    146818: OpenmlTable(
        40981,
        "Australian",
        RawFile("australian.dat", "sha256:b698fb17b7204fcac8dfcdaaf4b730bfa4bd518ba7e6cad0cbf5cf7d2e2f35a5"),
        "18151910/phpelnJ6y",
        categorical=(0, 3, 4, 5, 7, 8, 10, 11),
        about_original="In KEEL's australian.dat, A2, A3 and A7 have lost their decimal points (22.08 is 2208 there); "
        "OpenML's Australian.arff has them.",
    ),
    146821: OpenmlTable(
        40975,
        "car",
        RawFile("car.dat", "sha256:70874c4c3bb31937444c2d4ef430c1a554bf15bace2f3ea941c7670ac1c090e6"),
        "18116966/php2jDIhh",
        categorical=(0, 1, 2, 3, 4, 5),
    ),
    146822: OpenmlTable(
        40984,
        "segment",
        RawFile("segment.dat", "sha256:9231acb3763c0f972e2fd80e988c26ead813df19d4d2c81918df12993c691840"),
        None,
    ),
}


class OpenmlFiles(RawFiles):
    """All tables in both forms; a task needs one file."""

    def to_fetch(self, given: str | None) -> list[RawFile]:
        """OpenML's files of all tables that are there in neither form."""
        found = self.found(given)
        lacking = [task for task in TABLES if str(task) not in found and f"{task} served" not in found]
        return [TABLES[task].served for task in lacking if TABLES[task].address is not None]

    def table(self, given: str | None, task: int) -> tuple[Path, bool]:
        """The file of a task, and whether it is as OpenML serves it, which is preferred."""
        found = self.find(given)
        for key, is_served in ((f"{task} served", True), (f"{task}", False)):
            if key in found:
                return found[key], is_served
        table = TABLES[task]
        raise BadInputError(
            f"{self.folder(given)} lacks the table of task {task}, {table.name}: {table.original.name} or "
            f"{table.served.name}, which https://www.openml.org/d/{table.dataset} has"
        )


FILES = OpenmlFiles(
    "openml",
    "OpenML's tables",
    {str(task): table.original for task, table in TABLES.items()}
    | {f"{task} served": table.served for task, table in TABLES.items()},
    "those that end in .arff are what https://www.openml.org/d/N serves, where N is "
    + ", ".join(f"{table.dataset} for {table.name}" for table in TABLES.values()),
    one_is_enough=True,
)


@FEDERATIONS.register("openml")
@cached_source(version=1, reads=FILES)
def openml(
    build: StoreBuild,
    *,
    task: Task = 31,
    folder: PathOption | None = None,
    clients: Clients = 5,
    alpha: Alpha = 0.5,
    min_samples: MinSamples = 10,
    seed: Seed = 0,
    standardize: bool = True,
    train_fraction: TrainFraction = 0.8,
    validation_fraction: ValidationFraction = 0.1,
    verify: bool = True,
) -> None:
    """One of seven tables of OpenML by its task: credit-g, vehicle, kc1, blood-transfusion, Australian, car, segment.

    The files are in `folder`, as OpenML or as their first publishers have them; without a folder they are looked for in
    the cache, `fedarena data list` says where. A category is an input of 0 and 1. Numbers are normalized by the mean
    and standard deviation of training samples, unless `standardize` says otherwise. Samples are divided class by class
    for training, validation and test; then training samples go to `clients` as the partitioner `balanced_dirichlet`
    says, such that each has `min_samples`, and the others follow: a client's labels are mixed alike in all parts.
    """
    division = Split("within_client", train_fraction, validation_fraction, seed)
    known = TABLES[task]
    path, is_served = FILES.table(folder, task)
    if verify and not is_served:
        known.original.check(path)
    build.progress(0.1, "Reading")
    form = TextForm() if is_served else TextForm(columns=known.columns, delimiter=known.delimiter)
    table = RawTable(columns := read_file(path, form), ((path.name, len(next(iter(columns.values())))),))
    *inputs, label = table.columns
    labels = _labels(table, label)
    parts = stratified_parts(labels, division.fractions, seed)
    owners = clients_by_labels(labels, parts, clients=clients, alpha=alpha, min_samples=min_samples, seed=seed)
    options = _options(label, [inputs[place] for place in known.categorical], standardize)
    understood = understand(_with_division(table, owners, parts), options, NumberForm(), lambda done: None)
    task_spec = understood.labels.task(understood.clients.training_rows(), None)
    about = () if is_served or known.about_original is None else (known.about_original,)
    samples = {**understood.inputs.columns, "y": understood.labels.spec}
    with build.writer(task=task_spec, columns=samples, notes=(*about, *understood.notes)) as writer:
        write_samples(understood, writer, lambda done: build.progress(0.5 + 0.5 * done, "Writing"))


def _labels(table: RawTable, label: str) -> IntArray:
    marks = MissingMarks({}, list(table.columns), NumberForm())
    found = read_labels(table, (label,), "classification", None, marks, table.where)
    if found.missing.any():
        row = int(np.argmax(found.missing))
        raise BadInputError(f"{table.pieces[0][0]} has no label in {table.where(row)}.")
    labels: IntArray = found.y
    return labels


def _with_division(table: RawTable, owners: IntArray, parts: IntArray) -> RawTable:
    """The table with columns that say whose a sample is and what it is for; clients are numbered by their first."""
    present, first, owner = np.unique(owners, return_index=True, return_inverse=True)
    number = np.empty(len(present), dtype=np.int64)
    number[np.argsort(first, kind="stable")] = np.arange(len(present))
    ids = pa.chunked_array([pa.array([f"client-{client:04d}" for client in number[owner].tolist()])])
    names = pa.chunked_array([pa.array([PARTS[part] for part in parts.tolist()])])
    return RawTable({**table.columns, _CLIENT: ids, _PART: names}, table.pieces)


def _options(label: str, categorical: Sequence[str], standardize: bool) -> TableOptions:
    unused: dict[str, Any] = dict.fromkeys(
        ("partition", "features", "label_separator", "split", "train_fraction", "validation_fraction", "split_seed")
    )
    return TableOptions.checked(
        label=label,
        client=_CLIENT,
        part=_PART,
        group=None,
        drop=(),
        attributes=(),
        categorical=list(categorical),
        categories="one_hot",
        task="classification",
        missing="refuse",
        indicators=False,
        na_values=(),
        normalize="global" if standardize else "none",
        order="shuffled",
        **unused,
    )
