"""Deadlines after which late updates are not lost: staleness-aware aggregation. FLHetBench (CVPR 2024)."""

from __future__ import annotations

import math

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.simulate.jobs import Jobs, Outcome, join_jobs
from fedarena.simulate.protocols.base import PROTOCOLS, ROUNDING_SECONDS, Clock, RoundPlan
from fedarena.simulate.protocols.deadline import Deadline
from fedarena.simulate.world import World


@PROTOCOLS.register("staleness_aware")
class StalenessAware(Deadline):
    """Rounds of `seconds` at most, as with `deadline`; who is late goes on and its update is used when it arrives.

    An update that began more than `max_staleness` steps ago is of no use. By default the aggregator ``by_age`` brings
    the others to the fresh ones. Together with the algorithm ``biasprompt`` this is BiasPrompt+.
    """

    overlaps = True
    aggregator = "by_age"

    def __init__(
        self,
        *,
        seconds: float = 120.0,
        minimum_invited: int = 2,
        minimum_success_share: float = 0.1,
        max_staleness: int = 5,
    ):
        super().__init__(seconds=seconds, minimum_invited=minimum_invited, minimum_success_share=minimum_success_share)
        if max_staleness < 0:
            raise BadInputError(f"protocol.max_staleness must not be negative, but is {max_staleness}")
        self.patience_seconds = math.inf
        self.max_staleness = max_staleness

    def oldest_useful(self, version: int) -> int:
        """The oldest version whose updates can still be used."""
        return version - self.max_staleness

    def play(self, round: int, clock: Clock, world: World) -> RoundPlan:
        """The next round."""
        begin = clock.time + world.overhead_seconds
        invited, end = self._invite(begin, round, clock, world)
        jobs = join_jobs([clock.running, invited]).in_order()
        useful = jobs.versions >= self.oldest_useful(clock.version)
        used = jobs.arrive & useful & (jobs.end <= end + ROUNDING_SECONDS)
        succeeds = used.sum() >= max(1, self.minimum_success_share * self.cohort - 1e-9)
        # What arrived in a round that fails waits at the server for the next one.
        waits = used & (not succeeds)
        used &= succeeds
        version = clock.version + int(succeeds)
        too_old = jobs.versions < self.oldest_useful(version)
        ended = used | too_old | ((jobs.end <= end + ROUNDING_SECONDS) & ~waits)
        jobs = jobs.stopped(too_old & ~used, end, Outcome.STALE)
        return self._plan(jobs, ended, used, Clock(end, version, clock.next_job + len(invited)), clock.version)

    def _invite(self, begin: float, round: int, clock: Clock, world: World) -> tuple[Jobs, float]:
        """The jobs that begin in this round, and when it ends."""
        busy = np.sort(clock.running.clients)
        clients = world.invite(self.cohort, begin, round, busy)
        deadline = begin + self.seconds
        free = len(world.clients) - len(busy)
        if len(clients) < min(self.minimum_invited, self.cohort, max(free, 1)):
            # Nobody begins. If nobody is training either, the server sleeps until somebody is there.
            training = (clock.running.end > begin) & np.isfinite(clock.running.end)
            if not len(clients) and not training.any():
                deadline = max(deadline, world.next_available(begin, busy))
            clients = clients[:0]
        jobs = world.plan(clients, begin, clock.version, clock.next_job)
        return jobs, min(float(jobs.end.max()), deadline) if len(jobs) else deadline

    def _plan(self, jobs: Jobs, ended: np.ndarray, used: np.ndarray, clock: Clock, version: int) -> RoundPlan:
        """The round's plan from all jobs, those of them that are over, and those whose updates are used."""
        over = jobs.take(ended)
        staleness = version - over.versions
        clock = Clock(clock.time, clock.version, clock.next_job, jobs.take(~ended))
        return RoundPlan(over, np.where(used[ended], 0, -1), staleness, clock)
