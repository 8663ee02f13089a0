"""Which files a folder of LEAF's has, and which samples are in each: for training, for validation, or for testing."""

from __future__ import annotations

import filecmp
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedarena.core.errors import BadInputError
from fedarena.core.files import as_people_sort
from fedarena.data.registry import Inputs
from fedarena.data.store.schema import Part

# Samples of clients that are not trained on are never put into train/, which LEAF trains on; what such clients have
# to adapt a model with has a folder that LEAF does not know.
HELD_OUT = "held_out"
FOLDERS: dict[str, Part] = {"train": "train", "val": "validation", "test": "test", HELD_OUT: "train"}
_DIVIDED_NAME = re.compile(r"_(train|val|test)_\d+\.json")


@dataclass(frozen=True)
class LeafFile:
    """A file, and the part that all its samples belong to; None if they are not divided yet."""

    path: Path
    part: Part | None


class LeafFolder(Inputs):
    """The files that the source reads: says when they have changed."""

    def find(self, folder: str | None) -> Mapping[str, Path]:
        """By their parts and their places in the folder."""
        assert folder is not None
        return {f"{file.part}: {file.path.relative_to(folder)}": file.path for file in leaf_files(Path(folder))}


def leaf_files(place: Path) -> list[LeafFile]:
    """The files of a folder with train/ and test/, of a folder of JSON files, or a single file."""
    if not place.exists():
        raise BadInputError(f"There is no folder or file {place} with data of LEAF")
    if not place.is_dir():
        return [LeafFile(place, None)]
    divided = [LeafFile(path, part) for name, part in FOLDERS.items() for path in _json_files(place / name)]
    if divided:
        return divided
    paths = _json_files(place)
    if not paths:
        raise BadInputError(
            f"{place} holds no data of LEAF: there are no files that end in .json, neither there nor in train/ or test/"
        )
    by_name = [_DIVIDED_NAME.search(path.name) for path in paths]
    if all(by_name) and len({found[1] for found in by_name if found}) > 1:
        return [LeafFile(path, FOLDERS[found[1]]) for path, found in zip(paths, by_name, strict=True) if found]
    return [LeafFile(path, None) for path in paths]


def check_parts(files: Sequence[LeafFile]) -> None:
    """Refuses a file that stands for two parts, as after a copy to the wrong folder."""
    by_size: dict[int, list[LeafFile]] = {}
    for file in files:
        alike = by_size.setdefault(file.path.stat().st_size, [])
        for other in alike:
            if other.part != file.part and filecmp.cmp(other.path, file.path, shallow=False):
                raise BadInputError(
                    f"{other.path} and {file.path} are the same file, and cannot be for two parts; put back what was "
                    "there"
                )
        alike.append(file)


def _json_files(folder: Path) -> list[Path]:
    """In the order in which LEAF counts them."""
    return sorted(folder.glob("*.json"), key=lambda path: as_people_sort(path.name))
