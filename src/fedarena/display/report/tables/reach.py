"""What methods needed to reach levels of the metric that runs lead with: rounds, traffic, compute, time, energy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.display.drawing.units import count
from fedarena.display.report.methods import Method, baselines, evaluation_curve, has_clock
from fedarena.metrics import cost_to_level, round_levels
from fedarena.metrics.info import MetricInfo

# Which columns of a curve they are; bytes are those that were really sent.
_COSTS = {"round": "round", "bytes": "real_bytes", "flops": "flops", "hours": "hours", "joules": "joules"}


@dataclass(frozen=True)
class Reach:
    """What a method needed to reach a level: means over seeds, None unless all seeds reached it."""

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
        """What to say of a level that not all seeds reached."""
        return f"by {self.reached} of {count(self.runs, 'seed')}" if self.reached else "not reached"


def reach_table(
    methods: Sequence[Method], metric: MetricInfo, levels: Sequence[float] | None = None
) -> list[list[Reach]]:
    """For every method (row) and level (column; by default those of `levels_between`) the cost of reaching it."""
    levels = levels_between(methods, metric) if levels is None else levels
    return [[reach_of(method, metric, level) for level in levels] for method in methods]


def in_order(levels: Sequence[float], metric: MetricInfo) -> list[float]:
    """Levels that somebody asked for, each once and the best last; refuses what the metric can never be."""
    for level in levels:
        if not math.isfinite(level):
            raise BadInputError(f"The level {level} cannot be reached; give a finite number")
        if metric.low is not None and level < metric.low:
            raise BadInputError(f"The level {level:g} cannot be reached: no {metric.label} is below {metric.low:g}")
        if metric.high is not None and level > metric.high:
            raise BadInputError(f"The level {level:g} cannot be reached: no {metric.label} is above {metric.high:g}")
    return sorted(set(levels), reverse=not metric.higher_is_better)


def levels_between(methods: Sequence[Method], metric: MetricInfo) -> list[float]:
    """Up to four round levels between the start of the methods (or the baseline) and the best score."""
    curves = [curve[metric.name] for method in methods if (curve := method.mean_curve())]
    curves = [curve[np.isfinite(curve)] for curve in curves if np.isfinite(curve).any()]
    if not curves:
        return []
    trivial = baselines([run for method in methods for run in method.runs], metric)
    best = max if metric.higher_is_better else min
    start = best([float(curve[0]) for curve in curves] + list(trivial))
    span = None if metric.low is None or metric.high is None else metric.high - metric.low
    return round_levels(start, best(float(best(curve)) for curve in curves), metric.higher_is_better, span)


def comparing_level(methods: Sequence[Method], metric: MetricInfo) -> float | None:
    """The best level that all methods with a clock reached; where there is none, the best that one reached."""
    timed = [method for method in methods if method.counted and all(map(has_clock, method.counted))]
    finished = [method for method in timed if method.counted[0].status == "finished"] or timed
    table = reach_table(finished, metric) if finished else []
    reached = [{reach.level for reach in row if reach.hours is not None} for row in table]
    candidates = (set.intersection(*reached) or set.union(*reached)) if reached else set()
    return (max if metric.higher_is_better else min)(candidates, default=None)


def reach_of(method: Method, metric: MetricInfo, level: float) -> Reach:
    """What a method needed for one level."""
    curves = [evaluation_curve(run) for run in method.counted]
    costs = [
        [cost_to_level(curve[metric.name], curve[name], level, metric.higher_is_better) for name in _COSTS.values()]
        for curve in curves
    ]
    reached = [found for found in costs if None not in found]
    if not reached or len(reached) < len(costs):
        return Reach(method.label, level, len(costs), len(reached), None, None, None)
    means = np.mean(np.array(reached, dtype=np.float64), axis=0).tolist()
    known = {name: mean if math.isfinite(mean) else None for name, mean in zip(_COSTS, means, strict=True)}
    return Reach(method.label, level, len(costs), len(reached), **known)
