"""What asynchronous protocols share: phones come and go while the server goes on."""

from __future__ import annotations

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.simulate.jobs import FloatArray, Jobs, Outcome, join_jobs, no_jobs
from fedarena.simulate.protocols.base import Clock, Protocol, RoundPlan
from fedarena.simulate.world import World
from fedarena.train.engine import IntArray

# A round in which so many times the clients it is about have failed is given up.
_PATIENCE = 20
# Places that are filled in one go, though those invited last may turn out to be invited too early: at least so many,
# and such a part of large cohorts.
_AT_ONCE = 32
_PARTS = 30


class Concurrent(Protocol):
    """Keeps as many clients training as the cohort is large: whenever a job ends, somebody else is invited.

    There is no pause between rounds: the server makes its step while others train. Nobody has two jobs that end in the
    same round. Where nobody is available, a place stays empty until the next job ends; where nobody is training any
    more, the round ends with what has arrived.
    """

    overlaps = True
    size_option: str  # which setting says how many updates make a round
    updates_per_step: int
    steps_per_round: int
    max_staleness: int | None

    def prepare(self, cohort: int, population: int) -> None:
        """Told before the run: how many clients train at the same time, out of how many."""
        super().prepare(cohort, population)
        if (self.max_staleness or 0) < 0:
            raise BadInputError(f"protocol.max_staleness must not be negative, but is {self.max_staleness}")
        if self.updates_per_round > population:
            raise BadInputError(
                f"A round of this protocol takes the updates of {self.updates_per_round} different clients, "
                f"but there are only {population}; choose a smaller {self.size_option}"
            )

    @property
    def updates_per_round(self) -> int:
        """How many updates make a round."""
        return self.updates_per_step * self.steps_per_round

    def oldest_useful(self, version: int) -> int:
        """The oldest version whose updates can still be used."""
        return 0 if self.max_staleness is None else version - self.max_staleness

    def play(self, round: int, clock: Clock, world: World) -> RoundPlan:
        """The next round."""
        course = _Course(self, round, clock, world)
        while course.goes_on:
            course.advance()
        return course.plan()


class _Course:
    """The course of one round: what has ended so far, and what is running, in the order in which it will end."""

    def __init__(self, protocol: Concurrent, round: int, clock: Clock, world: World):
        self.protocol, self.round, self.world = protocol, round, world
        self.first_version = self.version = clock.version
        self.time, self.next_job, self.running = clock.time, clock.next_job, clock.running
        self.updates_wanted = protocol.updates_per_round
        self.ended = no_jobs()
        self.steps: list[IntArray] = []
        self.staleness: list[IntArray] = []
        self.used = 0
        begin = clock.time
        self._fill(begin)
        while not len(self.running):
            begin = world.next_chance(begin)
            self._fill(begin)

    @property
    def goes_on(self) -> bool:
        patience = _PATIENCE * (self.protocol.cohort + self.updates_wanted)
        failed = len(self.ended) - self.used
        return self.used < self.updates_wanted and len(self.running) > 0 and failed < patience

    def advance(self) -> None:
        """Lets jobs end, up to the one that completes the server's next step or to the first of those newly invited."""
        ending, completes = self._next_to_end()
        # The place of whoever completes the step is filled after it, with the new model.
        to_replace = len(ending) - completes
        invited, replaced = self._replace(ending.end[:to_replace])
        # Jobs that end after one that has just begun are dealt with after that.
        certain = int(np.searchsorted(ending.end, invited.end.min(initial=np.inf), side="right"))
        if replaced < to_replace:
            certain = min(certain, replaced)
        if certain < len(ending):
            ending, completes = ending.take(slice(0, certain)), False
            invited = invited.take(invited.begin <= ending.end[-1])
        self.next_job += len(invited)
        self.running = join_jobs([self.running.take(slice(len(ending), None)), invited]).in_order()
        self._end(ending)
        if completes:
            self.version += 1
            if self.used < self.updates_wanted:
                self._fill(self.time)

    def plan(self) -> RoundPlan:
        """The whole round."""
        if self.used % self.protocol.updates_per_step:
            self.version += 1  # with fewer updates than usual
        steps, staleness = np.concatenate(self.steps), np.concatenate(self.staleness)
        clock = Clock(self.time, self.version, self.next_job, self.running)
        return RoundPlan(self.ended, steps, staleness, clock)

    def _next_to_end(self) -> tuple[Jobs, bool]:
        """The jobs that end up to the server's next step, and whether the last of them completes it."""
        usable = np.flatnonzero(self._usable(self.running))
        missing = self.protocol.updates_per_step - self.used % self.protocol.updates_per_step
        if len(usable) < missing:
            return self.running, False
        return self.running.take(slice(0, int(usable[missing - 1]) + 1)), True

    def _usable(self, jobs: Jobs) -> np.ndarray:
        return jobs.arrive & (jobs.versions >= self.protocol.oldest_useful(self.version))

    def _end(self, jobs: Jobs) -> None:
        usable = self._usable(jobs)
        jobs = jobs.stopped(~usable, np.inf, Outcome.STALE)
        self.ended = join_jobs([self.ended, jobs])
        self.steps.append(np.where(usable, self.version - self.first_version, -1))
        self.staleness.append(self.version - jobs.versions)
        self.used += int(usable.sum())
        self.time = float(jobs.end[-1])

    def _fill(self, time: float) -> None:
        """Invites clients for all empty places."""
        empty = max(0, self.protocol.cohort - len(self.running))  # a fork may have a smaller cohort
        invited = self._plan(self.world.invite(empty, time, self.round, self._busy(), self.next_job), time)
        self.next_job += len(invited)
        self.running = join_jobs([self.running, invited]).in_order()

    def _replace(self, times: FloatArray) -> tuple[Jobs, int]:
        """New jobs for the places that get empty at these times, and at how many of these somebody was looked for."""
        if not len(times):
            return no_jobs(), 0
        empty = self.protocol.cohort - len(self.running)
        if empty < 0:
            return no_jobs(), len(times)
        if empty:
            # There were not enough clients before; perhaps there are now.
            clients = self.world.invite(empty + 1, float(times[0]), self.round, self._busy(), self.next_job)
            return self._plan(clients, times[0]), 1
        times = times[: max(_AT_ONCE, self.protocol.cohort // _PARTS)]
        clients = self.world.invite_each(times, self.round, self._busy(), self.next_job)
        return self._plan(clients, times[: len(clients)]), min(len(clients) + 1, len(times))

    def _plan(self, clients: IntArray, times: float | FloatArray) -> Jobs:
        return self.world.plan(clients, times, self.version, self.next_job)

    def _busy(self) -> IntArray:
        """Who is training, or has been in this round."""
        return np.sort(np.concatenate([self.running.clients, self.ended.clients]))
