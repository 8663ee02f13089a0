"""Processes that do one thing after the other: they are told what by lines of JSON, and tell how far they are.

A thread here looks after each (`Worker`), so that Ctrl-C stops all of them after what is done is on disk. Processes are
on this machine, or on others (`fedarena.runs.hosts`).
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any, Generic, NoReturn, Protocol, TextIO, TypeVar

import numpy as np


class Named(Protocol):
    """What workers do has a name, for people."""

    @property
    def name(self) -> str:
        """Of it."""


Item = TypeVar("Item", bound=Named)


class WorkerProcess(Protocol):
    """A process that is told what to do, and tells what it does, by lines of JSON."""

    def poll(self) -> int | None:
        """Its exit code, if it has ended; that of a signal is negative."""

    def tell(self, task: dict[str, Any]) -> None:
        """Says what to do."""

    def end_tasks(self) -> None:
        """There is nothing more to do."""

    def events(self) -> Iterator[dict[str, Any]]:
        """What it tells, until it ends."""

    def stop(self) -> None:
        """Has it end after it has written what is done."""

    def wait(self) -> int:
        """Until it has ended; its exit code."""


def start_worker(
    module: str,
    cores: list[int],
    command: Sequence[str] | None = None,
    path: Sequence[str] = (),
    folder: str | None = None,
    **environment: str,
) -> subprocess.Popen[str]:
    """Such a process on this machine, which may use these cores.

    It is part of a `command` (this one), works in a `folder` (this one), and imports also from the `path`.
    """
    own_path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return subprocess.Popen(
        [sys.executable, "-m", module, json.dumps([cores, command or sys.argv, list(path)])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        cwd=folder,
        env={**os.environ, "PYTHONPATH": own_path, **environment},
        start_new_session=True,  # Ctrl-C reaches this process alone, which passes it on
    )


class LocalProcess:
    """A process on this machine."""

    def __init__(self, module: str, cores: list[int], **environment: str):
        process = start_worker(module, cores, **environment)
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._tasks, self._events = process, process.stdin, process.stdout

    def poll(self) -> int | None:
        """Its exit code, if it has ended."""
        return self._process.poll()

    def tell(self, task: dict[str, Any]) -> None:
        """Says what to do."""
        with suppress(BrokenPipeError):  # it has ended, which is seen by its events
            self._tasks.write(json.dumps(task) + "\n")
            self._tasks.flush()

    def end_tasks(self) -> None:
        """There is nothing more to do."""
        with suppress(BrokenPipeError):
            self._tasks.close()

    def events(self) -> Iterator[dict[str, Any]]:
        """What it tells, until it ends."""
        return map(json.loads, self._events)

    def stop(self) -> None:
        """Has it end after it has written what is done."""
        self._process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """Until it has ended; its exit code."""
        return self._process.wait()


def shares_of_cores(workers: int) -> list[list[int]]:
    """Which cores each worker may use; where cores cannot be assigned, none are named."""
    if not hasattr(os, "sched_getaffinity"):
        return [[] for _ in range(workers)]
    cores = sorted(os.sched_getaffinity(0))
    if workers >= len(cores):
        return [[cores[number % len(cores)]] for number in range(workers)]
    return [share.tolist() for share in np.array_split(cores, workers)]


def wait_for(workers: Sequence[Worker]) -> None:
    """Until all are done; when this process is to end, they are stopped first."""
    for worker in workers:
        worker.start()
    try:
        for worker in workers:
            worker.done.wait()
    except BaseException:  # Ctrl-C, or a signal to end
        for worker in workers:
            worker.stop()
        for worker in workers:
            worker.done.wait()
        raise


class Worker(ABC):
    """A thread that looks after a process, which is made by `start`; another one, where one has ended."""

    def __init__(self, start: Callable[[], WorkerProcess]):
        # Python 3.11 takes a thread for ended if Ctrl-C comes while it is joined, so this is waited for instead.
        self.done = threading.Event()
        self._start = start
        self._process: WorkerProcess | None = None
        self._stopping = False
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begins."""
        threading.Thread(target=self._work_and_say, daemon=True).start()

    def _work_and_say(self) -> None:
        try:
            self._work()
        finally:
            self.done.set()

    @abstractmethod
    def _work(self) -> None:
        """What the thread does."""

    def stop(self) -> None:
        """Has the process end after it has written what is done."""
        with self._lock:
            self._stopping = True
            if self._process is not None and self._process.poll() is None:
                self._process.stop()

    def _running_process(self) -> WorkerProcess | None:
        """The process, or another one if it is no more; None when there is nothing to do any more."""
        with self._lock:
            if self._stopping:
                return None
            if self._process is None or self._process.poll() is not None:
                self._process = self._start()
            return self._process


class QueueWorker(Worker, Generic[Item]):
    """Has its process do one thing after the other, until none is left."""

    def __init__(self, start: Callable[[], WorkerProcess], waiting: queue.SimpleQueue[Item]):
        super().__init__(start)
        self.failures: dict[str, str] = {}  # by name
        self._waiting = waiting

    @abstractmethod
    def _task(self, item: Item) -> dict[str, Any]:
        """What the process is told to do."""

    @abstractmethod
    def _tell(self, item: Item, event: dict[str, Any]) -> None:
        """Passes on what the process says."""

    @abstractmethod
    def _ended(self, item: Item, failure: str | None) -> None:
        """It is done, or failed for this reason."""

    def _began(self, item: Item) -> None:
        """It is handed to the process."""

    def _work(self) -> None:
        try:
            while not self._stopping:
                try:
                    item = self._waiting.get_nowait()
                except queue.Empty:
                    break
                self._began(item)
                failure = self._do(item)
                if self._stopping:
                    break
                if failure is not None:
                    self.failures[item.name] = failure
                self._ended(item, failure)
        finally:
            if self._process is not None:
                self._process.end_tasks()
                self._process.wait()

    def _do(self, item: Item) -> str | None:
        """What went wrong, if anything did."""
        process = self._running_process()
        if process is None:
            return None
        process.tell(self._task(item))
        for event in process.events():
            if event["event"] == "ended":
                failure: str | None = event["failure"]
                return failure
            self._tell(item, event)
        code = process.wait()
        return "its process was killed" + (f" by signal {-code}" if code < 0 else f", with exit code {code}")


def begin_work() -> TextIO:
    """Makes a process one that `start_worker` started; gives where its events go."""
    signal.signal(signal.SIGTERM, _stop)
    # What somebody's own method prints must not get among the events.
    events = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    cores, command, path = json.loads(sys.argv[1])
    if cores:
        os.sched_setaffinity(0, cores)
    sys.argv = command
    sys.path += [entry for entry in path if entry not in sys.path and os.path.isdir(entry)]
    return events


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
