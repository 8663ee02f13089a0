"""Privacy over rounds: what was spent, how updates were clipped, how loud the noise was.

Each function returns None where no run has anything of the kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import plotly.graph_objects as go

from fedarena.display.drawing.marks import add_line
from fedarena.display.drawing.style import QUIET_INK, Style, figure_text, styles
from fedarena.display.report.figures.by_round import Values, by_round_figure
from fedarena.display.report.methods import FloatArray, column, methods_of
from fedarena.display.report.privacy.spent import spent_by
from fedarena.runs.round_text import epsilon_text
from fedarena.storage.run_data import RunData


def epsilon_figure(runs: Sequence[RunData]) -> go.Figure | None:
    """ε over rounds, and budgets as dashed lines."""
    title, hover = "Privacy spent over rounds", "ε %{y:.3~g}"
    figure = by_round_figure(runs, _values("epsilon"), title, "ε", hover, grows=True)
    if figure is not None:
        _add_budgets(figure, runs)
    return figure


def clip_norm_figure(runs: Sequence[RunData]) -> go.Figure | None:
    """The norm that updates were clipped to, over rounds; None where it is the same in all of them."""
    if not any(_varies(column(run.rounds, "clip_norm")) for run in runs):
        return None
    return by_round_figure(runs, _values("clip_norm"), "Clipping norm over rounds", "clipping norm", "%{y:.3~g}")


def clipped_share_figure(runs: Sequence[RunData]) -> go.Figure | None:
    """The share of clients whose updates were longer than the clipping norm, over rounds."""
    title, label = "Clipped updates over rounds", "share of clients clipped"
    figure = by_round_figure(runs, _values("clipped_share"), title, label, "%{y:.1%}")
    if figure is not None:
        figure.update_yaxes(tickformat=".0%", type="linear", range=[0, 1.02], tickvals=[0, 0.25, 0.5, 0.75, 1])
    return figure


def noise_figure(runs: Sequence[RunData]) -> go.Figure | None:
    """The norm of the noise relative to that of what it was added to, over rounds."""
    title, label = "Noise to signal over rounds", "noise / update"
    return by_round_figure(runs, _values("noise_to_signal"), title, label, "%{y:.3~g}")


def _add_budgets(figure: go.Figure, runs: Sequence[RunData]) -> None:
    """A dashed line for all who share a budget, or one for every method in its colour."""
    methods = methods_of(runs)
    look = styles(methods)
    budgets = {m.label: found[0].budget for m in methods if (found := spent_by(m)) and found[0].budget is not None}
    ends = np.array([0.0, max(float(trace.x[-1]) for trace in figure.data)])
    if len(set(budgets.values())) == 1:
        budget = next(iter(budgets.values()))
        _add_budget(figure, ends, budget, f"budget {epsilon_text(budget)}", Style(QUIET_INK, "dash"))
        return
    for label, budget in budgets.items():
        style = Style(look[label].colour, "dash")
        _add_budget(figure, ends, budget, figure_text(label), style, showlegend=False)


def _add_budget(
    figure: go.Figure, ends: FloatArray, budget: float, name: str, style: Style, showlegend: bool = True
) -> None:
    add_line(
        figure,
        ends,
        np.full(2, budget),
        name,
        style,
        line={"color": style.colour, "dash": style.dash, "width": 1.5},
        showlegend=showlegend,
        hoverinfo="skip",
        hovertemplate=None,
    )


def _values(name: str) -> Values:
    return partial(_column, name=name)


def _column(run: RunData, name: str) -> FloatArray:
    return column(run.rounds, name)


def _varies(values: FloatArray) -> bool:
    known = values[np.isfinite(values)]
    return known.size > 0 and float(known.max()) > float(known.min())
