"""TensorFlow's record files and the fields of protocol buffers, as far as they are needed; without TensorFlow."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from fedarena.core.errors import DamagedFileError
from fedarena.data.by_client.packed import opened

MAX_RECORD_BYTES = 1 << 28
_HEADER = struct.Struct("<QI")
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MASK_DELTA = 0xA282EAD8
Field = int | bytes


def _crc_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)  # Castagnoli's polynomial
        table.append(value)
    return tuple(table)


_CRC = _crc_table()


def masked_crc(content: bytes) -> int:
    """The checksum that record files have: CRC-32C, rotated and moved."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _CRC[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def tf_records(path: Path) -> Iterator[tuple[int, bytes, float]]:
    """Every record with its number.

    Lengths are compared with their checksums, so that a damaged file is not read as something else; contents are not,
    which would take longer than to read them.
    """
    with opened(path) as source:
        number = 0
        while header := source.file.read(_HEADER.size):
            number += 1
            damaged = DamagedFileError(f"{path} is damaged: record {number:,} is broken or cut off")
            if len(header) < _HEADER.size:
                raise damaged
            length, checksum = _HEADER.unpack(header)
            if masked_crc(header[:8]) != checksum or length > MAX_RECORD_BYTES:
                raise damaged
            content = source.file.read(length + 4)
            if len(content) < length + 4:
                raise damaged
            yield number, content[:length], source.fraction()


def fields(message: bytes, where: str) -> Iterator[tuple[int, Field]]:
    """The fields of a protocol buffer by their numbers: whole numbers, or the bytes of numbers or of what is inside."""
    place = 0
    try:
        while place < len(message):
            key, place = _varint(message, place)
            kind, number = key & 7, key >> 3
            if kind == _VARINT:
                value, place = _varint(message, place)
                yield number, value
                continue
            length = {_FIXED64: 8, _FIXED32: 4}.get(kind)
            if kind == _BYTES:
                length, place = _varint(message, place)
            if length is None or place + length > len(message):
                raise IndexError
            yield number, message[place : place + length]
            place += length
    except IndexError:
        raise DamagedFileError(f"{where} is no message of the form that is expected") from None


def double(value: Field) -> float:
    """A number of 8 bytes, or of 4."""
    content = value if isinstance(value, bytes) else b""
    if len(content) not in (4, 8):
        raise IndexError
    return float(struct.unpack("<d" if len(content) == 8 else "<f", content)[0])


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
        if shift > 63:
            raise IndexError
