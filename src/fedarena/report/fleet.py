"""A fleet in one picture: how fast its phones are, when they are available, and for how long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go

from fedarena.report.drawing import logarithmic_marks
from fedarena.report.methods import FloatArray
from fedarena.report.style import QUIET_INK, SERIES_LIGHT, band_colour, empty_figure, figure_text
from fedarena.report.units import BITS_PER_SECOND, FLOPS, SECONDS, Scale, count, fitting_unit, quantity, significant

DAY_SECONDS: Final = 86_400
# From top to bottom: speeds, week, slots. The gaps hold an axis and a heading.
_SPEEDS_DOMAIN: Final = (0.7, 0.92)
_WEEK_DOMAIN: Final = (0.36, 0.56)
_SLOTS_DOMAIN: Final = (0.0, 0.22)
_HEADING_SHIFT: Final = 8
_LINE_PIXELS: Final = 17
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
    compute, what, scale = compute_column(speeds)
    networks = network_columns(speeds)
    x = drawable(compute)
    drawn = {name: y for name, column in networks.items() if np.isfinite(x * (y := drawable(column))).any()}
    known = [(what, compute, scale), *((name, column, BITS_PER_SECOND) for name, column in networks.items())]
    details = [f"{name}: {_most(column, unit)}" for name, column, unit in known]
    if drawn:
        every_y = np.concatenate(list(drawn.values()))
        x_factor, x_unit = fitting_unit(float(np.nanmedian(x)), scale)
        y_factor, y_unit = fitting_unit(float(np.nanmedian(every_y)), BITS_PER_SECOND)
        for (name, y), colour in zip(drawn.items(), SERIES_LIGHT, strict=False):
            figure.add_trace(
                go.Scatter(
                    x=x / x_factor,
                    y=y / y_factor,
                    mode="markers",
                    marker={"color": colour, "size": 4, "opacity": 0.5},
                    name=name,
                    hovertemplate=f"%{{x:.3~g}} {x_unit}, %{{y:.3~g}} {y_unit}<extra></extra>",
                    showlegend=len(drawn) > 1,
                )
            )
        figure.update_layout(
            xaxis={
                "title": {"text": f"{what} in training ({x_unit})"},
                "type": "log",
                "tickangle": 0,
                **logarithmic_marks(x / x_factor),
            },
            yaxis={"title": {"text": f"network ({y_unit})"}, "type": "log", **logarithmic_marks(every_y / y_factor)},
            legend={"x": 1, "xanchor": "right", "y": _SPEEDS_DOMAIN[0] - 0.03, "yanchor": "top"},
        )
    else:
        _leave_empty(figure, "", "either computing or transfers take no time")
    figure.update_layout(yaxis={"domain": _SPEEDS_DOMAIN})
    _add_heading(figure, "Device speeds", details, _SPEEDS_DOMAIN[1])


def _add_week(figure: go.Figure, week: Mapping[str, Any], shares: Mapping[str, Any]) -> None:
    available = np.array(week["shares"], dtype=np.float64)
    days = np.arange(len(available)) * week["step_seconds"] / DAY_SECONDS
    minutes = (days % 1 * 1440).round().astype(np.int64)
    figure.add_trace(
        go.Scatter(
            x=days,
            y=available,
            customdata=[f"day {day:.0f}, {m // 60:02}:{m % 60:02}" for day, m in zip(days // 1, minutes, strict=True)],
            mode="lines",
            line={"color": SERIES_LIGHT[0], "width": 2},
            fill="tozeroy",
            fillcolor=band_colour(SERIES_LIGHT[0]),
            hovertemplate="%{customdata}: %{y:.1%}<extra></extra>",
            showlegend=False,
            xaxis="x2",
            yaxis="y2",
        )
    )
    last = int(np.ceil(days[-1])) if len(days) else 1
    highest = float(available.max()) if len(available) else 1.0
    figure.update_layout(
        xaxis2={
            "title": {"text": "day, from midnight to midnight"},
            "range": [0, last],
            "tickvals": list(range(last + 1)),
            "showgrid": True,
        },
        yaxis2={
            "title": {"text": "available clients"},
            "domain": _WEEK_DOMAIN,
            "tickformat": ".0%" if highest >= 0.05 else ".1%",
            "range": [0, 1.08 * highest or 1],
        },
    )
    low, middle, high = (shares["percentiles"][percentile] for percentile in ("10", "50", "90"))
    if low == high:
        details = [f"all are available {percent(middle)} of the time"]
    else:
        details = [
            f"available {percent(shares['mean'])} of the time on average",
            f"median {percent(middle)}, four fifths {percent(low)} to {percent(high)}",
        ]
    _add_heading(figure, "Available clients over a week", details, _WEEK_DOMAIN[1])


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
        _leave_empty(figure, "3", "nobody ever leaves" if everybody else "nobody is ever there")
        figure.update_layout(yaxis3={"domain": _SLOTS_DOMAIN})
        details = ["there is no end to measure" if everybody else "there is nothing to measure"]
    _add_heading(figure, "How long clients stay", details, _SLOTS_DOMAIN[1])


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


def compute_column(speeds: Mapping[str, Any]) -> tuple[Sequence[float | None], str, Scale]:
    """What is known about how fast phones compute: the numbers, what they are, and their unit."""
    if "seconds_per_sample" in speeds:
        return speeds["seconds_per_sample"], "time per sample", SECONDS
    per_second = tuple((factor, f"{unit}/s") for factor, unit in FLOPS)
    return speeds["flops_per_second"], "computing", per_second


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


def _leave_empty(figure: go.Figure, axes: str, sentence: str) -> None:
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


def _add_heading(figure: go.Figure, heading: str, lines: Sequence[str], y: float) -> None:
    """A heading, and below it smaller print; two annotations, because colours within a text have no dark partner."""
    place = {"x": 0, "y": y, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom"}
    details = {"text": "<br>".join(lines), "yshift": _HEADING_SHIFT, "font": {"color": QUIET_INK}, "align": "left"}
    figure.add_annotation(**place, **details, showarrow=False)
    shift = _HEADING_SHIFT + _LINE_PIXELS * len(lines)
    figure.add_annotation(**place, text=f"<b>{heading}</b>", yshift=shift, showarrow=False)
