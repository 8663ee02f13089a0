"""Running what is left of a suite: one run after the other, or several at once in processes of their own.

A process (`fedarena.runs.suite_worker`) gets its share of the cores and does run after run. It is told which by lines
of JSON, and tells in such lines how far it is. No result depends on how many of them there are.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from fedarena.core.errors import BadInputError, DivergedError, FedArenaError, TrainingStuckError
from fedarena.core.words import some
from fedarena.runs.cluster import staying
from fedarena.runs.observer import Observer, SuiteObserver
from fedarena.runs.own_source import own_source
from fedarena.runs.run import resume_run, start_run
from fedarena.runs.suite_plan import PlannedRun
from fedarena.runs.workers import LocalProcess, QueueWorker, WorkerProcess, shares_of_cores, wait_for

MODULE = "fedarena.runs.suite_worker"  # of the processes


def run_one_by_one(planned: Sequence[PlannedRun], observer: Observer, announce: Callable[[str], None]) -> list[str]:
    """Runs what is left; returns a sentence for every run that failed or could not go on."""
    with staying():
        return _run_each(planned, observer, announce)


def _run_each(planned: Sequence[PlannedRun], observer: Observer, announce: Callable[[str], None]) -> list[str]:
    failures = cannot_go_on(planned)
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
    failures = cannot_go_on(planned)
    waiting: queue.SimpleQueue[PlannedRun] = queue.SimpleQueue()
    to_run = [run for run in planned if run.is_to_run]
    if not to_run:
        return failures
    for run in to_run:
        waiting.put(run)
    shares = shares_of_cores(min(jobs, len(to_run)))
    workers = [SuiteWorker(partial(LocalProcess, MODULE, cores), waiting, observer) for cores in shares]
    return failures + work_off(workers, planned, observer)


def work_off(workers: Sequence[SuiteWorker], planned: Sequence[PlannedRun], observer: SuiteObserver) -> list[str]:
    """Waits until workers have done what they have to do; a sentence for every run that failed."""
    try:
        wait_for(workers)
    except BaseException:
        observer.stopped()
        raise
    failed = {run: sentence for worker in workers for run, sentence in worker.failures.items()}
    return [f"{run.name}: {failed[run.name]}" for run in planned if run.name in failed]


def check_found_by_others(planned: Sequence[PlannedRun]) -> None:
    """Refuses runs with parts that another process would not find."""
    for run in planned:
        source = own_source(run.config)
        if definitions := [*source.unknown, *(name for name in source.fingerprints if ":" in name)]:
            raise BadInputError(
                f"Other processes cannot find {some(definitions)}, which is not in a file that can be imported; "
                "put it into one, or run one after the other (jobs=1)"
            )


def cannot_go_on(planned: Sequence[PlannedRun]) -> list[str]:
    """A sentence for every run that was begun with other source."""
    return [
        f"{run.name}: it is not finished, and cannot go on, because {some(run.changed)} changed since; "
        "--rerun-stale begins again"
        for run in planned
        if run.is_stale and run.state == "begun"
    ]


class SuiteWorker(QueueWorker[PlannedRun]):
    """Has its process do run after run."""

    def __init__(
        self, start: Callable[[], WorkerProcess], waiting: queue.SimpleQueue[PlannedRun], observer: SuiteObserver
    ):
        super().__init__(start, waiting)
        self._observer = observer

    def _task(self, item: PlannedRun) -> dict[str, Any]:
        task: dict[str, Any] = {"folder": str(item.folder), "own_source": own_source(item.config).to_json()}
        return task | ({"settings": item.config.to_dict()} if item.state == "new" else {})

    def _tell(self, item: PlannedRun, event: dict[str, Any]) -> None:
        if event["event"] == "warned":
            self._observer.warned(item.name, event["message"])
        elif event["event"] == "started":
            self._observer.began(item.name, event["rounds"], event["done"])
        elif event["event"] == "round":
            self._observer.finished_round(item.name, event["round"], event["score"])
        elif event["event"] == "raised":
            self._observer.raised(item.name, event["trace"])

    def _ended(self, item: PlannedRun, failure: str | None) -> None:
        self._observer.ended(item.name, failure)
