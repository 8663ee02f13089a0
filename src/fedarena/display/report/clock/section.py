"""The section about virtual time: how long things take, what fails, who takes part, what the devices are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import plotly.graph_objects as go

from fedarena.analysis.leading_metric import leading_metrics
from fedarena.display.drawing.html import Html, join, tag
from fedarena.display.drawing.units import BITS_PER_SECOND, count, listing
from fedarena.display.fleets.picture import compute_columns, network_columns, percent, spread_text
from fedarena.display.report.clock.devices import fleets_of, speeds_figure, week_figure
from fedarena.display.report.clock.failures import failures_figure, wasted_figure
from fedarena.display.report.clock.participation import participation_figure
from fedarena.display.report.clock.round_time import round_time_figure
from fedarena.display.report.clock.staleness import staleness_figure
from fedarena.display.report.clock.table import clock_columns, clock_rows
from fedarena.display.report.clock.timeline import spans_rounds, timeline_figure
from fedarena.display.report.figures.curves import hours_figure
from fedarena.display.report.methods import Method, has_clock, methods_of
from fedarena.display.report.sections.elements import Plot, explanations, if_any, in_pairs, swatches, table
from fedarena.storage.run_data import RunData

MAX_TIMELINES: Final = 3
MAX_FLEETS: Final = 2


def time_and_devices(runs: Sequence[RunData], plot: Plot) -> Html:
    """Everything about the runs that have a clock."""
    timed = [method for method in methods_of(runs) if any(map(has_clock, method.counted))]
    return join(
        [
            _table(runs),
            *_over_hours(runs, any(len(method.runs) > 1 for method in timed), plot),
            if_any(
                plot,
                round_time_figure(runs),
                "From the end of one round to the end of the next. Where they are many, neighbours are averaged.",
            ),
            in_pairs(
                [
                    if_any(
                        plot,
                        failures_figure(runs),
                        "Jobs that were not used, by what became of them; those of all seeds together.",
                    ),
                    if_any(
                        plot,
                        wasted_figure(runs),
                        "What went into jobs that were not used, as a share of what went into all jobs.",
                    ),
                ]
            ),
            in_pairs(
                [
                    if_any(
                        plot,
                        participation_figure(runs),
                        "The closer to the dashed line, the more evenly clients were invited; the Gini coefficient is "
                        "0 on it and near 1 if a few do everything. Clients that were never invited are the flat part.",
                    ),
                    if_any(
                        plot,
                        staleness_figure(runs),
                        "How many versions the server had made while a client was at work, for the updates that were "
                        "used. The last point holds all that were older, too.",
                    ),
                ]
            ),
            *_timelines(timed, plot),
            *_fleets(runs, plot),
        ]
    )


def _over_hours(runs: Sequence[RunData], several_seeds: bool, plot: Plot) -> Iterator[Html]:
    for metric in leading_metrics(runs):
        caption = f"The same {metric.label}, over the time that the phones and the server would have needed. "
        if several_seeds:
            caption += f"Thick lines are means over seeds, round by round, of {metric.label} and of time."
        yield if_any(plot, hours_figure(runs, metric), caption)


def _table(runs: Sequence[RunData]) -> Html:
    rows, marks = clock_rows(methods_of(runs)), swatches(runs)
    if not rows:
        return Html("")
    columns = clock_columns(rows)
    heads = ["method", *(tag("abbr", column.title, title=column.explanation) for column in columns)]
    body = [[marks[row.label], *(column.text(column.value(row)) for column in columns)] for row in rows]
    explained = explanations({column.title: column.explanation for column in columns})
    return tag("div", table(heads, body, "clock"), explained, class_="above")


def _timelines(methods: Sequence[Method], plot: Plot) -> Iterator[Html]:
    """A picture of every protocol, and not of more than a few; the last caption says which have none."""
    drawn: dict[str, tuple[RunData, go.Figure]] = {}
    tried: dict[str, None] = {}
    for run in (run for method in methods for run in method.counted if has_clock(run)):
        protocol = str((run.config.get("protocol") or {}).get("name"))
        tried[protocol] = None
        if protocol not in drawn and len(drawn) < MAX_TIMELINES and (figure := timeline_figure(run)) is not None:
            drawn[protocol] = run, figure
    left_out = [protocol for protocol in tried if protocol not in drawn]
    for number, (run, figure) in enumerate(drawn.values(), start=1):
        which = (
            "Clients that were at work in the middle of a round of median length. Dotted lines: a round ends. "
            if spans_rounds(run)
            else "Clients of a round of median length, from the first whose job ended to the last. "
        )
        rest = _not_shown("protocol", left_out) if number == len(drawn) else ""
        yield plot(figure, f"{which}A cross: the job ended there without being used.{rest}")


def _fleets(runs: Sequence[RunData], plot: Plot) -> Iterator[Html]:
    """Pictures of every fleet, and not of more than a few; the last caption says which have none."""
    fleets = list(fleets_of(runs))
    shown = fleets[:MAX_FLEETS]
    left_out = [str(fleet["name"]) for fleet, _ in fleets[MAX_FLEETS:]]
    for number, (fleet, its_runs) in enumerate(shown, start=1):
        yield _devices(fleet, its_runs, runs, plot, _not_shown("fleet", left_out) if number == len(shown) else "")


def _not_shown(kind: str, names: Sequence[str]) -> str:
    """The end of a caption where there is more than is shown."""
    return f" Not shown: {count(len(names), f'more {kind}')} ({listing(list(dict.fromkeys(names)))})." if names else ""


def _devices(
    fleet: Mapping[str, Any], its_runs: Sequence[RunData], runs: Sequence[RunData], plot: Plot, rest: str
) -> Html:
    shares, speeds, weeks = fleet["shares"], fleet["speeds"], fleet["week"].get("weeks", 1)
    training = [f"{column.title}: {spread_text(column.values, column.scale)}" for column in compute_columns(speeds)]
    transfers = [f"{name}: {spread_text(found, BITS_PER_SECOND)}" for name, found in network_columns(speeds).items()]
    dots = "Each dot is a client" + (", of the first kind alone" if len(training) > 1 else "")
    return in_pairs(
        [
            plot(
                week_figure(fleet, its_runs, runs),
                f"A client is available {percent(shares['mean'])} of the time on average. Days begin at midnight"
                + (f"; the curve is the mean of {count(weeks, 'week')}. " if weeks > 1 else ". ")
                + f"The bars below show when the first run of each method took place.{rest}",
            ),
            if_any(plot, speeds_figure(fleet), f"{dots}. Training, {'; '.join([*training, *transfers])}."),
        ]
    )
