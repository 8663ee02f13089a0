"""Files as their publishers give them out: found in a folder, compressed or not, and checked before they are used."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedarena.data.schema import AnyArray
from fedarena.errors import BadInputError, DamagedFileError
from fedarena.files import read_bytes

# The codes of IDX files; all numbers in them have their most significant byte first.
_IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


@dataclass(frozen=True)
class RawFile:
    """A published file: what it is called without .gz, and the checksum of its content."""

    name: str
    sha256: str


@dataclass(frozen=True)
class RawFiles:
    """Published files that belong together."""

    title: str
    files: Mapping[str, RawFile]
    advice: str  # where to get them

    def find(self, folder: str) -> dict[str, Path]:
        """Where each file is; raises a sentence that says what is missing and where to get it."""
        place = Path(folder)
        if not place.is_dir():
            raise BadInputError(f"There is no folder {folder} with the files of {self.title}; {self._needed}")
        found = {key: _first([place / file.name, place / f"{file.name}.gz"]) for key, file in self.files.items()}
        missing = [self.files[key].name for key, path in found.items() if path is None]
        if missing:
            raise BadInputError(f"{folder} lacks {', '.join(missing)}; {self._needed}")
        return {key: path for key, path in found.items() if path is not None}

    @property
    def _needed(self) -> str:
        names = ", ".join(file.name for file in self.files.values())
        return f"it must hold {names} (each may end in .gz); {self.advice}"


def read_idx(path: Path, expected: RawFile | None, dimensions: int) -> AnyArray:
    """The array in an IDX file; its content must have the checksum of what is expected, if anything is."""
    data = read_bytes(path)
    if expected is not None and hashlib.sha256(data).hexdigest() != expected.sha256:
        raise DamagedFileError(
            f"{path} is not the published {expected.name}: its checksum differs; get it again, or set "
            "federation.verify=false if it is meant to be another"
        )
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in _IDX_TYPES:
        raise BadInputError(f"{path} is not an IDX file: it begins with {data[:4].hex(' ') or 'nothing'}")
    if data[3] != dimensions:
        raise BadInputError(f"{path} must hold an array of {dimensions} dimensions, not {data[3]}")
    header = 4 + 4 * dimensions
    shape = tuple(np.frombuffer(data[4:header], ">u4").tolist())
    values = np.dtype(_IDX_TYPES[data[2]])
    wanted = header + int(np.prod(shape, dtype=np.int64)) * values.itemsize
    if len(shape) < dimensions or len(data) != wanted:
        raise DamagedFileError(f"{path} is damaged: it has {len(data):,} bytes, and its header promises {wanted:,}")
    return np.frombuffer(data, values, offset=header).reshape(shape)


def _first(paths: list[Path]) -> Path | None:
    return next((path for path in paths if path.is_file()), None)
