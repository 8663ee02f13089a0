"""What rounds are like, over all of them and not the evaluated ones alone: a line per method, means over seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import plotly.graph_objects as go

from fedarena.display.drawing.marks import add_line, add_points, evenly, logarithmic_marks, points_per_line
from fedarena.display.drawing.style import empty_figure, figure_text, styles
from fedarena.display.report.methods import FloatArray, Method, column, methods_of
from fedarena.storage.run_data import RunData

Values = Callable[[RunData], FloatArray]  # one for every row of the table of rounds; NaN where there is none

MAX_BLOCKS: Final = 600  # of all lines together: more of them hide each other
_LOGARITHMIC_FROM: Final = 10  # times that one method has as much as another


def by_round_figure(
    runs: Sequence[RunData], values: Values, title: str, label: str, hover: str, grows: bool = False
) -> go.Figure | None:
    """A line per method; None where no run has such values.

    Of many rounds, neighbours are averaged, unless the value `grows` from round to round and is as smooth as it is.
    """
    methods = methods_of(runs)
    found = [(method, *means_by_round(method, values)) for method in methods]
    curves = [curve for curve in found if curve[1].size]
    if not curves:
        return None
    look = styles(methods)
    figure = empty_figure(title, "round", label, height=340)
    typical, positive = [], []
    for method, rounds, means in curves:
        if grows:
            kept = evenly(rounds.size, points_per_line(len(curves)))
            rounds, means = rounds[kept], means[kept]
        else:
            blocks = max(2, MAX_BLOCKS // len(curves))
            rounds, means = in_blocks(rounds, blocks), in_blocks(means, blocks)
        name = figure_text(method.label)
        if len(rounds) == 1:
            marker = {"color": look[method.label].colour, "size": 8}
            add_points(figure, rounds, means, name, marker, hovertemplate=hover)
        add_line(figure, rounds, means, name, look[method.label], hovertemplate=hover)
        typical.append(float(np.median(means)))
        positive.append(means[means > 0])
    if not grows and 0 < min(typical) * _LOGARITHMIC_FROM < max(typical):
        figure.update_yaxes(type="log", **logarithmic_marks(np.concatenate(positive)))
    else:
        figure.update_yaxes(rangemode="tozero")
    figure.update_layout(hovermode="x unified", hoverdistance=-1)
    return figure


def means_by_round(method: Method, values: Values) -> tuple[FloatArray, FloatArray]:
    """The rounds in which a seed that counts has a value, and the means of these seeds."""
    rounds = [np.empty(0), *(column(run.rounds, "round") for run in method.counted)]
    found = [np.empty(0), *(values(run) for run in method.counted)]
    all_rounds, all_values = np.concatenate(rounds), np.concatenate(found)
    known = np.isfinite(all_values)
    numbers, place = np.unique(all_rounds[known], return_inverse=True)
    return numbers, np.bincount(place, all_values[known]) / np.bincount(place)


def in_blocks(values: FloatArray, blocks: int) -> FloatArray:
    """Means of at most so many blocks of neighbours."""
    edges = np.unique(np.linspace(0, values.size, min(values.size, blocks) + 1).round().astype(np.int64))
    means: FloatArray = np.add.reduceat(values, edges[:-1]) / np.diff(edges)
    return means
