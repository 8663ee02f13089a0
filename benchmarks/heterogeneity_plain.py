"""The heterogeneity metrics as a plain loop, the way the published code goes about it.

One simulation after the other, one round after the other, one client after the other: whether it is there is looked up
in an array of its seconds, and where it is among its available seconds by going through them. With NumPy's generator it
draws the same random numbers as the fast path does with `random_numbers="published"`, so that both must find the same
values.

Going through all available seconds is most of the work. With `searches` they are searched by halves instead, which is
what a careful author of the same loop would do; a comparison should show both.
"""

from __future__ import annotations

import math

import numpy as np

from fedarena.fleet import Fleet
from fedarena.fleet.heterogeneity import METRICS, HeterogeneityOptions


class PlainFleet:
    """Every second of a client's period, and the seconds in which it is available."""

    def __init__(self, fleet: Fleet, options: HeterogeneityOptions, searches: bool = False):
        availability, devices = fleet.availability, fleet.devices
        assert devices.measured_download is not None
        self.options, self.searches = options, searches
        self.seconds: list[np.ndarray] = []
        self.speeds = [
            devices.measured_download.values[first:last]
            for first, last in zip(
                devices.measured_download.offsets, devices.measured_download.offsets[1:], strict=False
            )
        ]
        for row in range(len(availability)):
            there = np.zeros(availability.periods[row], dtype=np.int8)
            for interval in range(availability.offsets[row], availability.offsets[row + 1]):
                there[availability.starts[interval] : availability.ends[interval]] = 1
            self.seconds.append(there)
        self.there = [np.flatnonzero(seconds) for seconds in self.seconds]
        self.trace_starts = None if availability.trace_starts is None else availability.trace_starts.tolist()

    def second(self, client: int, clock: float) -> int:
        """The second in which a client is looked up, rounded by the start of its trace."""
        if self.trace_starts is None:
            return math.ceil(clock)
        return int(self.trace_starts[client] + int(clock - self.trace_starts[client]))

    def position(self, client: int, second: int) -> int:
        return second % len(self.seconds[client])

    def is_there(self, client: int, second: int) -> bool:
        return bool(self.seconds[client][self.position(client, second)] == 1)

    def paused(self, client: int, second: int, work: float) -> int:
        """How long a client that is there in this second takes for so many seconds of work."""
        there, period = self.there[client], len(self.seconds[client])
        whole = math.ceil(work)
        if whole <= 0:
            return 0
        position = self.position(client, second)
        place = np.searchsorted(there, position) if self.searches else np.flatnonzero(there == position)[0]
        last = int(place) + whole - 1
        periods, place = divmod(last, len(there))
        return int(periods * period + there[place] - position + 1)

    def simulate(self, cost: float | None, with_deadline: bool, leaving: bool) -> tuple[list[int], float]:
        """How often clients are in time, and the time in the end."""
        options, random = self.options, np.random.default_rng(self.options.seed)
        clients, cohort = len(self.seconds), options.cohort
        in_time = [0] * clients
        clock, rounds, trips = 0.0, 0, 0
        while (rounds < options.rounds) if with_deadline else (trips < options.trips):
            clock += options.break_seconds
            ready = list(range(clients))
            if leaving:
                ready = [client for client in ready if self.is_there(client, self.second(client, clock))]
            chosen = random.choice(ready, cohort, replace=False) if len(ready) >= cohort else ready
            taken = []
            for client in chosen:
                seconds = cost
                if seconds is None:
                    down, up = random.choice(self.speeds[client], 2)
                    seconds = 8 * options.model_bytes / down + 8 * options.model_bytes / up
                if leaving:
                    seconds = self.paused(client, self.second(client, clock), seconds)
                if with_deadline and seconds <= options.deadline_seconds:
                    in_time[client] += 1
                taken.append(min(seconds, options.deadline_seconds) if with_deadline else seconds)
            if taken:
                clock += max(taken) if with_deadline else np.percentile(taken, 100 * options.ready_share)
            rounds += 1
            trips += len(chosen)
        return in_time, clock

    def metrics(self) -> dict[str, float]:
        """All six, for one repetition."""
        options, clients = self.options, len(self.seconds)
        ideal = options.cohort / clients * options.rounds
        found = {}
        for name in METRICS:
            with_deadline, leaving = name.endswith("R"), not name.startswith("Dev")
            costs: list[float | None] = [None]
            if name.startswith("Stat"):
                costs = list(options.deadline_costs(0) if with_deadline else options.readiness_costs(0))
            values = []
            for cost in costs:
                in_time, clock = self.simulate(cost, with_deadline, leaving)
                if with_deadline:
                    clipped = sum(min(times, ideal) for times in in_time)
                    values.append(math.log(1 + clipped) / math.log(1 + clients * ideal))
                else:
                    values.append(clock / (options.trips / options.cohort * options.break_seconds))
            found[name] = float(np.mean(values))
        return found
