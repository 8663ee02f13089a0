"""A metric by what is known about clients: how those of one play, one subreddit, one kind fare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go

from fedarena.analysis.leading_metric import leading_metric, runs_with
from fedarena.display.drawing.marks import shortened
from fedarena.display.drawing.metrics import as_title, hover_value
from fedarena.display.drawing.style import QUIET_INK, empty_figure, figure_text, styles
from fedarena.display.report.methods import Method, methods_of
from fedarena.metrics.info import MetricInfo
from fedarena.runs.summary import metrics_of_run, strata
from fedarena.storage.run_data import RunData

Rows = dict[Any, dict[str, Any]]  # by value of the attribute

MAX_SHOWN: Final = 20


def strata_figure(runs: Sequence[RunData], attribute: str, metric: MetricInfo | None = None) -> go.Figure:
    """A metric by the values of an attribute, those with most samples first: a row per value, a dot per method."""
    metric = metric or leading_metric(runs)
    found = strata_by_method(runs, attribute, metric)
    look, values = styles(methods_of(runs)), largest_strata(found)
    height = 110 + len(values) * (34 + 9 * len(found))
    title = f"{as_title(metric)} by {attribute}"
    figure = empty_figure(figure_text(title), figure_text(metric.label), "", height=height)
    step, hover = 0.6 / len(found), hover_value(metric, "x")
    for number, (label, by_run) in enumerate(found.items()):
        rows = [_mean(by_run, value, metric) for value in values]
        shown = [(place, row) for place, row in enumerate(rows) if row is not None]
        y = np.array([len(values) - 1 - place - number * step for place, _ in shown])
        colour, name = look[label].colour, figure_text(label)
        lines_x = [x for _, row in shown for x in (row["p10"], row["p90"], None)]
        lines_y = [place for height in y for place in (height, height, None)]
        for trace in (
            go.Scatter(x=lines_x, y=lines_y, mode="lines", line={"color": colour, "width": 2}, opacity=0.5),
            _dots([row["by_client"] for _, row in shown], y, colour, 5, f"{hover} mean over clients"),
            _dots([row["over_samples"] for _, row in shown], y, colour, 11, f"{hover} over samples"),
        ):
            largest = trace.marker.size == 11
            figure.add_trace(trace.update(name=name, legendgroup=name, showlegend=largest, line_color=colour))
    for place, value in enumerate(values):
        text = figure_text(shortened(stratum_text(value)))
        figure.add_annotation(
            text=text, x=0, xref="paper", xanchor="left", y=len(values) - 0.72 - place, showarrow=False, font_size=12,
            font_color=QUIET_INK,
        )  # fmt: skip
    figure.update_yaxes(visible=False, range=[-0.75, len(values) - 0.4])
    figure.update_xaxes(showgrid=True)
    return figure


def strata_by_method(runs: Sequence[RunData], attribute: str, metric: MetricInfo) -> dict[str, list[Rows]]:
    """For every method with the metric the strata of each of its runs that count."""
    return {method.label: _rows(method, attribute) for method in methods_of(runs_with(runs, metric))}


def largest_strata(found: Mapping[str, Sequence[Rows]]) -> list[Any]:
    """The values with most samples; the rest of them, which is no value, is not shown."""
    sizes: dict[Any, int] = {}
    for runs in found.values():
        for rows in runs:
            for value, row in rows.items():
                if value is not None:
                    sizes[value] = max(sizes.get(value, 0), row["samples"])
    return sorted(sizes, key=lambda value: (-sizes[value], str(value)))[:MAX_SHOWN]


def stratum_text(value: Any) -> str:
    """A value of an attribute, as people read it."""
    return str(value) if value != "" else "(none)"


def _dots(x: list[float], y: Any, colour: str, size: int, hover: str) -> go.Scatter:
    return go.Scatter(x=x, y=y, mode="markers", marker={"color": colour, "size": size}, hovertemplate=hover)


def _rows(method: Method, attribute: str) -> list[Rows]:
    found = []
    for run in method.counted:
        if run.attributes is not None and attribute in run.attributes.column_names:
            known = run.attributes.select(["client", attribute])
            rows = strata(run.clients, known, metrics=metrics_of_run(run))
            found.append({row["value"]: row for row in rows.get(attribute, [])})
    return found


def _mean(runs: Sequence[Rows], value: Any, metric: MetricInfo) -> dict[str, float] | None:
    """Means over seeds of the scores of one value."""
    rows = [rows[value] for rows in runs if rows.get(value, {}).get(metric.name) is not None]
    names = {"over_samples": metric.name} | {name: f"{metric.name}_{name}" for name in ("by_client", "p10", "p90")}
    return {name: float(np.mean([row[column] for row in rows])) for name, column in names.items()} if rows else None
