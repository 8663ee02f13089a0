"""A metric against what it cost: bytes sent, floating-point operations done."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from fedarena.analysis.leading_metric import leading_metric, runs_with
from fedarena.display.drawing.marks import add_baselines, add_line, evenly, points_per_line
from fedarena.display.drawing.metrics import as_title, hover_value
from fedarena.display.drawing.style import empty_figure, figure_text, styles
from fedarena.display.drawing.units import BYTES, FLOPS, Scale, fitting_unit
from fedarena.display.report.figures.curves import end_at_twice_the_start
from fedarena.display.report.methods import baselines, mean_curves, methods_of
from fedarena.metrics.info import MetricInfo
from fedarena.storage.run_data import RunData


def traffic_figure(runs: Sequence[RunData], metric: MetricInfo | None = None) -> go.Figure:
    """A metric against the bytes really sent down and up so far."""
    return _against_cost(runs, metric or leading_metric(runs), "real_bytes", BYTES, "traffic", "traffic, down and up")


def compute_figure(runs: Sequence[RunData], metric: MetricInfo | None = None) -> go.Figure:
    """A metric against the floating-point operations done on clients so far."""
    return _against_cost(runs, metric or leading_metric(runs), "flops", FLOPS, "compute", "compute on clients")


def _against_cost(
    runs: Sequence[RunData], metric: MetricInfo, cost: str, scale: Scale, what: str, axis: str
) -> go.Figure:
    look, runs = styles(methods_of(runs)), runs_with(runs, metric)
    curves = list(mean_curves(runs))
    largest = max((float(curve[cost][-1]) for _, curve in curves), default=0.0)
    factor, unit = fitting_unit(largest, scale)
    label = figure_text(metric.label)
    title = f"{figure_text(as_title(metric))} against {what}"
    figure = empty_figure(title, f"{axis} ({unit})", label, height=380)
    for method, curve in curves:
        kept = evenly(curve[cost].size, points_per_line(len(curves)))
        name = figure_text(method.label)
        add_line(
            figure,
            curve[cost][kept] / factor,
            curve[metric.name][kept],
            name,
            look[method.label],
            hovertemplate=f"{hover_value(metric)} after %{{x:.3~g}} {unit}",
        )
    add_baselines(figure, baselines(runs, metric), largest / factor, hover_value(metric))
    end_at_twice_the_start(figure, runs, metric)
    return figure
