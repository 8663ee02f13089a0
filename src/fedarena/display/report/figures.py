"""The figures of a comparison, one function each, from runs to a plotly figure in the light scheme.

Text that users wrote goes through `figure_text`, since plotly reads markup in text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from fedarena.display.drawing.marks import (
    add_baselines,
    add_line,
    add_points,
    evenly,
    logarithmic_ticks,
    points_per_line,
    shortened,
)
from fedarena.display.drawing.style import QUIET_INK, Style, band_colour, empty_figure, figure_text, styles
from fedarena.display.drawing.units import BYTES, FLOPS, HOURS, Scale, fitting_unit
from fedarena.display.report.methods import (
    FloatArray,
    Method,
    client_results,
    column,
    distinct_runs,
    evaluation_curve,
    has_clock,
    methods_of,
    seed_of,
)
from fedarena.metrics import TRAINING_SET
from fedarena.storage.run_data import RunData

MAX_SCATTER_POINTS: Final = 5_000
MAX_STRIP_POINTS: Final = 400
# More bands than this cover each other.
MAX_BANDS: Final = 4
_MAX_SIZE_BINS: Final = 10
_MIN_CLIENTS_PER_BIN: Final = 10


def accuracy_figure(runs: Sequence[RunData]) -> go.Figure:
    """Accuracy over rounds: mean over seeds, band p10–p90 over clients, seeds thin, baseline dashed."""
    figure = _over_rounds(runs, "accuracy", "Accuracy over rounds")
    rounds = [curve["round"][-1] for run in runs if (curve := evaluation_curve(run))["round"].size]
    add_baselines(figure, runs, 0.0, max(rounds, default=1.0))
    return figure


def personal_accuracy_figure(runs: Sequence[RunData]) -> go.Figure | None:
    """Accuracy over rounds of clients with their own models, drawn like that of the global model; None without any."""
    if not any("personal_accuracy" in run.rounds.column_names for run in runs):
        return None
    return _over_rounds(runs, "personal_accuracy", "Personal accuracy over rounds")


def hours_figure(runs: Sequence[RunData]) -> go.Figure | None:
    """Accuracy over virtual time, drawn like that over rounds; None where no run has a clock."""
    look = styles(methods_of(runs))
    runs = [run for run in runs if has_clock(run)]
    if not runs:
        return None
    longest = max([float(curve["hours"][-1]) for run in runs if (curve := evaluation_curve(run))["hours"].size] + [0.0])
    factor, unit = fitting_unit(longest, HOURS)
    figure = _over(runs, "accuracy", f"Accuracy over {unit}", Axis("hours", f"virtual time ({unit})", factor), look)
    add_baselines(figure, runs, 0.0, longest / factor)
    return figure


def loss_figure(runs: Sequence[RunData]) -> go.Figure:
    """Loss over rounds, drawn like the accuracy; the axis ends at twice the initial loss."""
    figure = _over_rounds(runs, "loss", "Loss over rounds")
    shown = [curve[name] for _, curve in _mean_curves(runs) for name in ("loss", "loss_p90", "loss_p10")]
    values = np.concatenate([*shown, np.empty(0)])
    starts = [float(values[0]) for values in shown if np.isfinite(values[0])]
    ceiling = 2 * max(starts, default=np.inf)
    if np.nanmax(values, initial=0.0) > ceiling:
        floor = float(np.nanmin(values))
        figure.update_yaxes(range=[floor - 0.05 * (ceiling - floor), ceiling])
        figure.add_annotation(
            text="axis ends at twice the initial loss",
            x=1,
            y=1,
            xref="paper",
            yref="paper",
            xanchor="right",
            yanchor="top",
            showarrow=False,
            font={"size": 12, "color": QUIET_INK},
        )
    return figure


def training_set_figure(runs: Sequence[RunData]) -> go.Figure | None:
    """Loss on the training samples over rounds; None where no run measured it."""
    name = f"{TRAINING_SET}loss"
    measured = [run for run in runs if run.rounds[name].null_count < len(run.rounds)]
    if not measured:
        return None
    look = styles(methods_of(runs))
    return _over(measured, name, "Loss on the training data over rounds", _ROUNDS, look)


def traffic_figure(runs: Sequence[RunData]) -> go.Figure:
    """Accuracy against the bytes sent down and up so far."""
    return _against_cost(runs, "bytes", BYTES, "Accuracy against traffic", "traffic, down and up")


def compute_figure(runs: Sequence[RunData]) -> go.Figure:
    """Accuracy against the floating-point operations done on clients so far."""
    return _against_cost(runs, "flops", FLOPS, "Accuracy against compute", "compute on clients")


def client_accuracy_figure(runs: Sequence[RunData]) -> go.Figure:
    """Final accuracy over clients, a box per method: quartiles, whiskers 10–90 %, mean; dots are clients."""
    look = styles(methods_of(runs))
    methods = [method for method in methods_of(runs) if method.counted]
    figure = empty_figure("Accuracy over clients", "accuracy", "", height=150 + 105 * len(methods))
    for row, method in enumerate(reversed(methods)):  # the first method is on top
        name, colour = figure_text(method.label), look[method.label].colour
        _, accuracy = _pooled_clients(method)
        accuracy = np.sort(accuracy)[evenly(accuracy.size, MAX_STRIP_POINTS)]
        # Multiples of the golden ratio spread the dots evenly without drawing random numbers.
        jitter = np.arange(accuracy.size, dtype=np.float64) * 0.618034 % 1
        dots = {"color": colour, "size": 4, "opacity": 0.4}
        add_points(figure, accuracy, row - 0.22 - 0.16 * jitter, name, dots, hoverinfo="x")
        _add_box(figure, method, row, colour)
        # Above its box and not beside it, a name of any length leaves the plot its width on a phone.
        text, font = f"<b>{figure_text(shortened(method.label))}</b>", {"color": colour}
        figure.add_annotation(text=text, font=font, x=0, xref="paper", xanchor="left", y=row + 0.32, showarrow=False)
    figure.update_yaxes(visible=False, range=[-0.5, len(methods) - 0.45])
    figure.update_xaxes(showgrid=True)
    return figure


def client_size_figure(runs: Sequence[RunData]) -> go.Figure:
    """Final accuracy against a client's samples: dots are clients, the line averages clients of similar size."""
    figure = empty_figure("Accuracy against client size", "evaluated samples of the client", "accuracy")
    methods = methods_of(runs)
    for method in methods:
        style, name = styles(methods)[method.label], figure_text(method.label)
        samples, accuracy = _pooled_clients(method)
        if not samples.size:
            continue
        order = np.lexsort((accuracy, samples))
        samples, accuracy = samples[order], accuracy[order]
        kept = evenly(samples.size, MAX_SCATTER_POINTS // len(methods))
        dots = {"color": style.colour, "size": 4, "opacity": 0.25}
        add_points(figure, samples[kept], accuracy[kept], name, dots, hoverinfo="skip")
        bins = _bins_of_similar_size(samples)
        add_line(
            figure,
            np.array([np.median(samples[bins == index]) for index in np.unique(bins)]),
            np.array([accuracy[bins == index].mean() for index in np.unique(bins)]),
            name,
            style,
            mode="lines+markers",
            hovertemplate="about %{x:,.0f} samples: %{y:.3f}",
        )
    drawn = np.concatenate([np.empty(0), *(trace.x for trace in figure.data)])
    ticks = logarithmic_ticks(drawn.min(), drawn.max()) if drawn.size else []
    figure.update_xaxes(type="log", tickvals=ticks, ticktext=[f"{tick:,}" for tick in ticks])
    return figure


def speed_figure(runs: Sequence[RunData]) -> go.Figure:
    """Clients trained per second, round by round, mean over the seeds that count."""
    figure = empty_figure("Clients trained per second", "round", "clients per second", height=340)
    methods = methods_of(runs)
    for method in methods:
        rates: dict[float, list[float]] = {}
        for run in method.counted:
            pairs = zip(column(run.timings, "round"), column(run.timings, "clients_per_second"), strict=True)
            for round_number, rate in pairs:
                if rate > 0:
                    rates.setdefault(round_number, []).append(rate)
        rounds = np.array(sorted(rates))
        means = np.array([np.mean(rates[round_number]) for round_number in rounds])
        kept = evenly(rounds.size, points_per_line(len(methods)))
        name = figure_text(method.label)
        add_line(figure, rounds[kept], means[kept], name, styles(methods)[method.label])
    figure.update_yaxes(rangemode="tozero")
    figure.update_layout(hovermode="x unified", hoverdistance=-1)
    return figure


class Axis(NamedTuple):
    """What evaluations are drawn over: a column of the curve, what the axis is called, and its unit."""

    column: str
    title: str
    factor: float = 1.0

    def of(self, curve: Mapping[str, FloatArray]) -> FloatArray:
        """The places of the evaluations of `curve`."""
        return curve[self.column] / self.factor


_ROUNDS: Final = Axis("round", "round")


def _over_rounds(runs: Sequence[RunData], metric: str, title: str) -> go.Figure:
    look = styles(methods_of(runs))  # of all, so that a method looks the same in every figure
    return _over([run for run in runs if metric in run.rounds.column_names], metric, title, _ROUNDS, look)


def _over(runs: Sequence[RunData], metric: str, title: str, axis: Axis, look: Mapping[str, Style]) -> go.Figure:
    figure = empty_figure(title, axis.title, metric.replace("_", " "))
    methods = methods_of(runs)
    points = points_per_line(len(runs) + 3 * len(methods))
    has_band = len(methods) <= MAX_BANDS and f"{metric}_p10" in runs[0].rounds.column_names
    for method, curve in _mean_curves(runs) if has_band else ():
        kept = evenly(curve["round"].size, points)
        low, high = (curve[name][kept] for name in (f"{metric}_p10", f"{metric}_p90"))
        _add_band(figure, axis.of(curve)[kept], low, high, method.label, look[method.label].colour)
    for method in methods:
        if len(method.runs) > 1 or not method.counted:
            for run in method.runs:
                _add_single_run(figure, run, metric, axis, look[method.label], points)
    for method, curve in _mean_curves(runs):
        kept = evenly(curve["round"].size, points)
        name = figure_text(method.label)
        add_line(figure, axis.of(curve)[kept], curve[metric][kept], name, look[method.label])
    _add_stops(figure, runs, metric, axis, look)
    figure.update_layout(hovermode="x unified", hoverdistance=-1)
    return figure


def _against_cost(runs: Sequence[RunData], cost: str, scale: Scale, title: str, axis: str) -> go.Figure:
    curves = list(_mean_curves(runs))
    largest = max((float(curve[cost][-1]) for _, curve in curves), default=0.0)
    factor, unit = fitting_unit(largest, scale)
    figure = empty_figure(title, f"{axis} ({unit})", "accuracy", height=380)
    look = styles(methods_of(runs))
    for method, curve in curves:
        kept = evenly(curve[cost].size, points_per_line(len(curves)))
        name = figure_text(method.label)
        add_line(
            figure,
            curve[cost][kept] / factor,
            curve["accuracy"][kept],
            name,
            look[method.label],
            hovertemplate=f"%{{y:.3f}} after %{{x:.3~g}} {unit}",
        )
    add_baselines(figure, runs, 0.0, largest / factor)
    return figure


def _mean_curves(runs: Sequence[RunData]) -> Iterator[tuple[Method, Mapping[str, FloatArray]]]:
    for method in methods_of(runs):
        curve = method.mean_curve()
        if curve and curve["round"].size:
            yield method, curve


def _pooled_clients(method: Method) -> tuple[FloatArray, FloatArray]:
    pairs = [client_results(run) for run in method.counted]
    if not pairs:
        return np.empty(0), np.empty(0)
    return np.concatenate([samples for samples, _ in pairs]), np.concatenate([found for _, found in pairs])


def _bins_of_similar_size(samples: FloatArray) -> NDArray[np.int64]:
    """A bin for every client: about equally many clients each, and clients of the same size in the same bin."""
    number = int(np.clip(samples.size // _MIN_CLIENTS_PER_BIN, 1, _MAX_SIZE_BINS))
    edges = np.quantile(samples, np.arange(1, number) / number)
    return np.searchsorted(edges, samples, side="left").astype(np.int64)


def _add_box(figure: go.Figure, method: Method, row: int, colour: str) -> None:
    p10, p25, p50, p75, p90, mean = (
        [method.mean_final(f"accuracy_{name}")] for name in ("p10", "p25", "p50", "p75", "p90", "by_client")
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


def _add_band(figure: go.Figure, x: FloatArray, low: FloatArray, high: FloatArray, label: str, colour: str) -> None:
    name = figure_text(label)
    figure.add_trace(
        go.Scatter(
            x=np.concatenate([x, x[::-1]]),
            y=np.concatenate([high, low[::-1]]),
            fill="toself",
            fillcolor=band_colour(colour),
            line={"width": 0},
            mode="lines",
            name=name,
            legendgroup=name,
            showlegend=False,
            hoverinfo="skip",
        )
    )


def _add_single_run(figure: go.Figure, run: RunData, metric: str, axis: Axis, style: Style, points: int) -> None:
    curve = evaluation_curve(run)
    kept = evenly(curve["round"].size, points)
    name = figure_text(run.label)
    figure.add_trace(
        go.Scatter(
            x=axis.of(curve)[kept],
            y=curve[metric][kept],
            mode="lines",
            line={"color": style.colour, "width": 1},
            opacity=0.45,
            name=name,
            legendgroup=name,
            showlegend=False,
            hoverinfo="skip",
        )
    )


def _add_stops(figure: go.Figure, runs: Sequence[RunData], metric: str, axis: Axis, look: Mapping[str, Style]) -> None:
    """A cross where a run diverged or failed, so that a line that ends is not taken for one that finished."""
    for run in distinct_runs(runs):
        curve = evaluation_curve(run)
        if run.status not in ("diverged", "failed") or not curve["round"].size:
            continue
        marker = {"color": look[run.label].colour, "size": 10, "symbol": "x"}
        name = figure_text(run.label)
        note = f"{run.status} (seed {seed_of(run)})"
        add_points(figure, axis.of(curve)[-1:], curve[metric][-1:], name, marker, hovertemplate=f"%{{y:.3f}} {note}")
