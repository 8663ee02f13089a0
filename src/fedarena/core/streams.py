"""Random numbers that depend on what they are for, not on what was drawn before.

Every random decision is keyed by ``(seed, purpose, *keys)``, where the keys are usually the round and the client.
Nothing is stored between draws, so a resumed run, another order of clients or another number of workers draws the same
numbers.

>>> generator(7, "cohort", 3).integers(100, size=2).tolist() == generator(7, "cohort", 3).integers(100, size=2).tolist()
True
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

UInt64Array = npt.NDArray[np.uint64]

# splitmix64 (Steele, Lea, Flood, 2014): the golden-ratio increment and the two multipliers of its finalizer.
_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIER_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = np.uint64(0x94D049BB133111EB)
_ALL_BITS = 0xFFFFFFFFFFFFFFFF


def _scramble(x: UInt64Array) -> UInt64Array:
    x = (x ^ (x >> np.uint64(30))) * _MULTIPLIER_1
    x = (x ^ (x >> np.uint64(27))) * _MULTIPLIER_2
    return x ^ (x >> np.uint64(31))


@lru_cache(maxsize=256)
def purpose_bits(purpose: str) -> int:
    """64 bits that stand for a purpose."""
    return int.from_bytes(hashlib.blake2b(purpose.encode(), digest_size=8).digest(), "little")


def bits(seed: int, purpose: str, *keys: int | npt.NDArray[Any]) -> UInt64Array:
    """64 random bits for every combination of keys (arrays broadcast against each other).

    The result is a pure function of its arguments, which makes it the vectorized form of "one stream per client".
    """
    if all(isinstance(key, int) for key in keys):
        return _bits_of_numbers(seed, [purpose_bits(purpose), *map(int, keys)])
    with np.errstate(over="ignore"):
        state = np.array([seed & _ALL_BITS], dtype=np.uint64)
        for key in (purpose_bits(purpose), *keys):
            value = np.asarray(key).astype(np.uint64)
            state = _scramble(state + _INCREMENT * (value + np.uint64(1)))
    scalar = all(np.ndim(key) == 0 for key in keys)
    return state[0] if scalar else state


def _bits_of_numbers(seed: int, keys: list[int]) -> UInt64Array:
    """The same for plain numbers, for which NumPy takes many times as long as Python itself."""
    state = seed & _ALL_BITS
    for key in keys:
        x = (state + int(_INCREMENT) * (key + 1)) & _ALL_BITS
        x = ((x ^ (x >> 30)) * int(_MULTIPLIER_1)) & _ALL_BITS
        x = ((x ^ (x >> 27)) * int(_MULTIPLIER_2)) & _ALL_BITS
        state = x ^ (x >> 31)
    return np.uint64(state)  # type: ignore[return-value]  # as `bits` is of single numbers


def uniform(seed: int, purpose: str, *keys: int | npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Like `bits`, as numbers in [0, 1)."""
    return (bits(seed, purpose, *keys) >> np.uint64(11)).astype(np.float64) * np.float64(2.0**-53)


def generator(seed: int, purpose: str, *keys: int) -> np.random.Generator:
    """A NumPy generator of its own for these keys."""
    key = [int(bits(seed, purpose, *keys)), int(bits(seed, purpose + "/second", *keys))]
    return np.random.Generator(np.random.Philox(key=np.array(key, dtype=np.uint64)))


def torch_seed(seed: int, purpose: str, *keys: int) -> int:
    """A seed for code that insists on torch's own generator, such as weight initialization or dropout."""
    return int(bits(seed, purpose, *keys) >> np.uint64(1))
