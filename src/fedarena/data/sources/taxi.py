"""Taxi trajectories in Porto (ECML/PKDD 2015): where does a trip end, from its first minutes? A client is a taxi.

The publisher's train.csv has a row for every trip, with the positions every 15 seconds. FedScale's tarball has a file
for every taxi, train/20000589.csv, under the same heading of nine names, but with ten values in every row: the first
one, which has no name, is a row number of the script that wrote it, and is passed over.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from fedarena.core.errors import BadInputError
from fedarena.core.options import PathOption
from fedarena.core.outside_text import quoted
from fedarena.data.by_client.building import GROUP_COLUMNS, Form, build_from_rows, vectors
from fedarena.data.by_client.clients import choices
from fedarena.data.by_client.packed import PACKINGS, Heading, csv_rows
from fedarena.data.by_client.rows import Record
from fedarena.data.many_users.clients import PublishedGroups
from fedarena.data.raw.files import RawFile, RawFiles
from fedarena.data.registry import FEDERATIONS, StoreBuild, cached_source
from fedarena.data.sampling import Fraction, MinimumSamples
from fedarena.data.splits import PublishedSplit, Seed, TrainFraction, ValidationFraction
from fedarena.data.store.schema import AnyArray, ColumnSpec, TaskSpec

# The middle of the city, and how far apart a kilometre is in degrees there.
CENTRE = (-8.62, 41.16)
DEGREES_PER_KILOMETRE = (1 / 83.8, 1 / 111.2)
_FOLDERS = {"train": 0, "val": 1, "test": 2}


class TripFiles(RawFiles):
    """The publisher's table, or FedScale's folders of taxis."""

    def folders(self, given: str | None) -> dict[Path, int]:
        """FedScale's folders with the number of their group."""
        place = self.folder(given)
        found = {place / name: code for name, code in _FOLDERS.items() if (place / name).is_dir()}
        return found if any(code == 0 for code in found.values()) else {}

    def found(self, given: str | None) -> dict[str, Path]:
        """The folders, or a table of trips for training."""
        if folders := self.folders(given):
            return {path.name: path for path in folders}
        place = self.folder(given)
        names = [f"train*.csv{ending}" for ending in ("", *PACKINGS)]
        tables = sorted(path for name in names for path in place.glob(name)) if place.is_dir() else []
        return {path.name: path for path in tables}


FILES = TripFiles(
    "taxi",
    "the taxi trajectories of Porto",
    {"trips": RawFile("train.csv")},
    "https://archive.ics.uci.edu/dataset/339 has it; or FedScale's folders train and test (taxi_traj.tar.gz)",
    one_is_enough=True,
    tarballs=("taxi_traj.tar.gz",),
)


@FEDERATIONS.register("taxi")
@cached_source(version=1, reads=FILES)
def taxi(
    build: StoreBuild,
    *,
    folder: PathOption | None = None,
    points: Annotated[int, Field(ge=1, le=1000)] = 20,
    minimum_samples: MinimumSamples = 1,
    fraction: Fraction = 1.0,
    sampling_seed: Seed = 0,
    split: PublishedSplit = "published",
    train_fraction: TrainFraction | None = None,
    validation_fraction: ValidationFraction | None = None,
    split_seed: Seed | None = None,
) -> None:
    """Trips of taxis in `folder`: where one ends, from its first `points` positions, one every 15 seconds.

    Positions are kilometres east and north of the middle of Porto. Trips that are not longer than `points`, or of which
    positions are missing, are left out.
    """
    found = FILES.find(folder)
    folders = FILES.folders(folder)
    published, columns = None, {"x": pa.binary(), "y": pa.binary()}
    if folders:
        names = {code: path for path, code in folders.items()}
        published = PublishedGroups(lambda group, line: f"line {line:,} of a file in {names[group]}", len(names))
        files = [path for place in folders for path in sorted(place.glob("*.csv"))]
        columns = {**GROUP_COLUMNS, **columns}
    else:
        files = list(found.values())
    task = TaskSpec(kind="regression", classes=2, label_names=("kilometres east", "kilometres north"))
    build_from_rows(
        build,
        files,
        lambda path: _trips(path, points, folders.get(path.parent)),
        columns,
        choices(minimum_samples, fraction, sampling_seed, split, train_fraction, validation_fraction, split_seed),
        Form(
            task,
            {"x": ColumnSpec(dtype="float32", shape=(points, 2)), "y": ColumnSpec(dtype="float32", shape=(2,))},
            lambda rows: {"x": vectors(rows, "x", "float32", (points, 2)), "y": vectors(rows, "y", "float32", (2,))},
            (f"Trips of at most {points} positions, or with missing ones, are left out.",),
        ),
        published,
        order="in_order",
    )


def _trips(path: Path, points: int, group: int | None) -> Iterator[Record]:
    rows = csv_rows(path)
    _, names, _ = next(rows, (1, [], 0.0))
    heading = Heading(path, names)
    taxi_id, missing, line_of_points = (heading.place(name) for name in ("TAXI_ID", "MISSING_DATA", "POLYLINE"))
    for line, values, done in rows:
        where = f"{path}, line {line:,}"
        # FedScale's files have a number without a name in front of every row.
        own = values[1:] if len(values) == len(names) + 1 else values
        heading.check(line, own)
        if not own[taxi_id]:
            raise BadInputError(f"{where} has no TAXI_ID")
        positions = _positions(own[line_of_points], where)
        if own[missing] == "True" or len(positions) <= points:
            continue
        kilometres = ((positions - CENTRE) / DEGREES_PER_KILOMETRE).astype(np.float32)
        begin, end = kilometres[:points].tobytes(), kilometres[-1].tobytes()
        yield Record(own[taxi_id], ((begin, end) if group is None else (group, line, begin, end)), done)


def _positions(text: str, where: str) -> AnyArray:
    try:
        found: Any = np.array(json.loads(text), dtype=np.float64)
    except (ValueError, TypeError, RecursionError):
        found = None
    if found is not None and found.size == 0:
        return np.zeros((0, 2))
    if found is None or found.ndim != 2 or found.shape[1] != 2 or not np.isfinite(found).all():
        raise BadInputError(f"{where}: POLYLINE must be a list of [longitude, latitude], not {quoted(text)}")
    values: AnyArray = found
    return values
