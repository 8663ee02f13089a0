"""Many searches: one after the other, or several at once in processes of their own.

A process (`fedarena.hpo.search_worker`) gets its share of the cores and does search after search. It is told which by
lines of JSON, and tells in such lines how far it is. No result depends on how many of them there are, and a process
that dies takes one search with it, which goes on from its file the next time.
"""

from __future__ import annotations

import queue
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from fedarena.core.errors import BadInputError, FedArenaError, RunFailedError
from fedarena.hpo.problem import Problem
from fedarena.hpo.search import SearchObserver, run_search
from fedarena.hpo.trajectory import Evaluation
from fedarena.runs.workers import LocalProcess, QueueWorker, shares_of_cores, wait_for

REFUSED: Final = "refused"  # the event of a process whose search is about to end with somebody's bad input


@dataclass(frozen=True)
class PlannedSearch:
    """A search that is to be made, and the file that keeps it."""

    name: str  # for people, such as "lr@31 hyperband 3"
    label: str  # of the optimizer
    problem: str
    mode: str
    problem_options: Mapping[str, Any]
    optimizer: Mapping[str, Any]
    seed: int
    budget_s: float
    client_sample_rate: float
    file: str

    def do(self, problem: Problem, observer: SearchObserver) -> None:
        """Searches; what is found is in the file."""
        run_search(
            problem,
            self.optimizer,
            self.budget_s,
            seed=self.seed,
            client_sample_rate=self.client_sample_rate,
            problem_options=self.problem_options,
            file=Path(self.file),
            observer=observer,
        )


class ComparisonObserver:
    """Is told how far all searches are; this one does not care. Calls may come from several threads."""

    def __enter__(self) -> ComparisonObserver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """All searches are over."""

    def began(self, search: PlannedSearch) -> None:
        """A search begins or goes on."""

    def evaluated(self, search: PlannedSearch, spent_s: float, best: float | None) -> None:
        """It has spent so much of its budget, and its incumbent has this value."""

    def ended(self, search: PlannedSearch, failure: str | None) -> None:
        """It is complete, or failed for this reason."""


class _Passing(SearchObserver):
    """Passes on what one search tells."""

    def __init__(self, search: PlannedSearch, observer: ComparisonObserver):
        self._search, self._observer = search, observer

    def evaluated(self, spent_s: float, budget_s: float, incumbent: Evaluation | None) -> None:
        self._observer.evaluated(self._search, spent_s, None if incumbent is None else incumbent.value)


def search_one_by_one(
    planned: Sequence[PlannedSearch], problems: Mapping[str, Problem], observer: ComparisonObserver
) -> dict[str, FedArenaError]:
    """Makes all searches; gives what went wrong with those that failed, by their names."""
    failures: dict[str, FedArenaError] = {}
    for search in planned:
        observer.began(search)
        failure = attempt(search, problems[search.problem], _Passing(search, observer))
        if failure is not None:
            failures[search.name] = failure
        observer.ended(search, None if failure is None else str(failure))
    return failures


def attempt(search: PlannedSearch, problem: Problem, observer: SearchObserver) -> FedArenaError | None:
    """Makes one search; what went wrong, if anything did."""
    try:
        search.do(problem, observer)
    except FedArenaError as error:
        return error
    except Exception as error:  # a bug in somebody's own optimizer or problem
        return RunFailedError(f"{type(error).__name__}: {error}")
    finally:
        problem.pause()
    return None


def search_at_once(
    planned: Sequence[PlannedSearch], jobs: int, observer: ComparisonObserver
) -> dict[str, FedArenaError]:
    """The same with so many searches at a time."""
    waiting: queue.SimpleQueue[PlannedSearch] = queue.SimpleQueue()
    for search in planned:
        waiting.put(search)
    workers = [_SearchWorker(cores, waiting, observer) for cores in shares_of_cores(min(jobs, len(planned)))]
    wait_for(workers)
    failed: dict[str, FedArenaError] = {
        name: (BadInputError if name in worker.refused else RunFailedError)(sentence)
        for worker in workers
        for name, sentence in worker.failures.items()
    }
    return {search.name: failed[search.name] for search in planned if search.name in failed}


class _SearchWorker(QueueWorker[PlannedSearch]):
    """Has its process make search after search."""

    def __init__(self, cores: list[int], waiting: queue.SimpleQueue[PlannedSearch], observer: ComparisonObserver):
        environment = _threads(len(cores))
        super().__init__(lambda: LocalProcess("fedarena.hpo.search_worker", cores, **environment), waiting)
        self._observer = observer
        self.refused: set[str] = set()  # names of searches that failed because of what somebody gave

    def _task(self, item: PlannedSearch) -> dict[str, Any]:
        return asdict(item)

    def _began(self, item: PlannedSearch) -> None:
        self._observer.began(item)

    def _tell(self, item: PlannedSearch, event: dict[str, Any]) -> None:
        if event["event"] == REFUSED:
            self.refused.add(item.name)
            return
        self._observer.evaluated(item, event["spent_s"], event["best"])

    def _ended(self, item: PlannedSearch, failure: str | None) -> None:
        self._observer.ended(item, failure)


def _threads(cores: int) -> dict[str, str]:
    """No more threads than cores: libraries count all of the machine's, and would wait for each other."""
    return {"OMP_NUM_THREADS": str(max(1, cores)), "OPENBLAS_NUM_THREADS": str(max(1, cores))}
