"""A process that starts and ends quickly.

Importing torch makes hundreds of thousands of objects. Python looks for garbage among them again and again while they
are made, and once more when it ends, and finds none: that takes a sixth of the time to start and most of that to end.
"""

from __future__ import annotations

import atexit
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module


@contextmanager
def without_collecting() -> Iterator[None]:
    """For imports: what they make is not looked at as garbage, neither now nor later."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def import_for_runs() -> None:
    """Imports what every run needs, among it what torch imports only when it first computes a gradient."""
    os.environ.setdefault("TORCH_WARM_POOL", "0")  # helpers of torch's compiler are started when there is work for them
    with without_collecting():
        for name in ("fedarena.display.running", "torch._dynamo"):
            import_module(name)


def end_quickly() -> None:
    """When the process ends, its memory is given back as a whole; nobody has to look for garbage in it."""
    atexit.register(gc.freeze)
