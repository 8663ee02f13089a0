"""The file in which clients' states lie: records are only ever appended, and the last one of a client counts.

A record is a header (client, length of the content, number of its layout, CRC of the content, CRC of the header) and
the content, a packed state. A record of "client" -1 holds a layout as JSON; layouts are numbered in the order of their
appearance. A CRC that runs over all headers, and thereby over the CRCs of all contents, stands for the whole file; to
append, nothing that is already in the file has to be read.

A record of "client" -2 names another file in the same folder, a *part*, which somebody else has written in this format:
all its records count as if they stood here. Parts are never written to again.

Records are appended in two steps. Those of a round that is not over yet may already be in the file, but they are found
only once `settle` was called, and `drop_unsettled` takes them back.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, KeysView
from pathlib import Path
from typing import BinaryIO, NamedTuple

from fedarena.core.errors import DamagedFileError
from fedarena.core.files import reading
from fedarena.simulate.client_states.layout import Layout, PackedState
from fedarena.train import Groups
from fedarena.train.shards import StateFile

# A log is written anew when more than half of it is outdated, unless it is so short that this does not matter.
COMPACT_ABOVE_BYTES = 16 * 2**20

_HEADER = struct.Struct("<qQII")
_CRC = struct.Struct("<I")
_HEADER_BYTES = _HEADER.size + _CRC.size
_LAYOUT_RECORD = -1
_PART_RECORD = -2
_BLOCK_BYTES = 2**20


class LogEnd(NamedTuple):
    """How far a log counts, and the CRC of the headers up to there."""

    bytes: int
    crc32: int


class _Place(NamedTuple):
    """Where a state lies in the file."""

    start: int
    bytes: int
    layout: Layout
    crc32: int
    part: str | None = None  # the file, if it is not the log itself

    @property
    def record_bytes(self) -> int:
        return _HEADER_BYTES + self.bytes


class StatePlace(NamedTuple):
    """Where somebody else can read a state: in which file of the log's folder, and what to find there."""

    file: str
    start: int
    bytes: int
    crc32: int
    layout: Layout

    def read(self, folder: Path) -> Groups:
        """The state."""
        return PackedState(self.layout, read_checked(folder / self.file, self.bytes, self.crc32, self.start)).unpack()


