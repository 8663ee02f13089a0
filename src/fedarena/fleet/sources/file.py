"""A fleet that is already on disk."""

from __future__ import annotations

from pathlib import Path

from fedarena.core.options import PathOption
from fedarena.fleet.fleet import Fleet
from fedarena.fleet.registry import FLEETS


@FLEETS.register("file")
def file(phones: int, *, path: PathOption) -> Fleet:
    """Opens the fleet in the folder `path`, as `Fleet.save` wrote it, and checks that nothing in it is damaged."""
    fleet = Fleet.open(Path(path).expanduser())
    fleet.verify()
    return fleet
