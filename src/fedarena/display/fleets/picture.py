"""A fleet in one picture: how fast its phones are, when they are available, and for how long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import plotly.graph_objects as go

from fedarena.display.drawing.marks import logarithmic_marks
from fedarena.display.drawing.style import QUIET_INK, SERIES_LIGHT, band_colour, empty_figure, figure_text
from fedarena.display.drawing.units import (
    BITS_PER_SECOND,
    FLOPS,
    SECONDS,
    Scale,
    count,
    fitting_unit,
    quantity,
    significant,
)
from fedarena.display.report.methods import FloatArray

DAY_SECONDS: Final = 86_400
DAY_HOURS: Final = 24
# From top to bottom: speeds, week, slots. The gaps hold an axis and a heading.
_SPEEDS_DOMAIN: Final = (0.7, 0.92)
_WEEK_DOMAIN: Final = (0.36, 0.56)
_SLOTS_DOMAIN: Final = (0.0, 0.22)
_HEADING_SHIFT: Final = 8
_LINE_PIXELS: Final = 17
_LINE_SHARE: Final = 0.02  # of the height
_LENGTH_MARKS: Final = {
    1: "1 s",
    10: "10 s",
    60: "1 min",
    600: "10 min",
    3600: "1 h",
    6 * 3600: "6 h",
    DAY_SECONDS: "1 d",
    7 * DAY_SECONDS: "1 week",
}


def fleet_figure(fleet: Mapping[str, Any]) -> go.Figure:
    """Speeds of single clients, the share of clients available over a week, and how long they stay.

    `fleet` is what `fedarena.fleet.describe_fleet` found, or ``fleet.json`` of a run.
    """
    title = f"<b>{figure_text(fleet['name'])}</b><br>{count(fleet['clients'], 'client')} with {phones_text(fleet)}"
    figure = empty_figure(title, "", "", height=1080)
    axis = figure.layout.template.layout
    figure.update_layout(
        margin={"t": 88},
        **{f"xaxis{number}": {**axis.xaxis.to_plotly_json(), "anchor": f"y{number}"} for number in (2, 3)},
        **{f"yaxis{number}": {**axis.yaxis.to_plotly_json(), "anchor": f"x{number}"} for number in (2, 3)},
    )
    _add_speeds(figure, fleet["speeds"])
    _add_week(figure, fleet["week"], fleet["shares"])
    _add_slots(figure, fleet["slots"])
    return figure


def _add_speeds(figure: go.Figure, speeds: Mapping[str, Any]) -> None:
    details = [f"{column.title}: {_most(column.values, column.scale)}" for column in compute_columns(speeds)]
    details += [f"{name}: {_most(column, BITS_PER_SECOND)}" for name, column in network_columns(speeds).items()]
    if draw_speeds(figure, speeds):
        figure.update_layout(legend={"x": 1, "xanchor": "right", "y": _SPEEDS_DOMAIN[0] - 0.03, "yanchor": "top"})
    else:
        leave_empty(figure, "", "either computing or transfers take no time")
    bottom, top = _SPEEDS_DOMAIN
    top -= _LINE_SHARE * max(0, len(details) - 3)  # there is room for three lines below the title
    figure.update_layout(yaxis={"domain": (bottom, top)})
    add_heading(figure, "Device speeds", details, top)


def draw_speeds(figure: go.Figure, speeds: Mapping[str, Any]) -> bool:
    """A dot for each client on the first axes; False where there is none, because something takes no time.

    Where computing is known in two ways, the dots are the clients of the more frequent one.
    """
    compute, what, scale = compute_column(speeds)
    x = drawable(compute)
    networks = {name: drawable(column) for name, column in network_columns(speeds).items()}
    networks = {name: y for name, y in networks.items() if np.isfinite(x * y).any()}
    if not networks:
        return False
    every_y = np.concatenate(list(networks.values()))
    x_factor, x_unit = fitting_unit(float(np.nanmedian(x)), scale)
    y_factor, y_unit = fitting_unit(float(np.nanmedian(every_y)), BITS_PER_SECOND)
    for (name, y), colour in zip(networks.items(), SERIES_LIGHT, strict=False):
        figure.add_scatter(
            x=x / x_factor,
            y=y / y_factor,
            mode="markers",
            marker={"color": colour, "size": 4, "opacity": 0.5},
            line={"color": colour},  # for the button that hides them
            name=name,
            legendgroup=name,
            showlegend=len(networks) > 1,
            hovertemplate=f"%{{x:.3~g}} {x_unit}, %{{y:.3~g}} {y_unit}<extra></extra>",
        )
    figure.update_layout(
        xaxis={
            "title": {"text": f"training: {what} ({x_unit})"},
            "type": "log",
            "tickangle": 0,
            **logarithmic_marks(x / x_factor),
        },
        yaxis={"title": {"text": f"network ({y_unit})"}, "type": "log", **logarithmic_marks(every_y / y_factor)},
    )
    return True


def _add_week(figure: go.Figure, week: Mapping[str, Any], shares: Mapping[str, Any]) -> None:
    draw_week(figure, week, 7, SERIES_LIGHT[0], "2")
    figure.update_layout(
        xaxis2={
            "title": {"text": "day, from midnight to midnight"},
            "tickvals": list(range(0, 7 * DAY_HOURS + 1, DAY_HOURS)),
            "ticktext": [str(day) for day in range(8)],
        },
        yaxis2={"title": {"text": "available clients"}, "domain": _WEEK_DOMAIN},
    )
    low, middle, high = (shares["percentiles"][percentile] for percentile in ("10", "50", "90"))
    if low == high:
        details = [f"all are available {percent(middle)} of the time"]
    else:
        details = [
            f"available {percent(shares['mean'])} of the time on average",
            f"median {percent(middle)}, four fifths {percent(low)} to {percent(high)}",
        ]
    add_heading(figure, "Available clients over a week", details, _WEEK_DOMAIN[1])


def draw_week(figure: go.Figure, week: Mapping[str, Any], days: int, colour: str, axes: str = "") -> None:
    """The share of clients that is available over the hours of the first `days` of a week."""
    shares = np.array(week["shares"], dtype=np.float64)
    hours = np.arange(len(shares)) * week["step_seconds"] / 3600
    shown = hours < days * DAY_HOURS
    figure.add_scatter(
        x=hours[shown],
        y=shares[shown],
        customdata=[clock_text(hour) for hour in hours[shown]],
        mode="lines",
        line={"color": colour, "width": 2},
        fill="tozeroy",
        fillcolor=band_colour(SERIES_LIGHT[0]),
        name="clients",
        legendgroup="clients",
        showlegend=False,
        hovertemplate="%{customdata}: %{y:.1%}<extra></extra>",
        xaxis=f"x{axes}",
        yaxis=f"y{axes}",
    )
    highest = float(shares[shown].max(initial=0.0)) or 1.0
    figure.update_layout(
        **{
            f"xaxis{axes}": {"range": [0, days * DAY_HOURS], "showgrid": True, "tickangle": 0},
            f"yaxis{axes}": {"tickformat": ".0%" if highest >= 0.05 else ".1%", "range": [0, 1.08 * highest]},
        }
    )


def _add_slots(figure: go.Figure, slots: Mapping[str, Any]) -> None:
    lengths = slots["seconds"]["percentiles"]
    if sum(slots["histogram"]["counts"]):
        seconds, shares = _length_curve(slots)
        figure.add_trace(
            go.Scatter(
                x=seconds,
                y=shares,
                customdata=[quantity(length, SECONDS) for length in seconds],
                mode="lines",
                line={"color": SERIES_LIGHT[0], "width": 2.5},
                hovertemplate="%{y:.0%} are shorter than %{customdata}<extra></extra>",
                showlegend=False,
                xaxis="x3",
                yaxis="y3",
            )
        )
        marks = [mark for mark in _LENGTH_MARKS if seconds[0] <= mark <= seconds[-1]]
        figure.update_layout(
            xaxis3={
                "type": "log",
                "tickvals": marks,
                "ticktext": [_LENGTH_MARKS[mark] for mark in marks],
                "title": {"text": "length of an uninterrupted availability"},
                "showgrid": True,
            },
            yaxis3={
                "domain": _SLOTS_DOMAIN,
                "range": [0, 1.02],
                "tickformat": ".0%",
                "title": {"text": "slots that are shorter"},
            },
        )
        middle, longest = quantity(lengths["50"], SECONDS), quantity(lengths["90"], SECONDS)
        details = [
            longest if lengths["10"] == lengths["90"] else f"median {middle}, a tenth is longer than {longest}",
            f"the median client has {slots['per_day']['percentiles']['50']:.1f} slots a day",
        ]
    else:
        everybody = slots["always_available_share"] == 1
        leave_empty(figure, "3", "nobody ever leaves" if everybody else "nobody is ever there")
        figure.update_layout(yaxis3={"domain": _SLOTS_DOMAIN})
        details = ["there is no end to measure" if everybody else "there is nothing to measure"]
    add_heading(figure, "How long clients stay", details, _SLOTS_DOMAIN[1])


def _length_curve(slots: Mapping[str, Any]) -> tuple[FloatArray, FloatArray]:
    """Lengths in seconds and the share of slots that are shorter, from the histogram and the percentiles together."""
    counts = np.array(slots["histogram"]["counts"], dtype=np.float64)
    first = int(np.flatnonzero(counts)[0])
    edges = np.array(slots["histogram"]["edges_seconds"][first:], dtype=np.float64)
    # A bin holds the lengths from its lower edge to just below the upper one.
    shares = np.concatenate(([0.0], np.cumsum(counts[first:]) / counts.sum()))
    percentiles = slots["seconds"]["percentiles"]
    seconds = np.concatenate((edges, list(percentiles.values())))
    shares = np.concatenate((shares, [int(percentile) / 100 for percentile in percentiles]))
    order = np.lexsort((shares, seconds))
    return seconds[order], np.maximum.accumulate(shares[order])


def phones_text(fleet: Mapping[str, Any]) -> str:
    """How many phones there are."""
    phones = fleet["phones"]
    if phones["paired"] or phones["devices"] == phones["availabilities"]:
        return count(phones["devices"], "phone")
    return f"{count(phones['devices'], 'device')} and {phones['availabilities']:,} availabilities"


class ComputeColumn(NamedTuple):
    """How fast phones compute, in one of two ways: null for clients of whom it is known in the other way."""

    values: Sequence[float | None]
    name: str
    scale: Scale
    share: float  # of the clients

    @property
    def title(self) -> str:
        """The name, and whose it is where it is not everybody's."""
        return self.name if self.share == 1 else f"{self.name} of {percent(self.share)} of clients"


