"""A row of the table of results: one method after its last evaluated round."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedarena.analysis.leading_metric import baseline_of
from fedarena.display.drawing.units import listing
from fedarena.display.report.methods import (
    Method,
    column,
    evaluation_curve,
    has_clock,
    jobs_of,
    last_evaluation,
    seed_of,
)
from fedarena.display.report.tables.reach import reach_of
from fedarena.metrics import PERSONAL, wasted_share
from fedarena.metrics.info import MetricInfo
from fedarena.storage.run_data import RunData


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over seeds; no deviation for a single seed."""

    mean: float
    std: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """The spread of finite values; None if there is no value, or one that is not finite."""
        if not values or not all(math.isfinite(value) for value in values):
            return None
        return cls(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None)


@dataclass(frozen=True)
class FinalRow:
    """One method after its last evaluated round, over the seeds that count. Scores are of the leading metric."""

    label: str
    seeds: tuple[int, ...]
    status: str
    finished: bool
    round: int | None
    eval_clients: int | None
    score: Spread | None
    score_by_client: Spread | None
    score_p10: Spread | None
    score_p90: Spread | None
    score_worst_decile: Spread | None
    personal_score: Spread | None
    personal_score_by_client: Spread | None
    personal_score_worst_decile: Spread | None
    metrics: Mapping[str, Spread | None]  # every metric of the task over all samples, by its name
    over_baseline: Spread | None
    bytes: Spread | None
    flops: Spread | None
    wall_seconds: Spread | None
    clients_per_second: Spread | None
    hours: Spread | None  # of virtual time; this and what follows is None in a world without a clock
    hours_to_level: Spread | None
    failed: Spread | None  # shares
    wasted: Spread | None
    joules: Spread | None


def comparable(rows: Sequence[FinalRow]) -> list[FinalRow]:
    """The rows that may be called best: the finished ones, or all while none is finished."""
    return [row for row in rows if row.finished] or list(rows)


def final_row(method: Method, metric: MetricInfo, others: Sequence[MetricInfo], level: float | None) -> FinalRow:
    """What a method came to in its leading metric, in the others, and in time to a level."""
    counted = method.counted
    finals = [final for run in counted if (final := last_evaluation(run)) is not None]

    def score(ending: str = "", prefix: str = "", of: MetricInfo = metric) -> Spread | None:
        return Spread.of([_number(final.get(f"{prefix}{of.name}{ending}")) for final in finals])

    def timing(name: str) -> Spread | None:
        return Spread.of([_number((run.summary.get("timing") or {}).get(name)) for run in counted])

    curves = [evaluation_curve(run) for run in counted]
    timed = bool(counted) and all(map(has_clock, counted))
    reach = None if level is None or not timed else reach_of(method, metric, level)
    gains = [
        _number(final[metric.name]) - (baseline_of(run, metric) or (math.nan,))[0]
        for run, final in zip(counted, finals, strict=True)
    ]
    return FinalRow(
        label=method.label,
        seeds=tuple(seed_of(run) for run in counted),
        status=_status(method.runs),
        finished=bool(counted) and all(run.status == "finished" for run in counted),
        round=max((final["round"] for final in finals), default=None),
        eval_clients=max((final["eval_clients"] for final in finals), default=None),
        score=score(),
        score_by_client=score("_by_client"),
        score_p10=score("_p10"),
        score_p90=score("_p90"),
        score_worst_decile=score("_worst_decile"),
        personal_score=score(prefix=PERSONAL),
        personal_score_by_client=score("_by_client", PERSONAL),
        personal_score_worst_decile=score("_worst_decile", PERSONAL),
        metrics={other.name: score(of=other) for other in (metric, *others)},
        over_baseline=Spread.of(gains),
        bytes=Spread.of([float(curve["bytes"][-1]) for curve in curves]),
        flops=Spread.of([float(curve["flops"][-1]) for curve in curves]),
        wall_seconds=timing("wall_seconds"),
        clients_per_second=timing("clients_per_second"),
        hours=Spread.of([float(curve["hours"][-1]) for curve in curves]),
        hours_to_level=None if reach is None or reach.hours is None else Spread(reach.hours, None),
        failed=Spread.of([_failed_share(run) for run in counted]) if timed else None,
        wasted=Spread.of([wasted_share(jobs.worked_seconds, jobs.used) for jobs in jobs_of(method)]),
        joules=Spread.of([float(curve["joules"][-1]) for curve in curves]),
    )


def _failed_share(run: RunData) -> float:
    invited, failed = (float(np.nansum(column(run.rounds, name))) for name in ("invited", "failed"))
    return failed / invited if invited else math.nan


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _status(runs: Sequence[RunData]) -> str:
    found = Counter(run.status for run in runs)
    if len(found) == 1:
        return runs[0].status
    return listing([f"{number} {status}" for status, number in found.items()])
