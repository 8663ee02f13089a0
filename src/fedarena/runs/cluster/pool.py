"""The workers of a run: they are hired, answer, work, and may be gone at any moment.

Who has answered gets work: whoever has nothing to do takes the largest task that is left. What somebody had who is gone
is done again by another one. No result depends on any of this, and nothing is waited for without a limit.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fedarena.core.errors import RunFailedError
from fedarena.core.words import counted
from fedarena.runs.cluster.messages import Message

_TICK_SECONDS = 1.0  # after which it is looked whether something is overdue
_MOST_LOST = 3  # workers that a task may end
_MOST_REFUSALS = 3  # workers in a row that ended before they answered
_LOOK_AROUND_SECONDS = 5.0  # for new machines
_STORE_SECONDS = 300.0  # for a result on its way from another machine
_AHEAD = 4  # results that may wait for their turn, for everything that can be under way
# A task that takes so much longer than others of its size is given to somebody else as well, once there is somebody.
_SLOW_FACTOR, _SLOW_SECONDS = 3.0, 2.0
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
    """Something to do: for which method, what to send (made when somebody takes it), and how large it is."""

    method: Method
    message: Callable[[], Message]
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
    begun: dict[Any, tuple[int, float]] = field(default_factory=dict)  # what it works on: the task, and since when
    done: float = 0.0  # sizes of tasks
    seconds: float = 0.0  # that it worked
    is_left_alone: bool = False  # with something to do that nobody waits for any more

    @property
    def name(self) -> str:
        """For people."""
        return f"worker {self.number} on {self.node}"


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

    def __init__(self, ray: Any, hiring: Hiring, note: Callable[[str], None], patience: Patience | None = None):
        self._ray, self._hiring, self._note = ray, hiring, note
        self._patience = patience or Patience()
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

    def open(self, seconds: float) -> None:
        """Hires all, and waits until somebody has answered, and so many more seconds for the others.

        Whoever is refused until then makes the run impossible.
        """
        self._hire_up_to(self._wanted())
        first: float | None = None
        while self._asked and (first is None or time.monotonic() < first + seconds):
            self._admit(_TICK_SECONDS, strict=True)
            if self.members and first is None:
                first = time.monotonic()
            self._check_patience()
        if self._asked and self._hiring.wanted is not None:
            self._note(
                f"{counted(len(self.members), 'worker')} of {self._hiring.wanted} "
                f"{'has' if len(self.members) == 1 else 'have'} answered; the others join when there is room for them"
            )

    def work(self, tasks: Sequence[Task]) -> Iterator[Message]:
        """The answers to all tasks, in their order; each has been checked to be one."""
        return _Working(self, tasks).results()

    def close(self) -> None:
        """Sends everybody home."""
        self.closed = True
        for member in self.members.values():
            if member.is_left_alone or member.begun or not self._hiring.retire(member.actor):
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
        answered, _ = self._ray.wait(list(self._asked), num_returns=1, timeout=timeout)
        for reference in answered:
            self.admit_one(reference, strict)

    def admit_one(self, reference: Any, strict: bool = False) -> None:
        """Takes in a worker whose answer is there."""
        member = self._asked.pop(reference)
        try:
            answer: Message = self._ray.get(reference, timeout=_STORE_SECONDS)
        except self._ray.exceptions.RayError as error:
            self._failed_in_a_row += 1
            self._end(member)
            if self._failed_in_a_row >= _MOST_REFUSALS and not self.members:
                raise RunFailedError(
                    f"{_MOST_REFUSALS} workers ended before they had built the run; the last one said: {_line(error)}"
                ) from None
            self._hire_up_to(len(self.members) + len(self._asked) + 1)
            return
        self._failed_in_a_row = 0
        reason = self._hiring.check(answer)
        if reason is not None:
            self._end(member)
            if strict or not self.members:
                raise self.refusal(reason)
            self._refused += 1
            if reason not in self._unwanted:
                self._unwanted.add(reason)
                self._note(f"A worker is not used: {reason}")
            return
        member.node, member.pid = answer["node"], answer["pid"]
        self.members[member.number] = member

    refusal: Callable[[str], Exception] = RunFailedError

    @property
    def asked(self) -> list[Any]:
        """Where answers will be."""
        return list(self._asked)

    def _check_patience(self) -> None:
        """Ends a run that has no workers for too long."""
        now = time.monotonic()
        if self.members:
            self._alone_since = now
        waited = now - self._alone_since
        if waited <= self._patience.for_workers:
            return
        hired = [member.has_room for member in self._asked.values()]
        building = bool(hired and self._ray.wait(hired, num_returns=1, timeout=0)[0])
        if not building or waited > self._patience.for_an_answer:
            raise RunFailedError(
                f"No worker has answered for {waited:.0f} seconds; see that the cluster has free cores (ray status), "
                "then go on with fedarena resume, with any number of workers"
            )

    # ---- what becomes of workers

    def lose(self, member: Member, why: str) -> None:
        """A worker is gone, or taken to be; another one is hired."""
        self.lost += 1
        self._note(f"W{member.name[1:]} {why}; what it had is done again")
        self.members.pop(member.number, None)
        self._end(member)
        self._hire_up_to(len(self.members) + len(self._asked) + 1)

    def _end(self, member: Member) -> None:
        try:
            self._ray.kill(member.actor, no_restart=True)
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


class _Working:
    """Some tasks that are being worked off."""

    def __init__(self, pool: Pool, tasks: Sequence[Task]):
        self._pool, self._ray, self._tasks = pool, pool._ray, tasks
        self._left = sorted(range(len(tasks)), key=lambda place: -tasks[place].size)  # the largest comes first
        self._done: dict[int, Message] = {}
        self._lost: Counter[int] = Counter()  # workers that a task has ended
        self._next = 0  # whose turn it is

    def results(self) -> Iterator[Message]:
        pool = self._pool
        try:
            while self._next < len(self._tasks):
                pool.look_around()
                self._hand_out()
                self._wait()
                pool._check_patience()
                while self._next in self._done:
                    self._hand_out()  # before somebody is busy with what is ready
                    result = self._done.pop(self._next)
                    self._next += 1
                    yield result
        finally:
            for member in pool.members.values():
                member.is_left_alone |= bool(member.begun)
                member.begun.clear()

    def _hand_out(self) -> None:
        """Gives everybody something to do who has nothing, and something in advance, as long as there is enough."""
        at_once = self._pool._hiring.at_once
        members = sorted(self._pool.members.values(), key=lambda member: len(member.begun))
        for member in members:
            self._fill(member, at_once, members)
        if len(self._left) >= at_once * len(members):  # otherwise, who is done first takes what is left
            for member in members:
                self._fill(member, at_once + 1, members)
        if not self._left:
            self._repeat_slow_ones(members)

    def _fill(self, member: Member, depth: int, members: Sequence[Member]) -> None:
        """Gives somebody the largest tasks that are left, up to so many, but none whose turn is far away."""
        horizon = self._next + _AHEAD * (self._pool._hiring.at_once + 1) * len(members)
        while len(member.begun) < depth:
            place = next((place for place in self._left if place < horizon), None)
            if place is None:
                return
            self._left.remove(place)
            self._give(member, place)

    def _give(self, member: Member, place: int) -> None:
        task = self._tasks[place]
        method = getattr(member.actor, task.method)
        member.begun[method.remote(task.message())] = (place, time.monotonic())

    def _repeat_slow_ones(self, members: Sequence[Member]) -> None:
        """Whoever has nothing to do repeats what takes another one too long; the first result counts."""
        idle = [member for member in members if not member.begun]
        copies = Counter(place for member in members for place, _ in member.begun.values())
        now = time.monotonic()
        for member in members:
            for place, since in list(member.begun.values()):
                expected = self._pool.expected_seconds(self._tasks[place])
                if not idle or expected is None or copies[place] > 1 or place in self._done or place < self._next:
                    continue
                if now - since > max(_SLOW_SECONDS, _SLOW_FACTOR * len(member.begun) * expected):
                    copies[place] += 1
                    self._give(idle.pop(), place)

    def _wait(self) -> None:
        pool = self._pool
        owners = {reference: member for member in pool.members.values() for reference in member.begun}
        waiting = [*owners, *pool.asked]
        if not waiting:
            time.sleep(_TICK_SECONDS / 10)  # nobody is there, and nobody is asked; others are hired soon
            return
        ready, _ = self._ray.wait(waiting, num_returns=1, timeout=_TICK_SECONDS)
        for reference in ready:
            if reference in owners:
                self._take(owners[reference], reference)
            else:
                pool.admit_one(reference)
        if not ready:
            self._look_for_late_ones()

    def _take(self, member: Member, reference: Any) -> None:
        """Takes an answer."""
        if reference not in member.begun:
            return
        place, _ = member.begun[reference]
        exceptions = self._ray.exceptions
        try:
            answer: Message = self._ray.get(reference, timeout=_STORE_SECONDS)
        except (exceptions.ObjectLostError, exceptions.GetTimeoutError):  # it was there, but its machine is gone
            del member.begun[reference]
            self._again(place)
            return
        except exceptions.RayTaskError as error:
            if isinstance(getattr(error, "cause", None), MemoryError):
                self._lose(member)
                return
            if _is_store_trouble(error):
                raise RunFailedError(_full_disk(member, error)) from None
            del member.begun[reference]
            if isinstance(getattr(error, "cause", None), (exceptions.ObjectLostError, exceptions.GetTimeoutError)):
                self._again(place)  # what was sent to all did not get there
                return
            raise RunFailedError(f"{member.name} failed: {_line(error)}") from error
        except exceptions.OutOfDiskError as error:
            raise RunFailedError(_full_disk(member, error)) from None
        except exceptions.RayError:
            self._lose(member)
            return
        del member.begun[reference]
        if place in self._done or place < self._next:
            return  # somebody else was faster
        task = self._tasks[place]
        member.done += task.size
        member.seconds += answer["seconds"]
        self._pool.learn(task, answer["seconds"])
        if place in self._left:
            self._left.remove(place)
        raise_own(answer, member)
        self._done[place] = answer

    def _again(self, place: int) -> None:
        """Puts a task before all others."""
        elsewhere = any(place == other for member in self._pool.members.values() for other, _ in member.begun.values())
        if place >= self._next and place not in self._done and place not in self._left and not elsewhere:
            self._left.insert(0, place)

    def _lose(self, member: Member, late_seconds: float | None = None) -> None:
        """Somebody is gone, or late: what it had is done again, and what it worked on is suspected."""
        had = sorted(member.begun.values(), key=lambda begun: begun[1])
        is_late = late_seconds is not None
        self._pool.lose(member, f"has not answered for {late_seconds:.0f} seconds" if is_late else "is gone")
        member.begun = {}
        for place, _ in reversed(had):
            self._again(place)
        for place, _ in had[: self._pool._hiring.at_once]:
            self._lost[place] += 1
            if self._lost[place] >= _MOST_LOST and place not in self._done:
                about = self._tasks[place].about()
                raise RunFailedError(_never_done(about, member.node, is_late))

    def _look_for_late_ones(self) -> None:
        """Whoever takes far too long is taken to be gone."""
        now = time.monotonic()
        for member in list(self._pool.members.values()):
            for position, (place, since) in enumerate(sorted(member.begun.values(), key=lambda begun: begun[1])):
                turn = 1 + position // self._pool._hiring.at_once
                if now - since > turn * self._pool.limit_seconds(self._tasks[place]):
                    self._lose(member, late_seconds=now - since)
                    break


def _never_done(about: str, node: str, is_late: bool) -> str:
    """What to say of a task that has ended as many workers as it may."""
    if is_late:
        return (
            f"{about} has kept {_MOST_LOST} workers busy for far too long, the last one on {node}; see whether your "
            "own code waits for something there, then go on with fedarena resume; finished rounds are kept"
        )
    return (
        f"{about} ended {_MOST_LOST} workers, the last one on {node}, probably for lack of memory; "
        "choose a smaller engine.lanes or fewer workers on a machine; finished rounds are kept"
    )


def raise_own(answer: Message, member: Member) -> None:
    """Raises what went wrong in what a worker was sent; that happens once, and is not tried again."""
    if "exception" in answer:
        trace, sentence = answer["exception"]
        raise OwnCodeError(f"{sentence} (on {member.node})", trace)
    if "bad_input" in answer or "failed" in answer:
        raise WorkerSaysError(answer)


class OwnCodeError(Exception):
    """What somebody's own method raised on a worker, with the traceback from there."""

    def __init__(self, sentence: str, trace: str):
        super().__init__(sentence)
        self.add_note(f"On the worker:\n{trace}")


class WorkerSaysError(Exception):
    """A sentence that a worker has for the user."""

    def __init__(self, answer: Message):
        super().__init__(answer.get("bad_input") or answer.get("failed"))
        self.is_bad_input = "bad_input" in answer


def _line(error: BaseException) -> str:
    """What an error comes to, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__).partition(" Worker exit type")[0][:300]


def _is_store_trouble(error: BaseException) -> bool:
    cause = getattr(error, "cause", None)
    return isinstance(cause, OSError) and cause.errno == 28


def _full_disk(member: Member, error: BaseException) -> str:
    return (
        f"The disk of {member.node} is full ({_line(error)}); make room there, in /tmp and where the federation lies, "
        "and go on with fedarena resume; finished rounds are kept"
    )
