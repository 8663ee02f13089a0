"""Numbers of few bits, one after the other without gaps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.uint8]  # a 0 or 1 each
Integers = npt.NDArray[np.int64]
_PIECE = 1 << 16
_NO_BITS: Bits = np.zeros(0, dtype=np.uint8)


def whole_bytes(bits: Any) -> Any:
    """How many bytes so many bits take: a number, or an array of them."""
    return -(-bits // 8)


def bit_lengths(numbers: Any) -> Any:
    """How many bits each of these whole numbers has, 0 for 0; exact below 2^53."""
    return np.frexp(np.asarray(numbers, dtype=np.float64))[1].astype(np.int64)


def to_bits(numbers: Integers, width: int) -> Bits:
    """Every number in so many bits, the highest first."""
    places = np.arange(width - 1, -1, -1)
    bits = np.empty((len(numbers), width), dtype=np.uint8)
    for piece in pieces(len(numbers)):
        bits[piece] = (numbers[piece, None] >> places) & 1
    return bits.reshape(-1)


def from_bits(bits: Bits, count: int, width: int) -> Integers:
    """The inverse of `to_bits`."""
    weights = np.int64(1) << np.arange(width - 1, -1, -1, dtype=np.int64)
    each, numbers = bits[: count * width].reshape(count, width), np.empty(count, dtype=np.int64)
    for piece in pieces(count):
        numbers[piece] = each[piece].astype(np.int64) @ weights
    return numbers


def pieces(count: int) -> Iterator[slice]:
    """So many numbers in parts: a bit of each is eight bytes while it is computed with."""
    return (slice(begin, begin + _PIECE) for begin in range(0, count, _PIECE))


def to_bytes(bits: Bits) -> bytes:
    """Eight bits a byte; zeros fill the last one."""
    return np.packbits(bits).tobytes()


def from_bytes(data: bytes) -> Bits:
    """All bits, with those that fill the last byte."""
    return np.unpackbits(np.frombuffer(data, dtype=np.uint8))


def gamma_bits(numbers: Any) -> Any:
    """How many bits `to_gamma` takes for each of these numbers, which are 1 or more."""
    return 2 * bit_lengths(numbers) - 1


def to_gamma(numbers: Integers) -> Bits:
    """Elias' gamma code of numbers that are 1 or more: small ones are short.

    Of every number, first how many bits follow its highest one (so many zeros and a one), all numbers together; then
    these bits. They are kept apart, so that all numbers can be read at once.
    """
    unary, low = [_NO_BITS], [_NO_BITS]
    for piece in pieces(len(numbers)):
        some = numbers[piece]
        following = bit_lengths(some) - 1
        ones = np.zeros(int(following.sum()) + len(some), dtype=np.uint8)
        ones[np.cumsum(following + 1) - 1] = 1
        unary.append(ones)
        low.append(((np.repeat(some, following) >> _places(following)) & 1).astype(np.uint8))
    return np.concatenate([*unary, *low])


def from_gamma(bits: Bits, count: int, most: int) -> tuple[Integers, int]:
    """The inverse of `to_gamma` for so many numbers, and how many bits it took.

    A ValueError, if they are not there, or one has more bits than `most`.
    """
    ends = np.flatnonzero(bits)[:count]
    following = np.diff(ends, prepend=-1) - 1
    if len(ends) < count or (count and int(following.max()) >= most.bit_length()):
        raise ValueError("There are not so many numbers, or larger ones")
    place = int(ends[-1]) + 1 if count else 0
    numbers = np.int64(1) << following
    for piece in pieces(count):
        of_piece = following[piece]
        end = place + int(of_piece.sum())
        if end > len(bits):
            raise ValueError("The last numbers are missing")
        low = bits[place:end].astype(np.int64) << _places(of_piece)
        sums = np.concatenate([[0], np.cumsum(low)])
        numbers[piece] += np.diff(sums[np.concatenate([[0], np.cumsum(of_piece)])])
        place = end
    return numbers, place


def _places(widths: Integers) -> Integers:
    """For numbers of these widths, one after the other: which place each of their bits has, the highest first."""
    ends = np.cumsum(widths)
    result: Integers = np.repeat(ends, widths) - 1 - np.arange(int(widths.sum()))
    return result
