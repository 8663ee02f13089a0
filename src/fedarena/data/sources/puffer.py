"""Puffer (Yan et al., 2020): how fast a connection will be, from how fast it was; a client is a session.

The publisher's ``video_sent_*.csv`` have a row for every piece of video that was sent: time (nanoseconds), session_id,
…, delivery_rate (bytes a second). Cooked traces, one file ``trace<session>_<index>`` for every stream with lines of a
time in seconds and a rate, are read as well. FedScale takes the first week of 2021 and calls its clients edge clients.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
from pydantic import Field

from fedarena.core.errors import BadInputError
from fedarena.core.options import PathOption
from fedarena.data.by_client.building import Form, build_from_rows, numbers, vectors
from fedarena.data.by_client.clients import choices
from fedarena.data.by_client.packed import members, number, table_rows
from fedarena.data.by_client.rows import Record
from fedarena.data.raw.files import RawFile, RawFiles
from fedarena.data.registry import FEDERATIONS, StoreBuild, cached_source
from fedarena.data.sampling import Fraction, MinimumSamples
from fedarena.data.splits import PublishedSplit, Seed, TrainFraction, ValidationFraction
from fedarena.data.store.schema import ColumnSpec, TaskSpec

_MEGABYTE = 1e6
_TRACE = re.compile(r"(?:^|/)trace[^/]+$")
_NAME = re.compile(r"trace(.+)_(-?\d+)(?:\.txt)?$")


class StreamFiles(RawFiles):
    """Tables of what was sent, or folders of cooked traces."""

    def found(self, given: str | None) -> dict[str, Path]:
        """All of them."""
        place = self.folder(given)
        if not place.is_dir():
            return {}
        tables = sorted(path for name in ("video_sent*.csv", "video_sent*.csv.gz") for path in place.glob(name))
        folders = [path for path in sorted(place.iterdir()) if path.is_dir() and path.name.startswith("cooked")]
        return {path.name: path for path in (tables or folders)}


FILES = StreamFiles(
    "puffer",
    "Puffer",
    {"sent": RawFile("video_sent_*.csv"), "traces": RawFile("cooked_traces")},
    "https://puffer.stanford.edu/results has the former; the latter is a folder of files trace<session>_<index>",
    one_is_enough=True,
)


@FEDERATIONS.register("puffer")
@cached_source(version=1, reads=FILES)
def puffer(
    build: StoreBuild,
    *,
    folder: PathOption | None = None,
    history: Annotated[int, Field(ge=1, le=1000)] = 8,
    stride: Annotated[int, Field(ge=1, le=1000)] = 1,
    minimum_samples: MinimumSamples = 1,
    fraction: Fraction = 1.0,
    sampling_seed: Seed = 0,
    split: PublishedSplit = "published",
    train_fraction: TrainFraction | None = None,
    validation_fraction: ValidationFraction | None = None,
    split_seed: Seed | None = None,
) -> None:
    """Throughput of video streams: the next value from the last `history` ones, from the files in `folder`.

    Values are megabytes a second; every `stride`-th place of a stream makes a sample. A client is a session,
    which may have several streams.
    """
    found = FILES.find(folder)
    task = TaskSpec(kind="regression", classes=1, label_names=("megabytes a second",))
    build_from_rows(
        build,
        list(found.values()),
        lambda path: _windows(_traces(path) if path.is_dir() else _sent(path), history, stride),
        {"x": pa.binary(), "y": pa.float32()},
        choices(minimum_samples, fraction, sampling_seed, split, train_fraction, validation_fraction, split_seed),
        Form(
            task,
            {"x": ColumnSpec(dtype="float32", shape=(history, 1)), "y": ColumnSpec(dtype="float32")},
            lambda rows: {"x": vectors(rows, "x", "float32", (history, 1)), "y": numbers(rows, "y", "float32")},
        ),
        order="in_order",
    )


Points = Iterator[tuple[str, str, float, float]]  # session, stream, rate, and how much of the file has been read


def _windows(points: Points, history: int, stride: int) -> Iterator[Record]:
    """A sample for every place of a stream that has enough before it; streams may be mixed with each other."""
    recent: dict[tuple[str, str], list[float]] = {}
    seen: dict[tuple[str, str], int] = {}
    for session, stream, rate, done in points:
        last = recent.setdefault((session, stream), [])
        if len(last) == history:
            place = seen.get((session, stream), 0)
            if place % stride == 0:
                yield Record(session, (np.array(last, np.float32).tobytes(), rate), done)
            seen[session, stream] = place + 1
            last.pop(0)
        last.append(rate)


def _sent(path: Path) -> Points:
    heading, rows = table_rows(path)
    session, index = heading.place("session_id"), heading.place("index")
    rate = heading.place("delivery_rate")
    for row in rows:
        if not row.values[session]:
            raise BadInputError(f"{path}, line {row.line:,} has no session_id")
        value = number(row.values[rate], "delivery_rate", f"{path}, line {row.line:,}")
        yield row.values[session], row.values[index], value / _MEGABYTE, row.done


def _traces(folder: Path) -> Points:
    for member in members(folder, _TRACE):
        named = _NAME.search(member.name.rpartition("/")[2])
        if named is None:
            raise BadInputError(f"{member.where} must be called trace<session>_<index>")
        for line, text in enumerate(member.content.decode("ascii", "replace").splitlines(), 1):
            values = text.split()
            if not values:
                continue
            where = f"{member.where}, line {line:,}"
            if len(values) != 2:
                raise BadInputError(f"{where} must be a time and a rate")
            yield named[1], named[2], number(values[1], "the rate", where), member.done
