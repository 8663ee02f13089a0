"""The tables of a comparison, as values: the report renders them as HTML, the command line with rich."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from fedarena.display.drawing.units import (
    ABSENT,
    BYTES,
    FLOPS,
    JOULES,
    SECONDS,
    count,
    listing,
    quantity,
    significant,
    spread,
)
from fedarena.display.report.methods import (
    Method,
    baselines,
    column,
    evaluation_curve,
    has_clock,
    jobs_of,
    last_evaluation,
    methods_of,
    seed_of,
)
from fedarena.metrics import cost_to_level, round_levels, wasted_share
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
    """One method after its last evaluated round, over the seeds that count."""

    label: str
    seeds: tuple[int, ...]
    status: str
    finished: bool
    round: int | None
    eval_clients: int | None
    accuracy: Spread | None
    accuracy_by_client: Spread | None
    accuracy_p10: Spread | None
    accuracy_p90: Spread | None
    accuracy_worst_decile: Spread | None
    personal_accuracy: Spread | None
    personal_accuracy_by_client: Spread | None
    personal_accuracy_worst_decile: Spread | None
    loss: Spread | None
    over_baseline: Spread | None
    bytes: Spread | None
    flops: Spread | None
    wall_seconds: Spread | None
    clients_per_second: Spread | None
    hours: Spread | None  # of virtual time; this and what follows is None in a world without a clock
    level: float | None  # an accuracy that methods are compared by, the same for all
    hours_to_level: Spread | None
    failed: Spread | None  # shares
    wasted: Spread | None
    joules: Spread | None


@dataclass(frozen=True)
class Column:
    """One column of the final table: title, explanation, the text of a row's cell, which end is good."""

    title: str
    explanation: str
    text: Callable[[FinalRow], str]
    value: Callable[[FinalRow], Spread | None] | None = None
    better: Literal["higher", "lower"] | None = None
    shown_if_known: bool = False  # not shown where no row has a value

    def best(self, rows: Sequence[FinalRow]) -> frozenset[str]:
        """Labels of the best rows, ties as shown included; none where there is nothing to compare."""
        if self.value is None or self.better is None or len(rows) < 2:
            return frozenset()
        found = ((row.label, self.value(row)) for row in comparable(rows))
        means = {label: round(value.mean, 3) for label, value in found if value is not None}
        if not means:
            return frozenset()
        winner = max(means.values()) if self.better == "higher" else min(means.values())
        return frozenset(label for label, mean in means.items() if mean == winner)


def comparable(rows: Sequence[FinalRow]) -> list[FinalRow]:
    """The rows that may be called best: the finished ones, or all while none is finished."""
    return [row for row in rows if row.finished] or list(rows)


def _metric(title: str, explanation: str, name: str, better: Literal["higher", "lower"] | None = "higher") -> Column:
    def value(row: FinalRow) -> Spread | None:
        found: Spread | None = getattr(row, name)
        return found

    return Column(title, explanation, lambda row: _spread_text(value(row)), value, better)


def _personal(title: str, explanation: str, name: str) -> Column:
    return replace(_metric(title, explanation, name), shown_if_known=True)


def _cost(title: str, explanation: str, text: Callable[[FinalRow], str]) -> Column:
    return Column(title, explanation, text)


def _clock(
    title: str,
    explanation: str,
    value: Callable[[FinalRow], Spread | None],
    text: Callable[[float | None], str],
    better: Literal["lower"] | None = None,
) -> Column:
    return Column(title, explanation, lambda row: text(_mean(value(row))), value, better, shown_if_known=True)


def _percent(share: float | None) -> str:
    return ABSENT if share is None else f"{share:.1%}"


def _spread_text(found: Spread | None) -> str:
    return ABSENT if found is None else spread(found.mean, found.std)


def _mean(found: Spread | None) -> float | None:
    return None if found is None else found.mean


def _over_baseline_text(row: FinalRow) -> str:
    return ABSENT if row.over_baseline is None else f"{row.over_baseline.mean:+.3f}"


