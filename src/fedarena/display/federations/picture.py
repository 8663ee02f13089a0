"""A federation in one picture: how large its clients are, and how their labels and pictures differ."""

from __future__ import annotations

from typing import Final

import numpy as np
import plotly.graph_objects as go

from fedarena.data.statistics.describe import FederationStatistics, SizeStatistics
from fedarena.display.drawing.stack import LINE, Panel, add_axes, add_heading, stack
from fedarena.display.drawing.style import QUIET_INK, SERIES_LIGHT, empty_figure, figure_text
from fedarena.display.drawing.units import count
from fedarena.display.federations.distances import add_pairs, add_pixels
from fedarena.display.federations.labels import add_label_counts, add_label_mix, pixels_for_names
from fedarena.display.fleets.picture import percent

_TICKS: Final = 6
# What lies between two plots: a heading of three lines, and below the upper plot an axis with its title.
_HEADING: Final = 3 * LINE + 20
_AXIS: Final = 58
_SCALE: Final = 96  # with the scale of colours of the label mix


def federation_figure(statistics: FederationStatistics) -> go.Figure:
    """Sizes of clients and their skew, labels in total and of single clients, distances of labels and of pictures."""
    title = (
        f"<b>{figure_text(statistics.name)}</b><br>"
        f"{count(statistics.num_clients, 'client')}, {count(statistics.num_samples, 'sample')}"
    )
    figure = empty_figure(title, "", "")
    panels = [
        Panel("sizes", 170, _HEADING),
        Panel("curve", 190, _AXIS + _HEADING),
        Panel("counts", 90, _AXIS + _HEADING + LINE),
        Panel("mix", 400, 10),
    ]
    pairs, pixels = statistics.labels.pairs, statistics.pixels
    scale = _SCALE + pixels_for_names(statistics.labels)
    if pairs is not None:
        panels.append(Panel("pairs", 170, scale + _HEADING + LINE))
    if pixels is not None:
        panels.append(Panel("pixels", 190, _AXIS + _HEADING + 3 * LINE))
    places = stack(figure, panels, below=_AXIS if pairs is not None else scale)
    _add_sizes(figure, statistics.sizes, places["sizes"])
    _add_curve(figure, statistics.sizes, places["curve"])
    add_label_counts(figure, statistics.labels, places["counts"])
    add_label_mix(figure, statistics.labels, places["mix"])
    if pairs is not None:
        add_pairs(figure, pairs, places["pairs"])
    if pixels is not None:
        add_pixels(figure, pixels, statistics.labels.names, places["pixels"])
    return figure


def _add_sizes(figure: go.Figure, sizes: SizeStatistics, place: tuple[float, float]) -> None:
    # The bins grow with their distance from zero: drawn equally wide, they read like a logarithmic axis.
    used = np.flatnonzero(sizes.histogram_counts)
    bins = range(int(used[0]), int(used[-1]) + 1) if used.size else range(0)
    lows = [int(sizes.histogram_edges[index]) for index in bins]
    highs = [int(sizes.histogram_edges[index + 1]) - 1 for index in bins]
    figure.add_bar(
        x=list(bins),
        y=sizes.histogram_counts[list(bins)],
        customdata=[_range(low, high) for low, high in zip(lows, highs, strict=True)],
        marker={"color": SERIES_LIGHT[0]},
        hovertemplate="%{customdata} samples: %{y:,} clients<extra></extra>",
        showlegend=False,
    )
    every = max(1, len(bins) // _TICKS)
    ticks = {"tickvals": list(bins)[::every], "ticktext": [f"{low:,}" for low in lows[::every]], "tickangle": 0}
    add_axes(figure, 1, place, {"title": {"text": "samples of the client"}, **ticks}, {"title": {"text": "clients"}})
    low, high = sizes.percentiles[10], sizes.percentiles[90]
    details = [
        f"median {sizes.median:,.0f} samples, largest {sizes.max:,}",
        f"four fifths of clients have {low:,.0f} to {high:,.0f}",
    ]
    add_heading(figure, "Client sizes", details, place[1])


def _add_curve(figure: go.Figure, sizes: SizeStatistics, place: tuple[float, float]) -> None:
    shares = {"range": [0, 1], "tickformat": ".0%"}
    for x, y, line, hover in (
        ([0, 1], [0, 1], {"color": QUIET_INK, "dash": "dot", "width": 1.5}, "skip"),
        (sizes.curve_clients, sizes.curve_samples, {"color": SERIES_LIGHT[0], "width": 2.5}, None),
    ):
        figure.add_scatter(
            x=x,
            y=y,
            mode="lines",
            line=line,
            hoverinfo=hover,
            hovertemplate=None if hover else "the largest %{x:.3~p} have %{y:.3~p} of the samples<extra></extra>",
            showlegend=False,
            xaxis="x2",
            yaxis="y2",
        )
    add_axes(
        figure,
        2,
        place,
        {"title": {"text": "clients, the largest first"}, **shares},
        {"title": {"text": "samples"}, **shares, "range": [0, 1.02]},
    )
    details = [
        f"the largest {percent(sizes.half_share)} have half of the samples",
        "dotted: if all clients had equally many",
    ]
    add_heading(figure, "Quantity skew", details, place[1])


def _range(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"
