"""Charades (Sigurdsson et al., 2016): what people do at home, in videos of themselves; a client is a subject.

The publisher's tables, Charades_v1_train.csv and Charades_v1_test.csv, have a video in each row with its subject and
the actions in it (``c092 11.90 21.20;…``); of 157 actions any number can be there. Videos are not read: what is read
are the publisher's frames (folder Charades_v1_rgb, ``ID/ID-000001.jpg``) or features (folders such as
Charades_v1_features_rgb, ``ID/ID-000001.txt``). The tables have 267 subjects, FedScale counts 266 clients.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from fedarena.core.errors import BadInputError
from fedarena.core.options import PathOption
from fedarena.core.outside_text import quoted
from fedarena.data.by_client.building import Form, build_from_rows, vectors
from fedarena.data.by_client.clients import choices
from fedarena.data.by_client.frames import Frames, sampled_features, sampled_frames
from fedarena.data.by_client.packed import table_rows
from fedarena.data.by_client.pictures import Size
from fedarena.data.by_client.rows import Record
from fedarena.data.raw.files import RawFile, RawFiles
from fedarena.data.registry import FEDERATIONS, StoreBuild, cached_source
from fedarena.data.sampling import Fraction, MinimumSamples
from fedarena.data.splits import PublishedSplit, Seed, TrainFraction, ValidationFraction
from fedarena.data.store.schema import AnyArray, ColumnSpec, TaskSpec

ACTIONS = 157
_ACTION = re.compile(r"c(\d{3}) [0-9.]+ [0-9.]+")
_FRAMES = "Charades_v1_rgb"


class VideoFiles(RawFiles):
    """The tables; frames or features are looked for when they are needed."""

    def contents(self, given: str | None) -> Path:
        """The folder of frames, or else the first one of features."""
        place = self.folder(given)
        features = sorted(path for path in place.glob("Charades_v1_features_*") if path.is_dir())
        found = [place / _FRAMES] if (place / _FRAMES).is_dir() else features
        if not found:
            raise BadInputError(f"{place} lacks the folder {_FRAMES}, or one of features, Charades_v1_features_rgb")
        return found[0]


FILES = VideoFiles(
    "charades",
    "Charades",
    {name: RawFile(name) for name in ("Charades_v1_train.csv", "Charades_v1_test.csv")},
    f"and the folder {_FRAMES} or one of features beside them; https://prior.allenai.org/projects/charades has them",
    one_is_enough=True,
)


@FEDERATIONS.register("charades")
@cached_source(version=1, reads=FILES)
def charades(
    build: StoreBuild,
    *,
    folder: PathOption | None = None,
    frames: Frames = 4,
    size: Size = 64,
    minimum_samples: MinimumSamples = 1,
    fraction: Fraction = 1.0,
    sampling_seed: Seed = 0,
    split: PublishedSplit = "published",
    train_fraction: TrainFraction | None = None,
    validation_fraction: ValidationFraction | None = None,
    split_seed: Seed | None = None,
) -> None:
    """Videos of people at home, of which the actions are to be told, from the files in `folder`; a client is a subject.

    Of every video so many `frames` are taken, evenly spread: pictures of `size` x `size` pixels, one behind the other
    as channels, or, where there are features, the mean of theirs. Subjects are divided anew, because the published
    tables divide them, too, but have some in both.
    """
    found = FILES.find(folder)
    contents = FILES.contents(folder)
    if contents.name == _FRAMES:
        column = ColumnSpec(dtype="uint8", shape=(3 * frames, size, size))
    else:
        column = ColumnSpec(dtype="float32", shape=(_width(contents),))

    def look(name: str, where: str) -> AnyArray:
        if contents.name == _FRAMES:
            return sampled_frames(contents / name, frames, size, where)
        return sampled_features(contents / name, frames, column.shape[0], where)

    def samples(rows: pa.Table) -> dict[str, AnyArray]:
        videos = rows.column("video").to_pylist()
        x = np.stack([look(name, f"The video {name}") for name in videos])
        return {"x": x, "y": vectors(rows, "labels", "uint8", (ACTIONS,))}

    build_from_rows(
        build,
        list(found.values()),
        lambda path: _videos(path, contents),
        {"video": pa.string(), "labels": pa.binary()},
        choices(minimum_samples, fraction, sampling_seed, split, train_fraction, validation_fraction, split_seed),
        Form(
            TaskSpec(kind="multi_label", classes=ACTIONS, label_names=_names(FILES.folder(folder))),
            {"x": column, "y": ColumnSpec(dtype="uint8", shape=(ACTIONS,))},
            samples,
        ),
    )


def _videos(path: Path, contents: Path) -> Iterator[Record]:
    heading, rows = table_rows(path)
    name, subject, actions = (heading.place(column) for column in ("id", "subject", "actions"))
    for row in rows:
        where = f"{path}, line {row.line:,}"
        video = row.values[name]
        if not video.isalnum() or not row.values[subject]:
            raise BadInputError(f"{where} must have the id of a video and a subject")
        if not (contents / video).is_dir():
            raise BadInputError(f"{where} names the video {video}, but there is no folder {contents / video}")
        labels = np.zeros(ACTIONS, dtype=np.uint8)
        for action in filter(None, row.values[actions].split(";")):
            found = _ACTION.fullmatch(action.strip())
            if found is None or int(found[1]) >= ACTIONS:
                raise BadInputError(
                    f"{where}: {quoted(action)} must be an action of c000 to c{ACTIONS - 1}, and two times"
                )
            labels[int(found[1])] = 1
        yield Record(row.values[subject], (video, labels.tobytes()), row.done)


def _width(contents: Path) -> int:
    """How many numbers features have."""
    first = next((path for path in sorted(contents.rglob("*.txt"))), None)
    if first is None:
        raise BadInputError(f"{contents} has no features: no file that ends with .txt")
    return len(first.read_bytes().split())


def _names(folder: Path) -> tuple[str, ...] | None:
    """What the actions are called, if the publisher's list is there."""
    path = folder / "Charades_v1_classes.txt"
    if not path.is_file():
        return None
    names = [line.partition(" ")[2].strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if len(names) != ACTIONS:
        raise BadInputError(f"{path} has {len(names)} actions; there are {ACTIONS}")
    return tuple(names)
