"""Secure sums on the network: when a round has its updates, devices are led through the phases of their groups.

Every phase is a set of tasks beside those of the round. They are in the journal before a device hears of them, answers
are in the inbox before their receipts, and that a phase is over is in the journal before the next one begins. So a
server that was killed goes on where it was: the groups are told again what has come so far. That matters more than
elsewhere, because a device masks its update only once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, replace

import numpy as np

from fedarena.client.masks import Authority, read_certificate
from fedarena.client.secure_limits import LEAST_MEMBERS
from fedarena.client.secure_sum import Session
from fedarena.core.errors import SecureSumError
from fedarena.core.files import write_bytes
from fedarena.deploy.coordinator import Coordinator
from fedarena.deploy.tasks import Course, Task, new_task_id
from fedarena.deploy.unmasking import PHASES, SecureGroup
from fedarena.simulate.jobs import Outcome
from fedarena.simulate.protocols import RoundPlan
from fedarena.simulate.secure_aggregation import SecureRounds
from fedarena.train.engine import IntArray
from fedarena.transforms import Partial, UpdatePath
from fedarena.transforms.fixed_point import SumForm

_LOOK_SECONDS = 1.0


class SecureDeployment:
    """Secure sums of a run's rounds, one after the other."""

    def __init__(
        self,
        coordinator: Coordinator,
        rounds: SecureRounds,
        path: UpdatePath,
        authority: bytes,
        run: str,
        patience_seconds: float,
        seconds: Callable[[], float],
    ):
        """`run` tells the run from all others; `patience_seconds` is how long a phase waits for devices."""
        assert path.sums is not None
        self._coordinator, self._rounds, self._path, self._run = coordinator, rounds, path, run
        self._form: SumForm = path.sums
        self._authority = Authority(read_certificate(authority))
        self._patience, self._seconds = patience_seconds, seconds
        self._groups: dict[int, SecureGroup] = {}  # of the present round, without those that are lost
        self._group_of: dict[int, int] = {}  # by client
        self._too_few: set[int] = set()  # clients of groups that were too small to begin with
        self.total: Partial | None = None  # what the updates of the present round come to

    def play(self, plan: RoundPlan, round: int) -> RoundPlan:
        """Adds up the updates of a round that is over; what becomes of it if some devices leave."""
        course = self._coordinator.course
        assert course is not None
        used = np.flatnonzero(plan.steps >= 0)
        if not len(used):
            return plan
        clients = plan.ended.clients[used]
        groups = self._rounds.groups(clients, round)
        self._begin(course, clients, groups)
        for phase in PHASES:
            self._play_phase(course, phase)
        self._coordinator.take_errands_with(None, [])
        summed: set[int] = set()
        self.total = None
        for number, group in list(self._groups.items()):
            try:
                found = group.total()
            except SecureSumError as error:
                self._lose(number, error)
                continue
            partial = self._form.from_words(found.words, len(found.members))
            self.total = partial if self.total is None else self._path.merge(self.total, partial)
            summed |= set(found.members)
        return self._closed(plan, used, groups, summed)

    def _begin(self, course: Course, clients: IntArray, groups: IntArray) -> None:
        """Makes the groups. Their names depend on tasks, of which each is random and used once."""
        jobs = {task.client: task.id for task in course.used()}
        self._group_of = dict(zip(clients.tolist(), groups.tolist(), strict=True))
        self._groups, self._too_few = {}, set[int]()
        for number in range(int(groups.max()) + 1):
            members = sorted(client for client, of in self._group_of.items() if of == number)
            tasks = hashlib.sha256(" ".join(jobs[member] for member in members).encode()).hexdigest()
            name = f"{self._run}/{course.round}/{number}/{tasks[:32]}"
            threshold = self._rounds.secure.threshold(len(members))
            session = Session(name, threshold, self._form.length, self._form.fixed_point.bits)
            try:
                if len(members) < max(threshold, LEAST_MEMBERS):
                    self._too_few |= set(members)
                    raise SecureSumError(f"{len(members)} devices are too few for a secure sum")
                self._groups[number] = SecureGroup(session, members, self._authority)
            except SecureSumError as error:
                self._lose(number, error)
        self._jobs, self._messages = jobs, dict.fromkeys(self._group_of, b"")

    def _lose(self, number: int, error: SecureSumError) -> None:
        self._groups.pop(number, None)
        self._coordinator.log(f"A group of {sum(of == number for of in self._group_of.values())} is lost: {error}")

    def _play_phase(self, course: Course, phase: str) -> None:
        """Waits until everybody has answered in a phase, or as long as it may take."""
        known = [task for task in course.errands if task.spec["phase"] == phase]
        self._coordinator.take_errands_with(self._take, known)
        if not known:  # else, a server was killed
            self._coordinator.give_errands(self._tasks(course, phase))
        until = self._seconds() + self._patience
        while (left := until - self._seconds()) > 0 and self._coordinator.open_errands():
            self._coordinator.wait(min(_LOOK_SECONDS, left))
        self._coordinator.close_errands()
        if phase == PHASES[-1]:
            return
        for number, group in list(self._groups.items()):
            try:
                self._messages |= group.close()
            except SecureSumError as error:
                self._lose(number, error)

    def _tasks(self, course: Course, phase: str) -> list[Task]:
        now = self._seconds()
        spec = {"kind": "secure", "phase": phase, "now": course.round, "version": course.version}
        tasks = []
        for group in self._groups.values():
            session = group.session
            told = asdict(session)
            for member in sorted(group.expected):
                message = self._messages[member]
                blob = self._blob(message) if message else None
                own = {"session": told, "of": self._jobs[member], "blob": blob, "bytes": len(message)}
                name = self._coordinator.name_of(member)
                tasks.append(Task(new_task_id(), member, name, -1, course.round, {**spec, **own}, 0, now))
        return tasks

    def _blob(self, message: bytes) -> str:
        digest = hashlib.sha256(message).hexdigest()
        path = self._coordinator.blobs / digest
        if not path.exists():
            write_bytes(path, message)
        return digest

    def _take(self, task: Task, answer: bytes) -> None:
        """A device has answered."""
        group = self._groups.get(self._group_of.get(task.client, -1))
        if group is not None:  # else it is lost
            group.take(task.client, answer)

    def _closed(self, plan: RoundPlan, used: IntArray, groups: IntArray, summed: set[int]) -> RoundPlan:
        jobs = plan.ended
        took_part = self._arrived() | self._too_few
        outcomes, steps, of_group = jobs.outcomes.copy(), plan.steps.copy(), np.full(len(jobs), -1)
        for position, group in zip(used.tolist(), groups.tolist(), strict=True):
            client = int(jobs.clients[position])
            of_group[position] = group
            if client not in summed:
                lost = Outcome.LOST_WITH_ITS_GROUP if client in took_part else Outcome.LEFT_UPLOADING
                outcomes[position], steps[position] = int(lost), -1
        clock = replace(plan.clock, time=self._seconds(), version=plan.clock.version - int(not summed))
        return replace(plan, ended=replace(jobs, outcomes=outcomes), steps=steps, clock=clock, secure_groups=of_group)

    def _arrived(self) -> set[int]:
        """Whose masked updates have come."""
        course = self._coordinator.course
        assert course is not None
        masked = (task for task in course.errands if task.spec["phase"] == "mask")
        return {task.client for task in masked if self._coordinator.has_answered(task)}
