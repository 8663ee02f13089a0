"""The labels of a federation: how many there are of each, and those of single clients."""

from __future__ import annotations

import html
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from fedarena.data.statistics.label_statistics import LabelStatistics
from fedarena.display.drawing.stack import add_axes, add_heading
from fedarena.display.drawing.style import PAPER, QUIET_INK, SERIES_LIGHT, figure_text
from fedarena.display.drawing.units import count

MAX_LABELS: Final = 30
_TICKS: Final = 6
_INVISIBLE: Final = {" ": "␣", "\n": "↵", "\t": "⇥", "": "(empty)"}
_LONGEST_NAME: Final = 20
_LONGEST_CLIENT: Final = 10
_SCALE_BELOW: Final = 62  # pixels from the lower end of the plot to the scale of colours
CHARACTER_PIXELS: Final = 7
_NAMES_PIXELS: Final = 600  # of names side by side


def pixels_for_names(labels: LabelStatistics) -> int:
    """How much room the names of labels need in addition, if they are turned because they are long."""
    names = [html.unescape(name) for name in _columns(labels, labels.counts[None])[0]]
    pixels = CHARACTER_PIXELS * max(map(len, names))
    return 0 if pixels * len(names) <= _NAMES_PIXELS else pixels


def add_label_counts(figure: go.Figure, labels: LabelStatistics, place: tuple[float, float]) -> None:
    """A bar for each label, above its column in the mix."""
    names, counts = _columns(labels, labels.counts[None])
    figure.add_bar(
        x=np.arange(len(names)),
        y=counts[0],
        customdata=names,
        marker={"color": SERIES_LIGHT[0]},
        hovertemplate="%{customdata}: %{y:,}<extra></extra>",
        showlegend=False,
        xaxis="x3",
        yaxis="y3",
    )
    add_axes(
        figure,
        3,
        place,
        {"showticklabels": False, "ticks": "", "matches": "x4"},
        {"title": {"text": "labels"}, "nticks": 4, "tickformat": "~s"},
    )
    details = [
        f"of {count(labels.clients, 'client')}, and of {len(labels.mix.ids)} one by one",
        f"mean distance from a client to all: {labels.mean_distance:.2f}",
        f"by chance alone {labels.mean_distance_by_chance:.2f}, at most 1",
    ]
    add_heading(figure, "Labels", details, place[1])


def add_label_mix(figure: go.Figure, labels: LabelStatistics, place: tuple[float, float], named: bool) -> None:
    """A row for all clients and for some of them, `named` or told by their size, with shares of labels as colours."""
    mix = labels.mix
    names, counts = _columns(labels, np.vstack([labels.counts, mix.counts]))
    totals = counts.sum(axis=1, keepdims=True)
    # The first row is that of all clients; an empty one sets it apart.
    shares = np.divide(counts, totals, out=np.zeros(counts.shape), where=totals > 0)
    shares = np.insert(shares, 1, np.nan, axis=0)
    whose = ["all clients", "", *(f"client {figure_text(client)}" for client in mix.ids)]
    sizes = [f"{size:,}" for size in mix.sizes.tolist()]
    figure.add_heatmap(
        z=shares,
        x=np.arange(len(names)),
        y=np.arange(len(whose)),
        customdata=np.array([[[one, name] for name in names] for one in whose], dtype=object),
        hovertemplate="%{customdata[0]}: %{z:.1%} %{customdata[1]}<extra></extra>",
        colorscale=[[0, PAPER], [1, SERIES_LIGHT[0]]],
        zmin=0,
        zmax=max(np.nanmax(shares), 0.01),  # without it, plotly does not begin at 0
        colorbar=_scale(figure, place[0], _SCALE_BELOW + pixels_for_names(labels)),
        xaxis="x4",
        yaxis="y4",
    )
    rows = [_client_name(client) for client in mix.ids] if named else sizes
    most = len(rows) if named else _TICKS
    ticks = np.unique(np.linspace(0, len(rows) - 1, min(most, len(rows))).round().astype(int)).tolist()
    add_axes(
        figure,
        4,
        place,
        {
            "title": {"text": "label"},
            "tickvals": list(range(len(names))),
            "ticktext": names,
            "tickangle": -90 if pixels_for_names(labels) else 0,
            "showline": False,
            "ticks": "",
        },
        {
            "autorange": "reversed",
            "showgrid": False,
            "tickvals": [0, *(index + 2 for index in ticks)],
            "ticktext": ["all", *(rows[index] for index in ticks)],
            "title": None if named else {"text": "samples of the client"},
        },
    )


def _client_name(client: str) -> str:
    """The name of a client, as much of it as leaves room for the plot beside it."""
    return figure_text(client if len(client) <= _LONGEST_CLIENT else f"{client[: _LONGEST_CLIENT - 1]}…")


def _scale(figure: go.Figure, bottom: float, pixels_below: int) -> dict[str, Any]:
    layout = figure.layout
    plots = layout.height - layout.margin.t - layout.margin.b
    return {
        "title": {"text": "share of labels", "side": "top", "font": {"size": 13, "color": QUIET_INK}},
        "tickfont": {"size": 12, "color": QUIET_INK},
        "tickangle": 0,
        "nticks": 4,
        "orientation": "h",
        "thickness": 10,
        "len": 0.5,
        "x": 1,
        "xanchor": "right",
        "y": bottom - pixels_below / plots,
        "yanchor": "middle",
        "tickformat": ".0%",
        "outlinewidth": 0,
    }


def _columns(labels: LabelStatistics, counts: NDArray[np.int64]) -> tuple[list[str], NDArray[np.int64]]:
    """Names and counts of the labels to show: all, or the most frequent ones and the rest together."""
    classes = counts.shape[1]
    names = [label_name(labels.names, index) for index in range(classes)]
    if classes <= MAX_LABELS:
        return names, counts
    order = np.argsort(-labels.counts, kind="stable")
    kept, rest = order[: MAX_LABELS - 1], order[MAX_LABELS - 1 :]
    others = counts[:, rest].sum(axis=1, keepdims=True)
    return [*(names[index] for index in kept), "…"], np.hstack([counts[:, kept], others])


def label_name(names: tuple[str, ...] | None, label: int) -> str:
    """A label as text that can be seen."""
    name = names[label] if names else str(label)
    if name in _INVISIBLE:
        return _INVISIBLE[name]
    visible = name if name.isprintable() and name.strip() else repr(name)
    return figure_text(visible if len(visible) <= _LONGEST_NAME else f"{visible[: _LONGEST_NAME - 1]}…")
