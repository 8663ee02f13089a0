"""What the phones of some clients do in one round, as bars over time (like Figure 15 of FedScale)."""

from __future__ import annotations

from typing import Final

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from fedarena.display.drawing.marks import evenly, shortened
from fedarena.display.drawing.style import AXIS, GRID, INK, QUIET_INK, SERIES_LIGHT, empty_figure, figure_text
from fedarena.display.drawing.units import SECONDS, fitting_unit
from fedarena.display.report.methods import column, jobs_in
from fedarena.metrics import round_seconds
from fedarena.storage.job_table import JobTable
from fedarena.storage.run_data import RunData

MAX_ROWS: Final = 8
MAX_ROUND_ENDS: Final = 40  # drawn as lines
_PHASES: Final = {
    "download": SERIES_LIGHT[0],
    "training": SERIES_LIGHT[1],
    "upload": SERIES_LIGHT[2],
    "waiting": GRID,
}
_ROW_PIXELS: Final = 46


def timeline_figure(run: RunData) -> go.Figure | None:
    """Phases of some jobs: of the round of median length, or, if jobs last over rounds, of that round's middle.

    The jobs are those at equal distances in the order in which they ended, so the first and the last are among them.
    """
    jobs = jobs_in(run)
    if jobs is None or (number := _typical_round(run, jobs)) is None:
        return None
    over_rounds = _spans_rounds(jobs)
    ends = column(run.rounds, "end_seconds")
    begun, ended = _span(run, number)
    rows = np.flatnonzero(jobs.round == number)
    if over_rounds:
        middle = (begun + ended) / 2
        at_work = np.flatnonzero((jobs.begin_seconds <= middle) & (middle < jobs.end_seconds))
        rows = at_work if at_work.size else rows  # there may be a pause in which nobody is available
    rows = rows[np.lexsort((jobs.begin_seconds[rows], jobs.end_seconds[rows]))]
    rows = rows[evenly(len(rows), MAX_ROWS)][::-1]  # the first to end is on top
    if over_rounds:  # a window that holds most jobs: a few very slow ones would make all others small
        reach = 1.5 * float(np.median(jobs.end_seconds[rows] - jobs.begin_seconds[rows]))
        start = max(float(np.median(jobs.begin_seconds[rows])) - reach, float(jobs.begin_seconds[rows].min()))
        end = min(float(np.median(jobs.end_seconds[rows])) + reach, float(jobs.end_seconds[rows].max()))
    else:
        start, end = min(begun, float(jobs.begin_seconds[rows].min())), max(ended, float(jobs.end_seconds[rows].max()))
    factor, unit = fitting_unit(end - start, SECONDS)
    title = f"Phones at work: {figure_text(run.label)}, " + ("around " if over_rounds else "") + f"round {number}"
    figure = empty_figure(title, f"virtual time ({unit})", "", height=100 + _ROW_PIXELS * len(rows))
    _add_phases(figure, jobs, rows, start, factor, unit, None if over_rounds else ended)
    _add_outcomes(figure, run, jobs, rows, (jobs.end_seconds[rows] - start) / factor)
    inside = ends[(ends >= start) & (ends <= end)]
    if over_rounds and 0 < inside.size <= MAX_ROUND_ENDS:
        for moment in inside:
            figure.add_vline((moment - start) / factor, line={"color": AXIS, "width": 1, "dash": "dot"}, layer="below")
    figure.update_layout(barmode="overlay")
    figure.update_yaxes(visible=False, range=[-0.6, len(rows) - 0.3])
    figure.update_xaxes(range=[0, (end - start) / factor * 1.02], showgrid=True)
    return figure


def spans_rounds(run: RunData) -> bool:
    """Whether jobs of a run go on while the server makes new versions."""
    jobs = jobs_in(run)
    return jobs is not None and _spans_rounds(jobs)


def _spans_rounds(jobs: JobTable) -> bool:
    return bool((jobs.staleness > 0).any())


def _typical_round(run: RunData, jobs: JobTable) -> int | None:
    """The round of median length among those that brought an update."""
    rounds = column(run.rounds, "round").astype(np.int64)
    seconds = round_seconds(column(run.rounds, "end_seconds"))
    useful = np.isin(rounds[1:], jobs.round[jobs.used]) & (seconds > 0)
    if not useful.any():
        return None
    places = np.flatnonzero(useful)
    by_length = places[np.argsort(seconds[places], kind="stable")]
    return int(rounds[1:][by_length[(len(by_length) - 1) // 2]])


def _span(run: RunData, number: int) -> tuple[float, float]:
    place = int(np.flatnonzero(column(run.rounds, "round") == number)[0])
    begun, ended = column(run.rounds, "end_seconds")[place - 1 : place + 1]
    return float(begun), float(ended)


def _add_phases(
    figure: go.Figure,
    jobs: JobTable,
    rows: NDArray[np.int64],
    start: float,
    factor: float,
    unit: str,
    round_end: float | None,
) -> None:
    places = np.arange(len(rows))
    # A phase that was not completed lasts until the job ended.
    marks = [
        jobs.begin_seconds[rows],
        *(np.fmin(end[rows], jobs.end_seconds[rows]) for end in (jobs.downloaded_seconds, jobs.trained_seconds)),
    ]
    marks.append(np.fmin(jobs.uploaded_seconds[rows], jobs.end_seconds[rows]))
    waits = jobs.used[rows] if round_end is not None else np.zeros(len(rows), dtype=bool)
    marks.append(np.where(waits, jobs.end_seconds[rows] if round_end is None else round_end, marks[-1]))
    for index, (phase, colour) in enumerate(_PHASES.items()):
        lasting = marks[index + 1] - marks[index]
        there = lasting > 0
        if there.any():
            figure.add_bar(
                x=lasting[there] / factor,
                base=(marks[index][there] - start) / factor,
                y=places[there],
                orientation="h",
                width=0.36,
                marker={"color": colour, "line": {"width": 0}},
                name=phase,
                legendgroup=phase,
                hovertemplate=f"{phase} %{{x:.3~g}} {unit}<extra></extra>",
            )


def _add_outcomes(
    figure: go.Figure, run: RunData, jobs: JobTable, rows: NDArray[np.int64], ends: NDArray[np.float64]
) -> None:
    names = run.jobs.column("client").take(rows).to_pylist()
    for place, (row, name) in enumerate(zip(rows, names, strict=True)):
        outcome = jobs.outcome_names[jobs.outcome[row]]
        figure.add_annotation(
            text=f"<b>{figure_text(shortened(name))}</b> {figure_text(outcome)}",
            font={"color": QUIET_INK, "size": 12},
            x=0,
            xref="paper",
            xanchor="left",
            y=place + 0.36,
            showarrow=False,
        )
    failed = ~jobs.used[rows]
    figure.add_scatter(
        x=ends[failed],
        y=np.flatnonzero(failed),
        mode="markers",
        marker={"color": INK, "size": 8, "symbol": "x"},
        name="not used",
        legendgroup="not used",
        showlegend=False,
        hoverinfo="skip",
    )
