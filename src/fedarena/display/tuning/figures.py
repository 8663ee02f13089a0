"""Pictures of a search: how it went, what hyperparameters do, what several objectives trade off."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go

from fedarena.display.drawing.marks import evenly, logarithmic_marks, shortened
from fedarena.display.drawing.style import AXIS, QUIET_INK, SERIES_LIGHT, empty_figure, figure_text
from fedarena.display.report.compare_settings import as_text
from fedarena.hpo.space import Hyperparameter
from fedarena.hpo.tune.objectives import Objective
from fedarena.hpo.tune.outcome import TrialRecord, TunedStudy
from fedarena.hpo.tune.working import incumbent
from fedarena.metrics.info import MetricInfo

_COMPLETE, _BEST = SERIES_LIGHT[0], SERIES_LIGHT[1]
_MOST_LINES: Final = 150  # more cannot be told apart, and make the page slow
_WIDE: Final = 30.0  # times the smallest value, beyond which values need a logarithmic axis
_FEW_TICKS: Final = 6


def history_figure(tuned: TunedStudy) -> go.Figure:
    """The first objective of every trial, and the best so far."""
    info = tuned.plan.first.info
    complete = tuned.complete
    figure = empty_figure("Trials and the best so far", "trial", figure_text(info.label))
    _add_dots(figure, complete, [trial.number for trial in complete], info, "complete", _COMPLETE)
    pruned = [trial for trial in tuned.trials if trial.state == "pruned" and trial.curve]
    figure.add_scatter(
        x=[trial.number for trial in pruned],
        y=[_last(trial) for trial in pruned],
        customdata=[figure_text(_about(trial)) for trial in pruned],
        mode="markers",
        marker={"color": QUIET_INK, "size": 8, "symbol": "x-thin-open"},
        line={"color": QUIET_INK},
        name="pruned, when it was",
        legendgroup="pruned, when it was",
        showlegend=bool(pruned),
        hovertemplate="%{customdata}<extra></extra>",
    )
    x, y = _incumbents(complete, info)
    if x:
        x, y = [*x, tuned.trials[-1].number], [*y, y[-1]]
        figure.add_scatter(
            x=x,
            y=y,
            mode="lines",
            line={"color": _BEST, "width": 2.5, "shape": "hv"},
            name="best so far",
            legendgroup="best so far",
            hovertemplate=f"best so far %{{y:.{info.decimals}f}}<extra></extra>",
        )
    _value_axis(figure, [*_firsts(complete), *(_last(trial) for trial in pruned)])
    figure.update_xaxes(rangemode="tozero")
    return figure


def curves_figure(tuned: TunedStudy) -> go.Figure | None:
    """The first objective of every trial over rounds; None where none was noted."""
    shown = [trial for trial in tuned.trials if len(trial.curve) > 1]
    if not shown:
        return None
    info = tuned.plan.first.info
    best = _best_number(tuned)
    few = {shown[place].number for place in evenly(len(shown), _MOST_LINES)} | {best}
    figure = empty_figure("Learning", "round", figure_text(info.label))
    for trial in sorted((one for one in shown if one.number in few), key=lambda one: one.number == best):
        name = "best" if trial.number == best else "pruned" if trial.state == "pruned" else "others"
        colour = {"best": _BEST, "pruned": AXIS, "others": _COMPLETE}[name]
        is_first = name not in {trace.name for trace in figure.data}
        figure.add_scatter(
            x=list(trial.curve),
            y=list(trial.curve.values()),
            mode="lines",
            line={"color": colour, "width": 3 if name == "best" else 1},
            opacity=1 if name == "best" else 0.6,
            name=name,
            legendgroup=name,
            showlegend=is_first,
            hovertemplate=f"{figure_text(f'trial {trial.number}')}, round %{{x}}: %{{y:.4~f}}<extra></extra>",
        )
    _value_axis(figure, [value for trial in shown for value in trial.curve.values()])
    return figure


def slice_figure(tuned: TunedStudy, one: Hyperparameter) -> go.Figure | None:
    """The first objective against one hyperparameter; None where no complete trial has it."""
    shown = [trial for trial in tuned.complete if one.name in trial.configuration]
    if not shown:
        return None
    info, best = tuned.plan.first.info, _best_number(tuned)
    figure = empty_figure(figure_text(one.name), figure_text(one.name), figure_text(info.label), height=340)
    for name, colour in (("complete", _COMPLETE), ("best", _BEST)):
        some = [trial for trial in shown if (trial.number == best) == (name == "best")]
        _add_dots(figure, some, [_place_on_axis(one, trial) for trial in some], info, name, colour)
    if one.kind == "choice":
        labels = [figure_text(shortened(as_text(choice))) for choice in one.choices]
        figure.update_xaxes(
            tickvals=list(range(len(labels))), ticktext=labels, range=[-0.6, len(labels) - 0.4], showline=False
        )
    elif one.log:
        figure.update_xaxes(type="log", **logarithmic_marks(np.array([one.low, one.high])))
    _value_axis(figure, _firsts(shown))
    return figure


def parallel_figure(tuned: TunedStudy) -> go.Figure | None:
    """A line for every complete trial through its hyperparameters to its value; the best tenth in another colour."""
    space = list(tuned.plan.space)
    complete = tuned.complete
    if len(complete) < 2 or len(space) < 2:
        return None
    info = tuned.plan.first.info
    ranked = sorted(complete, key=lambda trial: _cost(tuned.plan.first, trial))
    good = {trial.number for trial in ranked[: max(1, round(len(ranked) / 10))]}
    few = {complete[place].number for place in evenly(len(complete), _MOST_LINES)} | good
    ends = min(_firsts(complete)), max(_firsts(complete))
    figure = empty_figure("Hyperparameters together", "", "", height=420)
    for trial in sorted((one for one in complete if one.number in few), key=lambda one: one.number in good):
        name = "best tenth" if trial.number in good else "others"
        colour = _BEST if trial.number in good else _COMPLETE
        heights: list[float | None] = [
            one.place_of(trial.configuration[one.name]) if one.name in trial.configuration else None for one in space
        ]
        value = _firsts([trial])[0]
        heights.append((value - ends[0]) / (ends[1] - ends[0]) if ends[1] > ends[0] else 0.5)
        figure.add_scatter(
            x=list(range(len(heights))),
            y=heights,
            mode="lines+markers",
            line={"color": colour, "width": 2 if trial.number in good else 1},
            marker={"size": 4, "color": colour},
            opacity=1 if trial.number in good else 0.35,
            connectgaps=True,
            name=name,
            legendgroup=name,
            showlegend=name not in {trace.name for trace in figure.data},
            hovertemplate=f"{figure_text(_about(trial))}<extra></extra>",
        )
    _parallel_axes(figure, space, info, ends)
    return figure


def importance_figure(importances: dict[str, float]) -> go.Figure:
    """How much of the variation each hyperparameter explains."""
    names = sorted(importances, key=lambda name: importances[name])
    figure = empty_figure("Importance", "share of the variation that it explains", "", height=110 + 34 * len(names))
    figure.add_bar(
        x=[importances[name] for name in names],
        y=[figure_text(shortened(name)) for name in names],
        orientation="h",
        marker={"color": _COMPLETE, "line": {"width": 0}},
        text=[f"{importances[name]:.0%}" for name in names],
        textposition="outside",
        cliponaxis=False,
        textfont={"color": QUIET_INK, "size": 12},
        showlegend=False,
        hoverinfo="skip",
    )
    figure.update_xaxes(tickformat=".0%", range=[0, 1.12], tickvals=[0, 0.25, 0.5, 0.75, 1])
    return figure


def pareto_figure(tuned: TunedStudy, x: int, y: int) -> go.Figure:
    """Two objectives against each other, with the trials that no other one beats in everything."""
    across, up = tuned.objectives[x], tuned.objectives[y]
    front = {trial.number for trial in tuned.pareto}
    title = f"{across.info.label[:1].upper()}{across.info.label[1:]} and {up.info.label}"
    figure = empty_figure(figure_text(title), figure_text(_with_way(across)), figure_text(_with_way(up)))
    for name, colour, size in (("others", AXIS, 7), ("Pareto front", _BEST, 10)):
        shown = [trial for trial in tuned.complete if (trial.number in front) == (name == "Pareto front")]
        shown.sort(key=lambda trial: _values(trial)[x])
        with_line = name == "Pareto front" and len(tuned.objectives) == 2
        figure.add_scatter(
            x=[_values(trial)[x] for trial in shown],
            y=[_values(trial)[y] for trial in shown],
            customdata=[figure_text(_about(trial)) for trial in shown],
            mode="lines+markers" if with_line else "markers",
            line={"color": colour, "width": 1.5, "dash": "dot"},
            marker={"color": colour, "size": size},
            name=name,
            legendgroup=name,
            showlegend=bool(shown),
            hovertemplate="%{customdata}<extra></extra>",
        )
    return figure


def _add_dots(
    figure: go.Figure, trials: Sequence[TrialRecord], x: Sequence[float], info: MetricInfo, name: str, colour: str
) -> None:
    figure.add_scatter(
        x=list(x),
        y=_firsts(trials),
        customdata=[figure_text(_about(trial)) for trial in trials],
        mode="markers",
        marker={"color": colour, "size": 11 if name == "best" else 8, "opacity": 0.85},
        line={"color": colour},  # for the button that hides them
        name=name,
        legendgroup=name,
        showlegend=bool(trials),
        hovertemplate=f"%{{customdata}}: %{{y:.{info.decimals}f}}<extra></extra>",
    )


def _parallel_axes(figure: go.Figure, space: Sequence[Hyperparameter], info: MetricInfo, ends: Sequence[float]) -> None:
    """Upright lines with the names below, and values beside them."""
    for number, one in enumerate(space):
        if one.kind == "choice":
            ticks = [(one.place_of(value), as_text(value)) for value in one.choices[:_FEW_TICKS]]
        else:
            ticks = [(place, f"{one.value_at(place):.3g}") for place in (0.0, 0.5, 1.0)]
        _add_ticks(figure, number, ticks)
    _add_ticks(figure, len(space), [(place, info.text(end)) for place, end in zip((0.0, 1.0), ends, strict=True)])
    for number in range(len(space) + 1):
        figure.add_shape(type="line", x0=number, x1=number, y0=0, y1=1, line={"color": AXIS, "width": 1}, layer="below")
    names = [*(one.name for one in space), info.label]
    figure.update_xaxes(
        tickvals=list(range(len(names))),
        ticktext=[figure_text(shortened(name)) for name in names],
        range=[-0.2, len(names) - 0.6],
        showline=False,
        ticks="",
    )
    figure.update_yaxes(visible=False, range=[-0.06, 1.06])


def _add_ticks(figure: go.Figure, axis: int, ticks: Sequence[tuple[float, str]]) -> None:
    for height, text in ticks:
        figure.add_annotation(
            x=axis,
            y=height,
            text=figure_text(shortened(text)),
            showarrow=False,
            xanchor="left",
            xshift=6,
            font={"color": QUIET_INK, "size": 11},
        )


def _value_axis(figure: go.Figure, values: Sequence[float]) -> None:
    """Values that lie far apart, such as losses of learning rates that are too large, on a logarithmic axis."""
    found = [value for value in values if math.isfinite(value)]
    if found and min(found) > 0 and max(found) > _WIDE * min(found):
        figure.update_yaxes(type="log", **logarithmic_marks(np.array(found)))


def _incumbents(complete: Sequence[TrialRecord], info: MetricInfo) -> tuple[list[int], list[float]]:
    x: list[int] = []
    y: list[float] = []
    for trial in complete:
        value = _firsts([trial])[0]
        if trial.feasible and (not y or info.is_better(value, y[-1])):
            x.append(trial.number)
            y.append(value)
    return x, y


def _best_number(tuned: TunedStudy) -> int | None:
    best = incumbent(tuned.plan, tuned.study)
    return None if best is None else best.trial


def _place_on_axis(one: Hyperparameter, trial: TrialRecord) -> float:
    value: Any = trial.configuration[one.name]
    return float(one.choices.index(value)) if one.kind == "choice" else float(value)


def _about(trial: TrialRecord) -> str:
    """A trial where a mouse points at it."""
    values = ", ".join(f"{name.rpartition('.')[2]}={_short(value)}" for name, value in trial.configuration.items())
    return f"trial {trial.number} ({values})"


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else as_text(value)


def _with_way(objective: Objective) -> str:
    return f"{objective.info.label} ({'more' if objective.maximize else 'less'} is better)"


def _last(trial: TrialRecord) -> float:
    return list(trial.curve.values())[-1]


def _values(trial: TrialRecord) -> tuple[float, ...]:
    assert trial.values is not None
    return trial.values


def _firsts(trials: Sequence[TrialRecord]) -> list[float]:
    return [_values(trial)[0] for trial in trials]


def _cost(objective: Objective, trial: TrialRecord) -> float:
    value = _values(trial)[0]
    return -value if objective.maximize else value
