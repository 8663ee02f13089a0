"""Checksums of pieces of a file: whoever reads a few rows of a large table knows that they are what was written.

Beside a data file lies a small one with the CRC-32 of every block of it. Together these come to the CRC-32 of the whole
file, which the manifest has, so they need no entry of their own there. A block is checked when it is read for the first
time. Where there is no such file, as in stores from before there were any, all of the data file is read once, and if it
is as it was written, it gets one.
"""

from __future__ import annotations

import mmap
import threading
import zlib
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedarena.core.errors import DamagedFileError
from fedarena.core.files import reading, write_bytes
from fedarena.data.store.schema import AnyArray, IntArray

BLOCK_BYTES = 1 << 16
ENDING = ".blocks"
# A file up to this size is checked as a whole when it is first read, which takes a millisecond.
SMALL_FILE_BYTES = 1 << 22
_POLYNOMIAL = 0xEDB88320  # of CRC-32, its lowest power in the highest bit
_ONE, _X = 1 << 31, 1 << 30
Checksums = npt.NDArray[np.uint32]
_MAKING = threading.Lock()  # checksums that are not there, since threads write to the same temporary file


class RunningChecksums:
    """The checksums of a file's blocks while it is written or read from its beginning to its end."""

    def __init__(self) -> None:
        self.length_bytes = 0
        self._blocks: list[int] = []
        self._of_last = 0

    def add(self, content: memoryview) -> None:
        """The next bytes of the file."""
        done = 0
        while done < len(content):
            room = BLOCK_BYTES - self.length_bytes % BLOCK_BYTES
            piece = content[done : done + room]
            self._of_last = zlib.crc32(piece, self._of_last)
            self.length_bytes += len(piece)
            done += len(piece)
            if len(piece) == room:
                self._blocks.append(self._of_last)
                self._of_last = 0

    @property
    def blocks(self) -> Checksums:
        """Those of all blocks, of which the last one may be shorter."""
        is_open = self.length_bytes % BLOCK_BYTES > 0
        return np.array(self._blocks + [self._of_last] * is_open, dtype="<u4")

    @property
    def crc32(self) -> int:
        """That of the whole file."""
        return combined(self.blocks, self.length_bytes)

    def write(self, path: Path) -> None:
        """Puts those of a data file's blocks beside it."""
        write_bytes(checksums_path(path), self.blocks.tobytes())


def checksums_of(path: Path) -> RunningChecksums:
    """The checksums of a file, read in pieces."""
    checksums = RunningChecksums()
    with open(path, "rb") as file:
        while block := file.read(1 << 22):
            checksums.add(memoryview(block))
    return checksums


def combined(blocks: Checksums, length_bytes: int) -> int:
    """The CRC-32 of a file of so many bytes, from those of its blocks.

    A checksum is a polynomial over bits, and that of A followed by B is that of A times x to the number of bits in B,
    plus that of B. Neighbours are joined pair by pair, all pairs at once.
    """
    last_bytes = (length_bytes - 1) % BLOCK_BYTES + 1
    joined, factor = blocks[:-1].astype(np.uint32), _power_of_x(8 * BLOCK_BYTES)
    while len(joined) > 1:
        if len(joined) % 2:  # nothing before the first one changes nothing
            joined = np.append(np.zeros(1, dtype=np.uint32), joined)
        joined = _products(factor, joined[::2]) ^ joined[1::2]
        factor = _product(factor, factor)
    if not len(joined):
        return int(blocks[-1]) if len(blocks) else 0
    return _product(_power_of_x(8 * last_bytes), int(joined[0])) ^ int(blocks[-1])


def _product(one: int, other: int) -> int:
    """The product of two polynomials, modulo the polynomial of CRC-32."""
    result = 0
    for bit in range(31, -1, -1):
        if one >> bit & 1:
            result ^= other
        other = other >> 1 ^ _POLYNOMIAL if other & 1 else other >> 1
    return result


def _products(one: int, others: Checksums) -> Checksums:
    """The products of a polynomial with many: it is linear, so that of a number is the sum of those of its bytes."""
    powers = [_product(one, 1 << bit) for bit in range(32)]
    result = np.zeros_like(others)
    for byte in range(4):
        of_byte = np.zeros(256, dtype=np.uint32)
        for bit in range(8):
            of_byte[1 << bit : 2 << bit] = of_byte[: 1 << bit] ^ np.uint32(powers[8 * byte + bit])
        result ^= of_byte[others >> np.uint32(8 * byte) & np.uint32(255)]
    return result


