"""The table of what runs cost in virtual time, one row per method with a clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedarena.display.drawing.units import ABSENT, JOULES, SECONDS, quantity, significant
from fedarena.display.report.methods import FloatArray, Method, column, has_clock, training_clients
from fedarena.metrics import gini, wasted_share
from fedarena.storage.job_table import JobTable
from fedarena.storage.run_data import RunData


@dataclass(frozen=True)
class ClockRow:
    """One method at the end of its runs: means over the seeds that know a number, NaN where none does."""

    label: str
    hours: float
    seconds_per_round: float
    failed_rounds: float
    jobs: float
    failed: float  # shares of all jobs, of the phones' time, of the traffic
    wasted_time: float
    wasted_bytes: float
    joules: float
    staleness: float
    never_invited: float  # share of the clients
    gini: float


@dataclass(frozen=True)
class ClockColumn:
    """A title, what it means, and the text of a row's cell."""

    title: str
    explanation: str
    value: Callable[[ClockRow], float]
    text: Callable[[float], str]
    if_positive: bool = False  # shown only where it says something


def _percent(share: float) -> str:
    return f"{share:.1%}" if math.isfinite(share) else ABSENT


CLOCK_COLUMNS: tuple[ClockColumn, ...] = (
    ClockColumn(
        "virtual time",
        "of the whole run",
        lambda row: row.hours,
        lambda hours: quantity(3600 * hours, SECONDS),
    ),
    ClockColumn(
        "per round",
        "virtual time of a round, mean",
        lambda row: row.seconds_per_round,
        lambda seconds: quantity(seconds, SECONDS),
    ),
    ClockColumn(
        "failed rounds", "rounds that brought no update", lambda row: row.failed_rounds, significant, if_positive=True
    ),
    ClockColumn("jobs", "jobs of clients that ended", lambda row: row.jobs, lambda jobs: f"{jobs:,.0f}"),
    ClockColumn("failed", "share of the jobs that were not used", lambda row: row.failed, _percent),
    ClockColumn("wasted time", "share of the phones' time that went into those", lambda row: row.wasted_time, _percent),
    ClockColumn("wasted traffic", "the same of bytes down and up", lambda row: row.wasted_bytes, _percent),
    ClockColumn(
        "energy",
        "of all phones, as far as their devices are known",
        lambda row: row.joules,
        lambda joules: quantity(joules, JOULES),
        if_positive=True,
    ),
    ClockColumn(
        "staleness",
        "versions that the server was ahead of a used update, mean",
        lambda row: row.staleness,
        significant,
        if_positive=True,
    ),
    ClockColumn(
        "never invited", "share of the training clients without a job", lambda row: row.never_invited, _percent
    ),
    ClockColumn(
        "Gini",
        "how unevenly jobs are spread over the training clients: 0 if all have equally many, near 1 if a few have all",
        lambda row: row.gini,
        lambda value: f"{value:.2f}" if math.isfinite(value) else ABSENT,
    ),
)


def clock_rows(methods: Sequence[Method]) -> list[ClockRow]:
    """A row for every method in which virtual time passes."""
    rows = []
    for method in methods:
        seeds = [_seed(run) for run in method.counted if has_clock(run)]
        if seeds:
            means = {name: _mean_of_known([seed[name] for seed in seeds]) for name in seeds[0]}
            rows.append(ClockRow(label=method.label, **means))
    return rows


def clock_columns(rows: Sequence[ClockRow]) -> list[ClockColumn]:
    """The columns that have something to say about these rows."""
    return [column for column in CLOCK_COLUMNS if not column.if_positive or any(column.value(row) > 0 for row in rows)]


def _seed(run: RunData) -> dict[str, float]:
    jobs = JobTable.from_table(run.jobs)  # empty where nobody ever began
    ends, joules = column(run.rounds, "end_seconds"), column(run.rounds, "joules")
    _, invited = np.unique(jobs.index, return_counts=True)
    clients, participation = training_clients(run), run.summary.get("participation") or {}
    seconds = float(ends[-1] - ends[0])
    return {
        "hours": seconds / 3600,
        "seconds_per_round": seconds / (len(ends) - 1),
        "failed_rounds": float((column(run.rounds, "succeeded")[1:] == 0).sum()),
        "jobs": len(jobs),
        "failed": 1 - float(jobs.used.mean()) if len(jobs) else math.nan,
        "wasted_time": wasted_share(jobs.worked_seconds, jobs.used) if len(jobs) else math.nan,
        "wasted_bytes": wasted_share(jobs.bytes, jobs.used) if len(jobs) else math.nan,
        "joules": _sum_of_known(joules),
        "staleness": float(jobs.staleness[jobs.used].mean()) if jobs.used.any() else math.nan,
        # Who was still at work in the end is in no table of a finished run.
        "never_invited": participation.get(
            "never_invited_share", math.nan if clients is None else 1 - len(invited) / clients
        ),
        "gini": math.nan if clients is None else gini(invited, clients),
    }


def _sum_of_known(values: FloatArray) -> float:
    return float(np.nansum(values)) if np.isfinite(values).any() else math.nan


def _mean_of_known(values: Sequence[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return float(np.mean(known)) if known else math.nan
