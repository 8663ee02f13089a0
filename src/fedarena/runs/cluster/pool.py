"""The workers of a run: they are hired, answer, work, and may be gone at any moment.

Work is given to those who have answered (`working`). Who is gone is replaced, and nobody is waited for without a limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from fedarena.core.errors import BadInputError, RunFailedError
from fedarena.core.words import counted
from fedarena.runs.cluster.messages import Message
from fedarena.runs.cluster.troubles import MOST_UNANSWERED, never_answered, never_began

TICK_SECONDS = 1.0  # after which it is looked whether something is overdue
_LOOK_AROUND_SECONDS = 5.0  # for new machines
STORE_SECONDS = 300.0  # for a result on its way from another machine
_RECENT = 0.2  # how much the last task counts in how long tasks take
Method = Literal["train", "measure", "score_personal"]


@dataclass(frozen=True)
class Patience:
    """How long is waited for what; all of it in seconds."""

    for_workers: float = 300.0  # until there is one again
    for_an_answer: float = 3600.0  # of the first worker that builds the run, maybe with its federation
    for_a_task: float = 60.0  # at least
    for_first_tasks: float = 3600.0  # when nobody knows how long they take
    of_usual: float = 10.0  # how many times as long as usual


@dataclass(frozen=True)
class Task:
    """Something to do: for which method, what to send (made for whoever takes it), and how large it is."""

    method: Method
    message: Callable[[Member], Message]
    size: float
    about: Callable[[], str]  # what it is, for people


@dataclass
class Member:
    """A worker, in whatever state it is."""

    number: int
    actor: Any
    has_room: Any  # where it is seen that it has found room
    node: str = "?"
    pid: int = 0
    sees_states: bool = False  # whether it reads and writes files of what clients keep
    begun: dict[Any, tuple[int, float]] = field(default_factory=dict)  # what it works on: the task, and since when
    done: float = 0.0  # sizes of tasks
    seconds: float = 0.0  # that it worked
    # What nobody waits for any more: since when it works on that, and until when it may.
    left_behind: dict[Any, tuple[float, float]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """For people."""
        return f"worker {self.number} on {self.node}"

    @property
    def busy_with(self) -> int:
        """How many tasks it has, also of those that nobody waits for."""
        return len(self.begun) + len(self.left_behind)


@dataclass(frozen=True)
class Hiring:
    """How to get workers, and how to part: `start` makes one, and `ask` has it build the run."""

    start: Callable[[], Any]
    retire: Callable[[Any], bool]  # keeps one who has nothing to do for the next run; False: it is not kept
    begun: Callable[[Any], Any]  # where it is seen that one has found room
    ask: Callable[[Any], Any]
    check: Callable[[Message], str | None]  # of its answer: why it is refused
    room: Callable[[], int]  # for how many workers there is room, all in all
    wanted: int | None  # workers; None: as many as there is room for
    at_once: int  # tasks that a worker does at the same time


class Pool:
    """Keeps workers at work. `ray` is the module."""

    def __init__(self, ray: Any, hiring: Hiring, note: Callable[[str], None]):
        self.ray, self._hiring, self.note = ray, hiring, note
        self._patience = Patience()
        self.at_once = hiring.at_once
        self.members: dict[int, Member] = {}  # who have answered
        self._asked: dict[Any, Member] = {}  # who have not, by where their answer will be
        self._unwanted: set[str] = set()  # reasons that were told
        self._refused = 0
        self._failed_in_a_row = 0
        self._numbers = 0
        self._alone_since = time.monotonic()  # when there were workers last
        self._looked = 0.0
        self._rates: dict[Method, float] = {}  # seconds for a task of size 1
        self.lost = 0
        self.closed = False

    def open(self, seconds: float, meanwhile: Callable[[], object] | None = None) -> None:
        """Hires all, and waits until somebody has answered, and so many more seconds for the others.

        Whoever is refused until then makes the run impossible. `meanwhile` is done while workers build the run.
        """
        self._hire_up_to(self._wanted())
        if meanwhile is not None:
            meanwhile()
        first: float | None = None
        while self._asked and (first is None or time.monotonic() < first + seconds):
            self._admit(TICK_SECONDS, strict=True)
            if self.members and first is None:
                first = time.monotonic()
            self.check_patience()
        if self._asked and self._hiring.wanted is not None:
            self.note(
                f"{counted(len(self.members), 'worker')} of {self._hiring.wanted} "
                f"{'has' if len(self.members) == 1 else 'have'} answered; the others join when there is room for them"
            )

    def close(self) -> None:
        """Sends everybody home."""
        self.closed = True
        for member in self.members.values():
            if member.left_behind or member.begun or not self._hiring.retire(member.actor):
                self._end(member)
        for member in self._asked.values():
            self._end(member)
        self.members, self._asked = {}, {}

    # ---- hiring

    def _wanted(self) -> int:
        wanted = self._hiring.wanted
        return max(1, self._hiring.room() - self._refused) if wanted is None else wanted

    def _hire_up_to(self, number: int) -> None:
        while len(self.members) + len(self._asked) < number:
            self._numbers += 1
            actor = self._hiring.start()
            member = Member(self._numbers, actor, self._hiring.begun(actor))
            self._asked[self._hiring.ask(actor)] = member

    def look_around(self) -> None:
        """Hires for those who are gone, and for machines that came."""
        now = time.monotonic()
        if now - self._looked >= _LOOK_AROUND_SECONDS:
            self._looked = now
            self._hire_up_to(self._wanted() if self._hiring.wanted is None else self._wanted() - self._refused)

    def _admit(self, timeout: float, strict: bool = False) -> None:
        """Takes in who has answered; work is given to nobody else."""
        if not self._asked:
            return
        answered, _ = self.ray.wait(list(self._asked), num_returns=1, timeout=timeout)
        for reference in answered:
            self.admit_one(reference, strict)

    def admit_one(self, reference: Any, strict: bool = False) -> None:
        """Takes in a worker whose answer is there."""
        member = self._asked.pop(reference)
        try:
            answer: Message = self.ray.get(reference, timeout=STORE_SECONDS)
        except self.ray.exceptions.RayError as error:
            self._failed_in_a_row += not never_began(error)
            self._end(member)
            if self._failed_in_a_row >= MOST_UNANSWERED and not self.members:
                raise never_answered(error) from None
            self._hire_up_to(len(self.members) + len(self._asked) + 1)
            return
        self._failed_in_a_row = 0
        reason = self._hiring.check(answer)
        if reason is not None:
            self._end(member)
            if strict:
                raise BadInputError(reason)
            if not self.members:
                raise RunFailedError(f"{reason}; then go on with fedarena resume")
            self._refused += 1
            if reason not in self._unwanted:
                self._unwanted.add(reason)
                self.note(f"A worker is not used: {reason}")
            return
        member.node, member.pid = answer["node"], answer["pid"]
        self.members[member.number] = member

    @property
    def asked(self) -> list[Any]:
        """Where answers will be."""
        return list(self._asked)

    def check_patience(self) -> None:
        """Ends a run that has no workers for too long."""
        now = time.monotonic()
        if self.members:
            self._alone_since = now
        waited = now - self._alone_since
        if waited <= self._patience.for_workers:
            return
        hired = [member.has_room for member in self._asked.values()]
        building = bool(hired and self.ray.wait(hired, num_returns=1, timeout=0)[0])
        if not building or waited > self._patience.for_an_answer:
            raise RunFailedError(
                f"No worker has answered for {waited:.0f} seconds; see that the cluster has free cores (ray status), "
                "then go on with fedarena resume, with any number of workers"
            )

    # ---- what becomes of workers

    def lose(self, member: Member, why: str) -> None:
        """A worker is gone, or taken to be; another one is hired."""
        self.lost += 1
        self.note(f"W{member.name[1:]} {why}; what it had is done again")
        self.members.pop(member.number, None)
        self._end(member)
        self._hire_up_to(len(self.members) + len(self._asked) + 1)

    def _end(self, member: Member) -> None:
        try:
            self.ray.kill(member.actor, no_restart=True)
        except Exception:  # it is gone already, or the cluster is
            return

    def expected_seconds(self, task: Task) -> float | None:
        """How long a task takes, if that is known."""
        rate = self._rates.get(task.method)
        return None if rate is None else rate * task.size

    def learn(self, task: Task, seconds: float) -> None:
        """Notes how long a task took."""
        rate, before = seconds / max(task.size, 1e-9), self._rates.get(task.method)
        self._rates[task.method] = rate if before is None else (1 - _RECENT) * before + _RECENT * rate

    def limit_seconds(self, task: Task) -> float:
        """How long is waited for a task."""
        expected = self.expected_seconds(task)
        if expected is None:
            return self._patience.for_first_tasks
        return max(self._patience.for_a_task, self._patience.of_usual * expected)

    def shares(self) -> list[tuple[str, float]]:
        """Everybody who works, and the share of all work that it has done."""
        total = sum(member.done for member in self.members.values()) or 1.0
        return [(member.name, member.done / total) for member in self.members.values()]
