"""How far clients are apart: distances of their labels and of their pictures, beside what chance would give."""

from __future__ import annotations

from typing import Final

import numpy as np
import plotly.graph_objects as go

from fedarena.data.statistics.divergence import HISTOGRAM_BINS, PairStatistics
from fedarena.data.statistics.pixels import PixelStatistics
from fedarena.display.drawing.stack import add_axes, add_heading, coloured
from fedarena.display.drawing.style import SERIES_LIGHT
from fedarena.display.drawing.units import count, significant
from fedarena.display.federations.labels import label_name

BIN_CENTRES: Final = (np.arange(HISTOGRAM_BINS) + 0.5) / HISTOGRAM_BINS
SHARES: Final = np.linspace(0, 1, 101)  # of the quantiles of a spread
_CHANCE: Final = SERIES_LIGHT[1]
_EQUAL: Final = SERIES_LIGHT[2]


def add_pairs(figure: go.Figure, pairs: PairStatistics, place: tuple[float, float]) -> None:
    """The density of the distances of two clients' labels, like Fig. 3(b) of FedScale."""
    figure.add_bar(
        x=BIN_CENTRES,
        y=pairs.histogram / pairs.pairs,
        marker={"color": SERIES_LIGHT[0]},
        hovertemplate="about %{x:.2f}: %{y:.1%} of the pairs<extra></extra>",
        showlegend=False,
        xaxis="x5",
        yaxis="y5",
    )
    figure.add_scatter(
        x=BIN_CENTRES,
        y=pairs.histogram_by_chance / pairs.pairs,
        mode="lines",
        line={"color": _CHANCE, "width": 2, "shape": "hvh"},
        hovertemplate="about %{x:.2f}: %{y:.1%} by chance<extra></extra>",
        showlegend=False,
        xaxis="x5",
        yaxis="y5",
    )
    add_axes(
        figure,
        5,
        place,
        {"title": {"text": "Jensen–Shannon distance"}, "range": [0, 1]},
        {"title": {"text": "pairs of clients"}, "tickformat": "~%", "rangemode": "tozero"},
    )
    details = [
        f"{count(pairs.pairs, 'pair')} (0: alike, 1: nothing shared)",
        f"{coloured('as it is', SERIES_LIGHT[0])}: mean {pairs.distances.mean:.2f}",
        f"{coloured('by chance alone', _CHANCE)}: mean {pairs.distances_by_chance.mean:.2f}",
    ]
    add_heading(figure, "Labels of two clients", details, place[1])


def add_pixels(
    figure: go.Figure, pixels: PixelStatistics, names: tuple[str, ...] | None, place: tuple[float, float]
) -> None:
    """The distances of clients' pictures to all pictures, like Fig. 2 (right) of FLAIR."""
    lines = (
        (pixels.distances_of_equal_sizes, "dealt in equal sizes", _EQUAL),
        (pixels.distances_by_chance, "dealt at random", _CHANCE),
        (pixels.distances, "as it is", SERIES_LIGHT[0]),
    )
    for spread, name, colour in lines:
        figure.add_scatter(
            x=spread.quantiles,
            y=SHARES,
            mode="lines",
            line={"color": colour, "width": 2.5},
            hovertemplate=f"{name}: %{{y:.0%}} are at most %{{x:.3~g}} apart<extra></extra>",
            showlegend=False,
            xaxis="x6",
            yaxis="y6",
        )
    add_axes(
        figure,
        6,
        place,
        {"title": {"text": "earth mover's distance of pixels"}, "rangemode": "tozero"},
        {"title": {"text": "clients below"}, "tickformat": ".0%", "range": [0, 1.02]},
    )
    label = label_name(names, pixels.label)
    details = [f"pictures of label {label}", f"{pixels.images:,} of {count(pixels.clients, 'client')}"]
    details += [
        f"{coloured(name, colour)}: mean {significant(spread.mean)}" for spread, name, colour in reversed(lines)
    ]
    add_heading(figure, "A client's pictures and all pictures", details, place[1])
