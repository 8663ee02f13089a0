"""A federation in one picture: how large its clients are, and how their labels differ."""

from __future__ import annotations

from typing import Final

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from fedarena.data.statistics import FederationStatistics, LabelStatistics, SizeStatistics
from fedarena.report.style import PAPER, QUIET_INK, SERIES_LIGHT, empty_figure, figure_text
from fedarena.report.units import count

MAX_LABELS: Final = 30
_TICKS: Final = 6
_INVISIBLE: Final = {" ": "␣", "\n": "↵", "\t": "⇥", "": "(empty)"}
# The sizes take the upper part of the picture, the labels the lower one; the gap holds the axis and a heading.
_SIZES_DOMAIN: Final = (0.71, 0.93)
_LABELS_DOMAIN: Final = (0.0, 0.51)


def federation_figure(statistics: FederationStatistics) -> go.Figure:
    """A histogram of the clients' sizes above the label mixes of clients from the smallest to the largest."""
    title = (
        f"<b>{figure_text(statistics.name)}</b><br>"
        f"{count(statistics.num_clients, 'client')}, {count(statistics.num_samples, 'sample')}"
    )
    figure = empty_figure(title, "", "", height=860)
    _add_sizes(figure, statistics.sizes)
    _add_label_mix(figure, statistics.labels)
    return figure


def _add_sizes(figure: go.Figure, sizes: SizeStatistics) -> None:
    # The bins grow with their distance from zero: drawn equally wide, they read like a logarithmic axis.
    used = np.flatnonzero(sizes.histogram_counts)
    bins = range(int(used[0]), int(used[-1]) + 1) if used.size else range(0)
    lows = [int(sizes.histogram_edges[index]) for index in bins]
    highs = [int(sizes.histogram_edges[index + 1]) - 1 for index in bins]
    bars = go.Bar(
        x=list(bins),
        y=sizes.histogram_counts[list(bins)],
        customdata=[_range(low, high) for low, high in zip(lows, highs, strict=True)],
        marker={"color": SERIES_LIGHT[0]},
        hovertemplate="%{customdata} samples: %{y:,} clients<extra></extra>",
        showlegend=False,
    )
    figure.add_trace(bars)
    every = max(1, len(bins) // _TICKS)
    figure.update_xaxes(
        title_text="samples of the client",
        tickvals=list(bins)[::every],
        ticktext=[f"{low:,}" for low in lows[::every]],
        tickangle=0,
    )
    figure.update_yaxes(title_text="clients", domain=_SIZES_DOMAIN)
    low, high = sizes.percentiles[10], sizes.percentiles[90]
    _add_heading(
        figure,
        "Client sizes",
        f"median {sizes.median:,.0f} samples, largest {sizes.max:,}<br>"
        f"four fifths of the clients have {low:,.0f} to {high:,.0f}",
        _SIZES_DOMAIN[1],
    )


def _add_label_mix(figure: go.Figure, labels: LabelStatistics) -> None:
    mix = labels.mix
    names, counts = _columns(labels, np.vstack([labels.counts, mix.counts]))
    totals = counts.sum(axis=1, keepdims=True)
    # The first row is that of all clients; an empty one sets it apart.
    shares = np.divide(counts, totals, out=np.zeros(counts.shape), where=totals > 0)
    shares = np.insert(shares, 1, np.nan, axis=0)
    whose = ["all clients", "", *(f"client {figure_text(client)}" for client in mix.ids)]
    sizes = [f"{size:,}" for size in mix.sizes.tolist()]
    heat = go.Heatmap(
        z=shares,
        x=np.arange(len(names)),
        y=np.arange(len(whose)),
        customdata=np.array([[[one, name] for name in names] for one in whose], dtype=object),
        hovertemplate="%{customdata[0]}: %{z:.1%} %{customdata[1]}<extra></extra>",
        colorscale=[[0, PAPER], [0.5, "#8FA9E0"], [1, "#132F6B"]],
        zmin=0,
        colorbar={
            "title": {"text": "share of labels", "side": "top", "font": {"size": 13, "color": QUIET_INK}},
            "tickfont": {"size": 12, "color": QUIET_INK},
            "orientation": "h",
            "thickness": 10,
            "len": 0.6,
            "x": 0,
            "xanchor": "left",
            "y": -0.08,
            "yanchor": "top",
            "tickformat": ".0%",
            "outlinewidth": 0,
        },
        xaxis="x2",
        yaxis="y2",
    )
    figure.add_trace(heat)
    ticks = np.unique(np.linspace(0, len(sizes) - 1, min(_TICKS, len(sizes))).round().astype(int)).tolist()
    axis = figure.layout.template.layout
    figure.update_layout(
        xaxis2={
            **axis.xaxis.to_plotly_json(),
            "anchor": "y2",
            "title": {"text": "label"},
            "tickvals": list(range(len(names))),
            "ticktext": names,
            "tickangle": 0 if all(len(name) <= 2 for name in names) else None,  # None: turned where they would overlap
            "showline": False,
            "ticks": "",
        },
        yaxis2={
            **axis.yaxis.to_plotly_json(),
            "anchor": "x2",
            "domain": _LABELS_DOMAIN,
            "autorange": "reversed",
            "showgrid": False,
            "tickvals": [0, *(index + 2 for index in ticks)],
            "ticktext": ["all", *(sizes[index] for index in ticks)],
            "title": {"text": "samples of the client"},
        },
        margin={"t": 96, "b": 90},
    )
    _add_heading(
        figure,
        "Label mixes",
        f"mean distance from a client to all: {labels.mean_distance:.2f}<br>"
        f"by chance alone {labels.mean_distance_by_chance:.2f}, at most 1",
        _LABELS_DOMAIN[1],
    )


def _columns(labels: LabelStatistics, counts: NDArray[np.int64]) -> tuple[list[str], NDArray[np.int64]]:
    """Names and counts of the labels to show: all, or the most frequent ones and the rest together."""
    classes = counts.shape[1]
    names = [_label_name(labels.names[index] if labels.names else str(index)) for index in range(classes)]
    if classes <= MAX_LABELS:
        return names, counts
    order = np.argsort(-labels.counts, kind="stable")
    kept, rest = order[: MAX_LABELS - 1], order[MAX_LABELS - 1 :]
    others = counts[:, rest].sum(axis=1, keepdims=True)
    return [*(names[index] for index in kept), "…"], np.hstack([counts[:, kept], others])


def _label_name(name: str) -> str:
    """A label as text that can be seen."""
    if name in _INVISIBLE:
        return _INVISIBLE[name]
    return figure_text(name if name.isprintable() and name.strip() else repr(name))


def _range(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def _add_heading(figure: go.Figure, heading: str, detail: str, y: float) -> None:
    figure.add_annotation(
        text=f"<b>{heading}</b><br><span style='color:{QUIET_INK}'>{detail}</span>",
        x=0,
        y=y,
        xref="paper",
        yref="paper",
        xanchor="left",
        yanchor="bottom",
        yshift=8,
        align="left",
        showarrow=False,
    )
