"""Tasks that are worked off: who takes which, what is done again, and the results in the order of the tasks.

Whoever has nothing to do takes the largest task that is left. What somebody had who is gone is done again by another
one, and what takes somebody very long is done by another one as well. No result depends on any of this, and nothing is
waited for without a limit.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fedarena.core.errors import RunFailedError
from fedarena.runs.cluster.messages import Message
from fedarena.runs.cluster.pool import STORE_SECONDS, TICK_SECONDS, Member, Pool, Task
from fedarena.runs.cluster.troubles import MOST_LOST, full_disk, is_full_disk, never_done, one_line

_AHEAD = 4  # results that may wait for their turn, for everything that can be under way
# A task that takes so much longer than others of its size is given to somebody else as well, once there is somebody.
_SLOW_FACTOR, _SLOW_SECONDS = 3.0, 2.0


def work_off(pool: Pool, tasks: Sequence[Task], meanwhile: Callable[[], None] | None = None) -> Iterator[Message]:
    """The answers to all tasks, in their order; each has been checked to be one.

    `meanwhile` is done here as soon as everybody has something to do.
    """
    return _Working(pool, tasks).results(meanwhile)


class _Working:
    """Some tasks that are being worked off."""

    def __init__(self, pool: Pool, tasks: Sequence[Task]):
        self._pool, self._ray, self._tasks = pool, pool.ray, tasks
        self._left = sorted(range(len(tasks)), key=lambda place: -tasks[place].size)  # the largest comes first
        self._done: dict[int, Message] = {}
        self._lost: Counter[int] = Counter()  # workers that a task has ended
        self._next = 0  # whose turn it is

    def results(self, meanwhile: Callable[[], None] | None = None) -> Iterator[Message]:
        pool = self._pool
        try:
            if meanwhile is not None:
                self._hand_out()
                meanwhile()
            while self._next < len(self._tasks):
                pool.look_around()
                self._hand_out()
                self._wait()
                self._look_for_late_ones()
                pool.check_patience()
                while self._next in self._done:
                    self._hand_out()  # before somebody is busy with what is ready
                    result = self._done.pop(self._next)
                    self._next += 1
                    yield result
        finally:
            for member in pool.members.values():
                member.left_behind |= self._limits(member)
                member.begun.clear()

    def _hand_out(self) -> None:
        """Gives everybody something to do who has nothing, and something in advance, as long as there is enough."""
        at_once = self._pool.at_once
        members = sorted(self._pool.members.values(), key=lambda member: member.busy_with)
        for member in members:
            self._fill(member, at_once, members)
        if len(self._left) >= at_once * len(members):  # otherwise, who is done first takes what is left
            for member in members:
                if not member.left_behind:
                    self._fill(member, at_once + 1, members)
        if not self._left:
            self._repeat_slow_ones(members)

    def _fill(self, member: Member, depth: int, members: Sequence[Member]) -> None:
        """Gives somebody the largest tasks that are left, up to so many, but none whose turn is far away."""
        horizon = self._next + _AHEAD * (self._pool.at_once + 1) * len(members)
        while member.busy_with < depth:
            place = next((place for place in self._left if place < horizon), None)
            if place is None:
                return
            self._left.remove(place)
            self._give(member, place)

    def _give(self, member: Member, place: int) -> None:
        task = self._tasks[place]
        method = getattr(member.actor, task.method)
        member.begun[method.remote(task.message(member))] = (place, time.monotonic())

    def _repeat_slow_ones(self, members: Sequence[Member]) -> None:
        """Whoever has nothing to do repeats what takes another one too long; the first result counts."""
        idle = [member for member in members if not member.busy_with]
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
        members = pool.members.values()
        owners = {reference: member for member in members for reference in (*member.begun, *member.left_behind)}
        waiting = [*owners, *pool.asked]
        if not waiting:
            time.sleep(TICK_SECONDS / 10)  # nobody is there, and nobody is asked; others are hired soon
            return
        ready, _ = self._ray.wait(waiting, num_returns=1, timeout=TICK_SECONDS)
        for reference in ready:
            if reference in owners:
                self._take(owners[reference], reference)
            else:
                pool.admit_one(reference)

    def _take(self, member: Member, reference: Any) -> None:
        """Takes an answer."""
        if reference not in member.begun:
            member.left_behind.pop(reference, None)
            return
        place, _ = member.begun[reference]
        exceptions = self._ray.exceptions
        try:
            answer: Message = self._ray.get(reference, timeout=STORE_SECONDS)
        except (exceptions.ObjectLostError, exceptions.GetTimeoutError):  # it was there, but its machine is gone
            del member.begun[reference]
            self._again(place)
            return
        except exceptions.RayTaskError as error:
            if isinstance(getattr(error, "cause", None), MemoryError):
                self._lose(member)
                return
            if is_full_disk(error):
                raise RunFailedError(full_disk(member.node, error)) from None
            del member.begun[reference]
            if isinstance(getattr(error, "cause", None), (exceptions.ObjectLostError, exceptions.GetTimeoutError)):
                self._again(place)  # what was sent to all did not get there
                return
            raise RunFailedError(f"{member.name} failed: {one_line(error)}") from error
        except exceptions.OutOfDiskError as error:
            raise RunFailedError(full_disk(member.node, error)) from None
        except exceptions.RayError:
            self._lose(member)
            return
        del member.begun[reference]
        if place in self._done or place < self._next:
            return  # somebody else was faster
        task = self._tasks[place]
        member.sees_states = answer.get("sees_states", member.sees_states)
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
        for place, _ in had[: self._pool.at_once]:
            self._lost[place] += 1
            if self._lost[place] >= MOST_LOST and place not in self._done:
                about = self._tasks[place].about()
                raise RunFailedError(never_done(about, member.node, is_late))

    def _limits(self, member: Member) -> dict[Any, tuple[float, float]]:
        """Since when somebody has been working on what, or waiting to, and until when that may go on."""
        limits = {}
        begun = sorted(member.begun.items(), key=lambda item: item[1][1])
        for position, (reference, (place, since)) in enumerate(begun):
            turn = 1 + position // self._pool.at_once
            limits[reference] = since, since + turn * self._pool.limit_seconds(self._tasks[place])
        return limits

    def _look_for_late_ones(self) -> None:
        """Whoever takes far too long is taken to be gone."""
        now = time.monotonic()
        for member in list(self._pool.members.values()):
            limits = self._limits(member) | member.left_behind
            if late := [now - since for since, limit in limits.values() if now > limit]:
                self._lose(member, late_seconds=max(late))


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
