"""Runs as a user sees them: with bars on the screen while they go on, and with a report when they end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from fedarena.core.console import Screen
from fedarena.core.errors import FedArenaError, RunFailedError
from fedarena.display.progress import ProgressBars
from fedarena.display.report.page import write_report
from fedarena.display.reporting import REPORT_FILE, Reporting
from fedarena.runs.building import GivenParts
from fedarena.runs.callbacks import Callback, OnRound
from fedarena.runs.config import RunConfig
from fedarena.runs.observer import Observer
from fedarena.runs.run import resume_run, start_run
from fedarena.storage.run_data import RunData, load_run


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


def resume_with_report(folder: Path, progress: bool = True) -> RunData:
    """Goes on with a run that was stopped."""
    with _observing(progress) as observer:
        return _with_report(resume_run(folder, observer), observer)


def _with_report(data: RunData, observer: Observer) -> RunData:
    if isinstance(observer, Reporting) and observer.reported == data.path:
        return data
    try:
        write_report([data], data.path / REPORT_FILE)
    except OSError as error:
        raise RunFailedError(
            f"The run {data.path} is complete, but its report cannot be written: {error.strerror}"
        ) from error
    return data


@contextmanager
def _observing(progress: bool) -> Iterator[Observer]:
    observer = ProgressBars(Screen(stderr=True)) if progress else Reporting()
    try:
        with observer if isinstance(observer, ProgressBars) else nullcontext():
            yield observer
    except BaseException:
        # A run that diverged or was stopped has a report, too, unless there is nothing to report.
        if observer.folder is not None:
            with suppress(FedArenaError, OSError):
                _with_report(load_run(observer.folder), observer)
        raise
