"""Rounds with secure aggregation in virtual time: who is in which group, what that takes, and whose updates are lost.

The invited of a round exchange keys before they train, so everybody waits for the slowest phone of its group. Who does
not come back with an update in time has left the group's sum; if too many have, or leave before the masks are off,
nobody's update of that group can be read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedarena.client.secure_limits import LEAST_MEMBERS
from fedarena.core import streams
from fedarena.simulate.jobs import FloatArray, Outcome
from fedarena.simulate.phones import Phones
from fedarena.simulate.protocols import RoundPlan
from fedarena.simulate.secure_aggregation.base import SECURE_COLUMNS, SecureAggregation, SecureTraffic
from fedarena.simulate.world import World
from fedarena.train.engine import IntArray


@dataclass(frozen=True)
class SecureRounds:
    """Secure aggregation in the rounds of a run."""

    secure: SecureAggregation
    seed: int
    traffic: SecureTraffic  # of a client in a group of the usual size

    def groups(self, clients: IntArray, round: int) -> IntArray:
        """The number of the group that each of the invited is in: by chance, and about as many in each."""
        number = -(-len(clients) // self.secure.group)
        ranks = np.argsort(np.argsort(streams.uniform(self.seed, "secure group", round, clients), kind="stable"))
        return ranks * number // max(len(clients), 1)

    def in_round(self, world: World, round: int) -> World:
        """The world in which clients exchange keys before they begin."""

        def waiting(clients: IntArray, numbers: IntArray) -> FloatArray:
            return self._waiting(clients, numbers, world.phones, round)

        return replace(world, waiting=waiting)

    def _waiting(self, clients: IntArray, numbers: IntArray, phones: Phones, round: int) -> FloatArray:
        """How long clients wait for each other. What they send and get themselves is part of their jobs."""
        if phones.fleet is None or not len(clients):
            return np.zeros(len(clients))
        speeds, load = phones.speeds(clients, numbers), phones.load
        seconds = speeds.download_seconds * self.traffic.keys_down / load.download_bytes
        seconds += speeds.upload_seconds * self.traffic.keys_up / load.upload_bytes
        groups = self.groups(clients, round)
        slowest = np.zeros(groups.max() + 1)
        np.maximum.at(slowest, groups, seconds)
        waiting: FloatArray = slowest[groups] - seconds + self.secure.trips_before * self.secure.trip_seconds
        return waiting

    def closed(self, plan: RoundPlan, phones: Phones, round: int) -> RoundPlan:
        """The round with what comes behind it: masks are taken off the sums of groups of which enough is left."""
        jobs, used = plan.ended, plan.steps >= 0
        if not used.any():
            return plan
        time = plan.clock.time
        if phones.fleet is not None:
            time += self.secure.trips_after * self.secure.trip_seconds
        groups = self.groups(jobs.clients, round)
        there = used & phones.is_available(jobs.clients, time)
        sizes, left = (np.bincount(groups[which], minlength=groups.max() + 1) for which in (used | True, there))
        needed = np.array([self.secure.threshold(size) if size >= LEAST_MEMBERS else np.inf for size in sizes.tolist()])
        lost = used & (left < needed)[groups]
        remains = used & ~lost
        return replace(
            plan,
            ended=replace(jobs, outcomes=np.where(lost, int(Outcome.LOST_WITH_GROUP), jobs.outcomes)),
            steps=np.where(lost, -1, plan.steps),
            clock=replace(plan.clock, time=time, version=plan.clock.version - int(not remains.any())),
        )

    def row(self, plan: RoundPlan, round: int) -> dict[str, float]:
        """What the table of rounds says: of how many groups there are sums, and of how many there could have been."""
        groups = self.groups(plan.ended.clients, round)
        summed = len(np.unique(groups[plan.steps >= 0]))
        lost = len(np.unique(groups[plan.ended.outcomes == Outcome.LOST_WITH_GROUP]))
        return dict(zip(SECURE_COLUMNS, map(float, (summed, lost)), strict=False))
