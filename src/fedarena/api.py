"""FedArena from Python: the same settings as on the command line, and results as tables and plots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pyarrow as pa
from rich.console import Console

from fedarena.config import resolve_settings
from fedarena.errors import BadInputError, FedArenaError, RunFailedError
from fedarena.experiment import Observer, resume_run, start_run
from fedarena.progress import ProgressBars
from fedarena.registry import nearest
from fedarena.report import accuracy_figure, write_report
from fedarena.rundata import RunData, load_run
from fedarena.summary import strata

DEFAULT_RUNS_FOLDER = Path("runs")


class Result(RunData):
    """A run's tables (`rounds`, `clients`, `timings`: Arrow tables; ``.to_pandas()`` converts), summary and plots."""

    def plot(self) -> go.Figure:
        """Accuracy over rounds with the spread over clients."""
        return accuracy_figure([self])

    def by_attribute(self, name: str, round: int | None = None) -> pa.Table:
        """Every metric by what is known about clients, such as ``play``: one row per value, most samples first.

        It is about the last evaluated round, or `round`.
        """
        known = (
            [] if self.attributes is None else [known for known in self.attributes.column_names if known != "client"]
        )
        if self.attributes is None or name not in known:
            raise BadInputError(
                f"Nothing called {name!r} is known about the clients of {self.name}; {nearest(name, known)}"
            )
        found = strata(self.clients, self.attributes.select(["client", name]), round)
        if not found:
            raise BadInputError(
                f"{self.name} has not evaluated any client" + ("" if round is None else f" in round {round}")
            )
        columns = dict.fromkeys(key for row in found[name] for key in row)  # a group may lack a score that others have
        return pa.table({column: [row.get(column) for row in found[name]] for column in columns})

    def write_report(self, path: Path | str | None = None) -> Path:
        """Writes the HTML report, by default as ``report.html`` in the run folder."""
        return write_report([self], Path(path) if path else self.path / "report.html")

    def __repr__(self) -> str:
        final = self.summary.get("final") or {}
        return f"<Result {self.name!r} {self.status}, accuracy {final.get('accuracy', float('nan')):.4f}, {self.path}>"


def run(
    settings: Mapping[str, Any] | None = None,
    /,
    *,
    runs_folder: Path | str = DEFAULT_RUNS_FOLDER,
    progress: bool = True,
    **more: Any,
) -> Result:
    """Runs one experiment in a new folder and returns its results.

    Settings are those of the configuration, nested or with dotted keys; what is not set has its default.

    >>> result = run(federation="digits", algorithm={"name": "fedprox", "mu": 0.1}, rounds=3)  # doctest: +SKIP
    >>> result.rounds.to_pandas()["accuracy"]  # doctest: +SKIP
    """
    config = resolve_settings(settings, more)
    with _observing(progress) as observer:
        return _with_report(start_run(config, Path(runs_folder), observer))


def resume(folder: Path | str, *, progress: bool = True) -> Result:
    """Goes on with a run that was stopped, and returns its results."""
    with _observing(progress) as observer:
        return _with_report(resume_run(Path(folder), observer))


def load(folder: Path | str) -> Result:
    """The results of a run that is on disk, finished or not."""
    return Result(**vars(load_run(Path(folder))))


def _with_report(data: RunData) -> Result:
    result = Result(**vars(data))
    try:
        result.write_report()
    except OSError as error:
        raise RunFailedError(
            f"The run {data.path} is complete, but its report cannot be written: {error.strerror}"
        ) from error
    return result


@contextmanager
def _observing(progress: bool) -> Iterator[Observer]:
    observer = ProgressBars(Console(stderr=True)) if progress else Observer()
    try:
        with observer if isinstance(observer, ProgressBars) else nullcontext():
            yield observer
    except BaseException:
        # A run that diverged or was stopped has a report, too, unless there is nothing to report.
        if observer.folder is not None:
            with suppress(FedArenaError, OSError):
                load(observer.folder).write_report()
        raise
