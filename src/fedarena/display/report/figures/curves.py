"""Learning curves: a metric over rounds or over virtual time, of the global model and of personal ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import plotly.graph_objects as go

from fedarena.analysis.distinct import distinct_runs, seed_of
from fedarena.analysis.leading_metric import leading_metric, runs_with
from fedarena.display.drawing.marks import add_baselines, add_line, add_points, evenly, points_per_line
from fedarena.display.drawing.metrics import as_title, hover_value
from fedarena.display.drawing.style import QUIET_INK, Style, band_colour, empty_figure, figure_text, styles
from fedarena.display.drawing.units import HOURS, fitting_unit
from fedarena.display.report.methods import FloatArray, baselines, evaluation_curve, has_clock, mean_curves, methods_of
from fedarena.metrics import PERSONAL, TRAINING_SET
from fedarena.metrics.info import MetricInfo
from fedarena.storage.run_data import RunData

# More bands than this cover each other.
MAX_BANDS: Final = 4


class Axis(NamedTuple):
    """What evaluations are drawn over: a column of the curve, what the axis is called, and its unit."""

    column: str
    title: str
    factor: float = 1.0

    def of(self, curve: Mapping[str, FloatArray]) -> FloatArray:
        """The places of the evaluations of `curve`."""
        return curve[self.column] / self.factor


_ROUNDS: Final = Axis("round", "round")
_SUCCESS: Final = "attack_success"


def metric_figure(
    runs: Sequence[RunData], metric: MetricInfo | None = None, among: Sequence[RunData] | None = None
) -> go.Figure:
    """A metric over rounds: mean over seeds, band p10–p90 over clients, seeds thin, baseline dashed.

    `among` are all runs of which these are some; colours are as for all of them.
    """
    metric = metric or leading_metric(runs)
    look, runs = styles(methods_of(among or runs)), runs_with(runs, metric)
    figure = _over(runs, metric.name, metric.label, f"{as_title(metric)} over rounds", _ROUNDS, look)
    rounds = [curve["round"][-1] for run in runs if (curve := evaluation_curve(run))["round"].size]
    add_baselines(figure, baselines(runs, metric), max(rounds, default=1.0), hover_value(metric))
    end_at_twice_the_start(figure, runs, metric)
    return figure


def personal_figure(runs: Sequence[RunData], metric: MetricInfo | None = None) -> go.Figure | None:
    """A metric over rounds of clients with their own models, drawn like that of the global model; None without any."""
    metric = metric or leading_metric(runs)
    column = f"{PERSONAL}{metric.name}"
    personal = [run for run in runs if column in run.rounds.column_names]
    if not personal:
        return None
    title = f"Personal {metric.label} over rounds"
    return _over(personal, column, f"personal {metric.label}", title, _ROUNDS, styles(methods_of(runs)))


def training_set_figure(runs: Sequence[RunData], metric: MetricInfo) -> go.Figure | None:
    """A metric on the training samples over rounds; None where no run measured it."""
    column = f"{TRAINING_SET}{metric.name}"
    measured = [
        run for run in runs if column in run.rounds.column_names and run.rounds[column].null_count < len(run.rounds)
    ]
    if not measured:
        return None
    title = f"{as_title(metric)} on the training data over rounds"
    return _over(measured, column, f"training set {metric.label}", title, _ROUNDS, styles(methods_of(runs)))


def attack_success_figure(runs: Sequence[RunData]) -> go.Figure | None:
    """The success of a backdoor over rounds; None where no run measured it."""
    measured = [run for run in runs if run.rounds[_SUCCESS].null_count < len(run.rounds)]
    if not measured:
        return None
    label, look = "attack success", styles(methods_of(runs))
    figure = _over(measured, _SUCCESS, label, "Attack success over rounds", _ROUNDS, look)
    figure.update_yaxes(tickformat=".0%", range=[-0.02, 1.02], tickvals=[0, 0.25, 0.5, 0.75, 1])
    return figure


def hours_figure(runs: Sequence[RunData], metric: MetricInfo | None = None) -> go.Figure | None:
    """A metric over virtual time, drawn like that over rounds; None where no run has a clock."""
    metric = metric or leading_metric(runs)
    look = styles(methods_of(runs))
    runs = [run for run in runs_with(runs, metric) if has_clock(run)]
    if not runs:
        return None
    longest = max([float(curve["hours"][-1]) for run in runs if (curve := evaluation_curve(run))["hours"].size] + [0.0])
    factor, unit = fitting_unit(longest, HOURS)
    axis = Axis("hours", f"virtual time ({unit})", factor)
    figure = _over(runs, metric.name, metric.label, f"{as_title(metric)} over virtual {unit}", axis, look)
    add_baselines(figure, baselines(runs, metric), longest / factor, hover_value(metric))
    end_at_twice_the_start(figure, runs, metric)
    return figure


def end_at_twice_the_start(figure: go.Figure, runs: Sequence[RunData], metric: MetricInfo) -> None:
    """Where a metric has no worst value: an axis up to what diverged would show nothing of the other runs."""
    if metric.higher_is_better or metric.high is not None:
        return
    names = (metric.name, f"{metric.name}_p90", f"{metric.name}_p10")
    shown = [curve[name] for _, curve in mean_curves(runs) for name in names]
    values = np.concatenate([*shown, np.empty(0)])
    starts = [float(values[0]) for values in shown if np.isfinite(values[0])]
    ceiling = 2 * max(starts, default=np.inf)
    if np.nanmax(values, initial=0.0) > ceiling > 0:
        floor = float(np.nanmin(values))
        figure.update_yaxes(range=[floor - 0.05 * (ceiling - floor), ceiling])
        figure.add_annotation(
            text=f"axis ends at twice the initial {figure_text(metric.label)}",
            x=1,
            y=1,
            xref="paper",
            yref="paper",
            xanchor="right",
            yanchor="top",
            showarrow=False,
            font={"size": 12, "color": QUIET_INK},
        )


def _over(
    runs: Sequence[RunData], column: str, label: str, title: str, axis: Axis, look: Mapping[str, Style]
) -> go.Figure:
    figure = empty_figure(figure_text(title), axis.title, figure_text(label))
    methods = methods_of(runs)
    points = points_per_line(len(runs) + 3 * len(methods))
    has_band = len(methods) <= MAX_BANDS and f"{column}_p10" in runs[0].rounds.column_names
    for method, curve in mean_curves(runs) if has_band else ():
        kept = evenly(curve["round"].size, points)
        low, high = (curve[name][kept] for name in (f"{column}_p10", f"{column}_p90"))
        _add_band(figure, axis.of(curve)[kept], low, high, method.label, look[method.label].colour)
    for method in methods:
        if len(method.runs) > 1 or not method.counted:
            for run in method.runs:
                _add_single_run(figure, run, column, axis, look[method.label], points)
    for method, curve in mean_curves(runs):
        kept = evenly(curve["round"].size, points)
        name = figure_text(method.label)
        add_line(figure, axis.of(curve)[kept], curve[column][kept], name, look[method.label])
    _add_stops(figure, runs, column, axis, look)
    figure.update_layout(hovermode="x unified", hoverdistance=-1)
    return figure


def _add_band(figure: go.Figure, x: FloatArray, low: FloatArray, high: FloatArray, label: str, colour: str) -> None:
    outline = np.concatenate([x, x[::-1]]), np.concatenate([high, low[::-1]])
    _add_silent(figure, *outline, label, fill="toself", fillcolor=band_colour(colour), line={"width": 0})


def _add_single_run(figure: go.Figure, run: RunData, column: str, axis: Axis, style: Style, points: int) -> None:
    curve = evaluation_curve(run)
    kept = evenly(curve["round"].size, points)
    line = {"color": style.colour, "width": 1}
    _add_silent(figure, axis.of(curve)[kept], curve[column][kept], run.label, line=line, opacity=0.45)


def _add_silent(figure: go.Figure, x: FloatArray, y: FloatArray, label: str, **options: Any) -> None:
    """A line that belongs to a method, without an entry in the legend and without a hover text."""
    name = figure_text(label)
    figure.add_trace(
        go.Scatter(x=x, y=y, mode="lines", name=name, legendgroup=name, showlegend=False, hoverinfo="skip", **options)
    )


def _add_stops(figure: go.Figure, runs: Sequence[RunData], column: str, axis: Axis, look: Mapping[str, Style]) -> None:
    """A cross where a run diverged or failed, so that a line that ends is not taken for one that finished."""
    for run in distinct_runs(runs):
        curve = evaluation_curve(run)
        if run.status not in ("diverged", "failed") or not curve["round"].size:
            continue
        marker = {"color": look[run.label].colour, "size": 10, "symbol": "x"}
        name = figure_text(run.label)
        note = f"{run.status} (seed {seed_of(run)})"
        add_points(figure, axis.of(curve)[-1:], curve[column][-1:], name, marker, hovertemplate=f"%{{y:.3f}} {note}")
