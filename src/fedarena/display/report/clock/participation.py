"""Who takes part: how evenly jobs are spread over clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import plotly.graph_objects as go

from fedarena.display.drawing.marks import add_line
from fedarena.display.drawing.style import QUIET_INK, Style, empty_figure, figure_text, styles
from fedarena.display.report.methods import jobs_in, methods_of, training_clients
from fedarena.metrics import gini, lorenz_curve
from fedarena.storage.run_data import RunData

_LORENZ_POINTS: Final = 201


def participation_figure(runs: Sequence[RunData]) -> go.Figure | None:
    """Which share of all jobs fell to which share of the clients (Lorenz curves), means over seeds; None if none."""
    look = styles(methods_of(runs))
    shares = np.linspace(0, 1, _LORENZ_POINTS)
    figure = empty_figure("Participation", "share of clients, the least invited first", "share of jobs", height=400)
    for method in methods_of(runs):
        counts = [
            (np.unique(jobs.index, return_counts=True)[1], clients)
            for run in method.counted
            if (clients := training_clients(run)) is not None and (jobs := jobs_in(run)) is not None
        ]
        if counts:
            curve = np.mean([lorenz_curve(invited, clients, shares) for invited, clients in counts], axis=0)
            mean = np.mean([gini(invited, clients) for invited, clients in counts])
            name = f"{figure_text(method.label)} (Gini {mean:.2f})"
            hover = "%{y:.0%} of the jobs for %{x:.0%} of the clients"
            add_line(figure, shares, curve, name, look[method.label], hovertemplate=hover)
    if not figure.data:
        return None
    equal, ends = Style(QUIET_INK, "dash"), np.array([0.0, 1.0])
    add_line(figure, ends, ends, "all equally often", equal, line={"color": QUIET_INK, "dash": "dash", "width": 1.5})
    figure.update_xaxes(tickformat=".0%", range=[0, 1], dtick=0.25)
    figure.update_yaxes(tickformat=".0%", range=[0, 1.01], dtick=0.25)
    figure.update_layout(margin_r=24)
    return figure
