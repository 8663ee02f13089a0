"""Randomness inside torch modules (initial weights, dropout), which only knows torch's global generator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
