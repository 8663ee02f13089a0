"""How much virtual time rounds take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import plotly.graph_objects as go

from fedarena.display.drawing.marks import add_line, add_points, logarithmic_marks
from fedarena.display.drawing.style import empty_figure, figure_text, styles
from fedarena.display.drawing.units import SECONDS, fitting_unit
from fedarena.display.report.methods import FloatArray, Method, column, has_clock, methods_of
from fedarena.metrics import round_seconds
from fedarena.storage.run_data import RunData

MAX_BLOCKS: Final = 600  # of all lines together: more of them hide each other
_LOGARITHMIC_FROM: Final = 10  # times that the rounds of one method take as long as those of another


def round_time_figure(runs: Sequence[RunData]) -> go.Figure | None:
    """How much virtual time a round takes, mean over seeds; of many rounds the means of blocks; None without clocks."""
    methods = methods_of(runs)
    look = styles(methods)
    curves: list[tuple[Method, FloatArray, FloatArray]] = []
    for method in methods:
        timed = [round_seconds(column(run.rounds, "end_seconds")) for run in method.counted if has_clock(run)]
        if timed:
            common = min(map(len, timed))
            seconds = np.mean([found[:common] for found in timed], axis=0)
            blocks = min(common, MAX_BLOCKS // len(methods))
            edges = np.unique(np.linspace(0, common, max(blocks, 2) + 1).round().astype(np.int64))
            means = np.add.reduceat(seconds, edges[:-1]) / np.diff(edges)
            curves.append((method, (edges[:-1] + 1 + edges[1:]) / 2, means))
    if not curves:
        return None
    factor, unit = fitting_unit(max(float(means.max()) for _, _, means in curves), SECONDS)
    figure = empty_figure("Virtual time per round", "round", f"virtual time ({unit})", height=340)
    for method, rounds, means in curves:
        name = figure_text(method.label)
        hover = f"%{{y:.3~g}} {unit}"
        if len(rounds) == 1:
            marker = {"color": look[method.label].colour, "size": 8}
            add_points(figure, rounds, means / factor, name, marker, hovertemplate=hover)
        add_line(figure, rounds, means / factor, name, look[method.label], hovertemplate=hover)
    typical = [float(np.median(means)) for _, _, means in curves]
    if 0 < min(typical) * _LOGARITHMIC_FROM < max(typical):
        positive = np.concatenate([means[means > 0] for _, _, means in curves]) / factor
        figure.update_yaxes(type="log", **logarithmic_marks(positive))
    else:
        figure.update_yaxes(rangemode="tozero")
    figure.update_layout(hovermode="x unified", hoverdistance=-1)
    return figure
