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
    dtype, caches = torch.get_default_dtype(), torch.is_autocast_cache_enabled()
    autocast = {device: torch.is_autocast_enabled(device) for device in ("cpu", "cuda")}
    torch.set_default_dtype(torch.float32)
    # Not `torch.autocast(enabled=False)`: within it, parameters that own code has cast stay so when they have changed.
    torch.set_autocast_cache_enabled(False)
    for device in autocast:
        torch.set_autocast_enabled(device, False)
    try:
        with torch.inference_mode(False):
            yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_autocast_cache_enabled(caches)
        for device, enabled in autocast.items():
            torch.set_autocast_enabled(device, enabled)
