"""LEAF's metrics files drawn: accuracy by round, how it is spread over clients in the end, and what training cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import plotly.graph_objects as go

from fedarena.files import write_text
from fedarena.leafmetrics import AccuracyCurve, FloatArray, LeafTable, accuracy_curve, summed_costs
from fedarena.report.drawing import add_line, evenly, points_per_line, shortened
from fedarena.report.html import Html, join, tag
from fedarena.report.page import Plots, document
from fedarena.report.panels import add_panel, places
from fedarena.report.sections import table
from fedarena.report.style import (
    DASHES,
    PAPER,
    SERIES_LIGHT,
    Style,
    band_colour,
    empty_figure,
    figure_text,
)
from fedarena.report.units import ABSENT, BYTES, FLOPS, Scale, count, fitting_unit, listing, quantity

TITLE: Final = "LEAF metrics"
_COSTS: Final = {
    "bytes_written": ("sent by clients", BYTES),
    "bytes_read": ("received by clients", BYTES),
    "local_computations": ("computed by clients", FLOPS),
}
_WHOLE: Final = [-0.02, 1.02]
_COLUMNS: Final = 2
_FEW_POINTS: Final = 30  # are shown as such
Curves = Mapping[str, AccuracyCurve]
Systems = Mapping[str, tuple[FloatArray, dict[str, FloatArray]]]  # rounds, and sums up to each


def write_leaf_page(tables: Sequence[LeafTable], path: Path) -> Path:
    """Writes a self-contained page about some files; returns `path`."""
    curves = {name: accuracy_curve(found) for name, found in _by_name(tables) if found.is_statistical}
    systems = {name: summed_costs(found) for name, found in _by_name(tables) if not found.is_statistical}
    plots = Plots()
    parts: dict[str, Html] = {}
    if curves:
        parts["Accuracy"] = _accuracy(curves, plots)
        parts["Last round"] = _last_round(curves, plots)
    if systems:
        parts["Systems"] = _systems(systems, plots)
    contents = [
        f"{count(len(found), 'file')} of {what}"
        for found, what in ((curves, "accuracies"), (systems, "bytes and computations"))
        if len(found)
    ]
    header = [tag("p", _headline(curves, systems), class_="headline"), tag("p", listing(contents), class_="facts")]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, document(TITLE, "FedArena page", header, [], parts, plots))
    return path


def _by_name(tables: Sequence[LeafTable]) -> list[tuple[str, LeafTable]]:
    """Every table with a name of its own: a number tells those apart that are called alike."""
    named: list[tuple[str, LeafTable]] = []
    for found in tables:
        names = [name for name, other in named if other.is_statistical == found.is_statistical]
        label, number = found.name, 1
        while label in names:
            number += 1
            label = f"{found.name} ({number})"
        named.append((label, found))
    return named


def _headline(curves: Curves, systems: Systems) -> str:
    if curves:
        best = max(curves, key=lambda name: float(np.nan_to_num(curves[name].weighted[-1])))
        return f"In its last round, {best} has an accuracy of {curves[best].weighted[-1]:.3f} over all samples."
    total = sum(costs["local_computations"][-1] for _, costs in systems.values())
    return f"Clients computed {quantity(float(total), FLOPS)} in {count(len(systems), 'file')}."


def leaf_accuracy_figure(curves: Curves) -> go.Figure:
    """Accuracy by round, over all samples and as the mean over clients."""
    figure = empty_figure("Accuracy by round", "round", "accuracy")
    limit = points_per_line(2 * len(curves))
    for (name, curve), style in zip(curves.items(), _styles(len(curves)), strict=True):
        shown, label = evenly(len(curve.rounds), limit), figure_text(shortened(name))
        x, mode = curve.rounds[shown], _mode(len(shown))
        add_line(figure, x, curve.weighted[shown], label, style, mode=mode)
        line = {"color": style.colour, "dash": "dot", "width": 1.5}
        hover = "mean over clients %{y:.3~f}"
        add_line(figure, x, curve.mean[shown], label, style, line=line, showlegend=False, hovertemplate=hover)
    figure.update_yaxes(range=_WHOLE)
    return figure


def leaf_percentile_figure(curves: Curves) -> go.Figure:
    """The 10th, 50th and 90th percentile over clients by round, a panel for every file."""
    rows = -(-len(curves) // _COLUMNS)
    figure = empty_figure("Percentiles over clients", "", "", height=70 + 300 * rows)
    columns = places(min(len(curves), _COLUMNS), 0.08)
    lines = list(reversed(places(rows, 0.2)))
    limit = points_per_line(3 * len(curves))
    for number, ((name, curve), style) in enumerate(zip(curves.items(), _styles(len(curves)), strict=True)):
        axis = "" if number == 0 else str(number + 1)
        place, line = number % _COLUMNS, lines[number // _COLUMNS]
        add_panel(figure, axis, columns[place], (line[0], line[1] - 0.08 / rows), shortened(name))
        shown = evenly(len(curve.rounds), limit)
        x, low, middle, high = curve.rounds[shown], *(curve.percentiles[level][shown] for level in (10, 50, 90))
        axes = {"xaxis": f"x{axis}", "yaxis": f"y{axis}", "showlegend": False}
        band = {"fill": "tonexty", "fillcolor": band_colour(style.colour), "hovertemplate": "90th %{y:.3~f}"}
        edge = {"line": {"color": style.colour, "width": 1}, **axes}
        label = figure_text(name)
        add_line(figure, x, low, label, style, hovertemplate="10th %{y:.3~f}", **edge)
        add_line(figure, x, high, label, style, **band, **edge)
        add_line(figure, x, middle, label, style, hovertemplate="median %{y:.3~f}", mode=_mode(len(x)), **axes)
        title = {"text": "accuracy" if place == 0 else ""}
        figure.update_layout(
            {f"xaxis{axis}": {"title": {"text": "round"}}, f"yaxis{axis}": {"range": _WHOLE, "title": title}}
        )
    return figure


def leaf_box_figure(curves: Curves) -> go.Figure:
    """Clients' accuracies in the last round of every file, as Figure 3 of LEAF's paper shows them."""
    figure = empty_figure("Clients' accuracies in the last round", "", "accuracy", height=420)
    for (name, curve), style in zip(curves.items(), _styles(len(curves)), strict=True):
        last = {level: [float(values[-1])] for level, values in curve.percentiles.items()}
        label = figure_text(shortened(name))
        box = go.Box(
            x=[label],
            lowerfence=last[10],
            q1=last[25],
            median=last[50],
            q3=last[75],
            upperfence=last[90],
            mean=[float(curve.mean[-1])],
            boxmean=False,
            line={"color": style.colour, "width": 2},
            fillcolor=band_colour(style.colour),
            width=0.45,
            showlegend=False,
            name=label,
        )
        figure.add_trace(box)
        mean = {"color": PAPER, "size": 10, "symbol": "triangle-up", "line": {"color": style.colour, "width": 2}}
        point = go.Scatter(
            x=[label],
            y=[float(curve.mean[-1])],
            mode="markers",
            marker=mean,
            showlegend=False,
            hovertemplate="mean over clients %{y:.3~f}<extra></extra>",
        )
        figure.add_trace(point)
    figure.update_yaxes(range=_WHOLE)
    figure.update_xaxes(type="category")
    return figure


def leaf_cost_figure(title: str, scale: Scale, costs: Mapping[str, tuple[FloatArray, FloatArray]]) -> go.Figure:
    """What all clients together sent or computed up to each round."""
    factor, unit = fitting_unit(max(float(summed[-1]) for _, summed in costs.values()), scale)
    figure = empty_figure(title, "round", unit, height=360)
    limit = points_per_line(len(costs))
    for (name, (rounds, summed)), style in zip(costs.items(), _styles(len(costs)), strict=True):
        shown = evenly(len(rounds), limit)
        add_line(figure, rounds[shown], summed[shown] / factor, figure_text(shortened(name)), style)
    figure.update_yaxes(rangemode="tozero")
    return figure


def leaf_traffic_figure(systems: Systems) -> go.Figure:
    """What all clients together sent and received up to each round."""
    traffic = {
        name: (rounds, costs["bytes_written"] + costs["bytes_read"]) for name, (rounds, costs) in systems.items()
    }
    return leaf_cost_figure("Bytes that clients sent and received", BYTES, traffic)


def _accuracy(curves: Curves, plots: Plots) -> Html:
    weighted = "Solid: over all samples, so that clients count by their samples; dotted: the mean over clients."
    percentiles = "Thick: the median client; bands: from the 10th to the 90th percentile over clients."
    return join([plots(leaf_accuracy_figure(curves), weighted), plots(leaf_percentile_figure(curves), percentiles)])


def _last_round(curves: Curves, plots: Plots) -> Html:
    caption = (
        "Lines in the boxes: the median client; triangles: mean over clients; boxes: 25th to 75th percentile over "
        "clients; whiskers: 10th to 90th."
    )
    heads = ["file", "round", "clients", "over samples", "mean over clients", "p10", "p25", "p50", "p75", "p90"]
    rows = [
        [
            name,
            f"{curve.rounds[-1]:,.0f}",
            f"{curve.clients[-1]:,.0f}",
            *(_fraction(value) for value in (curve.weighted[-1], curve.mean[-1])),
            *(_fraction(values[-1]) for values in curve.percentiles.values()),
        ]
        for name, curve in curves.items()
    ]
    return join([plots(leaf_box_figure(curves), caption), table(heads, rows, "numbers")])


def _systems(systems: Systems, plots: Plots) -> Html:
    caption = "The sum over clients and rounds; where lines are equal, the last is seen."
    computed = {name: (rounds, costs["local_computations"]) for name, (rounds, costs) in systems.items()}
    figures = [
        leaf_traffic_figure(systems),
        leaf_cost_figure("What clients computed", FLOPS, computed),
    ]
    heads = ["file", "rounds", *(title for title, _ in _COSTS.values())]
    rows = [
        [
            name,
            f"{len(rounds):,}",
            *(quantity(float(costs[key][-1]), scale) for key, (_, scale) in _COSTS.items()),
        ]
        for name, (rounds, costs) in systems.items()
    ]
    return join([*(plots(figure, caption) for figure in figures), table(heads, rows, "numbers")])


def _mode(points: int) -> str:
    return "lines+markers" if points <= _FEW_POINTS else "lines"


def _fraction(value: float) -> str:
    return f"{value:.3f}" if np.isfinite(value) else ABSENT


def _styles(number: int) -> list[Style]:
    colours = len(SERIES_LIGHT)
    return [Style(SERIES_LIGHT[n % colours], DASHES[n // colours % len(DASHES)]) for n in range(number)]
