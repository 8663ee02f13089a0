"""Files as their publishers give them out: found in a folder, compressed or not, and checked before they are used."""

from __future__ import annotations

import gzip
import hashlib
import math
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import numpy as np

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.core.files import read_bytes
from fedarena.core.words import some
from fedarena.data.registry import FEDERATIONS, CachedSource, cache_folder
from fedarena.data.store.schema import AnyArray

_BLOCK_BYTES = 1 << 20
_MOST_LISTED = 6  # files in a sentence
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
        names = [given for name in (self.name, *self.other_names) for given in self._given_names(name)]
        names += [self.unpacked] if self.unpacked else []
        return next((folder / name for name in names if (folder / name).exists()), None)

    def is_unpacked(self, path: Path) -> bool:
        """Whether `path` is what is in the archive rather than the archive."""
        return path.is_dir() or (self.name.endswith(".zip") and path.suffix != ".zip")

    def check(self, path: Path, progress: Callable[[float], None] = lambda fraction: None) -> None:
        """Raises unless `path` has the content that was published; of an unpacked archive nothing is known."""
        if self.checksum is None or self.is_unpacked(path):
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

    @staticmethod
    def _given_names(name: str) -> list[str]:
        return [name] if name.endswith((".zip", ".gz")) else [name, f"{name}.gz"]


@dataclass(frozen=True)
class RawFiles:
    """The published files of a federation."""

    federation: str  # its name in the catalogue
    title: str
    files: Mapping[str, RawFile]
    advice: str  # where to get them
    one_is_enough: bool = False  # the same data in several forms
    summary: str | None = None  # what they are called where there are too many to be listed
    tarballs: tuple[str, ...] = ()  # names of an archive with all that is needed, such as FedScale's

    def folder(self, given: str | None) -> Path:
        """The folder that was given, or the one in the cache where they are looked for otherwise."""
        return Path(given) if given is not None else cache_folder() / "raw" / self.federation

    def found(self, given: str | None) -> dict[str, Path]:
        """All files that are there, whether they are enough or not; some may have keys that `files` does not know."""
        place = self.folder(given)
        return {key: path for key, file in self.files.items() if (path := file.look_for(place)) is not None}

    def tarball(self, given: str | None) -> Path | None:
        """The archive with all files, if it is there and they are not."""
        if not self.tarballs or self.found(given):
            return None
        place = self.folder(given)
        return next((place / name for name in self.tarballs if (place / name).is_file()), None)

    def there(self, given: str | None) -> dict[str, Path]:
        """The files that are there, or else the archive with all of them."""
        if found := self.found(given):
            return found
        tarball = self.tarball(given)
        return {} if tarball is None else {"tarball": tarball}

    def find(self, given: str | None) -> dict[str, Path]:
        """The same, but raises a sentence that says what is missing and where to get it, if they are not enough."""
        place = self.folder(given)
        if place.is_file():
            raise BadInputError(f"{place} is a file; give the folder that it is in; {self._needed(given)}")
        if not place.is_dir():
            raise BadInputError(f"There is no folder {place} with the files of {self.title}; {self._needed(given)}")
        found = self.there(given)
        missing = [file.name for key, file in self.files.items() if key not in found]
        if missing and not (found and self.one_is_enough):
            lack = f"holds none of the files of {self.title}" if not found else f"lacks {', '.join(missing)}"
            raise BadInputError(f"{place} {lack}; {self._needed(given)}")
        return found

    def to_fetch(self, given: str | None) -> list[RawFile]:
        """Those that are not there and whose address is known, as many as are needed."""
        found = self.found(given)
        known = [file for key, file in self.files.items() if key not in found and file.url is not None]
        return ([] if found else known[:1]) if self.one_is_enough else known

    def check(self, paths: Mapping[str, Path], progress: Callable[[float], None] = lambda fraction: None) -> None:
        """Raises unless all of `paths` have the published content, if that is known."""
        for number, (key, path) in enumerate(paths.items()):
            if key not in self.files:
                continue

            def of_all(fraction: float, before: int = number) -> None:
                progress((before + fraction) / len(paths))

            self.files[key].check(path, of_all)

    def counted(self, paths: Mapping[str, Path]) -> str | None:
        """What is in the files beside what was published, in words; None where nothing is counted."""
        return None

    def _needed(self, given: str | None) -> str:
        names = ", ".join(
            f"{file.name} (or the folder {file.unpacked})" if file.unpacked else file.name
            for file in self.files.values()
        )
        fetched = [file.name for file in self.to_fetch(given)] if not Path(given or "").is_file() else []
        where = "" if given is None else f" folder={given}"
        listed = some(fetched) if len(fetched) > _MOST_LISTED else ", ".join(fetched)
        download = f"; fedarena data prepare {self.federation}{where} --download fetches {listed}"
        need = f"it must hold {'one of ' if self.one_is_enough else ''}{names}; {self.advice}"
        return need + (download if fetched else "")


def raw_files_of(federation: str) -> RawFiles | None:
    """The published files that a federation of the catalogue is made from."""
    source = FEDERATIONS.get(federation)
    reads = source.reads if isinstance(source, CachedSource) else None
    return reads if isinstance(reads, RawFiles) else None


def read_idx(path: Path, dimensions: int) -> AnyArray:
    """The array in an IDX file."""
    data = read_bytes(path)
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in _IDX_TYPES:
        raise BadInputError(f"{path} is not an IDX file: it begins with {data[:4].hex(' ') or 'nothing'}")
    if data[3] != dimensions:
        raise BadInputError(f"{path} must hold an array of {dimensions} dimensions, not {data[3]}")
    header = 4 + 4 * dimensions
    if len(data) < header:
        raise DamagedFileError(f"{path} is damaged: it ends after {len(data)} bytes, inside its header")
    shape = struct.unpack_from(f">{dimensions}I", data, 4)
    values = np.dtype(_IDX_TYPES[data[2]])
    wanted = header + math.prod(shape) * values.itemsize
    if len(data) != wanted:
        raise DamagedFileError(f"{path} is damaged: it has {len(data):,} bytes, and its header promises {wanted:,}")
    if len(data) == header:
        raise BadInputError(f"{path} is empty: its array has the shape {' x '.join(map(str, shape))}")
    return np.frombuffer(data, values, offset=header).reshape(shape)
