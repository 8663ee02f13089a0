"""Summaries of a metric over clients: what the average hides."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
PERCENTILES = (10, 25, 50, 75, 90)
TRAINING_SET = "training_set_"  # begins the names of columns about how a model fits the training samples
PERSONAL = "personal_"  # begins the names of columns about clients with models of their own


def is_loss(metric: str) -> bool:
    """Whether less of it is better."""
    return metric.removeprefix(PERSONAL) == "loss"


def summary_names(metric: str) -> list[str]:
    """The keys of `summarize_clients`, in order."""
    return [metric, f"{metric}_by_client", *(f"{metric}_p{p}" for p in PERCENTILES), f"{metric}_worst_decile"]


def summarize_clients(
    metric: str, sums: FloatArray, counts: npt.NDArray[np.int64], higher_is_better: bool
) -> dict[str, float]:
    """How a metric is spread over clients.

    `sums` and `counts` are per client. The plain name is weighted by sample (all predictions count the same),
    ``_by_client`` is the mean over clients, ``_p10`` … ``_p90`` are percentiles over clients, and ``_worst_decile``
    is the mean over the tenth of the clients (at least one) that fare worst.
    """
    values = sums / counts
    worst_first = np.sort(values) if higher_is_better else -np.sort(-values)
    decile = worst_first[: max(1, round(len(values) / 10))]
    numbers = [
        sums.sum() / counts.sum(),
        values.mean(),
        *np.percentile(values, PERCENTILES),
        decile.mean(),
    ]
    return dict(zip(summary_names(metric), map(float, numbers), strict=True))
