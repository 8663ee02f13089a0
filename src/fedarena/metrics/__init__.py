"""Statistical and systems metrics."""

from fedarena.metrics.clients import PERSONAL, TRAINING_SET, is_loss, summarize_clients, summary_names
from fedarena.metrics.participation import gini, lorenz_curve, summarize_participation
from fedarena.metrics.strata import stratify
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

__all__ = [
    "OUTCOMES",
    "PERSONAL",
    "TRAINING_SET",
    "USED",
    "cost_to_level",
    "count_outcomes",
    "elapsed_hours",
    "gini",
    "is_loss",
    "lorenz_curve",
    "round_levels",
    "round_seconds",
    "staleness_counts",
    "stratify",
    "summarize_clients",
    "summarize_participation",
    "summary_names",
    "wasted_share",
]
