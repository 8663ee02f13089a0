"""What is measured: metrics, which are values that can be added up, statistics over clients, and systems metrics."""

from fedarena.metrics import (  # noqa: F401  (importing registers the metrics)
    class_strata,
    classification,
    regression,
    text,
    transcripts,
)
from fedarena.metrics.clients import PERSONAL, TRAINING_SET, summarize_values, summary_names
from fedarena.metrics.info import MetricInfo
from fedarena.metrics.metric import METRICS, Mean, Metric, make_metric, metric_names
from fedarena.metrics.participation import gini, lorenz_curve, summarize_participation
from fedarena.metrics.strata import KeptScores, stratify
from fedarena.metrics.systems import (
    OUTCOMES,
    USED,
    cost_to_level,
    count_outcomes,
    elapsed_hours,
    round_levels,
    round_seconds,
    staleness_counts,
    wasted_share,
)
from fedarena.metrics.totals import MetricScores

__all__ = [
    "METRICS",
    "OUTCOMES",
    "PERSONAL",
    "TRAINING_SET",
    "USED",
    "KeptScores",
    "Mean",
    "Metric",
    "MetricInfo",
    "MetricScores",
    "cost_to_level",
    "count_outcomes",
    "elapsed_hours",
    "gini",
    "lorenz_curve",
    "make_metric",
    "metric_names",
    "round_levels",
    "round_seconds",
    "staleness_counts",
    "stratify",
    "summarize_participation",
    "summarize_values",
    "summary_names",
    "wasted_share",
]
