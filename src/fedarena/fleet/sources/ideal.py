"""A fleet that never makes anybody wait."""

from __future__ import annotations

from fedarena.fleet.availability import Availability
from fedarena.fleet.fleet import Fleet
from fedarena.fleet.registry import FLEETS
from fedarena.fleet.sources.plain_parts import ideal_devices


@FLEETS.register("ideal")
def ideal(phones: int) -> Fleet:
    """Phones that are always available, compute in no time and transfer at any speed."""
    return Fleet("ideal", ideal_devices(phones), Availability.always(phones), paired=True)
