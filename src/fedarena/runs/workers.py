"""Processes that do one thing after the other: they are told what by lines of JSON, and tell how far they are.

A thread here looks after each (`Worker`), so that Ctrl-C stops all of them after what is done is on disk.
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
from collections.abc import Sequence
from types import FrameType
from typing import Any, Generic, NoReturn, Protocol, TextIO, TypeVar

import numpy as np


class Named(Protocol):
    """What workers do has a name, for people."""

    @property
    def name(self) -> str:
        """Of it."""


Item = TypeVar("Item", bound=Named)


def start_worker(module: str, cores: list[int], **environment: str) -> subprocess.Popen[str]:
    """A process that is told what to do, and tells what it does, by lines of JSON; it may use these cores."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return subprocess.Popen(
        [sys.executable, "-m", module, json.dumps([cores, sys.argv])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": path, **environment},
        start_new_session=True,  # Ctrl-C reaches this process alone, which passes it on
    )


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
        worker.thread.start()
    try:
        for worker in workers:
            worker.thread.join()
    except BaseException:  # Ctrl-C, or a signal to end
        for worker in workers:
            worker.stop()
        for worker in workers:
            worker.thread.join()
        raise


class Worker(ABC):
    """A thread that looks after a process of a module, which may use these cores."""

    def __init__(self, module: str, cores: list[int], **environment: str):
        self.thread = threading.Thread(target=self._work, daemon=True)
        self._module, self._cores, self._environment = module, cores, environment
        self._process: subprocess.Popen[str] | None = None
        self._stopping = False
        self._lock = threading.Lock()

    @abstractmethod
    def _work(self) -> None:
        """What the thread does."""

    def stop(self) -> None:
        """Has the process end after it has written what is done."""
        with self._lock:
            self._stopping = True
            if self._process is not None and self._process.poll() is None:
                self._process.send_signal(signal.SIGTERM)

    def _running_process(self) -> subprocess.Popen[str] | None:
        """The process, or another one if it is no more; None when there is nothing to do any more."""
        with self._lock:
            if self._stopping:
                return None
            if self._process is None or self._process.poll() is not None:
                self._process = start_worker(self._module, self._cores, **self._environment)
            return self._process


class QueueWorker(Worker, Generic[Item]):
    """Has its process do one thing after the other, until none is left."""

    def __init__(self, module: str, cores: list[int], waiting: queue.SimpleQueue[Item], **environment: str):
        super().__init__(module, cores, **environment)
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
            if self._process is not None and self._process.stdin is not None:
                self._process.stdin.close()  # there is nothing more to do
                self._process.wait()

    def _do(self, item: Item) -> str | None:
        """What went wrong, if anything did."""
        process = self._running_process()
        if process is None:
            return None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(self._task(item)) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                event = json.loads(line)
                if event["event"] == "ended":
                    failure: str | None = event["failure"]
                    return failure
                self._tell(item, event)
        except BrokenPipeError:
            pass
        code = process.wait()
        return "its process was killed" + (f" by signal {-code}" if code < 0 else f", with exit code {code}")


def begin_work() -> TextIO:
    """Makes a process one that `start_worker` started; gives where its events go."""
    signal.signal(signal.SIGTERM, _stop)
    # What somebody's own method prints must not get among the events.
    events = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    cores, command = json.loads(sys.argv[1])
    if cores:
        os.sched_setaffinity(0, cores)
    sys.argv = command
    return events


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
