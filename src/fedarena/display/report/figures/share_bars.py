"""Shares as bars, a row per method: several kinds of them below each other, each with its number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import plotly.graph_objects as go

from fedarena.display.drawing.marks import shortened
from fedarena.display.drawing.style import QUIET_INK, Style, empty_figure, figure_text
from fedarena.display.report.methods import Method

_ROOM_FOR_BARS: Final = 0.55  # of the width; what is written after the longest bar needs the rest on a phone


class Share(NamedTuple):
    """A bar, and what is written after it."""

    value: float
    text: str


def share_bars_figure(
    title: str, axis: str, found: Sequence[tuple[Method, Mapping[str, Share]]], look: Mapping[str, Style]
) -> go.Figure:
    """The shares of every method by kind, in the method's colour."""
    kinds = list(dict.fromkeys(kind for _, shares in found for kind in shares))
    height = 0.62 / len(kinds)
    figure = empty_figure(title, axis, "", height=rows_height(len(found), 36 + 26 * len(kinds)))
    for row, (method, shares) in enumerate(reversed(found)):
        figure.add_bar(
            x=[share.value for share in shares.values()],
            y=[row + 0.24 - height * (0.36 + kinds.index(kind)) for kind in shares],
            orientation="h",
            width=height * 0.72,
            marker={"color": look[method.label].colour, "line": {"width": 0}},
            text=[share.text for share in shares.values()],
            textposition="outside",
            textangle=0,
            cliponaxis=False,
            textfont={"color": QUIET_INK, "size": 12},
            name=figure_text(method.label),
            legendgroup=figure_text(method.label),
            showlegend=False,
            hoverinfo="skip",
        )
        name_row(figure, method, row + 0.04, look[method.label].colour)
    finish_rows(figure, len(found), max(share.value for _, shares in found for share in shares.values()))
    return figure


def rows_height(rows: int, pixels: int) -> int:
    """The height of a figure with so many rows of so many pixels."""
    return 90 + pixels * rows


def name_row(figure: go.Figure, method: Method, row: float, colour: str) -> None:
    """A method's name above its bar and not beside it: of any length, it leaves the plot its width on a phone."""
    figure.add_annotation(
        text=f"<b>{figure_text(shortened(method.label))}</b>",
        font={"color": colour},
        x=0,
        xref="paper",
        xanchor="left",
        xshift=-6,
        y=row + 0.37,
        showarrow=False,
    )


def finish_rows(figure: go.Figure, rows: int, longest: float) -> None:
    """The axes of rows of bars, the longest of which ends at that share."""
    end = max(longest, 0.01) / _ROOM_FOR_BARS
    figure.update_yaxes(visible=False, range=[-0.5, rows - 0.35])
    figure.update_xaxes(tickformat=".0%" if end > 0.06 else ".1%", showgrid=True, range=[0, end], nticks=6)
    if end > 1:
        figure.update_xaxes(tickvals=[0, 0.25, 0.5, 0.75, 1])  # there is no larger share
    figure.update_layout(margin={"l": 14, "r": 20})  # for the labels of the first and the last tick
