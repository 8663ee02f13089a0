"""Plots below each other, each with a heading, at sizes given in pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import plotly.graph_objects as go

from fedarena.display.drawing.style import QUIET_INK

TOP: Final = 56  # the title
LINE: Final = 18  # of text
_HEADING_SHIFT: Final = 8
_RIGHT: Final = 28  # half of the last tick's text


@dataclass(frozen=True)
class Panel:
    """A plot: its height, and what lies between it and the one above."""

    name: str
    pixels: int
    above: int


def stack(figure: go.Figure, panels: Sequence[Panel], below: int) -> dict[str, tuple[float, float]]:
    """Makes room for `panels` and so many pixels below them; returns from where to where each goes."""
    plots = sum(panel.above + panel.pixels for panel in panels)
    figure.update_layout(height=TOP + plots + below, margin={"t": TOP, "b": below, "r": _RIGHT})
    places, top = {}, float(plots)
    for panel in panels:
        top -= panel.above
        places[panel.name] = (max(0.0, (top - panel.pixels) / plots), top / plots)
        top -= panel.pixels
    return places


def add_axes(figure: go.Figure, number: int, place: tuple[float, float], x: dict[str, Any], y: dict[str, Any]) -> None:
    """The axes ``x<number>`` and ``y<number>`` in the figure's style."""
    template = figure.layout.template.layout
    suffix = "" if number == 1 else str(number)
    figure.update_layout(
        **{
            f"xaxis{suffix}": {**template.xaxis.to_plotly_json(), "anchor": f"y{suffix}", **x},
            f"yaxis{suffix}": {**template.yaxis.to_plotly_json(), "anchor": f"x{suffix}", "domain": place, **y},
        }
    )


def add_heading(figure: go.Figure, heading: str, details: Sequence[str], y: float) -> None:
    """A bold line above a plot, and quiet ones below it; both may hold plotly's markup."""
    quiet = "<br>".join(details)
    figure.add_annotation(
        text=f"<b>{heading}</b><br><span style='color:{QUIET_INK}'>{quiet}</span>",
        x=0,
        y=y,
        xref="paper",
        yref="paper",
        xanchor="left",
        yanchor="bottom",
        yshift=_HEADING_SHIFT,
        align="left",
        showarrow=False,
    )


def coloured(text: str, colour: str) -> str:
    """Words that name a line by its colour."""
    return f"<span style='color:{colour}'><b>{text}</b></span>"
