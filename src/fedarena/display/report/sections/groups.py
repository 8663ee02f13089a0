"""Groups of clients: how those of one play, one subreddit, one kind fare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from fedarena.analysis.leading_metric import leading_metrics
from fedarena.display.drawing.html import Html, join, tag
from fedarena.display.drawing.metrics import as_title, score_text
from fedarena.display.drawing.units import ABSENT, count
from fedarena.display.report.figures.strata import (
    Rows,
    largest_strata,
    strata_by_method,
    strata_figure,
    stratum_text,
)
from fedarena.display.report.sections.elements import Plot, swatches, table
from fedarena.metrics.info import MetricInfo
from fedarena.storage.run_data import RunData

_FEWEST_CLIENTS: Final = 2  # of a group on average; where everybody is alone, groups tell nothing new


def attributes_to_show(runs: Sequence[RunData]) -> list[str]:
    """The attributes that put the evaluated clients into groups, of which there are several."""
    found: dict[str, None] = {}
    for known in (run.attributes for run in runs if run.attributes is not None):
        for name in known.column_names:
            if name != "client" and 1 < len(known[name].unique()) <= len(known) / _FEWEST_CLIENTS:
                found[name] = None
    return list(found)


def groups_of_clients(runs: Sequence[RunData], plot: Plot) -> Html:
    """A picture and a table for every attribute, in every metric that runs lead with."""
    shown: list[Html] = []
    for metric in leading_metrics(runs):
        for attribute in attributes_to_show(runs):
            found = strata_by_method(runs, attribute, metric)
            if values := largest_strata(found):
                caption = (
                    f"Large dots: {metric.label} over all samples of the clients with that {attribute}; small: mean "
                    "over these clients; lines: 10th to 90th percentile over them. The last evaluation of each run, "
                    "means over seeds."
                )
                shown.append(plot(strata_figure(runs, attribute, metric), caption))
                shown.append(_table(runs, attribute, metric, found, values))
    return join(shown)


def _table(
    runs: Sequence[RunData],
    attribute: str,
    metric: MetricInfo,
    found: Mapping[str, Sequence[Rows]],
    values: Sequence[Any],
) -> Html:
    marks = swatches(runs)
    heads = [attribute, "clients", "samples", *(marks[label] for label in found)]
    body = []
    for value in values:
        first = next(rows[value] for runs_of in found.values() for rows in runs_of if value in rows)
        cells = [_cell([rows[value] for rows in runs_of if value in rows], metric) for runs_of in found.values()]
        body.append([stratum_text(value), f"{first['clients']:,}", f"{first['samples']:,}", *cells])
    known = {value for runs_of in found.values() for rows in runs_of for value in rows} - {None}
    note = f"{as_title(metric)} over samples."
    if len(known) > len(values):
        note += f" The {count(len(values), 'group')} with most samples of {len(known):,} or more."
    return join([table(heads, body, "strata"), tag("p", note, class_="note")])


def _cell(rows: Sequence[Mapping[str, Any]], metric: MetricInfo) -> str:
    scores = [row[metric.name] for row in rows if row.get(metric.name) is not None]
    if not scores:
        return ABSENT
    return score_text(metric, float(np.mean(scores)), float(np.std(scores, ddof=1)) if len(scores) > 1 else None)
