"""How frequent labels are: shares of the samples and of the clients that have each, like Fig. 3 of FLAIR."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import plotly.graph_objects as go

from fedarena.data.statistics.label_statistics import LabelStatistics
from fedarena.display.drawing.stack import LINE, add_axes, add_heading, coloured
from fedarena.display.drawing.style import SERIES_LIGHT
from fedarena.display.drawing.units import count
from fedarena.display.federations.labels import CHARACTER_PIXELS, MAX_LABELS, label_name

_AXES: Final = 7
RARE: Final = 0.001  # of the clients; FLAIR's paper counts labels that are rarer


def pixels_for_frequencies(labels: LabelStatistics) -> int:
    """How much room the names of labels need below the plot; none where there are too many to be named."""
    if len(labels.counts) > MAX_LABELS:
        return 0
    return LINE + CHARACTER_PIXELS * max(len(label_name(labels.names, label)) for label in range(len(labels.counts)))


def add_frequencies(figure: go.Figure, labels: LabelStatistics, place: tuple[float, float]) -> None:
    """Labels from the most to the least common one, by samples and by clients, on a logarithmic scale."""
    order = np.argsort(-labels.counts, kind="stable")
    names = [label_name(labels.names, label) for label in order.tolist()]
    few = len(order) <= MAX_LABELS
    ranks = np.arange(1, len(order) + 1)
    lines = (
        ("of the samples", labels.counts[order] / max(labels.samples, 1), SERIES_LIGHT[0]),
        ("of the clients", labels.clients_with[order] / max(labels.clients, 1), SERIES_LIGHT[1]),
    )
    for whose, shares, colour in lines:
        figure.add_scatter(
            x=ranks,
            y=np.where(shares > 0, shares, np.nan),  # which a logarithm has no place for
            mode="lines+markers" if few else "markers",
            line={"color": colour, "width": 2},
            marker={"color": colour, "size": 8 if few else 3},
            customdata=names,
            hovertemplate=f"%{{customdata}}: %{{y:.3~p}} {whose}<extra></extra>",
            showlegend=False,
            xaxis=f"x{_AXES}",
            yaxis=f"y{_AXES}",
        )
    x: dict[str, Any] = {"title": {"text": "label, the most common one first"}, "type": "log", "dtick": 1}
    if few:
        ticks = {"tickvals": ranks.tolist(), "ticktext": names, "tickangle": -90}
        x = {"title": None, "range": [0.5, len(order) + 0.5], "showgrid": False, **ticks}
    y = {"title": {"text": "have the label"}, "type": "log", "tickformat": "~p", "dtick": 1}
    add_axes(figure, _AXES, place, x, y)
    details = [
        " and ".join(coloured(whose, colour) for whose, _, colour in lines) + f", {count(labels.clients, 'client')}"
    ]
    if rare := int((labels.clients_with < RARE * labels.clients).sum()):
        details.append(f"{rare:,} of {count(len(order), 'label')} at fewer than {RARE:.1%} of the clients")
    add_heading(figure, "How frequent labels are", details, place[1])
