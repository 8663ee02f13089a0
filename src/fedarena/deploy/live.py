"""Rounds as they really happen, told afterwards like plans of a simulation, so that all the rest is the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from fedarena.client.messages import model_groups, task_of
from fedarena.core.errors import DamagedFileError, TrainingStuckError
from fedarena.core.words import counted
from fedarena.deploy.coordinator import Coordinator
from fedarena.deploy.devices import LivePhones
from fedarena.deploy.rules import ConcurrentRule, Rule, live_rule
from fedarena.deploy.secure_rounds import SecureDeployment
from fedarena.deploy.tasks import ACCEPTED, GONE, LATE, Course, Task, new_task_id
from fedarena.simulate import Simulation, Snapshot
from fedarena.simulate.jobs import BoolArray, FloatArray, Jobs, Outcome, no_jobs
from fedarena.simulate.protocols import Clock, Protocol, RoundPlan
from fedarena.simulate.world import World
from fedarena.train.engine import IntArray

_LOOK_SECONDS = 1.0  # at least so often is looked whether somebody is gone


@dataclass(frozen=True)
class Deployment:
    """What a run on a real network has besides a simulation."""

    coordinator: Coordinator
    names: dict[int, str]  # of the clients that may take part, by their numbers
    min_clients: int  # that must be there before the first round
    seconds: Any  # what the clock of the run shows
    secure: SecureDeployment | None = None  # where the server gets sums of updates alone


@dataclass(frozen=True)
class DeployedSimulation(Simulation):
    """A simulation whose clients are real: the same in all but who trains, and when."""

    deployment: Deployment | None = None

    @classmethod
    def of(cls, simulation: Simulation, deployment: Deployment) -> DeployedSimulation:
        """The same run with real devices."""
        live_rule(simulation.protocol)
        known = {field.name: getattr(simulation, field.name) for field in fields(Simulation)}
        return cls(**known, deployment=deployment)

    def world(self, current_loss: Callable[[IntArray], FloatArray] | None) -> World:
        """The same, in which a selector that asks how much data clients have gets what they said when they joined."""
        return replace(super().world(current_loss), samples=self._samples_they_told)

    def _samples_they_told(self, clients: IntArray) -> IntArray:
        """How many training samples these devices have; waits until they have joined, if they still may."""
        assert self.deployment is not None
        coordinator, names = self.deployment.coordinator, self.deployment.names
        asked, was_said = [names[client] for client in clients.tolist()], False
        while missing := coordinator.yet_to_join(asked):
            if not was_said:
                coordinator.log(f"The selector asks for sizes: waiting for {counted(missing, 'device')} to join")
                was_said = True
            coordinator.wait(_LOOK_SECONDS)
        return self.engine.data.counts(clients, "train")

    def in_round(self, before: Snapshot, world: World) -> tuple[Protocol, World]:
        """A protocol that waits until the round after a snapshot has really happened."""
        protocol, world = super().in_round(before, world)
        assert self.deployment is not None
        return LiveRound(self, self.deployment, before, protocol), world

    def summed_securely(self, plan: RoundPlan, world: World, round: int) -> RoundPlan:
        """A round whose updates are added up by devices and server together, where that is wanted."""
        assert self.deployment is not None
        if self.deployment.secure is None:
            return plan
        plan = self.deployment.secure.play(plan, round)
        self.deployment.coordinator.conclude(set(plan.ended.numbers[plan.steps >= 0].tolist()))
        return plan


class LiveRound(Protocol):
    """One round on the network."""

    def __init__(self, simulation: Simulation, deployment: Deployment, before: Snapshot, protocol: Protocol):
        self._simulation, self._before = simulation, before
        self._deployment, self._coordinator = deployment, deployment.coordinator
        self._rule = live_rule(protocol)
        self._blob: tuple[str, int] | None = None

    def play(self, round: int, clock: Clock, world: World) -> RoundPlan:
        """Has the round happen, or goes on with it after a restart, and tells what became of it."""
        coordinator, rule = self._coordinator, self._rule
        there = None if rule.ignores_availability else self._are_there
        known = {field.name: getattr(world.phones, field.name) for field in fields(type(world.phones))}
        world = replace(world, phones=LivePhones(**known, are_there=there))
        course = coordinator.course
        if (0 if course is None else course.round) not in (round - 1, round):
            raise DamagedFileError(
                f"{coordinator.journal} is not what was written last: rounds up to {round - 1} are over, and it "
                + ("is missing" if course is None else f"is that of round {course.round}")
            )
        if course is None or course.round != round:
            course = self._begin(round, clock, world)
        elif course.open_tasks():
            self._model()  # which devices may yet download, after a restart
        coordinator.begin(course, rule)
        while not coordinator.closed:
            if rule.goes_on:
                self._fill(course, clock, world)
            left = rule.ends_at(course) - self._deployment.seconds()
            coordinator.wait(min(_LOOK_SECONDS, max(left, 0.0)))
        return plan_of(course, clock, rule)

    def _are_there(self, clients: IntArray) -> BoolArray:
        online, names = self._coordinator.online(), self._deployment.names
        return np.array([names[client] in online for client in clients.tolist()], dtype=np.bool_)

    def _begin(self, round: int, clock: Clock, world: World) -> Course:
        """A new round: those who are still at work, and those who are invited now."""
        former, rule = self._coordinator.course, self._rule
        carried: list[Task] = []
        if former is not None and former.closed is not None and rule.goes_on:
            carried = [task for task in former.tasks if task.id not in former.closed.ended]
        if former is None:
            while len(self._coordinator.online()) < self._deployment.min_clients:
                self._wait()
        tasks: list[Task] = []
        if not rule.goes_on:
            clients = self._clients(round, world)
            tasks = self._tasks(clients, round, clock, world, clock.next_job)
        return Course(round, self._deployment.seconds(), clock.version, carried + tasks)

    def _wait(self) -> None:
        members = [self._coordinator.members.get(name) for name in self._deployment.names.values()]
        if all(member is None or member.excluded is not None for member in members):
            raise TrainingStuckError("Nobody is left who may take part: all were revoked or are in quarantine")
        self._coordinator.wait(_LOOK_SECONDS)

    def _clients(self, round: int, world: World) -> IntArray:
        """Who is invited, as soon as enough are there; nobody, if that takes too long.

        Where chance decides how many are invited, nobody of those who are there is a cohort like any other.
        """
        rule, began = self._rule, self._deployment.seconds()
        while True:
            now = self._deployment.seconds()
            clients = world.invite(rule.wanted, now, round)
            if len(clients) >= min(rule.fewest, len(world.clients)):
                return clients
            if world.selector.varies and world.phones.is_available(world.clients, now).any():
                return clients
            if now - began >= rule.patience:
                return clients[:0]
            self._wait()

    def _fill(self, course: Course, clock: Clock, world: World) -> None:
        """Invites others for those who are done, where the server does not wait for a whole cohort."""
        under_way = [task for task in course.tasks if task.is_open]
        empty = self._rule.wanted - len(under_way)
        if empty <= 0:
            return
        busy = np.unique(np.array([task.client for task in course.tasks], dtype=np.int64))
        first = max([clock.next_job, *(task.job + 1 for task in course.tasks)])
        clients = world.invite(empty, self._deployment.seconds(), course.round, busy, first)
        if len(clients):
            self._coordinator.invite(self._tasks(clients, course.round, clock, world, first))

    def _tasks(self, clients: IntArray, round: int, clock: Clock, world: World, first: int) -> list[Task]:
        now = self._deployment.seconds()
        jobs = world.plan(clients, now, clock.version, first)
        nothing = np.zeros(len(clients), dtype=np.int64)
        arrays = self._simulation.jobs_of(RoundPlan(jobs, nothing, nothing, clock), round)
        digest, size = self._model() if len(clients) else ("", 0)
        ends = self._rule.ends_at(Course(round, now, clock.version, []))
        limit = None if math.isinf(ends) else ends - now
        more = {"kind": "train", "blob": digest, "bytes": size, "deadline_seconds": limit}
        return [
            Task(
                new_task_id(),
                client,
                self._deployment.names[client],
                int(jobs.numbers[place]),
                round,
                {**more, **task_of(arrays, place)},
                int(jobs.samples[place]),
                now,
            )
            for place, client in enumerate(clients.tolist())
        ]

    def _model(self) -> tuple[str, int]:
        """The file that devices download: its name, which is its digest, and how long it is."""
        if self._blob is None:
            path, before = self._simulation.path, self._before
            broadcast = self._simulation.broadcast(before)
            told = model_groups(broadcast, path.transforms[: path.on_devices], before.transform_states)
            self._blob = self._coordinator.publish(told)
        return self._blob


def plan_of(course: Course, clock: Clock, rule: Rule) -> RoundPlan:
    """What became of a round that is over, in the terms of a simulation."""
    assert course.closed is not None
    over, used = set(course.closed.ended), set(course.closed.used)
    tasks = sorted((task for task in course.tasks if task.id in over), key=lambda task: task.job)
    running = sorted((task for task in course.tasks if task.id not in over), key=lambda task: task.job)
    is_used = np.array([task.id in used for task in tasks], dtype=np.bool_)
    jobs = _jobs(tasks, course.closed.time)
    outcomes = [_outcome(task, one, rule) for task, one in zip(tasks, is_used.tolist(), strict=True)]
    jobs = replace(jobs, outcomes=np.array(outcomes, dtype=np.int64))
    staleness = course.version - jobs.versions
    first = max([clock.next_job, *(task.job + 1 for task in course.tasks)])
    version = clock.version + int(is_used.any())
    after = Clock(course.closed.time, version, first, _jobs(running, math.inf))
    return RoundPlan(jobs, np.where(is_used, 0, -1), staleness, after)


def _outcome(task: Task, used: bool, rule: Rule) -> int:
    if used:
        return int(Outcome.USED)
    if task.outcome in (ACCEPTED, LATE):
        return int(Outcome.STALE if isinstance(rule, ConcurrentRule) else Outcome.LATE)
    if task.outcome == GONE:
        return int(Outcome.NOT_AVAILABLE if task.given is None else Outcome.LEFT_TRAINING)
    return int(Outcome.CRASHED)  # refused or excluded, which tables say in words of their own


def _jobs(tasks: list[Task], end: float) -> Jobs:
    """Tasks as jobs, with the times that devices told and the server saw."""
    if not tasks:
        return no_jobs()
    decisions = [task.spec["decisions"] for task in tasks]
    columns: dict[str, list[Any]] = {field.name: [] for field in fields(Jobs) if field.name != "decisions"}
    for task in tasks:
        ended = end if task.ended is None else task.ended
        begin = task.invited if task.given is None else task.given
        told, arrived = task.report.get("seconds") or {}, task.outcome == ACCEPTED
        downloaded = min(begin + max(float(told.get("download") or 0.0), 0.0), ended)
        trained = min(downloaded + max(float(told.get("train") or 0.0), 0.0), ended)
        if not arrived:
            trained = ended
        row = {
            "numbers": task.job,
            "clients": task.client,
            "versions": task.version,
            "shares": task.spec["share"],
            "samples": task.report["processed"] if arrived else task.samples,
            "download_bytes": task.spec["bytes"],
            "upload_bytes": task.bytes,
            "begin": begin,
            "download_seconds": downloaded - begin,
            "compute_seconds": trained - downloaded if math.isfinite(trained) else 0.0,
            "upload_seconds": ended - trained if arrived else 0.0,
            "downloaded": math.inf if task.given is None else downloaded,
            "trained": trained if arrived else math.inf,
            "uploaded": ended if arrived else math.inf,
            "end": ended,
            "outcomes": int(Outcome.USED),
            "rounds": task.round,
        }
        for name, value in row.items():
            columns[name].append(value)
    kinds = {name: values.dtype for name, values in vars(no_jobs()).items() if values is not None}
    known: dict[str, Any] = {name: np.array(values, dtype=kinds[name]) for name, values in columns.items()}
    return Jobs(**known, decisions=None if decisions[0] is None else np.array(decisions, dtype=np.float64))
