"""Simulated training of which only the course of time matters: many simulations at once, round by round.

Before every round passes the break. Then clients that are available are invited; where nobody is, that was the round. A
client that leaves pauses, and goes on when it is back. A round of a deadline lasts until its last client is done, but
no longer than the deadline; a round of readiness until the given share of its clients is done.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedarena.fleet.arrays import BoolArray, FloatArray, IntArray
from fedarena.fleet.heterogeneity.availability_index import AvailabilityIndex
from fedarena.fleet.heterogeneity.availability_windows import AvailabilityWindows
from fedarena.fleet.heterogeneity.costs import DeviceCosts
from fedarena.fleet.heterogeneity.invitations import Invitations
from fedarena.fleet.heterogeneity.options import HeterogeneityOptions
from fedarena.fleet.heterogeneity.populations import (
    AlwaysAvailable,
    AvailableClients,
    IntermittentlyAvailable,
    RoundStarts,
)
from fedarena.fleet.heterogeneity.random_choices import PublishedChoices, choices_of

Progress = Callable[[float], None]

_MOST_AT_ONCE = 1_000_000
_PATIENCE = 50  # rounds without anybody, one after the other, before it is asked whether that ever ends
_ROUNDS_BETWEEN_REPORTS = 100


@dataclass(frozen=True, eq=False)
class SimulationPlan:
    """Simulations to be made, one in every position."""

    streams_of: IntArray  # of random numbers
    cost_seconds: FloatArray  # what everybody takes; NaN: what devices take
    with_deadline: BoolArray  # otherwise with readiness

    def __len__(self) -> int:
        return len(self.streams_of)


@dataclass(frozen=True, eq=False)
class SimulationOutcome:
    """How simulations went: for those with a deadline how often each client was in time, and how long all took."""

    in_time: IntArray
    seconds: FloatArray


class RoundRules:
    """What rounds of both kinds have in common."""

    def __init__(self, options: HeterogeneityOptions):
        self._options = options

    def is_in_time(self, seconds: FloatArray) -> BoolArray:
        """Whether clients that take so long meet the deadline."""
        limit = self._options.deadline_seconds
        return seconds <= limit if self._options.inclusive_deadline else seconds < limit

    def lengths(self, rows: IntArray, counts: IntArray, seconds: FloatArray, with_deadline: BoolArray) -> FloatArray:
        """How long rounds last that have so many clients, which take so many seconds; `rows` are ascending."""
        if not len(seconds):
            return np.zeros(len(counts))
        ordered = seconds[np.lexsort((seconds, rows))]
        last = np.cumsum(counts) - 1
        # Between two clients the quantile is interpolated, to the last bit as NumPy does it.
        place = np.where(with_deadline, 1.0, self._options.ready_share) * (counts - 1)
        below = np.floor(place)
        part = place - below
        first = np.minimum(last - counts + 1 + below.astype(np.int64), len(ordered) - 1)
        lower, upper = ordered[first], ordered[np.minimum(first + 1, last)]
        apart = upper - lower
        lengths = np.where(part < 0.5, lower + part * apart, upper - (1 - part) * apart)
        lengths = np.where(with_deadline, np.minimum(lengths, self._options.deadline_seconds), lengths)
        return np.where(counts > 0, lengths, 0.0)


def simulate_always_available(
    plan: SimulationPlan, costs: DeviceCosts, clients: int, options: HeterogeneityOptions
) -> SimulationOutcome:
    """Simulations in which nobody ever leaves. Rounds do not depend on each other, so they are made together."""
    choices = choices_of(options)
    invitations = Invitations(AlwaysAvailable(clients), choices, options.cohort, options.seed)
    rules = RoundRules(options)
    in_time = np.zeros((len(plan), clients), dtype=np.int64)
    seconds = np.zeros(len(plan))
    at_once = max(1, _MOST_AT_ONCE // (4 * options.cohort if invitations.draws else clients))
    for simulation, (stream, has_deadline) in enumerate(zip(plan.streams_of, plan.with_deadline, strict=True)):
        number = options.rounds if has_deadline else math.ceil(options.trips / options.cohort)
        for begin in range(0, number, at_once):
            rounds = np.arange(begin, min(begin + at_once, number))
            rows = np.repeat(np.arange(len(rounds)), options.cohort)
            if isinstance(choices, PublishedChoices):
                invited, *picked = choices.choose_for_rounds(stream, len(rounds), clients, options.cohort, costs.lists)
                taken = costs.seconds(invited, *picked)
            else:
                streams_of = np.full(len(rounds), stream)
                invited = invitations.invite(RoundStarts(streams_of, rounds, np.zeros(len(rounds)))).clients
                taken = costs.draw(choices, streams_of[rows], rounds[rows], invited)
            in_time[simulation] += np.bincount(invited[rules.is_in_time(taken)], minlength=clients)
            counts = np.full(len(rounds), options.cohort)
            lengths = rules.lengths(rows, counts, taken, np.full(len(rounds), has_deadline))
            seconds[simulation] += lengths.sum() + options.break_seconds * len(rounds)
    return SimulationOutcome(in_time, seconds)


class MonteCarloRounds:
    """Simulations in which clients come and go; all take their next round at once."""

    def __init__(
        self, plan: SimulationPlan, index: AvailabilityIndex, costs: DeviceCosts | None, options: HeterogeneityOptions
    ):
        self._plan, self._index, self._costs, self._options = plan, index, costs, options
        self._population = IntermittentlyAvailable(index)
        self._choices = choices_of(options)
        self._invitations = Invitations(self._population, self._choices, options.cohort, options.seed)
        self._rules = RoundRules(options)
        # Times that are rounded up stay the same steps apart only if these are whole.
        self._repeats = not options.whole_seconds or float(options.break_seconds).is_integer()
        self._clocks = np.zeros(len(plan))
        self._rounds = np.zeros(len(plan), dtype=np.int64)
        self._trips = np.zeros(len(plan), dtype=np.int64)
        self._waited = np.zeros(len(plan), dtype=np.int64)  # rounds without anybody since the last with somebody
        # Only simulations with a deadline need to know who was in time.
        self._counted = np.cumsum(plan.with_deadline) - 1
        self._in_time = np.zeros((int(plan.with_deadline.sum()), index.clients), dtype=np.int32)

    def run(self, progress: Progress | None = None) -> SimulationOutcome:
        """All rounds of all simulations."""
        span_seconds = self._options.rounds * (self._options.deadline_seconds + self._options.break_seconds)
        steps = 0
        unfinished = np.arange(len(self._plan))
        while len(unfinished):
            if not self._invitations.draws:
                begin = float(self._clocks[unfinished].min()) + self._options.break_seconds
                self._population.windows = AvailabilityWindows(self._index, begin, span_seconds)
                span_seconds *= 2
            unfinished = self._unfinished(unfinished)
            while len(now := self._in_windows(unfinished)):
                self._step(now)
                unfinished = self._unfinished(unfinished)
                steps += 1
                if progress is not None and steps % _ROUNDS_BETWEEN_REPORTS == 0:
                    progress(self._share_done())
        in_time = np.zeros((len(self._plan), self._index.clients), dtype=np.int64)
        in_time[self._plan.with_deadline] = self._in_time
        return SimulationOutcome(in_time, self._clocks)

    def _step(self, now: IntArray) -> None:
        """One round of the simulations at `now`."""
        times = self._clocks[now] + self._options.break_seconds
        asked = self._index.lookup_times(times)
        invited = self._invitations.invite(RoundStarts(self._plan.streams_of[now], self._rounds[now], asked))
        taken = self._seconds_taken(invited, now, asked)
        counts = np.bincount(invited.rows, minlength=len(now))
        lengths = self._rules.lengths(invited.rows, counts, taken, self._plan.with_deadline[now])
        times_over = self._times_over(now, asked, invited, counts, taken, lengths)
        self._clocks[now] = times + lengths + (times_over - 1) * (self._options.break_seconds + lengths)
        self._rounds[now] += times_over
        self._trips[now] += counts * times_over
        succeeded = self._rules.is_in_time(taken) & self._plan.with_deadline[now[invited.rows]]
        rows = invited.rows[succeeded]
        self._in_time[self._counted[now[rows]], invited.clients[succeeded]] += times_over[rows]
        self._waited[now] = np.where(counts > 0, 0, self._waited[now] + 1)
        for simulation in now[counts == 0]:
            self._wait(simulation)

    def _seconds_taken(self, invited: AvailableClients, now: IntArray, times: FloatArray) -> FloatArray:
        """How long invited clients take, with the pauses in between."""
        rows, clients = invited.rows, invited.clients
        work = self._work_of(now)[rows]
        by_device = np.flatnonzero(np.isnan(work))
        if len(by_device):
            assert self._costs is not None
            whose = now[rows[by_device]]
            work[by_device] = self._costs.draw(
                self._choices, self._plan.streams_of[whose], self._rounds[whose], clients[by_device]
            )
            if self._options.whole_seconds:
                work[by_device] = np.ceil(work[by_device])
        begins = self._index.client_times(clients, times[rows])
        slots = invited.slots
        if slots is None:
            slots = self._index.find(clients, begins)[1]
        interrupted = np.flatnonzero(begins + work > slots.ends)
        if len(interrupted):
            finished = self._index.finish(
                clients[interrupted], slots.take(interrupted), begins[interrupted], work[interrupted]
            )
            work[interrupted] = finished - begins[interrupted]
        return work

    def _times_over(
        self,
        now: IntArray,
        asked: FloatArray,
        invited: AvailableClients,
        counts: IntArray,
        taken: FloatArray,
        lengths: FloatArray,
    ) -> IntArray:
        """How often the same round follows upon itself, this time included.

        That is so where all who are there are invited, everybody takes the same time without a pause, and nobody comes
        or goes in the meantime.
        """
        times_over = np.ones(len(now), dtype=np.int64)
        if self._population.windows is None or not self._repeats:
            return times_over
        costs = self._work_of(now)
        same = (counts > 0) & (counts < self._options.cohort) & ~np.isnan(costs)
        same[invited.rows[taken != costs[invited.rows]]] = False
        rows = np.flatnonzero(same)
        if not len(rows):
            return times_over
        latest = np.ceil(asked[rows]) if self._options.whole_seconds else asked[rows]
        room = self._population.windows.steady_until(rows) - latest - costs[rows]
        apart = self._options.break_seconds + lengths[rows]
        more = np.floor(np.maximum(room, 0.0) / apart).astype(np.int64)
        # A round in which nothing takes any time must begin before somebody comes or goes, not at that very moment.
        more -= (costs[rows] == 0) & (more > 0) & (more * apart >= room)
        left = np.where(
            self._plan.with_deadline[now[rows]],
            self._options.rounds - self._rounds[now[rows]],
            -(-(self._options.trips - self._trips[now[rows]]) // counts[rows]),
        )
        times_over[rows] = np.minimum(1 + more, left)
        return times_over

    def _work_of(self, now: IntArray) -> FloatArray:
        """What everybody has to work in these simulations; NaN, where that depends on devices."""
        costs = self._plan.cost_seconds[now]
        return np.ceil(costs) if self._options.whole_seconds else costs

    def _wait(self, simulation: int) -> None:
        """Lets the rounds pass in which still nobody can be there."""
        clock, pause = float(self._clocks[simulation]), self._options.break_seconds
        rounded_up, has_deadline = self._options.whole_seconds, self._plan.with_deadline[simulation]
        earliest = self._index.earliest(math.ceil(clock) if rounded_up else clock)
        if not has_deadline and (
            math.isinf(earliest)
            or (self._waited[simulation] % _PATIENCE == 0 and not self._index.ever_met(clock, pause))
        ):
            self._clocks[simulation] = np.inf
            return
        # Rounds that begin before that: less than a second early is early enough if times are rounded up.
        breaks = min((earliest - rounded_up - clock) / pause, 2.0**53)
        passed = max(0, math.floor(breaks) if rounded_up else math.ceil(breaks) - 1)
        if has_deadline:
            passed = min(passed, self._options.rounds - int(self._rounds[simulation]))
        self._clocks[simulation] = clock + passed * pause
        self._rounds[simulation] += passed

    def _unfinished(self, simulations: IntArray) -> IntArray:
        rounds, trips = self._rounds[simulations], self._trips[simulations]
        goes_on = np.where(
            self._plan.with_deadline[simulations], rounds < self._options.rounds, trips < self._options.trips
        )
        return simulations[goes_on & np.isfinite(self._clocks[simulations])]

    def _in_windows(self, simulations: IntArray) -> IntArray:
        if self._population.windows is None:
            return simulations
        # A second less, because the time may be rounded up.
        return simulations[self._clocks[simulations] + self._options.break_seconds <= self._population.windows.end - 1]

    def _share_done(self) -> float:
        by_rounds = self._rounds / self._options.rounds
        by_trips = np.where(np.isfinite(self._clocks), self._trips / self._options.trips, 1.0)
        return float(np.minimum(np.where(self._plan.with_deadline, by_rounds, by_trips), 1.0).mean())
