"""What was for nothing: jobs that failed, and the time, traffic and energy that went into them; a bar per method.

Each function returns None where no run has anything of the kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import plotly.graph_objects as go

from fedarena.display.drawing.style import AXIS, INK, QUIET_INK, SERIES_LIGHT, empty_figure, figure_text, styles
from fedarena.display.drawing.units import count
from fedarena.display.report.figures.share_bars import Share, finish_rows, name_row, rows_height, share_bars_figure
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
    figure = empty_figure("Failed jobs", "share of all jobs", "", height=rows_height(len(found), 62))
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
        name_row(figure, method, float(row), INK)  # colours mean reasons here
    figure.update_layout(barmode="stack")
    finish_rows(figure, len(found), max(1 - total.get(USED, 0) / sum(total.values()) for _, total in found))
    return figure


def wasted_figure(runs: Sequence[RunData]) -> go.Figure | None:
    """Which share of the phones' time, traffic and energy went into jobs that were not used; means over seeds."""
    look = styles(methods_of(runs))
    found = [(method, shares) for method in methods_of(runs) if (shares := _wasted(method))]
    if not any(share for _, shares in found for share in shares.values()):
        return None
    bars = [
        (method, {kind: Share(share, f"{kind} {share:.1%}") for kind, share in shares.items()})
        for method, shares in found
    ]
    return share_bars_figure("Wasted work", "share of all", bars, look)


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
