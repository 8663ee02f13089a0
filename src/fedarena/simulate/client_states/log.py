"""The file in which clients' states lie: records are only ever appended, and the last one of a client counts.

A record is a header (client, length of the content, number of its layout, CRC of the content, CRC of the header) and
the content, a packed state. A record of "client" -1 holds a layout as JSON; layouts are numbered in the order of their
appearance. A CRC that runs over all headers, and thereby over the CRCs of all contents, stands for the whole file; to
append, nothing that is already in the file has to be read.

Records are appended in two steps. Those of a round that is not over yet may already be in the file, but they are found
only once `settle` was called, and `drop_unsettled` takes them back.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable, Iterator, KeysView
from pathlib import Path
from typing import BinaryIO, NamedTuple

from fedarena.core.errors import DamagedFileError
from fedarena.simulate.client_states.layout import Layout, PackedState

# A log is written anew when more than half of it is outdated, unless it is so short that this does not matter.
COMPACT_ABOVE_BYTES = 16 * 2**20

_HEADER = struct.Struct("<qQII")
_CRC = struct.Struct("<I")
_HEADER_BYTES = _HEADER.size + _CRC.size
_LAYOUT_RECORD = -1
_BLOCK_BYTES = 2**20


class LogEnd(NamedTuple):
    """How far a log counts, and the CRC of the headers up to there."""

    bytes: int
    crc32: int


class _Place(NamedTuple):
    """Where a state lies in the file."""

    start: int
    bytes: int
    layout: int
    crc32: int

    @property
    def record_bytes(self) -> int:
        return _HEADER_BYTES + self.bytes


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

    @classmethod
    def open(cls, path: Path, end: LogEnd) -> ClientStateLog:
        """Reads which states lie in the committed part of a log, and checks every byte of it."""
        log = cls(path)
        if end.bytes:
            try:
                with open(path, "rb") as file:
                    log._scan(file, end)
            except OSError as error:
                raise DamagedFileError(f"The checkpoint {path} cannot be read: {error.strerror}") from None
            if log._end != end:
                raise log._damaged()
        log.settle()
        log._synced_bytes = end.bytes
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

    def read(self, client: int, unsettled: bool = False) -> PackedState | None:
        """A client's state, or None where there is none; `unsettled` looks at the records that do not count yet."""
        place = (self._unsettled if unsettled else self._places).get(client)
        if place is None:
            return None
        try:
            with open(self.path, "rb") as file:
                file.seek(place.start)
                content = file.read(place.bytes)
        except OSError as error:
            raise DamagedFileError(f"The checkpoint {self.path} cannot be read: {error.strerror}") from None
        if len(content) != place.bytes or zlib.crc32(content) != place.crc32:
            raise self._damaged()
        return PackedState(self._layouts[place.layout], content)

    def append(self, states: Iterable[tuple[int, PackedState]]) -> None:
        """Writes states that do not count before `settle`."""
        with open(self.path, "rb+" if self._end.bytes else "wb") as file:
            file.seek(self._end.bytes)
            file.truncate()  # a failed or abandoned append may have left a piece behind
            for client, (layout, content) in states:
                if layout not in self._numbers:
                    self._write(file, _LAYOUT_RECORD, 0, layout.to_json())
                    self._add_layout(layout)
                self._unsettled[client] = self._write(file, client, self._numbers[layout], content)

    def settle(self) -> None:
        """From now on everything that was appended counts."""
        for client, place in self._unsettled.items():
            before = self._places.get(client)
            self._live_bytes += place.record_bytes - (before.record_bytes if before else 0)
            self._places[client] = place
        self._unsettled = {}
        self.settled, self._settled_layouts = self._end, len(self._layouts)

    def drop_unsettled(self) -> None:
        """Forgets what was appended since `settle`; its place in the file is written over."""
        self._unsettled = {}
        self._end = self.settled
        for layout in self._layouts[self._settled_layouts :]:
            del self._numbers[layout]
        del self._layouts[self._settled_layouts :]

    def sync(self) -> None:
        """Makes everything that counts durable."""
        if self._synced_bytes < self.settled.bytes:
            with open(self.path, "rb") as file:
                os.fsync(file.fileno())
            self._synced_bytes = self.settled.bytes

    def cut(self) -> None:
        """Removes what was appended after the part that counts."""
        if self.settled.bytes:
            with open(self.path, "rb+") as file:
                file.truncate(self.settled.bytes)

    @property
    def is_mostly_outdated(self) -> bool:
        """Whether writing the log anew is worth its while."""
        return self.settled.bytes > COMPACT_ABOVE_BYTES and 2 * self._live_bytes < self.settled.bytes

    def compacted(self, path: Path) -> ClientStateLog:
        """A new, durable file with the states that count. This one stays as it is."""
        new = ClientStateLog(path)
        in_order = sorted(self._places, key=lambda client: self._places[client].start)
        new.append((client, state) for client in in_order if (state := self.read(client)) is not None)
        new.settle()
        new.sync()
        return new

    def _write(self, file: BinaryIO, client: int, layout: int, content: bytes) -> _Place:
        place = _Place(self._end.bytes + _HEADER_BYTES, len(content), layout, zlib.crc32(content))
        header = _HEADER.pack(client, place.bytes, place.layout, place.crc32)
        file.write(header + _CRC.pack(zlib.crc32(header)))
        file.write(content)
        self._advance(place, header)
        return place

    def _advance(self, place: _Place, header: bytes) -> None:
        self._end = LogEnd(place.start + place.bytes, zlib.crc32(header, self._end.crc32))

    def _add_layout(self, layout: Layout) -> None:
        self._numbers[layout] = len(self._layouts)
        self._layouts.append(layout)

    def _scan(self, file: BinaryIO, end: LogEnd) -> None:
        while self._end.bytes < end.bytes:
            header, header_crc = file.read(_HEADER.size), file.read(_CRC.size)
            if len(header_crc) < _CRC.size or header_crc != _CRC.pack(zlib.crc32(header)):
                raise self._damaged()
            client, length, layout, crc = _HEADER.unpack(header)
            place = _Place(self._end.bytes + _HEADER_BYTES, length, layout, crc)
            self._advance(place, header)
            if client == _LAYOUT_RECORD:
                content = file.read(length)
                if zlib.crc32(content) != crc:
                    raise self._damaged()
                self._add_layout(Layout.from_json(content))
            else:
                if _crc_of_next(file, length) != crc:
                    raise self._damaged()
                self._unsettled[client] = place

    def _damaged(self) -> DamagedFileError:
        return DamagedFileError(f"The checkpoint {self.path} is damaged: its content does not match its checksum")


def _crc_of_next(file: BinaryIO, length: int) -> int:
    crc = 0
    while length and (block := file.read(min(length, _BLOCK_BYTES))):
        crc, length = zlib.crc32(block, crc), length - len(block)
    return crc