def compute_columns(speeds: Mapping[str, Any]) -> list[ComputeColumn]:
    """What is known about how fast phones compute: one way, or two, that of more clients first.

    Operations per second count where they are known, as in the simulation.
    """
    nothing = [None] * speeds["clients"]
    operations = speeds.get("flops_per_second", nothing)
    samples = speeds.get("seconds_per_sample", nothing)
    samples = [None if known is not None else seconds for seconds, known in zip(samples, operations, strict=True)]
    # Neither is there for a phone that computes without limit, which is told in operations.
    by_sample = sum(seconds is not None for seconds in samples) / len(samples)
    per_second = tuple((factor, f"{unit}/s") for factor, unit in FLOPS)
    both = [
        ComputeColumn(operations, "computing", per_second, 1 - by_sample),
        ComputeColumn(samples, "time per sample", SECONDS, by_sample),
    ]
    return sorted((column for column in both if column.share), key=lambda column: -column.share)


def compute_column(speeds: Mapping[str, Any]) -> tuple[Sequence[float | None], str, Scale]:
    """The first of `compute_columns`, with a title that is short enough for a table, or an axis on a phone."""
    values, name, scale, share = compute_columns(speeds)[0]
    return values, name if share == 1 else f"{name} of {percent(share)}", scale


def clock_text(hour: float) -> str:
    """A moment as people say it: "day 1, 13:15"."""
    minutes = round(hour * 60)
    return f"day {minutes // 1440}, {minutes // 60 % 24}:{minutes % 60:02}"


