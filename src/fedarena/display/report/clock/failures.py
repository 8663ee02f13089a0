"""What was for nothing: jobs that failed, and the time, traffic and energy that went into them; a bar per method.

Each function returns None where no run has anything of the kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import plotly.graph_objects as go

from fedarena.display.drawing.marks import shortened
from fedarena.display.drawing.style import AXIS, INK, QUIET_INK, SERIES_LIGHT, empty_figure, figure_text, styles
from fedarena.display.drawing.units import count
from fedarena.display.report.methods import Method, jobs_of, methods_of
from fedarena.metrics import OUTCOMES, USED, count_outcomes
from fedarena.metrics import wasted_share as share_wasted
from fedarena.storage.run_data import RunData

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
