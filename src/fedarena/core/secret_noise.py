"""Random numbers that protect somebody, so that nobody must be able to guess them or to find them out from others.

`fedarena.core.streams` is for simulations: its numbers are a function of a seed that everybody knows, and made for
speed. Here they are the output of SHAKE-256, a cryptographic function, from a key of 256 bits: whoever knows some of
them learns nothing about others. Only the standard library is needed, because phones have little else.
"""

from __future__ import annotations

import hashlib
import os

import numpy as np
import numpy.typing as npt

KEY_BYTES = 32
_PIECE_WORDS = 1 << 17  # that are made at a time: a megabyte


class SecretStream:
    """Numbers for one purpose, one after the other. The names of its methods are those of NumPy's generators."""

    def __init__(self, prefix: bytes):
        self._prefix, self._pieces = prefix, 0

    def words(self, number: int) -> npt.NDArray[np.uint64]:
        """So many words of 64 bits."""
        found = np.empty(number, dtype=np.uint64)
        for begin in range(0, number, _PIECE_WORDS):
            piece = found[begin : begin + _PIECE_WORDS]
            data = hashlib.shake_256(self._prefix + self._pieces.to_bytes(8, "little")).digest(piece.nbytes)
            piece[:] = np.frombuffer(data, dtype="<u8")
            self._pieces += 1
        return found

    def random(self, number: int) -> npt.NDArray[np.float64]:
        """Numbers in (0, 1]."""
        return ((self.words(number) >> np.uint64(11)) + np.uint64(1)).astype(np.float64) * 2.0**-53

    def standard_normal(self, number: int, dtype: npt.DTypeLike = np.float64) -> npt.NDArray[np.floating]:
        """Standard normal numbers, by the method of Box and Muller; none is beyond 8.5, where one in 10^17 would be."""
        pairs = (number + 1) // 2
        lengths = np.sqrt(-2.0 * np.log(self.random(pairs)))
        angles = 2.0 * np.pi * self.random(pairs)
        both = np.concatenate([lengths * np.cos(angles), lengths * np.sin(angles)])
        return both[:number].astype(dtype)

    def laplace(self, loc: float, scale: float, number: int) -> npt.NDArray[np.float64]:
        """Numbers of the Laplace distribution: exponential ones with a sign."""
        signs = 1.0 - 2.0 * (self.words(number) & np.uint64(1)).astype(np.float64)
        found: npt.NDArray[np.float64] = loc - scale * signs * np.log(self.random(number))
        return found


class SecretSource:
    """Where streams come from. With a key, the same purpose gives the same numbers again, as a resumed run needs.

    Without one, every stream has a key of its own from the operating system: nothing is ever drawn twice, whatever
    somebody else calls the same.
    """

    def __init__(self, key: bytes | None = None):
        if key is not None and len(key) != KEY_BYTES:
            raise ValueError(f"A key has {KEY_BYTES} bytes, not {len(key)}")
        self._key = key

    def stream(self, *purpose: str | int) -> SecretStream:
        """The numbers for a purpose, which is some words and numbers."""
        key = os.urandom(KEY_BYTES) if self._key is None else self._key
        return SecretStream(key + hashlib.sha256(repr(purpose).encode()).digest())
