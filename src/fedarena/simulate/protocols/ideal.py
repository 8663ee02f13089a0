"""The world of most papers: everybody is always there and nobody fails."""

from __future__ import annotations

import numpy as np

from fedarena.simulate.protocols.base import PROTOCOLS, Clock, Protocol, RoundPlan, close_round
from fedarena.simulate.world import World


@PROTOCOLS.register("ideal")
class Ideal(Protocol):
    """Invites the cohort out of everybody, as if all phones were always available, and waits for the slowest."""

    ignores_availability = True

    def play(self, round: int, clock: Clock, world: World) -> RoundPlan:
        """The next round."""
        begin = clock.time + world.overhead_seconds
        jobs = world.plan(world.invite(self.cohort, begin, round), begin, clock.version, clock.next_job)
        arrived = np.flatnonzero(jobs.arrive)
        return close_round(jobs, arrived, float(jobs.end.max(initial=begin)), clock)
