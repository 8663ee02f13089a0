"""A federation in one picture: how large its clients are, and how their labels and pictures differ."""

from __future__ import annotations

from typing import Final

import numpy as np
import plotly.graph_objects as go

from fedarena.data.statistics.describe import FederationStatistics, SizeStatistics
from fedarena.data.statistics.label_statistics import LabelMix
from fedarena.display.drawing.marks import shortened
from fedarena.display.drawing.stack import LINE, Panel, add_axes, add_heading, stack
from fedarena.display.drawing.style import QUIET_INK, SERIES_LIGHT, empty_figure, figure_text
from fedarena.display.drawing.units import count
from fedarena.display.federations.distances import add_pairs, add_pixels
from fedarena.display.federations.frequencies import add_frequencies, pixels_for_frequencies
from fedarena.display.federations.labels import add_label_counts, add_label_mix, pixels_for_names
from fedarena.display.fleets.picture import percent

_TICKS: Final = 6
_FEW: Final = 5  # clients, of whom there is no half
MOST_NAMED: Final = 12
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
    below = _SCALE + pixels_for_names(statistics.labels)  # of the last panel so far
    if statistics.task == "multi_label":
        panels.append(Panel("frequencies", 220, below + _HEADING))
        below = pixels_for_frequencies(statistics.labels) or _AXIS
    if pairs is not None:
        panels.append(Panel("pairs", 170, below + _HEADING + LINE))
        below = _AXIS
    if pixels is not None:
        panels.append(Panel("pixels", 190, below + _HEADING + 3 * LINE))
        below = _AXIS
    places = stack(figure, panels, below=below)
    _add_sizes(figure, statistics, places["sizes"])
    _add_curve(figure, statistics.sizes, places["curve"])
    add_label_counts(figure, statistics.labels, places["counts"])
    add_label_mix(figure, statistics.labels, places["mix"], are_named(statistics))
    if "frequencies" in places:
        add_frequencies(figure, statistics.labels, places["frequencies"])
    if pairs is not None:
        add_pairs(figure, pairs, places["pairs"])
    if pixels is not None:
        add_pixels(figure, pixels, statistics.labels.names, places["pixels"])
    return figure


def are_named(statistics: FederationStatistics) -> bool:
    """Whether clients are so few that each is shown by its name."""
    return statistics.num_clients == len(statistics.labels.mix.ids) <= MOST_NAMED


def _add_sizes(figure: go.Figure, statistics: FederationStatistics, place: tuple[float, float]) -> None:
    sizes = statistics.sizes
    if are_named(statistics):
        _add_named_sizes(figure, statistics.labels.mix, place)
    else:
        _add_histogram(figure, sizes, place)
    low, high = sizes.percentiles[10], sizes.percentiles[90]
    details = [
        f"median {sizes.median:,.0f} samples, largest {sizes.max:,}",
        f"four fifths of clients have {low:,.0f} to {high:,.0f}",
    ]
    add_heading(figure, "Client sizes", details, place[1])


def _add_named_sizes(figure: go.Figure, mix: LabelMix, place: tuple[float, float]) -> None:
    """A bar for each of few clients, the largest on top."""
    figure.add_bar(
        x=mix.sizes,
        y=list(range(len(mix.ids))),
        orientation="h",
        text=[figure_text(shortened(client)) for client in mix.ids],  # in or behind the bar: beside it is no room
        textposition="auto",
        insidetextanchor="start",
        textangle=0,
        customdata=[figure_text(client) for client in mix.ids],
        marker={"color": SERIES_LIGHT[0]},
        hovertemplate="%{customdata}: %{x:,} samples<extra></extra>",
        showlegend=False,
    )
    x = {"title": {"text": "samples of the client"}, "showgrid": True}
    add_axes(figure, 1, place, x, {"showticklabels": False, "ticks": "", "showgrid": False})


def _add_histogram(figure: go.Figure, sizes: SizeStatistics, place: tuple[float, float]) -> None:
    # The bins grow with their distance from zero: drawn equally wide, they read like a logarithmic axis.
    used = np.flatnonzero(sizes.histogram_counts)
    bins = range(int(used[0]), int(used[-1]) + 1) if used.size else range(0)
    lows, highs = sizes.histogram_lows.tolist(), sizes.histogram_highs.tolist()
    figure.add_bar(
        x=list(bins),
        y=sizes.histogram_counts[list(bins)],
        customdata=[_range(lows[index], highs[index]) for index in bins],
        marker={"color": SERIES_LIGHT[0]},
        hovertemplate="%{customdata} samples: %{y:,} clients<extra></extra>",
        showlegend=False,
    )
    # Bars are named by sizes that clients have: edges of bins would be sizes of nobody.
    shown = used[np.unique(np.linspace(0, len(used) - 1, min(_TICKS, len(used))).round().astype(int))].tolist()
    apart = [index for number, index in enumerate(shown) if not number or index - shown[number - 1] >= len(bins) / 12]
    ticks = {"tickvals": apart, "ticktext": [f"{lows[index]:,}" for index in apart], "tickangle": 0}
    few = {"dtick": 1} if sizes.histogram_counts.max(initial=0) <= _FEW else {}
    title = "samples (of the smallest client in a bar)"
    add_axes(figure, 1, place, {"title": {"text": title}, **ticks}, {"title": {"text": "clients"}, **few})


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
        f"the largest {percent(sizes.half_share)} have half of them",
        "dotted: if all clients had equally many",
    ]
    add_heading(figure, "Quantity skew", details, place[1])


def _range(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"
