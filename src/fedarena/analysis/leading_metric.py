"""Which metrics runs have, and which one they lead with.

A run says so itself (``metrics`` and ``primary_metric`` of its ``summary.json``). One that was written before runs did
has the metrics of those days. One that is still running or was killed has no summary; it is understood through the
other runs that it is compared with, and alone it leads with the loss, which every task has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fedarena.core.errors import DamagedFileError
from fedarena.metrics.info import FORMER_METRICS, MetricInfo
from fedarena.storage.run_data import RunData


def metrics_of(runs: Sequence[RunData]) -> tuple[MetricInfo, ...]:
    """Every metric that one of the runs has, each once; the loss is first."""
    declared = [metric for run in runs for metric in _declared(run)]
    known = {metric.name: metric for metric in reversed([*declared, *FORMER_METRICS])}
    measured = {name for run in runs for name in run.rounds.column_names}
    order = dict.fromkeys(metric.name for metric in (*declared, *FORMER_METRICS))
    return tuple(known[name] for name in order if name in measured)


def leading_metrics(runs: Sequence[RunData]) -> tuple[MetricInfo, ...]:
    """The metrics that runs lead with, that of most runs first."""
    known = {metric.name: metric for metric in metrics_of(runs)}
    chosen = [name for run in runs if (name := run.summary.get("primary_metric")) in known]
    candidates = [*dict.fromkeys(chosen), *reversed([metric.name for metric in FORMER_METRICS])]
    for run in runs:
        if run.summary.get("primary_metric") not in known:
            chosen += [name for name in candidates if name in run.rounds.column_names][:1]
    return tuple(known[name] for name, _ in Counter(chosen).most_common())


def leading_metric(runs: Sequence[RunData]) -> MetricInfo:
    """The metric that most of the runs lead with."""
    return next(iter(leading_metrics(runs)), FORMER_METRICS[0])


def runs_with(runs: Sequence[RunData], metric: MetricInfo) -> list[RunData]:
    """The runs that have a metric."""
    return [run for run in runs if metric.name in run.rounds.column_names]


def baseline_of(run: RunData, metric: MetricInfo) -> tuple[float, str] | None:
    """What knowing nothing scores in that metric, and by which rule; None where that is not known."""
    baseline = run.summary.get("baseline") or {}
    if baseline.get("metric", FORMER_METRICS[-1].name) != metric.name or baseline.get(metric.name) is None:
        return None
    return float(baseline[metric.name]), str(baseline.get("rule", ""))


def _declared(run: RunData) -> list[MetricInfo]:
    try:
        return [MetricInfo.from_json(values) for values in run.summary.get("metrics") or ()]
    except TypeError as error:
        raise DamagedFileError(f"{run.path / 'summary.json'} is damaged: its metrics cannot be read: {error}") from None
