"""Many small files that were published as one archive: read from the .zip or from the folder it was unpacked into.

The table of contents of an archive is read here rather than by `zipfile`, which keeps 600 bytes for every member, a
gigabyte for one of NIST's archives; an array keeps 32. It also holds a checksum of every member, so that equal files of
two archives are found without reading either.
"""

from __future__ import annotations

import os
import struct
import zlib
from abc import ABC, abstractmethod
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from re import Pattern
from typing import IO

import numpy as np

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.core.files import MAX_FILE_BYTES
from fedarena.data.raw.folders import ending_of, files_below, is_hidden, refuse
from fedarena.data.store.schema import AnyArray, IntArray

_END = struct.Struct("<4s4H2LH")  # where the table of contents is; at the end of the archive, followed by a comment
_END_64 = struct.Struct("<4sQ2H2L4Q")  # the same for large archives
_END_64_PLACE = struct.Struct("<4sLQL")
_ENTRY = struct.Struct("<4s6H3L5H2L")  # of the table of contents
_HEADER = struct.Struct("<4s5H3L2H")  # before the content of a member
_LONGEST_COMMENT = 0xFFFF
_ELSEWHERE = 0xFFFFFFFF  # instead of a number that needs 64 bits and is among the extra fields
_EXTRA_64 = 1
_ENCRYPTED = 1
_UTF_8 = 1 << 11
_STORED, _DEFLATED = 0, 8
_FILES_PER_REPORT = 256

Report = Callable[[float], None]  # called with the fraction that is done


class RawTree(ABC):
    """Files with names, sorted; `read` gives the content of one by its index."""

    path: Path
    names: list[str]
    others: Counter[str]  # how many more files there are of which ending
    gone: Sequence[str] = ()  # links to files that are not there

    @abstractmethod
    def read(self, index: int) -> bytes:
        """The content of the file ``names[index]``."""

    @abstractmethod
    def keys(self, progress: Report) -> IntArray:
        """A number for every file: its size and its CRC-32. Equal files have equal numbers, and hardly any others."""

    def where(self, index: int) -> str:
        """Words for error messages."""
        return f"{self.names[index]} in {self.path}"

    def close(self) -> None:  # noqa: B027 - a folder has nothing to close
        """Ends reading."""

    def __enter__(self) -> RawTree:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def open_tree(path: Path, wanted: Pattern[str], progress: Report = lambda done: None) -> RawTree:
    """The files of an archive or folder in whose names, written with slashes, `wanted` is found."""
    return _Folder(path, wanted, progress) if path.is_dir() else _Archive(path, wanted, progress)


class _Folder(RawTree):
    def __init__(self, path: Path, wanted: Pattern[str], progress: Report):
        self.path = path
        self.names = []
        self.others = Counter()
        gone: list[str] = []
        for number, (name, _) in enumerate(files_below(path, gone)):
            if wanted.search(name):
                self.names.append(name)
            else:
                self.others[ending_of(name)] += 1
            if number % _FILES_PER_REPORT == 0:
                progress(0.0)  # nobody knows how many there are
        self.gone = [name for name in gone if wanted.search(name)]
        self.names.sort()

    def read(self, index: int) -> bytes:
        try:
            return (self.path / self.names[index]).read_bytes()
        except OSError as error:
            refuse(error)

    def keys(self, progress: Report) -> IntArray:
        found = np.empty(len(self.names), dtype=np.int64)
        for index in range(len(self.names)):
            content = self.read(index)
            found[index] = len(content) << 32 | zlib.crc32(content)
            if index % _FILES_PER_REPORT == 0:
                progress(index / len(self.names))
        return found


class _Archive(RawTree):
    def __init__(self, path: Path, wanted: Pattern[str], progress: Report):
        self.path = path
        try:
            self._file = open(path, "rb")  # noqa: SIM115 - open until `close`
        except OSError as error:
            refuse(error)
        try:
            names, members = [], array("Q")
            self.others = Counter()
            for name, member in _contents(self._file, path, progress):
                if wanted.search(name):
                    names.append(name)
                    members.extend(member)
                elif not name.endswith("/") and not is_hidden(name):
                    self.others[ending_of(name)] += 1
        except BaseException:
            self._file.close()
            raise
        order = sorted(range(len(names)), key=names.__getitem__)
        self.names = [names[index] for index in order]
        for name, following in pairwise(self.names):
            if name == following:
                self._file.close()
                raise BadInputError(f"{path} has the file {name} twice")
        # Where its header is, its compressed and its real size, and its CRC-32.
        self._members: AnyArray = np.frombuffer(members, np.uint64).reshape(-1, 4)[order].astype(np.int64)

    def read(self, index: int) -> bytes:
        start, packed_bytes, size, checksum = self._members[index].tolist()
        self._file.seek(start)
        header = self._file.read(_HEADER.size)
        if len(header) < _HEADER.size or header[:4] != b"PK\x03\x04":
            raise self._damaged(index)
        _, _, flags, method, *_, name_bytes, extra_bytes = _HEADER.unpack(header)
        if flags & _ENCRYPTED or method not in (_STORED, _DEFLATED):
            raise BadInputError(f"{self.where(index)} is encrypted or compressed in an unusual way; unpack the archive")
        self._file.seek(name_bytes + extra_bytes, os.SEEK_CUR)
        content = self._file.read(packed_bytes)
        if method == _DEFLATED:
            try:
                content = zlib.decompressobj(-zlib.MAX_WBITS).decompress(content, size + 1)
            except zlib.error:
                raise self._damaged(index) from None
        if len(content) != size or zlib.crc32(content) != checksum:
            raise self._damaged(index)
        return content

    def keys(self, progress: Report) -> IntArray:
        keys: IntArray = self._members[:, 2] << 32 | self._members[:, 3]
        return keys

    def close(self) -> None:
        self._file.close()

    def _damaged(self, index: int) -> DamagedFileError:
        return DamagedFileError(f"{self.path} is damaged: {self.names[index]} cannot be read; get the archive again")


