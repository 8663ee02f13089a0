"""A row of the table of results: one method after its last evaluated round."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedarena.analysis.distinct import seed_of
from fedarena.analysis.leading_metric import baseline_of
from fedarena.display.drawing.units import listing
from fedarena.display.report.methods import (
    FloatArray,
    Method,
    column,
    conditions,
    evaluation_curve,
    has_clock,
    jobs_of,
    last_evaluation,
)
from fedarena.display.report.privacy.spent import spent_by
from fedarena.metrics import PERSONAL, cost_to_level, wasted_share
from fedarena.metrics.info import MetricInfo
from fedarena.storage.run_data import RunData


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over seeds; no deviation for a single seed."""

    mean: float
    std: float | None
    values: tuple[float, ...] = field(default=(), compare=False)  # of each seed, in the order of the row's seeds

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """The spread of finite values; None if there is no value, or one that is not finite."""
        if not values or not all(math.isfinite(value) for value in values):
            return None
        std = float(np.std(values, ddof=1)) if len(values) > 1 else None
        return cls(float(np.mean(values)), std, tuple(map(float, values)))


@dataclass(frozen=True)
class FinalRow:
    """One method after its last evaluated round, over the seeds that count. Scores are of the leading metric."""

    label: str
    conditions: str  # rows whose scores mean the same have the same
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
    bytes: Spread | None  # as it was planned
    real_bytes: Spread | None  # None where it is what was planned
    flops: Spread | None
    wall_seconds: Spread | None
    clients_per_second: Spread | None
    hours: Spread | None  # of virtual time; this and what follows is None in a world without a clock
    costs_to_levels: Mapping[float, Spread | None]  # hours, or rounds if nobody has a clock; None if not reached
    failed: Spread | None  # shares
    wasted: Spread | None
    joules: Spread | None
    epsilon: Spread | None  # privacy spent; None where a run does not say
    epsilon_is_simulated: bool
    attack_success: Spread | None


def comparable(rows: Sequence[FinalRow]) -> list[FinalRow]:
    """The rows that may be called best: the finished ones, or all while none is finished."""
    return [row for row in rows if row.finished] or list(rows)


def final_row(
    method: Method, metric: MetricInfo, others: Sequence[MetricInfo], levels: Sequence[float] = (), cost: str = "hours"
) -> FinalRow:
    """What a method came to in its leading metric, in the others, and which cost ("hours" or "round") levels had."""
    counted = method.counted
    finals = [final for run in counted if (final := last_evaluation(run)) is not None]

    def score(ending: str = "", prefix: str = "", of: str = metric.name) -> Spread | None:
        return Spread.of([_number(final.get(f"{prefix}{of}{ending}")) for final in finals])

    def timing(name: str) -> Spread | None:
        return Spread.of([_number((run.summary.get("timing") or {}).get(name)) for run in counted])

    curves = [evaluation_curve(run) for run in counted]
    timed = bool(counted) and all(map(has_clock, counted))
    gains = [
        _number(final[metric.name]) - (baseline_of(run, metric) or (math.nan,))[0]
        for run, final in zip(counted, finals, strict=True)
    ]
    return FinalRow(
        label=method.label,
        conditions=conditions(method.runs[0]),
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
        metrics={other.name: score(of=other.name) for other in (metric, *others)},
        over_baseline=Spread.of(gains),
        bytes=Spread.of([float(curve["bytes"][-1]) for curve in curves]),
        real_bytes=_really_sent(curves),
        flops=Spread.of([float(curve["flops"][-1]) for curve in curves]),
        wall_seconds=timing("wall_seconds"),
        clients_per_second=timing("clients_per_second"),
        hours=Spread.of([float(curve["hours"][-1]) for curve in curves]),
        costs_to_levels={level: _cost_to_level(curves, metric, level, cost) for level in levels},
        failed=Spread.of([_failed_share(run) for run in counted]) if timed else None,
        wasted=Spread.of([wasted_share(jobs.worked_seconds, jobs.used) for jobs in jobs_of(method)]),
        joules=Spread.of([float(curve["joules"][-1]) for curve in curves]),
        epsilon=_epsilon(method),
        epsilon_is_simulated=any(spent.is_simulated for spent in spent_by(method)),
        attack_success=score(of="attack_success"),
    )


def _epsilon(method: Method) -> Spread | None:
    """What every seed spent, without end where one is not private at all; None unless all say so."""
    spent = [found.epsilon for found in spent_by(method)]
    if len(spent) == len(method.counted) and any(map(math.isinf, spent)):
        return Spread(math.inf, None, tuple(spent))
    return Spread.of(spent) if len(spent) == len(method.counted) else None


def _cost_to_level(
    curves: Sequence[Mapping[str, FloatArray]], metric: MetricInfo, level: float, cost: str
) -> Spread | None:
    """What every seed needed; None unless all reached the level."""
    costs = [cost_to_level(curve[metric.name], curve[cost], level, metric.higher_is_better) for curve in curves]
    known = [cost for cost in costs if cost is not None]
    return Spread.of(known) if len(known) == len(costs) else None


def _really_sent(curves: Sequence[Mapping[str, FloatArray]]) -> Spread | None:
    really, planned = ([float(curve[name][-1]) for curve in curves] for name in ("real_bytes", "bytes"))
    return Spread.of(really) if really != planned else None


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
