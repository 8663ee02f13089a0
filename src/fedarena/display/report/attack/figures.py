"""Attacks and defences in pictures: success over rounds and against the main metric, who attacks, who is rejected.

Each function returns None where no run has anything of the kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import plotly.graph_objects as go

from fedarena.analysis.leading_metric import leading_metric, runs_with
from fedarena.display.drawing.marks import add_line, add_points
from fedarena.display.drawing.metrics import as_title, hover_value
from fedarena.display.drawing.style import empty_figure, figure_text, styles
from fedarena.display.report.attack.judged import corrupted_share, is_attacked, judged, last_success
from fedarena.display.report.figures.by_round import by_round_figure
from fedarena.display.report.figures.share_bars import Share, share_bars_figure
from fedarena.display.report.methods import evaluation_curve, methods_of
from fedarena.metrics.info import MetricInfo
from fedarena.storage.run_data import RunData

MAX_ROWS: Final = 24  # of bars; of more, the table tells
MAX_LINES: Final = 12  # that differ by chance alone


def attack_tradeoff_figure(runs: Sequence[RunData], metric: MetricInfo | None = None) -> go.Figure | None:
    """A metric against the attack's success after the last evaluation: a dot per method, small ones are seeds.

    None for fewer than two methods that know it.
    """
    metric = metric or leading_metric(runs)
    look = styles(methods_of(runs))
    shown = [method for method in methods_of(runs_with(runs, metric)) if last_success(method)]
    if len(shown) < 2:
        return None
    title = f"{as_title(metric)} against attack success"
    figure = empty_figure(figure_text(title), "attack success", figure_text(metric.label), height=380)
    for method in shown:
        curves = [evaluation_curve(run) for run in method.counted]
        scores, success = (np.array([curve[name][-1] for curve in curves]) for name in (metric.name, "attack_success"))
        name, colour = figure_text(method.label), look[method.label].colour
        if len(curves) > 1:
            add_points(figure, success, scores, name, {"color": colour, "size": 6, "opacity": 0.5}, hoverinfo="skip")
        add_line(
            figure,
            np.array([success.mean()]),
            np.array([scores.mean()]),
            name,
            look[method.label],
            mode="markers",
            marker={"color": colour, "size": 13},
            hovertemplate=f"{hover_value(metric)}, attack success %{{x:.1%}}",
        )
    figure.update_xaxes(tickformat=".0%", range=[-0.03, 1.03], tickvals=[0, 0.25, 0.5, 0.75, 1])
    figure.update_layout(margin_r=24)
    return figure


def corrupted_figure(runs: Sequence[RunData]) -> go.Figure | None:
    """The share of used updates that are of corrupted clients, over rounds; None where lines would be too many."""
    attacked = [method for method in methods_of(runs) if any(map(is_attacked, method.runs))]
    if len(attacked) > MAX_LINES:
        return None
    title, label = "Corrupted clients over rounds", "share of used updates"
    figure = by_round_figure(runs, corrupted_share, title, label, "%{y:.1%}")
    if figure is not None:
        figure.update_yaxes(tickformat=".0%", type="linear", tickvals=None, nticks=6)
    return figure


def rejected_figure(runs: Sequence[RunData]) -> go.Figure | None:
    """How much of corrupted and of honest updates defences did not take, seeds together; None for very many methods."""
    found = []
    for method in methods_of(runs):
        left_out = judged(method.counted).left_out
        shares = {kind: Share(share, f"{kind} {share:.1%}") for kind, share in left_out.items()}
        if shares:
            found.append((method, shares))
    if not 0 < len(found) <= MAX_ROWS:
        return None
    return share_bars_figure("Updates that defences left out", "share of them", found, styles(methods_of(runs)))
