"""What a protocol is: it decides in virtual time whose updates the server waits for."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field, replace

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.core.registry import Registry
from fedarena.simulate.jobs import Jobs, Outcome, no_jobs
from fedarena.simulate.world import World
from fedarena.train.engine import IntArray

ROUNDING_SECONDS = 1e-6  # a job planned to end with a deadline is in time


@dataclass(frozen=True)
class Clock:
    """Where a run stands in virtual time."""

    time: float = 0.0  # seconds
    version: int = 0  # steps the server has made
    next_job: int = 0
    running: Jobs = field(default_factory=no_jobs)


@dataclass(frozen=True)
class RoundPlan:
    """What happens in a round; arrays have an entry per job that ended in it."""

    ended: Jobs  # with their final outcomes; used ones in the order in which the server uses them
    steps: IntArray  # in which of the round's server steps an update is used, counted from 0; -1 for those not used
    staleness: IntArray  # server steps between the model a job began with and the one its update is added to
    clock: Clock  # afterwards
    secure_groups: IntArray | None = None  # of which group of a secure sum a job was, -1 for none; None: there are none
    empty_steps: int = 0  # that the server makes although no update came, where it always makes one

    @property
    def server_steps(self) -> int:
        """How many steps the server makes."""
        return int(self.steps.max(initial=-1)) + 1 + self.empty_steps

    def with_a_step(self) -> RoundPlan:
        """The same, but with a step of the server even if no update came."""
        if self.server_steps:
            return self
        return replace(self, empty_steps=1, clock=replace(self.clock, version=self.clock.version + 1))

    @property
    def succeeded(self) -> bool:
        """Whether the server got what it needs for a step."""
        return bool((self.steps >= 0).any())


class Protocol:
    """Decides whom to wait for. Keyword-only constructor arguments are its settings.

    A round is planned before anybody trains: how long phones take depends on what they have to do, not on what comes
    out of it. The clients whose updates are not used need not be trained at all.
    """

    ignores_availability = False
    overlaps = False  # whether jobs go on when a round ends
    aggregator = "mean"  # what adds updates up unless the user chooses another
    updates_per_step: int | None = None  # how many updates make a step of the server; None: it depends
    deadline_seconds = math.inf  # in which jobs should be done
    patience_seconds = math.inf  # after which no update is used any more
    cohort: int

    def prepare(self, cohort: int, population: int) -> None:
        """Told before the run: how many clients' updates a round is meant to use, out of how many clients."""
        self.cohort = cohort

    def most_invited(self) -> int:
        """How many clients a round invites, at most."""
        return self.cohort

    def play(self, round: int, clock: Clock, world: World) -> RoundPlan:
        """The next round."""
        raise NotImplementedError

    def for_round(self, cohort: int | None, deadline_seconds: float | None) -> Protocol:
        """The same with another cohort or deadline, for one round; None: that stays as it is."""
        changed = copy.copy(self)
        if cohort is not None:
            changed.cohort = cohort
        if deadline_seconds is not None:
            changed.set_deadline(deadline_seconds)
        return changed

    def set_deadline(self, seconds: float) -> None:
        """Has the next round end after so many seconds."""
        raise BadInputError(
            f"A policy sets a deadline of {seconds:g} seconds, and the protocol {type(self).__name__} has none; choose "
            "protocol=deadline"
        )

    def oldest_useful(self, version: int) -> int:
        """The oldest version whose updates can still be used when the server has made so many steps."""
        return version


def close_round(jobs: Jobs, used: IntArray, end: float, clock: Clock) -> RoundPlan:
    """A round in which everybody began with the current model and the server stops waiting at `end`.

    `used` are positions of jobs; whoever is not among them and has not failed by then is late.
    """
    not_used = np.ones(len(jobs), dtype=np.bool_)
    not_used[used] = False
    ended = jobs.stopped(not_used, end, Outcome.LATE) if not_used.any() else jobs
    steps = np.where(not_used, -1, 0)
    version = clock.version + int(len(used) > 0)
    after = Clock(end, version, clock.next_job + len(jobs))
    return RoundPlan(ended, steps, np.zeros(len(jobs), dtype=np.int64), after)


def check_share(name: str, value: float) -> None:
    """A share of something must be one."""
    if not 0 < value <= 1:
        raise BadInputError(f"protocol.{name} must be above 0 and at most 1, not {value}")


PROTOCOLS: Registry[type[Protocol]] = Registry("protocol", base=Protocol, takes=())
