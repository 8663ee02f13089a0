"""How hard a fleet is in one picture: the six metrics, who takes part, how long clients take, and their states."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import plotly.graph_objects as go

from fedarena.fleet.heterogeneity import Estimate, Heterogeneity
from fedarena.report.drawing import evenly, logarithmic_marks
from fedarena.report.fleet import add_heading, leave_empty, percent
from fedarena.report.methods import FloatArray
from fedarena.report.style import INK, QUIET_INK, SERIES_LIGHT, empty_figure, figure_text
from fedarena.report.units import SECONDS, count, fitting_unit, quantity, significant

# What a metric's simulations have of the fleet, in the order and the colours of all panels.
KINDS: Final = {"DevMC": "devices", "StatMC": "availability", "InterMC": "both"}
_COLOURS: Final = dict(zip(KINDS, SERIES_LIGHT, strict=False))
_NEVER: Final = "never"
# From top to bottom; the gaps hold an axis and a heading.
_METRICS_DOMAIN: Final = (0.84, 0.945)
_PARTICIPATION_DOMAIN: Final = (0.53, 0.7)
_COST_DOMAIN: Final = (0.27, 0.4)
_STATE_DOMAIN: Final = (0.0, 0.14)
_HALVES: Final = ((0.0, 0.44), (0.56, 1.0))
_MOST_POINTS: Final = 1000


def heterogeneity_figure(name: str, found: Heterogeneity) -> go.Figure:
    """Metrics with their intervals, and the clients behind them, each curve in the order of its values."""
    figure = empty_figure(f"<b>{figure_text(name)}</b><br>{count(found.clients, 'client')}", "", "", height=1180)
    axis = figure.layout.template.layout
    figure.update_layout(
        margin={"t": 88},
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
    means = _add_estimates(figure, found, "T", "2")
    finite = means[np.isfinite(means)]
    if len(finite):
        shown = np.array([min(1.0, finite.min()), finite.max() * (1.6 if np.isinf(means).any() else 1.0)])
        figure.update_layout(xaxis2={**logarithmic_marks(shown), "range": np.log10(shown * [0.8, 1.4]).tolist()})
    intervals = found.options.repetitions > 1
    details = f"with {percent(found.options.confidence)} intervals" if intervals else "one repetition, no intervals"
    add_heading(figure, "-R: lower is harder", [f"taking part in time, {details}"], _METRICS_DOMAIN[1])
    add_heading(figure, "-T: higher is harder", ["time for all updates, in breaks"], _METRICS_DOMAIN[1], _HALVES[1][0])


def _add_estimates(figure: go.Figure, found: Heterogeneity, ending: str, axes: str) -> FloatArray:
    """A dot with a whisker for every metric that ends so; their means."""
    estimates = [found.metrics[f"{kind}-{ending}"] for kind in KINDS]
    means = np.array([estimate.mean for estimate in estimates])
    farthest = 1.3 * means[np.isfinite(means)].max(initial=1.0)
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
            textposition="top center" if ending == "T" or estimate.mean < 0.85 else "top left",
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
    return means


def _add_participation(figure: go.Figure, found: Heterogeneity) -> None:
    for kind, what in KINDS.items():
        _add_sorted(figure, found.participation[f"{kind}-R"], f"{kind}-R: {what}", _COLOURS[kind], "3")
    most = max(1.0, *(float(values.max()) for values in found.participation.values()))
    _add_rule(figure, (0, 1), (1, 1), "ideal", "3")
    figure.update_layout(
        xaxis3={
            "title": {"text": "clients, in the order of their participation"},
            "tickformat": ".0%",
            "range": [0, 1],
        },
        yaxis3={
            "title": {"text": "times in time"},
            "domain": _PARTICIPATION_DOMAIN,
            "range": [0, 1.05 * most],
            "ticksuffix": "×",
        },
        legend={"x": 0, "y": _PARTICIPATION_DOMAIN[0] - 0.052, "yanchor": "top"},
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
        f"mean {quantity(spread.mean_seconds, SECONDS)}, {significant(spread.to_deadline)} times the deadline",
        f"between clients ±{percent(spread.variation)}, from round to round ±{percent(spread.variation_within)}",
    ]
    if not spread.mean_seconds:
        leave_empty(figure, "4", "devices take no time")
        details = ["nothing to wait for"]
    else:
        factor, unit = fitting_unit(deadline, SECONDS)
        costs = np.sort(found.cost_seconds) / factor
        costs = costs[evenly(len(costs), _MOST_POINTS)]
        shares = np.linspace(0, 1, len(costs)) if len(costs) > 1 else np.ones(1)
        figure.add_scatter(
            x=np.append(costs[0], costs),
            y=np.append(0.0, shares),
            mode="lines",
            line={"color": _COLOURS["DevMC"], "width": 2.5},
            showlegend=False,
            hovertemplate=f"%{{y:.0%}} take at most %{{x:.3~g}} {unit}<extra></extra>",
            xaxis="x4",
            yaxis="y4",
        )
        _add_rule(figure, (deadline / factor, deadline / factor), (0, 1), "deadline", "4")
        shown = np.append(costs[costs > 0], deadline / factor)
        figure.update_layout(
            xaxis4={
                "title": {"text": f"a client's mean time for a round if it never leaves ({unit})"},
                "type": "log",
                "tickangle": 0,
                "showgrid": True,
                **logarithmic_marks(shown),
            },
            yaxis4={"title": {"text": "clients that are quicker"}, "tickformat": ".0%", "range": [0, 1.02]},
        )
    add_heading(figure, "How long devices take", details, _COST_DOMAIN[1])


def _add_states(figure: go.Figure, found: Heterogeneity) -> None:
    spread = found.states
    _add_sorted(figure, found.state_metric, "single-state metric", _COLOURS["StatMC"], "5")
    _add_sorted(figure, found.available_shares, "available share of the time", SERIES_LIGHT[3], "5")
    figure.update_layout(
        xaxis5={"title": {"text": "clients, in the order of each curve"}, "tickformat": ".0%", "range": [0, 1]},
        yaxis5={"domain": _STATE_DOMAIN, "range": [0, 1.05], "tickformat": ".0%", "title": {"text": "of the ideal"}},
    )
    details = [
        f"single-state metric: mean {significant(spread.mean_metric)}, Gini {significant(spread.gini_metric)}",
        f"available {percent(spread.mean_share)} of the time, Gini {significant(spread.gini_share)}",
    ]
    add_heading(figure, "How well availability suits rounds", details, _STATE_DOMAIN[1])


def _add_sorted(figure: go.Figure, values: FloatArray, name: str, colour: str, axes: str) -> None:
    """A curve from the largest to the smallest value over the share of clients."""
    chosen = evenly(len(values), _MOST_POINTS)
    figure.add_scatter(
        x=(chosen + 0.5) / len(values),
        y=-np.sort(-values)[chosen],
        mode="lines",
        line={"color": colour, "width": 2.5},
        name=name,
        legendgroup=name,
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
        textposition="top left" if x[0] != x[1] else "middle right",
        textfont={"color": QUIET_INK},
        hoverinfo="skip",
        showlegend=False,
        xaxis=f"x{axes}",
        yaxis=f"y{axes}",
    )


def estimate_text(estimate: Estimate) -> str:
    """A metric and half its interval: "0.8302 ± 0.0005", "12.3 ± 0.4", or "never"."""
    if estimate.never:
        return _NEVER
    half = None if math.isnan(estimate.high) else estimate.high - estimate.mean
    digits = 4 if estimate.mean < 2 and (half is None or half < 0.1) else 2 if estimate.mean < 100 else 1
    return f"{estimate.mean:,.{digits}f}" + ("" if half is None else f" ± {half:,.{digits}f}")
