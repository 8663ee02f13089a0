"""How fast runs were executed, in real time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from fedarena.display.drawing.marks import add_line, evenly, points_per_line
from fedarena.display.drawing.style import empty_figure, figure_text, styles
from fedarena.display.report.methods import column, methods_of
from fedarena.storage.run_data import RunData


def speed_figure(runs: Sequence[RunData]) -> go.Figure:
    """Clients trained per second, round by round, mean over the seeds that count."""
    figure = empty_figure("Clients trained per second of real time", "round", "clients per real second", height=340)
    methods = methods_of(runs)
    for method in methods:
        rates: dict[float, list[float]] = {}
        for run in method.counted:
            pairs = zip(column(run.timings, "round"), column(run.timings, "clients_per_second"), strict=True)
            for round_number, rate in pairs:
                if rate > 0:
                    rates.setdefault(round_number, []).append(rate)
        rounds = np.array(sorted(rates))
        means = np.array([np.mean(rates[round_number]) for round_number in rounds])
        kept = evenly(rounds.size, points_per_line(len(methods)))
        name = figure_text(method.label)
        add_line(figure, rounds[kept], means[kept], name, styles(methods)[method.label])
    figure.update_yaxes(rangemode="tozero")
    figure.update_layout(hovermode="x unified", hoverdistance=-1)
    return figure
