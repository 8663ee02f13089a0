"""Archives of photos as they are published: small_images-00.tar.gz and so on, and such as were cut into parts."""

from __future__ import annotations

import gzip
import io
import re
import tarfile
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, cast

from fedarena.core.errors import BadInputError, DamagedFileError

PUBLISHED_ARCHIVES = 43
_ARCHIVE = re.compile(r"small_images.*\.(?:tar|tar\.gz|tgz)")
_NUMBERED = re.compile(r"(small_images-)(\d+)(\.tar|\.tar\.gz|\.tgz)")
_PART = re.compile(r"(small_images.*\.(?:tar|tar\.gz|tgz|zip))\.(?:part)?(\d+|[a-z]{2,3})")  # as split names them
_BLOCK_BYTES = 1 << 20
_GZIP = b"\x1f\x8b"


def published_archive(number: int) -> str:
    """The name of one of the archives."""
    return f"small_images-{number:02d}.tar.gz"


def find_archives(folder: Path) -> dict[str, list[Path]]:
    """The archives in a folder by their names, each with its file, or with its parts in order.

    Raises if one of a numbered series is missing.
    """
    found: dict[str, list[Path]] = defaultdict(list)
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    for name in names:
        if _ARCHIVE.fullmatch(name):
            found[name] = [folder / name]
    for name in names:
        part = _PART.fullmatch(name)
        if part and name not in found and part[1] not in names:
            found[part[1]].append(folder / name)
    for name, parts in found.items():
        if parts[0].name != name:
            found[name] = _all_parts(name, parts)
    _check_series(folder, list(found))
    return dict(sorted(found.items()))


def _all_parts(name: str, parts: list[Path]) -> list[Path]:
    """The parts of an archive in order; raises if one is missing."""
    if name.endswith(".zip"):
        raise BadInputError(
            f"{parts[0]} is a part of an archive; put the parts together first: cat {name}.* > {name}, or unpack it"
        )
    suffixes = [cast(re.Match[str], _PART.fullmatch(path.name))[2] for path in parts]
    in_order = sorted(zip((_number(suffix) for suffix in suffixes), parts, strict=True))
    first = in_order[0][0]
    if first not in (0, 1):
        raise BadInputError(f"{parts[0].parent} lacks the first part of {name}: {in_order[0][1].name} comes later")
    for expected, (number, path) in enumerate(in_order, start=first):
        if number != expected:
            raise BadInputError(f"{path.parent} lacks a part of {name}: one that comes before {path.name}")
    return [path for _, path in in_order]


def _number(suffix: str) -> int:
    """The place of a part: 07 is 7, and aa, ab, …, ba count from 0."""
    if suffix.isdecimal():
        return int(suffix)
    number = 0
    for letter in suffix:
        number = 26 * number + ord(letter) - ord("a")
    return number


def _check_series(folder: Path, names: Sequence[str]) -> None:
    """Raises if a number is missing between others."""
    numbers = {int(found[2]): found[3] for name in names if (found := _NUMBERED.fullmatch(name))}
    missing = [number for number in range(max(numbers, default=-1)) if number not in numbers]
    if missing:
        ending = numbers[max(numbers)]
        raise BadInputError(
            f"{folder} lacks small_images-{missing[0]:02d}{ending}, and has small_images-{max(numbers):02d}{ending}; "
            f"FLAIR's archives are numbered from 00 to {PUBLISHED_ARCHIVES - 1}"
        )


def read_members(parts: Sequence[Path]) -> Iterator[tuple[str, bytes]]:
    """The names and contents of all JPEGs in a tar archive, which is read once from its beginning to its end."""
    name = parts[0]
    try:
        with _opened(parts) as content:
            # tarfile's own way of uncompressing a stream takes the end of a file for the end of the archive.
            with tarfile.open(fileobj=content, mode="r|", bufsize=_BLOCK_BYTES) as archive:
                for member in archive:
                    if member.isfile() and member.name.endswith(".jpg"):
                        opened = archive.extractfile(member)
                        assert opened is not None  # it is a file
                        yield member.name.rpartition("/")[2], opened.read()
                    cast(Any, archive).members = []  # which would hold all of them in memory
            while content.read(_BLOCK_BYTES):  # up to the checksum at the end
                pass
    except (tarfile.TarError, EOFError, zlib.error) as error:
        ended = isinstance(error, EOFError) or "end of" in str(error)
        reason = "it ends too early" if ended else "it is no tar archive, or not in order"
        raise DamagedFileError(f"{name} is damaged: {reason}; get it again") from None
    except OSError as error:
        if error.filename is None:  # of what was read, not of a file that cannot be
            raise DamagedFileError(f"{name} is damaged: it cannot be uncompressed; get it again") from None
        raise BadInputError(f"{error.filename} cannot be read: {error.strerror or error}") from None


def _opened(parts: Sequence[Path]) -> IO[bytes]:
    """An archive to be read from its beginning, uncompressed."""
    with open(parts[0], "rb") as file:
        compressed = file.read(len(_GZIP)) == _GZIP
    joined = cast(IO[bytes], io.BufferedReader(_Joined(parts), _BLOCK_BYTES))
    return cast(IO[bytes], gzip.GzipFile(fileobj=joined)) if compressed else joined


class _Joined(io.RawIOBase):
    """Files one after the other as if they were one."""

    def __init__(self, paths: Sequence[Path]):
        self._waiting = list(paths)
        self._file: io.FileIO | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """At least one byte, unless all files have ended."""
        while self._waiting or self._file is not None:
            if self._file is None:
                self._file = io.FileIO(self._waiting.pop(0))
            if length := self._file.readinto(buffer):
                return length
            self._file.close()
            self._file = None
        return 0

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        super().close()