def _duration(hours: float | None) -> str:
    return ABSENT if hours is None else quantity(3600 * hours, SECONDS)


TIME_TO = "time to"  # and an accuracy, which depends on the runs

FINAL_COLUMNS: tuple[Column, ...] = (
    _cost("seeds", "number of runs that count here", lambda row: str(len(row.seeds))),
    _cost("status", "how the method's runs ended", lambda row: row.status),
    _metric("accuracy", "over all samples: a client weighs as much as it has samples", "accuracy"),
    _cost("vs baseline", "accuracy minus that of the baseline", _over_baseline_text),
    _metric("by client", "mean over clients: every client weighs the same", "accuracy_by_client"),
    _metric("p10", "a tenth of the clients have a lower accuracy", "accuracy_p10"),
    _metric("p90", "a tenth of the clients have a higher accuracy", "accuracy_p90"),
    _metric("worst decile", "mean accuracy of the worst tenth of the clients", "accuracy_worst_decile"),
    _personal("personal", "accuracy over all samples, every client with its own model", "personal_accuracy"),
    _personal("personal by client", "the same, mean over clients", "personal_accuracy_by_client"),
    _personal("personal worst decile", "the same, worst tenth of the clients", "personal_accuracy_worst_decile"),
    _metric("loss", "over all samples", "loss", "lower"),
    _clock(
        TIME_TO,
        "virtual time until the first evaluation at or above that accuracy",
        lambda row: row.hours_to_level,
        _duration,
        "lower",
    ),
    _clock("virtual time", "what the phones and the server would have needed", lambda row: row.hours, _duration),
    _clock("failed", "share of the clients' jobs that were not used", lambda row: row.failed, _percent),
    _clock("wasted", "share of the phones' time that went into those", lambda row: row.wasted, _percent),
    _clock("energy", "of the phones until then", lambda row: row.joules, lambda mean: quantity(mean, JOULES)),
    _cost(
        "traffic",
        "bytes down and up until then",
        lambda row: quantity(_mean(row.bytes), BYTES),
    ),
    _cost(
        "compute",
        "floating-point operations on clients until then",
        lambda row: quantity(_mean(row.flops), FLOPS),
    ),
    _cost("time", "training and evaluation of a run", lambda row: quantity(_mean(row.wall_seconds), SECONDS)),
    _cost("clients/s", "clients trained per second", lambda row: significant(_mean(row.clients_per_second))),
)


def columns_for(rows: Sequence[FinalRow]) -> list[Column]:
    """The columns that have something to say about these rows."""

    def known(column: Column) -> bool:
        return column.value is not None and any(column.value(row) is not None for row in rows)

    shown = [column for column in FINAL_COLUMNS if not column.shown_if_known or known(column)]
    level = next((row.level for row in rows), None)
    return [replace(column, title=f"{TIME_TO} {level:g}") if column.title == TIME_TO else column for column in shown]


def final_table(runs: Sequence[RunData]) -> list[FinalRow]:
    """One row per label, in the order the labels first appear; `FINAL_COLUMNS` says how to show it."""
    methods = methods_of(runs)
    level = _comparing_level(methods)
    return [_final_row(method, level) for method in methods]


def _comparing_level(methods: Sequence[Method]) -> float | None:
    """The highest level that all methods with a clock reached; where there is none, the highest that one reached."""
    timed = [method for method in methods if method.counted and all(map(has_clock, method.counted))]
    finished = [method for method in timed if method.counted[0].status == "finished"] or timed
    reached = [
        {reach.level for reach in row if reach.hours is not None} for row in (reach_table(finished) if finished else [])
    ]
    candidates = (set.intersection(*reached) or set.union(*reached)) if reached else set()
    return max(candidates, default=None)


