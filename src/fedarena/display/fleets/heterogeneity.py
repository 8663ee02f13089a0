"""How hard a fleet is in one picture: the six metrics, who takes part, how long clients take, and their states."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go

from fedarena.display.drawing.marks import evenly, logarithmic_marks
from fedarena.display.drawing.style import INK, QUIET_INK, SERIES_LIGHT, empty_figure, figure_text
from fedarena.display.drawing.units import count, significant
from fedarena.display.fleets.picture import add_heading, leave_empty, percent
from fedarena.display.report.methods import FloatArray
from fedarena.fleet.heterogeneity import Estimate, Heterogeneity

# What a metric's simulations have of the fleet, in the order and the colours of all panels.
KINDS: Final = {"DevMC": "devices", "StatMC": "availability", "InterMC": "both"}
_COLOURS: Final = dict(zip(KINDS, SERIES_LIGHT, strict=False))
_NEVER: Final = "never"
# From top to bottom; the gaps hold an axis and a heading.
_METRICS_DOMAIN: Final = (0.85, 0.945)
_PARTICIPATION_DOMAIN: Final = (0.55, 0.725)
_COST_DOMAIN: Final = (0.265, 0.39)
_STATE_DOMAIN: Final = (0.0, 0.135)
_HALVES: Final = ((0.0, 0.44), (0.56, 1.0))
_MOST_POINTS: Final = 1000
_SHARE_AXIS: Final[dict[str, Any]] = {"tickformat": ".0%", "range": [0, 1], "tickvals": [0, 0.2, 0.4, 0.6, 0.8, 1]}


def heterogeneity_figure(name: str, found: Heterogeneity) -> go.Figure:
    """Metrics with their intervals, and the clients behind them, each curve in the order of its values."""
    figure = empty_figure(f"<b>{figure_text(name)}</b><br>{count(found.clients, 'client')}", "", "", height=1220)
    axis = figure.layout.template.layout
    figure.update_layout(
        margin={"t": 88, "r": 28},
        **{f"xaxis{number}": {**axis.xaxis.to_plotly_json(), "anchor": f"y{number}"} for number in range(2, 6)},
        **{f"yaxis{number}": {**axis.yaxis.to_plotly_json(), "anchor": f"x{number}"} for number in range(2, 6)},
    )
    _add_metrics(figure, found)
    _add_participation(figure, found)
    _add_costs(figure, found)
    _add_states(figure, found)
    return figure


def _add_metrics(figure: go.Figure, found: Heterogeneity) -> None:
    _add_estimates(figure, found, "R", "")
    figure.update_layout(
        xaxis={"domain": _HALVES[0], "range": [-0.02, 1.02], "showgrid": True, "tickangle": 0},
        xaxis2={"domain": _HALVES[1], "type": "log", "showgrid": True, "tickangle": 0},
    )
    _add_estimates(figure, found, "T", "2")
    ends = [found.metrics[f"{kind}-T"] for kind in KINDS]
    shown = np.array([1.0, *(value for end in ends for value in (end.mean, end.high) if math.isfinite(value))])
    marks = logarithmic_marks(np.array([1.0, 2 * shown.max()]))
    figure.update_layout(xaxis2={**marks, "range": [math.log10(0.8), math.log10(2.5 * shown.max())]})
    intervals = found.options.repetitions > 1
    details = f"with {confidence_text(found)} intervals" if intervals else "one repetition"
    add_heading(figure, "-R: lower is harder", [f"taking part in time, {details}"], _METRICS_DOMAIN[1])
    add_heading(figure, "-T: higher is harder", ["time for all updates, in breaks"], _METRICS_DOMAIN[1], _HALVES[1][0])


def _add_estimates(figure: go.Figure, found: Heterogeneity, ending: str, axes: str) -> None:
    """A dot with a whisker for every metric that ends so; an arrow for what never ends."""
    estimates = [found.metrics[f"{kind}-{ending}"] for kind in KINDS]
    farthest = 2 * max([1.0, *(estimate.mean for estimate in estimates if not estimate.never)])
    for place, (kind, estimate) in enumerate(zip(KINDS, estimates, strict=True)):
        half = 0.0 if math.isnan(estimate.high) else estimate.high - estimate.mean
        text = estimate_text(estimate)
        figure.add_scatter(
            x=[farthest if estimate.never else estimate.mean],
            y=[-place],
            error_x={"array": [half], "color": _COLOURS[kind], "thickness": 2, "width": 5},
            mode="markers+text",
            marker={"color": _COLOURS[kind], "size": 9, "symbol": "triangle-right" if estimate.never else "circle"},
            text=[text],
            textposition=f"top {_side(estimate, ending)}",
            textfont={"color": INK, "size": 12},
            cliponaxis=False,
            showlegend=False,
            hovertemplate=f"{kind}-{ending}: {text}<extra></extra>",
            xaxis=f"x{axes}",
            yaxis=f"y{axes}",
        )
    figure.update_layout(
        **{
            f"yaxis{axes}": {
                "domain": _METRICS_DOMAIN,
                "range": [-2.4, 0.9],
                "tickvals": [0, -1, -2],
                "ticktext": [f"{kind}-{ending}" for kind in KINDS],
            }
        }
    )


def _side(estimate: Estimate, ending: str) -> str:
    """Where a text has room beside its dot."""
    if estimate.never or (ending == "R" and estimate.mean > 0.8):
        return "left"
    return "right" if estimate.mean < 0.2 else "center"


def _add_participation(figure: go.Figure, found: Heterogeneity) -> None:
    for kind, what in KINDS.items():
        _add_sorted(figure, found.participation[f"{kind}-R"], f"{kind}-R: {what}", _COLOURS[kind], "3")
    most = max(1.0, *(float(values.max()) for values in found.participation.values()))
    _add_rule(figure, (0, 1), (1, 1), "ideal", "3")
    figure.update_layout(
        xaxis3={"title": {"text": "clients, in the order of each curve"}, **_SHARE_AXIS},
        yaxis3={
            "title": {"text": "times in time"},
            "domain": _PARTICIPATION_DOMAIN,
            "range": [0, 1.05 * most],
            "ticksuffix": "×",
        },
        legend={"x": 0, "y": _PARTICIPATION_DOMAIN[0] - 0.052, "yanchor": "top"},
        legend2={"orientation": "h", "x": 0, "y": _STATE_DOMAIN[0] - 0.052, "yanchor": "top"},
    )
    shares = [f"{KINDS[kind]} {percent(np.mean(found.participation[f'{kind}-R'] == 0))}" for kind in KINDS]
    details = [
        f"1× is the ideal, {significant(found.ideal_participation)} times a client",
        f"never in time: {', '.join(shares)}",
    ]
    add_heading(figure, "Who takes part in time", details, _PARTICIPATION_DOMAIN[1])


def _add_costs(figure: go.Figure, found: Heterogeneity) -> None:
    spread, deadline = found.devices, found.options.deadline_seconds
    figure.update_layout(yaxis4={"domain": _COST_DOMAIN})
    details = [
        f"mean {significant(spread.mean_seconds)} s, {significant(spread.to_deadline)} times the deadline",
        f"between clients ±{percent(spread.variation)}, from round to round ±{percent(spread.variation_within)}",
    ]
    if not spread.mean_seconds:
        leave_empty(figure, "4", "devices take no time")
        details = ["nothing to wait for"]
    else:
        costs = np.sort(found.cost_seconds)
        chosen = evenly(len(costs), _MOST_POINTS)
        figure.add_scatter(
            x=costs[chosen],
            y=(chosen + 1) / len(costs),
            mode="lines",
            line={"color": _COLOURS["DevMC"], "width": 2.5, "shape": "hv"},
            showlegend=False,
            hovertemplate="%{y:.0%} take at most %{x:.4~g} s<extra></extra>",
            xaxis="x4",
            yaxis="y4",
        )
        _add_rule(figure, (deadline, deadline), (0, 1), "deadline", "4")
        figure.update_layout(
            xaxis4={
                "title": {"text": "a client's mean time for a round if it never leaves (s)"},
                "type": "log",
                "tickangle": 0,
                "showgrid": True,
                **logarithmic_marks(np.append(costs[costs > 0], deadline)),
            },
            yaxis4={"title": {"text": "clients"}, "tickformat": ".0%", "range": [0, 1.02]},
        )
    add_heading(figure, "How long devices take", details, _COST_DOMAIN[1])


def _add_states(figure: go.Figure, found: Heterogeneity) -> None:
    spread = found.states
    _add_sorted(figure, found.state_metric, "single-state metric", _COLOURS["StatMC"], "5", "legend2")
    _add_sorted(figure, found.available_shares, "available share of the time", SERIES_LIGHT[3], "5", "legend2")
    figure.update_layout(
        xaxis5={"title": {"text": "clients, in the order of each curve"}, **_SHARE_AXIS},
        yaxis5={"domain": _STATE_DOMAIN, "range": [0, 1.05], "tickformat": ".0%", "title": {"text": "of the ideal"}},
    )
    details = [
        f"single-state metric: mean {significant(spread.mean_metric)}, Gini {significant(spread.gini_metric)}",
        f"available {percent(spread.mean_share)} of the time, Gini {significant(spread.gini_share)}",
    ]
    add_heading(figure, "How well availability suits rounds", details, _STATE_DOMAIN[1])


def _add_sorted(
    figure: go.Figure, values: FloatArray, name: str, colour: str, axes: str, legend: str = "legend"
) -> None:
    """A curve from the largest to the smallest value over the share of clients."""
    chosen = evenly(len(values), _MOST_POINTS)
    figure.add_scatter(
        x=(chosen + 0.5) / len(values),
        y=-np.sort(-values)[chosen],
        mode="lines",
        line={"color": colour, "width": 2.5},
        name=name,
        legendgroup=name,
        legend=legend,
        hovertemplate="%{y:.3~g}",
        xaxis=f"x{axes}",
        yaxis=f"y{axes}",
    )


def _add_rule(figure: go.Figure, x: Sequence[float], y: Sequence[float], name: str, axes: str) -> None:
    """A dashed line with its name at the end."""
    figure.add_scatter(
        x=x,
        y=y,
        mode="lines+text",
        line={"color": QUIET_INK, "dash": "dash", "width": 1.5},
        text=["", name],
        textposition="bottom left" if x[0] != x[1] else "bottom right",
        textfont={"color": QUIET_INK},
        hoverinfo="skip",
        showlegend=False,
        xaxis=f"x{axes}",
        yaxis=f"y{axes}",
    )


def confidence_text(found: Heterogeneity) -> str:
    """How sure the intervals are: "95 %"."""
    return f"{100 * found.options.confidence:g} %"


def estimate_text(estimate: Estimate) -> str:
    """A metric and half its interval: "0.8302 ± 0.0005", "12.3 ± 0.4", or "never"."""
    if estimate.never:
        return _NEVER
    half = None if math.isnan(estimate.high) else estimate.high - estimate.mean
    digits = 4 if estimate.mean < 2 and (half is None or half < 0.1) else 2 if estimate.mean < 100 else 1
    return f"{estimate.mean:,.{digits}f}" + ("" if half is None else f" ± {half:,.{digits}f}")
