"""Running what is left of a suite: one run after the other, or several at once in processes of their own.

A process (`fedarena.runs.suite_worker`) gets its share of the cores and does run after run. It is told which by lines
of JSON, and tells in such lines how far it is. No result depends on how many of them there are.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedarena.core.errors import BadInputError, DivergedError, FedArenaError, TrainingStuckError
from fedarena.core.words import some
from fedarena.runs.observer import Observer, SuiteObserver
from fedarena.runs.own_source import own_source
from fedarena.runs.run import resume_run, start_run
from fedarena.runs.suite_plan import PlannedRun


def run_one_by_one(planned: Sequence[PlannedRun], observer: Observer, announce: Callable[[str], None]) -> list[str]:
    """Runs what is left; returns a sentence for every run that failed or could not go on."""
    failures = _cannot_go_on(planned)
    for number, run in enumerate(planned, start=1):
        if not run.is_to_run:
            continue
        announce(f"{run.name} ({number}/{len(planned)})")
        try:
            if run.state == "begun":
                resume_run(run.folder, observer)
            else:
                start_run(run.config, run.folder.parent, observer)
        except (DivergedError, TrainingStuckError) as error:
            failures.append(f"{run.name}: {error}")
        except FedArenaError:  # a full disk or a damaged file would stop the next run, too
            raise
        except Exception as error:  # a bug in somebody's own method
            failures.append(f"{run.name}: {type(error).__name__}: {error}")
    return failures


def run_at_once(planned: Sequence[PlannedRun], jobs: int, observer: SuiteObserver) -> list[str]:
    """The same with so many runs at a time. Ctrl-C stops all of them after their current round is on disk."""
    failures = _cannot_go_on(planned)
    waiting: queue.SimpleQueue[PlannedRun] = queue.SimpleQueue()
    to_run = [run for run in planned if run.is_to_run]
    if not to_run:
        return failures
    for run in to_run:
        waiting.put(run)
    workers = [_Worker(cores, waiting, observer) for cores in shares_of_cores(min(jobs, len(to_run)))]
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
        observer.stopped()
        raise
    failed = {run: sentence for worker in workers for run, sentence in worker.failures.items()}
    return failures + [f"{run.name}: {failed[run.name]}" for run in planned if run.name in failed]


def check_found_by_others(planned: Sequence[PlannedRun]) -> None:
    """Refuses runs with parts that another process would not find."""
    for run in planned:
        source = own_source(run.config)
        if definitions := [*source.unknown, *(name for name in source.fingerprints if ":" in name)]:
            raise BadInputError(
                f"Other processes cannot find {some(definitions)}, which is not in a file that can be imported; "
                "put it into one, or run one after the other (jobs=1)"
            )


def _cannot_go_on(planned: Sequence[PlannedRun]) -> list[str]:
    return [
        f"{run.name}: it is not finished, and cannot go on, because {some(run.changed)} changed since; "
        "--rerun-stale begins again"
        for run in planned
        if run.is_stale and run.state == "begun"
    ]


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


class _Worker:
    """A thread that has a process do one run after the other, until none is left."""

    def __init__(self, cores: list[int], waiting: queue.SimpleQueue[PlannedRun], observer: SuiteObserver):
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.failures: dict[str, str] = {}
        self._cores, self._waiting, self._observer = cores, waiting, observer
        self._process: subprocess.Popen[str] | None = None
        self._stopping = False
        self._lock = threading.Lock()

    def _work(self) -> None:
        try:
            while not self._stopping:
                try:
                    run = self._waiting.get_nowait()
                except queue.Empty:
                    break
                failure = self._do(run)
                if failure is not None and not self._stopping:
                    self.failures[run.name] = failure
                if not self._stopping:
                    self._observer.ended(run.name, failure)
        finally:
            if self._process is not None and self._process.stdin is not None:
                self._process.stdin.close()  # there is nothing more to do
                self._process.wait()

    def stop(self) -> None:
        """Has the process end after it has written what is done."""
        with self._lock:
            self._stopping = True
            if self._process is not None and self._process.poll() is None:
                self._process.send_signal(signal.SIGTERM)

    def _do(self, run: PlannedRun) -> str | None:
        """Has a run done; what went wrong, if anything did."""
        process = self._running_process()
        if process is None:
            return None
        task: dict[str, Any] = {"folder": str(run.folder), "own_source": own_source(run.config).to_json()}
        if run.state == "new":
            task["settings"] = run.config.to_dict()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(task) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                event = json.loads(line)
                if event["event"] == "ended":
                    failure: str | None = event["failure"]
                    return failure
                self._tell(run.name, event)
        except BrokenPipeError:
            pass
        code = process.wait()
        return "its process was killed" + (f" by signal {-code}" if code < 0 else f", with exit code {code}")

    def _running_process(self) -> subprocess.Popen[str] | None:
        with self._lock:
            if self._stopping:
                return None
            if self._process is None or self._process.poll() is not None:
                self._process = start_worker("fedarena.runs.suite_worker", self._cores)
            return self._process

    def _tell(self, name: str, event: dict[str, Any]) -> None:
        if event["event"] == "warned":
            self._observer.warned(name, event["message"])
        elif event["event"] == "started":
            self._observer.began(name, event["rounds"], event["done"])
        elif event["event"] == "round":
            self._observer.finished_round(name, event["round"], event["score"])
