"""Who is available when a simulated round begins: clients that never leave, or clients that come and go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedarena.fleet.arrays import AnyArray, BoolArray, FloatArray, IntArray
from fedarena.fleet.heterogeneity.calendar import Calendar, Slots
from fedarena.fleet.heterogeneity.timetable import Timetable


@dataclass(frozen=True, eq=False)
class Beginnings:
    """Rounds that begin: in which simulation (its stream of random numbers), the how manieth it is there, and when."""

    streams_of: IntArray
    rounds: IntArray
    times: FloatArray

    def __len__(self) -> int:
        return len(self.times)

    def take(self, positions: AnyArray) -> Beginnings:
        """Those at `positions`."""
        return Beginnings(self.streams_of[positions], self.rounds[positions], self.times[positions])


@dataclass(frozen=True, eq=False)
class Present:
    """Clients in several rounds that begin: for each client the position of the round, in ascending order."""

    rows: IntArray
    clients: IntArray
    slots: Slots | None = None  # where in their availability they are, if that is known already

    def take(self, positions: AnyArray) -> Present:
        """Those at `positions`."""
        return Present(
            self.rows[positions], self.clients[positions], None if self.slots is None else self.slots.take(positions)
        )


class Crowd(Protocol):
    """Clients, of whom some are available.

    Where more than `many` times as many as are wanted usually are, drawing from everybody is quicker than a list of
    them.
    """

    clients: int
    many: float

    @property
    def usually_there(self) -> float:
        """How many clients are available on average."""

    def everybody(self, rounds: Beginnings) -> Present:
        """All who are available."""

    def are_there(self, rounds: Beginnings, clients: IntArray) -> BoolArray:
        """Whether these clients, a row for every round, are available."""


class AlwaysThere:
    """Clients that never leave."""

    many = 2.0

    def __init__(self, clients: int):
        self.clients = clients
        self.usually_there = float(clients)

    def everybody(self, rounds: Beginnings) -> Present:
        """All, in every round."""
        return Present(*np.divmod(np.arange(len(rounds) * self.clients), self.clients))

    def are_there(self, rounds: Beginnings, clients: IntArray) -> BoolArray:
        """They are."""
        return np.ones(clients.shape, dtype=np.bool_)


class ComingAndGoing:
    """Clients of a calendar. For a while, who is there may be written down in a timetable."""

    many = 25.0

    def __init__(self, calendar: Calendar):
        self.clients = calendar.clients
        self.usually_there = float(calendar.shares.sum())
        self.timetable: Timetable | None = None
        self._calendar = calendar

    def everybody(self, rounds: Beginnings) -> Present:
        """All who are available: as the timetable says, or by asking each."""
        if self.timetable is not None:
            return Present(*self.timetable.available(rounds.times))
        everyone = np.arange(self.clients)
        there = [np.flatnonzero(self._are_there(everyone, time)) for time in rounds.times]
        rows = np.repeat(np.arange(len(rounds)), [len(clients) for clients in there])
        return Present(rows, np.concatenate(there))

    def are_there(self, rounds: Beginnings, clients: IntArray) -> BoolArray:
        """Looks each of them up."""
        return self._are_there(clients, rounds.times[:, None])

    def _are_there(self, clients: IntArray, times: FloatArray) -> BoolArray:
        return self._calendar.are_there(clients, self._calendar.client_times(clients, times))
