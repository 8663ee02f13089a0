"""Which of a vector's coordinates are not zero, in as few bytes as one of three codes takes.

One byte says which. *All* of them: nothing follows. A *bitmap*: a bit for every coordinate. *Elias-Fano*: their number
(4 bytes); of every place its lowest bits as they are, as many as a typical distance between two places has; and the
higher ones, which rise slowly, as ones among zeros (Elias 1974, Fano 1971). That takes about 2 + log2(length / number)
bits a place, always less than a list of indexes, and the same wherever the places are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fedarena.transforms.encodings.base import BadEncodingError
from fedarena.transforms.encodings.bits import bit_lengths, from_bits, from_bytes, to_bits, to_bytes, whole_bytes

Mask = npt.NDArray[np.bool_]

_ALL, _BITMAP, _ELIAS_FANO = range(3)
_COUNT_BYTES = 4


def support_bytes(length: int, counts: Any) -> Any:
    """What `encode_support` takes for vectors with so many coordinates that are not zero."""
    counts = np.asarray(counts, dtype=np.int64)
    some = np.minimum(whole_bytes(length), _elias_fano_bytes(length, counts))
    return 1 + np.where(counts == length, 0, some)


def encode_support(mask: Mask) -> bytes:
    """Where `mask` is true."""
    length, places = len(mask), np.flatnonzero(mask)
    if len(places) == length:
        return bytes([_ALL])
    if whole_bytes(length) <= _elias_fano_bytes(length, len(places)):
        return bytes([_BITMAP]) + to_bytes(mask.astype(np.uint8))
    low = _low_bits(length, len(places))
    high = np.zeros(len(places) + ((length - 1) >> low), dtype=np.uint8)
    high[(places >> low) + np.arange(len(places))] = 1
    code = np.concatenate([high, to_bits(places & ((1 << low) - 1), low)]) if len(places) else high[:0]
    return bytes([_ELIAS_FANO]) + len(places).to_bytes(_COUNT_BYTES, "little") + to_bytes(code)


def decode_support(data: bytes, length: int) -> tuple[Mask, int]:
    """The inverse of `encode_support` for vectors of this length, and how many bytes it took.

    A `BadEncodingError`, if these are no places in such a vector.
    """
    form = data[0] if data else -1
    if form == _ALL:
        return np.ones(length, dtype=np.bool_), 1
    if form == _BITMAP:
        end = 1 + whole_bytes(length)
        return from_bytes(_cut(data, 1, end))[:length].astype(np.bool_), end
    if form != _ELIAS_FANO:
        raise BadEncodingError(f"There is no code {form} for the places of numbers")
    count = int.from_bytes(_cut(data, 1, 1 + _COUNT_BYTES), "little")
    if count > length:
        raise BadEncodingError(f"There are {count:,} places in a vector of {length:,} numbers")
    end = 1 + int(_elias_fano_bytes(length, count))
    mask = np.zeros(length, dtype=np.bool_)
    if count:
        code, low = from_bytes(_cut(data, 1 + _COUNT_BYTES, end)), int(_low_bits(length, count))
        high_bits = count + ((length - 1) >> low)
        high = np.flatnonzero(code[:high_bits])
        if len(high) != count:
            raise BadEncodingError(f"There are {len(high):,} places instead of {count:,}")
        places = ((high - np.arange(count)) << low) + from_bits(code[high_bits:], count, low)
        if places[-1] >= length or (np.diff(places) <= 0).any():
            raise BadEncodingError(f"Places do not rise, or are not all below {length:,}")
        mask[places] = True
    return mask, end


def _cut(data: bytes, begin: int, end: int) -> bytes:
    if end > len(data):
        raise BadEncodingError(f"There are {len(data):,} bytes, and {end:,} are needed to tell the places of numbers")
    return data[begin:end]


def _low_bits(length: int, counts: Any) -> Any:
    return bit_lengths(length // np.maximum(counts, 1)) - 1


def _elias_fano_bytes(length: int, counts: Any) -> Any:
    low = _low_bits(length, counts)
    bits = counts * (low + 1) + ((length - 1) >> low)
    return _COUNT_BYTES + np.where(np.asarray(counts) > 0, whole_bytes(bits), 0)
