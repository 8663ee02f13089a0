"""FLAIR as HDF5, which the authors' script and pfl-research's make of the files.

A user is a group ``/train/USER`` with the pixels of the photos, ``images`` of shape [photos, height, width, 3], their
``image_ids``, and their labels: in pfl-research's form as the places of ones in a table of photos and labels
(``labels_row`` and ``labels_col``, with the names of columns in ``/metadata/label_mapping``), in that of the authors as
text with bars between (``labels``). Fine labels have the same under names that begin with ``fine_grained_``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.core.outside_text import quoted
from fedarena.data.flair.checking import Picture, as_png
from fedarena.data.flair.photos import GROUP_OF_PARTITION, Labels, PhotoCollector, Photos, TwoPartitionsError
from fedarena.data.flair.pictures import Load, PictureSource, Piece
from fedarena.data.store.schema import GROUPS, AnyArray, Encoding, Group, IntArray

if TYPE_CHECKING:
    import h5py

PICTURES_AT_ONCE = 16  # which are not compressed
_DELIMITER = "|"


def need_h5py(federation: str) -> None:
    """Raises a sentence that says what to install."""
    try:
        import h5py  # noqa: F401
    except ImportError:
        raise BadInputError(
            f"The federation {federation!r} is made from an HDF5 file here, which needs h5py: "
            "pip install 'fedarena[hdf5]'"
        ) from None


def read_hdf5_photos(path: Path, labels: Labels, progress: Callable[[float], None]) -> Photos:
    """Who has which photos with which labels."""
    collector = PhotoCollector(labels)
    prefix = "fine_grained_" if labels == "fine" else ""
    with _opened(path) as file:
        parts = [name for name in file if name in GROUP_OF_PARTITION]
        if not parts:
            raise BadInputError(f"{path} is not FLAIR's HDF5: it has none of the groups train, val and test")
        _check_parts(file, parts, path)
        names = _label_names(file, prefix, path)
        total = sum(len(file[part]) for part in parts)
        done = 0
        for part in parts:
            group = GROUPS.index(GROUP_OF_PARTITION[part])
            for user in file[part]:
                where = f"/{part}/{user} in {path}"
                images, of_image = _user(file[part][user], prefix, names, where)
                try:
                    for image, its_labels in zip(images, of_image, strict=True):
                        collector.add(user, image, group, its_labels)
                except TwoPartitionsError as error:
                    raise BadInputError(f"{where}: {error}") from None
                done += 1
                if done % 256 == 0:
                    progress(done / total)
    return collector.finish(path)


def _check_parts(file: h5py.File, parts: Sequence[str], path: Path) -> None:
    """Raises unless every part is a group of users, and the only one of its kind."""
    seen: dict[Group, str] = {}
    for part in parts:
        if not hasattr(file[part], "keys"):
            raise BadInputError(f"/{part} in {path} is an array: the HDF5 file must have photos grouped by user")
        if (other := seen.setdefault(GROUP_OF_PARTITION[part], part)) != part:
            raise BadInputError(f"{path} has both /{other} and /{part}, which mean the same; leave one there")


def _label_names(file: h5py.File, prefix: str, path: Path) -> dict[int, str] | None:
    """The names of labels by their columns; None if labels are text."""
    entry = f"metadata/{prefix}label_mapping"
    if entry not in file:
        return None
    try:
        mapping = json.loads(file[entry][()])
        names = {int(column): str(name) for name, column in mapping.items()}
    except (ValueError, TypeError, AttributeError):
        names, mapping = {}, {}
    if not names or sorted(names) != list(range(len(mapping))):
        raise BadInputError(f"/{entry} in {path} must give every label a column of its own, from 0 on")
    return names


def _user(group: Any, prefix: str, names: Mapping[int, str] | None, where: str) -> tuple[list[str], list[list[str]]]:
    """The ids of somebody's photos, and the labels of each."""
    if not hasattr(group, "keys") or "images" not in group:
        raise BadInputError(f"{where} has no images: the HDF5 file must have photos grouped by user")
    if group["images"].ndim != 4 or group["images"].shape[3] != 3 or group["images"].dtype != np.uint8:
        shape = list(group["images"].shape)
        raise BadInputError(f"{where}/images must be bytes of shape [photos, height, width, 3], not of shape {shape}")
    number = len(group["images"])
    images = [f"{row}" for row in range(number)]
    if "image_ids" in group:
        images = [_text(name) for name in group["image_ids"][()]]
    of_image: list[list[str]] = [[] for _ in range(number)]
    rows, columns = f"{prefix}labels_row", f"{prefix}labels_col"
    if rows in group and columns in group and names is not None:
        if group[rows].shape != group[columns].shape:
            raise BadInputError(f"{where} has {group[rows].size} {rows} and {group[columns].size} {columns}")
        for row, column in zip(group[rows][()].tolist(), group[columns][()].tolist(), strict=True):
            if not 0 <= row < number or column not in names:
                raise BadInputError(f"{where}/{columns} points to photo {row} and label {column}, which do not exist")
            of_image[row].append(names[column])
    elif f"{prefix}labels" in group:
        texts = [_text(value) for value in np.atleast_1d(group[f"{prefix}labels"][()])]
        of_image = [[label for label in text.split(_DELIMITER) if label] for text in texts]
    else:
        raise BadInputError(f"{where} has no {rows} and {columns}, nor {prefix}labels: this is not FLAIR's HDF5")
    if not len(images) == len(of_image) == number:
        raise BadInputError(f"{where} has {number} images, {len(images)} image_ids and labels of {len(of_image)}")
    return images, of_image


class Hdf5Pictures(PictureSource):
    """The pixels in an HDF5 file, which become PNGs: they lose nothing a second time."""

    encoding: Encoding = "png"

    def __init__(self, path: Path, photos: Photos):
        self._path, self._photos = path, photos

    def pieces(self, rows: IntArray, position: int) -> Iterator[Piece]:
        """User by user, a few photos at a time."""
        photos, starts = self._photos, self._photos.starts
        owners = np.searchsorted(starts, rows, side="right") - 1
        with _opened(self._path) as file:
            part_of = {GROUPS.index(GROUP_OF_PARTITION[name]): name for name in file if name in GROUP_OF_PARTITION}
            for begin in range(0, len(rows), PICTURES_AT_ONCE):
                loads: list[Load] = []
                chunk = slice(begin, begin + PICTURES_AT_ONCE)
                for owner in np.unique(owners[chunk]).tolist():
                    where = f"/{part_of[int(photos.groups[owner])]}/{photos.users[owner]}"
                    images = file[where]["images"]
                    for row in rows[chunk][owners[chunk] == owner].tolist():
                        place = row - int(starts[owner])
                        loads.append(_encoder(row, images[place], f"{where}/images[{place}] in {self._path}"))
                yield Piece(loads, 0)

    def lacks(self, rows: IntArray) -> BadInputError:
        """Cannot be: every photo was counted in the file."""
        return BadInputError(f"{self._path} lacks {len(rows):,} photos that it lists")


def _encoder(row: int, pixels: AnyArray, where: str) -> Load:
    def load() -> Picture:
        return as_png(row, pixels, where)

    return load


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


@contextmanager
def _opened(path: Path) -> Iterator[h5py.File]:
    import h5py

    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise DamagedFileError(f"{path} cannot be opened as HDF5: {quoted(str(error).splitlines()[0])}") from None
    with file:
        try:
            yield file
        except (OSError, RuntimeError) as error:
            raise DamagedFileError(f"{path} is damaged: {quoted(str(error).splitlines()[0])}") from None
