"""Numbers of few bits, one after the other without gaps."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.uint8]  # a 0 or 1 each
Integers = npt.NDArray[np.int64]


def whole_bytes(bits: Any) -> Any:
    """How many bytes so many bits take: a number, or an array of them."""
    return -(-bits // 8)


def bit_lengths(numbers: Any) -> Any:
    """How many bits each of these whole numbers has, 0 for 0; exact below 2^53."""
    return np.frexp(np.asarray(numbers, dtype=np.float64))[1].astype(np.int64)


def to_bits(numbers: Integers, width: int) -> Bits:
    """Every number in so many bits, the highest first."""
    places = np.arange(width - 1, -1, -1)
    return ((numbers[:, None] >> places) & 1).astype(np.uint8).reshape(-1)


def from_bits(bits: Bits, count: int, width: int) -> Integers:
    """The inverse of `to_bits`."""
    weights = np.int64(1) << np.arange(width - 1, -1, -1, dtype=np.int64)
    return bits[: count * width].reshape(count, width).astype(np.int64) @ weights


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
    following = bit_lengths(numbers) - 1
    unary = np.zeros(int(following.sum()) + len(numbers), dtype=np.uint8)
    unary[np.cumsum(following + 1) - 1] = 1
    return np.concatenate([unary, ((np.repeat(numbers, following) >> _places(following)) & 1).astype(np.uint8)])


def from_gamma(bits: Bits, count: int) -> Integers:
    """The inverse of `to_gamma` for so many numbers."""
    ends = np.flatnonzero(bits)[:count]
    following = np.diff(ends, prepend=-1) - 1
    begin = int(ends[-1]) + 1 if count else 0
    low = bits[begin : begin + int(following.sum())].astype(np.int64) << _places(following)
    numbers = np.int64(1) << following
    np.add.at(numbers, np.repeat(np.arange(count), following), low)
    return numbers


def _places(widths: Integers) -> Integers:
    """For numbers of these widths, one after the other: which place each of their bits has, the highest first."""
    ends = np.cumsum(widths)
    result: Integers = np.repeat(ends, widths) - 1 - np.arange(int(widths.sum()))
    return result
