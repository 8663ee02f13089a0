"""A process that starts and ends quickly.

Importing torch makes hundreds of thousands of objects. Python looks for garbage among them again and again while they
are made, and once more when it ends, and finds none: that takes a sixth of the time to start and most of that to end.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import MetaPathFinder
from typing import Any


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
    """Imports what every run needs, and torch's compiler where there is a GPU to compile for."""
    os.environ.setdefault("TORCH_WARM_POOL", "0")  # helpers of torch's compiler are started when there is work for them
    with without_collecting():
        import_module("fedarena.display.running")
        if import_module("torch.cuda").is_available():
            import_module("torch._dynamo")


def import_for_serving() -> None:
    """The same for a server, which computes no gradients and keeps its memory for models."""
    with without_collecting():
        import_module("fedarena.display.deploying")
    make_arrow_do_without_pandas()


def make_arrow_do_without_pandas() -> None:
    """Arrow looks for pandas when it gets its first array, and 60 MB of memory are gone; now it finds none.

    Whoever imports pandas later gets it, but Arrow's tables cannot be converted to it in this process.
    """
    if "pandas" in sys.modules:
        return
    import numpy as np
    import pyarrow as pa

    nothing = _Nothing()
    sys.meta_path.insert(0, nothing)
    try:
        pa.array(np.zeros(1))
    finally:
        sys.meta_path.remove(nothing)


class _Nothing(MetaPathFinder):
    """Has everybody believe that there is no pandas."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        """Ends the search."""
        if fullname == "pandas":
            raise ImportError("pandas is not wanted here")


def end_quickly() -> None:
    """When the process ends, its memory is given back as a whole; nobody has to look for garbage in it."""
    atexit.register(gc.freeze)
