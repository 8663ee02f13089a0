"""Figures of runs in virtual time: how long rounds take, what fails, what is wasted, who takes part.

Each function returns None where no run has anything of the kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from fedarena.display.drawing.marks import add_line, add_points, logarithmic_marks, shortened
from fedarena.display.drawing.style import AXIS, INK, QUIET_INK, SERIES_LIGHT, Style, empty_figure, figure_text, styles
from fedarena.display.drawing.units import SECONDS, count, fitting_unit
from fedarena.display.report.methods import (
    FloatArray,
    Method,
    column,
    has_clock,
    jobs_in,
    jobs_of,
    methods_of,
    training_clients,
)
from fedarena.metrics import OUTCOMES, USED, count_outcomes, gini, lorenz_curve, round_seconds, staleness_counts
from fedarena.metrics import wasted_share as share_wasted
from fedarena.storage.run_data import RunData

MAX_BLOCKS: Final = 600  # of all lines together: more of them hide each other
MAX_STALENESS_BINS: Final = 30
_SHOWN_STALENESS: Final = 0.98  # of the updates; a few very old ones would make the others invisible
_LOGARITHMIC_FROM: Final = 10  # times that the rounds of one method take as long as those of another
_LORENZ_POINTS: Final = 201
# A failure looks like the phase in which it happened: blue downloads, orange trains, green uploads (see timeline.py).
OUTCOME_COLOURS: Final = {
    USED: AXIS,
    "late": SERIES_LIGHT[3],
    "stale": SERIES_LIGHT[5],
    "left while downloading": SERIES_LIGHT[0],
    "left while training": SERIES_LIGHT[1],
    "left while uploading": SERIES_LIGHT[2],
    "crashed": SERIES_LIGHT[4],
    "not available": SERIES_LIGHT[6],
}


def failures_figure(runs: Sequence[RunData]) -> go.Figure | None:
    """Which share of the jobs was not used, and why: a bar per method, seeds together."""
    found = [(method, total) for method in methods_of(runs) if (total := _outcomes(method))]
    reasons = [reason for reason in _all_outcomes(found) if reason != USED]
    if not reasons:
        return None
    figure = empty_figure("Failed jobs", "share of all jobs", "", height=_height(len(found), 62))
    rows = np.arange(len(found))[::-1]
    for reason in reasons:
        shares = [total.get(reason, 0) / sum(total.values()) for _, total in found]
        name = figure_text(reason)
        figure.add_bar(
            x=shares,
            y=rows,
            orientation="h",
            width=0.34,
            marker={"color": OUTCOME_COLOURS.get(reason, QUIET_INK), "line": {"width": 0}},
            name=name,
            legendgroup=name,
            hovertemplate="%{x:.1%} " + name + "<extra></extra>",
        )
    for row, (method, total) in zip(rows, found, strict=True):
        jobs = sum(total.values())
        failed = 1 - total.get(USED, 0) / jobs
        figure.add_annotation(
            text=f"{failed:.1%} of {count(jobs, 'job')}",
            font={"color": QUIET_INK, "size": 12},
            x=failed,
            xanchor="left",
            xshift=2,
            y=row,
            showarrow=False,
        )
        _name_row(figure, method, float(row), INK)  # colours mean reasons here
    figure.update_layout(barmode="stack")
    _finish_rows(figure, len(found), max(1 - total.get(USED, 0) / sum(total.values()) for _, total in found))
    return figure


def wasted_figure(runs: Sequence[RunData]) -> go.Figure | None:
    """Which share of the phones' time, traffic and energy went into jobs that were not used; means over seeds."""
    look = styles(methods_of(runs))
    found = [(method, shares) for method in methods_of(runs) if (shares := _wasted(method))]
    if not any(share for _, shares in found for share in shares.values()):
        return None
    kinds = list(dict.fromkeys(kind for _, shares in found for kind in shares))
    height = 0.62 / len(kinds)
    figure = empty_figure("Wasted work", "share of all", "", height=_height(len(found), 36 + 26 * len(kinds)))
    for row, (method, shares) in enumerate(reversed(found)):
        places = [row + 0.24 - height * (0.36 + kinds.index(kind)) for kind in shares]
        figure.add_bar(
            x=list(shares.values()),
            y=places,
            orientation="h",
            width=height * 0.72,
            marker={"color": look[method.label].colour, "line": {"width": 0}},
            text=[f"{kind} {share:.1%}" for kind, share in shares.items()],
            textposition="outside",
            textangle=0,
            cliponaxis=False,
            textfont={"color": QUIET_INK, "size": 12},
            name=figure_text(method.label),
            legendgroup=figure_text(method.label),
            showlegend=False,
            hoverinfo="skip",
        )
        _name_row(figure, method, row + 0.04, look[method.label].colour)
    _finish_rows(figure, len(found), max(share for _, shares in found for share in shares.values()))
    return figure


