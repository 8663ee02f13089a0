"""How a metric is written: in titles, in cells of tables, and where a mouse points at a line."""

from __future__ import annotations

import math
from typing import Final

from fedarena.display.drawing.units import ABSENT, spread
from fedarena.metrics.info import MetricInfo

_MOST_DECIMALS: Final = 3  # where metrics are compared; a single value has as many as its metric asks for
_MOST_DIGITS: Final = 5


def as_title(metric: MetricInfo) -> str:
    """A metric at the beginning of a sentence."""
    return metric.label[:1].upper() + metric.label[1:]


def decimals_of(metric: MetricInfo, value: float = 0.0) -> int:
    """How many decimals a value has where it is compared with others: fewer if it is large, more if it is small."""
    before_point = 1 if abs(value) < 1 else math.floor(math.log10(abs(value))) + 1
    return metric.decimals_for(value, max(0, min(metric.decimals, _MOST_DECIMALS, _MOST_DIGITS - before_point)))


def score_text(metric: MetricInfo, mean: float | None, std: float | None = None) -> str:
    """A metric over seeds: "0.431 ± 0.004", or the mean alone when there is one seed."""
    if mean is None or not math.isfinite(mean):
        return ABSENT
    return spread(mean, std, decimals_of(metric, mean))


def difference_text(metric: MetricInfo, mean: float | None, difference: float | None) -> str:
    """How much more a metric is than that of something else, with its sign and the decimals of the metric itself."""
    if mean is None or difference is None or not math.isfinite(difference):
        return ABSENT
    return f"{difference:+.{decimals_of(metric, mean)}f}"


def level_text(level: float) -> str:
    """A value of a metric that somebody chose: "0.75", "2,900"."""
    return f"{level:,.12g}"


def hover_value(metric: MetricInfo, axis: str = "y") -> str:
    """The value of a metric in a hover text."""
    return f"%{{{axis}:.{decimals_of(metric)}f}}"


def or_better(metric: MetricInfo) -> str:
    """On which side of a level the good values are."""
    return "at or above" if metric.higher_is_better else "at or below"
