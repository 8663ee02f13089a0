"""Few clients one by one: a row for each with its name, a dot for every method."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from fedarena.analysis.leading_metric import leading_metric
from fedarena.display.drawing.marks import shortened
from fedarena.display.drawing.metrics import as_title, hover_value
from fedarena.display.drawing.style import QUIET_INK, empty_figure, figure_text, styles
from fedarena.display.drawing.units import count
from fedarena.display.report.methods import methods_of
from fedarena.display.report.tables.few_clients import named_clients
from fedarena.metrics.info import MetricInfo
from fedarena.storage.run_data import RunData


def named_clients_figure(runs: Sequence[RunData], metric: MetricInfo | None = None) -> go.Figure | None:
    """A metric of every client by name, the worst on top: dots are means over seeds, lines the range of seeds.

    None where clients are too many to be named.
    """
    metric = metric or leading_metric(runs)
    found = named_clients(runs, metric)
    if found is None:
        return None
    look, rows = styles(methods_of(runs)), len(found.clients)
    title, height = f"{as_title(metric)} of every client", 110 + rows * (34 + 9 * len(found.labels))
    figure = empty_figure(figure_text(title), figure_text(metric.label), "", height=height)
    step = 0.6 / len(found.labels)
    for number, label in enumerate(found.labels):
        name, colour = figure_text(label), look[label].colour
        places = [rows - 1 - row - number * step for row in range(rows)]
        known = [
            (place, score)
            for place, client in zip(places, found.clients, strict=True)
            if (score := client.scores[label]) is not None
        ]
        figure.add_scatter(
            x=[x for _, score in known for x in (min(score.values), max(score.values), None)],
            y=[y for place, _ in known for y in (place, place, None)],
            mode="lines",
            line={"color": colour, "width": 2},
            opacity=0.5,
            name=name,
            legendgroup=name,
            showlegend=False,
            hoverinfo="skip",
        )
        figure.add_scatter(
            x=[score.mean for _, score in known],
            y=[place for place, _ in known],
            mode="markers",
            marker={"color": colour, "size": 10},
            line={"color": colour},
            name=name,
            legendgroup=name,
            hovertemplate=hover_value(metric, "x"),
        )
    for row, client in enumerate(found.clients):
        text = f"<b>{figure_text(shortened(client.name))}</b> {count(client.samples, 'sample')}"
        figure.add_annotation(
            text=text, x=0, xref="paper", xanchor="left", y=rows - 0.72 - row, showarrow=False, font_size=12,
            font_color=QUIET_INK,
        )  # fmt: skip
    figure.update_yaxes(visible=False, range=[-0.75, rows - 0.4])
    figure.update_xaxes(showgrid=True)
    return figure
