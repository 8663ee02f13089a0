"""Lines, points and ticks, as all figures draw them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from fedarena.display.drawing.style import QUIET_INK, Style
from fedarena.display.report.methods import FloatArray

MAX_LINE_POINTS: Final = 2_000
MAX_FIGURE_POINTS: Final = 20_000
MAX_TICKS: Final = 8
_TICK_STEPS: Final = ((1,), (1, 2, 5), (1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9), np.arange(10, 100) / 10)
_FEWEST_TICKS: Final = 3


def logarithmic_ticks(low: float, high: float) -> list[int]:
    """Round numbers from 1, 2, 5, 10, 20 … between the limits; only powers of ten where they would be many."""
    exponents = range(int(np.log10(high)) + 1)
    ticks = [step * 10**exponent for exponent in exponents for step in (1, 2, 5)]
    inside = [tick for tick in ticks if low <= tick <= high]
    return inside if len(inside) <= MAX_TICKS else [tick for tick in inside if str(tick).startswith("1")]


def whole_ticks(values: FloatArray) -> list[int]:
    """Whole numbers on a logarithmic axis: round ones, or whatever lies between values that are close together."""
    ticks = logarithmic_ticks(values.min(), values.max())
    if len(ticks) < 2:
        marks = logarithmic_marks(values)["tickvals"]
        ticks = [int(mark) for mark in marks if mark == int(mark)] or ticks
    return ticks or [int(values.min())]


def logarithmic_marks(values: FloatArray) -> dict[str, Any]:
    """Round numbers on a logarithmic axis, as few as tell the values apart: 1, 10, 100; 1, 2, 5, 10; or 10, 11, 12."""
    low, high = np.nanmin(values) / 1.05, np.nanmax(values) * 1.05
    exponents = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    for steps in _TICK_STEPS:
        marks = [step * 10.0**exponent for exponent in exponents for step in steps]
        marks = [mark for mark in marks if low <= mark <= high]
        if len(marks) >= _FEWEST_TICKS:
            break
    return {"tickvals": marks, "ticktext": [f"{mark:,.12g}" for mark in marks]}


def shortened(label: str) -> str:
    """A label that fits a phone's width; what tells labels apart is at their ends."""
    return label if len(label) <= 40 else f"{label[:20]}…{label[-19:]}"


def points_per_line(lines: int) -> int:
    """How many points each of so many lines may have."""
    return max(2, min(MAX_LINE_POINTS, MAX_FIGURE_POINTS // max(lines, 1)))


def evenly(size: int, limit: int) -> NDArray[np.int64]:
    """Indexes of at most `limit` of `size` points, evenly spaced, with the first and the last."""
    return np.unique(np.linspace(0, size - 1, min(size, limit)).round().astype(np.int64))


def add_line(figure: go.Figure, x: FloatArray, y: FloatArray, name: str, style: Style, **options: Any) -> None:
    """A line with an entry in the legend."""
    settings: dict[str, Any] = {
        "mode": "lines",
        "hovertemplate": "%{y:.3~f}",
        "line": {"color": style.colour, "dash": style.dash, "width": 2.5},
        "marker": {"color": style.colour, "size": 7},
    }
    figure.add_trace(go.Scatter(x=x, y=y, name=name, legendgroup=name, **{**settings, **options}))


def add_points(
    figure: go.Figure, x: FloatArray, y: FloatArray, name: str, marker: dict[str, Any], **options: Any
) -> None:
    """Points without an entry in the legend."""
    figure.add_trace(
        go.Scatter(x=x, y=y, mode="markers", marker=marker, name=name, legendgroup=name, showlegend=False, **options)
    )


def add_baselines(figure: go.Figure, scores: Iterable[float], end: float, hover: str) -> None:
    """A dashed line for what every trivial predictor scores."""
    for score in scores:
        figure.add_trace(
            go.Scatter(
                x=[0.0, end],
                y=[score, score],
                mode="lines",
                line={"color": QUIET_INK, "dash": "dash", "width": 1.5},
                name="baseline",
                legendgroup="baseline",
                hovertemplate=hover,
            )
        )
