"""The part of a report about groups of clients: how those of one play, one subreddit, one kind fare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go

from fedarena.display.drawing.html import Html, join, tag
from fedarena.display.drawing.marks import shortened
from fedarena.display.drawing.style import QUIET_INK, empty_figure, figure_text, styles
from fedarena.display.drawing.units import ABSENT, count, spread
from fedarena.display.report.methods import Method, methods_of
from fedarena.display.report.sections import swatches, table
from fedarena.runs.summary import strata
from fedarena.storage.run_data import RunData

Plot = Callable[[go.Figure, str], Html]
Rows = dict[Any, dict[str, Any]]  # by value of the attribute

MAX_SHOWN: Final = 20
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
    """A picture and a table for every attribute."""
    parts: list[Html] = []
    for attribute in attributes_to_show(runs):
        found = _by_method(runs, attribute)
        values = _largest(found)
        caption = (
            f"Large dots: accuracy over all samples of the clients with that {attribute}; small: mean over these "
            "clients; lines: 10th to 90th percentile over them. The last evaluation of each run, means over seeds."
        )
        parts += [plot(strata_figure(runs, attribute), caption), _table(runs, attribute, found, values)]
    return join(parts)


def strata_figure(runs: Sequence[RunData], attribute: str) -> go.Figure:
    """Accuracy by the values of an attribute, those with most samples first: a row per value, a dot per method."""
    methods, found = methods_of(runs), _by_method(runs, attribute)
    look, values = styles(methods), _largest(found)
    height = 110 + len(values) * (34 + 9 * len(methods))
    figure = empty_figure(f"Accuracy by {figure_text(attribute)}", "accuracy", "", height=height)
    step = 0.6 / len(methods)
    for number, method in enumerate(methods):
        rows = [_mean(found[method.label], value) for value in values]
        shown = [(place, row) for place, row in enumerate(rows) if row is not None]
        y = np.array([len(values) - 1 - place - number * step for place, _ in shown])
        colour, name = look[method.label].colour, figure_text(method.label)
        lines_x = [x for _, row in shown for x in (row["accuracy_p10"], row["accuracy_p90"], None)]
        lines_y = [place for height in y for place in (height, height, None)]
        for trace in (
            go.Scatter(x=lines_x, y=lines_y, mode="lines", line={"color": colour, "width": 2}, opacity=0.5),
            _dots([row["accuracy_by_client"] for _, row in shown], y, colour, 5, "mean over clients"),
            _dots([row["accuracy"] for _, row in shown], y, colour, 11, "over samples"),
        ):
            largest = trace.marker.size == 11
            figure.add_trace(trace.update(name=name, legendgroup=name, showlegend=largest, line_color=colour))
    for place, value in enumerate(values):
        text = figure_text(shortened(_text(value)))
        figure.add_annotation(
            text=text, x=0, xref="paper", xanchor="left", y=len(values) - 0.72 - place, showarrow=False, font_size=12,
            font_color=QUIET_INK,
        )  # fmt: skip
    figure.update_yaxes(visible=False, range=[-0.75, len(values) - 0.4])
    figure.update_xaxes(showgrid=True)
    return figure


def _dots(x: list[float], y: Any, colour: str, size: int, what: str) -> go.Scatter:
    marker = {"color": colour, "size": size}
    return go.Scatter(x=x, y=y, mode="markers", marker=marker, hovertemplate=f"%{{x:.3f}} {what}")


def _by_method(runs: Sequence[RunData], attribute: str) -> dict[str, list[Rows]]:
    """For every method the strata of each of its runs that count."""
    return {method.label: _rows(method, attribute) for method in methods_of(runs)}


def _rows(method: Method, attribute: str) -> list[Rows]:
    found = []
    for run in method.counted:
        if run.attributes is not None and attribute in run.attributes.column_names:
            rows = strata(run.clients, run.attributes.select(["client", attribute]))
            found.append({row["value"]: row for row in rows.get(attribute, [])})
    return found


def _largest(found: dict[str, list[Rows]]) -> list[Any]:
    """The values with most samples; the rest of them, which is no value, is not shown."""
    sizes: dict[Any, int] = {}
    for runs in found.values():
        for rows in runs:
            for value, row in rows.items():
                if value is not None:
                    sizes[value] = max(sizes.get(value, 0), row["samples"])
    return sorted(sizes, key=lambda value: (-sizes[value], str(value)))[:MAX_SHOWN]


def _mean(runs: list[Rows], value: Any) -> dict[str, float] | None:
    """Means over seeds of the scores of one value."""
    rows = [rows[value] for rows in runs if "accuracy" in rows.get(value, {})]
    names = ("accuracy", "accuracy_by_client", "accuracy_p10", "accuracy_p90")
    return {name: float(np.mean([row[name] for row in rows])) for name in names} if rows else None


def _table(runs: Sequence[RunData], attribute: str, found: dict[str, list[Rows]], values: list[Any]) -> Html:
    marks = swatches(runs)
    heads = [attribute, "clients", "samples", *(marks[label] for label in found)]
    body = []
    for value in values:
        first = next(rows[value] for runs_of in found.values() for rows in runs_of if value in rows)
        cells = [_cell([rows[value] for rows in runs_of if value in rows]) for runs_of in found.values()]
        body.append([_text(value), f"{first['clients']:,}", f"{first['samples']:,}", *cells])
    known = {value for runs_of in found.values() for rows in runs_of for value in rows} - {None}
    note = "Accuracy over samples."
    if len(known) > len(values):
        note += f" The {count(len(values), 'group')} with most samples of {len(known):,} or more."
    return join([table(heads, body, "strata"), tag("p", note, class_="note")])


def _cell(rows: list[dict[str, Any]]) -> str:
    scores = [row["accuracy"] for row in rows if "accuracy" in row]
    if not scores:
        return ABSENT
    return spread(float(np.mean(scores)), float(np.std(scores, ddof=1)) if len(scores) > 1 else None)


def _text(value: Any) -> str:
    return str(value) if value != "" else "(none)"
