"""The phones of a run, from its ``fleet.json``: when clients are available, and how fast their devices are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go

from fedarena.report.drawing import add_line, logarithmic_marks
from fedarena.report.fleet import compute_column, drawable, network_columns
from fedarena.report.methods import column, has_clock, methods_of
from fedarena.report.style import INK, SERIES_LIGHT, Style, band_colour, empty_figure, figure_text, styles
from fedarena.report.units import BITS_PER_SECOND, SECONDS, fitting_unit, quantity
from fedarena.rundata import RunData

DAY_HOURS: Final = 24
WEEK_HOURS: Final = 7 * DAY_HOURS
_FEWEST_DAYS: Final = 2
_MOST_NAMED_DAYS: Final = 4  # of more, the axis has the numbers alone, to fit a phone's width
_RUNS_DOMAIN: Final = 0.035  # height of a run's bar below the curve


def fleets_of(runs: Sequence[RunData]) -> Iterator[tuple[Mapping[str, Any], list[RunData]]]:
    """The different fleets of runs with a clock, each with its runs."""
    found: dict[str, tuple[Mapping[str, Any], list[RunData]]] = {}
    for run in runs:
        if run.fleet is not None and has_clock(run):
            key = str(run.fleet.get("fingerprint"))
            found.setdefault(key, (run.fleet, []))[1].append(run)
    yield from found.values()


def week_figure(fleet: Mapping[str, Any], runs: Sequence[RunData], every_run: Sequence[RunData]) -> go.Figure:
    """Clients available over days, and below when each method ran; a week at most, since then all repeats.

    `runs` are those of this fleet; `every_run` says how methods look.
    """
    look = styles(methods_of(every_run))
    spans = [(method.label, _span(method.counted[0])) for method in methods_of(runs) if method.counted]
    last = max((end for _, (_, end) in spans), default=0.0)
    days = int(np.clip(np.ceil(last / DAY_HOURS), _FEWEST_DAYS, 7))
    figure = empty_figure(f"Available clients: {figure_text(fleet['name'])}", "", "available clients", height=380)
    _add_week(figure, fleet["week"], days)
    room = min(0.3, _RUNS_DOMAIN * len(spans))
    figure.update_layout(
        yaxis={"domain": [room + 0.04, 1]},
        yaxis2={"domain": [0, room], "range": [-len(spans) + 0.5, 0.5], "visible": False},
        xaxis={"anchor": "y2"},
    )
    for row, (label, (start, end)) in enumerate(spans):
        name, style = figure_text(label), Style(look[label].colour, "solid")
        x = np.array(_within_week(start, end))
        text = f"{quantity((end - start) * 3600, SECONDS)} from {_clock(start)}"
        line = {"color": style.colour, "width": 5}
        y = np.full(x.size, float(-row))
        add_line(figure, x, y, name, style, line=line, yaxis="y2", hovertemplate=f"{name}: {text}<extra></extra>")
    return figure


def speeds_figure(fleet: Mapping[str, Any]) -> go.Figure | None:
    """How fast single clients' devices compute and transfer; None where neither takes time."""
    compute, what, scale = compute_column(fleet["speeds"])
    x = drawable(compute)
    networks = {name: drawable(found) for name, found in network_columns(fleet["speeds"]).items()}
    networks = {name: y for name, y in networks.items() if np.isfinite(x * y).any()}
    if not networks:
        return None
    every = np.concatenate(list(networks.values()))
    x_factor, x_unit = fitting_unit(float(np.nanmedian(x)), scale)
    y_factor, y_unit = fitting_unit(float(np.nanmedian(every)), BITS_PER_SECOND)
    title = f"Device speeds: {figure_text(fleet['name'])}"
    figure = empty_figure(title, f"training: {what} ({x_unit})", f"network ({y_unit})", height=380)
    for (name, y), colour in zip(networks.items(), SERIES_LIGHT, strict=False):
        figure.add_scatter(
            x=x / x_factor,
            y=y / y_factor,
            mode="markers",
            marker={"color": colour, "size": 4, "opacity": 0.5},
            line={"color": colour},
            name=name,
            legendgroup=name,
            showlegend=len(networks) > 1,
            hovertemplate=f"%{{x:.3~g}} {x_unit}, %{{y:.3~g}} {y_unit}<extra></extra>",
        )
    figure.update_xaxes(type="log", **logarithmic_marks(x / x_factor))
    figure.update_yaxes(type="log", **logarithmic_marks(every / y_factor))
    return figure


def _add_week(figure: go.Figure, week: Mapping[str, Any], days: int) -> None:
    shares = np.array(week["shares"], dtype=np.float64)
    hours = np.arange(len(shares)) * week["step_seconds"] / 3600
    shown = hours < days * DAY_HOURS
    figure.add_scatter(
        x=hours[shown],
        y=shares[shown],
        customdata=[_clock(hour) for hour in hours[shown]],
        mode="lines",
        line={"color": INK, "width": 2},
        fill="tozeroy",
        fillcolor=band_colour(SERIES_LIGHT[0]),
        name="clients",
        legendgroup="clients",
        showlegend=False,
        hovertemplate="%{customdata}: %{y:.1%}<extra></extra>",
    )
    highest = float(shares[shown].max(initial=0.0)) or 1.0
    marks = list(range(0, days * DAY_HOURS + 1, DAY_HOURS // 4 if days == _FEWEST_DAYS else DAY_HOURS))
    figure.update_yaxes(tickformat=".0%" if highest >= 0.05 else ".1%", range=[0, 1.08 * highest])
    figure.update_xaxes(
        range=[0, days * DAY_HOURS],
        tickvals=marks,
        ticktext=[_mark(mark, days) for mark in marks],
        tickangle=0,
        showgrid=True,
        title_text="" if days <= _MOST_NAMED_DAYS else "day",
    )
    figure.update_layout(margin_r=28)


def _mark(hour: int, days: int) -> str:
    if hour % DAY_HOURS == 0:
        return f"day {hour // DAY_HOURS}" if days <= _MOST_NAMED_DAYS else str(hour // DAY_HOURS)
    return f"{hour % DAY_HOURS}:00" if hour % (DAY_HOURS // 2) == 0 else ""


def _span(run: RunData) -> tuple[float, float]:
    ends = column(run.rounds, "end_seconds")
    return float(ends[0]) / 3600, float(ends[-1]) / 3600


def _within_week(start: float, end: float) -> list[float]:
    """The ends of a line over the hours of a week; in two pieces where it goes on into the next week."""
    if end - start >= WEEK_HOURS:
        return [0.0, WEEK_HOURS]
    first, last = start % WEEK_HOURS, end % WEEK_HOURS
    return [first, last] if first <= last else [first, WEEK_HOURS, np.nan, 0.0, last]


def _clock(hour: float) -> str:
    minutes = round(hour * 60)
    return f"day {minutes // 1440}, {minutes // 60 % 24}:{minutes % 60:02}"