def network_columns(speeds: Mapping[str, Any]) -> dict[str, Sequence[float | None]]:
    """Speeds of downloads and uploads; of the network where they are the same."""
    download, upload = speeds["download_bits_per_second"], speeds["upload_bits_per_second"]
    return {"network": download} if download == upload else {"download": download, "upload": upload}


def drawable(column: Sequence[float | None]) -> FloatArray:
    """Numbers that have a place on a logarithmic axis; NaN in place of the others."""
    values = np.array([np.nan if value is None else value for value in column], dtype=np.float64)
    values[values <= 0] = np.nan
    return values


def distribution_of(column: Sequence[float | None]) -> dict[str, Any]:
    """Mean and percentiles of the numbers that are known and finite, as `describe_fleet` gives them of other things."""
    values = np.array([value for value in column if value is not None], dtype=np.float64)
    if not len(values):
        return {"mean": None, "percentiles": {"10": None, "50": None, "90": None}}
    percentiles = {str(p): float(np.percentile(values, p)) for p in (10, 50, 90)}
    return {"mean": float(values.mean()), "percentiles": percentiles}


def spread_text(column: Sequence[float | None], scale: Scale) -> str:
    """Median and outer deciles, such as "median 203 ms, four fifths 83.1 ms to 441 ms"."""
    found = distribution_of(column)["percentiles"]
    if found["50"] is None or found["10"] == found["90"]:
        return _most(column, scale)
    return f"median {quantity(found['50'], scale)}, {_most(column, scale)}"


