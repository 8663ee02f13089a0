"""The part of the report about virtual time: how long things take, what fails, who takes part, what the phones are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import plotly.graph_objects as go

from fedarena.report import clock_figures, figures
from fedarena.report.clock_table import clock_columns, clock_rows
from fedarena.report.fleet import compute_column, network_columns, percent, spread_text
from fedarena.report.html import Html, join, tag
from fedarena.report.methods import Method, has_clock, methods_of
from fedarena.report.phones import fleets_of, speeds_figure, week_figure
from fedarena.report.sections import Plot, explanations, swatches, table
from fedarena.report.timeline import spans_rounds, timeline_figure
from fedarena.report.units import BITS_PER_SECOND
from fedarena.rundata import RunData

MAX_TIMELINES: Final = 3
MAX_FLEETS: Final = 2


def time_and_phones(runs: Sequence[RunData], plot: Plot) -> Html:
    """Everything about the runs that have a clock."""
    timed = [method for method in methods_of(runs) if any(map(has_clock, method.counted))]
    several = any(len(method.runs) > 1 for method in timed)
    parts = [
        _table(runs),
        _if_any(
            plot,
            figures.hours_figure(runs),
            "The same accuracy, over the time that the phones and the server would have needed. "
            + ("Thick lines are means over seeds, round by round, of accuracy and of time." if several else ""),
        ),
        _if_any(
            plot,
            clock_figures.round_time_figure(runs),
            "From the end of one round to the end of the next. Where they are many, neighbours are averaged.",
        ),
        _pair(
            _if_any(
                plot,
                clock_figures.failures_figure(runs),
                "Jobs that were not used, by what became of them; those of all seeds together.",
            ),
            _if_any(
                plot,
                clock_figures.wasted_figure(runs),
                "What went into jobs that were not used, as a share of what went into all jobs.",
            ),
        ),
        _pair(
            _if_any(
                plot,
                clock_figures.participation_figure(runs),
                "The closer to the dashed line, the more evenly clients were invited; the Gini coefficient is 0 on it "
                "and near 1 if a few do everything. Clients that were never invited are the flat part.",
            ),
            _if_any(
                plot,
                clock_figures.staleness_figure(runs),
                "How many versions the server had made while a client was at work, for the updates that were used. "
                "The last point holds all that were older, too.",
            ),
        ),
        *(_timeline(run, plot) for run in _typical_runs(timed)),
        *(_phones(fleet, its_runs, runs, plot) for fleet, its_runs in islice(fleets_of(runs), MAX_FLEETS)),
    ]
    return join(parts)


def _table(runs: Sequence[RunData]) -> Html:
    rows, marks = clock_rows(methods_of(runs)), swatches(runs)
    if not rows:
        return Html("")
    columns = clock_columns(rows)
    heads = ["method", *(tag("abbr", column.title, title=column.explanation) for column in columns)]
    body = [[marks[row.label], *(column.text(column.value(row)) for column in columns)] for row in rows]
    explained = explanations({column.title: column.explanation for column in columns})
    return tag("div", table(heads, body, "clock"), explained, class_="above")


def _timeline(run: RunData, plot: Plot) -> Html:
    figure = timeline_figure(run)
    which = (
        "Clients that were at work in the middle of a round of median length. Dotted lines: a round ends. "
        if spans_rounds(run)
        else "Clients of a round of median length, from the first whose job ended to the last. "
    )
    return _if_any(plot, figure, f"{which}A cross: the job ended there without being used.")


def _phones(fleet: Mapping[str, Any], its_runs: Sequence[RunData], runs: Sequence[RunData], plot: Plot) -> Html:
    shares, speeds = fleet["shares"], fleet["speeds"]
    compute, what, scale = compute_column(speeds)
    transfers = [f"{name}: {spread_text(found, BITS_PER_SECOND)}" for name, found in network_columns(speeds).items()]
    return _pair(
        plot(
            week_figure(fleet, its_runs, runs),
            f"A client is available {percent(shares['mean'])} of the time on average. Days begin at midnight. "
            "The bars below show when the first run of each method took place.",
        ),
        _if_any(
            plot,
            speeds_figure(fleet),
            f"Each dot is a client. Training, {what}: {spread_text(compute, scale)}; {'; '.join(transfers)}.",
        ),
    )


def _typical_runs(methods: Sequence[Method]) -> Iterator[RunData]:
    """A run of every protocol, and not of more than a few."""
    by_protocol: dict[str, RunData] = {}
    for method in methods:
        for run in method.counted:
            if has_clock(run):
                by_protocol.setdefault(str((run.config.get("protocol") or {}).get("name")), run)
    yield from list(by_protocol.values())[:MAX_TIMELINES]


def _if_any(plot: Plot, figure: go.Figure | None, caption: str) -> Html:
    return Html("") if figure is None else plot(figure, caption.strip())


def _pair(one: Html, other: Html) -> Html:
    """Side by side where there is room; alone where the other is not there."""
    return tag("div", one, other, class_="pair") if one and other else join([one, other])
