"""Rounds with a deadline. FLHetBench (CVPR 2024); Yang et al., "FLASH", WWW 2021."""

from __future__ import annotations

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.simulate.protocols.base import (
    PROTOCOLS,
    ROUNDING_SECONDS,
    Clock,
    Protocol,
    RoundPlan,
    check_share,
    close_round,
)
from fedarena.simulate.world import World


@PROTOCOLS.register("deadline")
class Deadline(Protocol):
    """Waits at most `seconds` for the invited cohort and uses what has arrived by then.

    A round fails, and its time is lost, if fewer than `minimum_invited` clients are available or updates of less than
    `minimum_success_share` of the cohort arrive.
    """

    def __init__(self, *, seconds: float = 120.0, minimum_invited: int = 2, minimum_success_share: float = 0.1):
        if not seconds > 0:
            raise BadInputError(f"protocol.seconds must be above 0, not {seconds}")
        if minimum_invited < 1:
            raise BadInputError(f"protocol.minimum_invited must be at least 1, not {minimum_invited}")
        check_share("minimum_success_share", minimum_success_share)
        self.set_deadline(seconds)
        self.minimum_invited = minimum_invited
        self.minimum_success_share = minimum_success_share

    def prepare(self, cohort: int, population: int) -> None:
        """Told before the run: how many clients to invite, out of how many."""
        super().prepare(cohort, population)
        if self.minimum_invited > max(cohort, 2):
            raise BadInputError(
                f"protocol.minimum_invited is {self.minimum_invited}, but only the cohort of {cohort} is ever invited"
            )

    def set_deadline(self, seconds: float) -> None:
        """How long is waited."""
        self.seconds = self.deadline_seconds = self.patience_seconds = seconds

    def play(self, round: int, clock: Clock, world: World) -> RoundPlan:
        """The next round."""
        begin = clock.time + world.overhead_seconds
        clients = world.invite(self.cohort, begin, round)
        if len(clients) < min(self.minimum_invited, self.cohort, len(world.clients)):
            return self._wait(begin, clients, clock, world)
        jobs = world.plan(clients, begin, clock.version, clock.next_job).in_order()
        deadline = begin + self.seconds
        in_time = np.flatnonzero(jobs.arrive & (jobs.end <= deadline + ROUNDING_SECONDS))
        if len(in_time) < self.minimum_success_share * self.cohort - 1e-9:
            in_time = in_time[:0]
        return close_round(jobs, in_time, min(float(jobs.end[-1]), deadline), clock)

    def _wait(self, begin: float, available: np.ndarray, clock: Clock, world: World) -> RoundPlan:
        """A round that never starts: the next one is tried when somebody else has come, or a deadline later."""
        end = begin + self.seconds
        if not len(available):
            end = max(end, world.next_available(begin))
        nobody = world.plan(available[:0], begin, clock.version, clock.next_job)
        return close_round(nobody, np.empty(0, dtype=np.int64), end, clock)
