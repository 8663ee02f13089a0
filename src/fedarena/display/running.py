"""Runs as a user sees them: with bars on the screen while they go on, and with a report when they end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from fedarena.core.console import Screen
from fedarena.core.errors import FedArenaError, RunFailedError
from fedarena.display.progress import ProgressBars
from fedarena.display.reporting import REPORT_FILE, Reporting
from fedarena.display.suite_progress import SuiteBars
from fedarena.runs.building import GivenParts
from fedarena.runs.callbacks import Callback, OnRound
from fedarena.runs.cluster import Elsewhere
from fedarena.runs.config import RunConfig
from fedarena.runs.hosts.hosting import check_trains_alone, joined
from fedarena.runs.hosts.suites import run_on_cluster
from fedarena.runs.observer import Observer, SuiteObserver
from fedarena.runs.run import resume_run, start_run
from fedarena.runs.suite_plan import PlannedRun, StalePolicy, begin_suite
from fedarena.runs.suite_running import check_found_by_others, run_at_once, run_one_by_one
from fedarena.storage.run_data import RunData, load_run, load_runs

# Each takes megabytes; a suite of hundreds of runs would be more reports than results.
_MOST_SINGLE_REPORTS = 30


def run_with_report(
    config: RunConfig,
    runs_folder: Path,
    progress: bool = True,
    given: GivenParts | None = None,
    callbacks: Sequence[Callback | OnRound] = (),
) -> RunData:
    """Runs a configuration in a new folder, in which there is a report in the end."""
    with _observing(progress) as observer:
        return _with_report(start_run(config, runs_folder, observer, given, callbacks), observer)


def resume_with_report(
    folder: Path, progress: bool = True, rounds: int | None = None, elsewhere: Elsewhere = None
) -> RunData:
    """Goes on with a run that was stopped, or that is to have more rounds, maybe `elsewhere`."""
    with _observing(progress) as observer:
        return _with_report(resume_run(folder, observer, rounds, elsewhere), observer)


@dataclass(frozen=True)
class SuiteOutcome:
    """What a suite came to."""

    results: list[RunData]
    report: Path
    failures: list[str]  # a sentence for every run that failed

    @property
    def has_single_reports(self) -> bool:
        """Whether every run has a report of its own, beside that of all."""
        return len(self.results) <= _MOST_SINGLE_REPORTS


def run_suite_with_report(
    name: str,
    planned: Sequence[PlannedRun],
    jobs: int | None = None,
    stale: StalePolicy = "refuse",
    console: Screen | None = None,
    left_out: Callable[[str], None] | None = None,
    cluster: str | None = None,
) -> SuiteOutcome:
    """Runs what is left of a suite, and writes a report that compares its runs.

    On a `cluster` (``"auto"``, or the address of its head) as many runs go on at once as there is room for, or `jobs`.
    Without a console nothing is shown. `left_out` is told which runs have nothing to report.
    """
    one_by_one = cluster is None and (jobs or 1) == 1
    if not one_by_one:
        check_found_by_others(planned)
    if cluster is not None:
        check_trains_alone(run.config for run in planned)
    with joined(cluster):
        if console is None:
            ready = begin_suite(planned, Observer(), stale)
            failures = (
                run_one_by_one(ready, Observer(), lambda label: None)
                if one_by_one
                else _run_several(ready, jobs, cluster, SuiteObserver())
            )
        else:
            with ProgressBars(console) as bars:
                ready = begin_suite(planned, bars, stale, lambda sentence: console.say(sentence, "yellow"))
                failures = run_one_by_one(ready, bars, bars.announce) if one_by_one else []
            if not one_by_one:
                with SuiteBars(console, sum(run.is_to_run for run in ready)) as all_bars:
                    failures = _run_several(ready, jobs, cluster, all_bars)
    results = load_runs([run.folder for run in ready if run.folder.exists()], left_out)
    if not results:
        raise RunFailedError(failures[0])
    from fedarena.display.report.page import write_report

    outcome = SuiteOutcome(results, ready[0].folder.parent / REPORT_FILE, failures)
    if outcome.has_single_reports:
        for result in results:
            write_report([result], result.path / REPORT_FILE)
    write_report(results, outcome.report, title=name)
    return outcome


def _run_several(
    ready: Sequence[PlannedRun], jobs: int | None, cluster: str | None, observer: SuiteObserver
) -> list[str]:
    if cluster is not None:
        return run_on_cluster(ready, cluster, jobs, observer)
    return run_at_once(ready, jobs or 1, observer)


def _with_report(data: RunData, observer: Observer) -> RunData:
    if isinstance(observer, Reporting) and observer.reported == data.path:
        return data
    from fedarena.display.report.page import write_report  # draws, which needs libraries that take a while

    try:
        write_report([data], data.path / REPORT_FILE)
    except OSError as error:
        raise RunFailedError(
            f"The run {data.path} is complete, but its report cannot be written: {error.strerror}"
        ) from error
    return data


def ending_with_report(work: Callable[[Observer], RunData], bars: ProgressBars) -> RunData:
    """Does some other work on a run that ends with a report."""
    with _observing(progress=True, bars=bars) as observer:
        return _with_report(work(observer), observer)


@contextmanager
def _observing(progress: bool, bars: ProgressBars | None = None) -> Iterator[Observer]:
    observer = (bars or ProgressBars(Screen(stderr=True))) if progress else Reporting()
    try:
        with observer if isinstance(observer, ProgressBars) else nullcontext():
            yield observer
    except BaseException:
        # A run that diverged or was stopped has a report, too, unless there is nothing to report.
        if observer.folder is not None:
            with suppress(FedArenaError, OSError):
                _with_report(load_run(observer.folder), observer)
        raise
