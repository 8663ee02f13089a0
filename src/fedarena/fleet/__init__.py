"""Fleets: for every client a device and an availability, where they come from, how they are stored and described."""

from fedarena.fleet import sources  # noqa: F401 - importing them fills the registry
from fedarena.fleet.arrays import Ragged
from fedarena.fleet.availability import Availability
from fedarena.fleet.devices import Devices
from fedarena.fleet.fleet import ClientFleet, Fleet
from fedarena.fleet.registry import FLEETS, load_fleet, load_fleet_with_notes
from fedarena.fleet.statistics import describe_fleet

__all__ = [
    "FLEETS",
    "Availability",
    "ClientFleet",
    "Devices",
    "Fleet",
    "Ragged",
    "describe_fleet",
    "load_fleet",
    "load_fleet_with_notes",
]
