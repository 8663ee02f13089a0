"""Over-commitment. Bonawitz et al., "Towards Federated Learning at Scale", MLSys 2019; FedScale's protocol."""

from __future__ import annotations

import math

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.simulate.protocols.base import PROTOCOLS, Clock, Protocol, RoundPlan, close_round
from fedarena.simulate.world import World


@PROTOCOLS.register("synchronous")
class Synchronous(Protocol):
    """Invites `over_commit` times the cohort and uses the first cohort's worth of updates; the others are stopped.

    If fewer arrive, the round ends with the last one that arrives or is seen to fail, and uses what there is. Where
    nobody is available, the server waits until somebody is.
    """

    def __init__(self, *, over_commit: float = 1.3):
        if not 1 <= over_commit <= 1000:
            raise BadInputError(f"protocol.over_commit must be from 1 to 1000, not {over_commit}")
        self.over_commit = over_commit

    def most_invited(self) -> int:
        """More than the cohort."""
        return math.floor(self.over_commit * self.cohort + 1e-9)

    def play(self, round: int, clock: Clock, world: World) -> RoundPlan:
        """The next round."""
        begin, clients = world.invite_when_possible(self.most_invited(), clock.time + world.overhead_seconds, round)
        jobs = world.plan(clients, begin, clock.version, clock.next_job).in_order()
        first = np.flatnonzero(jobs.arrive)[: self.cohort]
        end = jobs.end[first[-1]] if len(first) == self.cohort else jobs.end.max(initial=begin)
        return close_round(jobs, first, float(end), clock)
