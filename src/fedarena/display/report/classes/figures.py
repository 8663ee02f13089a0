"""Scores of classes against how frequent these are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from fedarena.display.drawing.marks import MAX_FIGURE_POINTS, add_line, logarithmic_marks
from fedarena.display.drawing.metrics import as_title, hover_value
from fedarena.display.drawing.style import Style, empty_figure, figure_text, styles
from fedarena.display.report.classes.table import ClassTable, class_tables
from fedarena.display.report.methods import methods_of
from fedarena.metrics.class_strata import STRATA
from fedarena.storage.run_data import RunData

Of = Literal["samples", "clients"]

_FEWEST_IN_GROUP: Final = 5  # classes that a point of a line averages, if there are so many
_MOST_GROUPS: Final = 10
_THIRDS: Final = {"head": "frequent classes", "middle": "middling ones", "tail": "rare ones"}


def class_frequency_figure(runs: Sequence[RunData], metric: str | None = None, of: Of = "samples") -> go.Figure | None:
    """A score of classes against the share of the samples (or of the clients) that have them; None without any."""
    found = class_tables(runs, metric)
    return frequency_figure(runs, found[0], of) if found else None


def class_loss_figure(runs: Sequence[RunData], metric: str | None = None) -> go.Figure | None:
    """What is left of the best method's score, by thirds of the classes; None for fewer than two methods."""
    found = class_tables(runs, metric)
    return loss_figure(runs, found[0]) if found else None


def frequency_figure(runs: Sequence[RunData], table: ClassTable, of: Of) -> go.Figure:
    """The same of a table."""
    have, everybody = (table.samples, table.all_samples) if of == "samples" else (table.clients, table.all_clients)
    share = 100 * np.array(have, dtype=np.float64) / max(everybody, 1)
    known = share > 0  # no metric is defined for the others but precision, and a logarithm has no place for them
    metric, hover = table.metric, hover_value(table.metric)
    figure = empty_figure(
        figure_text(f"{as_title(metric)} by how many {of} have a class"),
        f"evaluated {of} that have the class (&#37;)",
        figure_text(metric.label),
    )
    dots = len(table.names) * len(table.methods) <= MAX_FIGURE_POINTS
    for label, style in _looks(runs, table).items():
        values = table.methods[label].means
        drawn = np.flatnonzero(known & np.isfinite(values))
        name = figure_text(label)
        if dots:
            figure.add_trace(
                go.Scatter(
                    x=share[drawn], y=values[drawn], mode="markers", name=name, legendgroup=name, showlegend=False,
                    marker={"color": style.colour, "size": 6, "opacity": 0.45},
                    text=[figure_text(table.names[place]) for place in drawn],
                    hovertemplate=f"%{{text}}: {hover}",
                )
            )  # fmt: skip
        groups = _groups(drawn[np.argsort(-share[drawn], kind="stable")])
        x = np.array([np.exp(np.log(share[group]).mean()) for group in groups])
        y = np.array([values[group].mean() for group in groups])
        add_line(figure, x, y, name, style, mode="lines+markers", hovertemplate=f"{hover}, mean of similar classes")
    if known.any():
        figure.update_xaxes(type="log", **logarithmic_marks(share[known]))
    return figure


def loss_figure(runs: Sequence[RunData], table: ClassTable) -> go.Figure | None:
    """The same of a table."""
    best = table.best
    if best is None or len(table.methods) < 2:
        return None
    figure = empty_figure(
        figure_text(f"{as_title(table.metric)} that is left of {best}’s, by thirds of the classes"),
        "",
        "share of the best method’s (&#37;)",
    )
    x = np.arange(len(STRATA), dtype=np.float64)
    for label, style in _looks(runs, table).items():
        shares = [table.kept_share(label, stratum) for stratum in STRATA]
        y = np.array([np.nan if share is None else 100 * share for share in shares])
        add_line(figure, x, y, figure_text(label), style, mode="lines+markers", hovertemplate="%{y:.1f} &#37;")
    figure.update_xaxes(tickvals=x, ticktext=list(_THIRDS.values()), range=[-0.25, len(x) - 0.75])
    figure.update_yaxes(rangemode="tozero")
    return figure


def _looks(runs: Sequence[RunData], table: ClassTable) -> dict[str, Style]:
    """A style for every line: personal models have the colour of their method, dashed."""
    look = styles(methods_of(runs))
    return {
        label: Style(look[scores.method].colour, "dash" if scores.is_personal else look[scores.method].dash)
        for label, scores in table.methods.items()
    }


def _groups(classes: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Neighbours in frequency, whose mean is a point of a line."""
    number = min(_MOST_GROUPS, max(len(STRATA), len(classes) // _FEWEST_IN_GROUP))
    return [group for group in np.array_split(classes, number) if len(group)]
