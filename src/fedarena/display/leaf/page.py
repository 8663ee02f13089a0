"""LEAF's metrics files drawn: accuracy by round, its spread over clients in the end, and a page with all of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import plotly.graph_objects as go

from fedarena.analysis.leaf_metrics import AccuracyCurve, accuracy_curve, summed_costs
from fedarena.core.files import write_text
from fedarena.display.drawing.html import Html, join, tag
from fedarena.display.drawing.marks import add_line, evenly, points_per_line, shortened
from fedarena.display.drawing.panels import add_panel, places
from fedarena.display.drawing.style import DASHES, PAPER, SERIES_LIGHT, Style, band_colour, empty_figure, figure_text
from fedarena.display.drawing.units import ABSENT, FLOPS, count, listing, quantity
from fedarena.display.leaf.costs import Looks, Systems, accuracy_by_cost, systems_section
from fedarena.display.leaf.sources import LeafResult
from fedarena.display.report.page import Plots, document
from fedarena.display.report.sections.elements import table

TITLE: Final = "LEAF metrics"
_WHOLE: Final = [-0.02, 1.02]
_COLUMNS: Final = 2
# In pixels: a row of panels with the heading above and, except below the last, ticks and title of the axis.
_ROW_HEIGHT: Final = 240
_HEADING: Final = 22
_ROW_GAP: Final = 58
_MARGINS: Final = 64
_FEW_POINTS: Final = 30  # are shown as such
Curves = Mapping[str, AccuracyCurve]


def write_leaf_page(results: Sequence[LeafResult], path: Path) -> Path:
    """Writes a self-contained page about some experiments; returns `path`."""
    curves = {result.name: accuracy_curve(result.accuracies) for result in results if result.accuracies is not None}
    systems = {result.name: summed_costs(result.costs) for result in results if result.costs is not None}
    looks = leaf_looks([result.name for result in results])
    plots = Plots()
    parts: dict[str, Html] = {}
    if curves:
        parts["Accuracy"] = _accuracy(curves, looks, plots)
        parts["Last round"] = _last_round(curves, looks, plots)
    if any(name in systems for name in curves):
        parts["Accuracy by cost"] = accuracy_by_cost(curves, systems, looks, plots)
    if systems:
        parts["Systems"] = systems_section(systems, looks, plots)
    contents = [
        f"{count(len(found), 'file')} of {what}"
        for found, what in ((curves, "accuracies"), (systems, "bytes and computations"))
        if len(found)
    ]
    header = [tag("p", _headline(curves, systems), class_="headline"), tag("p", listing(contents), class_="facts")]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, document(TITLE, "FedArena page", header, [], parts, plots))
    return path


def leaf_looks(names: Sequence[str]) -> Looks:
    """The style of every name, the same in all figures of a page."""
    colours = len(SERIES_LIGHT)
    return {name: Style(SERIES_LIGHT[n % colours], DASHES[n // colours % len(DASHES)]) for n, name in enumerate(names)}


def _headline(curves: Curves, systems: Systems) -> str:
    if curves:
        best = max(curves, key=lambda name: float(np.nan_to_num(curves[name].weighted[-1])))
        return f"In its last round, {best} has an accuracy of {curves[best].weighted[-1]:.3f} over all samples."
    total = sum(costs["local_computations"][-1] for _, costs in systems.values())
    return f"Clients computed {quantity(float(total), FLOPS)} in {count(len(systems), 'file')}."


def leaf_accuracy_figure(curves: Curves, looks: Looks) -> go.Figure:
    """Accuracy by round, over all samples and as the mean over clients."""
    figure = empty_figure("Accuracy by round", "round", "accuracy")
    limit = points_per_line(2 * len(curves))
    for name, curve in curves.items():
        style = looks[name]
        shown, label = evenly(len(curve.rounds), limit), figure_text(shortened(name))
        x, mode = curve.rounds[shown], _mode(len(shown))
        add_line(figure, x, curve.weighted[shown], label, style, mode=mode)
        line = {"color": style.colour, "dash": "dot", "width": 1.5}
        hover = "mean over clients %{y:.3~f}"
        add_line(figure, x, curve.mean[shown], label, style, line=line, showlegend=False, hovertemplate=hover)
    figure.update_yaxes(range=_WHOLE)
    return figure


def leaf_percentile_figure(curves: Curves, looks: Looks) -> go.Figure:
    """The 10th, 50th and 90th percentile over clients by round, a panel for every file."""
    rows = -(-len(curves) // _COLUMNS)
    drawn = rows * _ROW_HEIGHT + (rows - 1) * _ROW_GAP
    figure = empty_figure("Percentiles over clients", "", "", height=_MARGINS + drawn)
    columns = places(min(len(curves), _COLUMNS), 0.08)
    lines = list(reversed(places(rows, _ROW_GAP / drawn)))
    limit = points_per_line(3 * len(curves))
    for number, (name, curve) in enumerate(curves.items()):
        style = looks[name]
        axis = "" if number == 0 else str(number + 1)
        place, line = number % _COLUMNS, lines[number // _COLUMNS]
        add_panel(figure, axis, columns[place], (line[0], line[1] - _HEADING / drawn), _heading(name))
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
            {
                f"xaxis{axis}": {"title": {"text": "round"}, "nticks": 3, "tickangle": 0},
                f"yaxis{axis}": {"range": _WHOLE, "title": title},
            }
        )
    return figure


def leaf_box_figure(curves: Curves, looks: Looks) -> go.Figure:
    """Clients' accuracies in the last round of every file, as Figure 3 of LEAF's paper shows them."""
    figure = empty_figure("Clients' accuracies in the last round", "", "accuracy", height=420)
    for name, curve in curves.items():
        style = looks[name]
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


def _accuracy(curves: Curves, looks: Looks, plots: Plots) -> Html:
    weighted = "Solid: over all samples, so that clients count by their samples; dotted: the mean over clients."
    percentiles = "Thick: the median client; bands: from the 10th to the 90th percentile over clients."
    return join(
        [
            plots(leaf_accuracy_figure(curves, looks), weighted),
            plots(leaf_percentile_figure(curves, looks), percentiles),
        ]
    )


def _last_round(curves: Curves, looks: Looks, plots: Plots) -> Html:
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
    return join([plots(leaf_box_figure(curves, looks), caption), table(heads, rows, "numbers")])


def _heading(name: str) -> str:
    """As much as fits above one of two panels on a phone."""
    return name if len(name) <= 16 else f"{name[:7]}…{name[-8:]}"


def _mode(points: int) -> str:
    return "lines+markers" if points <= _FEW_POINTS else "lines"


def _fraction(value: float) -> str:
    return f"{value:.3f}" if np.isfinite(value) else ABSENT
