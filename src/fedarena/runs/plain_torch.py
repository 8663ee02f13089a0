"""Torch as it comes: what a script has switched for models of its own is not for runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def plain_torch() -> Iterator[None]:
    """Within this context, or a function that it decorates, gradients may be asked for, and nothing is rounded.

    Numbers are in single precision unless somebody says otherwise: random ones in double precision are others.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.inference_mode(False), torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            yield
    finally:
        torch.set_default_dtype(before)
