"""The files that FLAIR is published in, and which of their forms is there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedarena.core.errors import BadInputError
from fedarena.data.flair.archives import PUBLISHED_ARCHIVES, find_archives, published_archive
from fedarena.data.flair.photos import Photos, read_photos
from fedarena.data.flair.published import compare
from fedarena.data.flair.taxonomy import read_taxonomy
from fedarena.data.raw.files import RawFile, RawFiles
from fedarena.data.registry import state_of
from fedarena.data.store.schema import GROUPS, Group

_ADDRESS = "https://docs-assets.developer.apple.com/ml-research/datasets/flair"
_HDF5_SUFFIXES = (".hdf5", ".h5")
METADATA, RELATIONSHIP, PICTURES, HDF5 = "metadata", "relationship", "pictures", "hdf5"


class FlairFiles(RawFiles):
    """Metadata, taxonomy and photos (a folder, a .zip, or tar archives); or all in one HDF5 file."""

    def found(self, given: str | None) -> dict[str, Path]:
        """What is there; archives are many, and the first of them is called `PICTURES`."""
        place, found = self.folder(given), super().found(given)
        if not place.is_dir():
            return found
        if PICTURES not in found:
            parts = [path for parts in find_archives(place).values() for path in parts]
            found |= {f"{PICTURES}{number or ''}": path for number, path in enumerate(parts)}
        if PICTURES not in found and (hdf5 := self._hdf5(place)) is not None:
            return {HDF5: hdf5}
        return found

    def find(self, given: str | None) -> dict[str, Path]:
        """The same, but raises a sentence that says what is missing."""
        if self.folder(given).is_dir() and HDF5 in (found := self.found(given)):
            return found
        return super().find(given)

    def to_fetch(self, given: str | None) -> list[RawFile]:
        """Metadata, taxonomy and archives that are not there."""
        place = self.folder(given)
        try:
            found = self.found(given)
        except BadInputError:  # some archives are there
            found = super().found(given)
        wanted = [] if HDF5 in found else [file for key, file in self.files.items() if key not in found and file.url]
        if HDF5 in found or (PICTURES in found and found[PICTURES].suffix in ("", ".zip")):
            return wanted
        archives = [published_archive(number) for number in range(PUBLISHED_ARCHIVES)]
        return wanted + [
            RawFile(name, url=f"{_ADDRESS}/images/small/{name}") for name in archives if not (place / name).exists()
        ]

    def counted(self, paths: Mapping[str, Path]) -> str | None:
        """How many users and photos the metadata lists, beside what was published."""
        if METADATA not in paths or RELATIONSHIP not in paths:
            return None
        taxonomy = read_taxonomy(paths[RELATIONSHIP])
        fine = read_photos(paths[METADATA], taxonomy, "fine", lambda done: None)
        return compare(*photos_by_group(fine), labels=(len(taxonomy.coarse), len(fine.label_names)))

    @staticmethod
    def _hdf5(place: Path) -> Path | None:
        """The HDF5 file in a folder, if there is one."""
        files = sorted(path for path in place.iterdir() if path.suffix in _HDF5_SUFFIXES and path.is_file())
        if len(files) > 1:
            raise BadInputError(f"{place} has several HDF5 files, {files[0].name} and {files[1].name}; leave one there")
        return files[0] if files else None


FILES = FlairFiles(
    "flair",
    "FLAIR",
    {
        METADATA: RawFile("labels_and_metadata.json", url=f"{_ADDRESS}/labels/labels_and_metadata.json"),
        RELATIONSHIP: RawFile("label_relationship.txt", url=f"{_ADDRESS}/labels/label_relationship.txt"),
        PICTURES: RawFile(
            f"{published_archive(0)} to {published_archive(PUBLISHED_ARCHIVES - 1)}",
            unpacked="small_images",
            other_names=("small_images.zip",),
        ),
    },
    "or one HDF5 file that pfl-research or the authors' script made of them; https://github.com/apple/ml-flair says "
    "what they are",
)


def state_of_photos(path: Path) -> list[int | str]:
    """What changes when a file does, or when a photo is put into a folder, taken away or replaced by another file.

    To look at each of 429,078 photos takes seconds on a good day, and a federation is opened before every run.
    """
    return [path.stat().st_mtime_ns] if path.is_dir() else state_of(path)


def photos_by_group(photos: Photos) -> tuple[dict[Group, int], dict[Group, int]]:
    """How many users and how many photos each group has."""
    users = {group: int((photos.groups == code).sum()) for code, group in enumerate(GROUPS)}
    images = {group: int(photos.counts[photos.groups == code].sum()) for code, group in enumerate(GROUPS)}
    return users, images