def _power_of_x(exponent: int) -> int:
    result, square = _ONE, _X
    while exponent:
        if exponent & 1:
            result = _product(square, result)
        square = _product(square, square)
        exponent >>= 1
    return result


def checksums_path(path: Path) -> Path:
    """Where the checksums of a data file's blocks are."""
    return path.with_name(path.name + ENDING)


class CheckedBlocks:
    """Says of bytes of a mapped file that they are what was written; every block is looked at once.

    Any number of threads may ask: a block that two of them look at is the same to both.
    """

    def __init__(self, path: Path, mapped: mmap.mmap, crc32: int, checked: bool = True):
        self._path, self._content, self._crc32 = path, memoryview(mapped), crc32
        self.base_address = np.frombuffer(mapped, dtype=np.uint8).ctypes.data if len(mapped) else 0
        self._is_checked = checked
        self._checked: npt.NDArray[np.bool_] = np.zeros(-(-len(mapped) // BLOCK_BYTES), dtype=np.bool_)

    def check_rows(self, place: int, rows: IntArray, row_bytes: int) -> None:
        """Checks rows of a column whose first one lies at this place of the file."""
        if self._is_checked and len(rows) and row_bytes:
            starts = place + rows * row_bytes
            self.check(starts, starts + row_bytes)

    def check_buffer(self, address: int, length: int) -> None:
        """Checks all of a piece of memory that is a part of the mapped file."""
        if self._is_checked and length:
            start = address - self.base_address
            self.check(np.array([start]), np.array([start + length]))

    def check_frame(self) -> None:
        """Checks both ends of the file, which say where everything is; of a small file all of it."""
        length = len(self._content)
        if self._is_checked and length:
            if length <= SMALL_FILE_BYTES:
                self.check(np.array([0]), np.array([length]))
            else:
                self.check(np.array([0, length - BLOCK_BYTES]), np.array([BLOCK_BYTES, length]))

    def check(self, starts: IntArray, stops: IntArray) -> None:
        """Checks the bytes from each start to its stop; raises `DamagedFileError` if some are not as written."""
        if not self._is_checked or not len(starts):
            return
        first, last = starts // BLOCK_BYTES, (stops - 1) // BLOCK_BYTES
        lowest, highest = int(first.min()), int(last.max())
        if self._checked[lowest : highest + 1].all():
            return
        count = highest - lowest + 2
        begun = np.bincount(first - lowest, minlength=count) - np.bincount(last - lowest + 1, minlength=count)
        wanted = lowest + np.flatnonzero(np.cumsum(begun[:-1]) > 0)
        for block in wanted[~self._checked[wanted]].tolist():
            begin = block * BLOCK_BYTES
            if zlib.crc32(self._content[begin : begin + BLOCK_BYTES]) != self._expected[block]:
                raise DamagedFileError(
                    f"{self._path} is damaged between bytes {begin:,} and "
                    f"{min(begin + BLOCK_BYTES, len(self._content)):,}: they are not what was written."
                )
            self._checked[block] = True

    @cached_property
    def _expected(self) -> list[int]:
        path = checksums_path(self._path)
        with _MAKING:
            if not path.exists():
                return self._made(path)
        try:
            with reading(path):
                found: AnyArray = np.fromfile(path, dtype="<u4")
        except OSError as error:
            raise DamagedFileError(f"{path} cannot be read: {error.strerror}.") from error
        is_whole = path.stat().st_size == 4 * len(self._checked) == 4 * len(found)
        if not is_whole or combined(found, len(self._content)) != self._crc32:
            raise DamagedFileError(
                f"{path} is damaged: its checksums are not those of {self._path.name}; remove it, and it will be made "
                "anew if the store is as it was written."
            )
        return [int(checksum) for checksum in found]

    def _made(self, path: Path) -> list[int]:
        """The checksums of a file that has none beside it, put there if the folder can be written to."""
        try:
            with reading(self._path):
                found = checksums_of(self._path)
        except OSError as error:
            raise DamagedFileError(f"{self._path} cannot be read: {error.strerror}.") from error
        if found.crc32 != self._crc32:
            raise DamagedFileError(f"{self._path} is damaged: its checksum is not the one of what was written.")
        with suppress(OSError):
            found.write(self._path)
        return [int(checksum) for checksum in found.blocks]