def _most(column: Sequence[float | None], scale: Scale) -> str:
    """The outer deciles, in a text that fits a phone's width."""
    found = distribution_of(column)["percentiles"]
    low, high = quantity(found["10"], scale), quantity(found["90"], scale)
    if found["50"] is None:
        return "takes no time"
    return f"{low} for all" if found["10"] == found["90"] else f"four fifths {low} to {high}"


def percent(share: float) -> str:
    """A share of the time: "9.5 %"."""
    return f"{significant(100 * share)} %"


def leave_empty(figure: go.Figure, axes: str, sentence: str) -> None:
    """Axes without numbers, and a sentence that says why nothing is drawn."""
    hidden = {"showticklabels": False, "ticks": "", "showgrid": False, "range": [0, 1]}
    figure.update_layout(**{f"xaxis{axes}": hidden, f"yaxis{axes}": hidden})
    figure.add_trace(
        go.Scatter(
            x=[0.5],
            y=[0.5],
            mode="text",
            text=[sentence],
            textfont={"color": QUIET_INK},
            hoverinfo="skip",
            showlegend=False,
            xaxis=f"x{axes}",
            yaxis=f"y{axes}",
        )
    )


def add_heading(figure: go.Figure, heading: str, lines: Sequence[str], y: float, x: float = 0) -> None:
    """A heading, and below it smaller print; two annotations, because colours within a text have no dark partner."""
    place = {"x": x, "y": y, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom"}
    details = {"text": "<br>".join(lines), "yshift": _HEADING_SHIFT, "font": {"color": QUIET_INK}, "align": "left"}
    figure.add_annotation(**place, **details, showarrow=False)
    shift = _HEADING_SHIFT + _LINE_PIXELS * len(lines)
    figure.add_annotation(**place, text=f"<b>{heading}</b>", yshift=shift, showarrow=False)
