"""Computing with one thread."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any


@contextmanager
def one_thread() -> Iterator[None]:
    """Matrices of models are so small that threads only wait for each other: on busy cores ten times as long."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with _pools().limit(limits=1):
            yield
    finally:
        torch.set_num_threads(before)


@cache
def _pools() -> Any:
    from threadpoolctl import ThreadpoolController

    importlib.import_module("scipy.linalg")  # so that its threads are found, too
    return ThreadpoolController()