def _contents(file: IO[bytes], path: Path, progress: Report) -> Iterator[tuple[str, tuple[int, int, int, int]]]:
    """Name, place, compressed size, size and CRC-32 of every member, in the order of the table of contents."""
    damaged = DamagedFileError(f"{path} is damaged: the table of contents that ends a .zip is broken; get it again")
    number, start = _find_contents(file, path, damaged)
    end = file.seek(0, os.SEEK_END)
    file.seek(min(start, end))
    for done in range(number):
        if done % _FILES_PER_REPORT == 0:
            progress(done / number)
        entry = file.read(_ENTRY.size)
        if len(entry) < _ENTRY.size or entry[:4] != b"PK\x01\x02":
            raise damaged
        fields = _ENTRY.unpack(entry)
        checksum, packed_bytes, size, name_bytes, extra_bytes, comment_bytes = fields[7:13]
        rest = file.read(name_bytes + extra_bytes + comment_bytes)
        place = fields[16]
        if _ELSEWHERE in (packed_bytes, size, place):
            size, packed_bytes, place = _large_numbers(
                rest[name_bytes : name_bytes + extra_bytes], (size, packed_bytes, place), damaged
            )
        if place + packed_bytes > end or size > MAX_FILE_BYTES:
            raise damaged
        yield _name(rest[:name_bytes], fields[3], damaged), (place, packed_bytes, size, checksum)
    if file.read(4) == b"PK\x01\x02":
        raise damaged


def _name(encoded: bytes, flags: int, damaged: DamagedFileError) -> str:
    """The name of a member; many are UTF-8 without saying so, and those that are not have the letters of MS-DOS."""
    try:
        return encoded.decode("utf-8")
    except UnicodeDecodeError:
        if flags & _UTF_8:
            raise damaged from None
        return encoded.decode("cp437")


def _find_contents(file: IO[bytes], path: Path, damaged: DamagedFileError) -> tuple[int, int]:
    """How many entries the table of contents has, and where it starts."""
    file.seek(0, os.SEEK_END)
    tail_bytes = min(file.tell(), _END.size + _LONGEST_COMMENT + _END_64_PLACE.size)
    file.seek(-tail_bytes, os.SEEK_END)
    tail = file.read()
    end = tail.rfind(b"PK\x05\x06")
    if end < 0 or len(tail) < end + _END.size:
        raise DamagedFileError(
            f"{path} is not a complete .zip: its end, the table of contents, is missing; get it again"
        )
    _, _, _, _, number, _, start, _ = _END.unpack_from(tail, end)
    if end >= _END_64_PLACE.size and tail[end - _END_64_PLACE.size :].startswith(b"PK\x06\x07"):
        _, _, place, _ = _END_64_PLACE.unpack_from(tail, end - _END_64_PLACE.size)
        file.seek(min(place, file.tell()))
        record = file.read(_END_64.size)
        if len(record) < _END_64.size or record[:4] != b"PK\x06\x06":
            raise damaged
        number, _, start = _END_64.unpack(record)[7:]
    return int(number), int(start)


def _large_numbers(extra: bytes, short: tuple[int, int, int], damaged: DamagedFileError) -> tuple[int, int, int]:
    """The three numbers, those that did not fit into 32 bits from the extra fields of an entry."""
    while len(extra) >= 4:
        kind, length = struct.unpack_from("<2H", extra)
        if kind == _EXTRA_64:
            numbers = extra[4 : 4 + length]
            long = [number for (number,) in struct.iter_unpack("<Q", numbers[: len(numbers) // 8 * 8])]
            if len(long) < short.count(_ELSEWHERE):
                break
            first, second, third = (long.pop(0) if number == _ELSEWHERE else number for number in short)
            return first, second, third
        extra = extra[4 + length :]
    raise damaged
