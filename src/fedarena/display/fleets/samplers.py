"""What the dials of heterogeneity do: distributions over a grid of settings, and ten clients from close by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go

from fedarena.display.drawing.panels import add_panel, places
from fedarena.display.drawing.style import AXIS, SERIES_LIGHT, band_colour, empty_figure, figure_text
from fedarena.display.fleets.picture import DAY_SECONDS
from fedarena.display.report.methods import FloatArray
from fedarena.fleet import Availability

# By the first setting, then by the second: what clients have.
Grid = Mapping[str, Mapping[str, FloatArray]]

_DAYS: Final = 5
_RUG: Final = -0.6  # below the first client


def grid_figure(title: str, x_title: str, y_title: str, grid: Grid) -> go.Figure:
    """A panel for each value of the first setting, and in it a box for each value of the second.

    Boxes span the middle half of the clients with their median, whiskers 5 to 95 %, and every client is a dot.
    """
    figure = empty_figure(title, "", "", height=440)
    shares = list(places(len(grid)))
    for number, ((heading, boxes), (left, right)) in enumerate(zip(grid.items(), shares, strict=True), start=1):
        axis = "" if number == 1 else str(number)
        colour = SERIES_LIGHT[(number - 1) % len(SERIES_LIGHT)]
        for place, (label, values) in enumerate(boxes.items()):
            _add_box(figure, place, label, values, colour, axis)
        add_panel(figure, axis, (left, right), (0.0, 1.0), heading)
        figure.update_layout(
            **{
                f"xaxis{axis}": {
                    "title": {"text": x_title},
                    "tickvals": list(range(len(boxes))),
                    "ticktext": list(boxes),
                    "range": [-0.6, len(boxes) - 0.4],
                    "tickangle": 0,
                },
                f"yaxis{axis}": {"matches": "y"} if axis else {"title": {"text": y_title}},
            }
        )
        if axis:
            figure.update_layout(**{f"yaxis{axis}": {"showticklabels": False}})
    return figure


def few_devices_figure(title: str, base_speeds: FloatArray, grid: Grid, unit: str) -> go.Figure:
    """A few clients each: rows of panels for the first setting, columns for the second, a dot for a client's speed.

    Clients with the same device have the same colour. The ticks at the bottom are the devices of the base.
    """
    figure = _panels(title, grid)
    low, high = float(base_speeds.min()), float(base_speeds.max())
    margin = 0.03 * (high - low)
    for axis, _, _, speeds in _cells(grid):
        _, device_of = np.unique(speeds, return_inverse=True)
        _add_rug(figure, base_speeds, axis)
        figure.add_scatter(
            x=speeds,
            y=np.arange(1, len(speeds) + 1),
            mode="markers",
            marker={
                "size": 9,
                "color": [SERIES_LIGHT[device % len(SERIES_LIGHT)] for device in device_of],
                "symbol": [("circle", "diamond", "square")[device // len(SERIES_LIGHT) % 3] for device in device_of],
            },
            hovertemplate=f"client %{{y}}: %{{x:.3~g}} {unit}<extra></extra>",
            showlegend=False,
            xaxis=f"x{axis}",
            yaxis=f"y{axis}",
        )
        figure.update_layout(**{f"xaxis{axis}": {"title": {"text": unit}, "range": [low - margin, high + margin]}})
        _count_clients(figure, axis, len(speeds))
    return figure


def few_states_figure(title: str, grid: Mapping[str, Mapping[str, Availability]]) -> go.Figure:
    """A few clients each: rows of panels for the first setting, columns for the second, a bar while one is available.

    Shown are the first days. Clients with the same availability have the same colour.
    """
    figure = _panels(title, grid)
    for axis, _, _, availability in _cells(grid):
        kinds = _kinds(availability)
        for client in range(len(availability)):
            begins, ends = _first_days(availability, client)
            figure.add_bar(
                x=(ends - begins) / DAY_SECONDS,
                base=begins / DAY_SECONDS,
                y=np.full(len(begins), client + 1),
                orientation="h",
                width=0.7,
                marker={"color": SERIES_LIGHT[kinds[client] % len(SERIES_LIGHT)], "line": {"width": 0}},
                hovertemplate=f"client {client + 1}: from day %{{base:.2f}}<extra></extra>",
                showlegend=False,
                xaxis=f"x{axis}",
                yaxis=f"y{axis}",
            )
        figure.update_layout(
            barmode="overlay",
            **{f"xaxis{axis}": {"title": {"text": "day"}, "range": [0, _DAYS], "tickvals": list(range(_DAYS + 1))}},
        )
        _count_clients(figure, axis, len(availability))
    return figure


def _kinds(availability: Availability) -> list[int]:
    """A number for every row, the same for equal ones."""
    known: dict[bytes, int] = {}
    kinds = []
    for row in range(len(availability)):
        one = availability.take([row])
        content = one.starts.tobytes() + one.ends.tobytes() + one.periods.tobytes()
        kinds.append(known.setdefault(content, len(known)))
    return kinds


def _first_days(availability: Availability, row: int) -> tuple[FloatArray, FloatArray]:
    """When intervals of the first days begin and end, in seconds."""
    one, shown = availability.take([row]), _DAYS * DAY_SECONDS
    periods = np.arange(0, shown, int(one.periods[0]))[:, None]
    begins, ends = (periods + one.starts).ravel(), (periods + one.ends).ravel()
    inside = begins < shown
    return begins[inside].astype(np.float64), np.minimum(ends[inside], shown).astype(np.float64)


def _add_box(figure: go.Figure, place: int, label: str, values: FloatArray, colour: str, axis: str) -> None:
    lowest, low, middle, high, highest = np.percentile(values, (5, 25, 50, 75, 95))
    figure.add_trace(
        go.Box(
            x=[place],
            lowerfence=[lowest],
            q1=[low],
            median=[middle],
            q3=[high],
            upperfence=[highest],
            line={"color": colour, "width": 1.5},
            fillcolor=band_colour(colour),
            width=0.7,
            name=figure_text(label),
            showlegend=False,
            hoverinfo="y",
            xaxis=f"x{axis}",
            yaxis=f"y{axis}",
        )
    )
    spread = np.linspace(-0.28, 0.28, len(values))[np.argsort(np.argsort(np.arange(len(values)) * 7 % len(values)))]
    figure.add_scatter(
        x=place + spread,
        y=values,
        mode="markers",
        marker={"color": colour, "size": 3, "opacity": 0.45},
        hoverinfo="skip",
        showlegend=False,
        xaxis=f"x{axis}",
        yaxis=f"y{axis}",
    )


def _add_rug(figure: go.Figure, values: FloatArray, axis: str) -> None:
    figure.add_scatter(
        x=values,
        y=np.full(len(values), _RUG),
        mode="markers",
        marker={"symbol": "line-ns", "size": 7, "line": {"color": AXIS, "width": 1}, "opacity": 0.5},
        hoverinfo="skip",
        showlegend=False,
        xaxis=f"x{axis}",
        yaxis=f"y{axis}",
    )


def _panels(title: str, grid: Mapping[str, Mapping[str, Any]]) -> go.Figure:
    """An empty figure with panels for `_cells`."""
    figure = empty_figure(title, "", "", height=120 + 270 * len(grid))
    rows = list(reversed(list(places(len(grid), 0.16))))
    columns = list(places(len(next(iter(grid.values()))), 0.08))
    for axis, row, column, _ in _cells(grid):
        heading = f"{list(grid)[row]}, {list(list(grid.values())[row])[column]}"
        add_panel(figure, axis, columns[column], rows[row], heading)
    return figure


def _cells(grid: Mapping[str, Mapping[str, Any]]) -> Sequence[tuple[str, int, int, Any]]:
    """Axis, row, column and content of every panel."""
    cells = [
        (row, column, value) for row, inner in enumerate(grid.values()) for column, value in enumerate(inner.values())
    ]
    return [("" if number == 1 else str(number), *cell) for number, cell in enumerate(cells, start=1)]


def _count_clients(figure: go.Figure, axis: str, clients: int) -> None:
    figure.update_layout(
        **{
            f"yaxis{axis}": {
                "title": {"text": "client"},
                "range": [-1.1, clients + 0.7],
                "tickvals": [1, clients],
                "showgrid": False,
            }
        }
    )
