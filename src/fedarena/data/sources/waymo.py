"""Waymo's motion data (Ettinger et al., 2021): where road users will be; a client is a scenario.

The publisher's record files, ``training.tfrecord-00000-of-01000`` and so on, have scenarios of 91 moments, ten in a
second, with all cars, pedestrians and cyclists that were seen. They are read without TensorFlow. FedScale's tarball has
maps alone and no loader, and what these look like is not said, so the publisher's files are needed. Its count of
496,358 clients is that of scenarios for training and validation.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
from pydantic import Field

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.core.options import PathOption
from fedarena.data.by_client.building import GROUP_COLUMNS, Form, build_from_rows, vectors
from fedarena.data.by_client.clients import choices
from fedarena.data.by_client.rows import Record
from fedarena.data.by_client.tfrecords import double, fields, tf_records
from fedarena.data.many_users.clients import PublishedGroups
from fedarena.data.raw.files import RawFile, RawFiles
from fedarena.data.registry import FEDERATIONS, StoreBuild, cached_source
from fedarena.data.sampling import Fraction, MinimumSamples
from fedarena.data.splits import PublishedSplit, Seed, TrainFraction, ValidationFraction
from fedarena.data.store.schema import AnyArray, ColumnSpec, TaskSpec

# Numbers of fields in Waymo's Scenario, Track and ObjectState.
_TRACKS, _SCENARIO_ID, _NOW = 2, 5, 10
_STATES = 3
_X, _Y, _VALID = 2, 3, 11
# A state with all of its fields: three places, six sizes and speeds, and whether it is valid, each after its key.
_USUAL = struct.Struct("<" + 3 * "Bd" + 6 * "Bf" + "BB")
_USUAL_KEYS = (0x11, 0x19, 0x21, 0x2D, 0x35, 0x3D, 0x45, 0x4D, 0x55, 0x58)
_GROUPS = {"training": 0, "train": 0, "validation": 1, "val": 1, "testing": 2, "test": 2}  # places of groups
_TRAVELLED_METRES = 1.0  # less is parked


class ScenarioFiles(RawFiles):
    """Any number of record files, also in folders by group."""

    def groups(self, given: str | None) -> dict[Path, int]:
        """Every file with the place of its group."""
        place = self.folder(given)
        paths = sorted(path for path in place.rglob("*tfrecord*") if path.is_file()) if place.is_dir() else []
        found = {}
        for path in paths:
            names = (path.name.partition(".")[0].partition("_")[0], path.parent.name)
            codes = [_GROUPS[name] for name in names if name in _GROUPS]
            found[path] = codes[0] if codes else 0
        return found

    def found(self, given: str | None) -> dict[str, Path]:
        """All of them."""
        return {str(path.relative_to(self.folder(given))): path for path in self.groups(given)}


FILES = ScenarioFiles(
    "waymo",
    "Waymo's motion data",
    {"scenarios": RawFile("training.tfrecord-*")},
    "with validation.tfrecord-* if they are wanted; https://waymo.com/open has them",
    one_is_enough=True,
)


@FEDERATIONS.register("waymo")
@cached_source(version=1, reads=FILES)
def waymo(
    build: StoreBuild,
    *,
    folder: PathOption | None = None,
    future: Annotated[int, Field(ge=1, le=80)] = 30,
    every: Annotated[int, Field(ge=1, le=80)] = 5,
    minimum_samples: MinimumSamples = 1,
    fraction: Fraction = 1.0,
    sampling_seed: Seed = 0,
    split: PublishedSplit = "published",
    train_fraction: TrainFraction | None = None,
    validation_fraction: ValidationFraction | None = None,
    split_seed: Seed | None = None,
) -> None:
    """Ways of road users: the next positions from the last eleven, from the record files in `folder`.

    A sample is somebody who moves and was seen at all of eleven moments of the first second and of the `future` ones
    (tenths of a second). Positions are metres from where that was at the last moment of the past, along and across the
    way that was taken until then; `every`-th ones of the future are to be predicted. A client is a scenario.
    """
    FILES.find(folder)
    if future % every:
        raise BadInputError(f"federation.future, {future}, must be a multiple of federation.every, {every}")
    groups = FILES.groups(folder)
    published = PublishedGroups(lambda group, line: f"record {line:,} of its files")
    past, numbers = _PAST, 2 * future // every
    build_from_rows(
        build,
        list(groups),
        lambda path: _ways(path, groups[path], future, every),
        {**GROUP_COLUMNS, "x": pa.binary(), "y": pa.binary()},
        choices(minimum_samples, fraction, sampling_seed, split, train_fraction, validation_fraction, split_seed),
        Form(
            TaskSpec(kind="regression", classes=numbers),
            {"x": ColumnSpec(dtype="float32", shape=(past, 2)), "y": ColumnSpec(dtype="float32", shape=(numbers,))},
            lambda rows: {
                "x": vectors(rows, "x", "float32", (past, 2)),
                "y": vectors(rows, "y", "float32", (numbers,)),
            },
        ),
        published,
    )


_PAST = 11  # moments


def _ways(path: Path, group: int, future: int, every: int) -> Iterator[Record]:
    for number, content, done in tf_records(path):
        where = f"{path}, record {number:,}"
        name, now, tracks = "", _PAST - 1, []
        for field, value in fields(content, where):
            if field == _SCENARIO_ID and isinstance(value, bytes):
                name = value.decode("utf-8", "replace")
            elif field == _NOW and isinstance(value, int):
                now = value
            elif field == _TRACKS and isinstance(value, bytes):
                tracks.append(value)
        if not name:
            raise BadInputError(f"{where} is no scenario: it has no id")
        for track in tracks:
            positions = _positions(track, where)[now + 1 - _PAST : now + 1 + future]
            if now + 1 < _PAST or len(positions) < _PAST + future or not np.isfinite(positions).all():
                continue
            if (way := _seen_from_now(positions)) is not None:
                ahead = way[_PAST:][every - 1 :: every]
                yield Record(name, (group, number, way[:_PAST].tobytes(), ahead.tobytes()), done)


def _positions(track: bytes, where: str) -> AnyArray:
    """Positions at all moments, not a number where somebody was not seen."""
    found: list[tuple[float, float]] = []
    for field, value in fields(track, where):
        if field != _STATES or not isinstance(value, bytes):
            continue
        if len(value) == _USUAL.size:
            usual = _USUAL.unpack(value)
            if usual[::2] == _USUAL_KEYS:  # as nearly all states are written; field by field takes ten times as long
                found.append((usual[1], usual[3]) if usual[-1] else (np.nan, np.nan))
                continue
        state = dict(fields(value, where))
        try:
            x, y = (double(state.get(axis, bytes(8))) for axis in (_X, _Y))
        except IndexError:
            raise DamagedFileError(f"{where} has a position that is no number") from None
        found.append((x, y) if state.get(_VALID) else (np.nan, np.nan))
    return np.array(found, dtype=np.float64).reshape(-1, 2)


def _seen_from_now(positions: AnyArray) -> AnyArray | None:
    """Positions from the last one of the past on, turned so that the way until then goes along the first axis."""
    now = positions[_PAST - 1]
    moved = now - positions[0]
    if np.linalg.norm(positions - now, axis=1).max() < _TRAVELLED_METRES:
        return None
    length = np.linalg.norm(moved)
    cosine, sine = moved / length if length > 0 else np.array([1.0, 0.0])
    turned: AnyArray = (positions - now) @ np.array([[cosine, -sine], [sine, cosine]])
    return turned.astype(np.float32)
