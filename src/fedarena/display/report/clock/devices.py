"""The devices of a run, from its ``fleet.json``: when clients are available, and how fast they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go

from fedarena.display.drawing.marks import add_line
from fedarena.display.drawing.style import INK, Style, empty_figure, figure_text, styles
from fedarena.display.drawing.units import SECONDS, quantity
from fedarena.display.fleets.picture import DAY_HOURS, clock_text, draw_speeds, draw_week
from fedarena.display.report.methods import column, has_clock, methods_of
from fedarena.storage.run_data import RunData

WEEK_HOURS: Final = 7 * DAY_HOURS
_FEWEST_DAYS: Final = 2
_MOST_NAMED_DAYS: Final = 4  # of more, the axis has the numbers alone, to fit a phone's width
_RUNS_DOMAIN: Final = 0.035  # height of a run's bar below the curve
_SHORTEST_BAR: Final = 0.007  # of the width: a run of minutes would not be seen among days


def fleets_of(runs: Sequence[RunData]) -> Iterator[tuple[Mapping[str, Any], list[RunData]]]:
    """The different fleets of runs with a clock, each with its runs."""
    found: dict[str, tuple[Mapping[str, Any], list[RunData]]] = {}
    for run in runs:
        if run.fleet is not None and has_clock(run):
            key = str(run.fleet.get("fingerprint"))
            found.setdefault(key, (run.fleet, []))[1].append(run)
    yield from found.values()


def week_figure(fleet: Mapping[str, Any], runs: Sequence[RunData], every_run: Sequence[RunData]) -> go.Figure:
    """Clients available over the days of a week, and below when each method ran.

    Later weeks are marked like the first one, of which no more days are shown than are needed. `runs` are those of
    this fleet; `every_run` says how methods look.
    """
    look = styles(methods_of(every_run))
    spans = [(method.label, _span(method.counted[0])) for method in methods_of(runs) if method.counted]
    last = max((end for _, (_, end) in spans), default=0.0)
    days = int(np.clip(np.ceil(last / DAY_HOURS), _FEWEST_DAYS, 7))
    figure = empty_figure(f"Available clients: {figure_text(fleet['name'])}", "", "available clients", height=380)
    draw_week(figure, fleet["week"], days, INK)
    marks = list(range(0, days * DAY_HOURS + 1, DAY_HOURS // 4 if days == _FEWEST_DAYS else DAY_HOURS))
    room = min(0.3, _RUNS_DOMAIN * len(spans))
    figure.update_layout(
        yaxis={"domain": [room + 0.04, 1]},
        yaxis2={"domain": [0, room], "range": [-len(spans) + 0.5, 0.5], "visible": False},
        xaxis={
            "anchor": "y2",
            "tickvals": marks,
            "ticktext": [_mark(mark, days) for mark in marks],
            "title": {"text": "" if days <= _MOST_NAMED_DAYS else "day"},
        },
        margin={"r": 28},
    )
    for row, (label, (start, end)) in enumerate(spans):
        name, style = figure_text(label), Style(look[label].colour, "solid")
        x = np.array(_within_week(start, end, _SHORTEST_BAR * days * DAY_HOURS, days * DAY_HOURS))
        text = f"{quantity((end - start) * 3600, SECONDS)} from {clock_text(start)}"
        line = {"color": style.colour, "width": 5}
        y = np.full(x.size, float(-row))
        add_line(figure, x, y, name, style, line=line, yaxis="y2", hovertemplate=f"{name}: {text}<extra></extra>")
    return figure


def speeds_figure(fleet: Mapping[str, Any]) -> go.Figure | None:
    """How fast single clients' devices compute and transfer; None where one of both takes no time."""
    figure = empty_figure(f"Device speeds: {figure_text(fleet['name'])}", "", "", height=380)
    return figure if draw_speeds(figure, fleet["speeds"]) else None


def _mark(hour: int, days: int) -> str:
    if hour % DAY_HOURS == 0:
        return f"day {hour // DAY_HOURS}" if days <= _MOST_NAMED_DAYS else str(hour // DAY_HOURS)
    return f"{hour % DAY_HOURS}:00" if hour % (DAY_HOURS // 2) == 0 else ""


def _span(run: RunData) -> tuple[float, float]:
    ends = column(run.rounds, "end_seconds")
    return float(ends[0]) / 3600, float(ends[-1]) / 3600


def _within_week(start: float, end: float, shortest: float, limit: float) -> list[float]:
    """The ends of a line over the hours of a week; in two pieces where it goes on into the next week.

    A piece is at least as long as `shortest`, to be seen, but stays before `limit`.
    """
    if end - start >= WEEK_HOURS:
        return [0.0, WEEK_HOURS]
    first, last = start % WEEK_HOURS, end % WEEK_HOURS
    pieces = [(first, last)] if first <= last else [(first, WEEK_HOURS), (0.0, last)]
    ends: list[float] = []
    for begin, stop in pieces:
        if stop > 0:  # what ends at the week's last midnight does not go on
            seen = min(begin, limit - shortest)
            ends += [np.nan, seen, max(stop, seen + shortest)]
    return ends[1:]
