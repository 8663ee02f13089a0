"""Devices of one fleet with the availability of another, for sources that tell only one of them."""

from __future__ import annotations

from typing import Annotated, Any

from fedarena.core.registry import Choice
from fedarena.fleet.fleet import Fleet
from fedarena.fleet.registry import FLEETS, load_fleet


@FLEETS.register("combined")
def combined(
    phones: int,
    *,
    devices: Annotated[dict[str, Any], Choice(FLEETS)],
    availability: Annotated[dict[str, Any], Choice(FLEETS)],
) -> Fleet:
    """A client gets a device of the fleet `devices` and, independently, an availability of the fleet `availability`."""
    return Fleet(
        "combined", load_fleet(devices, phones).devices, load_fleet(availability, phones).availability, paired=False
    )
