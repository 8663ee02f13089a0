"""How a metric is spread over clients, and how it depends on their size; few clients by their names."""

from __future__ import annotations

from collections.abc import Sequence

from fedarena.analysis.leading_metric import leading_metrics
from fedarena.display.drawing.html import Html, join, tag
from fedarena.display.drawing.metrics import as_title, score_text
from fedarena.display.drawing.units import ABSENT
from fedarena.display.report.figures.clients import client_size_figure, client_spread_figure
from fedarena.display.report.figures.named_clients import named_clients_figure
from fedarena.display.report.sections.elements import Plot, if_any, swatches, table
from fedarena.display.report.tables.few_clients import NamedClients, named_clients
from fedarena.display.report.tables.final_row import Spread
from fedarena.metrics.info import MetricInfo
from fedarena.storage.run_data import RunData

_SPREAD = (
    "Box: the middle half of the clients with their median; dashed line: their mean; whiskers: "
    "10th to 90th percentile; dots: clients. Percentiles are averaged over seeds."
)
_SIZE = (
    "Faint dots are clients. A point of a line averages clients of similar size; "
    "those with few samples, at the left, hardly show in an average over samples."
)
_NAMED = "A dot is the mean over seeds, a line their range. The client that fares worst on average is on top."


def clients(runs: Sequence[RunData], plot: Plot) -> Html:
    """For every metric that runs lead with, few clients by their names; of many, how they are spread."""
    return join(shown for metric in leading_metrics(runs) for shown in _of_metric(runs, metric, plot))


def _of_metric(runs: Sequence[RunData], metric: MetricInfo, plot: Plot) -> list[Html]:
    found = named_clients(runs, metric)
    if found is not None:
        return _by_name(runs, metric, found, plot)
    return [plot(client_spread_figure(runs, metric), _SPREAD), plot(client_size_figure(runs, metric), _SIZE)]


def _by_name(runs: Sequence[RunData], metric: MetricInfo, found: NamedClients, plot: Plot) -> list[Html]:
    marks = swatches(runs)
    heads = ["client", "samples", *(marks[label] for label in found.labels)]
    body: list[list[str]] = [
        [client.name, f"{client.samples:,}", *(_score(metric, client.scores[label]) for label in found.labels)]
        for client in found.clients
    ]
    worst = [found.worst(label) for label in found.labels]
    body.append(["worst client", "", *(ABSENT if client is None else tag("strong", client.name) for client in worst)])
    shown = table(heads, body, "named")
    figure = if_any(plot, named_clients_figure(runs, metric), _NAMED)
    return [figure, shown, tag("p", f"{as_title(metric)} of every client, the worst on average first.", class_="note")]


def _score(metric: MetricInfo, score: Spread | None) -> str:
    return ABSENT if score is None else score_text(metric, score.mean, score.std)
