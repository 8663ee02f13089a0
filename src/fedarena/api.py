"""FedArena from Python: the same settings as on the command line, and results as tables and plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pyarrow as pa
from torch import nn

from fedarena.analysis.leading_metric import leading_metric, metrics_of
from fedarena.core.errors import BadInputError
from fedarena.core.registry import nearest
from fedarena.data import Federation
from fedarena.display import metric_figure, write_report
from fedarena.display.reporting import REPORT_FILE
from fedarena.display.running import resume_with_report, run_with_report
from fedarena.fleet import Fleet
from fedarena.metrics.info import MetricInfo
from fedarena.runs.building import GivenParts
from fedarena.runs.callbacks import Callback, OnRound
from fedarena.runs.config import RunConfig, resolve_settings
from fedarena.runs.run import Run
from fedarena.runs.summary import metrics_of_run, strata
from fedarena.runs.trained_model import trained_model
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

    def model(self) -> nn.Module:
        """The trained model with its weights, as a plain module of torch in evaluation mode."""
        return trained_model(self.path)

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
    callbacks: Sequence[Callback | OnRound | str | Mapping[str, Any]] = (),
    **more: Any,
) -> Result:
    """Runs one experiment in a new folder and returns its results.

    Settings are those of the configuration, nested or with dotted keys; what is not set has its default. A federation
    or a fleet may be an object, which is then not loaded again. `callbacks` are told of every round; see `open`.

    >>> result = run(federation="digits", algorithm={"name": "fedprox", "mu": 0.1}, rounds=3)  # doctest: +SKIP
    >>> result.rounds.to_pandas()[result.summary["primary_metric"]]  # doctest: +SKIP
    """
    config, given, told = _resolve(settings, more, callbacks)
    return _result(run_with_report(config, Path(runs_folder), progress, given, told))


def open(
    settings: Mapping[str, Any] | Path | str | None = None,
    /,
    *,
    runs_folder: Path | str = DEFAULT_RUNS_FOLDER,
    callbacks: Sequence[Callback | OnRound | str | Mapping[str, Any]] = (),
    **more: Any,
) -> Run:
    """Opens a run that is advanced piece by piece: a new one with these settings, or one in a folder that was stopped.

    A callback is a function ``on_round(run, row)`` that is called after every round and may return a `Stop`, an object
    with such a method, or the name of a built-in one with its options.

    >>> with open(federation="digits", rounds=30) as run:  # doctest: +SKIP
    ...     run.advance(10)
    ...     careful = run.fork({"local.lr": 0.01})
    ...     run.advance()
    """
    if isinstance(settings, (Path, str)):
        if more:
            raise BadInputError("The settings of a run that is already there cannot be changed; fork it instead")
        config, _, told = _resolve(None, {}, callbacks)
        if config.callbacks:
            raise BadInputError("Callbacks of a run that is already there must be objects, not names")
        return Run.reopen(Path(settings), callbacks=told)
    config, given, told = _resolve(settings, more, callbacks)
    return Run.create(config, Path(runs_folder), given=given, callbacks=told)


def _resolve(
    settings: Mapping[str, Any] | None,
    more: Mapping[str, Any],
    callbacks: Sequence[Callback | OnRound | str | Mapping[str, Any]],
) -> tuple[RunConfig, GivenParts, list[Callback | OnRound]]:
    """The configuration, the parts that were handed in as objects, and the callbacks that were."""
    settings, more = None if settings is None else dict(settings), dict(more)
    objects: dict[str, Any] = {}
    for key, kind in (("federation", Federation), ("fleet", Fleet)):
        for place in (settings or {}, more):
            if isinstance(place.get(key), kind):
                objects[key] = place.pop(key)
                more[key] = "store" if key == "federation" else "ideal"  # until it is known where it lies
    if "federation" in objects:
        more["federation"] = {"name": "store", "path": str(objects["federation"].path)}
    named = [callback for callback in callbacks if isinstance(callback, (str, Mapping))]
    told = [callback for callback in callbacks if not isinstance(callback, (str, Mapping))]
    if named:
        before = (settings or {}).get("callbacks", more.get("callbacks", []))
        more["callbacks"] = [*(before if isinstance(before, list) else [before]), *named]
    return resolve_settings(settings, more), GivenParts(**objects), told


def resume(folder: Path | str, *, progress: bool = True) -> Result:
    """Goes on with a run that was stopped, and returns its results."""
    return _result(resume_with_report(Path(folder), progress))


def load(folder: Path | str) -> Result:
    """The results of a run that is on disk, finished or not."""
    return _result(load_run(Path(folder)))


def _result(data: RunData) -> Result:
    return Result(**vars(data))
