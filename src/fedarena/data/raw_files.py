"""Files as their publishers give them out: found in a folder, compressed or not, and checked before they are used."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import numpy as np

from fedarena.data.registry import cache_folder
from fedarena.data.schema import AnyArray
from fedarena.errors import BadInputError, DamagedFileError
from fedarena.files import read_bytes

_BLOCK_BYTES = 1 << 20
# The codes of IDX files; all numbers in them have their most significant byte first.
_IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


@dataclass(frozen=True)
class RawFile:
    """A published file."""

    name: str  # without .gz, which it may have in addition
    checksum: str | None = None  # "sha256:..." or "md5:..." of its content, without the .gz
    url: str | None = None
    unpacked: str | None = None  # the folder that may be there instead, if the file is an archive
    other_names: tuple[str, ...] = ()  # under which the same is found

    def look_for(self, folder: Path) -> Path | None:
        """Where it is, as it was published, compressed, or unpacked."""
        names = [given for name in (self.name, *self.other_names) for given in (name, f"{name}.gz")]
        names += [self.unpacked] if self.unpacked else []
        return next((folder / name for name in names if (folder / name).exists()), None)

    def check(self, path: Path, progress: Callable[[float], None] = lambda fraction: None) -> None:
        """Raises unless `path` has the content that was published; of an unpacked archive nothing is known."""
        if self.checksum is None or path.is_dir():
            return
        algorithm, _, expected = self.checksum.partition(":")
        found = hashlib.new(algorithm, usedforsecurity=False)
        size = max(path.stat().st_size, 1)
        with open(path, "rb") as opened:
            compressed = path.suffix == ".gz" and not self.name.endswith(".gz")
            content = cast(IO[bytes], gzip.GzipFile(fileobj=opened) if compressed else opened)
            try:
                while block := content.read(_BLOCK_BYTES):
                    found.update(block)
                    progress(min(opened.tell() / size, 1.0))
            except (gzip.BadGzipFile, EOFError, zlib.error):
                raise DamagedFileError(f"{path} is damaged: it cannot be uncompressed") from None
        if found.hexdigest() != expected:
            raise DamagedFileError(
                f"{path} is not the published {self.name}: its checksum differs; get it again, or set "
                "federation.verify=false if it is meant to be another"
            )


@dataclass(frozen=True)
class RawFiles:
    """The published files of a federation."""

    federation: str  # its name in the catalogue
    title: str
    files: Mapping[str, RawFile]
    advice: str  # where to get them
    one_is_enough: bool = False  # the same data in several forms

    def __post_init__(self) -> None:
        RAW_FILES[self.federation] = self

    def folder(self, given: str | None) -> Path:
        """The folder that was given, or the one in the cache where they are looked for otherwise."""
        return Path(given) if given is not None else cache_folder() / "raw" / self.federation

    def found(self, given: str | None) -> dict[str, Path]:
        """Those files that are there."""
        place = self.folder(given)
        return {key: path for key, file in self.files.items() if (path := file.look_for(place)) is not None}

    def find(self, given: str | None) -> dict[str, Path]:
        """Where each file is that was found; raises a sentence that says what is missing and where to get it."""
        place = self.folder(given)
        if not place.is_dir():
            raise BadInputError(f"There is no folder {place} with the files of {self.title}; {self._needed}")
        found = self.found(given)
        missing = [file.name for key, file in self.files.items() if key not in found]
        if missing and not (found and self.one_is_enough):
            raise BadInputError(f"{place} lacks {', '.join(missing)}; {self._needed}")
        return found

    def check(self, paths: Mapping[str, Path], progress: Callable[[float], None] = lambda fraction: None) -> None:
        """Raises unless all of `paths` have the published content."""
        for number, (key, path) in enumerate(paths.items()):

            def of_all(fraction: float, before: int = number) -> None:
                progress((before + fraction) / len(paths))

            self.files[key].check(path, of_all)

    @property
    def _needed(self) -> str:
        names = ", ".join(
            f"{file.name} (or the folder {file.unpacked})" if file.unpacked else file.name
            for file in self.files.values()
        )
        return f"it must hold {'one of ' if self.one_is_enough else ''}{names}; {self.advice}"


RAW_FILES: dict[str, RawFiles] = {}  # by federation


def read_idx(path: Path, dimensions: int) -> AnyArray:
    """The array in an IDX file."""
    data = read_bytes(path)
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
