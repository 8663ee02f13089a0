"""The coordinator: who has which task, what became of it, and when a round is over. It knows no sockets.

Devices' calls and the loop of rounds come from different threads; one lock keeps them apart. Everything that must
survive a kill is on disk before anybody is told of it: tasks in the journal, updates and receipts in the inbox.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedarena.client import codec
from fedarena.core.errors import DamagedFileError, SecureSumError
from fedarena.core.files import sync_folder
from fedarena.core.outside_text import harmless
from fedarena.deploy.admission import Admission, Announced, Norms, RefusedError
from fedarena.deploy.clocks import RunClock
from fedarena.deploy.inbox import Inbox, Receiving, digest_of
from fedarena.deploy.members import Member, Members
from fedarena.deploy.offences import Offences
from fedarena.deploy.rules import Rule
from fedarena.deploy.tasks import (
    ACCEPTED,
    EXCLUDED,
    GONE,
    LATE,
    REFUSED,
    ROUND_FILE,
    Closed,
    Course,
    Journal,
    Task,
    by_id,
    new_task_id,
    settled,
)
from fedarena.train import Groups

ONLINE_SECONDS = 90.0  # a device that has not spoken for so long is not there
POLL_SECONDS, BUSY_SECONDS = 25.0, 30.0
REFUSALS = 3  # that put a device into quarantine
_DIGEST = re.compile("[0-9a-f]{64}")
Answer = dict[str, Any]


class ExcludedError(Exception):
    """A device may not take part. The sentence says why."""


class Upload:
    """An upload that goes on. A later one of the same task takes its place."""

    def __init__(self, task: Task, announced: Announced, receiving: Receiving):
        self.task, self.announced, self.receiving = task, announced, receiving
        self.superseded = False


class Coordinator:
    """Tells devices what to do, and takes what they send."""

    def __init__(
        self,
        folder: Path,
        members: Members,
        admission: Admission,
        clock: RunClock,
        samples: Callable[[str], int | None],
    ):
        """`folder` is that of the run; `samples` says how many training samples a device has, if it has joined."""
        self.members, self.admission, self._clock, self._samples = members, admission, clock, samples
        self.blobs = folder / "blobs"
        self.blobs.mkdir(parents=True, exist_ok=True)
        self.kept_blobs: set[str] = set()  # that every device needs, in whatever round
        self.journal = folder / ROUND_FILE
        self.inbox, self._journal = Inbox(folder / "inbox"), Journal(self.journal)
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._seen: dict[str, float] = {}  # when devices last spoke
        self._not_ready: dict[str, str] = {}
        self._offences = Offences(folder)
        self._uploads: dict[str, Upload] = {}
        self._rule: Rule | None = None
        self.scoring: tuple[Course, Rule, Admission] | None = None  # an evaluation by devices, beside the round
        self._over: str | None = None
        self._know_of_end: set[str] = set()
        self.tell: Callable[[Iterable[str]], None] = lambda names: None  # who is to look whether there is news
        self.log: Callable[[str], None] = lambda sentence: None
        self._take_errand: Callable[[Task, bytes], None] | None = None  # whoever looks at answers to errands at once
        self.course = self._journal.read()
        if self.course is not None:
            self._recover(self.course)

    def _recover(self, course: Course) -> None:
        """Goes on where a server was killed: what became of its tasks is in the inbox. A deadline counts anew."""
        if course.closed is None:
            course.begin = self._clock.seconds()
        self.admission.norms = Norms(course.norms)
        for task in course.tasks:
            if (receipt := self.inbox.receipt(task.id)) is not None:
                settled(task, receipt)
                if task.outcome == ACCEPTED:
                    self.admission.norms.add(receipt["norm"])
            self._seen[task.name] = self._clock.seconds()  # it gets the time to find the server again
        for task in course.errands:
            if (receipt := self.inbox.receipt(task.id)) is not None:
                settled(task, receipt)

    # What devices ask for.

    def member(self, name: str, serial: str) -> Member:
        """The device that has this certificate."""
        with self._lock:
            if self.members.refresh():
                self._changed.notify_all()
            member = self.members.get(name)
            if member is None:
                raise ExcludedError(f"Nobody called {harmless(name)} is invited")
            if member.serial != serial:
                raise ExcludedError(f"{name} has a newer certificate than this one; use its latest invitation")
            if member.excluded is not None:
                raise ExcludedError(member.excluded)
            now = self._clock.seconds()
            if self._seen.get(name, -ONLINE_SECONDS) < now - ONLINE_SECONDS:
                self._changed.notify_all()  # somebody is back
            self._seen[name] = now
            return member

    def next(self, member: Member, busy: str | None, ready: bool | str) -> Answer | None:
        """What a device is to do now; None: nothing yet."""
        with self._lock:
            self._note_readiness(member.name, ready)
            if self._over is not None:
                self._know_of_end.add(member.name)
                self._changed.notify_all()
                return {"over": self._over} | self._last(member)
            task = self._open_task(member.number)
            if busy is not None:
                return {"wait": BUSY_SECONDS} if task is not None and task.id == busy else {"cancel": busy}
            if task is None or ready is not True:
                return None
            if task.given is None:
                task.given = self._clock.seconds()
            return {"task": task.message} | self._last(member)

    def _last(self, member: Member) -> Answer:
        """What a device hears about its last update, beside what it is to do: what it keeps depends on that."""
        fate = None if self.course is None else self.course.fate(member.number)
        return {} if fate is None else {"last": {"task": fate.task, "used": fate.used}}

    def blob(self, digest: str) -> Path | None:
        """The file with what tasks name by its digest."""
        if not isinstance(digest, str) or _DIGEST.fullmatch(digest) is None:
            return None
        path = self.blobs / digest
        return path if path.exists() else None

    def begin_upload(self, member: Member, message: Any) -> Answer | Upload:
        """An upload begins, or goes on at an offset; an answer, if there is nothing to receive."""
        with self._lock:
            try:
                announced = self.admission.announced(message)
            except RefusedError as error:
                return self._refuse(member, None, error)
            task = self._task(announced.task)
            if task is None:
                return self._former(member, announced.task)
            if task.client != member.number:
                return self._refuse(member, None, RefusedError("task", "This task was given to somebody else"))
            if not task.is_open:
                return _answer(task)
            admission = self._admission(task)
            try:
                if task.is_errand:
                    admission.check_errand(announced, task.spec)
                else:
                    admission.check_size(announced)
                    admission.check_report(announced.report, task.spec, self._samples(member.name) or 0)
            except RefusedError as error:
                return self._refuse(member, task, error)
            there = self.inbox.size(task.id)
            if announced.offset > there:
                return {"offset": there}
            if (former := self._uploads.get(task.id)) is not None:
                former.superseded = True
                former.receiving.close()
            receiving = Receiving(self.inbox, task.id, announced.offset, announced.bytes)
            upload = self._uploads[task.id] = Upload(task, announced, receiving)
            return upload

    def write(self, member: Member, upload: Upload, chunk: bytes) -> Answer | None:
        """Takes a chunk; an answer, if no more is wanted."""
        if upload.superseded or not upload.task.is_open:
            return self.abandon(upload)
        self._seen[member.name] = self._clock.seconds()
        if chunk and upload.receiving.write(chunk):
            return None
        with self._lock:
            return self._refuse(member, upload.task, RefusedError("size", "More bytes came than were announced"))

    def abandon(self, upload: Upload) -> Answer:
        """An upload ended before its end; what has come of it is kept."""
        with self._lock:
            upload.receiving.close()
            if self._uploads.get(upload.task.id) is upload:
                del self._uploads[upload.task.id]
            return {"offset": self.inbox.size(upload.task.id)} if upload.task.is_open else _answer(upload.task)

    def finish_upload(self, member: Member, upload: Upload) -> Answer:
        """All chunks have come: checks the update, and gives the receipt when it is on disk."""
        receiving, task = upload.receiving, upload.task
        if upload.superseded or not receiving.is_complete:
            return self.abandon(upload)
        receiving.make_durable()
        try:
            admission = self._admission(task)
            norm = self._checked(task, upload, admission)
        except FileNotFoundError:  # another upload of the same task was refused meanwhile
            return self.abandon(upload)
        except RefusedError as error:
            with self._lock:
                if upload.superseded:
                    return self.abandon(upload)
                if error.word == "digest" and receiving.begins_at:  # pieces of several uploads may not fit
                    receiving.truncate()
                    return self.abandon(upload)
                self.abandon(upload)
                return self._refuse(member, task, error)
        with self._lock:
            self.abandon(upload)
            if upload.superseded or not task.is_open:
                return self.abandon(upload)
            left = upload.announced.report.get("left") if task.is_errand else None
            reason = None if left is None else str(left)[:200]
            self._settle(task, ACCEPTED, reason, upload.announced, norm)
            if not task.is_errand:
                admission.norms.add(norm)
            elif reason is not None:
                self.log(f"{member.name} left a secure sum: {harmless(reason)}")
            self._look(self._clock.seconds())
            return _answer(task)

    def _checked(self, task: Task, upload: Upload, admission: Admission) -> float:
        """Looks at a body that is complete; how long the update is."""
        path = self.inbox.body(task.id)
        if not task.is_errand:
            return admission.check_body(path, upload.announced)
        answer = admission.checked_answer(path, upload.announced)
        if "left" not in upload.announced.report:
            with self._lock:
                if not task.is_open:
                    return 0.0
                try:
                    if self._take_errand is not None:
                        self._take_errand(task, answer)
                except SecureSumError as error:
                    raise RefusedError("secure sum", str(error)) from None
        return 0.0

    def status(self, member: Member, task_id: Any) -> Answer:
        """How much of a task's body is there, or what was decided about it."""
        with self._lock:
            task = self._task(task_id) if isinstance(task_id, str) else None
            if task is None or task.client != member.number:
                return {"receipt": self._former(member, task_id)}
            return {"bytes": self.inbox.size(task.id)} if task.is_open else {"receipt": _answer(task)}

    # What the loop of rounds asks for.

    def online(self) -> set[str]:
        """The devices that are there and ready to work."""
        with self._lock:
            since = self._clock.seconds() - ONLINE_SECONDS
            members = [self.members.get(name) for name, seen in self._seen.items() if seen >= since]
            able = {member.name for member in members if member is not None and member.excluded is None}
            return {name for name in able - self._not_ready.keys() if self._samples(name) is not None}

    def yet_to_join(self, names: Iterable[str]) -> int:
        """How many of these devices have not said what they have, and still may."""
        with self._lock:
            members = [self.members.get(name) for name in names if self._samples(name) is None]
            return sum(member is not None and member.excluded is None for member in members)

    def publish(self, groups: Groups) -> tuple[str, int]:
        """Makes a file for devices to download: its name, which is its digest, and how long it is."""
        new = self.blobs / "new"
        codec.save_groups(new, groups)
        with open(new, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        size = new.stat().st_size
        os.replace(new, self.blobs / digest)
        sync_folder(self.blobs)
        return digest, size

    def begin(self, course: Course, rule: Rule) -> None:
        """Begins a round, or goes on with one that was begun before."""
        with self._lock:
            former, self._rule = self.course, rule
            if course is not former:
                if former is not None:
                    course.settled = former.fates()
                course.norms = self.admission.norms.to_list()
                self._journal.write(course)
                self.course = course
                self.inbox.keep_only(task.id for task in course.tasks + course.errands)
                used = self.kept_blobs | {task.spec["blob"] for task in course.tasks}
                for path in self.blobs.iterdir():
                    if path.name not in used:
                        path.unlink()
            else:
                self._check_downloads(course)
            self._look(self._clock.seconds())
            self._changed.notify_all()
        self.tell([task.name for task in course.open_tasks()])

    def _check_downloads(self, course: Course) -> None:
        """Files that devices were promised may have changed on disk, or got lost, where a server goes on."""
        open_tasks = (task for task in course.tasks + course.errands if task.is_open)
        for blob in {task.spec["blob"] for task in open_tasks if task.spec["blob"]}:
            path = self.blobs / blob
            if not path.exists() or digest_of(path) != blob:
                raise DamagedFileError(f"{path} is damaged or missing: it is not what devices were told to download")

    def invite(self, tasks: list[Task]) -> None:
        """Gives further tasks to devices in the present round."""
        with self._lock:
            assert self.course is not None
            self.course.tasks += tasks
            self._journal.write(self.course)
            self._changed.notify_all()
        self.tell([task.name for task in tasks])

    def give_errands(self, tasks: list[Task]) -> None:
        """Has devices do something beside the tasks of the present round, which is over."""
        with self._lock:
            assert self.course is not None
            self.course.errands += tasks
            self._journal.write(self.course)
            self._changed.notify_all()
        self.tell([task.name for task in tasks])

    def take_errands_with(self, take: Callable[[Task, bytes], None] | None, known: list[Task]) -> None:
        """Has somebody look at answers from now on, and at those to errands that are known already.

        Before, and from None on, they are only kept: after a restart, devices may be faster than whoever looks.
        """
        with self._lock:
            for task in known:
                if take is not None and self.has_answered(task):
                    with suppress(SecureSumError):  # then it counts as if there was none
                        take(task, self.inbox.accepted_body(task.id).read_bytes())
            self._take_errand = take

    def open_errands(self) -> list[Task]:
        """Those that devices are still busy with, without those who are gone."""
        with self._lock:
            now = self._clock.seconds()
            found = [] if self.course is None else [task for task in self.course.errands if task.is_open]
            return [task for task in found if max(self._seen.get(task.name, 0.0), task.invited) >= now - ONLINE_SECONDS]

    def close_errands(self) -> None:
        """Who has not answered by now is not waited for."""
        with self._lock:
            assert self.course is not None
            for task in self.course.errands:
                if task.is_open:
                    self._drop(task, LATE, "late", self._clock.seconds())
            self._journal.write(self.course)

    def has_answered(self, task: Task) -> bool:
        """Whether a device has done an errand, and not said that it will not."""
        return task.outcome == ACCEPTED and task.reason is None

    def conclude(self, jobs: Collection[int]) -> None:
        """The secure sums of the present round, which is over, are there: they have the updates of these jobs."""
        with self._lock:
            assert self.course is not None
            self.course.counted = tuple(task.id for task in self.course.used() if task.job in jobs)
            self._journal.write(self.course)

    def name_of(self, client: int) -> str:
        """The name of a member."""
        return next(member.name for member in self.members if member.number == client)

    def score(self, course: Course, rule: Rule, admission: Admission) -> None:
        """Has devices evaluate a model. A server that is killed meanwhile begins that anew."""
        with self._lock:
            self.scoring = course, rule, admission
            self._look(self._clock.seconds())
        self.tell([task.name for task in course.tasks])

    def wait(self, seconds: float) -> None:
        """Waits until something happens, at most so long; sees to those who have gone."""
        with self._changed:
            self._clock.wait(self._changed, seconds)
            if self.members.refresh():
                self.log("clients.json has changed")
            self._look(self._clock.seconds())

    @property
    def closed(self) -> bool:
        """Whether the present round is over."""
        return self.course is not None and self.course.closed is not None

    def end(self, sentence: str, seconds: float) -> None:
        """From now on, devices are told that the run is over; those who are there get so many seconds to hear it."""
        with self._lock:
            self._over = sentence
        self.tell(self.seen())
        until = self._clock.seconds() + seconds
        with self._changed:
            while self.online() - self._know_of_end and (left := until - self._clock.seconds()) > 0:
                self._clock.wait(self._changed, left)

    def seen(self) -> list[str]:
        """Who has ever spoken."""
        with self._lock:
            return list(self._seen)

    def _look(self, now: float) -> None:
        """Whether somebody is gone, and whether the round is over."""
        if self.scoring is not None:
            self._look_at(*self.scoring[:2], now)
        if self.course is not None and self._rule is not None:
            self._look_at(self.course, self._rule, now)

    def _look_at(self, course: Course, rule: Rule, now: float) -> None:
        if course.closed is not None:
            return
        for task in course.open_tasks():
            member = self.members.get(task.name)
            if member is None or member.excluded is not None:
                self._drop(task, EXCLUDED, "excluded", now)
            elif not rule.waits_for_ever and max(self._seen.get(task.name, 0.0), task.invited) < now - ONLINE_SECONDS:
                self._drop(task, GONE, "gone", now)
        if rule.is_over(course, now):
            self._close(course, rule, now)

    def _close(self, course: Course, rule: Rule, now: float) -> None:
        used = rule.used(course)
        for task in course.open_tasks():
            if rule.is_dropped_with(task, course):
                self._drop(task, LATE, "late", now)
        over = course.tasks
        if rule.goes_on:  # what came and was not used waits for the next round, unless it is too old by then
            waits = [task for task in course.accepted() if task not in used and not rule.is_dropped_with(task, course)]
            over = [task for task in course.tasks if not (task.is_open or task in waits)]
        course.closed = Closed(now, tuple(task.id for task in used), tuple(task.id for task in over))
        if not self.admission.sums_securely:
            course.counted = course.closed.used
        if course is self.course:
            self._journal.write(course)
        self._changed.notify_all()

    def _drop(self, task: Task, outcome: str, reason: str, now: float) -> None:
        task.outcome, task.reason, task.ended = outcome, reason, now

    def _settle(self, task: Task, outcome: str, reason: str | None, upload: Announced | None, norm: float) -> None:
        """Decides about a task; `upload` is what was accepted."""
        receipt = {
            "accepted": outcome == ACCEPTED,
            "outcome": outcome,
            "reason": reason,
            "ended": self._clock.seconds(),
            "bytes": 0 if upload is None else upload.bytes,
            "sha256": None if upload is None else upload.sha256,
            "report": {} if upload is None else upload.report,
            "norm": norm,
        }
        self.inbox.settle(task.id, receipt)
        settled(task, receipt)
        self._changed.notify_all()

    def _refuse(self, member: Member, task: Task | None, error: RefusedError) -> Answer:
        """A refused update is a failed job; too many of them put a device into quarantine."""
        offence = task.id if task is not None and task.is_open else new_task_id()
        number = self._offences.add(member.serial, offence)  # before the receipt, or a kill could hide it
        if task is not None and task.is_open:
            if (upload := self._uploads.get(task.id)) is not None:
                self.abandon(upload)
            self._settle(task, REFUSED, error.word, None, 0.0)
        self.log(f"refused of {member.name}: {error.word}: {error.sentence}")
        if number >= REFUSALS:
            self.members.quarantine(member.name, f"{REFUSALS} uploads were refused, the last one: {error.word}")
            self.log(f"{member.name} is in quarantine")
        self._look(self._clock.seconds())
        return {"refused": error.sentence}

    def _note_readiness(self, name: str, ready: bool | str) -> None:
        was = name not in self._not_ready
        if ready is True:
            self._not_ready.pop(name, None)
        else:
            self._not_ready[name] = str(ready)[:200]
        if was != (ready is True):
            self._changed.notify_all()

    def has_joined(self) -> None:
        """A device is known from now on."""
        with self._lock:
            self._changed.notify_all()

    def _tasks(self) -> list[Task]:
        """All there are: errands, which somebody waits for, then those of the round, then those of an evaluation."""
        tasks = [] if self.course is None else self.course.errands + self.course.tasks
        return tasks if self.scoring is None else tasks + self.scoring[0].tasks

    def _open_task(self, client: int) -> Task | None:
        return next((task for task in self._tasks() if task.client == client and task.is_open), None)

    def _task(self, task_id: str) -> Task | None:
        return by_id(self._tasks()).get(task_id)

    def _admission(self, task: Task) -> Admission:
        return self.scoring[2] if self.scoring is not None and task in self.scoring[0].tasks else self.admission

    def _former(self, member: Member, task_id: Any) -> Answer:
        """What to say about a task of a round before: it counted once, or never will."""
        last = None if self.course is None else self.course.settled.get(member.number)
        if last is not None and last.task == task_id:
            return {"accepted": True}
        return {"late": "The round of this task is over"}


def _answer(task: Task) -> Answer:
    """What a device is told about a task that is decided."""
    if task.outcome == ACCEPTED:
        return {"accepted": True}
    if task.outcome == REFUSED:
        return {"refused": f"It was refused: {task.reason}"}
    return {"late": "The server does not wait for it any more"}
