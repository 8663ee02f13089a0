"""Record files of scenarios, as TensorFlow and protocol buffers write them."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from fedarena.data.by_client.tfrecords import masked_crc


def varint(value: int) -> bytes:
    content = b""
    while value > 0x7F:
        content += bytes([value & 0x7F | 0x80])
        value >>= 7
    return content + bytes([value])


def message(*parts: tuple[int, int | float | bytes]) -> bytes:
    """A protocol buffer of these fields."""
    content = b""
    for number, value in parts:
        if isinstance(value, float):
            content += varint(number << 3 | 1) + struct.pack("<d", value)
        elif isinstance(value, int):
            content += varint(number << 3) + varint(value)
        else:
            content += varint(number << 3 | 2) + varint(len(value)) + value
    return content


def track(positions: Sequence[tuple[float, float] | None]) -> bytes:
    def state(place: tuple[float, float] | None, number: int) -> bytes:
        x, y = place or (0.0, 0.0)
        valid = (11, int(place is not None))
        if number % 3 == 0:  # some have no more than is needed, others all fields
            return message((2, x), (3, y), valid)
        sizes = b"".join(varint(field << 3 | 5) + struct.pack("<f", 1.0) for field in range(5, 11))
        return message((2, x), (3, y), (4, 0.5)) + sizes + message(valid)

    return message((1, 7), (2, 1), *((3, state(place, number)) for number, place in enumerate(positions)))


def record(content: bytes) -> bytes:
    length = struct.pack("<Q", len(content))
    return length + struct.pack("<I", masked_crc(length)) + content + struct.pack("<I", masked_crc(content))


def scenario(name: str, *tracks: bytes) -> bytes:
    return record(message((1, 0.1), (5, name.encode()), (10, 10), *((2, one) for one in tracks)))
