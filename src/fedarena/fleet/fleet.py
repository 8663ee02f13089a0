"""A fleet: devices and availabilities, and which client has which of them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.fleet import matching, storage
from fedarena.fleet.arrays import AnyArray, BoolArray, FloatArray, Int32Array, IntArray, known_rows
from fedarena.fleet.availability import Availability, Leaving, Times
from fedarena.fleet.devices import Devices
from fedarena.fleet.intervals import seconds_before


@dataclass(frozen=True, eq=False)
class Fleet:
    """Devices that clients can be matched to.

    `paired` says that row i of the devices and of the availability is the same device; otherwise they come from
    different sources, and a client gets one of each. `in_order` says that devices are those of the clients themselves:
    the first is the first client's, and nothing is drawn.
    """

    name: str
    devices: Devices
    availability: Availability
    paired: bool = False
    in_order: bool = False

    def __post_init__(self) -> None:
        if not len(self.devices) or not len(self.availability):
            raise BadInputError(f"The fleet {self.name!r} has no phones; it needs at least one.")
        if self.paired and len(self.devices) != len(self.availability):
            raise BadInputError(
                f"The fleet {self.name!r} has {len(self.devices)} devices and {len(self.availability)} availabilities; "
                "where they belong together there must be equally many."
            )

    @cached_property
    def fingerprint(self) -> str:
        """A hash of everything that decides what devices do."""
        return self._computed_fingerprint()

    @cached_property
    def trace_fingerprint(self) -> str | None:
        """A hash of when traces started, which is no part of what devices do, if that is known."""
        return self._computed_trace_fingerprint()

    def save(self, path: Path | str) -> None:
        """Writes the fleet to the folder `path`, which must not exist yet."""
        manifest = {"name": self.name, "paired": self.paired, "fingerprint": self.fingerprint}
        if self.in_order:
            manifest["in_order"] = True
        if self.trace_fingerprint is not None:
            manifest["trace_fingerprint"] = self.trace_fingerprint
        storage.write_fleet(Path(path), manifest, self.devices, self.availability)

    def verify(self) -> None:
        """Reads everything and raises `DamagedFileError` where it is not what was saved."""
        sums = seconds_before(self.availability.offsets, self.availability.starts, self.availability.ends)
        if (
            self._computed_fingerprint() != self.fingerprint
            or self._computed_trace_fingerprint() != self.trace_fingerprint
            or not np.array_equal(sums, self.availability.before)
        ):
            raise DamagedFileError(f"The fleet {self.name!r} is damaged: its numbers are not the ones that were saved.")

    @classmethod
    def open(cls, path: Path | str) -> Fleet:
        """Opens the fleet in the folder `path` without reading it: its arrays are views of the files."""
        manifest, devices, availability = storage.read_fleet(Path(path))
        fleet = cls(manifest["name"], devices, availability, manifest["paired"], bool(manifest.get("in_order")))
        for name in ("fingerprint", "trace_fingerprint"):
            fleet.__dict__[name] = manifest.get(name)  # where cached_property would put it
        return fleet

    def match(self, clients: IntArray, sizes: IntArray | None, seed: int, correlation: float = 0.0) -> ClientFleet:
        """Gives every client a device and an availability.

        Where there are enough devices nobody shares one; otherwise all are used equally often, give or take one.
        `correlation` is between -1 and 1: how much clients with many samples (`sizes`, of the same order as
        `clients`) tend to have devices that compute fast.
        """
        if not -1 <= correlation <= 1:
            raise BadInputError(f"A correlation must be between -1 and 1, not {correlation}.")
        # In ascending order, so that the order in which clients are given does not matter.
        indexes = np.asarray(clients, dtype=np.int64)
        order = np.argsort(indexes) if (indexes[1:] <= indexes[:-1]).any() else np.arange(len(indexes))
        indexes = indexes[order]
        if (indexes[:1] < 0).any() or (indexes[1:] == indexes[:-1]).any():
            raise ValueError("clients must be different and not negative")
        if self.in_order:
            if len(indexes) != len(self.devices) or correlation:
                raise BadInputError(
                    f"The fleet {self.name!r} has the devices of {len(self.devices)} clients, one after the other, and "
                    f"there are {len(indexes)} clients; set fleet.in_order=false, or choose the clients it was made of"
                )
            own = _lookup(indexes, np.arange(len(indexes)))
            return ClientFleet(self, own, own)
        devices = matching.draw_devices(len(self.devices), len(indexes), seed, "fleet/device")
        if correlation != 0:
            if sizes is None or len(sizes) != len(indexes):
                raise ValueError("a correlation needs the size of every client's data")
            speeds = matching.compute_speeds(self.devices)
            devices = matching.correlate(devices, speeds, np.asarray(sizes)[order], correlation, seed)
        availabilities = devices
        if not self.paired:
            availabilities = matching.draw_devices(len(self.availability), len(indexes), seed, "fleet/availability")
        return ClientFleet(self, _lookup(indexes, devices), _lookup(indexes, availabilities))

    def _computed_fingerprint(self) -> str:
        arrays = [array for part in (self.devices, self.availability) for array in storage.arrays_of(part)]
        return _fingerprint(str(self.paired) + " in order" * self.in_order, arrays)

    def _computed_trace_fingerprint(self) -> str | None:
        starts = self.availability.trace_starts
        return None if starts is None else _fingerprint("", [starts])


@dataclass(frozen=True, eq=False)
class ClientFleet:
    """A fleet as its clients see it: client i has the device and the availability in these rows; -1 if it has none."""

    fleet: Fleet
    device_of: Int32Array
    availability_of: Int32Array

    def is_available(self, clients: IntArray, times: Times) -> BoolArray:
        """Whether clients are available at these times."""
        return self.fleet.availability.is_available(self._availabilities(clients), times)

    def next_available(self, clients: IntArray, times: Times) -> FloatArray:
        """When clients are available the next time: now, if they are; infinity, if never."""
        return self.fleet.availability.next_available(self._availabilities(clients), times)

    def leaves_at(self, clients: IntArray, times: Times) -> FloatArray:
        """When clients that are available leave (infinity, if never); the time itself for those that are not."""
        return self.fleet.availability.leaves_at(self._availabilities(clients), times)

    def available_seconds(self, clients: IntArray, begin: Times, end: Times) -> FloatArray:
        """For how long clients are available from `begin` to `end`."""
        return self.fleet.availability.available_seconds(self._availabilities(clients), begin, end)

    def finish_time(self, clients: IntArray, times: Times, work_seconds: Times, leaving: Leaving) -> FloatArray:
        """When clients that begin at `times` have worked for `work_seconds`; see `Availability.finish_time`."""
        return self.fleet.availability.finish_time(self._availabilities(clients), times, work_seconds, leaving)

    def _availabilities(self, clients: IntArray) -> Int32Array:
        return self.availability_of[known_rows(clients, len(self.availability_of))]


def _fingerprint(text: str, arrays: Sequence[AnyArray]) -> str:
    digest = hashlib.blake2b(text.encode(), digest_size=16)
    for array in arrays:
        digest.update(f"{array.dtype.str} {len(array)};".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _lookup(clients: IntArray, rows: IntArray) -> Int32Array:
    """A table from the index of a client to its row."""
    table = np.full(int(clients[-1]) + 1 if len(clients) else 0, -1, dtype=np.int32)
    table[clients] = rows
    return table