def participation_figure(runs: Sequence[RunData]) -> go.Figure | None:
    """Which share of all jobs fell to which share of the clients (Lorenz curves), means over seeds."""
    look = styles(methods_of(runs))
    shares = np.linspace(0, 1, _LORENZ_POINTS)
    figure = empty_figure("Participation", "share of clients, the least invited first", "share of jobs", height=400)
    for method in methods_of(runs):
        counts = [
            (np.unique(jobs.index, return_counts=True)[1], clients)
            for run in method.counted
            if (clients := training_clients(run)) is not None and (jobs := jobs_in(run)) is not None
        ]
        if counts:
            curve = np.mean([lorenz_curve(invited, clients, shares) for invited, clients in counts], axis=0)
            mean = np.mean([gini(invited, clients) for invited, clients in counts])
            name = f"{figure_text(method.label)} (Gini {mean:.2f})"
            hover = "%{y:.0%} of the jobs for %{x:.0%} of the clients"
            add_line(figure, shares, curve, name, look[method.label], hovertemplate=hover)
    if not figure.data:
        return None
    equal, ends = Style(QUIET_INK, "dash"), np.array([0.0, 1.0])
    add_line(figure, ends, ends, "all equally often", equal, line={"color": QUIET_INK, "dash": "dash", "width": 1.5})
    figure.update_xaxes(tickformat=".0%", range=[0, 1], dtick=0.25)
    figure.update_yaxes(tickformat=".0%", range=[0, 1.01], dtick=0.25)
    figure.update_layout(margin_r=24)
    return figure


