"""How a metric is spread over clients, and how it depends on their size."""

from __future__ import annotations

from collections.abc import Sequence

from fedarena.analysis.leading_metric import leading_metrics
from fedarena.display.drawing.html import Html, join
from fedarena.display.report.figures.clients import client_size_figure, client_spread_figure
from fedarena.display.report.sections.elements import Plot
from fedarena.storage.run_data import RunData

_SPREAD = (
    "Box: the middle half of the clients with their median; dashed line: their mean; whiskers: "
    "10th to 90th percentile; dots: clients. Percentiles are averaged over seeds."
)
_SIZE = (
    "Faint dots are clients. A point of a line averages clients of similar size; "
    "those with few samples, at the left, hardly show in an average over samples."
)


def clients(runs: Sequence[RunData], plot: Plot) -> Html:
    """Both figures for every metric that runs lead with."""
    return join(
        shown
        for metric in leading_metrics(runs)
        for shown in (
            plot(client_spread_figure(runs, metric), _SPREAD),
            plot(client_size_figure(runs, metric), _SIZE),
        )
    )
