"""Summaries of a metric over clients: what the average hides."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
PERCENTILES = (10, 25, 50, 75, 90)
TRAINING_SET = "training_set_"  # begins the names of columns about how a model fits the training samples
PERSONAL = "personal_"  # begins the names of columns about clients with models of their own


def summary_names(metric: str) -> list[str]:
    """The keys of `summarize_values`, in order."""
    return [metric, f"{metric}_by_client", *(f"{metric}_p{p}" for p in PERCENTILES), f"{metric}_worst_decile"]


def summarize_values(
    metric: str, values: FloatArray, total: float | None, higher_is_better: bool
) -> dict[str, float | None]:
    """How a metric is spread over clients, of whom each has a value or NaN.

    The plain name is the metric of all clients together, the `total`: in a mean, all predictions count the same.
    ``_by_client`` is the mean over clients, ``_p10`` … ``_p90`` are percentiles over clients, and ``_worst_decile``
    is the mean over the tenth of the clients (at least one) that fare worst. What does not exist is None.
    """
    values = values[np.isfinite(values)]
    numbers: list[float | None] = [None if total is None or not np.isfinite(total) else float(total)]
    if len(values):
        worst_first = np.sort(values) if higher_is_better else -np.sort(-values)
        decile = worst_first[: max(1, round(len(values) / 10))]
        numbers += map(float, (values.mean(), *np.percentile(values, PERCENTILES), decile.mean()))
    names = summary_names(metric)
    return dict(zip(names, numbers + [None] * (len(names) - len(numbers)), strict=True))
