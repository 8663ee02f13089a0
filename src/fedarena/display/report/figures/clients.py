"""What an average hides: how a metric is spread over clients, and how it depends on how much data they have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from fedarena.analysis.leading_metric import leading_metric, runs_with
from fedarena.display.drawing.marks import add_line, add_points, evenly, shortened, whole_ticks
from fedarena.display.drawing.metrics import as_title, hover_value
from fedarena.display.drawing.style import band_colour, empty_figure, figure_text, styles
from fedarena.display.report.methods import FloatArray, Method, client_results, methods_of
from fedarena.metrics.info import MetricInfo
from fedarena.storage.run_data import RunData

MAX_SCATTER_POINTS: Final = 5_000
MAX_STRIP_POINTS: Final = 400
_MAX_SIZE_BINS: Final = 10
_MIN_CLIENTS_PER_BIN: Final = 10


def client_spread_figure(runs: Sequence[RunData], metric: MetricInfo | None = None) -> go.Figure:
    """Final scores over clients, a box per method: quartiles, whiskers 10–90 %, mean; dots are clients."""
    metric = metric or leading_metric(runs)
    look = styles(methods_of(runs))
    methods = [method for method in methods_of(runs_with(runs, metric)) if method.counted]
    title, label = f"{as_title(metric)} over clients", metric.label
    figure = empty_figure(figure_text(title), figure_text(label), "", height=150 + 105 * len(methods))
    for row, method in enumerate(reversed(methods)):  # the first method is on top
        name, colour = figure_text(method.label), look[method.label].colour
        _, scores = _pooled_clients(method, metric)
        scores = np.sort(scores)[evenly(scores.size, MAX_STRIP_POINTS)]
        # Multiples of the golden ratio spread the dots evenly without drawing random numbers.
        jitter = np.arange(scores.size, dtype=np.float64) * 0.618034 % 1
        dots = {"color": colour, "size": 4, "opacity": 0.4}
        add_points(figure, scores, row - 0.22 - 0.16 * jitter, name, dots, hoverinfo="x")
        _add_box(figure, method, metric, row, colour)
        # Above its box and not beside it, a name of any length leaves the plot its width on a phone.
        text, font = f"<b>{figure_text(shortened(method.label))}</b>", {"color": colour}
        figure.add_annotation(text=text, font=font, x=0, xref="paper", xanchor="left", y=row + 0.32, showarrow=False)
    figure.update_yaxes(visible=False, range=[-0.5, len(methods) - 0.45])
    figure.update_xaxes(showgrid=True)
    return figure


def client_size_figure(runs: Sequence[RunData], metric: MetricInfo | None = None) -> go.Figure:
    """Final scores against a client's samples: dots are clients, the line averages clients of similar size."""
    metric = metric or leading_metric(runs)
    title = f"{as_title(metric)} against client size"
    figure = empty_figure(figure_text(title), "evaluated samples of the client", figure_text(metric.label))
    look, methods = styles(methods_of(runs)), methods_of(runs_with(runs, metric))
    for method in methods:
        style, name = look[method.label], figure_text(method.label)
        samples, scores = _pooled_clients(method, metric)
        if not samples.size:
            continue
        order = np.lexsort((scores, samples))
        samples, scores = samples[order], scores[order]
        kept = evenly(samples.size, MAX_SCATTER_POINTS // len(methods))
        dots = {"color": style.colour, "size": 4, "opacity": 0.25}
        add_points(figure, samples[kept], scores[kept], name, dots, hoverinfo="skip")
        bins = _bins_of_similar_size(samples)
        add_line(
            figure,
            np.array([np.median(samples[bins == index]) for index in np.unique(bins)]),
            np.array([scores[bins == index].mean() for index in np.unique(bins)]),
            name,
            style,
            mode="lines+markers",
            hovertemplate=f"about %{{x:,.0f}} samples: {hover_value(metric)}",
        )
    drawn = np.concatenate([np.empty(0), *(trace.x for trace in figure.data)])
    ticks = whole_ticks(drawn) if drawn.size else []
    figure.update_xaxes(type="log", tickvals=ticks, ticktext=[f"{tick:,}" for tick in ticks])
    return figure


def _pooled_clients(method: Method, metric: MetricInfo) -> tuple[FloatArray, FloatArray]:
    pairs = [client_results(run, metric) for run in method.counted]
    if not pairs:
        return np.empty(0), np.empty(0)
    return np.concatenate([samples for samples, _ in pairs]), np.concatenate([found for _, found in pairs])


def _bins_of_similar_size(samples: FloatArray) -> NDArray[np.int64]:
    """A bin for every client: about equally many clients each, and clients of the same size in the same bin."""
    number = int(np.clip(samples.size // _MIN_CLIENTS_PER_BIN, 1, _MAX_SIZE_BINS))
    edges = np.quantile(samples, np.arange(1, number) / number)
    return np.searchsorted(edges, samples, side="left").astype(np.int64)


def _add_box(figure: go.Figure, method: Method, metric: MetricInfo, row: int, colour: str) -> None:
    p10, p25, p50, p75, p90, mean = (
        [method.mean_final(f"{metric.name}_{name}")] for name in ("p10", "p25", "p50", "p75", "p90", "by_client")
    )
    figure.add_trace(
        go.Box(
            y=[row],
            lowerfence=p10,
            q1=p25,
            median=p50,
            q3=p75,
            upperfence=p90,
            mean=mean,
            boxmean=True,
            orientation="h",
            width=0.26,
            name=figure_text(method.label),
            line={"color": colour, "width": 2},
            fillcolor=band_colour(colour),
            showlegend=False,
        )
    )