def _final_row(method: Method, level: float | None) -> FinalRow:
    counted = method.counted
    finals = [final for run in counted if (final := last_evaluation(run)) is not None]

    def metric(name: str) -> Spread | None:
        return Spread.of([_number(final.get(name)) for final in finals])

    def timing(name: str) -> Spread | None:
        return Spread.of([_number((run.summary.get("timing") or {}).get(name)) for run in counted])

    curves = [evaluation_curve(run) for run in counted]
    timed = bool(counted) and all(map(has_clock, counted))
    reach = None if level is None or not timed else _reach(method, level)
    gains = [
        _number(final["accuracy"]) - next(iter(baselines([run])), math.nan)
        for run, final in zip(counted, finals, strict=True)
    ]
    return FinalRow(
        label=method.label,
        seeds=tuple(seed_of(run) for run in counted),
        status=_status(method.runs),
        finished=bool(counted) and all(run.status == "finished" for run in counted),
        round=max((final["round"] for final in finals), default=None),
        eval_clients=max((final["eval_clients"] for final in finals), default=None),
        accuracy=metric("accuracy"),
        accuracy_by_client=metric("accuracy_by_client"),
        accuracy_p10=metric("accuracy_p10"),
        accuracy_p90=metric("accuracy_p90"),
        accuracy_worst_decile=metric("accuracy_worst_decile"),
        personal_accuracy=metric("personal_accuracy"),
        personal_accuracy_by_client=metric("personal_accuracy_by_client"),
        personal_accuracy_worst_decile=metric("personal_accuracy_worst_decile"),
        loss=metric("loss"),
        over_baseline=Spread.of(gains),
        bytes=Spread.of([float(curve["bytes"][-1]) for curve in curves]),
        flops=Spread.of([float(curve["flops"][-1]) for curve in curves]),
        wall_seconds=timing("wall_seconds"),
        clients_per_second=timing("clients_per_second"),
        hours=Spread.of([float(curve["hours"][-1]) for curve in curves]),
        level=level,
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


@dataclass(frozen=True)
class Reach:
    """What a method needed to reach an accuracy: means over seeds, None unless all seeds reached it."""

    label: str
    level: float
    runs: int
    reached: int
    round: float | None
    bytes: float | None
    flops: float | None
    hours: float | None = None  # of virtual time
    joules: float | None = None

    @property
    def partly(self) -> str:
        """A sentence part for a level that not all seeds reached."""
        return f"by {self.reached} of {count(self.runs, 'seed')}" if self.reached else "not reached"


def accuracy_levels(methods: Sequence[Method]) -> list[float]:
    """Up to four round levels between the start of the methods (or the baseline) and the best accuracy."""
    curves = [curve["accuracy"] for method in methods if (curve := method.mean_curve())]
    curves = [curve[np.isfinite(curve)] for curve in curves if np.isfinite(curve).any()]
    if not curves:
        return []
    trivial = baselines([run for method in methods for run in method.runs])
    low = max([float(curve[0]) for curve in curves] + list(trivial))
    high = max(float(curve.max()) for curve in curves)
    return round_levels(low, high)


def reach_table(methods: Sequence[Method], levels: Sequence[float] | None = None) -> list[list[Reach]]:
    """For every method (row) and level (column; by default those of `accuracy_levels`) the cost of reaching it."""
    levels = accuracy_levels(methods) if levels is None else levels
    return [[_reach(method, level) for level in levels] for method in methods]


_COSTS = ("round", "bytes", "flops", "hours", "joules")


def _reach(method: Method, level: float) -> Reach:
    curves = [evaluation_curve(run) for run in method.counted]
    costs = [[cost_to_level(curve["accuracy"], curve[name], level) for name in _COSTS] for curve in curves]
    reached = [found for found in costs if None not in found]
    if not reached or len(reached) < len(costs):
        return Reach(method.label, level, len(costs), len(reached), None, None, None)
    means = np.mean(np.array(reached, dtype=np.float64), axis=0).tolist()
    known = {name: mean if math.isfinite(mean) else None for name, mean in zip(_COSTS, means, strict=True)}
    return Reach(method.label, level, len(costs), len(reached), **known)
