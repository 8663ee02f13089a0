"""Tasks: what devices are asked to do in a round, and the journal in which a server finds them after it was killed."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedarena.core.errors import DamagedFileError
from fedarena.core.files import write_bytes
from fedarena.core.sealed_json import read_sealed, seal_json

ROUND_FILE = "round.json"  # of the folder in which a server keeps what is under way
ACCEPTED, REFUSED, LATE, GONE, EXCLUDED = "accepted", "refused", "late", "gone", "excluded"


@dataclass
class Task:
    """A job of one device. Times are seconds since the run began."""

    id: str  # random, and used once
    client: int  # number of the member
    name: str  # of the member
    job: int  # counted over the whole run
    round: int  # in which it was invited
    spec: dict[str, Any]  # what the device is told
    samples: int  # to be processed, as planned
    invited: float
    given: float | None = None  # when the device first got it
    ended: float | None = None
    outcome: str | None = None  # one of the words above; None: it is under way
    reason: str | None = None  # in a few words, for tables, where something went wrong
    bytes: int = 0  # of the body
    report: dict[str, Any] = field(default_factory=dict)  # what the device says about its work

    @property
    def is_open(self) -> bool:
        """Whether it is under way."""
        return self.outcome is None

    @property
    def is_errand(self) -> bool:
        """Whether it is a phase of a secure sum, and not a job."""
        return bool(self.spec.get("kind") == "secure")

    @property
    def message(self) -> dict[str, Any]:
        """What the device is told."""
        return {"task": self.id, **self.spec}

    @property
    def version(self) -> int:
        """Of the model that it begins with."""
        return int(self.spec["version"])


def new_task_id() -> str:
    """128 random bits: nobody guesses the task of another."""
    return secrets.token_hex(16)


@dataclass(frozen=True)
class Closed:
    """How a round ended."""

    time: float
    used: tuple[str, ...]  # the tasks whose updates the server uses
    ended: tuple[str, ...]  # all that are over with this round


@dataclass(frozen=True)
class Fate:
    """What became of an update that was accepted: a round may fail, a group may be lost, an update may get too old."""

    task: str
    used: bool  # then what its device keeps counts from now on


@dataclass
class Course:
    """A round as it goes: its tasks, in the order of their jobs, among them those that began in rounds before."""

    round: int
    begin: float
    version: int  # of the server's model
    tasks: list[Task]
    closed: Closed | None = None
    norms: list[float] = field(default_factory=list)  # of updates that were accepted lately
    settled: dict[int, Fate] = field(default_factory=dict)  # by client: what became of its last update before
    errands: list[Task] = field(default_factory=list)  # what devices do beside: the phases of secure sums
    counted: tuple[str, ...] | None = None  # the tasks whose updates moved the model; None: that is not known yet

    def open_tasks(self) -> list[Task]:
        """Those under way."""
        return [task for task in self.tasks if task.is_open]

    def accepted(self) -> list[Task]:
        """Those whose updates are there, in the order in which they came."""
        there = [task for task in self.tasks if task.outcome == ACCEPTED]
        return sorted(there, key=lambda task: (task.ended or 0.0, task.job))

    def fates(self) -> dict[int, Fate]:
        """What became of the last update of every client that was accepted."""
        return self.settled | {task.client: self._fate(task) for task in self._decided()}

    def fate(self, client: int) -> Fate | None:
        """The same of one client, as far as it is known."""
        own = next((task for task in self._decided() if task.client == client), None)
        return self.settled.get(client) if own is None else self._fate(own)

    def _decided(self) -> list[Task]:
        if self.closed is None or self.counted is None:
            return []
        ended = set(self.closed.ended)
        return [task for task in self.tasks if task.outcome == ACCEPTED and task.id in ended]

    def _fate(self, task: Task) -> Fate:
        return Fate(task.id, task.id in (self.counted or ()))

    def used(self) -> list[Task]:
        """Those whose updates the server uses, in the order in which it adds them up: that of their jobs."""
        assert self.closed is not None
        used = set(self.closed.used)
        return sorted((task for task in self.tasks if task.id in used), key=lambda task: task.job)


class Journal:
    """The file ``round.json``: the tasks of the present round, written before any device hears of them."""

    def __init__(self, path: Path):
        self._path = path

    def write(self, course: Course) -> None:
        """Replaces what is there."""
        closed = None if course.closed is None else asdict(course.closed)
        content = {
            "round": course.round,
            "begin": course.begin,
            "version": course.version,
            "tasks": [_undecided(task) for task in course.tasks],
            "closed": closed,
            "norms": course.norms,
            "settled": [[client, fate.task, fate.used] for client, fate in course.settled.items()],
            "errands": [_undecided(task) for task in course.errands],
            "counted": course.counted,
        }
        write_bytes(self._path, seal_json(content))

    def read(self) -> Course | None:
        """What was written last; None: nothing. What became of tasks meanwhile the inbox knows."""
        content = read_sealed(self._path)
        if content is None:
            return None
        try:
            closed = content["closed"]
            return Course(
                content["round"],
                content["begin"],
                content["version"],
                [Task(**entry) for entry in content["tasks"]],
                None if closed is None else Closed(closed["time"], tuple(closed["used"]), tuple(closed["ended"])),
                content["norms"],
                {client: Fate(task, used) for client, task, used in content["settled"]},
                [Task(**entry) for entry in content["errands"]],
                None if content["counted"] is None else tuple(content["counted"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedFileError(f"{self._path} is damaged: {error!r}") from None


def _undecided(task: Task) -> dict[str, Any]:
    """A task as the journal keeps it: what was decided about its upload is in its receipt alone."""
    kept = asdict(task)
    if task.outcome in (ACCEPTED, REFUSED):
        kept |= {"ended": None, "outcome": None, "reason": None, "bytes": 0, "report": {}}
    return kept


def settled(task: Task, receipt: dict[str, Any]) -> None:
    """Puts into a task what its receipt says."""
    task.ended, task.outcome, task.reason = receipt["ended"], receipt["outcome"], receipt["reason"]
    task.bytes, task.report = receipt["bytes"], receipt["report"]


def by_id(tasks: Iterable[Task]) -> dict[str, Task]:
    """Tasks by their ids."""
    return {task.id: task for task in tasks}
