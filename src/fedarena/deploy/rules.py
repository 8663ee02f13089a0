"""Live protocols: whom a server waits for by the wall clock. They have the names and options of the simulated ones."""

from __future__ import annotations

import math
from typing import Any

from fedarena.core.errors import BadInputError
from fedarena.deploy.tasks import Course, Task
from fedarena.simulate.protocols import (
    Asynchronous,
    Buffered,
    Deadline,
    Ideal,
    Protocol,
    Readiness,
    Synchronous,
)
from fedarena.simulate.protocols.concurrent import Concurrent


class Rule:
    """When a round is over, and whose updates it uses. Here, as under `ideal`: everybody is waited for."""

    ignores_availability = False  # whether devices are invited that are not there
    waits_for_ever = False  # whether it goes on waiting for a device that has fallen silent
    goes_on = False  # whether jobs go on when a round ends

    def __init__(self, protocol: Any):
        self.protocol = protocol

    @property
    def wanted(self) -> int:
        """How many devices are at work at a time."""
        cohort: int = self.protocol.cohort
        return cohort

    @property
    def fewest(self) -> int:
        """With how many devices a round begins at least."""
        return 1

    @property
    def patience(self) -> float:
        """After how many seconds without enough devices a round is given up."""
        return math.inf

    def ends_at(self, course: Course) -> float:
        """When the round is over, whatever has come by then."""
        return math.inf

    def is_over(self, course: Course, now: float) -> bool:
        """Whether nothing more is waited for."""
        return not course.open_tasks() or now >= self.ends_at(course) or self.has_enough(course)

    def has_enough(self, course: Course) -> bool:
        """Whether all updates that the round wants are there."""
        return False

    def used(self, course: Course) -> list[Task]:
        """Whose updates are used of a round that is over."""
        return course.accepted()

    def is_dropped_with(self, task: Task, course: Course) -> bool:
        """Whether a task that is under way when its round ends is of no use any more."""
        return True


class IdealRule(Rule):
    """Everybody who is invited is waited for, however long that takes."""

    ignores_availability = True
    waits_for_ever = True


class SynchronousRule(Rule):
    """The first cohort's worth of updates of more devices."""

    @property
    def wanted(self) -> int:
        """More than are needed."""
        return math.floor(float(self.protocol.over_commit * self.protocol.cohort) + 1e-9)

    def has_enough(self, course: Course) -> bool:
        """As soon as the cohort is there."""
        return bool(len(course.accepted()) >= self.protocol.cohort)


class ReadinessRule(Rule):
    """A share of those who were invited."""

    def has_enough(self, course: Course) -> bool:
        """As soon as that share is there."""
        enough = math.ceil(float(self.protocol.share) * len(course.tasks) - 1e-9)
        return len(course.accepted()) >= max(1, enough)


class DeadlineRule(Rule):
    """What has come after so many seconds, if that is enough."""

    @property
    def fewest(self) -> int:
        """As the option says."""
        return int(min(self.protocol.minimum_invited, self.protocol.cohort))

    @property
    def patience(self) -> float:
        """As long as a round may take."""
        return float(self.protocol.seconds)

    def ends_at(self, course: Course) -> float:
        """The deadline."""
        return float(course.begin + self.protocol.seconds)

    def used(self, course: Course) -> list[Task]:
        """Nothing, if it is too little."""
        there = course.accepted()
        return there if len(there) >= self.protocol.minimum_success_share * self.protocol.cohort - 1e-9 else []


class ConcurrentRule(Rule):
    """So many updates as they come; who is not done goes on."""

    goes_on = True

    def is_over(self, course: Course, now: float) -> bool:
        """As soon as there is enough: whoever leaves is replaced."""
        return self.has_enough(course)

    def has_enough(self, course: Course) -> bool:
        """As soon as they are as many as make a step."""
        return bool(len(self._usable(course)) >= self.protocol.updates_per_step)

    def used(self, course: Course) -> list[Task]:
        """The first that came."""
        return self._usable(course)[: self.protocol.updates_per_step]

    def is_dropped_with(self, task: Task, course: Course) -> bool:
        """If it began too long ago for the model that is next."""
        return self.is_stale(task, course.version + 1)

    def is_stale(self, task: Task, version: int) -> bool:
        """Whether a task began too long ago for a server that has made so many steps."""
        return bool(task.version < self.protocol.oldest_useful(version))

    def _usable(self, course: Course) -> list[Task]:
        return [task for task in course.accepted() if not self.is_stale(task, course.version)]


_RULES: dict[type[Protocol], type[Rule]] = {
    Ideal: IdealRule,
    Synchronous: SynchronousRule,
    Readiness: ReadinessRule,
    Deadline: DeadlineRule,
    Buffered: ConcurrentRule,
    Asynchronous: ConcurrentRule,
}


def live_rule(protocol: Protocol) -> Rule:
    """The live form of a protocol of the simulator."""
    rule = _RULES.get(type(protocol))
    if rule is None:
        names = ", ".join(kind.__name__.lower() for kind in _RULES)
        raise BadInputError(
            f"protocol={type(protocol).__name__} exists in virtual time only; on a network there are: {names}"
        )
    if isinstance(protocol, Concurrent) and protocol.steps_per_round > 1:
        raise BadInputError(
            "On a network, a round of protocol=asynchronous is one update; set protocol.updates_per_round=1, or choose "
            "protocol=buffered"
        )
    return rule(protocol)
