"""Metrics by what is known about clients: how those of one play, one subreddit, one kind of phone fare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedarena.metrics.clients import FloatArray, summarize_values
from fedarena.metrics.info import MetricInfo
from fedarena.metrics.metric import Metric
from fedarena.metrics.totals import from_parts, pooled

IntArray = npt.NDArray[np.int64]

# Of values that only few clients have, no more than these are told apart.
MOST_STRATA = 100


@dataclass(frozen=True)
class KeptScores:
    """What was kept of a metric of some clients."""

    metric: Metric | MetricInfo  # no more than the latter where nobody knows how it is computed
    values: FloatArray  # of every client; NaN where it has none
    counts: IntArray  # predictions
    parts: FloatArray | None = None  # of the clients' states, ``[clients, parts]``

    def summarize(self, name: str, chosen: npt.NDArray[np.bool_]) -> dict[str, float | None]:
        """The metric of the chosen clients, in keys that begin with `name`; nothing where none has any prediction."""
        chosen = chosen & (self.counts > 0)
        if self.parts is None:
            chosen = chosen & np.isfinite(self.values)
        if not chosen.any():
            return {}
        metric, values, total = self.metric, self.values[chosen], None
        if isinstance(metric, MetricInfo):
            return summarize_values(name, values, total, metric.higher_is_better)
        if metric.is_mean or self.parts is not None:
            counts = self.counts[chosen].astype(np.float64)
            states = values * counts if self.parts is None else from_parts(metric, self.parts[chosen])
            values, total = metric.value(states, counts), pooled(metric, states, counts)
        return summarize_values(name, values, total, metric.info.higher_is_better)


def stratify(
    values: Sequence[Any], samples: IntArray, scores: Mapping[str, KeptScores], most: int = MOST_STRATA
) -> list[dict[str, Any]]:
    """One row per value of an attribute, the one with most samples first; the rest is one more, with no value.

    A row has the `value`, the number of `clients` and `samples`, and for every metric what `summarize_values` tells,
    over the clients that have one.
    """
    names, places = np.unique(np.asarray(values, dtype=object).astype(str), return_inverse=True)
    original = {str(value): value for value in values}
    totals = np.bincount(places, weights=samples, minlength=len(names))
    order = np.argsort(-totals, kind="stable")
    shown, rest = order[:most], order[most:]
    rank = np.empty(len(names), dtype=np.int64)
    rank[shown], rank[rest] = np.arange(len(shown)), len(shown)
    stratum = rank[places]
    rows = []
    for number in range(len(shown) + (len(rest) > 0)):
        inside = stratum == number
        row: dict[str, Any] = {
            "value": original[str(names[shown[number]])] if number < len(shown) else None,
            "clients": int(inside.sum()),
            "samples": int(samples[inside].sum()),
        }
        for name, kept in scores.items():
            row |= kept.summarize(name, inside)
        rows.append(row)
    return rows