def staleness_figure(runs: Sequence[RunData]) -> go.Figure | None:
    """How many versions old the updates were that methods used, for methods that use old ones; seeds together."""
    look = styles(methods_of(runs))
    found: list[tuple[Method, NDArray[np.int64]]] = []
    for method in methods_of(runs):
        total = _added([staleness_counts(jobs.staleness, jobs.used) for jobs in jobs_of(method)])
        if len(total) > 1:
            found.append((method, total))
    if not found:
        return None
    figure = empty_figure("Staleness", "versions that the server was ahead", "share of updates", height=400)
    last = max(_covering(total, _SHOWN_STALENESS) for _, total in found)
    width = -(-(last + 1) // MAX_STALENESS_BINS)
    bins = -(-(last + 1) // width)
    ranges = [f"{low}" if width == 1 else f"{low} to {low + width - 1}" for low in range(0, bins * width, width)]
    for method, total in found:
        ages = np.arange(len(total))
        beyond = len(total) > bins * width  # the oldest are together in the last bin
        shares = np.bincount(np.minimum(ages // width, bins - 1), total, minlength=bins) / total.sum()
        add_line(
            figure,
            (np.arange(bins) * width + (width - 1) / 2).astype(np.float64),
            shares,
            f"{figure_text(method.label)} (mean {(ages * total).sum() / total.sum():.1f})",
            look[method.label],
            mode="lines+markers",
            cliponaxis=False,
            customdata=[*ranges[:-1], f"{(bins - 1) * width} or more" if beyond else ranges[-1]],
            hovertemplate="%{customdata} versions: %{y:.1%}",
        )
    figure.update_xaxes(rangemode="tozero")
    figure.update_yaxes(tickformat=".0%", rangemode="tozero")
    return figure


def round_time_figure(runs: Sequence[RunData]) -> go.Figure | None:
    """How much virtual time a round takes, mean over seeds; of many rounds the means of blocks."""
    methods = methods_of(runs)
    look = styles(methods)
    curves: list[tuple[Method, FloatArray, FloatArray]] = []
    for method in methods:
        timed = [round_seconds(column(run.rounds, "end_seconds")) for run in method.counted if has_clock(run)]
        if timed:
            common = min(map(len, timed))
            seconds = np.mean([found[:common] for found in timed], axis=0)
            blocks = min(common, MAX_BLOCKS // len(methods))
            edges = np.unique(np.linspace(0, common, max(blocks, 2) + 1).round().astype(np.int64))
            means = np.add.reduceat(seconds, edges[:-1]) / np.diff(edges)
            curves.append((method, (edges[:-1] + 1 + edges[1:]) / 2, means))
    if not curves:
        return None
    factor, unit = fitting_unit(max(float(means.max()) for _, _, means in curves), SECONDS)
    figure = empty_figure("Time per round", "round", f"virtual time ({unit})", height=340)
    for method, rounds, means in curves:
        name = figure_text(method.label)
        hover = f"%{{y:.3~g}} {unit}"
        if len(rounds) == 1:
            marker = {"color": look[method.label].colour, "size": 8}
            add_points(figure, rounds, means / factor, name, marker, hovertemplate=hover)
        add_line(figure, rounds, means / factor, name, look[method.label], hovertemplate=hover)
    typical = [float(np.median(means)) for _, _, means in curves]
    if 0 < min(typical) * _LOGARITHMIC_FROM < max(typical):
        positive = np.concatenate([means[means > 0] for _, _, means in curves]) / factor
        figure.update_yaxes(type="log", **logarithmic_marks(positive))
    else:
        figure.update_yaxes(rangemode="tozero")
    figure.update_layout(hovermode="x unified", hoverdistance=-1)
    return figure


def _outcomes(method: Method) -> dict[str, int]:
    total: dict[str, int] = {}
    for jobs in jobs_of(method):
        for outcome, number in count_outcomes(jobs.outcome_names, jobs.outcome).items():
            total[outcome] = total.get(outcome, 0) + number
    return total


def _all_outcomes(found: Sequence[tuple[Method, dict[str, int]]]) -> list[str]:
    there = dict.fromkeys(outcome for _, total in found for outcome in total)
    return [*(name for name in OUTCOMES if name in there), *(name for name in there if name not in OUTCOMES)]


def _wasted(method: Method) -> dict[str, float]:
    """Shares by kind, each the mean of the seeds that know it; energy may be known in some alone."""
    by_seed = [
        {
            "phones' time": share_wasted(jobs.worked_seconds, jobs.used),
            "traffic": share_wasted(jobs.bytes, jobs.used),
            **({"energy": share_wasted(jobs.joules, jobs.used)} if np.isfinite(jobs.joules).any() else {}),
        }
        for jobs in jobs_of(method)
    ]
    kinds = dict.fromkeys(kind for shares in by_seed for kind in shares)
    return {kind: float(np.mean([shares[kind] for shares in by_seed if kind in shares])) for kind in kinds}


def _covering(histogram: NDArray[np.int64], share: float) -> int:
    """The smallest value up to which lies at least that share."""
    return int(np.searchsorted(np.cumsum(histogram), share * histogram.sum()))


def _added(histograms: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    total = np.zeros(max(map(len, histograms), default=0), dtype=np.int64)
    for histogram in histograms:
        total[: len(histogram)] += histogram
    return total


def _height(rows: int, pixels: int) -> int:
    return 90 + pixels * rows


def _name_row(figure: go.Figure, method: Method, row: float, colour: str) -> None:
    """A method's name above its bar and not beside it: of any length, it leaves the plot its width on a phone."""
    figure.add_annotation(
        text=f"<b>{figure_text(shortened(method.label))}</b>",
        font={"color": colour},
        x=0,
        xref="paper",
        xanchor="left",
        xshift=-6,
        y=row + 0.37,
        showarrow=False,
    )


def _finish_rows(figure: go.Figure, rows: int, longest: float) -> None:
    figure.update_yaxes(visible=False, range=[-0.5, rows - 0.35])
    # What is written after the longest bar needs room on a phone, too.
    figure.update_xaxes(tickformat=".0%", showgrid=True, range=[0, max(longest, 0.01) / 0.55], nticks=6)
    figure.update_layout(margin={"l": 14, "r": 20})  # for the labels of the first and the last tick