class ClientStateLog:
    """The states in one file. It is not opened before there is something to write or to read."""

    def __init__(self, path: Path):
        self.path = path
        self.settled = LogEnd(0, 0)
        self._settled_layouts = 0
        self._places: dict[int, _Place] = {}
        self._live_bytes = 0  # of the records that count
        self._end = LogEnd(0, 0)
        self._layouts: list[Layout] = []
        self._numbers: dict[Layout, int] = {}
        self._unsettled: dict[int, _Place] = {}
        self._synced_bytes = 0
        self._parts: dict[str, StateFile] = {}  # in their order
        self._settled_parts = 0
        self._synced_parts: set[str] = set()

    @classmethod
    def open(cls, path: Path, end: LogEnd) -> ClientStateLog:
        """Reads which states lie in the committed part of a log, and checks every byte of it."""
        log = cls(path)
        if end.bytes:
            log._scan_file(end)
        log.settle()
        log._synced_bytes = end.bytes
        log._synced_parts = set(log._parts)
        return log

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, client: object) -> bool:
        return client in self._places

    def __iter__(self) -> Iterator[int]:
        return iter(self._places)

    @property
    def unsettled_clients(self) -> KeysView[int]:
        """Those whose new state is in the file, but does not count yet."""
        return self._unsettled.keys()

    @property
    def part_files(self) -> list[str]:
        """The names of the parts that count."""
        return list(self._parts)[: self._settled_parts]

    def read(self, client: int, unsettled: bool = False) -> PackedState | None:
        """A client's state, or None where there is none; `unsettled` looks at the records that do not count yet."""
        place = (self._unsettled if unsettled else self._places).get(client)
        if place is None:
            return None
        path = self.path if place.part is None else self.path.with_name(place.part)
        return PackedState(place.layout, read_checked(path, place.bytes, place.crc32, place.start))

    def place_in_part(self, client: int, unsettled: bool = False) -> StatePlace | None:
        """Where a client's state lies, if that is in a part, which others can read while the log itself grows."""
        place = (self._unsettled if unsettled else self._places).get(client)
        if place is None or place.part is None:
            return None
        return StatePlace(place.part, place.start, place.bytes, place.crc32, place.layout)

    def append(self, states: Iterable[tuple[int, PackedState]]) -> None:
        """Writes states that do not count before `settle`."""
        with open(self.path, "rb+" if self._end.bytes else "wb") as file:
            file.seek(self._end.bytes)
            file.truncate()  # a failed or abandoned append may have left a piece behind
            for client, (layout, content) in states:
                if layout not in self._numbers:
                    self._write_record(file, _LAYOUT_RECORD, 0, layout.to_json())
                    self._add_layout(layout)
                self._unsettled[client] = self._write(file, client, layout, content)

    def append_part(self, part: StateFile) -> None:
        """Has the states in another file count like records that are appended. Of that file, only headers are read."""
        places = self._places_in(part, read_contents=False)
        with open(self.path, "rb+" if self._end.bytes else "wb") as file:
            file.seek(self._end.bytes)
            file.truncate()
            self._write_record(file, _PART_RECORD, 0, json.dumps(part).encode())
        self._parts[part.name] = part
        self._unsettled |= places

    def settle(self) -> None:
        """From now on everything that was appended counts."""
        for client, place in self._unsettled.items():
            before = self._places.get(client)
            self._live_bytes += place.record_bytes - (before.record_bytes if before else 0)
            self._places[client] = place
        self._unsettled = {}
        self.settled, self._settled_layouts, self._settled_parts = self._end, len(self._layouts), len(self._parts)

    def drop_unsettled(self) -> None:
        """Forgets what was appended since `settle`; its place in the file is written over."""
        self._unsettled = {}
        self._end = self.settled
        for layout in self._layouts[self._settled_layouts :]:
            del self._numbers[layout]
        del self._layouts[self._settled_layouts :]
        for name in list(self._parts)[self._settled_parts :]:
            del self._parts[name]

    def sync(self) -> None:
        """Makes everything that counts durable."""
        for name in self.part_files:
            if name not in self._synced_parts:
                _sync(self.path.with_name(name))
                self._synced_parts.add(name)
        if self._synced_bytes < self.settled.bytes:
            _sync(self.path)
            self._synced_bytes = self.settled.bytes

    def cut(self) -> None:
        """Removes what was appended after the part that counts."""
        if self.settled.bytes:
            with open(self.path, "rb+") as file:
                file.truncate(self.settled.bytes)

    @property
    def is_mostly_outdated(self) -> bool:
        """Whether writing the log anew is worth its while."""
        written = self.settled.bytes + sum(self._parts[name].bytes for name in self.part_files)
        return written > COMPACT_ABOVE_BYTES and 2 * self._live_bytes < written

    def compacted(self, path: Path) -> ClientStateLog:
        """A new, durable file with the states that count; parts that are not mostly outdated stay parts.

        This one stays as it is.
        """
        new = ClientStateLog(path)
        live = dict.fromkeys(self.part_files, 0)
        for place in self._places.values():
            if place.part is not None:
                live[place.part] += place.record_bytes
        # Before all others, in their order: so what they have of a client who kept something later stays outdated.
        stay = [name for name in self.part_files if 2 * live[name] >= self._parts[name].bytes]
        for name in stay:
            new.append_part(self._parts[name])
        others = [client for client, place in self._places.items() if place.part not in stay]
        others.sort(key=lambda client: (self._places[client].part or "", self._places[client].start))
        new.append((client, state) for client in others if (state := self.read(client)) is not None)
        new.settle()
        new._synced_parts = self._synced_parts.intersection(stay)
        new.sync()
        return new

    def _write(self, file: BinaryIO, client: int, layout: Layout, content: bytes) -> _Place:
        start, crc = self._write_record(file, client, self._numbers[layout], content)
        return _Place(start, len(content), layout, crc)

    def _write_record(self, file: BinaryIO, client: int, layout: int, content: bytes) -> tuple[int, int]:
        """Where the content begins, and its CRC."""
        start, crc = self._end.bytes + _HEADER_BYTES, zlib.crc32(content)
        header = _HEADER.pack(client, len(content), layout, crc)
        file.write(header + _CRC.pack(zlib.crc32(header)))
        file.write(content)
        self._advance(len(content), header)
        return start, crc

    def _advance(self, content_bytes: int, header: bytes) -> None:
        self._end = LogEnd(self._end.bytes + _HEADER_BYTES + content_bytes, zlib.crc32(header, self._end.crc32))

    def _add_layout(self, layout: Layout) -> None:
        self._numbers[layout] = len(self._layouts)
        self._layouts.append(layout)

    def _scan_file(self, end: LogEnd, read_contents: bool = True) -> None:
        """Finds out what a file holds; without `read_contents`, headers alone are checked."""
        try:
            with reading(self.path), open(self.path, "rb") as file:
                self._scan(file, end, read_contents)
        except OSError as error:
            raise DamagedFileError(f"The checkpoint {self.path} cannot be read: {error.strerror}") from None
        if self._end != end:
            raise self._damaged()

    def _scan(self, file: BinaryIO, end: LogEnd, read_contents: bool) -> None:
        while self._end.bytes < end.bytes:
            header, header_crc = file.read(_HEADER.size), file.read(_CRC.size)
            if len(header_crc) < _CRC.size or header_crc != _CRC.pack(zlib.crc32(header)):
                raise self._damaged()
            client, length, layout, crc = _HEADER.unpack(header)
            start = self._end.bytes + _HEADER_BYTES
            self._advance(length, header)
            if client in (_LAYOUT_RECORD, _PART_RECORD):
                content = file.read(length)
                if zlib.crc32(content) != crc:
                    raise self._damaged()
                if client == _LAYOUT_RECORD:
                    self._add_layout(Layout.from_json(content))
                else:
                    part = StateFile(*json.loads(content))
                    self._unsettled |= self._places_in(part, read_contents)
                    self._parts[part.name] = part
            else:
                if read_contents and _crc_of_next(file, length) != crc:
                    raise self._damaged()
                if not read_contents:
                    file.seek(length, os.SEEK_CUR)
                self._unsettled[client] = _Place(start, length, self._layouts[layout], crc)

    def _places_in(self, part: StateFile, read_contents: bool) -> dict[int, _Place]:
        """Where states lie in a part."""
        if os.path.basename(part.name) != part.name:
            raise self._damaged()
        log = ClientStateLog(self.path.with_name(part.name))
        log._scan_file(LogEnd(part.bytes, part.crc32), read_contents)
        if log.path.stat().st_size < part.bytes or log._parts:
            raise log._damaged()
        return {client: place._replace(part=part.name) for client, place in log._unsettled.items()}

    def _damaged(self) -> DamagedFileError:
        return damaged_checkpoint(self.path)


def write_part(folder: Path, name: str, states: Iterable[tuple[int, PackedState]]) -> StateFile:
    """Writes states into a file of their own, for somebody's log in the same folder."""
    part = ClientStateLog(folder / name)
    part.append(states)
    return StateFile(name, *part._end)


def read_checked(path: Path, length: int, crc32: int, start: int = 0) -> bytes:
    """So many bytes of a checkpoint's file, with this checksum."""
    try:
        with reading(path), open(path, "rb") as file:
            file.seek(start)
            content = file.read(length)
    except OSError as error:
        raise DamagedFileError(f"The checkpoint {path} cannot be read: {error.strerror}") from None
    if len(content) != length or zlib.crc32(content) != crc32:
        raise damaged_checkpoint(path)
    return content


def damaged_checkpoint(path: Path) -> DamagedFileError:
    """That its content is not what was written."""
    return DamagedFileError(f"The checkpoint {path} is damaged: its content does not match its checksum")


def _sync(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _crc_of_next(file: BinaryIO, length: int) -> int:
    crc = 0
    while length and (block := file.read(min(length, _BLOCK_BYTES))):
        crc, length = zlib.crc32(block, crc), length - len(block)
    return crc
