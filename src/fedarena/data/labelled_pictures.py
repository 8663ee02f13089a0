"""Pictures with a class each and no owner, which partitioners deal out to clients: MNIST and its like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.data.divided_by_labels import following_training, stratified_parts, write_divided
from fedarena.data.raw.files import RawFiles, read_idx
from fedarena.data.registry import StoreBuild, assign_clients
from fedarena.data.splits import Split
from fedarena.data.store.schema import PARTS, AnyArray, ColumnSpec, IntArray, TaskSpec

DEFAULT_PARTITION: dict[str, Any] = {"name": "dirichlet"}


@dataclass(frozen=True)
class LabelledPictures:
    """Pictures ``[samples, channels, height, width]``, their classes, and which ones were published for testing."""

    x: AnyArray
    y: IntArray
    is_test: AnyArray

    @classmethod
    def of(cls, training: tuple[AnyArray, IntArray], test: tuple[AnyArray, IntArray]) -> LabelledPictures:
        """Both sets together."""
        is_test = np.repeat([False, True], [len(training[1]), len(test[1])])
        x, y = (np.concatenate(both) for both in zip(training, test, strict=True))
        return cls(x, y, is_test)


def check_labels(labels: AnyArray, classes: int, where: str) -> IntArray:
    """Labels as numbers of classes; raises if one is none."""
    values: IntArray = np.asarray(labels).astype(np.int64)
    wrong = np.flatnonzero((values < 0) | (values >= classes))
    if len(wrong):
        raise BadInputError(
            f"{where} has the label {values[wrong[0]]} for picture {wrong[0] + 1:,}; labels are 0 to {classes - 1}"
        )
    return values


def check_as_many(pictures: AnyArray, labels: Sequence[int] | AnyArray, pictures_in: str, labels_in: str) -> None:
    """Raises unless every picture has a label."""
    if len(pictures) != len(labels):
        raise BadInputError(f"{pictures_in} has {len(pictures):,} pictures and {labels_in} {len(labels):,} labels")


def read_idx_set(
    pictures: Path, labels: Path, classes: int, side: int = 28, first: int = 0
) -> tuple[AnyArray, IntArray]:
    """Grey pictures and their classes from a pair of IDX files; `first` is the label of the first class."""
    x, y = read_idx(pictures, 3), read_idx(labels, 1)
    if x.dtype != np.uint8 or x.shape[1:] != (side, side):
        raise BadInputError(f"{pictures} must hold pictures of {side} x {side} bytes, not {x.shape[1]} x {x.shape[2]}")
    check_as_many(x, y, str(pictures), str(labels))
    return x[:, None], check_labels(y.astype(np.int64) - first, classes, str(labels))


def read_four_idx_files(
    build: StoreBuild, files: RawFiles, folder: str | None, classes: int, verify: bool
) -> LabelledPictures:
    """MNIST's form: pictures and labels for training, and both for testing."""
    found = files.find(folder)
    if verify:
        files.check(found, lambda done: build.progress(0.2 * done, "Checking"))
    build.progress(0.2, "Reading")
    training, test = (
        read_idx_set(found[f"{part}_images"], found[f"{part}_labels"], classes) for part in ("train", "test")
    )
    return LabelledPictures.of(training, test)


def write_pictures(
    build: StoreBuild,
    pictures: LabelledPictures,
    partition: dict[str, Any],
    validation_fraction: float,
    split_seed: int,
    label_names: Sequence[str],
    notes: Sequence[str] = (),
) -> None:
    """Deals training pictures out by a partitioner; those for validation and for testing follow, class by class."""
    y = pictures.y
    fractions = Split("within_client", 1 - validation_fraction, validation_fraction, split_seed).fractions
    parts = np.full(len(y), PARTS.index("test"), dtype=np.int64)
    parts[~pictures.is_test] = stratified_parts(y[~pictures.is_test], fractions, split_seed)
    trained_by = assign_clients(partition, y[parts == PARTS.index("train")])
    owners = following_training(y, parts, trained_by, split_seed)
    build.progress(0.7, "Writing")
    task = TaskSpec(kind="classification", classes=len(label_names), label_names=tuple(label_names))
    columns = {"x": ColumnSpec(dtype="uint8", shape=pictures.x.shape[1:]), "y": ColumnSpec(dtype="int64")}
    with build.writer(task=task, columns=columns, notes=notes) as writer:
        write_divided(writer, {"x": pictures.x, "y": y}, owners, parts)
