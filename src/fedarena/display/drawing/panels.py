"""Several plots in one figure, for pictures that stand alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import plotly.graph_objects as go

from fedarena.display.drawing.style import QUIET_INK, figure_text

GAP: Final = 0.05


def add_panel(figure: go.Figure, axis: str, x: Sequence[float], y: Sequence[float], heading: str) -> None:
    """Axes in the figure's style from place to place, with a heading above them."""
    template = figure.layout.template.layout
    figure.update_layout(
        **{
            f"xaxis{axis}": {**template.xaxis.to_plotly_json(), "domain": list(x), "anchor": f"y{axis}"},
            f"yaxis{axis}": {**template.yaxis.to_plotly_json(), "domain": list(y), "anchor": f"x{axis}"},
        }
    )
    figure.add_annotation(
        text=figure_text(heading),
        x=x[0],
        y=y[1],
        xref="paper",
        yref="paper",
        xanchor="left",
        yanchor="bottom",
        yshift=4,
        showarrow=False,
        font={"color": QUIET_INK},
    )


def places(panels: int, gap: float = GAP) -> Sequence[tuple[float, float]]:
    """From where to where each of so many panels goes, beside each other."""
    width = (1 - gap * (panels - 1)) / panels
    begins = [number * (width + gap) for number in range(panels)]
    return [(begin, min(1.0, begin + width)) for begin in begins]  # a sum may be rounded to more than 1
