"""Rounds that end when enough of the invited are ready. FLHetBench (CVPR 2024)."""

from __future__ import annotations

import math

import numpy as np

from fedarena.simulate.protocols.base import PROTOCOLS, Clock, Protocol, RoundPlan, check_share, close_round
from fedarena.simulate.world import World


@PROTOCOLS.register("readiness")
class Readiness(Protocol):
    """Waits until updates of `share` of the invited have arrived, however long that takes; the others are stopped.

    If so many cannot arrive because phones left, the round ends with the last one that arrives or is seen to fail, and
    uses what there is. The paper's default is 1.0 (everybody); its code waits for 0.8.
    """

    def __init__(self, *, share: float = 1.0):
        check_share("share", share)
        self.share = share

    def play(self, round: int, clock: Clock, world: World) -> RoundPlan:
        """The next round."""
        begin, clients = world.invite_when_possible(self.cohort, clock.time + world.overhead_seconds, round)
        jobs = world.plan(clients, begin, clock.version, clock.next_job).in_order()
        enough = max(1, math.ceil(self.share * len(jobs) - 1e-9))
        first = np.flatnonzero(jobs.arrive)[:enough]
        end = jobs.end[first[-1]] if len(first) == enough else jobs.end.max(initial=begin)
        return close_round(jobs, first, float(end), clock)
