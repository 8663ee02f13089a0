"""EMNIST (Cohen et al., 2017): handwritten digits and letters like MNIST's, divided into clients.

The publisher has the same pictures as IDX files (``emnist-balanced-train-images-idx3-ubyte.gz``), in which they lie on
their side, and for Matlab (``emnist-balanced.mat``), in six versions. `femnist` has NIST's pictures by who wrote them.
"""

from __future__ import annotations

import string
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.core.options import PathOption
from fedarena.core.registry import Choice
from fedarena.data.labelled_pictures import (
    DEFAULT_PARTITION,
    LabelledPictures,
    check_as_many,
    check_labels,
    read_idx_set,
    write_pictures,
)
from fedarena.data.raw.files import RawFile, RawFiles
from fedarena.data.raw.matlab import read_matlab
from fedarena.data.registry import FEDERATIONS, PARTITIONERS, StoreBuild, cached_source
from fedarena.data.splits import Seed, ValidationFraction
from fedarena.data.store.schema import AnyArray, IntArray

Version = Literal["balanced", "byclass", "bymerge", "digits", "letters", "mnist"]
_ALL = (*string.digits, *string.ascii_uppercase, *string.ascii_lowercase)
_MERGED = (*string.digits, *string.ascii_uppercase, *"abdefghnqrt")  # the other letters look alike in both cases
LABEL_NAMES: dict[Version, tuple[str, ...]] = {
    "balanced": _MERGED,
    "byclass": _ALL,
    "bymerge": _MERGED,
    "digits": tuple(string.digits),
    "letters": tuple(string.ascii_lowercase),
    "mnist": tuple(string.digits),
}
_SIDE = 28


class VersionFiles(RawFiles):
    """The files of every version that is there, also in the folders gzip and matlab of the publisher's archives."""

    def of_version(self, given: str | None, version: Version) -> dict[str, Path]:
        """Four IDX files or one for Matlab."""
        place = self.folder(given)
        kinds = ("train-images-idx3", "train-labels-idx1", "test-images-idx3", "test-labels-idx1")
        for folder in (place, place / "gzip", place / "matlab"):
            paths = {kind: RawFile(f"emnist-{version}-{kind}-ubyte").look_for(folder) for kind in kinds}
            there = {kind: path for kind, path in paths.items() if path is not None}
            if len(there) == len(kinds):
                return there
            if (table := folder / f"emnist-{version}.mat").is_file():
                return {"matlab": table}
        raise BadInputError(f"{place} lacks the version {version} of EMNIST; {self._needed(given)}")

    def found(self, given: str | None) -> dict[str, Path]:
        """All files of all versions."""
        place = self.folder(given)
        folders = (place, place / "gzip", place / "matlab")
        patterns = ("emnist-*-ubyte", "emnist-*-ubyte.gz", "emnist-*.mat")
        return {path.name: path for folder in folders for pattern in patterns for path in sorted(folder.glob(pattern))}


FILES = VersionFiles(
    "emnist",
    "EMNIST",
    {"pictures": RawFile("emnist-balanced-train-images-idx3-ubyte"), "matlab": RawFile("emnist-balanced.mat")},
    "with the other three of the former; unpack gzip.zip or matlab.zip, which "
    "https://www.nist.gov/itl/products-and-services/emnist-dataset has",
    one_is_enough=True,
)


@FEDERATIONS.register("emnist")
@cached_source(version=1, reads=FILES)
def emnist(
    build: StoreBuild,
    *,
    folder: PathOption | None = None,
    version: Version = "balanced",
    partition: Annotated[dict[str, Any], Choice(PARTITIONERS)] = DEFAULT_PARTITION,
    validation_fraction: ValidationFraction = 0.0,
    split_seed: Seed = 0,
) -> None:
    """Handwritten digits and letters of 28 x 28 pixels, in one of six versions, from the published files in `folder`.

    `partition` says which client has which training pictures; `validation_fraction` of these are for validation, class
    by class. The published test pictures follow: of every class a client has as large a share for testing as for
    training.
    """
    FILES.find(folder)
    found = FILES.of_version(folder, version)
    build.progress(0.1, "Reading")
    names = LABEL_NAMES[version]
    first = int(version == "letters")  # of which the first is 1
    if "matlab" in found:
        training, test = _of_matlab(found["matlab"], len(names), first)
    else:
        training, test = (
            read_idx_set(found[f"{part}-images-idx3"], found[f"{part}-labels-idx1"], len(names), _SIDE, first)
            for part in ("train", "test")
        )
    pictures = LabelledPictures.of(_upright(*training), _upright(*test))
    write_pictures(build, pictures, partition, validation_fraction, split_seed, names)


def _upright(x: AnyArray, y: IntArray) -> tuple[AnyArray, IntArray]:
    return np.ascontiguousarray(x.swapaxes(2, 3)), y


def _of_matlab(path: Path, classes: int, first: int) -> list[tuple[AnyArray, IntArray]]:
    dataset = read_matlab(path).get("dataset")
    sets = []
    for part in ("train", "test"):
        try:
            one = dataset[part][0, 0]  # type: ignore[index]
            x, y = one["images"][0, 0], one["labels"][0, 0].reshape(-1)
        except (KeyError, IndexError, TypeError, ValueError):
            raise BadInputError(f"{path} must hold a dataset with images and labels of {part}") from None
        if x.dtype != np.uint8 or x.ndim != 2 or x.shape[1] != _SIDE * _SIDE:
            raise BadInputError(f"{path} must hold pictures of {_SIDE} x {_SIDE} bytes")
        check_as_many(x, y, str(path), str(path))
        labels = check_labels(y.astype(np.int64) - first, classes, str(path))
        sets.append((x.reshape(-1, 1, _SIDE, _SIDE), labels))
    return sets
