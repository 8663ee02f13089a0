"""Several federations in one picture, like Fig. 2 of FLAIR; distances of labels are FedScale's (Fig. 3(b)).

Shares below a distance rather than densities: their lines stay apart where densities would all be near zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import plotly.graph_objects as go

from fedarena.data.statistics.describe import FederationStatistics
from fedarena.display.drawing.marks import shortened
from fedarena.display.drawing.stack import LINE, Panel, add_axes, add_heading, stack
from fedarena.display.drawing.style import DASHES, SERIES_LIGHT, empty_figure, figure_text
from fedarena.display.drawing.units import count
from fedarena.display.federations.distances import SHARES

_HEADING: Final = 2 * LINE + 20
_AXIS: Final = 58
_KEY_PIXELS: Final = 22


def comparison_figure(federations: Mapping[str, FederationStatistics]) -> go.Figure:
    """Quantity skew, label distances and, where there are pictures, pixel distances of federations by their titles."""
    figure = empty_figure(f"<b>{count(len(federations), 'federation')}</b>", "", "")
    keys = _KEY_PIXELS * len(federations)
    panels = [Panel("curve", 240, keys + _HEADING), Panel("pairs", 200, _AXIS + _HEADING)]
    if any(one.pixels is not None for one in federations.values()):
        panels.append(Panel("pixels", 200, _AXIS + _HEADING))
    places = stack(figure, panels, below=_AXIS)
    for number, (title, one) in enumerate(federations.items()):
        line = {
            "color": SERIES_LIGHT[number % len(SERIES_LIGHT)],
            "dash": DASHES[number // len(SERIES_LIGHT) % len(DASHES)],
            "width": 2.5,
        }
        _add_lines(figure, title, one, line)
    # One below the other: titles with their settings are long.
    figure.update_layout(legend={"orientation": "v", "x": 0, "y": 1, "yanchor": "top", "traceorder": "normal"})
    share: dict[str, Any] = {"range": [0, 1], "tickformat": ".0%"}
    add_axes(
        figure,
        1,
        places["curve"],
        {"title": {"text": "clients, the largest first"}, **share},
        {"title": {"text": "samples"}, **share, "range": [0, 1.02]},
    )
    add_heading(figure, "Quantity skew", ["straight: all have equally many samples"], places["curve"][1])
    add_axes(
        figure,
        2,
        places["pairs"],
        {"title": {"text": "Jensen–Shannon distance"}, "range": [0, 1]},
        {"title": {"text": "pairs below"}, "tickformat": ".0%", "range": [0, 1.02]},
    )
    add_heading(figure, "Labels of two clients", ["0: alike, 1: nothing shared"], places["pairs"][1])
    if "pixels" in places:
        add_axes(
            figure,
            3,
            places["pixels"],
            {"title": {"text": "earth mover's distance of pixels"}, "rangemode": "tozero"},
            {"title": {"text": "clients below"}, "tickformat": ".0%", "range": [0, 1.02]},
        )
        heading = "A client's pictures and all pictures"
        add_heading(figure, heading, ["pictures of the most common label"], places["pixels"][1])
    return figure


def _add_lines(figure: go.Figure, title: str, one: FederationStatistics, line: dict[str, Any]) -> None:
    name = figure_text(shortened(title))

    def add(x: Any, y: Any, axes: str, hover: str, shown: bool = False) -> None:
        figure.add_scatter(
            x=x,
            y=y,
            mode="lines",
            line=line,
            name=name,
            legendgroup=title,
            hovertemplate=f"{name}: {hover}<extra></extra>",
            showlegend=shown,
            xaxis=f"x{axes}",
            yaxis=f"y{axes}",
        )

    add(one.sizes.curve_clients, one.sizes.curve_samples, "", "the largest %{x:.3~p} have %{y:.3~p}", shown=True)
    if (pairs := one.labels.pairs) is not None:
        add(pairs.distances.quantiles, SHARES, "2", "%{y:.0%} are at most %{x:.2f} apart")
    if one.pixels is not None:
        add(one.pixels.distances.quantiles, SHARES, "3", "%{y:.0%} are at most %{x:.3~g} apart")
