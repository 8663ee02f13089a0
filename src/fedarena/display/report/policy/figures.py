"""Policies over rounds: how likely arms are, how decided the policy is, and what clients trained with.

Each function returns None where no run has anything of the kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import numpy as np
import plotly.graph_objects as go

from fedarena.display.drawing.marks import add_line, evenly, points_per_line
from fedarena.display.drawing.style import QUIET_INK, SERIES_LIGHT, Style, empty_figure, figure_text
from fedarena.display.report.figures.by_round import by_round_figure
from fedarena.display.report.methods import FloatArray, Method, column
from fedarena.display.report.policy.told import ArmTable, settings_text
from fedarena.storage.run_data import RunData

_MOST_ARMS: Final = len(SERIES_LIGHT)  # with a line of their own


def probabilities_figure(method: Method, table: ArmTable) -> go.Figure | None:
    """How likely the arms of a method's first run are, over rounds; the least likely ones together."""
    run = method.runs[0]
    rounds = column(run.rounds, "round")
    found = table.probabilities(run)
    known = np.isfinite(np.stack(found)).all(0)
    if not known.any():
        return None
    title = f"Arms of {method.label} over rounds" if len(table.arms[0]) > 1 else _title(method, table)
    figure = empty_figure(figure_text(title), "round", "probability", height=340)
    by_end = np.argsort([-float(values[known][-1]) for values in found], kind="stable")
    kept = np.flatnonzero(known)[evenly(int(known.sum()), points_per_line(min(len(found), _MOST_ARMS + 1)))]
    for place, arm in enumerate(by_end[:_MOST_ARMS].tolist()):
        style = Style(SERIES_LIGHT[place], "solid")
        name = figure_text(settings_text(table.arms[arm]))
        add_line(figure, rounds[kept], found[arm][kept], name, style, hovertemplate="%{y:.3f}")
    if len(found) > _MOST_ARMS:
        rest = sum(found[arm] for arm in by_end[_MOST_ARMS:].tolist())
        others = f"{len(found) - _MOST_ARMS} other arms together"
        add_line(figure, rounds[kept], rest[kept], others, Style(QUIET_INK, "dot"), hovertemplate="%{y:.3f}")
    figure.update_yaxes(range=[-0.02, 1.02], tickvals=[0, 0.25, 0.5, 0.75, 1])
    return figure


def entropy_figure(runs: Sequence[RunData]) -> go.Figure | None:
    """How undecided policies are, over rounds."""
    return by_round_figure(runs, _entropy, "Entropy of the policy over rounds", "entropy (nats)", "%{y:.3~g}")


def setting_figure(runs: Sequence[RunData], name: str) -> go.Figure | None:
    """What the clients of a round trained with, on average, over rounds."""
    values = partial(_mean_setting, name=name)
    return by_round_figure(runs, values, f"{name} over rounds", f"mean of {name}", "%{y:.3~g}")


def _title(method: Method, table: ArmTable) -> str:
    return f"{next(iter(table.arms[0]))} of {method.label} over rounds"


def _entropy(run: RunData) -> FloatArray:
    if "policy_entropy" not in run.rounds.column_names:
        return np.full(len(run.rounds), np.nan)
    return column(run.rounds, "policy_entropy")


def _mean_setting(run: RunData, name: str) -> FloatArray:
    """The mean over the jobs of every round, of the logarithm for learning rates."""
    means = np.full(len(run.rounds), np.nan)
    if name not in run.jobs.column_names:
        return means
    rounds, values = column(run.jobs, "round").astype(np.int64), column(run.jobs, name)
    by_logarithm = name == "local.lr"
    values = np.log(values) if by_logarithm else values
    sums = np.bincount(rounds, weights=values, minlength=len(means))[: len(means)]
    counts = np.bincount(rounds, minlength=len(means))[: len(means)]
    np.divide(sums, counts, out=means, where=counts > 0)
    return np.exp(means) if by_logarithm else means
