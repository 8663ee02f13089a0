"""Randomness inside torch modules (initial weights, dropout), which only knows torch's global generator."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


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
    """The same for the global generators of NumPy and Python, too: whatever somebody's own code draws from."""
    numpy_state, python_state = np.random.get_state(), random.getstate()
    np.random.seed(seed % 2**32)
    random.seed(seed)
    try:
        with seeded(seed):
            yield
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)


def other_generators() -> tuple[bytes, int, object]:
    """The states of NumPy's and Python's global generators, to see whether somebody drew from them."""
    _, keys, position, *_ = np.random.get_state()
    return np.asarray(keys).tobytes(), int(position), random.getstate()
