"""A federation that is already on disk as a store."""

from __future__ import annotations

from pathlib import Path

from fedarena.core.options import PathOption
from fedarena.data.registry import FEDERATIONS, Progress
from fedarena.data.store.federation import Federation


@FEDERATIONS.register("store")
def store(progress: Progress, *, path: PathOption) -> Federation:
    """Opens the store in the folder `path`, as `FederationWriter` wrote it."""
    return Federation.open(Path(path))
