"""Randomness inside torch modules (initial weights, dropout), which only knows torch's global generator."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.random import bit_generator


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds torch's CPU generator for the block and puts it back as it was.

    The generator is used directly because `torch.manual_seed` imports the compiler, which takes over a second.
    """
    generator = torch.default_generator
    before = generator.get_state()
    generator.manual_seed(seed)
    try:
        yield
    finally:
        generator.set_state(before)


@contextmanager
def all_seeded(seed: int) -> Iterator[None]:
    """The same for the global generators of NumPy and Python, too: whatever somebody's own code draws from.

    New generators of NumPy that nobody gives a seed (``np.random.default_rng()``) get theirs from Python's.
    """
    numpy_state, python_state = np.random.get_state(), random.getstate()
    np.random.seed(seed % 2**32)
    random.seed(seed)
    entropy = getattr(bit_generator, "randbits", None)  # a name of NumPy's own, which it may change
    bit_generator.randbits = random.getrandbits  # type: ignore[attr-defined]
    try:
        with seeded(seed):
            yield
    finally:
        bit_generator.randbits = entropy  # type: ignore[attr-defined]
        np.random.set_state(numpy_state)
        random.setstate(python_state)


def other_generators() -> tuple[bytes, int, object]:
    """The states of NumPy's and Python's global generators, to see whether somebody drew from them."""
    _, keys, position, *_ = np.random.get_state()
    return np.asarray(keys).tobytes(), int(position), random.getstate()
