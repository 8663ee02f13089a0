"""The critical-difference picture: mean ranks of methods over clients, and which of them no test tells apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import plotly.graph_objects as go

from fedarena.analysis.ranks import Ranking
from fedarena.display.drawing.marks import shortened
from fedarena.display.drawing.style import INK, QUIET_INK, Style, empty_figure, figure_text

_ROW: Final = 46  # pixels of a method
_BAR: Final = 16  # pixels of a group


def ranks_figure(ranking: Ranking, look: Mapping[str, Style]) -> go.Figure:
    """Mean ranks, a row per method with the best on top; bars below connect methods that are not told apart."""
    methods, bars = len(ranking.labels), len(ranking.cliques)
    figure = empty_figure(
        "Mean rank over clients", "mean rank, 1 is best", "", height=150 + _ROW * methods + _BAR * (bars + 2)
    )
    rank = dict(zip(ranking.labels, ranking.mean_ranks, strict=True))
    for row, label in enumerate(ranking.labels):
        y, colour = methods - row, look[label].colour
        figure.add_scatter(
            x=[rank[label]],
            y=[y],
            mode="markers+text",
            marker={"color": colour, "size": 11},
            text=[f" {rank[label]:.2f} "],
            textposition="middle left" if rank[label] > (1 + methods) / 2 else "middle right",
            textfont={"color": colour},
            name=figure_text(label),
            legendgroup=figure_text(label),
            line={"color": colour},
            showlegend=False,
            hovertemplate="mean rank %{x:.2f}",
        )
        # Above its dot at the left, a name of any length has room on a phone.
        text, font = f"<b>{figure_text(shortened(label))}</b>", {"color": colour}
        figure.add_annotation(text=text, font=font, x=0, xref="paper", xanchor="left", y=y + 0.42, showarrow=False)
    step = _BAR / _ROW
    for number, clique in enumerate(ranking.cliques):
        ends = [min(rank[label] for label in clique), max(rank[label] for label in clique)]
        _add_bar(figure, ends, 0.4 - number * step, INK, 5, "not told apart: " + ", ".join(map(figure_text, clique)))
    below = 0.4 - (bars + 0.5) * step
    _add_bar(figure, [1, 1 + ranking.critical_difference], below, QUIET_INK, 2, "critical difference")
    figure.add_annotation(
        text=f"critical difference {ranking.critical_difference:.2f}",
        font={"color": QUIET_INK, "size": 12},
        x=1 + ranking.critical_difference,
        y=below,
        xanchor="left",
        xshift=8,
        showarrow=False,
    )
    figure.update_yaxes(visible=False, range=[below - 0.6, methods + 0.8])
    figure.update_xaxes(range=[0.9, methods + 0.1], tickmode="linear", tick0=1, dtick=1, showgrid=True)
    figure.update_layout(showlegend=False)
    return figure


def _add_bar(figure: go.Figure, ends: list[float], y: float, colour: str, width: int, text: str) -> None:
    figure.add_scatter(
        x=ends,
        y=[y, y],
        mode="lines",
        line={"color": colour, "width": width},
        name=text,
        legendgroup=text,
        showlegend=False,
        hovertemplate=f"{text}<extra></extra>",
    )
