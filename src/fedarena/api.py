"""FedArena from Python: the same settings as on the command line, and results as tables and plots."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pyarrow as pa

from fedarena.analysis.leading_metric import leading_metric, metrics_of
from fedarena.core.errors import BadInputError
from fedarena.core.registry import nearest
from fedarena.display import metric_figure, write_report
from fedarena.display.running import REPORT_FILE, resume_with_report, run_with_report
from fedarena.metrics.info import MetricInfo
from fedarena.runs.config import resolve_settings
from fedarena.runs.summary import metrics_of_run, strata
from fedarena.storage.run_data import RunData, load_run

DEFAULT_RUNS_FOLDER = Path("runs")


class Result(RunData):
    """A run's tables (`rounds`, `clients`, `timings`: Arrow tables; ``.to_pandas()`` converts), summary and plots."""

    def plot(self, metric: str | None = None) -> go.Figure:
        """A metric over rounds with the spread over clients; by default the one that the run leads with."""
        return metric_figure([self], None if metric is None else self._metric(metric))

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
        metrics = metrics_of_run(self.config, self.summary)
        found = strata(self.clients, self.attributes.select(["client", name]), round, metrics)
        if not found:
            raise BadInputError(
                f"{self.name} has not evaluated any client" + ("" if round is None else f" in round {round}")
            )
        columns = dict.fromkeys(key for row in found[name] for key in row)  # a group may lack a score that others have
        return pa.table({column: [row.get(column) for row in found[name]] for column in columns})

    def write_report(self, path: Path | str | None = None) -> Path:
        """Writes the HTML report, by default as ``report.html`` in the run folder."""
        return write_report([self], Path(path) if path else self.path / REPORT_FILE)

    def __repr__(self) -> str:
        metric = leading_metric([self])
        final = self.summary.get("final") or {}
        return (
            f"<Result {self.name!r} {self.status}, {metric.label} {metric.text(final.get(metric.name))}, {self.path}>"
        )

    def _metric(self, name: str) -> MetricInfo:
        known = {metric.name: metric for metric in metrics_of([self])}
        if name not in known:
            raise BadInputError(f"{self.name} has no metric {name!r}; {nearest(name, known)}")
        return known[name]


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
    >>> result.rounds.to_pandas()[result.summary["primary_metric"]]  # doctest: +SKIP
    """
    return _result(run_with_report(resolve_settings(settings, more), Path(runs_folder), progress))


def resume(folder: Path | str, *, progress: bool = True) -> Result:
    """Goes on with a run that was stopped, and returns its results."""
    return _result(resume_with_report(Path(folder), progress))


def load(folder: Path | str) -> Result:
    """The results of a run that is on disk, finished or not."""
    return _result(load_run(Path(folder)))


def _result(data: RunData) -> Result:
    return Result(**vars(data))
