"""Colours and layout that all figures share.

The seven colours stay apart for readers with any of the three colour-vision deficiencies and from the
background, in the light and in the dark scheme (tests/report/test_style.py measures it). Figures are made in
the light scheme; a report shown in the dark scheme replaces each colour by its partner in `DARK_COLOURS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from typing import Any, Final

import plotly.graph_objects as go

from fedarena.display.report.methods import Method

SERIES_LIGHT: Final = ("#2457C5", "#D9720A", "#2A9D6E", "#A8237C", "#16213E", "#B97CC0", "#5A4F0A")
SERIES_DARK: Final = ("#5B93EE", "#E07B35", "#4FDDA0", "#BC6A98", "#8A55FF", "#EDE56A", "#C8E6FA")
# An algorithm that many comparisons include keeps its colour from one report to the next.
USUAL_COLOUR: Final = {
    "fedavg": 0,
    "fedprox": 1,
    "fedyogi": 2,
    "fedadam": 3,
    "scaffold": 4,
    "fedadagrad": 5,
    "fedsgd": 6,
}
# A plot's own buttons are chosen one by one: among the usual ones is one that uploads the data.
PLOT_SETTINGS: Final[dict[str, Any]] = {
    "displaylogo": False,
    "responsive": True,
    "modeBarButtons": [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
    "plotlyServerURL": "",
    "toImageButtonOptions": {"format": "svg"},
}
DASHES: Final = ("solid", "dash", "dot", "dashdot", "longdash")

PAPER: Final = "#FFFFFF"
INK: Final = "#2B3440"
QUIET_INK: Final = "#5F6B7A"
GRID: Final = "#E8EBEF"
AXIS: Final = "#A3ACB8"
FONT: Final = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"

_BAND_OPACITY: Final = 0.13


def band_colour(colour: str) -> str:
    """`colour` (as #RRGGBB), transparent enough for overlapping bands to stay legible."""
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red},{green},{blue},{_BAND_OPACITY})"


DARK_COLOURS: Final[dict[str, str]] = {
    PAPER: "#171C23",
    INK: "#E3E7EC",
    QUIET_INK: "#9CA7B4",
    GRID: "#2A323C",
    AXIS: "#5C6774",
    **dict(zip(SERIES_LIGHT, SERIES_DARK, strict=True)),
    **dict(zip(map(band_colour, SERIES_LIGHT), map(band_colour, SERIES_DARK), strict=True)),
}


@dataclass(frozen=True)
class Style:
    """How one method is drawn, the same in every figure of a report."""

    colour: str
    dash: str


def styles(methods: Sequence[Method]) -> dict[str, Style]:
    """A style for every label: its algorithm's usual colour if that is free, otherwise the next free one."""
    indexes: dict[str, int] = {}
    for method in methods:
        usual = USUAL_COLOUR.get(method.algorithm)
        if usual is not None and usual not in indexes.values():
            indexes[method.label] = usual
    free = iter(sorted(set(range(len(methods) + len(SERIES_LIGHT))) - set(indexes.values())))
    for method in methods:
        if method.label not in indexes:
            indexes[method.label] = next(free)
    colours = len(SERIES_LIGHT)
    return {
        label: Style(SERIES_LIGHT[index % colours], DASHES[index // colours % len(DASHES)])
        for label, index in indexes.items()
    }


def figure_text(text: str) -> str:
    """`text` as plotly shows it unchanged: no markup, no formula between dollars, no variable of a hover text."""
    return escape(text, quote=False).replace("$", "&#36;").replace("%", "&#37;")


def empty_figure(title: str, x: str, y: str, height: int = 420) -> go.Figure:
    """A figure without traces: titles of the axes, fonts, grid, legend above the plot."""
    return go.Figure(
        layout={
            "template": _template(),
            "height": height,
            "title": {"text": title, "x": 0, "xref": "paper", "font": {"size": 16}},
            "xaxis": {"title": {"text": x}},
            "yaxis": {"title": {"text": y}},
        }
    )


@cache  # plotly checks every property of it; figures get copies
def _template() -> go.layout.Template:
    axis = {
        "gridcolor": GRID,
        "linecolor": AXIS,
        "tickcolor": AXIS,
        "tickfont": {"color": QUIET_INK, "size": 12},
        "zeroline": False,
        "automargin": True,
        "title": {"standoff": 10, "font": {"color": QUIET_INK, "size": 13}},
    }
    return go.layout.Template(
        layout={
            "paper_bgcolor": PAPER,
            "plot_bgcolor": PAPER,
            "font": {"family": FONT, "size": 13, "color": INK},
            "xaxis": {**axis, "showline": True, "ticks": "outside", "showgrid": False},
            "yaxis": axis,
            "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
            "hoverlabel": {"bgcolor": PAPER, "bordercolor": AXIS, "font": {"color": INK}, "namelength": -1},
            "margin": {"l": 8, "r": 16, "t": 80, "b": 48},
        }
    )
