"""Who is available when a simulated round begins: clients that never leave, or clients that come and go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedarena.fleet.arrays import AnyArray, BoolArray, FloatArray, IntArray
from fedarena.fleet.heterogeneity.availability_index import AvailabilityIndex, Slots
from fedarena.fleet.heterogeneity.availability_windows import AvailabilityWindows


@dataclass(frozen=True, eq=False)
class RoundStarts:
    """Rounds that begin: in which simulation (its stream of random numbers), the how manieth it is there, and when."""

    streams_of: IntArray
    rounds: IntArray
    times: FloatArray

    def __len__(self) -> int:
        return len(self.times)

    def take(self, positions: AnyArray) -> RoundStarts:
        """Those at `positions`."""
        return RoundStarts(self.streams_of[positions], self.rounds[positions], self.times[positions])


@dataclass(frozen=True, eq=False)
class AvailableClients:
    """Clients in several rounds that begin: for each client the position of the round, in ascending order."""

    rows: IntArray
    clients: IntArray
    slots: Slots | None = None  # where in their availability they are, if that is known already

    def take(self, positions: AnyArray) -> AvailableClients:
        """Those at `positions`."""
        return AvailableClients(
            self.rows[positions], self.clients[positions], None if self.slots is None else self.slots.take(positions)
        )


class Population(Protocol):
    """Clients, of whom some are available.

    Where more than `drawing_ratio` times as many as are wanted are available on average, drawing from everybody is
    quicker than a list of them.
    """

    clients: int
    drawing_ratio: float

    @property
    def mean_available(self) -> float:
        """How many clients are available on average."""

    def all_available(self, rounds: RoundStarts) -> AvailableClients:
        """All who are available."""

    def are_available(self, rounds: RoundStarts, clients: IntArray) -> BoolArray:
        """Whether these clients, a row for every round, are available."""


class AlwaysAvailable:
    """Clients that never leave."""

    drawing_ratio = 2.0

    def __init__(self, clients: int):
        self.clients = clients
        self.mean_available = float(clients)

    def all_available(self, rounds: RoundStarts) -> AvailableClients:
        """All, in every round."""
        return AvailableClients(*np.divmod(np.arange(len(rounds) * self.clients), self.clients))

    def are_available(self, rounds: RoundStarts, clients: IntArray) -> BoolArray:
        """They are."""
        return np.ones(clients.shape, dtype=np.bool_)


class IntermittentlyAvailable:
    """Clients that come and go. For a while, who is available when may be written down in windows of time."""

    drawing_ratio = 25.0

    def __init__(self, index: AvailabilityIndex):
        self.clients = index.clients
        self.mean_available = float(index.shares.sum())
        self.windows: AvailabilityWindows | None = None
        self._index = index

    def all_available(self, rounds: RoundStarts) -> AvailableClients:
        """All who are available: as the windows say, or by asking each."""
        if self.windows is not None:
            return AvailableClients(*self.windows.available(rounds.times))
        everyone = np.arange(self.clients)
        there = [np.flatnonzero(self._are_available(everyone, time)) for time in rounds.times]
        rows = np.repeat(np.arange(len(rounds)), [len(clients) for clients in there])
        return AvailableClients(rows, np.concatenate(there))

    def are_available(self, rounds: RoundStarts, clients: IntArray) -> BoolArray:
        """Looks each of them up."""
        return self._are_available(clients, rounds.times[:, None])

    def _are_available(self, clients: IntArray, times: FloatArray) -> BoolArray:
        return self._index.are_available(clients, self._index.client_times(clients, times))
